"""Convolutions by name, and the block around one: norm, ReLU, dropout, residual, FFN."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, GINEConv, MessagePassing

from gtpool.model.dmpnn import DMPNN
from gtpool.model.encoder import CategoryEncoder, EdgeEncoder
from gtpool.nn import (
    BatchNorm,
    Identity,
    LayerNorm,
    Linear,
    Sequential,
    add_and_apply,
    apply_layers,
    gcn,
    norm_relu,
    with_edge_mask,
)
from gtpool.ops.backend import Backend
from gtpool.ops.dropout import Dropout
from gtpool.ops.packed import PackedGraph
from gtpool.ops.runs import add_bias, linear, per_run
from gtpool.spec import ModelSpec, ShapeSpec


class GCN(nn.Module):
    """Kipf and Welling's convolution, with edge weights but without other edge features."""

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__()
        self.weighted = shape.edge_weighted
        self.conv = GCNConv(in_channels, out_channels)

    def forward(self, x: Tensor, graph: Backend, layers: Sequence[nn.Module] = ()) -> Tensor:
        """Convolve and apply layers, [N, in] -> [N, out]."""
        if not self.weighted:
            return gcn(self.conv, x, graph, layers)
        mapped = linear(x, self.conv.lin.weight)
        summed = with_edge_mask(self.conv, graph).weighted_gcn_sum(mapped)
        return add_and_apply(summed, self.conv.bias, layers)


class CoarseGCN(nn.Module):
    """Kipf and Welling's convolution of clusters, with edge weights, on A + I.

    PyG's ``GCNConv`` adds a self-loop only to nodes without one. Here existing self-loops carry the
    edges inside a cluster, so every node gets another one.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = GCNConv(in_channels, out_channels, add_self_loops=False)

    def forward(self, x: Tensor, graph: Backend, layers: Sequence[nn.Module] = ()) -> Tensor:
        """Convolve and apply layers, [N, in] -> [N, out]."""
        mapped = linear(x, self.conv.lin.weight)
        return add_and_apply(graph.coarse_gcn_sum(mapped), self.conv.bias, layers)


class GIN(nn.Module):
    """Xu et al.'s convolution: a two-layer MLP of a node plus the sum of its neighbours."""

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__()
        del shape  # GIN does not read edge features
        self.conv = GINConv(_gin_network(in_channels, out_channels))

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        return _gin(self.conv, with_edge_mask(self.conv, graph).gin_sum(x), graph)


class GINE(nn.Module):
    """GIN with edge features: messages are relu(x_j + e_ij) with the encoded edge e_ij."""

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__()
        if shape.edge_categories:
            self.edges = CategoryEncoder(shape.edge_categories, in_channels)
        elif shape.edge_width:
            self.edges = EdgeEncoder(shape.edge_width, in_channels)
        else:
            raise ValueError("conv 'gine' needs edge features; choose conv 'gin'")
        self.conv = GINEConv(_gin_network(in_channels, out_channels))

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        summed = with_edge_mask(self.conv, graph).bond_sum(x, self.edges, None, scaled=False)
        return _gin(self.conv, summed, graph)


class GAT(nn.Module):
    """Velickovic et al.'s convolution with four concatenated heads."""

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__()
        del shape
        self.conv = GATConv(in_channels, out_channels // 4, heads=4)

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        conv = self.conv
        if conv._message_forward_hooks and isinstance(graph, PackedGraph):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            return conv(x, graph.edge_index)  # PyG's AttentionExplainer hooks into GATConv
        by_head = linear(x, cast("nn.Linear", conv.lin).weight).unflatten(
            1, conv.att_src.shape[-2:]
        )
        sent, got = (
            per_run(torch.mul, by_head, vector.squeeze(-3), 2).sum(2)
            for vector in (conv.att_src, conv.att_dst)
        )
        out = with_edge_mask(conv, graph).gat_sum(by_head, sent, got).flatten(1)
        return add_bias(out, conv.bias)


class OgbGCN(MessagePassing):
    """OGB's graph convolution with bond features.

    .. math:: x_i' = relu(Wx_i + r) / d_i + sum_j relu(Wx_j + e_ij) / sqrt(d_i d_j)

    with d the degree plus one, r a learned vector and e the encoded bond.
    """

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__(aggr="add")  # a MessagePassing only for PyG's Explainer
        if not shape.edge_categories:
            raise ValueError("conv 'ogb-gcn' needs molecules with coded bonds; choose conv 'gcn'")
        self.linear = Linear(in_channels, out_channels)
        self.root = nn.Parameter(torch.zeros(out_channels))
        self.bonds = CategoryEncoder(shape.edge_categories, out_channels)

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        return with_edge_mask(self, graph).bond_sum(
            self.linear(x), self.bonds, self.root, scaled=True
        )


class PerNode(nn.Module):
    """Linear map of each node; ignores edges."""

    def __init__(self, in_channels: int, out_channels: int, _: object = None) -> None:
        super().__init__()
        self.linear = Linear(in_channels, out_channels)

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Map, [N, in] -> [N, out]."""
        del graph
        return self.linear(x)


CONVS: dict[str, Callable[[int, int, ShapeSpec], nn.Module]] = {
    "gcn": GCN,
    "gin": GIN,
    "gat": GAT,
    "ogb-gcn": OgbGCN,
    "gine": GINE,
    "dmpnn": DMPNN,
    "linear": PerNode,
}
COARSE_CONVS: dict[str, Callable[[int, int], nn.Module]] = {
    "gcn": CoarseGCN,
    "ogb-gcn": CoarseGCN,
    "linear": PerNode,
}
"""Counterpart of each convolution on clusters with weighted edges."""
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda _: Identity(),
    "batch": BatchNorm,
    "layer": LayerNorm,
}


_RELU = nn.ReLU()


def make_dropout(p: float) -> nn.Module:
    """Return dropout by key; no layer without a share, as the key of a layer is its number."""
    return Dropout(p) if p else nn.Identity()


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them, added to the input, then a norm.

    .. math:: x' = norm(x + W_2 relu(W_1 x))
    """

    def __init__(self, width: int, norm: str, dropout: float) -> None:
        super().__init__()
        self.network = Sequential(
            Linear(width, 2 * width),
            nn.ReLU(),
            make_dropout(dropout),
            Linear(2 * width, width),
            make_dropout(dropout),
        )
        self.norm = NORMS[norm](width)

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Map each row, [N, width]."""
        return self.norm(self.network(x, x), graph.rows)


class ConvBlock(nn.Module):
    """A convolution with norm, ReLU, dropout, residual connection and feed-forward network.

    The input is added where ``residual`` asks for it and the widths agree.
    """

    def __init__(
        self,
        spec: ModelSpec,
        shape: ShapeSpec,
        in_channels: int,
        *,
        coarse: bool = False,
    ) -> None:
        super().__init__()
        if coarse:
            self.conv = COARSE_CONVS[spec.conv](in_channels, spec.width)
        else:
            self.conv = CONVS[spec.conv](in_channels, spec.width, shape)
        self.norm = NORMS[spec.norm](spec.width)
        self.residual = spec.residual and in_channels == spec.width
        self.dropout = make_dropout(spec.block_dropout)
        self.ffn = FeedForward(spec.width, spec.norm, spec.block_dropout) if spec.ffn else None

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Convolve, [N, in] -> [N, width]."""
        rows = graph.rows
        if isinstance(self.norm, Identity) and isinstance(self.conv, GCN | CoarseGCN):
            out = self.conv(x, graph, (_RELU, self.dropout))
            out = out + x if self.residual else out
        elif self.residual and isinstance(self.dropout, nn.Identity):
            out = norm_relu(self.norm, self.conv(x, graph), rows, x)
        else:
            out = self.dropout(norm_relu(self.norm, self.conv(x, graph), rows))
            out = out + x if self.residual else out
        return out if self.ffn is None else self.ffn(out, graph)


def _gin_network(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        Linear(in_channels, out_channels),
        nn.ReLU(),
        Linear(out_channels, out_channels),
        nn.ReLU(),
        BatchNorm(out_channels),
    )


def _gin(conv: GINConv | GINEConv, x: Tensor, graph: Backend) -> Tensor:
    """Apply the MLP of a GIN to the sum of a node and its neighbours."""
    *maps, norm = cast("nn.Sequential", conv.nn)
    return norm(apply_layers(maps, x), graph.rows)
