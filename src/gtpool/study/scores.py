"""All metrics of the predictions on the test parts: of each run, and over the runs."""

from collections.abc import Sequence
from math import isnan

import torch
from torch import Tensor, from_numpy

from gtpool.study.heldout import HeldOut
from gtpool.study.summarize import MetricSummary, ScoreGrid, summarize_grid
from gtpool.train.metric import TASK_METRICS, Metric

Place = tuple[int, int]
"""Seed and fold of a run, or of an ensemble of runs."""


def all_scores(parts: Sequence[HeldOut], task: str, members: int = 1) -> dict[str, MetricSummary]:
    """Return mean and standard deviation over the runs of each metric of a task, by name.

    A metric that the labels of a test part do not define is missing there.

    Args:
        parts: Test predictions of the runs, or of the ensembles.
        task: "classes", "binary" or "regression".
        members: Number of runs of an ensemble.
    """
    seeds = tuple(sorted({part.seed for part in parts}))
    folds = tuple(sorted({part.fold for part in parts}))
    found: dict[str, MetricSummary] = {}
    for name, metric in TASK_METRICS[task].items():
        by_run: dict[Place, float] = {
            (part.seed, part.fold): score_part(part, metric) for part in parts
        }
        known = {place: value for place, value in by_run.items() if not isnan(value)}
        values = tuple(tuple(known.get((seed, fold)) for fold in folds) for seed in seeds)
        grid = ScoreGrid(name, seeds, folds, values)
        found[name] = summarize_grid(grid, wanted=len(parts), members=members)
    return found


def scores_by_task(
    parts: Sequence[HeldOut], task: str
) -> dict[str, dict[Place, list[float | None]]]:
    """Return each metric by seed and fold of the run: one value a task, None if undefined.

    Args:
        parts: Test predictions of the runs, or of the ensembles.
        task: "binary" or "regression".
    """
    return {
        name: {(part.seed, part.fold): metric.by_task(*_tensors(part)) for part in parts}
        for name, metric in TASK_METRICS[task].items()
    }


def score_part(part: HeldOut, metric: Metric) -> float:
    """Return a metric of predictions, decided by their threshold; NaN if it is undefined."""
    return metric.of_outputs(*_tensors(part))


def _tensors(part: HeldOut) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return predictions, targets and threshold of a part."""
    threshold = torch.tensor(part.threshold, dtype=torch.double) if part.threshold else None
    return from_numpy(part.output), from_numpy(part.y), threshold
