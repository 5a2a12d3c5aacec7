"""Baselines of the paper's tables, built from PyG's layers."""

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    ASAPooling,
    GCNConv,
    GraphMultisetTransformer,
    SAGPooling,
    TopKPooling,
    global_max_pool,
    global_mean_pool,
)

from gtpool.bench.paper_speed import BASELINES
from gtpool.graph import PackedBatch
from gtpool.model.encoder import CategoryEncoder
from gtpool.spec import ShapeSpec

RATIO, LEVELS = 0.5, 3


class PyGBaseline(nn.Module):
    """Three GCN layers and a PyG pooler, called with a PyG batch.

    A node-dropping pooler follows each convolution, and the max and mean read-outs of all levels
    are summed (SAGPool's hierarchical network). GMT reads out once after the last convolution, with
    half as many seeds as nodes of a graph. Coded atoms use gtpool's encoder.

    Args:
        name: One of ``BASELINES``.
        shape: Sizes fixed by the data.
        width: Channels D.

    Example:
        >>> rival = PyGBaseline("SAGPool_h", ShapeSpec(outputs=2, node_width=7), 16)
        >>> edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> rival(torch.randn(3, 7), edges, torch.zeros(3, dtype=torch.long)).shape
        torch.Size([1, 2])
    """

    ratios: tuple[float, ...] = ()
    coarsening = None

    def __init__(self, name: str, shape: ShapeSpec, width: int) -> None:
        super().__init__()
        if name not in BASELINES:
            raise ValueError(f"no rival {name!r}; there are {', '.join(BASELINES)}")
        coded = shape.node_categories
        self.encoder = CategoryEncoder(coded, width) if coded else nn.Identity()
        enter = (width if coded else shape.node_width, *[width] * (LEVELS - 1))
        self.convs = nn.ModuleList(GCNConv(channels, width) for channels in enter)
        drop = _DROPPING.get(name)
        self.pools = nn.ModuleList(drop(width) for _ in enter) if drop else None
        seeds = max(1, math.ceil(RATIO * shape.mean_nodes))
        self.read = None if drop else GraphMultisetTransformer(width, seeds)
        self.head = nn.Sequential(
            nn.Linear(2 * width if drop else width, width),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(width, width // 2),
            nn.ReLU(),
            nn.Linear(width // 2, shape.outputs),
        )
        self.shift: Tensor
        self.scale: Tensor
        self.register_buffer("shift", torch.zeros(shape.outputs))
        self.register_buffer("scale", torch.ones(shape.outputs))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Return the logits, [G, outputs]."""
        x = self.encoder(x)
        reads: list[Tensor] = []
        for level, conv in enumerate(self.convs):
            x = conv(x, edge_index).relu()
            if self.pools is not None:
                x, edge_index, _, batch, *_ = self.pools[level](x, edge_index, batch=batch)
                reads.append(torch.cat([global_max_pool(x, batch), global_mean_pool(x, batch)], 1))
        read = torch.stack(reads).sum(0) if self.read is None else self.read(x, batch)
        return self.head(read)

    def classify(self, graphs: PackedBatch) -> Tensor:
        """Return the logits of a ``PackedBatch``."""
        return self(graphs.x, graphs.edge_index, graphs.batch)

    def learn(self, graphs: PackedBatch) -> tuple[Tensor, None]:
        """Return the logits and None, because there is no auxiliary loss."""
        return self.classify(graphs), None


_DROPPING: dict[str, Callable[[int], nn.Module]] = {
    "SAGPool_h": lambda width: SAGPooling(width, RATIO),
    "TopKPool": lambda width: TopKPooling(width, RATIO),
    "ASAP": lambda width: ASAPooling(width, RATIO),
}


def ignore_asap_warnings() -> None:
    """Suppress torch's warning about the sparse matrices of PyG's ASAP."""
    warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)", UserWarning)
