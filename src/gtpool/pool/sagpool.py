"""SAGPool: node dropping by scores of a graph convolution.

Lee, Lee, Kang: "Self-Attention Graph Pooling", arXiv 1904.08082.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn.resolver import activation_resolver

from gtpool.graph import check_count
from gtpool.ops.backend import Backend
from gtpool.ops.merge import at_least_float32
from gtpool.ops.runs import linear, per_run
from gtpool.ops.sample import NODE_ORDERS, SAMPLERS, Order, check_choice, check_ratio
from gtpool.pool.layer import Dropped, DropPool, drop_and_scale
from gtpool.spec import Connect


class SAGPool(DropPool):
    r"""Node-dropping pooling scored by a graph convolution with one channel.

    .. math::
        z   &= \tilde{D}^{-1/2} \tilde{A} \tilde{D}^{-1/2} X \Theta + b,
               \quad \tilde{A} = A + I, \quad Z = \sigma(z) \\
        idx &= \mathrm{sample}(Z, \lceil k n \rceil) \\
        X'  &= X_{idx, :} \odot Z_{idx} \\
        A'  &= A_{idx, idx}

    SAGPool_h has this layer after each convolution, SAGPool_g once after all convolutions.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        ratio: Share k of nodes kept, ceil(k * n) of n; an int keeps that many.
        sampler: A key of ``gtpool.ops.sample.SAMPLERS``; the paper's is ``"topk"``.
        order: How nodes stand on the wheel, a name of ``NODE_ORDERS``. Of top-k, ``"structure"``
            alone matters: it breaks ties by the structure around nodes, not by the index.
        act: The activation of the score, a name that PyG resolves or a callable.
        connect: Edges of the pooled graph: ``"induced"``, ``"khop:2"`` or ``"closest"``; see
            :class:`~gtpool.pool.layer.DropPool`.

    Differs from the paper:
        - tanh and the bias b are those of the authors' code; the sampler is a choice.
        - Top-k ranks z, as the authors' code does, not Z: the same nodes for an increasing
          :math:`\sigma`, but rounded to float32 tanh is flat beyond 5, and ties would decide. A
          wheel takes the softmax of Z, which no single node can dominate.
        - Scores are rounded to half their binary digits before sampling, so that equal nodes tie;
          of these top-k keeps the lowest index, unless ``order`` is ``"structure"``.
          Neighbours that share all other neighbours do tie.
        - A listed self-loop does not count beside I, repeated edges add up, and
          :math:`\tilde{D}` counts the edges to a node, as in PyG's ``GCNConv``. Edge features do
          not enter the score.
        - PyG's ``SAGPooling`` scores by ``GraphConv`` unless told otherwise, and multiplies z by a
          number of random sign that never learns: if it is negative, the lowest scores are kept.

    Example:
        >>> pool = SAGPool(16, ratio=0.5)
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
        act: str | Callable[[Tensor], Tensor] = "tanh",
        connect: Connect = "induced",
    ) -> None:
        super().__init__(connect)
        check_count("in_channels", in_channels)
        check_ratio(ratio)
        check_choice("sampler", sampler, SAMPLERS)
        check_choice("order", order, NODE_ORDERS)
        self.in_channels, self.ratio, self.sampler = in_channels, ratio, sampler
        self.order: Order = order
        self.act = activation_resolver(act)
        if not callable(self.act):
            raise ValueError(f"act must be the name of an activation or a callable, got {act!r}")
        self.theta = nn.Parameter(torch.empty(in_channels))
        self.bias = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all parameters as PyG's ``GCNConv`` does."""
        bound = (6 / (self.in_channels + 1)) ** 0.5
        nn.init.uniform_(self.theta, -bound, bound)
        nn.init.zeros_(self.bias)

    def select(self, x: Tensor, graph: Backend, attn: Tensor | None = None) -> Dropped:
        """Return the nodes kept by scores of a graph convolution, with scaled features."""
        value = at_least_float32(linear(x if attn is None else attn, self.theta.unsqueeze(-2)))
        raw = per_run(torch.add, graph.gcn_sum(value), self.bias).squeeze(1)
        return drop_and_scale(
            x, raw, self.act(raw), self.ratio, graph, sampler=self.sampler, order=self.order
        )

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, ratio={self.ratio}, "
            f"sampler={self.sampler!r}, order={self.order!r}, "
            f"connect={self.connect!r})"
        )
