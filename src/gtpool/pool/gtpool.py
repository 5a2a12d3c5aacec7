"""GTPool: diverse node sampling with self-attention over the whole graph.

Li, Chen, Hopcroft, He: "Diversified Node Sampling based Hierarchical Transformer Pooling for
Graph Representation Learning", arXiv 2310.20250.
"""

from collections.abc import Callable
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.nn.resolver import activation_resolver

from gtpool.graph import check_count, check_share
from gtpool.nn import LayerNorm, Linear, Sequential
from gtpool.ops.attention_packed import Scores
from gtpool.ops.backend import Backend, RowLayout
from gtpool.ops.dropout import Dropout, GumbelNoise
from gtpool.ops.entry import check_inputs
from gtpool.ops.packed import PackedGraph
from gtpool.ops.sample import NODE_ORDERS, SAMPLERS, Order, check_choice, check_ratio
from gtpool.pool.layer import Dropped, DropPool
from gtpool.spec import Connect

Attention = Literal["exact", "linear"]
ATTENTIONS = ("exact", "linear")
GATES = (None, "tanh")
POINTS = ("even", "random")


class GTPool(DropPool):
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
        lam: Weight of the global score, from 0 to 1; the local score has weight 1 - lam.
        sampler: ``"rwsv"`` (the paper's GTPool-V), ``"rws"`` (its GTPool) or ``"topk"``.
        order: How nodes stand on the wheel: ``"index"``, as numbered; ``"score"``, ascending, ties
            by index; or ``"structure"``, ascending, ties by the structure around the nodes (see
            ``gtpool.ops.structure``), also of top-k.
        attention: ``"exact"``, or ``"linear"`` for graphs of hundreds of thousands of nodes: the
            kernelised attention of ``gtpool.ops.attention_linear``, another function.
        gate: ``"tanh"`` scales the attended part of X-hat by tanh(s), so that the score learns.
        act: The activation of the scores, a name that PyG resolves or a callable.
        out_proj: Map the concatenated heads by W_O before the residual connection.
        ffn_channels: Hidden width of the FFN; None means twice the width.
        dropout: Share of the FFN's hidden units dropped in training.
        temperature: The wheel takes softmax(s / temperature): values above 1 make it more uniform,
            values below 1 less. The gate uses s.
        points: ``"even"`` as in the paper, or ``"random"``: Gumbel top-k, which samples nodes
            without replacement from softmax(s / temperature), for any ``sampler`` wheel and
            ``order``. In training each step draws new noise (see ``gtpool.ops.dropout``); in
            evaluation the noise of a graph is fixed.
        learn_score: Whether :math:`\Theta` is trained, which needs a gate; False keeps its random
            initial values.
        connect: Edges of the pooled graph: ``"induced"``, ``"khop:2"`` or ``"closest"``; see
            :class:`~gtpool.pool.layer.DropPool`.

    Differs from the paper:
        - Heads split the width (the text's heads are as wide as the layer); equal for one head.
        - The activation of the scores, the width of the FFN, the place of dropout and the start of
          :math:`\Theta` are not given there.
        - As written there, no gradient reaches :math:`\Theta`: S only selects. So without a gate
          :math:`\Theta` keeps its random start and asks for no gradient; ``gate="tanh"`` is ours.
        - The wheel in index order, as there, depends on the numbering of the nodes;
          ``order="score"`` is ours and depends on it only where scores tie, ``"structure"`` only
          where symmetric nodes do, or others that colour refinement cannot tell apart;
          ``temperature`` and random ``points`` are ours. Random points depend on the numbering.
        - Scores are rounded to half their binary digits before sampling, so that equal nodes tie.
          In float32 unequal nodes tie as well, the more often the larger the graph: renumbering
          random graphs of 20, 50 and 200 nodes changed the kept nodes of 0, 16 and 77 in 150 under
          ``order="score"``, of none under ``"structure"``. In float64 it changed none.
        - The weights of ``query``, ``key`` and ``value`` are read, their modules not always called:
          hooks on them may not run, and they cannot be quantised one by one.
        - A listed self-loop does not count beside the I of (6); edge features do not enter the
          score.

    Example:
        >>> pool = GTPool(16, ratio=0.5)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> pool(torch.randn(6, 16), ring).x.shape
        torch.Size([3, 16])
    """

    multiplies = True

    def __init__(
        self,
        in_channels: int,
        ratio: float = 0.5,
        *,
        heads: int = 1,
        lam: float = 0.4,
        sampler: str = "rwsv",
        order: Order = "index",
        attention: Attention = "exact",
        gate: Literal["tanh"] | None = None,
        act: str | Callable[[Tensor], Tensor] = "tanh",
        out_proj: bool = False,
        ffn_channels: int | None = None,
        dropout: float = 0.0,
        temperature: float = 1.0,
        points: Literal["even", "random"] = "even",
        learn_score: bool = True,
        connect: Connect = "induced",
    ) -> None:
        super().__init__(connect)
        check_ratio(ratio)
        check_choice("sampler", sampler, SAMPLERS)
        check_choice("order", order, NODE_ORDERS)
        check_choice("attention", attention, ATTENTIONS)
        check_choice("gate", gate, GATES)
        check_choice("points", points, POINTS)
        check_count("in_channels", in_channels)
        check_count("heads", heads)
        hidden = 2 * in_channels if ffn_channels is None else ffn_channels
        check_count("ffn_channels", hidden)
        if in_channels % heads:
            raise ValueError(f"heads must divide in_channels={in_channels}, got heads={heads}")
        check_share("lam", lam)
        check_share("dropout", dropout)
        if not 0 < temperature < inf:
            raise ValueError(f"temperature must be a finite number above 0, got {temperature}")
        if points == "random" and sampler == "topk":
            raise ValueError("points='random' needs a wheel: choose sampler 'rws' or 'rwsv'")
        if gate is None and not learn_score:
            raise ValueError("learn_score=False needs a gate; without one scores are not trained")
        self.in_channels, self.ratio, self.heads, self.lam = in_channels, ratio, heads, lam
        self.sampler, self.gate, self.dropout = sampler, gate, dropout
        self.temperature, self.points, self.learn_score = temperature, points, learn_score
        self.order: Order = order
        self.attention: Attention = attention

        self.query = Linear(in_channels, in_channels, bias=False)
        self.key = Linear(in_channels, in_channels, bias=False)
        self.value = Linear(in_channels, in_channels, bias=False)
        self.theta_global = nn.Parameter(torch.empty(heads, in_channels // heads))
        self.theta_local = nn.Parameter(torch.empty(heads, in_channels // heads))
        self.act = activation_resolver(act)
        if not callable(self.act):
            raise ValueError(f"act must be the name of an activation or a callable, got {act!r}")
        self.project = Linear(in_channels, in_channels, bias=False) if out_proj else None
        self.noise = GumbelNoise() if points == "random" else None
        self.norm = LayerNorm(in_channels)
        self.ffn = Sequential(
            Linear(in_channels, hidden),
            nn.GELU(),
            Dropout(dropout),
            Linear(hidden, in_channels),
        )
        learns = gate is not None and learn_score
        self.theta_global.requires_grad_(learns and bool(lam > 0))
        self.theta_local.requires_grad_(learns and bool(lam < 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.LayerNorm):
                part.reset_parameters()
        bound = (self.in_channels // self.heads) ** -0.5
        for theta in (self.theta_global, self.theta_local):
            nn.init.uniform_(theta, -bound, bound)

    def select(self, x: Tensor, graph: Backend, attn: Tensor | None = None) -> Dropped:
        """Return a diverse sample of nodes with attention over their whole graph."""
        attention = graph.attention(
            x, x if attn is None else attn, **self._attention_options()
        )  # (4)
        score = attention.scores(self.theta_global, self.theta_local, self.lam, self.act)  # (5)-(7)
        wheel = score if self.temperature == 1 else score / self.temperature
        noisy = wheel if self.noise is None else wheel + self.noise(graph.rows, wheel)
        kept = graph.keep(noisy, self.ratio, sampler=self.chooser, order=self.order)  # (8)-(13)
        pooled, own = attention.rows(kept, None if self.gate is None else score)  # (14)
        if self.project is not None:
            pooled = self.project(pooled)
        x = pooled + own  # (15)
        return Dropped(self.ffn(self.norm(x), x), kept, wheel)  # (16)

    def shown(self, score: Tensor, rows: RowLayout) -> Tensor:
        """Return each node's share of the wheel, [N]."""
        return rows.softmax(score)

    def scores(
        self,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor | None = None,
        attn: Tensor | None = None,
    ) -> Scores:
        """Return the raw score of every node and its two parts; arguments as in ``forward``."""
        level = check_inputs(x, edge_index, None, batch, self.in_channels, attn, multiplied=True)
        graph, options = PackedGraph(edge_index, None, level), self._attention_options()
        options["score_grad"] = True
        attention = graph.attention(x, x if attn is None else attn, **options)
        return attention.parts(self.theta_global, self.theta_local, self.lam, self.act)

    @property
    def head_channels(self) -> int:
        """Channels of a head."""
        return self.in_channels // self.heads

    @property
    def why_not_captured(self) -> str | None:
        """Reason why the layer cannot be captured; None if it can."""
        if self.attention == "exact":
            return super().why_not_captured
        return "linear attention has no static form; use attention='exact'"

    @property
    def chooser(self) -> str:
        """Sampler applied to the (noisy) scores, a key of ``SAMPLERS``."""
        return self.sampler if self.noise is None else "topk"

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, ratio={self.ratio}, heads={self.heads}, "
            f"lam={self.lam}, sampler={self.sampler!r}, order={self.order!r}, "
            f"attention={self.attention!r}, gate={self.gate!r}, temperature={self.temperature}, "
            f"points={self.points!r}, learn_score={self.learn_score}, "
            f"connect={self.connect!r})"
        )

    def _attention_options(self) -> dict[str, Any]:
        return {
            "weights": (self.query.weight, self.key.weight, self.value.weight),
            "heads": self.heads,
            "kind": self.attention,
            "score_grad": self.gate is not None,
            "ratio": self.ratio,
        }
