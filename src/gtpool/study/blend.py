"""Networks and boosted trees of the same runs as one, with a weight that neither has seen."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gtpool.data.formats.reader import Loaded
from gtpool.data.graph_features import descriptor_names
from gtpool.model.trees import Blend
from gtpool.ops.average import probabilities
from gtpool.study.boosting import FEATURES, Boosting, fit_boosting, why_no_boosting
from gtpool.study.final_model import load_member
from gtpool.study.heldout import HeldOut
from gtpool.study.plan import Plan
from gtpool.study.result import RunResult
from gtpool.study.scores import average_members, ensemble_scores
from gtpool.study.split_rules import choose_split
from gtpool.study.start import run_data
from gtpool.study.store import Store
from gtpool.study.summarize import MetricSummary, ScoreGrid, summarize_grid
from gtpool.train.fit import predict

_WEIGHTS = tuple(step / 20 for step in range(21))
_SMALLEST = 1e-12  # probability in a log loss
_NO_EVIDENCE = 0.5  # weight where no predictions can choose it


class BesideTrees(NamedTuple):
    """Boosted trees on the folds of a cross-validation, and their blend with its networks."""

    reason: str | None = None
    """Why there are no trees."""
    alone: MetricSummary | None = None
    """Mean and standard deviation of the test metric of the trees alone."""
    networks: MetricSummary | None = None
    """Of a blend, the same of the networks without the trees."""
    predictions: list[HeldOut] | None = None
    """Test predictions of the blend, sorted by seed and fold."""
    blend: Blend | None = None
    """What predicts together with the networks that are handed over."""
    validation: Sequence[HeldOut] = ()
    """Predictions of the blend on validation parts; empty for a split with folds."""


class Blended(NamedTuple):
    """Test predictions of a blend, and the weight of its networks."""

    parts: list[HeldOut]
    """Predictions on the test part of each finished run."""
    weight: float
    """Weight of the networks in the model that is handed over."""
    validation: list[HeldOut]
    """Predictions on the validation parts; empty for a split with folds."""


def check_blend(plan: Plan, loaded: Loaded, data_dir: Path | None = None) -> None:
    """Raise a ValueError if a plan asks for a blend that is not possible.

    Args:
        plan: The runs.
        loaded: Their data.
        data_dir: Folder searched first for a dataset known by name.
    """
    reason = why_no_boosting(plan, loaded, data_dir) if plan.blend else None
    if reason is not None:
        raise ValueError(f"blend (--blend) {reason}")


def fit_beside(
    runs: Sequence[RunResult],
    final: Sequence[RunResult],
    network: Sequence[HeldOut],
    plan: Plan,
    loaded: Loaded,
    store: Store,
    data_dir: Path | None = None,
) -> BesideTrees:
    """Fit boosted trees on the folds of finished runs, and blend them if the plan says so.

    Args:
        runs: The runs.
        final: Those whose networks are handed over.
        network: Test predictions of the finished runs.
        plan: The runs.
        loaded: Their data.
        store: Holds their weights, and keeps the trees.
        data_dir: Folder searched first for index files.
    """
    if reason := why_no_boosting(plan, loaded, data_dir):
        return BesideTrees(reason)
    task = loaded.dataset.schema.task

    def scores(parts: Sequence[HeldOut]) -> ScoreGrid:
        return ensemble_scores(runs, average_members(parts, plan), plan, task)

    boosting = fit_boosting(runs, loaded, store, data_dir)
    every = scores(boosting.predict(network, task))
    # Trees have no seed: further seeds repeat the figures of the first.
    first = every._replace(seeds=every.seeds[:1], values=every.values[:1])
    alone = summarize_grid(first)
    if not plan.blend:
        return BesideTrees(alone=alone)
    blended = blend_runs(
        network, boosting, plan, task, lambda: validation_parts(runs, loaded, store, data_dir)
    )
    return BesideTrees(
        alone=alone,
        networks=summarize_grid(scores(network), members=plan.ensemble),
        predictions=average_members(blended.parts, plan),
        blend=final_blend(blended.weight, boosting, final),
        validation=blended.validation,
    )


def blend_runs(
    network: Sequence[HeldOut],
    boosting: Boosting,
    plan: Plan,
    task: str,
    validation: Callable[[], Sequence[HeldOut]],
) -> Blended:
    """Blend the test predictions of networks with those of trees.

    The weight for a fold is chosen on the test predictions of the other folds, so that no graph
    helps to choose the weight that it is tested with. The model that is handed over has the weight
    of all folds. On a split without folds the validation parts choose the weight.

    Args:
        network: Test predictions of the finished runs.
        boosting: Trees of the same runs.
        plan: The runs.
        task: "classes", "binary" or "regression".
        validation: Returns the predictions of the networks on their validation parts.
    """
    validated: list[tuple[HeldOut, HeldOut]] = []
    trees, folds = boosting.predict(network, task), sorted({part.fold for part in network})
    if len(folds) > 1:
        pairs = _pairs(average_members(network, plan), average_members(trees, plan))
        weight = choose_weight(pairs, task)
        weights = {
            fold: choose_weight([pair for pair in pairs if pair[0].fold != fold], task)
            for fold in folds
        }
    else:
        held = validation()
        beside = boosting.predict(held, task)
        if not plan.bag:  # bags validate on graphs of their own
            held, beside = average_members(held, plan), average_members(beside, plan)
        validated = _pairs(held, beside)
        weight = choose_weight(validated, task)
        weights = dict.fromkeys(folds, weight)
    parts, mixed = (
        [one._replace(output=_mixed(one, other, weights[one.fold])) for one, other in pairs]
        for pairs in (_pairs(network, trees), validated)
    )
    return Blended(parts, weight, mixed)


def choose_weight(pairs: Sequence[tuple[HeldOut, HeldOut]], task: str) -> float:
    """Return the weight of the networks, 0, 0.05 … 1, with which a blend predicts best.

    Best is the lowest log loss of probabilities, or squared error of values, over the graphs of all
    parts. Of weights that are equally good the lowest is taken.

    Args:
        pairs: Predictions of networks and of trees on the same graphs, by part.
        task: "classes", "binary" or "regression".
    """
    if not pairs:
        return _NO_EVIDENCE
    losses = [sum(_loss(*pair, weight, task) for pair in pairs) for weight in _WEIGHTS]
    return _WEIGHTS[int(np.argmin(losses))]


def final_blend(weight: float, boosting: Boosting, members: Sequence[RunResult]) -> Blend:
    """Return the blend to save beside the networks of some runs.

    Args:
        weight: Weight of the networks.
        boosting: Trees of the runs.
        members: The run of each network.
    """
    digests = list(dict.fromkeys(run.split.digest for run in members))
    return Blend(
        weight=weight,
        features=FEATURES,
        columns=descriptor_names(FEATURES),
        trees=tuple(boosting.by_split[digest].trees for digest in digests),
        members=tuple(digests.index(run.split.digest) for run in members),
    )


def validation_parts(
    runs: Sequence[RunResult], loaded: Loaded, store: Store, data_dir: Path | None = None
) -> list[HeldOut]:
    """Return the predictions of each finished run on its validation part.

    Args:
        runs: The runs.
        loaded: Their data.
        store: Holds their weights.
        data_dir: Folder searched first for index files.
    """
    return [_validated(run, loaded, store, data_dir) for run in runs if run.done]


def _validated(run: RunResult, loaded: Loaded, store: Store, data_dir: Path | None) -> HeldOut:
    spec, task = run.spec, loaded.dataset.schema.task
    network, _ = load_member(run, loaded, store, data_dir)
    split = choose_split(spec.split, loaded, data_dir)
    data = run_data(spec, loaded.dataset, split)
    output = probabilities(predict(network, data, split.valid, spec.train.batch_size), task)
    graph, y = split.valid.numpy(), data.y[split.valid].numpy()
    return HeldOut(spec.seed, spec.split.fold, graph, output.numpy(), y)


def _pairs(network: Sequence[HeldOut], trees: Sequence[HeldOut]) -> list[tuple[HeldOut, HeldOut]]:
    return list(zip(network, trees, strict=True))


def _mixed(network: HeldOut, trees: HeldOut, weight: float) -> NDArray[Any]:
    return weight * network.output + (1 - weight) * trees.output


def _loss(network: HeldOut, trees: HeldOut, weight: float, task: str) -> float:
    """Return the sum of log losses or squared errors over the known targets of a part."""
    p, y = _mixed(network, trees, weight), network.y
    if task == "regression":
        return float(np.nansum((p - y) ** 2))
    if task == "classes":
        right = p[np.arange(len(y)), y]
    else:
        right = np.where(np.isnan(y), 1.0, np.where(y > 0.5, p, 1 - p))
    return -float(np.log(np.maximum(right, _SMALLEST)).sum())
