"""MID: node dropping by several absolute scores per node, with random exclusion for diversity.

Liu, Zhan, Yu, Liu, Du, Hu, Liu: "On Exploring Node-feature and Graph-structure Diversities for Node
Drop Graph Pooling", arXiv 2306.12726.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch_geometric.nn import GCNConv

from gtpool.graph import check_count, check_share
from gtpool.nn import Linear, gcn
from gtpool.ops.backend import Backend
from gtpool.ops.dropout import DIGITS, KeyedModule, random_bits
from gtpool.ops.runs import linear
from gtpool.ops.sample import NODE_ORDERS, Order, check_choice, check_ratio
from gtpool.pool.layer import Dropped, DropPool
from gtpool.spec import Connect

SCORERS = ("gcn", "projection")
MERGES = ("linear", "mean")


class MIDPool(DropPool):
    r"""Node-dropping pooling by h scores per node, with flipscore and dropscore.

    .. math::
        S   &= \mathrm{GCN}(X, A) \;\text{ or }\; S_{:j} = X p_j / \|p_j\|,
               \quad S \in \mathbb{R}^{n \times h}                                           \\
        r_i &= \textstyle\sum_j |S_{ij}|                  && \text{flipscore}                \\
        r_i &\leftarrow -\infty \text{ with probability } q
                                                          && \text{dropscore, in training}   \\
        idx &= \mathrm{top}_{\lceil \mu n \rceil}(r)                                         \\
        A'  &= A_{idx, idx}                                                                  \\
        X'  &= \big[ X_{idx} \odot \tanh(S_{idx, 1}) \,\|\, \dots \,\|\,
               X_{idx} \odot \tanh(S_{idx, h}) \big] W

    Absolute scores keep nodes at both ends of a score; top-k keeps those at one end. Dropped scores
    make room for other parts of the graph. The signed S scales the features.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        ratio: Share of nodes kept, ceil(ratio * n) of n; an int keeps that many.
        scorer: ``"gcn"`` scores as SAGPool does, ``"projection"`` as TopKPool does.
        scores: How many scores a node has, the h above.
        flip: Rank by the sum of absolute scores; without it, by their plain sum.
        dropscore: Share q of the nodes that are ranked last in training, drawn from torch's default
            generator. Where too few others are left, the first of them stay after all.
        merge: From the h scaled copies to one: ``"linear"``, the W above (of one copy there is no
            W), or ``"mean"``.
        order: ``"structure"`` breaks ties by the structure around nodes, else the index does.
        connect: Edges of the pooled graph: ``"induced"``, ``"khop:2"`` or ``"closest"``; see
            :class:`~gtpool.pool.layer.DropPool`.

    Differs from the paper:
        - The equations are those of the authors' public code, which has SAGPool's scorer only;
          ``"projection"`` gives each score a vector and a norm of its own.
        - The public code leaves the copies side by side, hD wide, and the next convolution brings
          them back to D. Here W does, so that the layer fits where every other does.
        - Its dropout sets a dropped node's r to 0, the lowest that absolute scores can be, and
          divides the others by 1 - q, which changes no rank. Here dropped nodes are the last with
          ``flip=False`` too, and ``score`` means the same in training and after it.
        - Ranked are scores rounded to half their binary digits, so that equal nodes tie; of these
          the lowest index stays, unless ``order`` is ``"structure"``.
        - Edge features do not enter the score.

    Example:
        >>> pool = MIDPool(16, ratio=0.5)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> pool(torch.randn(6, 16), ring).x.shape
        torch.Size([3, 16])
    """

    def __init__(
        self,
        in_channels: int,
        ratio: float = 0.5,
        *,
        scorer: Literal["gcn", "projection"] = "gcn",
        scores: int = 5,
        flip: bool = True,
        dropscore: float = 0.1,
        merge: Literal["linear", "mean"] = "linear",
        order: Order = "index",
        connect: Connect = "induced",
    ) -> None:
        super().__init__(connect)
        check_count("in_channels", in_channels)
        check_ratio(ratio)
        check_choice("scorer", scorer, SCORERS)
        check_count("scores", scores)
        check_share("dropscore", dropscore)
        check_choice("merge", merge, MERGES)
        check_choice("order", order, NODE_ORDERS)
        self.order: Order = order
        self.in_channels, self.ratio, self.scorer, self.scores = in_channels, ratio, scorer, scores
        self.flip, self.dropscore, self.merge = flip, dropscore, merge

        self.ignore = DropScore(dropscore)
        self.criteria: GCNConv | Linear
        if scorer == "gcn":
            self.criteria = GCNConv(in_channels, scores)
        else:
            self.criteria = Linear(in_channels, scores, bias=False)
        mapped = merge == "linear" and scores > 1
        self.project = Linear(scores * in_channels, in_channels, bias=False) if mapped else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        self.criteria.reset_parameters()
        if self.project is not None:
            self.project.reset_parameters()

    def select(self, x: Tensor, graph: Backend, attn: Tensor | None = None) -> Dropped:
        """Return the nodes kept by absolute scores; ``score`` is the sum r, before dropscore."""
        scores = self._score(x if attn is None else attn, graph)  # [N, h]
        rank = (scores.abs() if self.flip else scores).sum(1)
        ranked = self.ignore(rank.detach())
        kept = graph.keep(ranked, self.ratio, sampler="topk", order=self.order)
        gate = graph.take(scores, kept).tanh()
        return Dropped(self._merge(graph.take(x, kept), gate), kept, rank)

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, ratio={self.ratio}, "
            f"scorer={self.scorer!r}, scores={self.scores}, flip={self.flip}, "
            f"dropscore={self.dropscore}, merge={self.merge!r}, order={self.order!r}, "
            f"connect={self.connect!r})"
        )

    def _score(self, x: Tensor, graph: Backend) -> Tensor:
        """Return the h scores of every node, [N, h]."""
        if isinstance(self.criteria, GCNConv):
            return gcn(self.criteria, x, graph)
        return linear(x, normalize(self.criteria.weight, dim=-1))

    def _merge(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return the features scaled by each of the h gates and merged, [K, D]."""
        if self.project is None:
            return x * gate.mean(1, keepdim=True)
        return self.project((gate.unsqueeze(2) * x.unsqueeze(1)).flatten(1))


class DropScore(KeyedModule):
    """Sets ranks to minus infinity with probability ``p`` in training, drawn as in dropout."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, rank: Tensor) -> Tensor:
        """Return the ranks with some set to minus infinity, [N]."""
        if not self.training or self.p == 0:
            return rank
        if self.key is None:
            dropped = torch.rand(rank.shape, device=rank.device) < self.p
        else:
            place = torch.arange(rank.numel() // self.key.numel(), device=rank.device)
            bits = random_bits(place, self.key.unsqueeze(1), DIGITS).flatten()
            dropped = bits < round(self.p * 2**DIGITS)
        return rank.masked_fill(dropped, -torch.inf)
