"""Time and weigh every method on one batch of PROTEINS, and our poolers beside PyG's own.

The first table is a whole network of width 128, forward and backward, in one thread; memory is the
growth of the peak of a process of its own that takes two such steps. The second is one pooling
layer, ours and PyG's, forward and backward, on the same nodes of width 128. torch-geometric-pool
has no place in it: it needs torch-scatter, which has to be compiled. Without GTPOOL_DATA the
batch is of MUTAG.
"""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    ASAPooling,
    DenseGCNConv,
    GraphMultisetTransformer,
    SAGPooling,
    TopKPooling,
    dense_diff_pool,
    dense_mincut_pool,
)
from torch_geometric.utils import to_dense_adj, to_dense_batch

from gtpool.bench.timing import measure, print_table, record
from gtpool.data.coarsening import with_chain
from gtpool.data.sources import load
from gtpool.graph import PackedBatch
from gtpool.model import METHODS
from gtpool.model.classifier import Classifier
from gtpool.model.gmt import GMT
from gtpool.ops.packed import PackedGraph
from gtpool.pool import POOLS
from gtpool.spec import ModelSpec
from gtpool.study.inputs import shape_of

WIDTH, BATCH, CLUSTERS = 128, 128, 20
SECONDS = 0.5
MEGABYTE = 1024  # of the kilobytes that the system counts in


def main() -> None:
    """Measure, print two tables, append the rows to methods.jsonl and layers.jsonl."""
    torch.set_num_threads(1)
    name = "PROTEINS" if "GTPOOL_DATA" in os.environ else "MUTAG"
    rows = _networks(name)
    record("methods", rows)
    keys = ("method", "parameters", "forward_ms", "backward_ms", "to_sagpool_h", "peak_mb")
    print(f"a batch of {BATCH} graphs of {name}, one thread")
    print_table(
        ["method", "parameters", "forward, ms", "backward, ms", "time to sagpool_h", "peak, MB"],
        [[row[key] for key in keys] for row in rows],
    )
    rows = _layers(name)
    record("layers", rows)
    print("one layer, forward and backward")
    print_table(
        ["layer", "ours, ms", "PyG, ms", "PyG / ours"],
        [[row[key] for key in ("layer", "ours_ms", "pyg_ms", "pyg_to_ours")] for row in rows],
    )


def _networks(name: str) -> list[dict[str, object]]:
    calls: dict[str, Callable[[], object]] = {}
    sizes: dict[str, int] = {}
    for method in METHODS:
        model, graphs = _network(method, name)
        sizes[method] = sum(part.numel() for part in model.parameters())
        calls[f"{method} forward"] = partial(_forward, model, graphs)
        calls[f"{method} both"] = partial(_step, model, graphs)
    taken = {call: 1e3 * seconds for call, seconds in measure(calls, seconds=SECONDS).items()}
    whole = taken["sagpool_h both"]
    return [
        {
            "dataset": name,
            "batch": BATCH,
            "width": WIDTH,
            "method": method,
            "parameters": sizes[method],
            "forward_ms": round(taken[f"{method} forward"], 2),
            "backward_ms": round(taken[f"{method} both"] - taken[f"{method} forward"], 2),
            "to_sagpool_h": round(taken[f"{method} both"] / whole, 2),
            "peak_mb": _peak(method, name),
        }
        for method in METHODS
    ]


def _network(method: str, name: str) -> tuple[Classifier, PackedBatch]:
    data = load(name)
    torch.manual_seed(0)
    model = Classifier(ModelSpec(**METHODS[method].model), shape_of(data))
    index = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:BATCH]
    chain = model.coarsening
    data = with_chain(data, chain.steps, chain.method) if chain else data
    return model, data.take(index, model.ratios)


def _forward(model: Classifier, graphs: PackedBatch) -> Tensor:
    logits, auxiliary = model.learn(graphs)
    return logits.sum() if auxiliary is None else logits.sum() + auxiliary.sum()


def _step(model: Classifier, graphs: PackedBatch) -> None:
    model.zero_grad()
    _forward(model, graphs).backward()


def _peak(method: str, name: str) -> float:
    context = get_context("forkserver")
    context.set_forkserver_preload([Classifier.__module__, shape_of.__module__])
    with ProcessPoolExecutor(1, context) as own:
        return own.submit(_weigh, method, name).result()


def _weigh(method: str, name: str) -> float:
    torch.set_num_threads(1)
    model, graphs = _network(method, name)
    _step(*_network("gcn", "MUTAG"))  # what torch itself takes at first is not the method's
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts from here
    before = _peak_so_far()
    for _ in range(2):
        _step(model, graphs)
    return round((_peak_so_far() - before) / MEGABYTE, 1)


def _peak_so_far() -> int:
    """Give the most memory that this process has had, in kilobytes; Linux alone tells."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


class Nodes:
    """Nodes of one width, and the edges and graphs that they belong to."""

    def __init__(self, name: str) -> None:
        graphs = _network("gcn", name)[1]
        self.level, self.batch, self.edge_index = graphs.levels[0], graphs.batch, graphs.edge_index
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(self.batch.numel(), WIDTH, generator=generator, requires_grad=True)


class Dense(nn.Module):
    """PyG's dense operators, as its examples call them."""

    def __init__(self, scorer: nn.Module, pool: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.scorer, self.pool = scorer, pool

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Pool, and add the losses."""
        dense, mask = to_dense_batch(x, batch)
        adjacency = to_dense_adj(edge_index, batch)
        graph = isinstance(self.scorer, DenseGCNConv)
        score = self.scorer(dense, adjacency, mask) if graph else self.scorer(dense)
        out, coarse, first, second = self.pool(dense, adjacency, score, mask)
        return out.sum() + coarse.sum() + first + second


def _layers(name: str) -> list[dict[str, object]]:
    nodes = Nodes(name)
    x, edge_index, batch, level = nodes.x, nodes.edge_index, nodes.batch, nodes.level
    torch.manual_seed(0)
    rivals: dict[str, nn.Module] = {
        "sagpool": SAGPooling(WIDTH, 0.5),
        "topkpool": TopKPooling(WIDTH, 0.5),
        "asap": ASAPooling(WIDTH, 0.5),
        "diffpool": Dense(DenseGCNConv(WIDTH, CLUSTERS), dense_diff_pool),
        "mincutpool": Dense(nn.Linear(WIDTH, CLUSTERS), dense_mincut_pool),
        "gmt": GraphMultisetTransformer(WIDTH, CLUSTERS),
    }
    calls: dict[str, Callable[[], object]] = {}
    for layer, rival in rivals.items():
        if layer == "gmt":
            ours = GMT(WIDTH, WIDTH, CLUSTERS)
            calls[f"{layer} ours"] = partial(
                _run, partial(ours, x, PackedGraph(edge_index, None, level))
            )
            calls[f"{layer} PyG"] = partial(_run, partial(rival, x, batch))
            continue
        ours = POOLS[layer](WIDTH, 0.5 if layer in {"sagpool", "topkpool", "asap"} else CLUSTERS)
        calls[f"{layer} ours"] = partial(_run, partial(ours, x, edge_index, level=level))
        dense = isinstance(rival, Dense)
        call = partial(rival, x, edge_index, batch if dense else None, **_given(dense, batch))
        calls[f"{layer} PyG"] = partial(_run, call)
    taken = measure(calls, seconds=SECONDS)
    return [
        {
            "dataset": name,
            "batch": BATCH,
            "width": WIDTH,
            "layer": layer,
            "ours_ms": round(1e3 * taken[f"{layer} ours"], 2),
            "pyg_ms": round(1e3 * taken[f"{layer} PyG"], 2),
            "pyg_to_ours": round(taken[f"{layer} PyG"] / taken[f"{layer} ours"], 2),
        }
        for layer in rivals
    ]


def _given(dense: bool, batch: Tensor) -> dict[str, Tensor]:
    return {} if dense else {"batch": batch}


def _run(call: Callable[[], object]) -> None:
    """Run a layer forwards and backwards through its features and its loss."""
    out = call()
    if isinstance(out, Tensor):
        out.sum().backward()
        return
    loss = getattr(out, "loss", None)
    total = out[0].sum()  # pyright: ignore[reportIndexIssue, reportUnknownMemberType]
    (total if loss is None else total + loss.sum()).backward()


if __name__ == "__main__":
    main()
