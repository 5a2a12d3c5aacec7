"""SortPool: set the nodes of each graph in one order and read them by convolutions.

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
    r"""The k highest nodes of each graph, as a sequence under two one-dimensional convolutions.

    .. math::
        Z &= X_{\pi(1), \ldots, \pi(k)}, \quad \pi \text{ descending by the last channel} \\
        H &= \mathrm{relu}(Z \Theta + b) \\
        h_g &= \mathrm{vec}(\mathrm{relu}(\mathrm{conv}(\mathrm{maxpool}_2(H))))

    Nodes equal in the last channel are ordered by the one before it, and so on; graphs of fewer
    than k nodes end in rows of zeros. So the numbering of the nodes never matters.

    Args:
        in_channels: Width D of the node features.
        nodes: Nodes k read of each graph, at least twice the kernel, else the second convolution
            would not fit; a lower number is raised to that.
        filters: Channels of the two convolutions.
        kernel: Width of the second convolution.

    Differs from the paper:
        - The first convolution, as wide as a node and with that stride, is one linear map of every
          node, and written as one.
        - The order uses the given features; the paper's network concatenates the outputs of its
          layers and makes the last one a single channel.
        - The authors' code and PyG's ``SortAggregation`` leave ties in the last channel to the
          sort. After a ReLU that channel is zero for many nodes, and their numbering decides. PyG
          also marks padding by the lowest value of the batch less one, which can be that value
          again in bf16 from -256 on (in float32 from -2**24): it is then read as zero.

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
        """Draw all parameters anew."""
        self.each.reset_parameters()
        self.along.reset_parameters()

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Read out each graph, [N, D] -> [G, out_channels]; edges do not enter."""
        h = self.each(graph.rows.topk_rows(x, self.nodes)).relu()  # [G, k, filters[0]]
        h = max_pool1d(h.mT, 2)
        windows = h.unfold(2, self.kernel, 1).transpose(1, 2)  # [G, places, filters[0], kernel]
        h = linear(windows.flatten(2), self.along.weight.flatten(-2), self.along.bias)
        return h.relu().mT.flatten(1)

    def __repr__(self) -> str:
        """Name the class, the width and the choices that change the result."""
        return (
            f"{type(self).__name__}({self.in_channels}, nodes={self.nodes}, "
            f"filters={self.filters}, kernel={self.kernel})"
        )
