"""What a classifier is made of: encoders of nodes and edges, convolution blocks, the head."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch_geometric.nn import GATConv, GCNConv, GINConv, GINEConv, MessagePassing
from torch_geometric.utils import degree

from gtpool.ops.bag import look_up, smooth
from gtpool.ops.dropout import Dropout
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


class GCN(nn.Module):
    """Kipf and Welling's convolution; a weight of edges enters, other edge features do not."""

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__()
        self.weighted = shape.edge_weighted
        self.conv = GCNConv(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        if not self.weighted:
            return self.conv(x, edge_index) if self._needs_pyg(x) else self._convolve(x, edge_index)
        if edge_attr is None:
            raise ValueError("the model was made for weighted edges, and there are no edge_attr")
        return self.conv(x, edge_index, edge_attr[:, 0])

    def _needs_pyg(self, x: Tensor) -> bool:
        """Say where PyG's own way is wanted: to explain, compile, on a GPU, in short floats."""
        exact = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
        plain = exact and x.device.type == "cpu" and not torch.compiler.is_compiling()
        return bool(self.conv.explain) or not plain

    def _convolve(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Do what PyG's does in a few passes, over the narrower of input and output."""
        weight, bias = self.conv.lin.weight, self.conv.bias
        if self.conv.in_channels <= self.conv.out_channels:
            return linear(smooth(x, edge_index), weight, bias)
        return smooth(linear(x, weight), edge_index) + bias


class CoarseGCN(nn.Module):
    """Kipf and Welling's convolution of clusters: the weight of an edge counts, and I is added.

    PyG's own adds a loop only where there is none; here loops hold what is inside a cluster. Where
    each graph has the same number of clusters, all joined in order, a matrix product does it.
    """

    def __init__(self, in_channels: int, out_channels: int, clusters: int | None = None) -> None:
        super().__init__()
        self.conv = GCNConv(in_channels, out_channels, add_self_loops=False)
        self.clusters = clusters

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        if self.clusters is not None:
            count = self.clusters
            weight = edge_attr.view(-1, count, count)
            weight = weight + torch.eye(count, dtype=weight.dtype, device=weight.device)
            scale = weight.sum(1).rsqrt().unsqueeze(2)  # of what comes in
            sent = scale * self.conv.lin(x).view(-1, count, self.conv.out_channels)
            return (scale * (weight.transpose(1, 2) @ sent)).flatten(0, 1) + self.conv.bias
        loops = torch.arange(x.size(0), device=x.device).expand(2, -1)
        weight = torch.cat([edge_attr[:, 0], x.new_ones(x.size(0))])
        return self.conv(x, torch.cat([edge_index, loops], 1), weight)


class GIN(nn.Module):
    """Xu et al.'s convolution: a two-layer network of a node plus the sum of its neighbours."""

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__()
        del shape  # edges enter by their presence alone
        self.conv = GINConv(_gin_network(in_channels, out_channels))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        del edge_attr
        return self.conv(x, edge_index)


class GINE(nn.Module):
    """GIN with edge features: what a neighbour sends is relu(x_j + e_ij), e the encoded edge."""

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__()
        if shape.edge_categories:
            self.edges = CategoryEncoder(shape.edge_categories, in_channels)
        elif shape.edge_width:
            self.edges = nn.Linear(shape.edge_width, in_channels)
        else:
            raise ValueError("conv 'gine' needs edge features; choose conv 'gin'")
        self.conv = GINEConv(_gin_network(in_channels, out_channels))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        if isinstance(self.edges, nn.Linear):
            edge_attr = edge_attr.to(x.dtype)
        return self.conv(x, edge_index, self.edges(edge_attr))


class GAT(nn.Module):
    """Velickovic et al.'s convolution, four heads side by side."""

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__()
        del shape
        self.conv = GATConv(in_channels, out_channels // 4, heads=4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        del edge_attr
        return self.conv(x, edge_index)


class OgbGCN(MessagePassing):
    """OGB's graph convolution with bond features.

    .. math:: x_i' = relu(Wx_i + r) / d_i + sum_j relu(Wx_j + e_ij) / sqrt(d_i d_j)

    with d the degree plus one, r a learned vector and e the encoded bond.
    """

    def __init__(self, in_channels: int, out_channels: int, shape: ShapeSpec) -> None:
        super().__init__(aggr="add")
        if not shape.edge_categories:
            raise ValueError("conv 'ogb-gcn' needs molecules with coded bonds; choose conv 'gcn'")
        self.linear = nn.Linear(in_channels, out_channels)
        self.root = nn.Parameter(torch.zeros(out_channels))
        self.bonds = CategoryEncoder(shape.edge_categories, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        x = self.linear(x)
        deg = degree(edge_index[0], x.size(0), x.dtype) + 1
        inverse = deg.rsqrt()
        norm = inverse.index_select(0, edge_index[0]) * inverse.index_select(0, edge_index[1])
        bonds = self.bonds(edge_attr)
        own = (x + self.root).relu() / deg[:, None]
        return self.propagate(edge_index, x=x, bonds=bonds, norm=norm) + own

    def message(self, x_j: Tensor, bonds: Tensor, norm: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Send a neighbour through its bond."""
        return norm[:, None] * (x_j + bonds).relu()


class PerNode(nn.Module):
    """A linear map of each node alone, blind to edges."""

    def __init__(self, in_channels: int, out_channels: int, _: object = None) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """Map, [N, in] -> [N, out]."""
        del edge_index, edge_attr
        return self.linear(x)


CONVS: dict[str, Callable[[int, int, ShapeSpec], nn.Module]] = {
    "gcn": GCN,
    "gin": GIN,
    "gat": GAT,
    "ogb-gcn": OgbGCN,
    "gine": GINE,
    "linear": PerNode,
}
COARSE_CONVS: dict[str, Callable[[int, int, int | None], nn.Module]] = {
    "gcn": CoarseGCN,
    "ogb-gcn": CoarseGCN,
    "linear": PerNode,
}
"""What a convolution becomes where nodes are clusters, so many a graph, and edges have weights."""
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda _: nn.Identity(),
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
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
        clusters: int | None = None,
    ) -> None:
        super().__init__()
        if coarse:
            self.conv = COARSE_CONVS[spec.conv](in_channels, spec.width, clusters)
        else:
            self.conv = CONVS[spec.conv](in_channels, spec.width, shape)
        self.norm = NORMS[spec.norm](spec.width)
        self.residual = spec.residual and in_channels == spec.width

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """Convolve, [N, in] -> [N, width]."""
        out = self.norm(self.conv(x, edge_index, edge_attr)).relu()
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
        nn.Linear(in_channels, out_channels),
        nn.ReLU(),
        nn.Linear(out_channels, out_channels),
        nn.ReLU(),
        nn.BatchNorm1d(out_channels),
    )


def head(in_channels: int, width: int, outputs: int, dropout: float) -> nn.Sequential:
    """Three linear maps, in -> D -> D/2 -> outputs, with ReLU and dropout between them."""
    return nn.Sequential(
        nn.Linear(in_channels, width),
        nn.ReLU(),
        Dropout(dropout),
        nn.Linear(width, width // 2),
        nn.ReLU(),
        Dropout(dropout),
        nn.Linear(width // 2, outputs),
    )
