"""Gradient boosting on features of whole graphs by scikit-learn, an extra."""

from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gtpool.data.schema import Task
from gtpool.model.trees import BoostedTrees

Array = NDArray[Any]

MISSING = "needs scikit-learn: run pip install '.[molecules]' in a clone"
OPTIONS: dict[str, Any] = {
    "learning_rate": 0.05,
    "max_iter": 300,
    "max_leaf_nodes": 31,
    "min_samples_leaf": 20,
    "n_iter_no_change": 20,
}
"""Options of scikit-learn's histogram gradient boosting; the validation part stops it early."""
_ITERATIONS = 100  # without a validation part that can stop it


def has_sklearn() -> bool:
    """Return whether scikit-learn is installed."""
    return find_spec("sklearn") is not None


def fit_trees(
    x: Array, y: Array, train: Array, valid: Array, task: Task, outputs: int
) -> BoostedTrees:
    """Return boosted trees whose outputs are those of a network: logits or values.

    Each task has a booster of its own; its missing labels are left out. A task with one class in
    the training part gets the smoothed share of that class, without trees.

    Args:
        x: Features of each graph, [G, columns], NaN where missing.
        y: Class of each graph, [G], or targets of the tasks, NaN where missing, [G, tasks].
        train: Indices of the graphs to fit.
        valid: Indices of the graphs that stop boosting early.
        task: "classes", "binary" or "regression".
        outputs: Number of classes or tasks.
    """
    parts = x[train], x[valid]
    if task == "classes":
        fitted = [_fit_classes(*parts, y[train], y[valid], outputs)]
    else:
        fit = _fit_task if task == "binary" else _fit_values
        fitted = [fit(*parts, y[train, at], y[valid, at], at) for at in range(outputs)]
    baseline = np.concatenate([part[0] for part in fitted])
    return _packed(baseline, [tree for _, trees in fitted for tree in trees], x.shape[1])


class _Tree(NamedTuple):
    output: int
    """The output that the tree adds to."""
    nodes: Array
    """The nodes as scikit-learn holds them."""
    columns: Array
    """The features that the nodes number."""


_Fitted = tuple[Array, list[_Tree]]
"""Baseline of some outputs, and their trees."""


def _fit_classes(x: Array, x_valid: Array, y: Array, y_valid: Array, classes: int) -> _Fitted:
    """Return a logit for each class; a class that the training part lacks has no trees."""
    counts = np.bincount(y, minlength=classes)
    logits, known = np.log((counts + 1) / (len(y) + classes)), np.flatnonzero(counts)
    if len(known) == 1:
        return logits, []
    held = np.isin(y_valid, known)
    baseline, trees = _fit("Classifier", x, x_valid[held], y, y_valid[held])
    if len(known) == 2:  # scikit-learn has one logit for two classes
        baseline, trees = np.append(0.0, baseline), [tree._replace(output=1) for tree in trees]
    logits[known] = baseline - baseline.mean() + logits[known].mean()
    return logits, [tree._replace(output=int(known[tree.output])) for tree in trees]


def _fit_task(x: Array, x_valid: Array, y: Array, y_valid: Array, at: int) -> _Fitted:
    """Return the logit of a binary task."""
    yes, no = (y > 0.5).sum(), (y <= 0.5).sum()
    if not (yes and no):
        return np.log([(yes + 1) / (no + 1)]), []
    return _fit_known("Classifier", x, x_valid, y, y_valid, at)


def _fit_values(x: Array, x_valid: Array, y: Array, y_valid: Array, at: int) -> _Fitted:
    """Return the values of a regression target."""
    if np.isnan(y).all():
        return np.zeros(1), []
    return _fit_known("Regressor", x, x_valid, y, y_valid, at)


def _fit_known(kind: str, x: Array, x_valid: Array, y: Array, y_valid: Array, at: int) -> _Fitted:
    """Fit the graphs whose target is known; the trees add to one output."""
    held, told = ~np.isnan(y), ~np.isnan(y_valid)
    baseline, trees = _fit(kind, x[held], x_valid[told], y[held], y_valid[told])
    return baseline, [tree._replace(output=at) for tree in trees]


def _fit(kind: str, x: Array, x_valid: Array, y: Array, y_valid: Array) -> _Fitted:
    """Return baseline and trees that scikit-learn fits."""
    from sklearn import ensemble  # noqa: PLC0415 - an extra

    columns = _splittable(x)
    if not len(columns):  # too few graphs for any split: one constant column
        x, x_valid, columns = (
            np.zeros((len(x), 1)),
            np.zeros((len(x_valid), 1)),
            np.zeros(1, np.int64),
        )
    options = {**OPTIONS, "early_stopping": True}
    told = {"X_val": x_valid[:, columns], "y_val": y_valid}
    if not len(y_valid):
        options |= {"early_stopping": False, "max_iter": _ITERATIONS}
        told = {}
    model: Any = getattr(ensemble, f"HistGradientBoosting{kind}")(**options)
    model.fit(x[:, columns], y, **told)
    iterations = model._predictors  # noqa: SLF001 - there is no public access to the nodes
    trees = [
        _Tree(at, tree.nodes, columns) for several in iterations for at, tree in enumerate(several)
    ]
    return model._baseline_prediction.ravel(), trees  # noqa: SLF001 - as above


def _splittable(x: Array) -> Array:
    """Return the columns that can be split into leaves of the least size, which saves time.

    In the others, such as rare bits of a fingerprint, one value holds too many of the rows.
    """
    held = np.where(np.isnan(x), np.inf, x)
    usual = np.partition(held, len(x) // 2, axis=0)[len(x) // 2]
    return np.flatnonzero((held != usual).sum(0) >= OPTIONS["min_samples_leaf"])


def _packed(baseline: Array, trees: list[_Tree], width: int) -> BoostedTrees:
    """Return trees of scikit-learn as ``BoostedTrees``; ``width`` is the number of features."""
    sizes = [len(tree.nodes) for tree in trees]
    roots = np.cumsum([0, *sizes])[:-1] if trees else np.empty(0, np.int64)
    shift, own = np.repeat(roots, sizes), np.arange(sum(sizes))
    leaf, missing_left = _joined(trees, "is_leaf") > 0, _joined(trees, "missing_go_to_left") > 0
    features = [tree.columns[tree.nodes["feature_idx"]] for tree in trees]
    top = np.finfo(float).max  # infinite where NaN alone goes to the right
    threshold = _joined(trees, "num_threshold").clip(max=top)
    return BoostedTrees(
        columns=width,
        baseline=baseline,
        roots=roots,
        output=np.array([tree.output for tree in trees], np.int64),
        feature=np.where(leaf, 0, np.concatenate([np.empty(0, np.int64), *features])),
        value=np.where(leaf, _joined(trees, "value"), threshold),
        missing_left=missing_left & ~leaf,
        left=np.where(leaf, own, _joined(trees, "left").astype(np.int64) + shift),
        right=np.where(leaf, own, _joined(trees, "right").astype(np.int64) + shift),
    )


def _joined(trees: list[_Tree], name: str) -> Array:
    """Return a field of the nodes of all trees, float64 [N]."""
    return np.concatenate([np.empty(0), *(tree.nodes[name] for tree in trees)])
