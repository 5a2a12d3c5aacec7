"""Descriptions of a dataset for ``gtpool data info`` and ``gtpool train``."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.locate import find_raw, splits_folder
from gtpool.data.registry import dataset_info
from gtpool.data.schema import Task
from gtpool.data.split import Split, fixed_folds, ogb_split, stratified_folds

_LISTED = 12


def describe(data: GraphDataset, columns: Sequence[str] = ()) -> dict[str, str]:
    """Return a description of a dataset: its graphs, labels and features.

    Args:
        data: The graphs.
        columns: The target columns of a table, if it is one.
    """
    of_classes = data.schema.task == "classes"  # other tasks are named after their columns
    return {
        "name": data.schema.name,
        "graphs": str(len(data)),
        **({"target": columns[0]} if columns and of_classes else {}),
        **_labels(data),
        "mean nodes": f"{data.sizes.double().mean():.2f}",
        "mean edges": f"{data.edge_counts.double().mean() / 2:.2f}",
        "features": _features(data),
    }


def describe_targets(data: GraphDataset, columns: Sequence[str] = ()) -> str:
    """Return one line: number of graphs, task, target, its classes or range, and added features.

    Args:
        data: The graphs.
        columns: The target columns of a table, if it is one.
    """
    task, names = data.schema.task, data.schema.targets
    what = "molecules" if data.schema.recipe.kind == "molecule" else "graphs"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    listed = ", ".join(_counted(data)[:_LISTED])
    if task == "classes":
        target = f"target {columns[0]!r}, " if columns else ""
        said = f"classification, {target}{len(names)} classes"
    else:
        kind = "regression" if task == "regression" else "binary classification"
        said = f"{kind}, {len(names)} target{'s' if len(names) > 1 else ''}"
    line = f"{len(data):,} {what}; {said}: {listed}{more}"
    if data.schema.recipe.encode:
        line = f"{line}; {describe_encodings(data)}"
    if data.schema.recipe.graph_columns:
        line = f"{line}; {describe_graph_features(data)}"
    return "".join(c if c.isprintable() else " " for c in line)


def describe_encodings(data: GraphDataset) -> str:
    """Return the structural encodings of a dataset and their number of columns."""
    recipe = data.schema.recipe
    return f"encodings: {', '.join(recipe.encode)} ({recipe.encoded} per node)"


def describe_graph_features(data: GraphDataset) -> str:
    """Return the features of whole graphs of a dataset and their number."""
    recipe = data.schema.recipe
    listed = ", ".join([*recipe.molecule_features, *recipe.feature_columns])
    return f"features of whole molecules: {listed} ({len(recipe.graph_columns)})"


def _counted(data: GraphDataset) -> list[str]:
    """Return each class with its number of graphs, or each task with its values."""
    names, task = data.schema.targets, data.schema.task
    if task == "classes":
        values = data.y.bincount(minlength=len(names)).tolist()
    else:
        values = [_values(task, column) for column in data.y.T]
    return [f"{name} ({value})" for name, value in zip(names, values, strict=True)]


def _values(task: Task, y: Tensor) -> str:
    """Return the counts of a binary task, or the range of a regression target."""
    known = y[~y.isnan()].double()
    if task == "binary":
        said = f"{int((known == 1).sum())} yes, {int((known == 0).sum())} no"
    elif len(known):
        said = f"{known.min():.4g} to {known.max():.4g}, mean {known.mean():.4g}"
    else:
        said = "no value"
    missing = y.numel() - len(known)
    return f"{said}, {missing} missing ({100 * missing / y.numel():.1f} %)" if missing else said


def describe_splits(data: GraphDataset, data_dir: Path | None = None) -> dict[str, str]:
    """Return the split rule and digests of a dataset known by name.

    Args:
        data: The dataset, from ``load``.
        data_dir: Where to look first for the files of the splits.
    """
    rule, splits = _splits(data, data_dir)
    return {"split": rule, "split digests": " ".join(split.digest for split in splits)}


def _labels(data: GraphDataset) -> dict[str, str]:
    """Return the classes with their counts, or the tasks with their values."""
    names, task = data.schema.targets, data.schema.task
    if task == "classes":
        return {"classes": f"{len(names)}: {', '.join(_counted(data))}"}
    named = ", ".join(names[:_LISTED]) + (" …" if len(names) > _LISTED else "")
    what = "values" if task == "regression" else "labels"
    return {"tasks": f"{len(names)}: {named}", what: _values(task, data.y)}


def _features(data: GraphDataset) -> str:
    """Describe the columns of node and edge features."""
    recipe = data.schema.recipe
    if recipe.kind == "molecule":
        told = f"OGB's codes: {data.num_features - recipe.encoded} per atom, 3 per bond"
        return f"{told}; {describe_encodings(data)}" if recipe.encode else told
    parts = {
        f"encodings ({', '.join(recipe.encode)})": recipe.encoded,
        "attributes": recipe.attributes,
        "one-hot labels": len(recipe.labels),
        "one-hot degrees": 0 if recipe.max_degree is None else recipe.max_degree + 1,
        "edge labels": len(recipe.edge_labels),
    }
    listed = ", ".join(f"{count} {what}" for what, count in parts.items() if count)
    return f"{data.num_features} per node ({recipe.kind}{': ' if listed else ''}{listed})"


def _splits(data: GraphDataset, data_dir: Path | None) -> tuple[str, list[Split]]:
    """Return the splits of the published protocol, or stratified folds without its files."""
    name = data.schema.name
    if dataset_info(name).family == "OGB":
        return "scaffold, from OGB", [ogb_split(find_raw(name, data_dir))]
    folder = splits_folder(name, data_dir)
    if folder is not None:
        return "ten fixed folds of the GMT protocol", fixed_folds(folder, len(data))
    reason = (
        "" if dataset_info(name).folds_sha256 is None else f" (`gtpool data get {name}` for fixed)"
    )
    return f"ten stratified folds, seed 0{reason}", stratified_folds(data.y)
