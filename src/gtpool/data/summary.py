"""What is in a dataset, in words."""

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
    """Describe a dataset: its graphs, labels and features.

    Args:
        data: The graphs.
        columns: The target columns of a table, if it is one.
    """
    of_classes = data.schema.task == "classes"  # tasks are named by their columns
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
    """Say in one line how many graphs there are, the task, the target and its classes or range.

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
    return "".join(c if c.isprintable() else " " for c in line)


def _counted(data: GraphDataset) -> list[str]:
    """Name each class with its number of graphs, or each task with its values."""
    names, task = data.schema.targets, data.schema.task
    if task == "classes":
        values = data.y.bincount(minlength=len(names)).tolist()
    else:
        values = [_values(task, column) for column in data.y.T]
    return [f"{name} ({value})" for name, value in zip(names, values, strict=True)]


def _values(task: Task, y: Tensor) -> str:
    """Count the answers to binary tasks, or give the range of the values to regress."""
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
    """Describe the splits of a dataset that has a name.

    Args:
        data: What ``load`` gave.
        data_dir: Where ``load`` looked first, for the files of the splits.
    """
    rule, splits = _splits(data, data_dir)
    return {"split": rule, "split digests": " ".join(split.digest for split in splits)}


def _labels(data: GraphDataset) -> dict[str, str]:
    """Count the graphs of each class, or the answers to each task."""
    names, task = data.schema.targets, data.schema.task
    if task == "classes":
        return {"classes": f"{len(names)}: {', '.join(_counted(data))}"}
    named = ", ".join(names[:_LISTED]) + (" …" if len(names) > _LISTED else "")
    what = "values" if task == "regression" else "labels"
    return {"tasks": f"{len(names)}: {named}", what: _values(task, data.y)}


def _features(data: GraphDataset) -> str:
    """Say what the columns of the nodes and edges are."""
    recipe = data.schema.recipe
    if recipe.kind == "molecule":
        return f"{data.num_features} codes an atom, 3 a bond, as OGB has them"
    parts = {
        "attributes": recipe.attributes,
        "one-hot labels": len(recipe.labels),
        "one-hot degrees": 0 if recipe.max_degree is None else recipe.max_degree + 1,
        "labels of edges": len(recipe.edge_labels),
    }
    listed = ", ".join(f"{count} {what}" for what, count in parts.items() if count)
    return f"{data.num_features} a node ({recipe.kind}{': ' if listed else ''}{listed})"


def _splits(data: GraphDataset, data_dir: Path | None) -> tuple[str, list[Split]]:
    """Give the splits of the protocol, or ours where its files are not here."""
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
