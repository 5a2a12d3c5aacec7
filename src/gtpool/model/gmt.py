"""GMT: a few learned seeds gather the nodes of a graph, talk to each other, and become one vector.

Baek, Kang, Hwang: "Accurate Learning of Graph Representations with Graph Multiset Pooling",
arXiv 2102.11533.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from gtpool.graph import Level, check_count
from gtpool.ops import merge
from gtpool.ops.entry import eager

products = eager(merge.products)


class GMT(nn.Module):
    r"""Read-out of a graph by attention from seeds S to its nodes, and from one seed to those.

    .. math::
        \mathrm{GMT}(H, A) &= W\,\mathrm{GMPool}_1(\mathrm{SelfAtt}(\mathrm{GMPool}_k(H, A))) \\
        \mathrm{GMPool}_k(H, A) &= \mathrm{block}(S W_Q, \mathrm{GCN}_K(H, A),
                                   \mathrm{GCN}_V(H, A)) \\
        \mathrm{SelfAtt}(H) &= \mathrm{block}(H W_Q, H W_K, H W_V) \\
        \mathrm{block}(Q, K, V) &= \mathrm{LN}(Z + \mathrm{relu}(Z W_F)), \quad
            Z = \mathrm{LN}(Q + \mathrm{softmax}_Q(Q K^\top / \sqrt{D})\, V)

    :math:`\mathrm{GMPool}_1` has linear maps in place of GCN, and D is the width of a block. The
    softmax is taken over the queries Q: each key divides itself among them, so values are added up
    as in a sum read-out. How SelfAtt divides them shows only through its ReLU and LN, as
    :math:`\mathrm{GMPool}_1` adds all up again.

    Args:
        in_channels: Width of the node features, in the paper the outputs of three GCN side by side.
        width: Width of what is read out; the first block works at ``in_channels``.
        seeds: Seeds k of the first block, in the paper a quarter of the nodes of a mean graph.
        heads: Attention heads, a divisor of both widths.
        layer_norm: Normalise as LN says; without it LN is left out.

    Differs from the paper:
        - It leaves the softmax, the scale, rFF and the widths open; they are those of the authors'
          code, as its scripts call it. The softmax is over queries in all of these, which for one
          query means a plain sum; its argument of injectivity needs that.
        - As in that code, heads have no :math:`W_O`, the scale is that of the whole width, and the
          residual is the mapped query, so that SelfAtt may narrow ``in_channels`` to ``width``.
        - Its equations have LN; eight of its ten scripts leave it out (MUTAG and BBBP have it), and
          so do we by default. They have 1, 2, 4 or 8 heads; 1 is the code's default and ours.
        - One query takes all of each key, so it has no :math:`W_K`. The authors' code keeps one
          that gets no gradient, and masks padding by -1e9, which in float16 makes NaN.
        - PyG's class of that name is another model: its softmax is over keys, and no edge enters.

    Example:
        >>> from gtpool.ops.segment import level_of
        >>> read = GMT(24, 8, seeds=3, heads=2)
        >>> edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 0, 4, 3]])
        >>> level = level_of(torch.tensor([0, 0, 0, 1, 1]))
        >>> read(torch.randn(5, 24), edges, level).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        seeds: int,
        *,
        heads: int = 1,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        names = ("in_channels", "width", "seeds", "heads")
        for name, count in zip(names, (in_channels, width, seeds, heads), strict=True):
            check_count(name, count)
        if in_channels % heads or width % heads:
            raise ValueError(
                f"heads must divide in_channels={in_channels} and width={width}, got heads={heads}"
            )
        self.in_channels, self.out_channels = in_channels, width
        self.heads, self.layer_norm = heads, layer_norm
        self.seeds = nn.Parameter(torch.empty(seeds, in_channels))
        self.seed = nn.Parameter(torch.empty(1, width))
        self.gather = _Block(in_channels, in_channels, seeds, heads, layer_norm, GCNConv)
        self.mix = _Block(in_channels, width, seeds, heads, layer_norm)
        self.total = _Block(width, width, 1, heads, layer_norm)
        self.project = nn.Linear(width, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.LayerNorm | GCNConv):
                part.reset_parameters()
        with torch.no_grad():
            for seeds in (self.seeds, self.seed):
                nn.init.xavier_uniform_(seeds.unsqueeze(0))  # one set of seeds, not a linear map

    def forward(self, x: Tensor, edge_index: Tensor, level: Level) -> Tensor:
        """Read out a batch of graphs, [N, in_channels] -> [G, width].

        Args:
            x: Node features, [N, in_channels].
            edge_index: Source and target of each edge, [2, E].
            level: The layout of the batch.
        """
        query = self.gather.query(self.seeds)  # [k, in_channels]
        share, value = self.gather.shares(query, x, edge_index)  # [H, N, k], [H, N, C]
        parts = [products(*head, level) for head in zip(share, value, strict=True)]
        h = self.gather(query, torch.cat(parts, -1))  # [G, k, in_channels]
        h = self.mix.attend(h, h)  # [G, k, width]
        return self.project(self.total.attend(self.seed, h).squeeze(1))

    def __repr__(self) -> str:
        """Name the class, the widths and the choices that change the result."""
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, "
            f"seeds={self.seeds.size(0)}, heads={self.heads}, layer_norm={self.layer_norm})"
        )


class _Block(nn.Module):
    """Queries Q that share n rows among them, and what each does with its part."""

    def __init__(
        self,
        in_channels: int,
        width: int,
        queries: int,
        heads: int,
        layer_norm: bool,
        convolve: Callable[[int, int], nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(in_channels, width)
        self.key = convolve(in_channels, width) if queries > 1 else None
        self.value = convolve(in_channels, width)
        self.inner = nn.LayerNorm(width) if layer_norm else nn.Identity()
        self.feed = nn.Linear(width, width)
        self.outer = nn.LayerNorm(width) if layer_norm else nn.Identity()

    def attend(self, queries: Tensor, x: Tensor) -> Tensor:
        """Let queries share the rows of each graph, [G, Q, in] and [G, n, in] -> [G, Q, width]."""
        query = self.query(queries)
        share, value = self.shares(query, x)
        return self(query, (share.mT @ value).transpose(-3, -2).flatten(-2))

    def shares(self, query: Tensor, x: Tensor, *edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """Give the share of each mapped query in each row, and the rows' values, head by head.

        Args:
            query: Mapped queries, [..., Q, width].
            x: What is shared, [..., n, in].
            edge_index: The edges, for a convolution.

        Returns:
            Shares [..., H, n, Q], which sum to one over the queries, and values [..., H, n, C].
        """
        value = self._split(self.value(x, *edge_index))
        if self.key is None:
            return torch.ones_like(value[..., :1]), value
        key = self._split(self.key(x, *edge_index))
        logits = key @ self._split(query).mT * query.size(-1) ** -0.5
        share = logits.softmax(-1)
        return share, value.to(share.dtype)  # which autocast makes float32

    def forward(self, query: Tensor, attended: Tensor) -> Tensor:
        """Add to mapped queries what they attended to, then what the row-wise network makes."""
        z = self.inner(query + attended)
        return self.outer(z + self.feed(z).relu())

    def _split(self, rows: Tensor) -> Tensor:
        """Set the heads apart, [..., n, width] -> [..., H, n, C]."""
        return rows.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
