"""Calibration of held-out predictions: each part by those of other graphs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, from_numpy

from gtpool.data.schema import Schema
from gtpool.model.calibration import Calibration, thinned
from gtpool.ops.average import probabilities
from gtpool.ops.calibrate import fit_temperature, logits_of, nonconformity
from gtpool.study.heldout import HeldOut
from gtpool.study.plan import Plan
from gtpool.study.scores import first_seed
from gtpool.train.metric import TASK_METRICS, Metric, metric_of

COVERAGES = (0.8, 0.9, 0.95)
"""Stated coverages that are measured at training."""
_CANDIDATES = 100  # thresholds from the graphs of each label


class Coverage(NamedTuple):
    """How often conformal sets or intervals contain the truth."""

    stated: float
    measured: float
    """Share of the known targets of held-out graphs."""
    size: float
    """Mean number of labels in a set, or median width of an interval."""


class Calibrated(NamedTuple):
    """Held-out predictions by the calibration of other graphs, and the calibration to save."""

    parts: list[HeldOut]
    """Predictions on the test parts."""
    before: list[HeldOut]
    """The same without temperature and threshold."""
    calibration: Calibration
    """That of the model that is handed over."""
    coverage: tuple[Coverage, ...]
    """Measured with the scores of other graphs, where these are enough."""


def check_calibration(plan: Plan, schema: Schema) -> None:
    """Raise a ValueError if a plan asks for a temperature or threshold that data do not allow.

    Args:
        plan: The runs.
        schema: Schema of their data.
    """
    task, outputs = schema.task, schema.num_outputs
    if plan.calibrate and task == "regression":
        raise ValueError("calibrate (--calibrate) needs classes or binary tasks, not regression")
    if plan.threshold is None:
        return
    if task == "regression" or (task == "classes" and outputs != 2):
        found = task if task == "regression" else f"{outputs} classes"
        raise ValueError(f"threshold (--threshold) needs two classes or binary tasks, not {found}")
    if not metric_of(task, plan.threshold).decides:
        fit = ", ".join(name for name, metric in TASK_METRICS[task].items() if metric.decides)
        raise ValueError(
            f"threshold (--threshold) needs a metric of decisions, not {plan.threshold!r}: {fit}"
        )


def calibrate_parts(
    parts: Sequence[HeldOut],
    plan: Plan,
    task: str,
    seed: int,
    validation: Callable[[], Sequence[HeldOut]],
) -> Calibrated:
    """Calibrate test predictions, and choose the calibration of the model that is handed over.

    Temperature, threshold and conformal scores for a fold are those of the other folds of the same
    seed, so that no graph helps to choose what it is measured with. The model has those of all
    folds. On a split without folds the validation parts choose.

    Args:
        parts: Test predictions of the runs, ensembles or blends.
        plan: The runs; they say whether there is a temperature and a threshold.
        task: "classes", "binary" or "regression".
        seed: Seed of the model that is handed over.
        validation: Returns the predictions on validation parts.
    """
    folded = len({part.fold for part in parts}) > 1
    held = parts if folded else validation()

    def fitted(seed: int, fold: int | None) -> Calibration:
        chosen = [one for one in held if first_seed(one.seed, plan) == seed and one.fold != fold]
        return fit_calibration(chosen, plan, task)

    by_part = [fitted(part.seed, part.fold if folded else None) for part in parts]
    pairs = list(zip(parts, by_part, strict=True))
    calibrated = [_apply(part, found, task) for part, found in pairs]
    return Calibrated(
        parts=calibrated,
        before=list(parts),
        calibration=fitted(first_seed(seed, plan), None),
        coverage=_measure(list(zip(calibrated, by_part, strict=True)), task),
    )


def fit_calibration(parts: Sequence[HeldOut], plan: Plan, task: str) -> Calibration:
    """Return temperature, threshold and conformal scores of held-out predictions.

    Args:
        parts: Predictions on graphs that their networks were not trained on.
        plan: Says whether there is a temperature and a threshold.
        task: "classes", "binary" or "regression".
    """
    if not parts:
        return Calibration()
    p = from_numpy(np.concatenate([part.output for part in parts]))
    y = from_numpy(np.concatenate([part.y for part in parts]))
    finite = p.isfinite().all(1)
    p, y = p[finite], y[finite]
    if not len(p):
        return Calibration()
    temperature = threshold = ()
    if plan.calibrate:
        temperature = tuple(fit_temperature(p, y, task).tolist())
        p = _scaled(p, Calibration(temperature=temperature), task)
    if plan.threshold is not None:
        threshold = choose_threshold(p, y, metric_of(task, plan.threshold))
    scores, counts = zip(*map(thinned, nonconformity(p, y, task).T), strict=True)
    return Calibration(
        temperature=temperature,
        threshold=threshold,
        metric=plan.threshold,
        scores=scores,
        counts=counts,
    )


def choose_threshold(p: Tensor, y: Tensor, metric: Metric) -> tuple[float, ...]:
    """Return the probability from which on a task is 1 for the best value of a metric, by task.

    Tried are 0.5 and values between the probabilities of neighbouring graphs: at most 100 by ranks
    of the graphs of each label. None of these predicts one label for all graphs. Of thresholds that
    are equally good the one nearest to 0.5 is taken, which is also that of a task of one label.

    Args:
        p: Probabilities, [G, 2] or [G, T].
        y: Labels.
        metric: A metric of decisions.
    """
    if metric.task == "classes":
        return (_choose(p, y, metric, p[:, 1], y),)
    tasks = range(p.size(1))
    return tuple(_choose(p[:, [at]], y[:, [at]], metric, p[:, at], y[:, at]) for at in tasks)


def _choose(p: Tensor, y: Tensor, metric: Metric, score: Tensor, label: Tensor) -> float:
    """Return the best threshold of one task, with its scores and labels."""
    tried = _candidates(score, label)
    tried = tried[(tried - 0.5).abs().argsort(stable=True)]
    sign = 1 if metric.higher_is_better else -1
    values = [sign * metric.of_outputs(p, y, threshold) for threshold in tried.split(1)]
    return float(tried[int(np.argmax(np.nan_to_num(values, nan=-np.inf)))])


def _candidates(score: Tensor, label: Tensor) -> Tensor:
    """Return thresholds between neighbouring scores, and 0.5."""
    by_label = [score[label == which].sort().values for which in (0, 1)]
    distinct = torch.cat(by_label).unique()
    middles, half = (distinct[1:] + distinct[:-1]) / 2, score.new_tensor([0.5])
    if not all(map(len, by_label)) or not len(middles):
        return half
    ranked = [part[torch.linspace(0, len(part) - 1, _CANDIDATES).long()] for part in by_label]
    places = torch.searchsorted(middles, torch.cat(ranked)).clamp(max=len(middles) - 1)
    return torch.cat([half, middles[places.unique()]])


def _scaled(p: Tensor, calibration: Calibration, task: str) -> Tensor:
    """Return probabilities by a temperature; without one as they are."""
    if not calibration.temperature:
        return p
    return probabilities(calibration.scale(logits_of(p, task)), task)


def _apply(part: HeldOut, calibration: Calibration, task: str) -> HeldOut:
    output = _scaled(from_numpy(part.output), calibration, task).numpy()
    return part._replace(output=output, threshold=calibration.threshold)


def _measure(pairs: Sequence[tuple[HeldOut, Calibration]], task: str) -> tuple[Coverage, ...]:
    """Return the coverage of sets or intervals of parts, each by its own scores."""
    return tuple(
        Coverage(stated, *_measure_one(pairs, task, stated))
        for stated in COVERAGES
        if pairs and all(found.reaches(stated) for _, found in pairs)
    )


def _measure_one(
    pairs: Sequence[tuple[HeldOut, Calibration]], task: str, stated: float
) -> tuple[float, float]:
    """Return the measured coverage, and the mean size of a set or median width of an interval."""
    inside: list[Tensor] = []
    sizes: list[Tensor] = []
    for part, found in pairs:
        p, y = from_numpy(part.output), from_numpy(part.y)
        inside.append(found.covers(p, y, task, stated).flatten())
        sizes.append(found.sizes(p, task, stated).flatten())
    size = torch.cat(sizes)
    middle = size.median() if task == "regression" else size.mean()
    return torch.cat(inside).nanmean().item(), middle.item()
