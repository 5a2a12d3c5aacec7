"""Draw the figures of docs/results/ from the committed rows, as docs/results/*.svg.

    python docs/result_figures.py

``make performance`` calls this.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from chart import Mark, Panel, Row, dot_plot
from effects import DATASETS, ENCODED_PAIRS, SMALL, Effect, effects, family
from figures import find
from result_tables import ensemble_mean

from gtpool.reproduce.paper import STUDIES
from gtpool.reproduce.study_results import OURS
from gtpool.study.summarize import EPOCH_RULES

FOLDER = Path(__file__).with_name("results")
_POINTS = "difference in points, with 95 % intervals"


def paper_figures() -> str:
    """Draw the distance to the paper's figures by the paper's recipe."""
    told = {line: _published(line) for line in OURS}
    rows = []
    for name in DATASETS:
        values = {line: _percent("table1", line, name) for line in OURS}
        marks = [
            Mark(value - told[line][name], OURS.index(line))
            for line, value in values.items()
            if value is not None
        ]
        rows.append(Row(name, marks))
    return dot_plot(
        "Distance of the paper's recipe to the paper's figures, by dataset",
        [Panel("", rows)],
        "points above the paper's figure",
        ("GTPool", "GTPool-V"),
    )


def paper_best() -> str:
    """Draw the distance to the paper's figures by the recipe "best"."""
    rows = [
        Row(
            name,
            _marks(
                (_percent("best", "best", name), 0),
                (ensemble_mean(find("best", "best", name).place), 1),
                minus=told,
            ),
        )
        for name, told in _published("gtpool-v").items()
    ]
    return dot_plot(
        "Distance of the recipe best to the paper's figures, by dataset",
        [Panel("", rows)],
        "points above the paper's figure",
        ("single networks", "ensembles of five"),
    )


def paper_recipe() -> str:
    """Draw all methods of the paper's recipe, by their distance to the highest mean."""
    found, compared = family("paper-recipe")
    rows: list[Row] = []
    for name in DATASETS:
        here = [one for one in found if one.place.dataset == name and one.has_complete_seed]
        highest = max(one.percent for one in here)
        marks = [
            Mark(
                one.percent - highest,
                1 + OURS.index(one.place.line) if one.place.line in OURS else 0,
                hollow=compared.is_told_from_best(one) is True,
            )
            for one in here
        ]
        rows.append(Row(name, marks))
    return dot_plot(
        "All methods by the paper's recipe, by dataset",
        [Panel("", rows)],
        "points to the highest mean; at the left edge: 20 or more",
        ("other methods; hollow: worse than the best", "GTPool", "GTPool-V"),
        ends=(-20.0, 0.0),
    )


def by_dataset(page: str, title: str, ends: tuple[float, float] | None = None) -> str:
    """Draw the differences of a page, a panel for each dataset."""
    found = [one for one in effects(page) if one.difference is not None]
    datasets = dict.fromkeys(one.dataset for one in found)
    panels = [Panel(name, [_row(one) for one in found if one.dataset == name]) for name in datasets]
    return dot_plot(title, panels, _POINTS, ends=ends)


def poolers() -> str:
    """Draw GTPool-V and poolers beyond the paper, without and with encodings."""
    panels = []
    for name in SMALL:
        told = _percent("table1", "gcn", name)
        rows = []
        for method, places in ENCODED_PAIRS.items():
            values = [(_percent(*place.split(": "), name), at) for at, place in enumerate(places)]
            rows.append(Row(method, _marks(*values, minus=told)))
        panels.append(Panel(name, [row for row in rows if row.marks]))
    return dot_plot(
        "Poolers beyond the paper against a flat GCN, without and with encodings",
        panels,
        "points above a flat GCN by the paper's recipe",
        ("the paper's recipe", "the same with encodings"),
    )


def levels() -> str:
    """Draw levels, ratio and lambda, a row for each value and a mark for each dataset."""
    found = effects("levels")
    datasets = list(dict.fromkeys(one.dataset for one in found))
    panels = []
    for what, title in (
        ("levels", "Levels, against 3"),
        ("ratio", "Ratio, against 0.5"),
        ("λ", "λ, against 0.4"),
    ):
        names = dict.fromkeys(one.name for one in found if one.name.startswith(what))
        rows = [
            Row(
                name,
                [
                    Mark(one.difference, datasets.index(one.dataset))
                    for one in found
                    if one.name == name and one.difference is not None
                ],
            )
            for name in names
        ]
        panels.append(Panel(title, rows))
    return dot_plot(
        "Difference by the number of levels, the ratio and lambda",
        panels,
        "difference in points",
        datasets,
    )


def epoch() -> str:
    """Draw each rule of choosing the epoch against the lowest validation loss."""
    rules = [rule for rule in EPOCH_RULES if rule != "valid_loss"]
    rows = []
    for name in DATASETS:
        cell = find("table1", "gtpool-v", name)
        base = cell.rules["valid_loss"].mean
        marks = _marks(
            *((100 * cell.rules[rule].mean, at) for at, rule in enumerate(rules)),
            (_published("gtpool-v")[name], 3),
            minus=100 * base,
        )
        rows.append(Row(name, marks if cell.has_complete_seed else []))
    return dot_plot(
        "Test metric of the same runs by rule of choosing the epoch",
        [Panel("", rows)],
        "points above the epoch of the lowest validation loss",
        [*(EPOCH_RULES[rule] for rule in rules), "the paper's figure"],
    )


def long_range() -> str:
    """Draw the accuracies on both synthetic tasks."""
    panels = []
    for name in ("long-range", "low-scores"):
        lines = [("tasks", line) for line in STUDIES["tasks"].lines]
        if name == "long-range":
            lines += [("long-range", line) for line in STUDIES["long-range"].lines]
        rows = []
        for study, line in lines:
            label = f"{line}, 4 levels" if study == "long-range" else line
            rows.append(Row(label, _marks((_percent(study, line, name), 0))))
        panels.append(Panel(name, rows))
    return dot_plot(
        "Accuracy on the two synthetic tasks",
        panels,
        "accuracy in per cent; 50 is chance",
        ends=(40.0, 100.0),
    )


def _row(one: Effect) -> Row:
    return Row(one.name, [Mark(one.difference or 0.0, 0, one.low, one.high)])


def _published(line: str) -> dict[str, float]:
    return {name: find("table1", line, name).place.published.mean for name in DATASETS}


def _percent(study: str, line: str, dataset: str) -> float | None:
    found = find(study, line, dataset)
    return found.percent if found is not None and found.has_complete_seed else None


def _marks(*values: tuple[float | None, int], minus: float = 0.0) -> list[Mark]:
    """Return a mark for each known value and its series."""
    return [Mark(value - minus, series) for value, series in values if value is not None]


DRAWN: dict[str, Callable[[], str]] = {
    "paper-figures": paper_figures,
    "paper-best": paper_best,
    "paper-recipe": paper_recipe,
    "same-budget": partial(
        by_dataset, "same-budget", "Each method against a flat GCN, with the same budget"
    ),
    "tuning": partial(by_dataset, "tuning", "Tuned against untuned, by method", (-20.0, 30.0)),
    "wheel": partial(by_dataset, "wheel", "RWS and RWSV against top-k in other poolers"),
    "poolers": poolers,
    "parts": partial(by_dataset, "parts", "Changes of GTPool-V against GTPool-V"),
    "levels": levels,
    "features": partial(by_dataset, "features", "Node features against GMT's, z-scored"),
    "encodings": partial(by_dataset, "encodings", "Encodings, and the pooler, by dataset"),
    "ensembles": partial(by_dataset, "ensembles", "Ensembles against their single networks"),
    "epoch": epoch,
    "mutag": partial(by_dataset, "mutag", "Changes of GTPool-V on MUTAG"),
    "long-range": long_range,
}
"""Figures by page."""


def stale() -> Iterable[str]:
    """Name the figures that are not those of the results."""
    for name, draw in DRAWN.items():
        path = FOLDER / f"{name}.svg"
        if not path.exists() or path.read_text(encoding="utf-8") != draw():
            yield name


def main() -> None:
    """Write all figures."""
    for name, draw in DRAWN.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
