"""Test metrics of ensembles of seeds, from the committed predictions of single runs."""

from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gtpool.reproduce.paper import StudyCell
from gtpool.study.predictions import Predictions, target_name
from gtpool.train.metric import METRICS

SIZE = 5
"""Members of an ensemble."""


def ensemble_scores(
    cell: StudyCell, predictions: Predictions, seeds: int, size: int = SIZE
) -> list[list[float]]:
    """Return the test metric of each fold for disjoint ensembles of consecutive seeds.

    Args:
        cell: Its specs are the runs of the first seed, one per fold.
        predictions: As ``read_predictions`` returns them.
        seeds: Number of seeds; ensembles of which a prediction is missing are left out.
        size: Members of an ensemble.
    """
    found: list[list[float]] = []
    runs, folds = cell.runs(seeds), len(cell.specs)
    for first in range(0, seeds - size + 1, size):
        members = runs[first * folds : (first + size) * folds]
        keys = [f"{cell.dataset}/{spec.key}" for spec in members]
        if all(key in predictions for key in keys):
            found.append(
                [
                    _score(
                        [predictions[key] for key in keys[fold::folds]],
                        predictions[target_name(cell.dataset, cell.specs[fold].split)],
                    )
                    for fold in range(folds)
                ]
            )
    return found


def mean_and_deviation(scores: list[list[float]]) -> tuple[float, float | None]:
    """Return the mean in per cent, and the standard deviation over folds of one ensemble each."""
    means = [fmean(folds) for folds in scores]
    deviations = [float(np.std(folds, ddof=1)) for folds in scores if len(folds) > 1]
    return 100 * fmean(means), 100 * fmean(deviations) if deviations else None


def _score(members: list[NDArray[Any]], y: NDArray[Any]) -> float:
    """Return the test metric of the mean probability."""
    mean = np.mean([part.astype(np.float64) for part in members], 0)
    if y.ndim == 1:
        return METRICS["classes"].measure(torch.from_numpy(mean), torch.from_numpy(y.astype(int)))
    dense = np.full(y.shape, np.nan)
    dense[~np.isnan(y)] = mean
    target = torch.from_numpy(y.astype(np.float64))
    return METRICS["binary"].measure(torch.from_numpy(np.nan_to_num(dense)), target)
