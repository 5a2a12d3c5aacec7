"""MaxCutPool: node dropping by the scores of a network that is trained to cut edges.

Abate, Bianchi: "MaxCutPool: Differentiable Feature-Aware Maxcut for Pooling in Graph Neural
Networks", ICLR 2025, arXiv 2409.05100.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from gtpool.graph import check_count
from gtpool.nn import Linear
from gtpool.ops.adjacency import Adjacency
from gtpool.ops.backend import Backend
from gtpool.ops.merge import at_least_float32
from gtpool.ops.sample import NODE_ORDERS, SAMPLERS, Order, check_choice, check_ratio
from gtpool.pool.layer import Dropped, DropPool, drop_and_scale
from gtpool.spec import Connect


class MaxCutPool(DropPool):
    r"""Node-dropping pooling that keeps one side of a maximum cut, learned from features.

    .. math::
        H^0 &= X W_0 + b_0, \qquad
        H^{\ell + 1} = \tanh(P H^\ell W_\ell + b_\ell), \quad
        P = I - \delta L = (1 - \delta) I + \delta D^{-1/2} A D^{-1/2} \\
        Z   &= \tanh(z), \quad z = \mathrm{MLP}(H) \\
        idx &= \mathrm{sample}(Z, \lceil k n \rceil) \\
        X'  &= X_{idx, :} \odot Z_{idx} \\
        A'  &= S^\top A S \text{ without its diagonal, with connect closest} \\
        L_{cut} &= \frac{Z^\top A Z}{\textstyle\sum_{ij} A_{ij}}

    With :math:`\delta > 1` neighbours get different features; the loss is -1 where each edge joins
    a node of score 1 and one of score -1. S assigns each node to the nearest kept one.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        ratio: Share k of nodes kept, ceil(k * n) of n; an int keeps that many.
        sampler: A key of ``gtpool.ops.sample.SAMPLERS``; the paper's is ``"topk"``.
        order: How nodes stand on the wheel, a name of ``NODE_ORDERS``. Of top-k, ``"structure"``
            alone matters: it breaks ties by the structure around nodes, not by the index.
        conv_channels: Width of each convolution of the score network.
        mlp_channels: Width of each hidden layer of the MLP, which has ReLU.
        delta: Strength :math:`\delta` of the propagation.
        connect: Edges of the pooled graph: ``"induced"``, ``"khop:2"`` or ``"closest"``, the
            paper's; see :class:`~gtpool.pool.layer.DropPool`.

    Differs from the paper:
        - The sampler is a choice. Top-k ranks z, which tanh does not reorder but for rounding; a
          wheel takes the softmax of Z.
        - Equal scores are treated as in SAGPool. A dropped node without a kept one within eight
          hops is left out; the authors assign it at random.
        - :math:`X'` is that of the plain method; the variant MaxCutPool-E, which adds up the
          features of each part, is not there.
        - Edge weights do not enter the score and the loss; repeated edges add up. For directed
          edges messages follow the edges and D is half the outgoing and incoming edges.
        - The loss is computed per graph and has weight 1; without edges it is 0. The call in the
          manner of PyG does not return it; ``select(x, graph).loss`` and a network do.

    Example:
        >>> import torch
        >>> pool = MaxCutPool(16, ratio=0.5)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> pool(torch.randn(6, 16), ring).x.shape
        torch.Size([3, 16])
    """

    def __init__(
        self,
        in_channels: int,
        ratio: float = 0.5,
        *,
        sampler: str = "topk",
        order: Order = "index",
        conv_channels: Sequence[int] = (32, 32, 32, 32, 16, 16, 16, 16, 8, 8, 8, 8),
        mlp_channels: Sequence[int] = (16, 16),
        delta: float = 2.0,
        connect: Connect = "induced",
    ) -> None:
        super().__init__(connect)
        check_count("in_channels", in_channels)
        check_ratio(ratio)
        check_choice("sampler", sampler, SAMPLERS)
        check_choice("order", order, NODE_ORDERS)
        for name, widths in {"conv": conv_channels, "mlp": mlp_channels}.items():
            for width in widths:
                check_count(f"each of {name}_channels", width)
        if not conv_channels:
            raise ValueError("conv_channels must name at least one width")
        self.in_channels, self.ratio, self.sampler = in_channels, ratio, sampler
        self.order: Order = order
        self.delta = delta
        self.entry = Linear(in_channels, conv_channels[0])
        convs = pairwise([conv_channels[0], *conv_channels])
        self.convs = nn.ModuleList(Linear(*widths) for widths in convs)
        mlp = pairwise([conv_channels[-1], *mlp_channels, 1])
        self.mlp = nn.ModuleList(Linear(*widths) for widths in mlp)

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        for part in (self.entry, *self.convs, *self.mlp):
            part.reset_parameters()  # pyright: ignore[reportCallIssue] - they are Linear

    def select(self, x: Tensor, graph: Backend, attn: Tensor | None = None) -> Dropped:
        """Return the nodes kept by scores of the network, with scaled features, and the loss."""
        graphs = graph.adjacency(at_least_float32(x[:0]).dtype, weighted=False)
        raw = at_least_float32(self._score(x if attn is None else attn, graphs))
        score = raw.tanh()
        out = drop_and_scale(
            x, raw, score, self.ratio, graph, sampler=self.sampler, order=self.order
        )
        return out._replace(loss=cut(score, graphs))

    def _score(self, x: Tensor, graphs: Adjacency) -> Tensor:
        """Return the score z of each node before its tanh, [N]."""
        graphs = graphs.normalized()
        h = self.entry(x)
        for conv in self.convs:
            exact = at_least_float32(h)
            passed = (1 - self.delta) * exact + self.delta * graphs.adj_t_matmul(exact)
            h = conv(passed.to(x.dtype)).tanh()
        for layer in self.mlp[:-1]:
            h = layer(h).relu()
        return self.mlp[-1](h).squeeze(1)

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, ratio={self.ratio}, "
            f"sampler={self.sampler!r}, order={self.order!r}, "
            f"connect={self.connect!r})"
        )


def cut(score: Tensor, graphs: Adjacency) -> Tensor:
    """Return how alike the ends of edges are, from -1 to 1, 0 without edges, [G]."""
    column = score.unsqueeze(1)
    alike = graphs.total(column * graphs.adj_t_matmul(column)).squeeze(1)
    edges = graphs.total(graphs.degrees().unsqueeze(1)).squeeze(1)
    return alike / edges.where(edges > 0, 1.0)
