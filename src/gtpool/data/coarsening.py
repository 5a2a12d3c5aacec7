"""Coarsening chains of a dataset: computed once, in parallel, and cached on disk."""

import shutil
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from errno import EEXIST, ENOENT, ENOTEMPTY
from functools import partial
from hashlib import sha256
from multiprocessing import current_process
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from gtpool.data.dataset import GraphDataset, read_folder, write_folder
from gtpool.data.locate import cache_dir
from gtpool.data.parallel import run_tasks, usable_cores
from gtpool.graph import Coarsening, CoarseningStep, check_count
from gtpool.ops.chains import CHAINS, coarsen_graphs
from gtpool.ops.coarsening import (
    HOST,
    edge_pointers,
    join_chains,
    row_ranges,
    take_chain,
)
from gtpool.ops.sample import check_choice
from gtpool.ops.segment import layout_from_sizes, offsets

VERSION = 1
"""Version of the algorithm; chains cached by another version are ignored."""

_PARTS = ("cluster", "edge_index", "edge_attr", "sizes", "share")
_CHUNK = 3e7  # work per task: the sum of sizes cubed, plus a constant per graph
_MIN_PARALLEL = 4e9  # less work than this is faster in one process

Progress = Callable[[int, int], None]
Arrays = tuple[NDArray[Any], ...]


def with_chain(
    data: GraphDataset,
    steps: int,
    method: str = "spectral",
    *,
    jobs: int | None = None,
    tell: Progress | None = None,
) -> GraphDataset:
    """Return a dataset whose batches carry the coarsening chain of each graph.

    Chains are cached in the user's cache folder under a digest of the graphs.

    Args:
        data: The graphs; returned unchanged if they have this chain already.
        steps: Coarsening steps; the last one of a spectral chain reduces each graph to one node.
        method: A key of ``gtpool.ops.chains.CHAINS``; "spectral" is HaarPool's.
        jobs: Worker processes; None for one per core. A small dataset is computed in this process.
            A script that starts workers must do so below ``if __name__ == "__main__":``.
        tell: Progress callback, called with the number of finished graphs and of all graphs.

    Example:
        >>> from gtpool.data.sources import load
        >>> data = with_chain(load("MUTAG"), steps=3)
        >>> [step.level.sizes.tolist() for step in data.take([0, 1]).chain]
        [[9, 7], [5, 4], [1, 1]]
    """
    check_count("steps", steps)
    if jobs is not None:
        check_count("jobs", jobs)
    check_choice("method", method, CHAINS)
    plan = Coarsening(steps, method)
    if len(data.chain) == steps and data.chain[0].method == method:
        return data
    bare = replace(data, x=data.x[:, :0], edge_attr=None, chain=()).to(HOST)
    entry = cache_dir() / "chains" / _digest(bare, plan)
    try:
        chain = _read(entry, method)
    except (OSError, ValueError, KeyError):  # not there, or damaged
        chain = _build(bare, plan, jobs or usable_cores(), tell or (lambda _done, _all: None))
        _keep(chain, entry, data.schema.name)
    return replace(data, chain=tuple(step.to(data.x.device) for step in chain))


def _digest(data: GraphDataset, plan: Coarsening) -> str:
    """Digest of the graphs, the number of steps, the method and the version."""
    method = "" if plan.method == "spectral" else f" {plan.method}"  # chains of 0.2 stay valid
    digest = sha256(f"{VERSION} {plan.steps}{method}".encode())
    for part in (data.sizes, data.edge_counts, data.edge_index):
        digest.update(part.numpy().tobytes())
    return digest.hexdigest()[:16]


def _build(
    data: GraphDataset, plan: Coarsening, jobs: int, tell: Progress
) -> tuple[CoarseningStep, ...]:
    """Cluster the graphs in chunks of similar size: graphs of one size are clustered together."""
    work = data.sizes.double() ** 3 + 1000
    order = data.sizes.argsort(descending=True, stable=True)
    bins = (work[order].cumsum(0) / _CHUNK).long().unique_consecutive(return_counts=True)[1]
    chunks = order.split(bins.tolist())
    if float(work.sum()) < _MIN_PARALLEL or current_process().daemon:  # daemons start no workers
        jobs = 1
    tasks = (_pack(data, chunk) for chunk in chunks)
    done, chains = 0, list[tuple[CoarseningStep, ...]]()
    found = run_tasks(
        partial(_chain_of, plan=plan), tasks, min(jobs, len(chunks)), "computes coarsening chains"
    )
    for chunk, arrays in zip(chunks, found, strict=True):
        chains.append(_unpack(arrays, plan.method))
        done += chunk.numel()
        tell(done, len(data))
    joined, back = join_chains(chains), order.argsort()
    level = layout_from_sizes(data.sizes, HOST)
    nodes = row_ranges(offsets(data.sizes[order])[back], level)
    return take_chain(joined, edge_pointers(joined), back, level, nodes)


def _pack(data: GraphDataset, chunk: Tensor) -> Arrays:
    """Return edges and sizes of some graphs, as arrays that can be pickled."""
    batch = data.take(chunk)
    return batch.edge_index.numpy(), batch.levels[0].sizes.numpy()


def _chain_of(task: Arrays, plan: Coarsening) -> Arrays:
    """Compute the chains of some graphs: the arrays of ``_names`` per step."""
    edge_index, sizes = (torch.from_numpy(part) for part in task)
    chain = coarsen_graphs(edge_index, layout_from_sizes(sizes, HOST), plan)
    return tuple(part.numpy() for part in _parts(chain).values())


def _parts(chain: Iterable[CoarseningStep]) -> dict[str, Tensor]:
    """Return the tensors of a chain by name, without those that can be recomputed."""
    named: dict[str, Tensor] = {}
    for number, step in enumerate(chain):
        parts = (step.cluster.int(), step.edge_index.int(), step.edge_attr, step.level.sizes)
        parts = parts if step.share is None else (*parts, step.share)
        named |= {f"{part}.{number}": value for part, value in zip(_PARTS, parts, strict=False)}
    return named


def _names(method: str) -> tuple[str, ...]:
    """Return the names of the tensors of a step."""
    return _PARTS[:-1] if method == "spectral" else _PARTS


def _unpack(arrays: Arrays, method: str) -> tuple[CoarseningStep, ...]:
    return _steps([torch.from_numpy(array) for array in arrays], method)


def _steps(parts: list[Tensor], method: str) -> tuple[CoarseningStep, ...]:
    several = len(_names(method))
    steps = (parts[at : at + several] for at in range(0, len(parts), several))
    return tuple(
        CoarseningStep(
            cluster.long(), ends.long(), weight, layout_from_sizes(sizes, HOST), method, *share
        )
        for cluster, ends, weight, sizes, *share in steps
    )


def _read(entry: Path, method: str) -> tuple[CoarseningStep, ...]:
    """Read what ``_keep`` wrote; raise a ValueError if its checksum differs."""
    tensors, values = read_folder(entry)
    if values["sha256"] != _sum(tensors):
        raise ValueError(f"{entry} is damaged")
    parts = _names(method)
    names = [f"{part}.{step}" for step in range(len(tensors) // len(parts)) for part in parts]
    return _steps([tensors[name] for name in names], method)


def _sum(tensors: dict[str, Tensor]) -> str:
    digest = sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


def _keep(chain: tuple[CoarseningStep, ...], entry: Path, name: str) -> None:
    """Write a chain to the cache; warn if the cache cannot be written."""
    with suppress(OSError):
        shutil.rmtree(entry)  # damaged, or it would have been read
    tensors = _parts(chain)
    try:
        write_folder(entry, tensors, {"sha256": _sum(tensors)})
    except OSError as error:
        # Another process may be saving the same chain.
        if error.errno not in {ENOENT, EEXIST, ENOTEMPTY}:
            warnings.warn(
                f"the coarsening chains of {name} cannot be cached, as {entry.parent} cannot "
                f"be written ({error}); set GTPOOL_CACHE to another folder",
                stacklevel=3,
            )
