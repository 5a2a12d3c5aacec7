"""What the figures of methods say beside one another: ranks, tests, claims. No torch."""

from collections.abc import Mapping, Sequence

from gtpool.reproduce.claims import CLAIMS, Figures, Verdict, published
from gtpool.reproduce.stats import Paired, corrected_test, fold_differences, rank
from gtpool.reproduce.study_cells import OURS, Result, figures
from gtpool.reproduce.study_parts import Entry, Part, Picture, Sheet, number, words
from gtpool.reproduce.study_plot import draw_ranks

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
_CLAIMS = (
    "Sentences of the paper's results section. An answer compares means as they are; how far they "
    "spread is in the tables. Ours follow the paper's recipe, untuned. The paper prints its "
    "parameter studies as curves without numbers."
)


def ranks_part(compared: Sequence[Result]) -> Part:
    """Rank the methods of one or more studies, and those of the paper."""
    sheets: list[Sheet] = []
    pictures: list[Picture] = []
    notes = [_RANKS]
    for title, table in (
        ("Ours", figures(compared)),
        ("Published", published().tables["table1"]),
    ):
        ranking = rank(table, needed=("gtpool-v",))
        if ranking is None:
            notes.append(f"{title}: nothing can be ranked yet.")
            continue
        near = "" if ranking.distance is None else f"; critical difference {ranking.distance:.2f}"
        left = f" Left out: {'; '.join(ranking.left_out)}." if ranking.left_out else ""
        notes.append(
            f"{title}: {len(ranking.ranks)} methods on {len(ranking.datasets)} datasets "
            f"({', '.join(ranking.datasets)}){near}.{left}"
        )
        caption = f"{title}, on {len(ranking.datasets)} datasets"
        pictures.append(Picture(f"{caption}.", draw_ranks(ranking)))
        lines = [(words(name), number(value)) for name, value in ranking.ranks.items()]
        heads = ("method", "average rank")
        sheets.append(Sheet(f"{caption}, as a table.", heads, tuple(lines), detail=True))
    return Part("ranks", "Average ranks", tuple(notes), {}, tuple(sheets), tuple(pictures))


def paired_part(compared: Sequence[Result]) -> Part:
    """Test GTPool-V against the best baseline of each dataset with folds."""
    heads = ("dataset", "method", "ours", "best baseline", "its figure", "difference")
    heads += ("t", "p", "pairs", "seeds", "its seeds")
    lines = [
        _test(result, best)
        for result in compared
        if _tested(result)
        for best in _best(result, compared)
    ]
    none = () if lines else ("No fold has been run with both sides yet.",)
    sheet = Sheet("GTPool-V against the best baseline of each TU dataset.", heads, tuple(lines))
    return Part(
        "tests", "Against the best baseline", (_TESTS, *none), {}, (sheet,) if lines else ()
    )


def claims_part(found: Mapping[str, Sequence[Result]]) -> Part:
    """Hold what the paper says against its tables and ours."""
    tables = {name: figures(several) for name, several in found.items()}
    single = {
        (name, result.place.line, result.place.dataset)
        for name, several in found.items()
        for result in several
        if result.figure.spread == "folds"
    }
    ours = Figures(tables, final=False, single=single)
    lines = [
        (
            words(claim.where),
            words(claim.claimed),
            _answer(claim.judge(published()), "no numbers printed"),
            _answer(claim.judge(ours), "cannot tell yet"),
        )
        for claim in CLAIMS
    ]
    heads = ("where", "claimed", "published tables say", "ours say")
    return Part("claims", "Claims", (_CLAIMS,), {}, (Sheet("", heads, tuple(lines), prose=True),))


def _tested(result: Result) -> bool:
    ours = result.place.line.startswith("gtpool-v")
    return ours and result.settled and len(result.grid.folds) > 1


def _best(result: Result, compared: Sequence[Result]) -> list[Result]:
    """Give the best baseline on the same dataset: none, one, or several that are equal."""
    rivals = [
        other
        for other in compared
        if other.place.dataset == result.place.dataset
        and other.settled
        and not other.place.line.startswith(OURS)
    ]
    highest = max((rival.percent or 0.0 for rival in rivals), default=0.0)
    return [rival for rival in rivals if rival.percent == highest]


def paired(first: Result, second: Result) -> Paired:
    """Test the difference of two cells of one dataset over its folds, in points."""
    pairs = fold_differences(first.grid, second.grid)
    sizes = [row.split for row in first.rows]
    ratio = sum(size.test for size in sizes) / sum(size.train for size in sizes)
    return corrected_test([100 * pair for pair in pairs], ratio)


def _test(result: Result, best: Result) -> tuple[Entry, ...]:
    """Give a line of the test."""
    test = paired(result, best)
    return (
        words(result.place.dataset),
        words(result.place.line),
        Entry(result.figure.text, result.percent, runs=result.name),
        words(best.place.line),
        Entry(best.figure.text, best.percent, runs=best.name),
        number(round(test.mean, 9), "+z.2f"),
        number(test.t, "z.2f"),
        Entry("< 0.001" if test.p < 0.001 else f"{test.p:.3f}", test.p),
        number(test.n, "d"),
        *(number(sum(None not in line for line in one.grid.values), "d") for one in (result, best)),
    )


def _answer(verdict: Verdict, unknown: str) -> Entry:
    """Give a cell that says yes, no or neither, with the numbers below."""
    said = unknown if verdict.holds is None else "yes" if verdict.holds else "no"
    return Entry(said, notes=(verdict.words,) if verdict.words else ())
