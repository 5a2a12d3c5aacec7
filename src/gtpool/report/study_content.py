"""A report on the studies: every part of it, as values. No torch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gtpool.report.cells import Row
from gtpool.report.progress import spell_time
from gtpool.report.standing import tally
from gtpool.report.study_cells import Result, results
from gtpool.report.study_compare import claims_part, paired_part, ranks_part
from gtpool.report.study_parts import MISSING, PARTIAL, Entry, Part, Sheet, number, words
from gtpool.report.study_tables import dataset_part, seeds_part, study_part
from gtpool.study.paper import Study

_MAIN, _TUNED = "table1", "tuned"  # studies whose methods are ranked and tested together
_POOLED = "pooled"  # in the name of a line whose choice has seen test labels of other folds
_HOW = (
    "A figure is the test metric at the epoch of the lowest validation loss (OGB's sets: of the "
    "best validation ROC-AUC); test metrics of other epochs choose nothing. It is the mean over "
    "seeds of the mean over the ten folds, ± the standard deviation over seeds; of a single seed, "
    "over its folds. OGB's sets have one split: there it is the mean over seeds. A seed counts "
    "when all its folds are done; where no seed is whole, what is there is shown, but neither "
    "ranked, tested nor judged."
)
_MARKS = (
    f"{PARTIAL} marks a figure that rests on fewer runs than it should, {MISSING} one of which "
    "nothing is there yet. Differences are ours less published, in points."
)


class Report(NamedTuple):
    """All that is known of the studies."""

    title: str
    parts: list[Part]
    results: list[Result]


def make_report(
    rows: Mapping[str, Row], studies: Mapping[str, Study], *, more: Iterable[Part] = ()
) -> Report:
    """Sum up what was run of the studies.

    Args:
        rows: What was run, by key.
        studies: By name.
        more: Parts from elsewhere, such as timings, to stand at the end.
    """
    found = {name: results(name, study, rows) for name, study in studies.items()}
    compared = [*found.get(_MAIN, ()), *map(_named_tuned, found.get(_TUNED, ()))]
    compared = [result for result in compared if _POOLED not in result.place.line]
    parts = [_opening(rows, found)]
    for name, study in studies.items():
        parts.append(study_part(name, study, found[name]))
        if name == _MAIN:
            parts += [seeds_part(compared), ranks_part(compared), paired_part(compared)]
    parts += [claims_part(found), dataset_part(), *more]
    everything = [result for several in found.values() for result in several]
    return Report("GTPool: what the paper says, and what was measured", parts, everything)


def _named_tuned(result: Result) -> Result:
    """Give a tuned method a name that no other has."""
    place = result.place
    return result._replace(place=place._replace(line=f"{place.line}, {_TUNED}"))


def _opening(rows: Mapping[str, Row], found: Mapping[str, Sequence[Result]]) -> Part:
    wanted = {key for several in found.values() for result in several for key in result.keys}
    mine = [row for key, row in rows.items() if key in wanted]
    done = [row for row in mine if row["status"] == "done"]
    versions = (", ".join(f"{name} {at}" for name, at in row["versions"].items()) for row in done)
    facts = {
        "runs": f"{len(done):,} of {len(wanted):,} are done, {len(mine) - len(done)} failed; "
        f"{len(rows) - len(mine)} rows belong to no study shown here",
        "devices": _listed(row["device"] for row in done),
        "commits": _listed(row["commit"] or "not known" for row in done),
        "versions": _listed(versions),
        "time": f"{spell_time(sum(row['seconds'] for row in done))} of machine time; "
        "runs side by side count with their share",
        "last run": max((row["finished"] for row in done), default="none"),
    }
    heads = ("study", "cells", "whole", "begun", "runs done", "of", "failed")
    lines = tuple((words(name), *_counts(several)) for name, several in found.items())
    missing = Sheet("What is there, and what is missing.", heads, lines)
    return Part("summary", "Summary", (_HOW, _MARKS), facts, (missing,))


def _counts(found: Sequence[Result]) -> tuple[Entry, ...]:
    """Count the cells and runs of a study."""
    cells = [
        (len(result.keys), len(result.rows) - result.failed, result.failed) for result in found
    ]
    return tuple(number(count, "d") for count in tally(cells))


def _listed(values: Iterable[str]) -> str:
    """Join what differs, the most frequent first."""
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return "; ".join(f"{value} ({count:,} runs)" for value, count in ordered) or "none"
