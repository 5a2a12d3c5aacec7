"""TopKPool: node dropping by a learned projection.

Gao, Ji: "Graph U-Nets", arXiv 1905.05178, where the layer is called gPool.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn.resolver import activation_resolver

from gtpool.graph import check_count
from gtpool.ops.backend import Backend
from gtpool.ops.runs import linear, per_run
from gtpool.ops.sample import NODE_ORDERS, SAMPLERS, Order, check_choice, check_ratio
from gtpool.pool.layer import Dropped, DropPool, drop_and_scale
from gtpool.spec import Connect


class TopKPool(DropPool):
    r"""Node-dropping pooling scored by a projection of the features.

    .. math::
        y   &= X p / \lVert p \rVert \\
        idx &= \mathrm{rank}(y, \lceil k n \rceil) \\
        X'  &= X_{idx, :} \odot \sigma(y_{idx}) \\
        A'  &= A_{idx, idx}

    Args:
        in_channels: Width D of the node features, kept unchanged.
        ratio: Share k of nodes kept, ceil(k * n) of n; an int keeps that many.
        sampler: A key of ``gtpool.ops.sample.SAMPLERS``; the paper's is ``"topk"``.
        order: How nodes stand on the wheel, a name of ``NODE_ORDERS``. Of top-k, ``"structure"``
            alone matters: it breaks ties by the structure around nodes, not by the index.
        act: The activation :math:`\sigma`, a name that PyG resolves or a callable.
        connect: Edges of the pooled graph: ``"induced"``, ``"khop:2"`` or ``"closest"``; see
            :class:`~gtpool.pool.layer.DropPool`.

    Differs from the paper:
        - Its :math:`\sigma` is ``act="sigmoid"``; the default is PyG's tanh.
        - It keeps a fixed number of nodes, which an int ``ratio`` does.
        - Top-k ranks y, as there, while PyG's ``TopKPooling`` ranks :math:`\sigma(y)`: the same
          nodes for an increasing :math:`\sigma`, but rounded to float32 tanh is flat beyond 5, and
          ties would decide. A wheel, which is not there, takes the softmax of :math:`\sigma(y)`,
          as PyG ranks it: no single node can dominate it.
        - Scores are rounded to half their binary digits before sampling, so that equal nodes tie;
          of these top-k keeps the lowest index, unless ``order`` is ``"structure"``.
        - The edges between nodes two steps apart, which it adds before it pools, are the caller's
          business. The authors' code projects with a bias and without the norm.
        - In PyG's ``TopKPooling`` a ratio of 1.0 keeps one node, and bf16 miscounts large graphs.

    With one channel, p is a sign and cannot be trained.

    Example:
        >>> pool = TopKPool(16, ratio=0.5)
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
        self.direction = nn.Parameter(torch.empty(in_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the direction."""
        bound = self.in_channels**-0.5
        nn.init.uniform_(self.direction, -bound, bound)

    def select(self, x: Tensor, graph: Backend, attn: Tensor | None = None) -> Dropped:
        """Return the nodes kept by a projection, with scaled features."""
        raw = linear(x if attn is None else attn, self.direction.unsqueeze(-2))
        raw = per_run(torch.div, raw, self.direction.norm(dim=-1, keepdim=True)).squeeze(1)
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
