"""GraphTrans: a Transformer over the nodes of each graph, read out at a learned token.

Wu, Jain, Wright, Mirhoseini, Gonzalez, Stoica: "Representing Long-Range Context for Graph Neural
Networks with Global Attention", NeurIPS 2021, arXiv 2201.08821.
"""

import torch
from torch import Tensor, nn

from gtpool.graph import check_count, check_share
from gtpool.nn import LayerNorm, Linear
from gtpool.ops.backend import Backend, RowLayout
from gtpool.ops.dropout import Dropout
from gtpool.ops.runs import per_run


class GraphTrans(nn.Module):
    r"""Read-out by a Transformer encoder over the nodes of each graph and a token CLS.

    .. math::
        h^0_v &= \mathrm{LN}(W_P x_v + b_P), \qquad h^0_{CLS} \text{ is learned} \\
        a_v   &= \textstyle\sum_w \mathrm{softmax}_w(q_v^\top k_w / \sqrt{C})\, v_w,
                 \quad w \text{ a node or CLS} \\
        h'    &= \mathrm{LN}(h^\ell + W_O a) \\
        h^{\ell + 1} &= \mathrm{LN}(h' + W_2\,\mathrm{relu}(W_1 h')) \\
        \mathrm{GraphTrans}(X) &= \mathrm{LN}(h^L_{CLS})

    Each head attends so, with q, k and v linear maps of h. There are no positions: the convolutions
    before it tell the nodes apart. CLS is not a row of the batch. A node's attention to the other
    nodes is merged with that to CLS by their log-sum-exps. The last layer computes the CLS alone.

    Args:
        in_channels: Width of the node features.
        width: Width of the Transformer and of the output.
        layers: Layers L.
        heads: Attention heads, a divisor of ``width``.
        feed_channels: Width between :math:`W_1` and :math:`W_2`; None for four times ``width``.
        dropout: Dropout probability of the two summands that a layer adds to h, in training.

    Differs from the paper:
        - The defaults and the last LN are those of the authors' code (4 layers and heads, dropout
          of 0.3).
        - Dropout does not apply to attention weights, nor between :math:`W_1` and :math:`W_2`, as
          PyTorch's encoder layer does; the attention kernels hold no weights.
        - Linear maps start as PyTorch's ``Linear``.

    Example:
        >>> from gtpool.ops.packed import PackedGraph
        >>> read = GraphTrans(24, 8, layers=2, heads=2)
        >>> edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 0, 4, 3]])
        >>> graph = PackedGraph.of(edges, torch.tensor([0, 0, 0, 1, 1]))
        >>> read(torch.randn(5, 24), graph).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        *,
        layers: int = 4,
        heads: int = 4,
        feed_channels: int | None = None,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        feed = 4 * width if feed_channels is None else feed_channels
        counts = {"in_channels": in_channels, "width": width, "layers": layers}
        for name, value in {**counts, "heads": heads, "feed_channels": feed}.items():
            check_count(name, value)
        check_share("dropout", dropout)
        if width % heads:
            raise ValueError(f"heads must divide width={width}, got heads={heads}")
        self.in_channels, self.out_channels, self.heads = in_channels, width, heads
        self.project = Linear(in_channels, width)
        self.entry = LayerNorm(width)
        self.token = nn.Parameter(torch.empty(width))
        self.layers = nn.ModuleList(_Layer(width, heads, feed, dropout) for _ in range(layers))
        self.last = LayerNorm(width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.LayerNorm):
                part.reset_parameters()
        nn.init.normal_(self.token)

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Return one vector per graph, [N, in_channels] -> [G, width].

        Args:
            x: Node features, [N, in_channels].
            graph: The graphs of the batch.
        """
        rows = graph.rows
        h = self.entry(self.project(rows.mask_padding(x)))
        token = per_run(torch.add, h.new_zeros(rows.graphs, self.out_channels), self.token)
        for number, layer in enumerate(self.layers, 1):
            h, token = layer(h, token, rows, nodes=number < len(self.layers))
        return self.last(token)

    def __repr__(self) -> str:
        """Return the class name, the widths and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, "
            f"layers={len(self.layers)}, heads={self.heads})"
        )


class _Layer(nn.Module):
    """One layer of the encoder, for nodes and tokens apart."""

    def __init__(self, width: int, heads: int, feed: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)
        self.inner = LayerNorm(width)
        self.widen = Linear(width, feed)
        self.narrow = Linear(feed, width)
        self.outer = LayerNorm(width)
        self.drops = nn.ModuleList(Dropout(dropout) for _ in range(4))

    def forward(
        self, h: Tensor, token: Tensor, rows: RowLayout, *, nodes: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the nodes [N, D] and tokens [G, D] after the layer; some layers skip the nodes."""
        node, cls = (self.qkv(part).unflatten(1, (3, self.heads, -1)) for part in (h, token))
        after = self._feed(token, _token_attention(cls, node, rows), 2)
        if nodes:
            h = self._feed(h, _node_attention(node, cls, rows), 0)
        return h, after

    def _feed(self, h: Tensor, attended: Tensor, first: int) -> Tensor:
        """Add the attention, then the feed-forward net."""
        h = self.inner(h + self.drops[first](self.out(attended)))
        return self.outer(h + self.drops[first + 1](self.narrow(self.widen(h).relu())))


def _node_attention(node: Tensor, cls: Tensor, rows: RowLayout) -> Tensor:
    """Return the attention of nodes to their graph and its token, [N, 3, H, C] -> [N, D]."""
    out, lse = rows.attend(node)
    key, value = (rows.broadcast(part.flatten(1)).view_as(out) for part in cls[:, 1:].unbind(1))
    logit = (node[:, 0] * key).sum(-1) * node.size(-1) ** -0.5
    share = (logit - lse).sigmoid().unsqueeze(-1).to(out.dtype)  # of the token
    return (out + share * (value - out)).flatten(1)


def _token_attention(cls: Tensor, node: Tensor, rows: RowLayout) -> Tensor:
    """Return the attention of tokens to their graph and themselves, [G, 3, H, C] -> [G, D]."""
    scale = node.size(-1) ** -0.5
    (query, key, value), (_, keys, values) = cls.unbind(1), node.unbind(1)
    own = (query * key).sum(-1) * scale  # [G, H]
    logit = (rows.broadcast(query.flatten(1)).view_as(keys) * keys).sum(-1) * scale  # [N, H]
    top = torch.maximum(rows.maximum(logit.detach()), own.detach())
    own, part = (own - top).exp(), (logit - rows.broadcast(top)).exp()
    taken = rows.total((part.unsqueeze(-1) * values).flatten(1)).view_as(value)
    total = rows.total(part) + own
    return ((taken + own.unsqueeze(-1) * value) / total.unsqueeze(-1)).flatten(1)
