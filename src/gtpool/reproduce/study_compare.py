"""Comparison of methods in the report: ranks, tests and claims. No torch."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import NamedTuple

from gtpool.reproduce.claims import CLAIMS, Claim, Figures, Verdict, published_figures
from gtpool.reproduce.comparison import (
    ALPHA,
    Comparison,
    compare,
    compare_unpaired,
    rank_methods,
)
from gtpool.reproduce.study_parts import (
    Picture,
    ReportSection,
    ReportTable,
    TableCell,
    number_cell,
    text_cell,
)
from gtpool.reproduce.study_plot import draw_ranks
from gtpool.reproduce.study_results import CellResult, comparable_figures, fold_means

MATTERS = 1.0
"""Smallest difference that matters, in points: below a tenth of a usual spread over folds."""
_MIN_SEEDS = 3
"""Complete seeds that a method needs to be compared on a single split."""
_RANKS = (
    "On each dataset the best method has rank 1; equal ones share. Only datasets count on which "
    "all ranked methods have figures: those that make the largest full table with GTPool-V in it. "
    "By Nemenyi's test at 0.05, methods joined by a bar cannot be told apart. Figures on fewer "
    "runs than wanted count as they are."
)
_COMPARISON = (
    "All methods at once, on the same test parts: means over the complete seeds of a method, which "
    "repeat the same folds. Repeated-measures ANOVA and Tukey's HSD with simultaneous intervals; "
    "where Levene's test tells variances apart, Friedman's test and Conover's with Holm's "
    "correction. Training parts overlap, so variances of means are corrected (Nadeau and Bengio, "
    "2003). OGB's sets have one split: there seeds are compared by one-way ANOVA and Tukey-Kramer, "
    "and what is tested is training alone. p-values are multiplied by the number of datasets, and "
    "intervals hold for the whole table at 95 %. Methods marked “with the best” cannot be told "
    "from the best at 0.05. A "
    f"difference below {MATTERS:g} point does not matter."
)
_CLAIMS = (
    "Sentences of the paper's results section. An answer compares means as they are; how far they "
    "spread is in the tables. Ours follow the paper's recipe, untuned. The paper prints its "
    "parameter studies as curves without numbers."
)


def ranks_section(compared: Sequence[CellResult]) -> ReportSection:
    """Return the average ranks of the methods of a study, and of the paper."""
    sheets: list[ReportTable] = []
    pictures: list[Picture] = []
    notes = [_RANKS]
    for title, table in (
        ("Ours", comparable_figures(compared)),
        ("Published", published_figures().tables["table1"]),
    ):
        ranking = rank_methods(table, needed=("gtpool-v",))
        if ranking is None:
            notes.append(f"{title}: nothing can be ranked yet.")
            continue
        near = f"; critical difference {ranking.distance:.2f}"
        left = f" Left out: {'; '.join(ranking.left_out)}." if ranking.left_out else ""
        notes.append(
            f"{title}: {len(ranking.ranks)} methods on {len(ranking.datasets)} datasets "
            f"({', '.join(ranking.datasets)}){near}.{left}"
        )
        caption = f"{title}, on {len(ranking.datasets)} datasets"
        pictures.append(Picture(f"{caption}.", draw_ranks(ranking)))
        lines = [(text_cell(name), number_cell(value)) for name, value in ranking.ranks.items()]
        heads = ("method", "average rank")
        sheets.append(ReportTable(f"{caption}, as a table.", heads, tuple(lines), detail=True))
    return ReportSection("ranks", "Average ranks", tuple(notes), {}, tuple(sheets), tuple(pictures))


class TableComparison(NamedTuple):
    """Comparison of the methods of a table on each dataset, corrected for the whole table."""

    by_dataset: dict[str, Comparison]
    """Datasets with at least two methods that can be compared."""

    def is_told_from_best(self, result: CellResult) -> bool | None:
        """Return whether a cell's method is worse than the best; None if it was not compared."""
        made = self.by_dataset.get(result.place.dataset)
        if made is None or result.place.line not in made.means:
            return None
        return result.place.line not in made.best


def compare_table(found: Sequence[CellResult]) -> TableComparison:
    """Return the comparison of all methods on each dataset, at 0.05 for the whole table."""
    groups = {
        dataset: [one for one in found if one.place.dataset == dataset and _is_comparable(one)]
        for dataset in dict.fromkeys(result.place.dataset for result in found)
    }
    groups = {dataset: there for dataset, there in groups.items() if len(there) > 1}
    alpha = ALPHA / max(len(groups), 1)
    return TableComparison({name: compare_cells(there, alpha) for name, there in groups.items()})


def compare_cells(there: Sequence[CellResult], alpha: float = ALPHA) -> Comparison:
    """Return the comparison of cells with the same test parts, in points."""
    if len(there[0].grid.folds) == 1:  # one split: seeds of two methods are not paired
        scores = [[line[0] for line in one.grid.values if line[0] is not None] for one in there]
        return compare_unpaired(_by_line(there, scores), alpha=alpha)
    scores = [fold_means(one.grid) for one in there]
    return compare(_by_line(there, scores), overlap=_overlap(there[0]), alpha=alpha)


def _by_line(
    there: Sequence[CellResult], scores: Sequence[Sequence[float]]
) -> dict[str, list[float]]:
    """Return scores in points by row, rounded so that ties are equal."""
    pairs = zip(there, scores, strict=True)
    return {one.place.line: [round(100 * value, 9) for value in line] for one, line in pairs}


def comparison_section(
    name: str, title: str, found: Sequence[CellResult], made: TableComparison
) -> ReportSection:
    """Return the comparison of all methods of a study on each dataset as a table."""
    heads = ("dataset", "method", "mean", "with the best", "behind the best", "interval")
    heads += ("p, adjusted", "verdict", "test parts or seeds", "test")
    compared = made.by_dataset
    lines = [line for dataset in compared for line in _rows(dataset, compared, found)]
    none = () if lines else ("No dataset has two methods with all test parts yet.",)
    sheet = ReportTable("Methods by dataset, the best first.", heads, tuple(lines))
    return ReportSection(name, title, (_COMPARISON, *none), {}, (sheet,) if lines else ())


def _rows(
    dataset: str, compared: Mapping[str, Comparison], found: Sequence[CellResult]
) -> list[tuple[TableCell, ...]]:
    """Return a row for each method of a dataset."""
    names = {one.place.line: one.name for one in found if one.place.dataset == dataset}
    made = compared[dataset]
    to_best = {pair.second: pair for pair in made.pairs if pair.first == made.best[0]}
    rows: list[tuple[TableCell, ...]] = []
    for line, mean in made.means.items():
        pair = to_best.get(line)
        told: tuple[TableCell, ...] = (TableCell("–"),) * 4
        if pair is not None:
            interval = "–" if isnan(pair.low) else f"{pair.low:.2f} to {pair.high:.2f}"
            p, verdict = min(1.0, pair.p * len(compared)), made.verdict(pair, MATTERS)
            told = (
                number_cell(pair.difference, "z.2f"),
                text_cell(interval),
                TableCell("< 0.001" if p < 0.001 else f"{p:.3f}", p),
                text_cell(f"best is {verdict}" if pair.p <= made.alpha else verdict),
            )
        rows.append(
            (
                text_cell(dataset),
                text_cell(line),
                TableCell(f"{mean:.2f}", mean, runs=names[line]),
                text_cell("yes" if line in made.best else "no"),
                *told,
                number_cell(made.blocks, "d"),
                text_cell(made.test),
            )
        )
    return rows


def _is_comparable(result: CellResult) -> bool:
    """Return whether a cell has scores of enough folds, or of enough seeds of a single split."""
    seeds = sum(None not in line for line in result.grid.values)
    return seeds >= (1 if len(result.grid.folds) > 1 else _MIN_SEEDS)


def _overlap(result: CellResult) -> float:
    """Return the ratio of tested to other graphs of the runs of a cell.

    Graphs of the validation part count as others: they choose the epoch.
    """
    sizes = [row.split for row in result.rows]
    return sum(size.test for size in sizes) / sum(size.train + size.valid for size in sizes)


def claims_section(found: Mapping[str, Sequence[CellResult]]) -> ReportSection:
    """Return the checks of the paper's claims against its tables and ours."""
    lines = [
        (
            text_cell(claim.where),
            text_cell(claim.claimed),
            _verdict_cell(published, "no numbers printed"),
            _verdict_cell(ours, "cannot tell yet"),
        )
        for claim, published, ours in judge_claims(found)
    ]
    heads = ("where", "claimed", "published tables say", "ours say")
    return ReportSection(
        "claims", "Claims", (_CLAIMS,), {}, (ReportTable("", heads, tuple(lines), prose=True),)
    )


def judge_claims(
    found: Mapping[str, Sequence[CellResult]],
) -> list[tuple[Claim, Verdict, Verdict]]:
    """Return each claim with the verdicts by the published tables and by the results of studies."""
    tables = {name: comparable_figures(several) for name, several in found.items()}
    single = {
        (name, result.place.line, result.place.dataset)
        for name, several in found.items()
        for result in several
        if result.figure.spread == "folds"
    }
    ours = Figures(tables, final=False, single=single)
    return [(claim, claim.judge(published_figures()), claim.judge(ours)) for claim in CLAIMS]


def _verdict_cell(verdict: Verdict, unknown: str) -> TableCell:
    """Return a cell with the verdict and its numbers below."""
    said = unknown if verdict.holds is None else "yes" if verdict.holds else "no"
    return TableCell(said, notes=(verdict.words,) if verdict.words else ())
