"""Aggregate results of runs: mean, standard deviation, missing runs; formatting of metrics."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isnan
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
"""Names of the epoch selection rules whose test metric each result holds."""
_PERCENT = {
    "accuracy": "accuracy",
    "roc_auc": "ROC-AUC",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "pr_auc": "PR-AUC",
}
_NAMES = {"log_loss": "log loss", "brier": "Brier score", "r2": "R²", "spearman": "Spearman"}


class MetricSummary(NamedTuple):
    """Mean and standard deviation of a metric over runs."""

    metric: str
    mean: float | None
    """Mean over seeds of the mean over folds; None if no run is done."""
    std: float | None
    """Standard deviation (n - 1) over ``spread``; None for a single value."""
    spread: str
    """What ``std`` is taken over: "seeds" or "ensembles", or "folds" for a single one."""
    n: int
    """Number of runs."""
    missing: int
    """Number of runs that failed or were not done; they do not enter the mean."""
    members: int = 1
    """Number of runs whose mean prediction was measured; above 1, ``n`` counts ensembles."""

    @property
    def text(self) -> str:
        """Mean and standard deviation as text, such as ``85.61 ± 6.20``."""
        if self.mean is None:
            return "missing"
        spread = "" if self.std is None else f" ± {format_metric(self.std, self.metric)}"
        return format_metric(self.mean, self.metric) + spread

    @property
    def evidence(self) -> str:
        """Number of runs, what the deviation is over, and missing runs, as text."""
        over = "" if self.std is None else f", ± standard deviation over {self.spread}"
        gone = f", {self.missing} missing" if self.missing else ""
        what = "run" if self.members == 1 else "ensemble"
        of = "" if self.members == 1 else f" of {self.members} members"
        return f"{self.n} {what}{'s' * (self.n != 1)}{of}{over}{gone}"


class ScoreGrid(NamedTuple):
    """Test metric of each run, by seed and fold."""

    metric: str
    seeds: tuple[int, ...]
    folds: tuple[int, ...]
    """Numbered from 0; a single 0 where the split has no folds."""
    values: tuple[tuple[float | None, ...], ...]
    """One row per seed, one column per fold; None for a failed or missing run."""
    kind: str = "ensemble"
    """What a score is of, if not of a single run: "ensemble" or "blend"."""

    @property
    def means(self) -> tuple[float | None, ...]:
        """Mean over the available folds, for each seed."""
        there = [[value for value in line if value is not None] for line in self.values]
        return tuple(fmean(line) if line else None for line in there)


def score_grid(rows: Iterable[RunResult]) -> ScoreGrid:
    """Return the test metric of the runs of one method on one dataset, by seed and fold.

    If the split rule has folds, each seed is expected to have all of them.

    Args:
        rows: The runs. Two runs of the same seed and fold raise a ValueError.
    """
    rows = list(rows)
    if not rows:
        raise ValueError("there are no runs to summarize")
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
    """Return mean and standard deviation of the runs of one method on one dataset.

    The mean is taken over folds, then over seeds. The deviation is taken over seeds, or over folds
    if there is a single seed.

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


def summarize_grid(
    laid: ScoreGrid, *, wanted: int | None = None, members: int = 1
) -> MetricSummary:
    """Return mean and standard deviation of a grid.

    Args:
        laid: The scores.
        wanted: Number of expected runs; by default the size of the grid.
        members: Number of runs in the ensemble of each score; 1 for scores of single runs.
    """
    values = [value for line in laid.values for value in line if value is not None]
    means = [mean for mean in laid.means if mean is not None]
    several = len(laid.seeds) > 1
    spreading = means if several else values
    spread = ("seeds" if members == 1 else "ensembles") if several else "folds"
    return MetricSummary(
        laid.metric,
        fmean(means) if means else None,
        stdev(spreading) if len(spreading) > 1 else None,
        spread,
        len(values),
        (len(laid.seeds) * len(laid.folds) if wanted is None else wanted) - len(values),
        members,
    )


def reported_score(row: RunResult) -> float | None:
    """Return the test metric of a run; None if it failed or the metric is undefined."""
    value = row.test if row.done else None
    return None if value is None or isnan(value) else value


def run_label(spec: RunSpec) -> str:
    """Return a label with the seed of a run and, if the split has folds, the fold.

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
    """Return whether a split rule has folds; "auto" may have."""
    return rule in (*FOLD_RULES, "auto")


def split_name(rule: str) -> str:
    """Return the name of a split without the numbers of fold and bag.

    Example:
        >>> split_name("stratified folds, seed 0, fold 3 of 10")
        'stratified folds, seed 0, 10 folds'
        >>> split_name("random split, seed 0, bag 2")
        'random split, seed 0, bags'
    """
    return sub(r", bag \d+(?=,|$)", ", bags", sub(r"fold \d+ of (\d+)", r"\1 folds", rule))


def format_metric(value: float | None, metric: str) -> str:
    """Format a value of a metric; accuracy, ROC-AUC, PR-AUC and F1 in percent.

    Example:
        >>> [format_metric(*pair) for pair in ((0.8561, "accuracy"), (1.5, "rmse"), (None, "rmse"))]
        ['85.61', '1.500', '–']
    """
    if value is None:
        return "–"
    return f"{100 * value:.2f}" if metric in _PERCENT else f"{value:#.4g}".rstrip(".")


def metric_title(metric: str) -> str:
    """Return the display name of a metric with its unit.

    Example:
        >>> metric_title("accuracy"), metric_title("rmse")
        ('accuracy, %', 'RMSE')
    """
    return f"{metric_name(metric)}, %" if metric in _PERCENT else metric_name(metric)


def metric_name(metric: str) -> str:
    """Return the display name of a metric.

    Example:
        >>> metric_name("accuracy"), metric_name("roc_auc")
        ('accuracy', 'ROC-AUC')
    """
    return _PERCENT.get(metric) or _NAMES.get(metric, metric.upper())


def format_seconds(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    Example:
        >>> format_seconds(8), format_seconds(200), format_seconds(9000)
        ('8 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _fold(row: RunResult) -> int:
    split = row.spec.split
    return split.fold if has_folds(split.rule) else 0


def _only(what: str, values: set[str]) -> Sequence[str]:
    if len(values) > 1:
        raise ValueError(f"cannot average runs that differ in {what}")
    return list(values)


def _without_place(spec: RunSpec) -> str:
    """Return the key of a run without seed, fold and number of its bag.

    All versions of gtpool agree on it. Whether there are bags stays: it is another protocol.
    """
    split = replace(spec.split, fold=0, bag=min(spec.split.bag, 1))
    return replace(spec, seed=0, split=split).key
