"""Edges that are left after each pooling step, and kept nodes without any."""

from typing import NamedTuple

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.explain.trace import frozen_copy, trace_pooling
from gtpool.model.predictor import Predictor, member_inputs, members_of


class LevelEdges(NamedTuple):
    """Nodes and edges of some graphs before or after a pooling step."""

    nodes: int
    pairs: int
    """Pairs of different nodes that an edge joins, in either direction."""
    lone: int
    """Nodes that are in no such pair."""

    @property
    def isolated(self) -> float:
        """Share of the nodes that no edge joins to another."""
        return self.lone / max(self.nodes, 1)


def count_edges(edge_index: Tensor, nodes: int) -> LevelEdges:
    """Count the joined pairs and the isolated nodes of a batch.

    Example:
        >>> count_edges(torch.tensor([[0, 1, 2], [1, 0, 2]]), 3)
        LevelEdges(nodes=3, pairs=1, lone=1)
    """
    low, high = edge_index.amin(0), edge_index.amax(0)
    pairs = (low * nodes + high)[low != high].unique()
    joined = torch.cat([pairs.div(max(nodes, 1), rounding_mode="floor"), pairs % max(nodes, 1)])
    return LevelEdges(nodes, pairs.numel(), nodes - joined.unique().numel())


def connectivity(
    model: Predictor, data: GraphDataset, *, batch_size: int = 128
) -> tuple[LevelEdges, ...]:
    """Return the edges of all graphs of a dataset: in the input, then after each pooling step.

    Of an ensemble, the steps are those of its first member.

    Args:
        model: A network whose pooler drops nodes, on the device of ``data``.
        data: Graphs with the features that the model was trained on.
        batch_size: Graphs per batch.

    Example:
        >>> from gtpool.data.sources import load
        >>> from gtpool.model.classifier import Classifier
        >>> from gtpool.spec import ModelSpec, ShapeSpec
        >>> model = Classifier(ModelSpec(width=8), ShapeSpec(outputs=2, node_width=7))
        >>> [level.nodes for level in connectivity(model, load("MUTAG"))]
        [3371, 1738, 910, 503]
    """
    if not model.ratios:
        raise ValueError(
            f"pool {model.spec.pool!r} drops no nodes, so there are no levels to count"
        )
    first = frozen_copy(members_of(model)[0])
    total = torch.zeros(len(model.ratios) + 1, 3, dtype=torch.long)
    for part in torch.arange(len(data)).split(batch_size):
        graphs = data.take(part)
        steps = trace_pooling(first, member_inputs(model, graphs, 0))[1]
        levels = [
            (graphs.edge_index, graphs.x),
            *((step.out.edge_index, step.out.x) for step in steps),
        ]
        total += torch.tensor([count_edges(edges, x.size(0)) for edges, x in levels])
    return tuple(LevelEdges(*row) for row in total.tolist())
