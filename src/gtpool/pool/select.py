"""RWS and RWSV as PyG ``Select`` operators, for use in PyG's poolers."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.nn.pool.select import SelectOutput, SelectTopK

from gtpool.graph import check_batch, check_features
from gtpool.ops.entry import no_compile
from gtpool.ops.sample import ORDERS, Order, check_choice, check_ratio, round_scores, rws, rwsv


class SelectRWS(SelectTopK):
    r"""PyG's ``SelectTopK`` with the paper's roulette wheel instead of top-k.

    .. math::
        y &= \sigma(X p / \|p\|) \\
        i &= \mathrm{RWS}(\mathrm{softmax}(y))

    Assign it to ``select`` of PyG's ``TopKPooling`` (where p is the scorer), ``SAGPooling`` or
    ``ASAPooling``; it only changes which nodes are kept. In the latter two p is an untrained number
    of random sign; apply :func:`torch.nn.init.ones_` to ``weight`` to remove its effect.

    Args:
        in_channels: Width of the projection: the features in ``TopKPooling``, 1 in the others.
        ratio: Share of nodes kept, ceil(ratio * n) of n; an int keeps that many.
        min_score: Must be None: a wheel keeps a fixed number of nodes.
        act: The activation of the scores.
        order: Order of the nodes on the wheel: by index, or by ascending score.

    Differs from the paper:
        scores are rounded to half their bits first, so that equal nodes tie.

    Example:
        >>> from torch_geometric.nn import TopKPooling
        >>> pool = TopKPooling(8, ratio=0.5)
        >>> pool.select = SelectRWS(8, ratio=0.5)
        >>> pool(torch.randn(6, 8), torch.tensor([[0, 1], [1, 2]]))[0].shape
        torch.Size([3, 8])
    """

    sampler = staticmethod(rws)

    def __init__(
        self,
        in_channels: int,
        ratio: float = 0.5,
        min_score: float | None = None,
        act: str | Callable[[Tensor], Tensor] = "tanh",
        *,
        order: Order = "index",
    ) -> None:
        if min_score is not None:
            raise ValueError(
                f"{type(self).__name__} does not support min_score, because a wheel keeps a fixed "
                "number of nodes; use ratio"
            )
        check_ratio(ratio)
        check_choice("order", order, ORDERS)
        super().__init__(in_channels, ratio, None, act)
        self.order: Order = order

    @no_compile
    def forward(self, x: Tensor, batch: Tensor | None = None) -> SelectOutput:
        """Return the nodes of each graph selected by scores of the rows of ``x``, [N, D] or [N]."""
        x = x.unsqueeze(1) if x.dim() == 1 else x
        check_features("x", x, self.in_channels)
        if batch is None:
            batch = torch.zeros(x.size(0), dtype=torch.long, device=x.device)
        check_batch(batch, x.size(0))
        score = self.act((x * self.weight).sum(-1) / self.weight.norm(p=2, dim=-1))
        kept = self.sampler(round_scores(score), batch, self.ratio, order=self.order)
        return SelectOutput(
            node_index=kept,
            num_nodes=x.size(0),
            cluster_index=torch.arange(kept.numel(), device=x.device),
            num_clusters=kept.numel(),
            weight=score.index_select(0, kept),
        )


class SelectRWSV(SelectRWS):
    """PyG's ``SelectTopK`` with RWSV, the wheel whose borders lie midway between those of RWS.

    Arguments and differences from the paper are those of :class:`SelectRWS`.

    Example:
        >>> SelectRWSV(8, ratio=3)
        SelectRWSV(8, ratio=3)
    """

    sampler = staticmethod(rwsv)
