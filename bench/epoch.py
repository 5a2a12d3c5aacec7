"""Time an epoch of training beside a plain PyG loop with the same layer sizes.

An epoch is one pass over the training part and a look at the validation and test parts, as the
protocol has it, batches of 128, in one thread. The PyG loop is what its examples do: DataLoader,
``SAGPool_h`` (3 x GCN, SAGPooling, max and mean), Adam, clipping. Beside it stand the same network
in our loop, which tells the loop from the network, and GTPool-V of the same width and of as many
parameters. Without GTPOOL_DATA only MUTAG is timed.
"""

import os
import sys
from collections.abc import Callable, Generator
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from gtpool.bench.baselines import PyGBaseline
from gtpool.bench.timing import measure, print_table, record
from gtpool.data.dataset import GraphDataset
from gtpool.data.sources import load
from gtpool.data.split import Split, stratified_folds
from gtpool.model.classifier import Classifier
from gtpool.spec import ModelSpec, TrainSpec
from gtpool.study.inputs import shape_of
from gtpool.train.epoch import Epoch
from gtpool.train.fit import fit

WIDTH = 128
SPEC = TrainSpec(epochs=10**6, patience=None)
HEADINGS = ["dataset", "network", "loop", "parameters", "epoch, ms", "to PyG"]


def main() -> None:
    """Measure, print a table, append the rows to results/bench/epoch.jsonl."""
    torch.set_num_threads(1)
    names = sys.argv[1:] or ["MUTAG"] + ["PROTEINS"] * ("GTPOOL_DATA" in os.environ)
    rows: list[dict[str, object]] = []
    for name in names:
        data = load(name)
        split = stratified_folds(data.y)[0]
        rows += _time(name, data.standardized(split.train), split)
    keys = ("dataset", "network", "loop", "parameters", "epoch_ms", "to_pyg")
    print_table(HEADINGS, [[row[key] for key in keys] for row in rows])
    record("epoch", rows)


def _time(name: str, data: GraphDataset, split: Split) -> list[dict[str, object]]:
    shape = shape_of(data)
    build = partial(PyGBaseline, "SAGPool_h", shape, WIDTH)
    goal = _count(build())
    narrow = min(range(8, WIDTH, 4), key=lambda width: abs(_size(width, data) - goal))
    networks: dict[tuple[str, str], nn.Module] = {
        ("SAGPool_h", "PyG"): build(),
        ("SAGPool_h", "ours"): build(),
        (f"GTPool-V, width {WIDTH}", "ours"): Classifier(ModelSpec(width=WIDTH), shape),
        (f"GTPool-V, width {narrow}", "ours"): Classifier(ModelSpec(width=narrow), shape),
    }
    calls: dict[str, Callable[[], object]] = {}
    for (network, loop), model in networks.items():
        epochs = _plain(model, data, split) if loop == "PyG" else _ours(model, data, split)
        calls[f"{network} {loop}"] = partial(next, epochs)
    taken = measure(calls, seconds=2.0)
    return [
        {
            "dataset": name,
            "network": network,
            "loop": loop,
            "parameters": _count(model),
            "epoch_ms": round(1e3 * taken[f"{network} {loop}"], 1),
            "to_pyg": round(taken[f"{network} {loop}"] / taken["SAGPool_h PyG"], 2),
        }
        for (network, loop), model in networks.items()
    ]


def _count(model: nn.Module) -> int:
    return sum(part.numel() for part in model.parameters())


def _size(width: int, data: GraphDataset) -> int:
    return _count(Classifier(ModelSpec(width=width), shape_of(data)))


def _ours(model: nn.Module, data: GraphDataset, split: Split) -> Generator[Epoch]:
    return fit(model, data, split, SPEC, seed=0)  # pyright: ignore[reportArgumentType]


def _plain(model: nn.Module, data: GraphDataset, split: Split) -> Generator[None]:
    """Train as PyG's examples do, one epoch at each step."""
    graphs: list[Data] = [graph.clone() for graph in data.to_pyg()]
    train, valid, test = (
        DataLoader([graphs[i] for i in part.tolist()], SPEC.batch_size, shuffle=shuffle)
        for part, shuffle in ((split.train, True), (split.valid, False), (split.test, False))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=SPEC.lr, weight_decay=SPEC.weight_decay)
    while True:
        model.train()
        for batch in train:
            optimizer.zero_grad()
            loss = cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), SPEC.clip)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for loader in (valid, test):
                for batch in loader:
                    model(batch.x, batch.edge_index, batch.batch).argmax(1).eq(batch.y).sum().item()
        yield


if __name__ == "__main__":
    main()
