"""Test metrics of ensembles of seeds, from the committed predictions of single runs. No torch."""

from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from gtpool.reproduce.paper import StudyCell
from gtpool.study.predictions import Predictions, target_name

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
    """Return the accuracy or the ROC-AUC of the mean probability."""
    mean = np.mean([part.astype(np.float64) for part in members], 0)
    if y.ndim == 1:
        return float((mean.argmax(1) == y).mean())
    score = np.full(y.shape, np.nan)
    score[~np.isnan(y)] = mean
    return float(np.nanmean([_roc_auc(*task) for task in zip(score.T, y.T, strict=True)]))


def _roc_auc(score: NDArray[Any], y: NDArray[Any]) -> float:
    """Return the area under the ROC curve of a task; NaN without both classes."""
    known = ~np.isnan(y)
    positive = y[known] > 0.5
    pairs = int(positive.sum()) * int((~positive).sum())
    if not pairs:
        return float("nan")
    ranks = rankdata(score[known])[positive]
    return float((ranks.sum() - len(ranks) * (len(ranks) + 1) / 2) / pairs)
