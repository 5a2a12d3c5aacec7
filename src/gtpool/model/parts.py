"""What a classifier is made of: encoders of nodes and edges, convolution blocks, the head."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, GINEConv, MessagePassing

from gtpool.nn.gcn import gcn, masked
from gtpool.nn.linear import BatchNorm, Identity, LayerNorm, Linear
from gtpool.ops.backend import Backend
from gtpool.ops.bag import look_up
from gtpool.ops.dropout import Dropout
from gtpool.ops.packed import PackedGraph
from gtpool.ops.runs import linear, per_run
from gtpool.spec import ModelSpec, ShapeSpec


class CategoryEncoder(nn.Module):
    """Sum of one embedding a column of codes, [N, F] -> [N, D], as OGB encodes atoms and bonds."""

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.table = nn.Embedding(sum(sizes), width)
        first = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.first: Tensor
        self.register_buffer("first", first, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embeddings anew, each column's table as a matrix of its own."""
        with torch.no_grad():
            for part in self.table.weight.split(self.sizes):
                nn.init.xavier_uniform_(part)

    def forward(self, codes: Tensor) -> Tensor:
        """Encode each row of codes."""
        codes = codes + self.first
        plain = codes.device.type == "cpu" and not torch.compiler.is_compiling()
        return look_up(self.table.weight, codes) if plain else self.table(codes).sum(1)

    def of_one_hot(self, x: Tensor) -> Tensor:
        """Encode rows that have a one for each code, a column a code, [N, codes] -> [N, D]."""
        return linear(x.to(self.table.weight.dtype), self.table.weight.mT)


class EdgeEncoder(Linear):
    """A linear map of edge features, given as any numbers."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Linear's name
        """Map edges, [E, in] -> [E, out]."""
        return super().forward(input.to(self.weight.dtype))


class GCN(nn.Module):
    """Kipf and Welling's convolution; a weight of edges enters, other edge features do not."""

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__()
        self.weighted = shape.edge_weighted
        self.conv = GCNConv(in_channels, out_channels)

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        if not self.weighted:
            return gcn(self.conv, x, graph)
        mapped = linear(x, self.conv.lin.weight)
        return per_run(torch.add, masked(self.conv, graph).weighted_gcn_sum(mapped), self.conv.bias)


class CoarseGCN(nn.Module):
    """Kipf and Welling's convolution of clusters: the weight of an edge counts, and I is added.

    PyG's own adds a loop only where there is none; here loops hold what is inside a cluster.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = GCNConv(in_channels, out_channels, add_self_loops=False)

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        mapped = linear(x, self.conv.lin.weight)
        return per_run(torch.add, graph.coarse_gcn_sum(mapped), self.conv.bias)


class GIN(nn.Module):
    """Xu et al.'s convolution: a two-layer network of a node plus the sum of its neighbours."""

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__()
        del shape  # edges enter by their presence alone
        self.conv = GINConv(_gin_network(in_channels, out_channels))

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        return _gin(self.conv, masked(self.conv, graph).gin_sum(x), graph)


class GINE(nn.Module):
    """GIN with edge features: what a neighbour sends is relu(x_j + e_ij), e the encoded edge."""

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
        summed = masked(self.conv, graph).bond_sum(x, self.edges, None, scaled=False)
        return _gin(self.conv, summed, graph)


class GAT(nn.Module):
    """Velickovic et al.'s convolution, four heads side by side."""

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__()
        del shape
        self.conv = GATConv(in_channels, out_channels // 4, heads=4)

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        conv = self.conv
        if conv._message_forward_hooks and isinstance(graph, PackedGraph):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            return conv(x, graph.edge_index)  # for PyG's AttentionExplainer, which listens there
        by_head = linear(x, cast("nn.Linear", conv.lin).weight).unflatten(
            1, conv.att_src.shape[-2:]
        )
        sent, got = (
            per_run(torch.mul, by_head, vector.squeeze(-3), 2).sum(2)
            for vector in (conv.att_src, conv.att_dst)
        )
        out = masked(conv, graph).gat_sum(by_head, sent, got).flatten(1)
        return per_run(torch.add, out, conv.bias)


class OgbGCN(MessagePassing):
    """OGB's graph convolution with bond features.

    .. math:: x_i' = relu(Wx_i + r) / d_i + sum_j relu(Wx_j + e_ij) / sqrt(d_i d_j)

    with d the degree plus one, r a learned vector and e the encoded bond.
    """

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__(aggr="add")  # a layer of PyG's for its Explainer alone
        if not shape.edge_categories:
            raise ValueError("conv 'ogb-gcn' needs molecules with coded bonds; choose conv 'gcn'")
        self.linear = Linear(in_channels, out_channels)
        self.root = nn.Parameter(torch.zeros(out_channels))
        self.bonds = CategoryEncoder(shape.edge_categories, out_channels)

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        return masked(self, graph).bond_sum(self.linear(x), self.bonds, self.root, scaled=True)


class PerNode(nn.Module):
    """A linear map of each node alone, blind to edges."""

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
    "linear": PerNode,
}
COARSE_CONVS: dict[str, Callable[[int, int], nn.Module]] = {
    "gcn": CoarseGCN,
    "ogb-gcn": CoarseGCN,
    "linear": PerNode,
}
"""What a convolution becomes where nodes are clusters, and edges have weights."""
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda _: Identity(),
    "batch": BatchNorm,
    "layer": LayerNorm,
}


class Block(nn.Module):
    """A convolution, its norm and ReLU, with the input added where asked and widths agree."""

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

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Convolve, [N, in] -> [N, width]."""
        out = self.norm(self.conv(x, graph), graph.rows).relu()
        return out + x if self.residual else out


def check_codes(name: str, codes: object, sizes: Sequence[int]) -> None:
    """Raise a ValueError unless ``codes`` is an int64 matrix of codes below ``sizes``, by column.

    A code too high would be looked up in the table of the next column.
    """
    columns = len(sizes)
    if not isinstance(codes, Tensor) or codes.dtype != torch.long or codes.shape[1:] != (columns,):
        raise ValueError(f"{name} must be int64 codes of categories in {columns} columns")
    wrong = (codes < 0) | (codes >= torch.tensor(sizes, device=codes.device))
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name}[{row}, {column}] is {int(codes[row, column])}, "
            f"but the codes of that column are 0 to {sizes[column] - 1}"
        )


def _gin_network(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        Linear(in_channels, out_channels),
        nn.ReLU(),
        Linear(out_channels, out_channels),
        nn.ReLU(),
        BatchNorm(out_channels),
    )


def _gin(conv: GINConv | GINEConv, x: Tensor, graph: Backend) -> Tensor:
    """Run the network of a GIN on a node plus the sum of its neighbours."""
    *maps, norm = cast("nn.Sequential", conv.nn)
    for part in maps:
        x = part(x)
    return norm(x, graph.rows)


def head(in_channels: int, width: int, outputs: int, dropout: float) -> nn.Sequential:
    """Three linear maps, in -> D -> D/2 -> outputs, with ReLU and dropout between them."""
    return nn.Sequential(
        Linear(in_channels, width),
        nn.ReLU(),
        Dropout(dropout),
        Linear(width, width // 2),
        nn.ReLU(),
        Dropout(dropout),
        Linear(width // 2, outputs),
    )
