"""Tables of the recipe "best" and of the panel that chose it, for docs/tables.py."""

from collections.abc import Callable, Mapping
from statistics import fmean

from figures import EVIDENCE, ROWS, figure, find, published, results, table

from gtpool.reproduce.ensembles import SIZE, ensemble_scores, mean_and_deviation
from gtpool.reproduce.panel import CANDIDATES, PANEL, choices, choose, panel_runs
from gtpool.reproduce.paper import STUDIES, StudyCell
from gtpool.reproduce.study_results import OURS, CellResult
from gtpool.study.predictions import read_predictions

STUDY = STUDIES["best"]
RIVALS = tuple(line for line in STUDY.lines if line in CANDIDATES)
CHOOSING = ("gtpool-v", "gcn")
"""Methods whose panel is complete."""
AIMS = {
    "MUTAG": 88.2,
    "ENZYMES": 61.5,
    "PROTEINS": 76.0,
    "PTC_MR": 58.5,
    "Synthie": 86.0,
    "IMDB-BINARY": 74.3,
    "IMDB-MULTI": 50.5,
    "ogbg-molhiv": 79.0,
    "ogbg-moltox21": 78.0,
    "ogbg-moltoxcast": 65.5,
    "ogbg-molbbbp": 70.7,
}
"""Aims for ensembles of five, set before the runs."""
PREDICTIONS = read_predictions(EVIDENCE / "predictions")


def best() -> str:
    """Return the table of both recipes and of ensembles, one line per dataset."""
    heads = ("dataset", "paper's figure", "recipe paper", "recipe best", "ensemble of five")
    heads += ("best baseline, paper's protocol",)
    lines = [
        (
            name,
            published(ours),
            figure(letter),
            figure(ours),
            _ensemble(ours.place, SIZE),
            _best_baseline(name),
        )
        for name, letter, ours in _both()
    ]
    return table(heads, lines)


def best_in_short() -> str:
    """Return the same table without counts of runs, for the README."""
    heads = ("dataset", "recipe `paper`", "recipe `best`", "ensemble of five", "paper's figure")
    lines = [
        (
            name,
            letter.figure.text,
            ours.figure.text if ours.has_complete_seed else "missing",
            _ensemble(ours.place, SIZE).partition(" (")[0].removesuffix(" over folds"),
            published(ours),
        )
        for name, letter, ours in _both()
    ]
    return table(heads, lines)


def beyond_paper() -> str:
    """Return which figures of "best" reach those of the paper, in words."""
    told = {name: ours.place.published for name, _, ours in _both()}
    paper = {name: one.mean for name, one in told.items() if one is not None}
    single = {name: ours.percent for name, _, ours in _both() if ours.has_complete_seed}
    joined = {name: _mean(ours.place, SIZE) for name, _, ours in _both()}
    return "\n".join(
        f"- {what}: above the paper's figure on {_names(figures, paper, above=True)}; below it on "
        f"{_names(figures, paper, above=False)}; missing on "
        f"{', '.join(name for name in paper if figures.get(name) is None) or 'none'}."
        for what, figures in (("Single networks", single), ("Ensembles of five", joined))
    )


def aims() -> str:
    """Return the aims for ensembles beside what was reached."""
    lines: list[tuple[str, ...]] = []
    for name, _, ours in _both():
        mean = _mean(ours.place, SIZE)
        change = "–" if mean is None else f"{mean - AIMS[name]:+z.2f}"
        reached = "–" if mean is None else "yes" if mean >= AIMS[name] else "**no**"
        lines.append((name, f"{AIMS[name]:.1f}", _ensemble(ours.place, SIZE), change, reached))
    return table(("dataset", "aim", "ensemble of five", "difference", "reached"), lines)


def panel() -> str:
    """Return the validation metrics of all candidates; the choice of each method is bold."""
    lines: list[tuple[str, ...]] = []
    for method in CHOOSING:
        means = choose(method, ROWS.values()).means
        for label in CANDIDATES[method]:
            chosen = label == choices()[method][""]
            values = [_panel(method, label, name)[0] for name in PANEL]
            name = f"{method}: {label}"
            figures = [f"{100 * value:.2f}" for value in (*values, means[label])]
            lines.append((f"**{name}**" if chosen else name, *figures))
    return table(("candidate", *PANEL, "mean"), lines)


def panel_choices() -> str:
    """Return the choice without each dataset by both rules, with test metrics of the panel."""
    heads = ("method", "left out", "best mean", "lead", "test", "best mean rank", "test")
    lines: list[tuple[str, ...]] = []
    for method in CHOOSING:
        for name in (None, *PANEL):
            by_mean, means = choose(method, ROWS.values(), name)
            first, second = sorted(means.values(), reverse=True)[:2]
            ranks = _mean_ranks(method, name)
            by_rank = min(ranks, key=ranks.__getitem__)
            tests = [
                f"{100 * _panel(method, label, name)[1]:.2f}" if name else "–"
                for label in (by_mean, by_rank)
            ]
            other = by_rank if by_rank == by_mean else f"**{by_rank}**"
            lead = f"{100 * (first - second):.2f}"
            lines.append((method, name or "none", by_mean, lead, tests[0], other, tests[1]))
    return table(heads, lines)


def rivals() -> str:
    """Return single runs of "best" and of rivals with the same overlay."""
    return _beside(lambda found: _count(found) if not found.has_complete_seed else figure(found))


def rival_ensembles() -> str:
    """Return ensembles of three of "best" and of rivals, where a rival has one."""
    return _beside(lambda found: _ensemble(found.place, 3))


def positions() -> str:
    """Return GTPool-V and a flat GCN without and with encodings."""
    heads = (
        "dataset",
        "GTPool-V, recipe paper",
        "the same, encodings",
        "GCN, paper's protocol",
        "GCN, encodings and training of best",
    )
    places = (
        ("best", "paper"),
        ("best", "paper, rwse"),
        ("table1", "gcn"),
        ("panel", "gcn: own"),
    )
    lines = [
        (name, *(figure(found) if (found := find(*place, name)) else "–" for place in places))
        for name in PANEL
    ]
    return table(heads, lines)


def _both() -> list[tuple[str, CellResult, CellResult]]:
    """Return each dataset with the results of both recipes."""
    found = {(one.place.line, one.place.dataset): one for one in results("best")}
    return [(name, found["paper", name], found["best", name]) for name in STUDY.datasets]


def _best_baseline(dataset: str) -> str:
    """Return the baseline with the highest test metric under the paper's protocol."""
    here = (
        one for one in results("table1") if one.place.dataset == dataset and one.has_complete_seed
    )
    baselines = [one for one in here if one.place.line not in OURS]
    found = max(baselines, key=lambda one: one.percent or 0.0)
    return f"{found.place.line} {figure(found)}"


def _names(figures: Mapping[str, float | None], paper: Mapping[str, float], *, above: bool) -> str:
    """Return the datasets whose figure is above the paper's, or below it."""
    known = {name: value for name, value in figures.items() if value is not None}
    return ", ".join(name for name in known if (known[name] > paper[name]) == above) or "none"


def _beside(show: Callable[[CellResult], str]) -> str:
    """Return a table of "best" and its rivals, for the datasets on which a rival has a figure."""
    found = {(one.place.line, one.place.dataset): one for one in results("best")}
    lines = [
        (name, *(show(found[line, name]) for line in ("best", *RIVALS))) for name in STUDY.datasets
    ]
    lines = [line for line in lines if any(cell[0].isdigit() for cell in line[2:])]
    return table(("dataset", "best", *RIVALS), lines)


def _count(found: CellResult) -> str:
    done = sum(row.done for row in found.rows)
    return f"missing ({done} runs)" if done else "missing"


def _mean(cell: StudyCell, size: int) -> float | None:
    scores = ensemble_scores(cell, PREDICTIONS, STUDY.seeds, size)
    return mean_and_deviation(scores)[0] if scores else None


def _ensemble(cell: StudyCell, size: int) -> str:
    """Return the figure of the ensembles of a cell with their number."""
    scores = ensemble_scores(cell, PREDICTIONS, STUDY.seeds, size)
    if not scores:
        return "missing"
    mean, deviation = mean_and_deviation(scores)
    spread = "" if deviation is None else f" ± {deviation:.2f} over folds"
    return f"{mean:.2f}{spread} ({len(scores)} ensemble{'s' * (len(scores) > 1)})"


def _panel(method: str, label: str, dataset: str) -> tuple[float, float]:
    """Return the mean validation and test metric of a candidate over its runs of the panel."""
    found = [ROWS[spec.key] for spec in panel_runs(method, label, dataset)]
    return (
        fmean(row.valid_metric for row in found if row.valid_metric is not None),
        fmean(row.test for row in found if row.test is not None),
    )


def _mean_ranks(method: str, left_out: str | None) -> dict[str, float]:
    """Return the mean rank of each candidate by validation metric; equal ones share a rank."""
    ranks: dict[str, list[float]] = {label: [] for label in CANDIDATES[method]}
    for name in PANEL:
        if name != left_out:
            values = {label: _panel(method, label, name)[0] for label in ranks}
            for label, value in values.items():
                above = sum(other > value for other in values.values())
                equal = sum(other == value for other in values.values())
                ranks[label].append(above + (equal + 1) / 2)
    return {label: fmean(several) for label, several in ranks.items()}
