"""Tables of the panel of molecule sets, for docs/tables.py."""

from statistics import fmean

from figures import ROOT, table

from gtpool.reproduce.comparison import compare
from gtpool.reproduce.molecule_study import FIRST, Fit, complete_places, mean_ranks, read_fits
from gtpool.reproduce.molecules import SETS
from gtpool.reproduce.rivals import CANDIDATES, METHODS

FITS = read_fits(ROOT / "results" / "molecules.jsonl")
JUDGED = [fit for fit in FITS if fit.place.half == "judge" and fit.method in METHODS]
CHOSEN = [fit for fit in FITS if fit.place.half == "choose" and fit.method in CANDIDATES]
SHOWN = {"roc_auc": "ROC-AUC", "rmse": "RMSE"}


def sets() -> str:
    """Return the sets of the panel with their sizes."""
    sizes = {fit.place.set: sum(fit.sizes) for fit in FITS}
    heads = ("set", "half", "task", "molecules", "package")
    lines = [
        (name, one.half, one.task, str(sizes.get(name, "missing")), f"`{one.package}`")
        for name, one in SETS.items()
    ]
    return table(heads, lines)


def ranks() -> str:
    """Return mean ranks, wins against chemprop, log loss and cost on the judging half."""
    methods = _present(JUDGED, METHODS)
    places = complete_places(JUDGED, methods)
    heads = ("method", f"mean rank ({len(places)} splits)", "with the best")
    heads += ("better than chemprop", "log loss")
    best = _block(methods)
    lines = [
        (
            name,
            f"{rank:.2f}",
            "yes" if name in best else "no",
            _wins(name),
            _log_loss(name, places),
            _seconds(name),
        )
        for name, rank in sorted(mean_ranks(JUDGED, methods).items(), key=lambda pair: pair[1])
    ]
    return table((*heads, "CPU seconds a fit"), lines)


def scores() -> str:
    """Return the metric of each method on each split of the judging half."""
    return _scores(JUDGED, METHODS)


def candidates() -> str:
    """Return the metric of each candidate on the choosing half."""
    return _scores(CHOSEN, CANDIDATES)


def _scores(fits: list[Fit], known: dict[str, object]) -> str:
    methods = _present(fits, known)
    found = {(fit.place, fit.method): fit for fit in fits}
    lines: list[tuple[str, ...]] = []
    for place in sorted({fit.place for fit in fits}, key=lambda place: (*place[:2], place.seed)):
        here = [found.get((place, name)) for name in methods]
        task = SETS[place.set].task
        cells = [_cell(fit) for fit in here]
        seed = f", seed {place.seed}" if place.seed else ""
        lines.append((f"{place.set}, {place.split}{seed}, {SHOWN[FIRST[task]]}", *cells))
    return table(("split", *methods), lines)


def _cell(fit: Fit | None) -> str:
    return "missing" if fit is None else f"{fit.metrics[FIRST[fit.task]]:.3f}"


def _block(methods: list[str]) -> tuple[str, ...]:
    """Return the methods that cannot be told from the best by their ranks; sets are the blocks."""
    sets = dict.fromkeys(fit.place.set for fit in JUDGED)
    by_set = [mean_ranks([fit for fit in JUDGED if fit.place.set == one], methods) for one in sets]
    complete = [ranks for ranks in by_set if ranks]
    scores = {name: [ranks[name] for ranks in complete] for name in methods}
    return compare(scores, higher_is_better=False).best


def _present(fits: list[Fit], known: dict[str, object]) -> list[str]:
    """Return the known methods that have a row."""
    named = {fit.method for fit in fits}
    return [name for name in known if name in named]


def _wins(name: str) -> str:
    if name == "chemprop":
        return "–"
    pairs = complete_places(JUDGED, (name, "chemprop")).values()
    better = sum(pair[name].score > pair["chemprop"].score for pair in pairs)
    return f"{better} of {len(pairs)}"


def _log_loss(name: str, places: dict[object, dict[str, Fit]]) -> str:
    found = [fits[name].metrics for fits in places.values()]
    losses = [metrics["log_loss"] for metrics in found if "log_loss" in metrics]
    return f"{fmean(losses):.3f}" if losses else "–"


def _seconds(name: str) -> str:
    return f"{fmean(fit.cpu_seconds for fit in JUDGED if fit.method == name):.0f}"
