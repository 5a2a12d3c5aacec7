"""GTPool: keep a diverse sample of nodes, each of which has seen its whole graph.

Li, Chen, Hopcroft, He: "Diversified Node Sampling based Hierarchical Transformer Pooling for
Graph Representation Learning", arXiv 2310.20250.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.nn.resolver import activation_resolver

from gtpool.graph import Level, NodeDrop, check_count, check_share
from gtpool.ops import attention
from gtpool.ops.drop import drop
from gtpool.ops.entry import eager, lay_out
from gtpool.ops.sample import ORDERS, SAMPLERS, Order, check_choice, check_ratio
from gtpool.ops.segment import segment_softmax

GATES = (None, "tanh")

attend, edge_attention = eager(attention.attend), eager(attention.edge_attention)


class Scores(NamedTuple):
    """How the layer sees each node, summed over heads, [N] each."""

    score: Tensor
    """The raw score s, of which the wheel takes the softmax over each graph."""
    global_score: Tensor
    """S_g: the node in the light of its whole graph."""
    local_score: Tensor
    """S_l: the node in the light of its neighbours and itself."""


class GTPool(nn.Module):
    r"""Node-dropping pooling scored and reduced by one self-attention layer.

    .. math::
        \mathcal{A} &= \mathrm{softmax}(Q K^\top / \sqrt{C})                   && (4) \\
        S_g &= \sigma(\mathcal{A} V \Theta_g)                                  && (5) \\
        S_l &= \sigma((\mathcal{A} \odot \tilde{A}) V \Theta_l),
               \quad \tilde{A} = A + I                                         && (6) \\
        s   &= \textstyle\sum_{heads} \lambda S_g + (1 - \lambda) S_l,
               \quad S = \mathrm{softmax}(s)                                   && (7) \\
        idx &= \mathrm{sample}(S, \lceil \mu n \rceil)                         && (8)-(12) \\
        A'  &= A_{idx, idx}                                                    && (13) \\
        \hat{X} &= \mathcal{A}_{idx, :} V + X_{idx, :}                         && (14), (15) \\
        X'  &= \mathrm{FFN}(\mathrm{LN}(\hat{X})) + \hat{X}                    && (16)

    Q, K and V are linear maps of X without bias; FFN is two linear maps with a GELU between.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        ratio: Share of nodes kept, ceil(ratio * n) of n; an int keeps that many.
        heads: Attention heads, a divisor of the width.
        lam: Weight of the global score, from 0 to 1; the local score has the rest.
        sampler: A key of ``gtpool.ops.sample.SAMPLERS``.
        order: How nodes stand on the wheel, a name of ``ORDERS``.
        gate: ``"tanh"`` scales the attended part of X-hat by tanh(s), so that the score learns.
        act: The activation of the scores, a name that PyG resolves or a callable.
        out_proj: Map the concatenated heads by W_O before the residual is added.
        ffn_channels: Hidden width of the FFN; None means twice the width.
        dropout: Share of the FFN's hidden units dropped in training.

    Differs from the paper:
        - Heads split the width (the text's heads are as wide as the layer); equal for one head.
        - The activation of the scores, the width of the FFN, the place of dropout and the start of
          :math:`\Theta` are not given there.
        - As written there, no gradient reaches :math:`\Theta`: S only selects. So without a gate
          :math:`\Theta` keeps its random start and asks for no gradient; ``gate="tanh"`` is ours.
        - The wheel in index order, as there, depends on the numbering of the nodes;
          ``order="score"`` is ours and does not.
        - Scores are rounded to half their binary digits before sampling, so that equal nodes tie.
        - A listed self-loop does not count beside the I of (6); edge features do not enter the
          score.

    Example:
        >>> pool = GTPool(16, ratio=0.5)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> pool(torch.randn(6, 16), ring).x.shape
        torch.Size([3, 16])
    """

    def __init__(
        self,
        in_channels: int,
        ratio: float = 0.5,
        *,
        heads: int = 1,
        lam: float = 0.4,
        sampler: str = "rwsv",
        order: Order = "index",
        gate: Literal["tanh"] | None = None,
        act: str | Callable[[Tensor], Tensor] = "tanh",
        out_proj: bool = False,
        ffn_channels: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_ratio(ratio)
        check_choice("sampler", sampler, SAMPLERS)
        check_choice("order", order, ORDERS)
        check_choice("gate", gate, GATES)
        check_count("in_channels", in_channels)
        check_count("heads", heads)
        hidden = 2 * in_channels if ffn_channels is None else ffn_channels
        check_count("ffn_channels", hidden)
        if in_channels % heads:
            raise ValueError(f"heads must divide in_channels={in_channels}, got heads={heads}")
        check_share("lam", lam)
        check_share("dropout", dropout)
        self.in_channels, self.ratio, self.heads, self.lam = in_channels, ratio, heads, lam
        self.sampler, self.gate, self.dropout = sampler, gate, dropout
        self.order: Order = order

        self.query = nn.Linear(in_channels, in_channels, bias=False)
        self.key = nn.Linear(in_channels, in_channels, bias=False)
        self.value = nn.Linear(in_channels, in_channels, bias=False)
        self.theta_global = nn.Parameter(torch.empty(heads, in_channels // heads))
        self.theta_local = nn.Parameter(torch.empty(heads, in_channels // heads))
        self.act = activation_resolver(act)
        if not callable(self.act):
            raise ValueError(f"act must be the name of an activation or a callable, got {act!r}")
        self.project = nn.Linear(in_channels, in_channels, bias=False) if out_proj else None
        self.norm = nn.LayerNorm(in_channels)
        self.ffn = nn.Sequential(
            nn.Linear(in_channels, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, in_channels),
        )
        self.theta_global.requires_grad_(gate is not None and lam > 0)
        self.theta_local.requires_grad_(gate is not None and lam < 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.LayerNorm):
                part.reset_parameters()
        bound = (self.in_channels // self.heads) ** -0.5
        for theta in (self.theta_global, self.theta_local):
            nn.init.uniform_(theta, -bound, bound)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        attn: Tensor | None = None,
        *,
        level: Level | None = None,
    ) -> NodeDrop:
        """Pool a batch of graphs.

        Args:
            x: Node features, [N, D].
            edge_index: Source and target of each edge, [2, E].
            edge_attr: Edge features, which travel along, [E, ...].
            batch: Graph of each node, sorted, [N]; without it the nodes are one graph.
            attn: Stands in for ``x`` in Q and K, never in V, [N, D].
            level: The planned layout of the batch, in place of ``batch``: what was planned was
                checked then and is trusted, so that nothing synchronises a GPU before edges are
                filtered.
        """
        if level is None:
            level = lay_out(x, edge_index, edge_attr, batch, self.in_channels, attn)
        q, k, v, attended, lse = self._attend(x, attn, level)  # (4)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.gate is not None):
            score = self._score(q, k, v, attended, lse, edge_index).score  # (5)-(7)
        kept, edges, edge_attr = drop(
            score, self.ratio, edge_index, edge_attr, level, sampler=self.sampler, order=self.order
        )  # (8)-(13)
        pooled = attended.index_select(0, kept).flatten(1)  # (14)
        if self.gate is not None:
            gate = score.index_select(0, kept).tanh().unsqueeze(1)
            pooled = (pooled * gate).to(pooled.dtype)  # the score of a bf16 layer is float32
        if self.project is not None:
            pooled = self.project(pooled)
        x = pooled + x.index_select(0, kept)  # (15)
        x = self.ffn(self.norm(x)) + x  # (16)
        share = segment_softmax(score, level.batch, level.sizes.numel()).index_select(0, kept)
        return NodeDrop(x, edges, edge_attr, level.batch.index_select(0, kept), kept, share)

    def scores(
        self,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor | None = None,
        attn: Tensor | None = None,
    ) -> Scores:
        """Show the raw score of every node and its two parts; the arguments are the layer's."""
        level = lay_out(x, edge_index, None, batch, self.in_channels, attn)
        return self._score(*self._attend(x, attn, level), edge_index)

    def __repr__(self) -> str:
        """Name the class, the width and the choices that change the result."""
        return (
            f"{type(self).__name__}({self.in_channels}, ratio={self.ratio}, heads={self.heads}, "
            f"lam={self.lam}, sampler={self.sampler!r}, order={self.order!r}, gate={self.gate!r})"
        )

    def _attend(
        self, x: Tensor, attn: Tensor | None, level: Level
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Give q, k, v and the attended values, [N, H, C] each, and the log-sum-exp, [N, H]."""
        seen = x if attn is None else attn
        maps = ((self.query, seen), (self.key, seen), (self.value, x))
        q, k, v = (linear(part).unflatten(1, (self.heads, -1)) for linear, part in maps)
        return q, k, v, *attend(q, k, v, level.ptr)

    def _score(
        self, q: Tensor, k: Tensor, v: Tensor, attended: Tensor, lse: Tensor, edge_index: Tensor
    ) -> Scores:
        """Score every node from its row of the attention matrix, whole and on edges only."""
        source, target = edge_index
        near = (v * self.theta_local).sum(-1)  # [N, H]
        weight = edge_attention(q, k, lse, edge_index)  # [E, H]
        weight = weight.masked_fill((source == target).unsqueeze(1), 0.0)
        diagonal = ((q * k).sum(-1) * q.size(-1) ** -0.5 - lse).exp()
        local = (diagonal * near).index_add(0, target, weight * near.index_select(0, source))
        global_score = self.act((attended * self.theta_global).sum(-1)).sum(1)
        local_score = self.act(local).sum(1)
        score = self.lam * global_score + (1 - self.lam) * local_score
        return Scores(score, global_score, local_score)
