"""SortPool: sort the nodes of each graph, then apply 1D convolutions.

Zhang, Cui, Neumann, Chen: "An End-to-End Deep Learning Architecture for Graph Classification"
(DGCNN), AAAI 2018.
"""

from torch import Tensor, nn
from torch.nn.functional import max_pool1d

from gtpool.graph import check_count
from gtpool.nn import Linear
from gtpool.ops.backend import Backend
from gtpool.ops.runs import linear


class SortPool(nn.Module):
    r"""Read-out by two 1D convolutions over the k highest nodes of each graph, in sorted order.

    .. math::
        Z &= X_{\pi(1), \ldots, \pi(k)}, \quad \pi \text{ descending by the last channel} \\
        H &= \mathrm{relu}(Z \Theta + b) \\
        h_g &= \mathrm{vec}(\mathrm{relu}(\mathrm{conv}(\mathrm{maxpool}_2(H))))

    Ties in the last channel are broken by the channel before it, and so on. The result is therefore
    invariant to node order. Graphs of fewer than k nodes are padded with zeros.

    Args:
        in_channels: Width D of the node features.
        nodes: Nodes k read per graph. Values below twice the kernel are raised to it, so that the
            second convolution fits.
        filters: Channels of the two convolutions.
        kernel: Width of the second convolution.

    Differs from the paper:
        - The first convolution spans one node with that stride, so it is written as a linear map of
          each node.
        - The order uses the given features. The paper's network concatenates the outputs of its
          layers; the last has a single channel.
        - The authors' code and PyG's ``SortAggregation`` do not break ties in the last channel.
          After a ReLU that channel is zero for many nodes, and the node order decides. PyG also
          marks padding by the batch minimum minus 1. This rounds to the minimum itself below -256
          in bf16 (-2**24 in float32), and real values are then read as padding.

    Example:
        >>> import torch
        >>> from gtpool.ops.packed import PackedGraph
        >>> graph = PackedGraph.of(torch.tensor([[0], [1]]), torch.tensor([0, 0, 0, 1]))
        >>> SortPool(8, nodes=12)(torch.randn(4, 8), graph).shape
        torch.Size([2, 64])
    """

    def __init__(
        self,
        in_channels: int,
        nodes: int,
        *,
        filters: tuple[int, int] = (16, 32),
        kernel: int = 5,
    ) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_count("nodes", nodes)
        check_count("kernel", kernel)
        for count in filters:
            check_count("each of filters", count)
        first, second = filters
        self.in_channels, self.nodes = in_channels, max(2 * kernel, nodes)
        self.filters, self.kernel = (first, second), kernel
        self.out_channels = second * (self.nodes // 2 - kernel + 1)
        self.each = Linear(in_channels, first)
        self.along = nn.Conv1d(first, second, kernel)

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        self.each.reset_parameters()
        self.along.reset_parameters()

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Return one vector per graph, [N, D] -> [G, out_channels]; edges are ignored."""
        h = self.each(graph.rows.topk_rows(x, self.nodes)).relu()  # [G, k, filters[0]]
        h = max_pool1d(h.mT, 2)
        windows = h.unfold(2, self.kernel, 1).transpose(1, 2)  # [G, places, filters[0], kernel]
        h = linear(windows.flatten(2), self.along.weight.flatten(-2), self.along.bias)
        return h.relu().mT.flatten(1)

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, nodes={self.nodes}, "
            f"filters={self.filters}, kernel={self.kernel})"
        )
