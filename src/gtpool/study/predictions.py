"""Test predictions of many runs in one ``.npz`` file, so that others can repeat the tests.

``DATASET/KEY`` has the test probabilities of a run and ``DATASET/y/PART`` the targets of its test
part (``target_name``). Binary tasks have their known entries only, flattened.
"""

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gtpool.spec import SplitSpec
from gtpool.study.heldout import read_held_out
from gtpool.study.store import Store, read_rows, write_atomic

Predictions = Mapping[str, NDArray[Any]]


def target_name(dataset: str, split: SplitSpec) -> str:
    """Return the name of the targets of a test part.

    Example:
        >>> target_name("MUTAG", SplitSpec(rule="fixed", fold=3))
        'MUTAG/y/3'
        >>> target_name("MUTAG", SplitSpec(rule="stratified", folds=5, fold=3, seed=1))
        'MUTAG/y/stratified-1-3-of-5'
    """
    if split.rule in {"fixed", "scaffold"}:
        return f"{dataset}/y/{split.fold}"
    return f"{dataset}/y/{split.rule}-{split.seed}-{split.fold}-of-{split.folds}"


def read_predictions(folder: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of a folder of ``.npz`` files by name."""
    return {name: array for path in sorted(folder.glob("*.npz")) for name, array in _read(path)}


def check_output(out: Path) -> None:
    """Raise a ValueError if predictions cannot be added to a file."""
    if out.suffix != ".npz":
        raise ValueError(f"a file of predictions must end in .npz, got {out}")
    if out.exists():
        dict(_read(out))


def export_predictions(sources: Iterable[Path], out: Path) -> tuple[int, int]:
    """Write the test predictions of the runs of stores to a file and count them.

    Args:
        sources: Stores of ``gtpool study run``; files of rows have no predictions.
        out: The ``.npz`` file; predictions that it already has are kept.

    Returns:
        The numbers of exported runs and of finished runs without predictions. Without any exported
        run nothing is written.
    """
    check_output(out)
    found: dict[str, NDArray[Any]] = dict(_read(out)) if out.is_file() else {}
    exported, without = set[str](), set[str]()
    for source in sources:
        store = Store(source)
        for row in read_rows(source):
            if not row.done:
                continue
            path = next(
                filter(Path.is_file, (store.predictions(row.key), store.artifact(row.key))), None
            )
            if path is None:
                without.add(row.key)
                continue
            task = "binary" if row.metric == "roc_auc" else "classes"
            (part,) = read_held_out([row], lambda _, path=path: path, task)
            dataset, known = row.spec.data.source, ~np.isnan(part.y)
            targets = part.y.astype(np.uint8 if task == "classes" else np.float16)
            output = part.output if task == "classes" else part.output[known]
            found[f"{dataset}/{row.key}"] = output.astype(np.float16)
            found[target_name(dataset, row.spec.split)] = targets
            exported.add(row.key)
    if exported:
        buffer = BytesIO()
        arrays: dict[str, Any] = {name: found[name] for name in sorted(found)}
        np.savez_compressed(buffer, **arrays)
        write_atomic(out, buffer.getvalue())
    return len(exported), len(without - exported)


def _read(path: Path) -> Iterable[tuple[str, NDArray[Any]]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            yield from ((name, arrays[name]) for name in arrays.files)
    except (ValueError, BadZipFile, EOFError, AttributeError) as error:
        raise ValueError(f"{path} is not a file of `gtpool study collect --predictions`") from error
