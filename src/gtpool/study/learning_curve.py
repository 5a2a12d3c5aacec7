"""Learning curve: the test metric of a cross-validation against the size of the training parts.

The runs are those of the cross-validation with smaller shares of each training part. Their
validation and test parts are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from gtpool.spec import RunSpec
from gtpool.study.heldout import read_held_out
from gtpool.study.plan import Plan
from gtpool.study.result import RunResult
from gtpool.study.scores import average_members, ensemble_scores
from gtpool.study.summarize import (
    MetricSummary,
    ScoreGrid,
    format_metric,
    metric_name,
    metric_title,
    score_grid,
    summarize_grid,
)

SHARES = (0.25, 0.5)
"""Shares of the training part that are trained on, beside the whole."""


class CurvePoint(NamedTuple):
    """Scores at one size of the training parts."""

    share: float
    graphs: float
    """Mean number of training graphs."""
    scores: ScoreGrid
    cell: MetricSummary
    """Mean and deviation of the scores."""


class LearningCurve(NamedTuple):
    """Scores by size of the training parts, the smallest first."""

    points: tuple[CurvePoint, ...]
    higher_is_better: bool

    @property
    def verdict(self) -> str:
        """Say in one sentence whether the last step of the curve exceeds its spread."""
        before, last = self.points[-2:]
        metric = last.scores.metric
        gains = [
            new - old
            for lines in zip(before.scores.values, last.scores.values, strict=True)
            for old, new in zip(*lines, strict=True)
            if old is not None and new is not None
        ]
        name, points = metric_name(metric), " points" * metric_title(metric).endswith("%")
        if len(gains) < 2:
            return (
                f"one run of each size has no spread: this curve of {name} does not say whether "
                "more data would help"
            )
        gain, spread = fmean(gains), stdev(gains)
        step = (
            f"from {before.graphs:.0f} to {last.graphs:.0f} training graphs {name} changes by "
            f"{'+' if gain >= 0 else '-'}{format_metric(abs(gain), metric)} ± "
            f"{format_metric(spread, metric)}{points} ({len(gains)} pairs)"
        )
        if abs(gain) <= spread:
            return f"{step}: no more than the spread, so it does not say whether more data helps"
        if (gain > 0) == self.higher_is_better:
            return f"{step}: more than the spread, so more data of this kind would probably help"
        return f"{step}: more data made it worse; the new graphs may differ from the tested ones"


def curve_specs(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """Return the further runs of a learning curve: those of a plan on smaller training parts.

    Args:
        specs: The runs of the plan.
    """
    return [
        replace(spec, split=replace(spec.split, share=share * spec.split.share))
        for share in SHARES
        for spec in specs
    ]


def learning_curve_of(
    runs: Sequence[RunResult], plan: Plan, task: str, artifact: Callable[[str], Path]
) -> LearningCurve | None:
    """Return the learning curve of finished runs; None if all runs of a size failed.

    Args:
        runs: The runs of the plan and those of ``curve_specs``.
        plan: The runs; the scores are those of its ensembles, without a blend.
        task: "classes", "binary" or "regression".
        artifact: Maps the key of a run to its artifact file.
    """
    by_share: dict[float, list[RunResult]] = {}
    for run in runs:
        by_share.setdefault(run.spec.split.share, []).append(run)
    if not all(any(run.done for run in several) for several in by_share.values()):
        return None
    points: list[CurvePoint] = []
    for share, several in sorted(by_share.items()):
        scores = score_grid(several)
        if plan.ensemble > 1:
            parts = average_members(read_held_out(several, artifact, task), plan)
            scores = ensemble_scores(several, parts, plan, task)
        graphs = fmean(run.split.train for run in several if run.done)
        cell = summarize_grid(scores, members=plan.ensemble)
        points.append(CurvePoint(share, graphs, scores, cell))
    better = next(bool(run.higher_is_better) for run in runs if run.done)
    return LearningCurve(tuple(points), better)
