"""Boosted trees on descriptors of molecules, on the splits of a cross-validation."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import from_numpy

from gtpool.data.formats.reader import Loaded
from gtpool.data.graph_features import load_descriptors
from gtpool.data.split import Split
from gtpool.model.trees import BoostedTrees
from gtpool.ops.average import probabilities
from gtpool.study.heldout import HeldOut
from gtpool.study.inputs import graph_smiles
from gtpool.study.plan import Plan
from gtpool.study.result import RunResult
from gtpool.study.split_rules import choose_split
from gtpool.study.store import Store, write_atomic
from gtpool.train.boosting import MISSING, OPTIONS, fit_trees, has_sklearn

Array = NDArray[Any]

FEATURES = ("rdkit2d", "morgan")
"""Descriptors that the trees take."""
MAX_OUTPUTS = 100
"""Largest number of classes or tasks with boosted trees; each has hundreds of trees."""
_VERSION = 1  # of the stored trees


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
