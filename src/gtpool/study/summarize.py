"""From the rows of runs to the numbers that people read: each is computed here, once."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf, isnan
from re import sub
from statistics import fmean, stdev
from typing import NamedTuple

from gtpool.spec import FOLD_RULES, RunSpec
from gtpool.study.result import RunResult

EPOCH_RULES = {
    "valid_loss": "by validation loss",
    "valid_metric": "by validation metric",
    "last": "last epoch",
    "best_test": "by test (optimistic)",
}
"""How the epoch might have been chosen, in words; rows keep what each would have given."""
_PERCENT = {"accuracy": "accuracy", "roc_auc": "ROC-AUC"}


class MetricSummary(NamedTuple):
    """One figure of a table: a mean with its spread and what it rests on."""

    metric: str
    mean: float | None
    """Mean over seeds of the mean over folds; None where no run is done."""
    std: float | None
    """Standard deviation (n - 1) of what ``spread`` names; None for a single value."""
    spread: str
    """What the deviation is over: "seeds", or "folds" where there is one seed."""
    n: int
    """Runs that count."""
    missing: int
    """Runs that failed or are not there; they are in no mean."""

    @property
    def text(self) -> str:
        """The figure in words, such as ``85.61 ± 6.20``."""
        if self.mean is None:
            return "missing"
        spread = "" if self.std is None else f" ± {format_metric(self.std, self.metric)}"
        return format_metric(self.mean, self.metric) + spread

    @property
    def evidence(self) -> str:
        """What the figure rests on, in words."""
        over = "" if self.std is None else f", ± standard deviation over {self.spread}"
        gone = f", {self.missing} missing" if self.missing else ""
        return f"{self.n} {'run' if self.n == 1 else 'runs'}{over}{gone}"


class ScoreGrid(NamedTuple):
    """The test metric of each run, by seed and fold."""

    metric: str
    seeds: tuple[int, ...]
    folds: tuple[int, ...]
    """Numbered from 0; a single 0 where the split has no folds."""
    values: tuple[tuple[float | None, ...], ...]
    """One line a seed, one column a fold; None where the run failed or is not there."""

    @property
    def means(self) -> tuple[float | None, ...]:
        """Mean over the folds that are there, a seed."""
        there = [[value for value in line if value is not None] for line in self.values]
        return tuple(fmean(line) if line else None for line in there)


def score_grid(rows: Iterable[RunResult]) -> ScoreGrid:
    """Lay out the runs of one method on one dataset by seed and fold.

    Where the split rule has folds, all of them are expected, for each seed that was begun.

    Args:
        rows: The runs; two for one seed and fold are an error.
    """
    rows = list(rows)
    if not rows:
        raise ValueError("there are no runs to sum up")
    (metric,) = _only("metric", {row.metric for row in rows if row.metric} or {"accuracy"})
    _only("method or dataset", {_without_place(row.spec) for row in rows})
    found: dict[tuple[int, int], float | None] = {}
    for row in rows:
        place = row.spec.seed, _fold(row)
        if place in found:
            raise ValueError(f"two runs have seed {place[0]} and fold {place[1] + 1}")
        found[place] = reported_score(row)
    split = rows[0].spec.split
    seeds = sorted({seed for seed, _ in found})
    folds = sorted({fold for _, fold in found})
    if split.rule in FOLD_RULES or folds[-1] > 0:
        folds = list(range(split.folds))
    values = tuple(tuple(found.get((seed, fold)) for fold in folds) for seed in seeds)
    return ScoreGrid(metric, tuple(seeds), tuple(folds), values)


def summarize(rows: Iterable[RunResult]) -> MetricSummary:
    """Sum up the runs of one method on one dataset.

    The mean is that over seeds of the mean over folds, the deviation that over seeds. One seed has
    its deviation over folds, and the cell says so.

    Example:
        >>> from gtpool.spec import DataSpec, RunSpec, SplitSpec
        >>> splits = [SplitSpec(rule="stratified", folds=3, fold=fold) for fold in range(2)]
        >>> specs = [RunSpec(data=DataSpec(source="MUTAG"), split=split) for split in splits]
        >>> rows = [
        ...     RunResult(
        ...         key=spec.key,
        ...         spec_json=spec.to_json(),
        ...         status="done",
        ...         metric="accuracy",
        ...         test=test,
        ...     )
        ...     for spec, test in zip(specs, [0.8, 0.9])
        ... ]
        >>> cell = summarize(rows)
        >>> cell.text, cell.evidence
        ('85.00 ± 7.07', '2 runs, ± standard deviation over folds, 1 missing')
    """
    return summarize_grid(score_grid(rows))


def summarize_grid(laid: ScoreGrid, *, wanted: int | None = None) -> MetricSummary:
    """Sum up runs that are laid out already.

    Args:
        laid: Those that count.
        wanted: How many there should be; as many as the layout has places if not given.
    """
    values = [value for line in laid.values for value in line if value is not None]
    means = [mean for mean in laid.means if mean is not None]
    spread = "seeds" if len(laid.seeds) > 1 else "folds"
    spreading = means if spread == "seeds" else values
    return MetricSummary(
        laid.metric,
        fmean(means) if means else None,
        stdev(spreading) if len(spreading) > 1 else None,
        spread,
        len(values),
        (len(laid.seeds) * len(laid.folds) if wanted is None else wanted) - len(values),
    )


def best_run(rows: Iterable[RunResult]) -> RunResult | None:
    """Give the finished run of the lowest validation loss, the first of equals; None if none is."""
    done = (row for row in rows if row.done)
    return min(done, key=_valid_loss, default=None)


def reported_score(row: RunResult) -> float | None:
    """Give what a run reports; one that failed, or whose test part has one class, has nothing."""
    value = row.test if row.done else None
    return None if value is None or isnan(value) else value


def run_label(spec: RunSpec) -> str:
    """Name a run by its seed, and by its fold where the split has folds.

    Example:
        >>> from gtpool.spec import DataSpec, SplitSpec
        >>> data = DataSpec(source="MUTAG")
        >>> run_label(RunSpec(data=data, seed=42, split=SplitSpec(rule="fixed")))
        'seed 42, fold 1'
        >>> run_label(RunSpec(data=data, seed=42, split=SplitSpec(rule="random")))
        'seed 42'
    """
    fold = f", fold {spec.split.fold + 1}" if has_folds(spec.split.rule) else ""
    return f"seed {spec.seed}{fold}"


def has_folds(rule: str) -> bool:
    """Say whether a split rule divides the graphs into folds; "auto" may."""
    return rule in (*FOLD_RULES, "auto")


def split_name(rule: str) -> str:
    """Name the rule that divided the graphs, without the number of the fold.

    Example:
        >>> split_name("stratified folds, seed 0, fold 3 of 10")
        'stratified folds, seed 0, 10 folds'
    """
    return sub(r"fold \d+ of (\d+)", r"\1 folds", rule)


def format_metric(value: float | None, metric: str) -> str:
    """Write a value of a metric: a share in percent, another as it is.

    Example:
        >>> [format_metric(*pair) for pair in ((0.8561, "accuracy"), (1.5, "rmse"), (None, "rmse"))]
        ['85.61', '1.500', '–']
    """
    if value is None:
        return "–"
    return f"{100 * value:.2f}" if metric in _PERCENT else f"{value:#.4g}".rstrip(".")


def metric_title(metric: str) -> str:
    """Name a metric with its unit.

    Example:
        >>> metric_title("accuracy"), metric_title("rmse")
        ('accuracy, %', 'RMSE')
    """
    return f"{metric_name(metric)}, %" if metric in _PERCENT else metric_name(metric)


def metric_name(metric: str) -> str:
    """Name a metric as people write it.

    Example:
        >>> metric_name("accuracy"), metric_name("roc_auc")
        ('accuracy', 'ROC-AUC')
    """
    return _PERCENT.get(metric, metric.upper())


def format_seconds(seconds: float) -> str:
    """Write a time as a person says it.

    Example:
        >>> format_seconds(8), format_seconds(200), format_seconds(9000)
        ('8 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _valid_loss(row: RunResult) -> float:
    return inf if row.valid_loss is None else row.valid_loss


def _fold(row: RunResult) -> int:
    split = row.spec.split
    return split.fold if has_folds(split.rule) else 0


def _only(what: str, values: set[str]) -> Sequence[str]:
    if len(values) > 1:
        raise ValueError(
            f"these runs differ in their {what}, so that no mean of them means anything"
        )
    return list(values)


def _without_place(spec: RunSpec) -> str:
    """Write what a run is but for its seed and fold; rows of all versions of gtpool alike."""
    return replace(spec, seed=0, split=replace(spec.split, fold=0)).key
