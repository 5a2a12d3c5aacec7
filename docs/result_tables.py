"""Tables of docs/results/, for docs/tables.py."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import median

from effects import (
    DATASETS,
    ENCODED_PAIRS,
    FAMILIES,
    MIN_SEEDS,
    PAGES,
    PREDICTIONS,
    RIVALS,
    SMALL,
    VERDICTS,
    Effect,
    effects,
    family,
    find_cell,
)
from figures import EVIDENCE, ROWS, figure, find, published, results, table

from gtpool.data.registry import DATASETS as INFO
from gtpool.reproduce.ensembles import SIZE, ensemble_scores, mean_and_deviation
from gtpool.reproduce.paper import (
    DESCRIBED,
    ENCODED,
    STUDIES,
    StudyCell,
    find_studies,
)
from gtpool.reproduce.published import SEP_G, TABLE_6
from gtpool.reproduce.study_compare import TableComparison, judge_claims
from gtpool.reproduce.study_results import OURS, CellResult, cell_results
from gtpool.study.summarize import EPOCH_RULES

FIRST = cell_results(
    "tuned", find_studies(["tuned"], EVIDENCE / "tuning/first/tuned.json")["tuned"], ROWS
)
"""Results of the first search."""
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
PUBLIC = {
    "ogbg-molhiv": ("80.9 (CIN)", "83.5 (DeepAUC, forest)"),
    "ogbg-moltox21": ("79.1 (Graph-ViT)", "–"),
    "ogbg-moltoxcast": ("66.7 (GCN, virtual node)", "–"),
    "ogbg-molbbbp": ("71.0 (D-MPNN)", "–"),
}
"""Public figures of graphs alone, and with fingerprints."""
CLAIMED = ("table1", "table2", "table3", "ratio", "levels", "lambda")
"""Studies that the paper's claims are checked against."""
CLOSE = 2.0
"""Points within which a baseline agrees with its published figure."""
WORSE = " ↓"
"""Mark of a method that is worse than the best of its column."""


def paper_figures() -> str:
    """Return GTPool and GTPool-V by the paper's recipe beside the paper's figures."""
    heads = ("dataset", "GTPool, paper", "here", "difference", "GTPool-V, paper", "here")
    lines = [
        (dataset, *(part for line in OURS for part in _beside(find("table1", line, dataset))))
        for dataset in DATASETS
    ]
    return table((*heads, "difference"), lines)


def paper_tuned() -> str:
    """Return GTPool-V with what validation parts chose from a search, beside the paper's figure."""
    heads = ("dataset", "paper", "each fold's choice", "difference", "pooled validation")
    lines = []
    for dataset in DATASETS:
        chosen = find("tuned", "gtpool-v", dataset)
        pooled = find("tuned", "gtpool-v, pooled validation", dataset)
        lines.append((dataset, *_beside(chosen), figure(pooled)))
    return table(heads, lines)


def paper_best() -> str:
    """Return GTPool-V by the recipe "best" beside the paper's figure."""
    heads = ("dataset", "paper", "single networks", "difference", "ensemble of five", "difference")
    lines = []
    for dataset in DATASETS:
        found = find("best", "best", dataset)
        told, mean = found.place.published, ensemble_mean(found.place)
        change = "–" if mean is None else f"{mean - told.mean:+z.2f}"
        lines.append((dataset, *_beside(found), ensemble(found.place, SIZE), change))
    return table(heads, lines)


def reached_by(kinds: Mapping[str, tuple[str, Mapping[str, float | None]]]) -> str:
    """Return where the paper's figures are reached, in words.

    Args:
        kinds: By name the method, and our values by dataset; None where one is missing.
    """
    lines = []
    for kind, (line, figures) in kinds.items():
        told = {name: find("table1", line, name).place.published.mean for name in DATASETS}
        known = {name: value for name, value in figures.items() if value is not None}
        above = ", ".join(name for name in known if known[name] >= told[name]) or "none"
        missing = ", ".join(name for name in DATASETS if name not in known) or "none"
        lines.append(
            f"- {kind}: measured on {len(known)} of {len(DATASETS)} datasets, the paper's figure "
            f"is reached on {above}. Missing: {missing}."
        )
    return "\n".join(lines)


def reached_recipe() -> str:
    """Return where the paper's recipe reaches the paper's figures."""
    names = {"GTPool": "gtpool", "GTPool-V": "gtpool-v"}
    return reached_by({name: (line, _percents("table1", line)) for name, line in names.items()})


def reached_tuned() -> str:
    """Return where tuned networks reach the paper's figures."""
    return reached_by({"Each fold's choice": ("gtpool-v", _percents("tuned", "gtpool-v"))})


def reached_best() -> str:
    """Return where the recipe "best" reaches the paper's figures."""
    joined = {name: ensemble_mean(find("best", "best", name).place) for name in DATASETS}
    return reached_by(
        {
            "Single networks": ("gtpool-v", _percents("best", "best")),
            "Ensembles of five": ("gtpool-v", joined),
        }
    )


def agreement() -> str:
    """Return how far baselines, and ours, are from their published figures."""
    heads = ("dataset", "baselines", f"within {CLOSE:g} points", "below by more", "above by more")
    heads += ("median difference", "GTPool", "GTPool-V")
    lines = []
    for dataset in DATASETS:
        here = [one for one in results("table1") if one.place.dataset == dataset]
        gaps = {
            one.place.line: one.difference
            for one in here
            if one.has_complete_seed and one.difference is not None
        }
        mine = [_signed(gaps.pop(line, None)) for line in OURS]
        values = list(gaps.values())
        counts = (
            len(values),
            sum(abs(gap) <= CLOSE for gap in values),
            sum(gap < -CLOSE for gap in values),
            sum(gap > CLOSE for gap in values),
        )
        middle = median(values) if values else None
        lines.append((dataset, *map(str, counts), _signed(middle), *mine))
    return table(heads, lines)


def rules() -> str:
    """Return what each rule of choosing the epoch makes of the same runs of GTPool-V."""
    heads = ("dataset", "paper", *EPOCH_RULES.values())
    lines = []
    for dataset in DATASETS:
        found = find("table1", "gtpool-v", dataset)
        figures = [found.rules[rule].text for rule in EPOCH_RULES]
        known = figures if found.has_complete_seed else ["missing"] * len(EPOCH_RULES)
        lines.append((dataset, published(found), *known))
    return table(heads, lines)


def tuned_pooled() -> str:
    """Return all tuned methods by both choices of validation parts."""
    heads = ("dataset", "method", "each fold's choice", "pooled validation")
    cells = sorted(STUDIES["tuned"].cells, key=lambda cell: DATASETS.index(cell.dataset))
    lines = [
        (
            cell.dataset,
            cell.line,
            figure(find("tuned", cell.line, cell.dataset)),
            figure(find("tuned", f"{cell.line}, pooled validation", cell.dataset)),
        )
        for cell in cells
        if "pooled" not in cell.line
    ]
    return table(heads, lines)


def tuned_small() -> str:
    """Return the datasets on which GTPool-V alone was tuned, after both searches."""
    heads = ("dataset", "each fold's choice", "pooled validation", "first search")
    first = {one.place.dataset: one for one in FIRST if one.place.line == "gtpool-v"}
    lines = [
        (
            dataset,
            figure(find("tuned", "gtpool-v", dataset)),
            figure(find("tuned", "gtpool-v, pooled validation", dataset)),
            figure(first[dataset]) if dataset in first else "–",
        )
        for dataset in DATASETS
    ]
    return table(heads, lines)


def methods(name: str) -> str:
    """Return methods by datasets; those worse than the best of a column are marked."""
    found, compared = family(name)
    by_place = {(one.place.line, one.place.dataset): one for one in found}
    lines = list(dict.fromkeys(line for line, _ in by_place))
    datasets = list(dict.fromkeys(dataset for _, dataset in by_place))
    cells = [
        (line, *(_marked(by_place.get((line, name)), compared) for name in datasets))
        for line in lines
    ]
    return table(("method", *datasets), cells)


def blocks(name: str) -> str:
    """Return the methods that cannot be told from the best, and those that can, by dataset."""
    found, compared = family(name)
    heads = ("dataset", "compared", "cannot be told from the best", "worse than the best")
    lines = []
    for dataset in dict.fromkeys(one.place.dataset for one in found):
        here = [one.place.line for one in found if one.place.dataset == dataset]
        made = compared.by_dataset.get(dataset)
        several = f"{len(made.means) if made else 0} of {len(here)}"
        if made is None:
            lines.append((dataset, several, "missing", "missing"))
            continue
        worse = [line for line in made.means if line not in made.best]
        alike = ", ".join(made.best)
        lines.append((dataset, several, "all of them" if not worse else alike, ", ".join(worse)))
    return table(heads, [(*line[:3], line[3] or "none") for line in lines])


def rival_ensembles() -> str:
    """Return ensembles of three seeds of the recipe "best" and its rivals."""
    lines = [
        (_method(line), *(_counted(find("best", line, name).place) for name in DATASETS))
        for line in ("best", *RIVALS)
    ]
    return table(("method", *DATASETS), lines)


def ensembles() -> str:
    """Return single networks and ensembles of five of the recipe "best"."""
    heads = ("dataset", "single networks", "ensemble of five", "aim", "aim reached")
    lines = []
    for dataset in DATASETS:
        found = find("best", "best", dataset)
        mean = ensemble_mean(found.place)
        reached = "–" if mean is None else "yes" if mean >= AIMS[dataset] else "no"
        joined = ensemble(found.place, SIZE)
        lines.append((dataset, figure(found), joined, f"{AIMS[dataset]:.1f}", reached))
    return table(heads, lines)


def described() -> str:
    """Return GTPool-V by the recipe "best" without and with descriptors of molecules."""
    heads = ("dataset", "input", "single networks", "validation", "ensemble of five")
    lines = []
    for name in PUBLIC:
        for what, end in (("graph", ""), ("graph and descriptors", DESCRIBED)):
            found = find("best", f"best{end}", name)
            valid = f"{found.valid_percent:.2f}" if found.has_complete_seed else "missing"
            lines.append((name, what, figure(found), valid, ensemble(found.place, SIZE)))
    return table(heads, lines)


def described_beside() -> str:
    """Return the figures that GTPool-V with descriptors stands beside."""
    heads = ("dataset", "single networks", "ensemble of five", "aim", "paper")
    heads += ("public, graphs", "public, fingerprints")
    lines = []
    for name, public in PUBLIC.items():
        found = find("best", f"best{DESCRIBED}", name)
        ours = (figure(found), ensemble(found.place, SIZE))
        lines.append((name, *ours, f"{AIMS[name]:.1f}", published(found), *public))
    return table(heads, lines)


def pooler_gains() -> str:
    """Return what encodings bring to GTPool-V and poolers beyond the paper, in points."""
    lines = [
        (method, *(_gain(*(find_cell(place, name) for place in places)) for name in SMALL))
        for method, places in ENCODED_PAIRS.items()
    ]
    return table(("method", *SMALL), lines)


def _gain(without: CellResult, encoded: CellResult) -> str:
    """Return the difference of two cells in points."""
    whole = without.has_complete_seed and encoded.has_complete_seed
    return _signed(encoded.percent - without.percent) if whole else "missing"


def sepg_published() -> str:
    """Return SEP-G beside the figures of its own paper."""
    heads = ("dataset", "published", "paper's recipe", "difference", "with encodings")
    lines = [
        (
            name,
            *_beside(find("poolers", "sepg", name)),
            figure(find("poolers", f"sepg{ENCODED}", name)),
        )
        for name, told in SEP_G["sepg"].items()
        if told is not None
    ]
    return table(heads, lines)


def encodings() -> str:
    """Return the letter of the paper and a flat GCN with encodings."""
    heads = ("dataset", "GTPool-V, paper's recipe with encodings")
    heads += ("GCN, encodings and training of best",)
    lines = [
        (name, figure(find("best", "paper, rwse", name)), figure(find("panel", "gcn: own", name)))
        for name in STUDIES["panel"].datasets
    ]
    return table(heads, lines)


def readme_paper() -> str:
    """Return GTPool-V by the paper's recipe beside the paper's figures, for the README."""
    cells = [find("table1", "gtpool-v", name) for name in DATASETS]
    lines = [(one.place.dataset, one.figure.text, published(one)) for one in cells]
    return table(("dataset", "GTPool-V", "paper"), lines)


def readme_budget() -> str:
    """Return GTPool-V and a flat GCN by the recipe "best", for the README."""
    lines = [
        (name, *(_short(find("best", line, name)) for line in ("best", "gcn"))) for name in DATASETS
    ]
    return table(("dataset", "GTPool-V", "flat GCN"), lines)


def claims() -> str:
    """Return the paper's claims with what its tables and our runs say."""
    said = {None: "cannot tell", True: "yes", False: "no"}
    lines = [
        (
            claim.where,
            claim.claimed,
            "no numbers printed" if printed.holds is None else said[printed.holds],
            said[ours.holds],
            ours.words,
        )
        for claim, printed, ours in judge_claims({name: results(name) for name in CLAIMED})
    ]
    return table(("where", "claim", "its tables", "here", "numbers here"), lines)


def claim_counts() -> str:
    """Return how many claims hold by the paper's tables and here."""
    judged = judge_claims({name: results(name) for name in CLAIMED})
    printed = [printed.holds for _, printed, _ in judged if printed.holds is not None]
    ours = [ours.holds for _, _, ours in judged]
    return (
        f"Of {len(judged)} claims, the paper's own tables can decide {len(printed)} and contradict "
        f"{printed.count(False)}. Here {ours.count(True)} hold, {ours.count(False)} do not, and "
        f"{ours.count(None)} cannot be told."
    )


def dataset_errors() -> str:
    """Return the paper's table of datasets beside the files."""
    heads = ("dataset", "graphs, paper", "file", "nodes, paper", "file", "edges, paper", "file")
    lines = [
        (
            name,
            str(told.graphs),
            str(INFO[name].graphs),
            f"{told.nodes:.2f}",
            f"{INFO[name].mean_nodes:.2f}",
            f"{told.edges:.2f}",
            f"{INFO[name].mean_edges:.2f}",
            str(told.classes),
            INFO[name].outputs,
        )
        for name, told in TABLE_6.items()
    ]
    return table((*heads, "classes, paper", "file"), lines)


def runs() -> str:
    """Return the number of committed runs by device."""
    done = Counter(row.device for row in ROWS.values() if row.done)
    hours: Counter[str] = Counter()
    for row in ROWS.values():
        hours[row.device] += (row.seconds or 0.0) / 3600
    commits = {
        device: {row.commit for row in ROWS.values() if row.device == device} for device in done
    }
    lines = [
        (device, f"{count:,}", f"{hours[device]:.1f}", str(len(commits[device])))
        for device, count in done.most_common()
    ]
    return table(("device", "finished runs", "hours", "commits"), lines)


def effect_table(page: str) -> str:
    """Return the differences of a page with their intervals and verdicts."""
    heads = ("dataset", "this", "difference", "interval", "verdict")
    lines = [
        (one.dataset, one.name, _signed(one.difference), _interval(one), one.verdict)
        for one in effects(page)
        if one.difference is not None
    ]
    missing: dict[str, list[str]] = {}
    for one in effects(page):
        if one.difference is None:
            missing.setdefault(one.dataset, []).append(one.name)
    lines += [(name, ", ".join(found), "–", "–", "missing") for name, found in missing.items()]
    return table(heads, lines)


def effect_counts(page: str) -> str:
    """Return how many differences of a page are above 0, and how many can be told from 0."""
    known = [one for one in effects(page) if one.difference is not None]
    above = sum(round(one.difference, 9) > 0 for one in known)
    verdicts = Counter(one.verdict for one in effects(page))
    told = ", ".join(f"{name} {verdicts[name]}" for name in VERDICTS if verdicts[name])
    return f"{len(known)} differences are measured, {above} of them above zero. Verdicts: {told}."


def ensemble(cell: StudyCell, size: int) -> str:
    """Return the figure of the ensembles of a cell with their number."""
    scores = ensemble_scores(cell, PREDICTIONS, STUDIES["best"].seeds, size)
    if not scores:
        return "missing"
    mean, deviation = mean_and_deviation(scores)
    spread = "" if deviation is None else f" ± {deviation:.2f} over folds"
    return f"{mean:.2f}{spread} ({len(scores)} ensemble{'s' * (len(scores) > 1)})"


def _counted(cell: StudyCell) -> str:
    """Return the figure of the ensembles of three of a cell with their number in brackets."""
    text = ensemble(cell, MIN_SEEDS).replace(" over folds", "")
    return text.partition(" ensemble")[0] + ")" if "ensemble" in text else text


def ensemble_mean(cell: StudyCell) -> float | None:
    """Return the mean of the ensembles of five of a cell, in per cent."""
    scores = ensemble_scores(cell, PREDICTIONS, STUDIES["best"].seeds, SIZE)
    return mean_and_deviation(scores)[0] if scores else None


def _percents(study: str, line: str) -> dict[str, float | None]:
    """Return the values of a line by dataset; None where no seed is complete."""
    cells = [find(study, line, name) for name in DATASETS]
    return {
        one.place.dataset: one.percent if one.has_complete_seed else None
        for one in cells
        if one is not None
    }


def _beside(found: CellResult | None) -> tuple[str, str, str]:
    """Return the published figure, ours and the difference."""
    change = found.difference if found.has_complete_seed else None
    return published(found), figure(found), _signed(change)


def _marked(found: CellResult | None, compared: TableComparison) -> str:
    """Return a figure with its number of seeds, marked if it is worse than the best."""
    if found is None or not found.has_complete_seed:
        return "missing"
    seeds = sum(None not in line for line in found.grid.values)
    text = found.figure.text if seeds > 1 else found.figure.text.partition(" ")[0]
    return f"{text} ({seeds}){WORSE if compared.is_told_from_best(found) else ''}"


def _short(found: CellResult) -> str:
    """Return a figure without its runs; of one seed without the deviation over folds."""
    if not found.has_complete_seed:
        return "missing"
    alone = found.figure.spread == "folds" and found.figure.n > 1
    return f"{found.figure.text.partition(' ')[0]} (1 seed)" if alone else found.figure.text


def _method(line: str) -> str:
    return "gtpool-v" if line == "best" else line


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 9):+z.2f}"


def _interval(one: Effect) -> str:
    return "–" if one.low is None else f"{one.low:+.2f} to {one.high:+.2f}"


def _named(maker: Callable[[str], str], what: str, names: Iterable[str]) -> dict[str, object]:
    return {f"{what}-{name}": lambda name=name: maker(name) for name in names}


MADE: dict[str, Callable[[], str]] = {
    "paper-figures": paper_figures,
    "paper-tuned": paper_tuned,
    "paper-best": paper_best,
    "paper-reached": reached_recipe,
    "tuned-reached": reached_tuned,
    "best-reached": reached_best,
    "paper-agreement": agreement,
    "rules": rules,
    "tuned": tuned_pooled,
    "tuned-gtpool-v": tuned_small,
    "rival-ensembles": rival_ensembles,
    "ensembles-of-five": ensembles,
    "encodings": encodings,
    "described-inputs": described,
    "described-beside": described_beside,
    "pooler-gains": pooler_gains,
    "sepg-published": sepg_published,
    "claims": claims,
    "claim-counts": claim_counts,
    "dataset-errors": dataset_errors,
    "runs": runs,
    "readme-paper": readme_paper,
    "readme-budget": readme_budget,
    **_named(methods, "methods", FAMILIES),
    **_named(blocks, "blocks", FAMILIES),
    **_named(effect_table, "effects", PAGES),
    **_named(effect_counts, "counts", PAGES),
}
