"""GTPool: keep a diverse sample of nodes, each of which has seen its whole graph.

Li, Chen, Hopcroft, He: "Diversified Node Sampling based Hierarchical Transformer Pooling for
Graph Representation Learning", arXiv 2310.20250.
"""

from collections.abc import Callable
from math import inf
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from torch_geometric.nn.resolver import activation_resolver

from gtpool.graph import Level, NodeDrop, check_count, check_share
from gtpool.ops.attention_linear import Linear
from gtpool.ops.attention_streamed import Attended, Streamed, known_rows, look
from gtpool.ops.bucket import each_head
from gtpool.ops.drop import drop
from gtpool.ops.dropout import Dropout
from gtpool.ops.entry import lay_out
from gtpool.ops.memory import check_fits
from gtpool.ops.noise import Gumbel
from gtpool.ops.sample import ORDERS, SAMPLERS, Order, check_choice, check_ratio
from gtpool.ops.segment import segment_softmax, segment_sum, spread

Attention = Literal["exact", "linear"]
ATTENTIONS = ("exact", "linear")
GATES = (None, "tanh")
POINTS = ("even", "random")


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
        sampler: ``"rwsv"`` (the paper's GTPool-V), ``"rws"`` (its GTPool) or ``"topk"``.
        order: How nodes stand on the wheel: ``"index"``, as numbered, or ``"score"``, ascending.
        attention: ``"exact"``, or ``"linear"`` for graphs of hundreds of thousands of nodes: the
            kernelised attention of ``gtpool.ops.attention_linear``, another function.
        gate: ``"tanh"`` scales the attended part of X-hat by tanh(s), so that the score learns.
        act: The activation of the scores, a name that PyG resolves or a callable.
        out_proj: Map the concatenated heads by W_O before the residual is added.
        ffn_channels: Hidden width of the FFN; None means twice the width.
        dropout: Share of the FFN's hidden units dropped in training.
        temperature: The wheel takes softmax(s / temperature): above 1 its shares are more alike,
            below 1 less. The gate sees s.
        points: ``"even"`` as in the paper, or ``"random"``: the wheel is spun once for each node to
            keep, and the node that is hit leaves it. That keeps the highest of s / temperature +
            Gumbel noise, whichever wheel and order. The noise is drawn anew at each step of
            training (see ``gtpool.ops.noise``); otherwise it is the same for the same graph.
        learn_score: Whether :math:`\Theta` learns, which takes a gate; False keeps its random start
            beside one.

    Differs from the paper:
        - Heads split the width (the text's heads are as wide as the layer); equal for one head.
        - The activation of the scores, the width of the FFN, the place of dropout and the start of
          :math:`\Theta` are not given there.
        - As written there, no gradient reaches :math:`\Theta`: S only selects. So without a gate
          :math:`\Theta` keeps its random start and asks for no gradient; ``gate="tanh"`` is ours.
        - The wheel in index order, as there, depends on the numbering of the nodes;
          ``order="score"`` is ours and depends on it only where scores tie; ``temperature`` and
          random ``points`` are ours.
        - Scores are rounded to half their binary digits before sampling, so that equal nodes tie;
          the index breaks ties. In float32 unequal nodes tie as well, the more often the larger the
          graph: renumbering random graphs of 20, 50 and 200 nodes changed the kept nodes of 0, 3
          and 88 in 150 under ``order="score"``. In float64 it changed none.
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
    ) -> None:
        super().__init__()
        check_ratio(ratio)
        check_choice("sampler", sampler, SAMPLERS)
        check_choice("order", order, ORDERS)
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
            raise ValueError("points='random' spins a wheel, and sampler='topk' has none")
        if gate is None and not learn_score:
            raise ValueError("learn_score=False needs a gate: without one no score learns anyway")
        self.in_channels, self.ratio, self.heads, self.lam = in_channels, ratio, heads, lam
        self.sampler, self.gate, self.dropout = sampler, gate, dropout
        self.temperature, self.points, self.learn_score = temperature, points, learn_score
        self.order: Order = order
        self.attention: Attention = attention

        self.query = nn.Linear(in_channels, in_channels, bias=False)
        self.key = nn.Linear(in_channels, in_channels, bias=False)
        self.value = nn.Linear(in_channels, in_channels, bias=False)
        self.theta_global = nn.Parameter(torch.empty(heads, in_channels // heads))
        self.theta_local = nn.Parameter(torch.empty(heads, in_channels // heads))
        self.act = activation_resolver(act)
        if not callable(self.act):
            raise ValueError(f"act must be the name of an activation or a callable, got {act!r}")
        self.project = nn.Linear(in_channels, in_channels, bias=False) if out_proj else None
        self.noise = Gumbel() if points == "random" else None
        self.norm = nn.LayerNorm(in_channels)
        self.ffn = nn.Sequential(
            nn.Linear(in_channels, hidden),
            nn.GELU(),
            Dropout(dropout),
            nn.Linear(hidden, in_channels),
        )
        learns = gate is not None and learn_score
        self.theta_global.requires_grad_(learns and lam > 0)
        self.theta_local.requires_grad_(learns and lam < 1)
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
            level = lay_out(
                x, edge_index, edge_attr, batch, self.in_channels, attn, multiplied=True
            )
        check_fits(
            x.size(0),
            edge_index.size(1),
            self.in_channels,
            self.heads,
            attention=self.attention,
            training=torch.is_grad_enabled(),
            device=x.device,
            itemsize=x.element_size(),
        )
        weight, k, v = self._maps(x, attn)
        learns = self.gate is not None
        with torch.set_grad_enabled(torch.is_grad_enabled() and learns):
            asked = linear(x if attn is None else attn, weight)
            q = self._heads(asked)
            attention = self._attend(q, k, v, level)  # (4)
            score = self._score(attention, v, edge_index).score  # (5)-(7)
        wheel = score / self.temperature
        noisy = wheel if self.noise is None else wheel + self.noise(level)
        kept, edges, edge_attr = drop(
            noisy, self.ratio, edge_index, edge_attr, level, sampler=self.chooser, order=self.order
        )  # (8)-(13)
        x_kept = x.index_select(0, kept)
        if learns and isinstance(attention, Streamed | Linear):
            gate = score.index_select(0, kept).tanh().unsqueeze(1)
            pooled = self._read(attention.out.index_select(0, kept))  # (14)
            pooled = (pooled * gate).to(pooled.dtype)  # the score of a bf16 layer is float32
        else:
            asking = x_kept if attn is None else attn.index_select(0, kept)
            q = self._heads(known_rows(asking, weight, asked, kept))
            rows = attention.rows(q, k, v, kept, self.ratio)
            pooled = self._read(rows)  # (14)
        if self.project is not None:
            pooled = self.project(pooled)
        x = pooled + x_kept  # (15)
        x = self.ffn(self.norm(x)) + x  # (16)
        share = segment_softmax(wheel, level.batch, level.sizes.numel()).index_select(0, kept)
        return NodeDrop(x, edges, edge_attr, level.batch.index_select(0, kept), kept, share)

    def scores(
        self,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor | None = None,
        attn: Tensor | None = None,
    ) -> Scores:
        """Show the raw score of every node and its two parts; the arguments are the layer's."""
        level = lay_out(x, edge_index, None, batch, self.in_channels, attn, multiplied=True)
        weight, k, v = self._maps(x, attn)
        q = self._heads(linear(x if attn is None else attn, weight))
        kind = Linear if self.attention == "linear" else Streamed
        return self._score(kind.of(q, k, v, level), v, edge_index)

    @property
    def chooser(self) -> str:
        """What chooses the nodes by their score, with noise if there is any; in ``SAMPLERS``."""
        return self.sampler if self.noise is None else "topk"

    def __repr__(self) -> str:
        """Name the class, the width and the choices that change the result."""
        return (
            f"{type(self).__name__}({self.in_channels}, ratio={self.ratio}, heads={self.heads}, "
            f"lam={self.lam}, sampler={self.sampler!r}, order={self.order!r}, "
            f"attention={self.attention!r}, gate={self.gate!r}, temperature={self.temperature}, "
            f"points={self.points!r}, learn_score={self.learn_score})"
        )

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, level: Level) -> Attended:
        """Attend; gradients are those of all rows where the score learns, else of the kept ones."""
        if self.attention == "linear":
            return Linear.of(q, k, v, level)
        return look(q, k, v, level) if self.gate is None else Streamed.of(q, k, v, level)

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.unflatten(1, (self.heads, -1))

    def _maps(self, x: Tensor, attn: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Give the matrix that makes queries, the keys and the values, [N, H, C] each.

        With one head Q K^T = (X W_Q^T W_K) X^T and A V = (A X) W_V^T. So X itself is key and value,
        no row is mapped by W_K, and W_V maps the rows that are kept.
        """
        seen = x if attn is None else attn
        if self.heads > 1:
            return self.query.weight, self._heads(self.key(seen)), self._heads(self.value(x))
        v = self._heads(x)
        k = v if attn is None else self._heads(attn)
        return self.key.weight.T @ self.query.weight, k, v

    def _read(self, rows: Tensor) -> Tensor:
        """Give the attended values from what the weights gave, [K, H, C] -> [K, D]."""
        return rows.flatten(1) if self.heads > 1 else self.value(rows.flatten(1))

    def _score(self, attention: Attended, v: Tensor, edge_index: Tensor) -> Scores:
        """Score every node from its row of the attention matrix, whole and on edges only."""
        thetas = torch.stack([self.theta_local, self.theta_global], 1)  # [H, 2, C]
        if self.heads == 1:
            thetas = thetas @ self.value.weight
        near, far = (thetas @ v.permute(1, 2, 0)).unbind(1)  # V theta, [H, N] each
        nodes = torch.arange(v.size(0), device=v.device)
        source, target = torch.cat([edge_index, nodes.expand(2, -1)], 1)  # of A + I
        listed = pad(edge_index[0] == edge_index[1], (0, v.size(0)))
        weight = attention.on_edges(source, target)  # [E + N, H]
        weight = weight.masked_fill(listed.unsqueeze(1), 0.0).flatten()
        source, target = each_head(source, self.heads), each_head(target, self.heads)
        sent = weight * spread(near.T.flatten(), source)
        local = segment_sum(sent, target, near.numel()).view(-1, self.heads)
        global_score = self.act(attention.project(far.T, thetas[:, 1])).sum(1)
        local_score = self.act(local).sum(1)
        score = self.lam * global_score + (1 - self.lam) * local_score
        return Scores(score, global_score, local_score)
