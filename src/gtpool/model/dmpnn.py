"""D-MPNN: messages on directed edges."""

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from gtpool.model.encoder import CategoryEncoder, EdgeEncoder
from gtpool.nn import Linear, with_edge_mask
from gtpool.ops.backend import Backend
from gtpool.spec import ShapeSpec


class DMPNN(MessagePassing):
    r"""Yang et al.'s convolution (arXiv 1904.01561): no message returns along its own edge.

    .. math:: h^0_{ij} &= relu(W_i [x_i, e_{ij}]) \\
        m_{ij} &= \sum_{k \in N(i) \setminus j} h^t_{ki} \\
        h^{t+1}_{ij} &= relu(h^0_{ij} + W_m m_{ij}) \\
        x_i' &= W_a [x_i, \sum_{k \in N(i)} h^T_{ki}] + b

    An edge without a reverse edge has nothing to leave out; of repeated edges all are left out.

    Args:
        in_channels: Width of the nodes before.
        out_channels: Width of the edges, and of the nodes after.
        shape: What the data looks like; edge features are codes, numbers or absent.
        steps: Number T of updates.

    Differs from the paper:
        the ReLU of the nodes is that of ``ConvBlock``, after the norm.
    """

    def __init__(
        self, in_channels: int, out_channels: int, shape: ShapeSpec, *, steps: int = 3
    ) -> None:
        super().__init__(aggr="add")  # a layer of PyG's for its Explainer alone
        self.steps = steps
        self.source = Linear(in_channels, out_channels, bias=False)
        self.edges: nn.Module | None = None
        if shape.edge_categories:
            self.edges = CategoryEncoder(shape.edge_categories, out_channels)
        elif shape.edge_width:
            self.edges = EdgeEncoder(shape.edge_width, out_channels, bias=False)
        self.message_map = Linear(out_channels, out_channels, bias=False)
        self.node = Linear(in_channels + out_channels, out_channels)

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Convolve, [N, in] -> [N, out]."""
        graph = with_edge_mask(self, graph)
        edges = graph.directed_edges()
        first = edges.from_sources(self.source(x))
        if self.edges is not None:
            first = first + graph.encode_edges(self.edges)
        h = first = first.relu()
        for _ in range(self.steps):
            h = (first + self.message_map(edges.total_before(h))).relu()
        return self.node(torch.cat([x, edges.total(h)], 1))
