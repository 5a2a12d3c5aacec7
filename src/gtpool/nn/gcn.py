"""Kipf and Welling's convolution with the weights of PyG's ``GCNConv``."""

from typing import TypeVar, cast

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv, MessagePassing

from gtpool.ops.backend import Backend
from gtpool.ops.runs import linear, per_run

_Graph = TypeVar("_Graph", bound=Backend)


def gcn(conv: GCNConv, x: Tensor, graph: Backend) -> Tensor:
    """Convolve without weights of edges, over the narrower of input and output.

    Args:
        conv: Holds the weights, [out, in] and [out], or those of R runs.
        x: Node features, [N, in].
        graph: The graphs of the batch.
    """
    graph = masked(conv, graph)
    weight, bias = conv.lin.weight, conv.bias
    if conv.in_channels <= conv.out_channels:
        return linear(graph.gcn_sum(x), weight, bias)
    return per_run(torch.add, graph.gcn_sum(linear(x, weight)), bias)


def masked(conv: MessagePassing, graph: _Graph) -> _Graph:
    """Scale what edges carry as PyG's ``Explainer`` asks of a layer, if it does."""
    if not conv.explain:
        return graph
    mask, sigmoid = (getattr(conv, name) for name in ("_edge_mask", "_apply_sigmoid"))
    return cast("_Graph", graph.explained(mask.sigmoid() if sigmoid else mask))
