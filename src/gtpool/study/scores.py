"""Metrics of the predictions on the test parts: of runs, and of ensembles of runs."""

from collections.abc import Iterable, Sequence
from math import isnan

import numpy as np
import torch
from torch import Tensor, from_numpy

from gtpool.study.heldout import HeldOut
from gtpool.study.plan import Plan
from gtpool.study.result import RunResult
from gtpool.study.summarize import MetricSummary, ScoreGrid, score_grid, summarize_grid
from gtpool.train.metric import TASK_METRICS, Metric, metric_of

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


def first_seed(seed: int, plan: Plan) -> int:
    """Return the first seed of the ensemble that a seed belongs to.

    Seeds are grouped in order: with ``ensemble=5``, seeds 42 to 46 are the first ensemble, seeds 47
    to 51 the second. The number of ensembles is ``plan.seeds``.
    """
    return seed - (seed - plan.run.seed) % plan.ensemble


def average_members(parts: Iterable[HeldOut], plan: Plan) -> list[HeldOut]:
    """Return the mean test prediction of each ensemble on each fold, with its spread.

    A fold on which a member failed has none.

    Args:
        parts: Test predictions of single runs.
        plan: The runs; with ``ensemble=1`` the predictions are returned unchanged.
    """
    if plan.ensemble == 1:
        return list(parts)
    groups: dict[tuple[int, int], list[HeldOut]] = {}
    for part in parts:
        groups.setdefault((first_seed(part.seed, plan), part.fold), []).append(part)
    return [
        _average(several, seed)
        for (seed, _), several in sorted(groups.items())
        if len(several) == plan.ensemble
    ]


def ensemble_scores(
    runs: Sequence[RunResult], parts: Iterable[HeldOut], plan: Plan, task: str
) -> ScoreGrid:
    """Return the test metric of each ensemble by first seed and fold; None where a member failed.

    Args:
        runs: The single runs.
        parts: Mean test predictions, from ``average_members``.
        plan: The runs.
        task: "classes", "binary" or "regression".
    """
    single, metric = score_grid(runs), metric_of(task, plan.run.train.metric)
    found = {(part.seed, part.fold): score_part(part, metric) for part in parts}
    known = {place: value for place, value in found.items() if not np.isnan(value)}
    seeds = tuple(dict.fromkeys(first_seed(seed, plan) for seed in single.seeds))
    values = tuple(tuple(known.get((seed, fold)) for fold in single.folds) for seed in seeds)
    return ScoreGrid(metric.name, seeds, single.folds, values)


def _tensors(part: HeldOut) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return predictions, targets and threshold of a part."""
    threshold = torch.tensor(part.threshold, dtype=torch.double) if part.threshold else None
    return from_numpy(part.output), from_numpy(part.y), threshold


def _average(several: Sequence[HeldOut], seed: int) -> HeldOut:
    first = several[0]
    if any(not np.array_equal(part.graph, first.graph) for part in several):
        raise ValueError(
            f"members of the ensemble from seed {seed} were tested on different graphs of fold "
            f"{first.fold + 1}; choose another folder (--output-dir)"
        )
    outputs = np.stack([part.output for part in several])
    return first._replace(seed=seed, output=outputs.mean(0), spread=outputs.std(0, ddof=1))
