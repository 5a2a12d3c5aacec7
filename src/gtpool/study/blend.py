"""Boosted trees on the splits of a cross-validation, and their blend with its networks.

The trees are fitted to descriptors of molecules. Held-out predictions choose the weight.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import from_numpy

from gtpool.data.formats.reader import Loaded
from gtpool.data.graph_features import descriptor_names, load_descriptors
from gtpool.data.split import Split
from gtpool.model.trees import Blend, BoostedTrees
from gtpool.ops.average import probabilities
from gtpool.study.final_model import load_member
from gtpool.study.heldout import HeldOut
from gtpool.study.inputs import graph_smiles
from gtpool.study.plan import Plan
from gtpool.study.result import RunResult
from gtpool.study.scores import average_members, ensemble_scores
from gtpool.study.split_rules import choose_split
from gtpool.study.start import run_data
from gtpool.study.store import Store, write_atomic
from gtpool.study.summarize import MetricSummary, ScoreGrid, summarize_grid
from gtpool.train.boosting import MISSING, OPTIONS, fit_trees, has_sklearn
from gtpool.train.fit import predict

Array = NDArray[Any]

FEATURES = ("rdkit2d", "morgan")
"""Descriptors that the trees take."""
MAX_OUTPUTS = 100
"""Largest number of classes or tasks with boosted trees; each has hundreds of trees."""
_VERSION = 1  # of the stored trees
_WEIGHTS = tuple(step / 20 for step in range(21))
_SMALLEST = 1e-12  # probability in a log loss
_NO_EVIDENCE = 0.5  # weight where no predictions can choose it


class FoldTrees(NamedTuple):
    """Boosted trees of one training part."""

    trees: BoostedTrees
    outputs: Array
    """Their logits or values for every graph of the data, [G, K]."""

    def predict(self, part: HeldOut, task: str) -> HeldOut:
        """Return the predictions of the trees on the graphs of a part."""
        output = probabilities(from_numpy(self.outputs[part.graph]), task).numpy()
        return part._replace(output=output, spread=None)


class Boosting(NamedTuple):
    """Boosted trees on the splits of some runs."""

    by_split: Mapping[str, FoldTrees]
    """Trees by digest of the split."""
    digests: Mapping[tuple[int, int], str]
    """Digest of the split by seed and fold of the run."""

    def predict(self, parts: Sequence[HeldOut], task: str) -> list[HeldOut]:
        """Return the predictions of the trees where networks have predictions.

        Args:
            parts: Predictions of single runs on some of their graphs.
            task: "classes", "binary" or "regression".
        """
        return [
            self.by_split[self.digests[part.seed, part.fold]].predict(part, task) for part in parts
        ]


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


def why_no_boosting(plan: Plan, loaded: Loaded, data_dir: Path | None = None) -> str | None:
    """Return why boosted trees cannot be fitted to the data of a plan; None if they can.

    Args:
        plan: The runs.
        loaded: Their data.
        data_dir: Folder searched first for a dataset known by name.
    """
    outputs = loaded.dataset.schema.num_outputs
    if graph_smiles(loaded, data_dir) is None:
        return f"needs SMILES, which {plan.run.data.source} does not have: give a table of SMILES"
    if outputs > MAX_OUTPUTS:
        return f"takes at most {MAX_OUTPUTS} classes or tasks, and the data has {outputs}"
    return None if has_sklearn() else MISSING


def fit_boosting(
    runs: Sequence[RunResult], loaded: Loaded, store: Store, data_dir: Path | None = None
) -> Boosting:
    """Fit boosted trees to the training part of each finished run, or read them from the store.

    The validation part of the run stops boosting early. Runs on one split share their trees.

    Args:
        runs: The runs.
        loaded: Their data; ``why_no_boosting`` must be None.
        store: Keeps the trees, so that a repeated command does not fit them again.
        data_dir: Folder searched first for a dataset known by name.
    """
    smiles, data = graph_smiles(loaded, data_dir) or (), loaded.dataset
    describe = cache(lambda: load_descriptors(smiles, FEATURES))
    splits = {
        run.split.digest: choose_split(run.spec.split, loaded, data_dir) for run in runs if run.done
    }
    by_split: dict[str, FoldTrees] = {}
    for digest, split in splits.items():
        path = store.folder / "trees" / f"{_key(split, loaded, smiles)}.json"
        found = _read(path, (len(data), data.schema.num_outputs))
        if found is None:
            found = _fit(describe(), split, loaded)
            content = {"trees": found.trees.to_json(), "outputs": found.outputs.tolist()}
            write_atomic(path, json.dumps(content, allow_nan=False).encode())
        by_split[digest] = found
    digests = {(run.spec.seed, run.spec.split.fold): run.split.digest for run in runs}
    return Boosting(by_split, digests)


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


def _key(split: Split, loaded: Loaded, smiles: Sequence[str]) -> str:
    """Return a digest of all that the trees of a split depend on."""
    schema, versions = loaded.dataset.schema, [version(name) for name in ("rdkit", "scikit-learn")]
    told = [_VERSION, *versions, OPTIONS, FEATURES, split.digest, schema.task, schema.num_outputs]
    digest = sha256(json.dumps([told, list(smiles)]).encode())
    digest.update(loaded.dataset.y.numpy().tobytes())
    return digest.hexdigest()[:16]


def _read(path: Path, shape: tuple[int, int]) -> FoldTrees | None:
    """Return stored trees; None if they are missing or damaged."""
    try:
        content = json.loads(path.read_bytes())
        outputs = np.array(content["outputs"], float)
        found = FoldTrees(BoostedTrees.from_json(content["trees"], str(path)), outputs)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if outputs.shape == shape else None


def _fit(x: Array, split: Split, loaded: Loaded) -> FoldTrees:
    schema, y = loaded.dataset.schema, loaded.dataset.y.numpy()
    train, valid = split.train.numpy(), split.valid.numpy()
    trees = fit_trees(x, y, train, valid, schema.task, schema.num_outputs)
    return FoldTrees(trees, trees.predict(x))
