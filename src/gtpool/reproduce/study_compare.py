"""Comparison of methods in the report: ranks, tests and claims. No torch."""

from collections.abc import Mapping, Sequence
from math import isnan

from gtpool.reproduce.claims import CLAIMS, Figures, Verdict, published_figures
from gtpool.reproduce.comparison import Comparison, compare
from gtpool.reproduce.stats import PairedTest, corrected_t_test, fold_differences, rank_methods
from gtpool.reproduce.study_parts import (
    Picture,
    ReportSection,
    ReportTable,
    TableCell,
    number_cell,
    text_cell,
)
from gtpool.reproduce.study_plot import draw_ranks
from gtpool.reproduce.study_results import OURS, CellResult, comparable_figures

_RANKS = (
    "On each dataset the best method has rank 1; equal ones share. Only datasets count on which "
    "all ranked methods have figures: those that make the largest full table with GTPool-V in it. "
    "By Nemenyi's test at 0.05, methods joined by a bar cannot be told apart. Figures on fewer "
    "runs than wanted count as they are."
)
_TESTS = (
    "A paired t test over folds, corrected for training sets that overlap (Nadeau and Bengio, "
    "2003): the variance of the mean is (1/J + n_test/n_train) times that of the J differences. "
    "Each side is first averaged over its whole seeds, which repeat the same folds and are no "
    "further pairs: the mean difference is that of the two figures. The best baseline is the one "
    "with the best figure on test parts, which favours it; of equals there is a line each. p is "
    "two-sided and not corrected for the number of datasets."
)
MATTERS = 1.0
"""Smallest difference that matters, in points: below a tenth of a usual spread over folds."""
_COMPARISON = (
    "All methods at once, on the test parts of one repeated cross-validation. Where variances "
    "differ by a factor of 9 at most: repeated-measures ANOVA and Tukey's HSD with simultaneous "
    "95 % intervals; else Friedman's test and Conover's with Holm's correction. Training parts "
    "overlap, so variances of means are corrected (Nadeau and Bengio, 2003). Methods marked "
    f"“with the best” cannot be told from the best at 0.05. A difference below {MATTERS:g} point "
    "does not matter."
)
_CLAIMS = (
    "Sentences of the paper's results section. An answer compares means as they are; how far they "
    "spread is in the tables. Ours follow the paper's recipe, untuned. The paper prints its "
    "parameter studies as curves without numbers."
)


def ranks_section(compared: Sequence[CellResult]) -> ReportSection:
    """Return the average ranks of the methods of some studies, and of the paper."""
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


def paired_section(compared: Sequence[CellResult]) -> ReportSection:
    """Return the tests of GTPool-V against the best baseline of each dataset with folds."""
    heads = ("dataset", "method", "ours", "best baseline", "its figure", "difference")
    heads += ("t", "p", "pairs", "seeds", "its seeds")
    lines = [
        _test_row(result, best)
        for result in compared
        if _is_testable(result)
        for best in _best_baselines(result, compared)
    ]
    none = () if lines else ("No fold has been run with both sides yet.",)
    sheet = ReportTable(
        "GTPool-V against the best baseline of each TU dataset.", heads, tuple(lines)
    )
    return ReportSection(
        "tests", "Against the best baseline", (_TESTS, *none), {}, (sheet,) if lines else ()
    )


def comparison_section(found: Sequence[CellResult]) -> ReportSection:
    """Return the comparison of all methods of a repeated cross-validation, for each dataset."""
    heads = ("dataset", "method", "mean", "with the best", "behind the best", "95 % interval")
    heads += ("p, adjusted", "verdict", "test parts", "test")
    lines: list[tuple[TableCell, ...]] = []
    for dataset in dict.fromkeys(result.place.dataset for result in found):
        there = [one for one in found if one.place.dataset == dataset and one.has_complete_seed]
        if len(there) > 1:
            lines += _comparison_rows(dataset, there)
    none = () if lines else ("No dataset has two methods with all test parts yet.",)
    sheet = ReportTable("Methods by dataset, the best first.", heads, tuple(lines))
    return ReportSection(
        "comparison",
        "All methods at once",
        (_COMPARISON, *none),
        {},
        (sheet,) if lines else (),
    )


def _comparison_rows(dataset: str, there: Sequence[CellResult]) -> list[tuple[TableCell, ...]]:
    """Return a row for each method of a dataset."""
    by_line = {result.place.line: result for result in there}
    made = compare_cells(there)
    to_best = {pair.second: pair for pair in made.pairs if pair.first == made.best[0]}
    rows: list[tuple[TableCell, ...]] = []
    for line, mean in made.means.items():
        pair = to_best.get(line)
        told: tuple[TableCell, ...] = (TableCell("–"),) * 4
        if pair is not None:
            interval = "–" if isnan(pair.low) else f"{pair.low:.2f} to {pair.high:.2f}"
            told = (
                number_cell(pair.difference, "z.2f"),
                text_cell(interval),
                TableCell("< 0.001" if pair.p < 0.001 else f"{pair.p:.3f}", pair.p),
                text_cell(
                    f"best is {made.verdict(pair, MATTERS)}"
                    if pair.p <= 0.05
                    else made.verdict(pair, MATTERS)
                ),
            )
        rows.append(
            (
                text_cell(dataset),
                text_cell(line),
                TableCell(f"{mean:.2f}", mean, runs=by_line[line].name),
                text_cell("yes" if line in made.best else "no"),
                *told,
                number_cell(made.blocks, "d"),
                text_cell(made.test),
            )
        )
    return rows


def compare_cells(there: Sequence[CellResult]) -> Comparison:
    """Return the comparison of cells with the same test parts, in points."""
    sizes = [row.split for row in there[0].rows]
    overlap = sum(size.test for size in sizes) / sum(size.train for size in sizes)
    scores = {
        result.place.line: [100 * value for value in result.grid.values[0] if value is not None]
        for result in there
    }
    return compare(scores, overlap=overlap)


def claims_section(found: Mapping[str, Sequence[CellResult]]) -> ReportSection:
    """Return the checks of the paper's claims against its tables and ours."""
    tables = {name: comparable_figures(several) for name, several in found.items()}
    single = {
        (name, result.place.line, result.place.dataset)
        for name, several in found.items()
        for result in several
        if result.figure.spread == "folds"
    }
    ours = Figures(tables, final=False, single=single)
    lines = [
        (
            text_cell(claim.where),
            text_cell(claim.claimed),
            _verdict_cell(claim.judge(published_figures()), "no numbers printed"),
            _verdict_cell(claim.judge(ours), "cannot tell yet"),
        )
        for claim in CLAIMS
    ]
    heads = ("where", "claimed", "published tables say", "ours say")
    return ReportSection(
        "claims", "Claims", (_CLAIMS,), {}, (ReportTable("", heads, tuple(lines), prose=True),)
    )


def _is_testable(result: CellResult) -> bool:
    ours = result.place.line.startswith("gtpool-v")
    return ours and result.has_complete_seed and len(result.grid.folds) > 1


def _best_baselines(result: CellResult, compared: Sequence[CellResult]) -> list[CellResult]:
    """Return the best baselines on the same dataset: none, one, or several ties."""
    rivals = [
        other
        for other in compared
        if other.place.dataset == result.place.dataset
        and other.has_complete_seed
        and not other.place.line.startswith(OURS)
    ]
    highest = max((rival.percent or 0.0 for rival in rivals), default=0.0)
    return [rival for rival in rivals if rival.percent == highest]


def paired_test(first: CellResult, second: CellResult) -> PairedTest:
    """Return the test of the difference of two cells over the folds of a dataset, in points."""
    pairs = fold_differences(first.grid, second.grid)
    sizes = [row.split for row in first.rows]
    ratio = sum(size.test for size in sizes) / sum(size.train for size in sizes)
    return corrected_t_test([100 * pair for pair in pairs], ratio)


def _test_row(result: CellResult, best: CellResult) -> tuple[TableCell, ...]:
    """Return a row of the test table."""
    test = paired_test(result, best)
    return (
        text_cell(result.place.dataset),
        text_cell(result.place.line),
        TableCell(result.figure.text, result.percent, runs=result.name),
        text_cell(best.place.line),
        TableCell(best.figure.text, best.percent, runs=best.name),
        number_cell(round(test.mean, 9), "+z.2f"),
        number_cell(test.t, "z.2f"),
        TableCell("< 0.001" if test.p < 0.001 else f"{test.p:.3f}", test.p),
        number_cell(test.n, "d"),
        *(
            number_cell(sum(None not in line for line in one.grid.values), "d")
            for one in (result, best)
        ),
    )


def _verdict_cell(verdict: Verdict, unknown: str) -> TableCell:
    """Return a cell with the verdict and its numbers below."""
    said = unknown if verdict.holds is None else "yes" if verdict.holds else "no"
    return TableCell(said, notes=(verdict.words,) if verdict.words else ())
