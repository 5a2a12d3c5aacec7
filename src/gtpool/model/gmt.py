"""GMT: a few learned seeds gather the nodes of a graph, talk to each other, and become one vector.

Baek, Kang, Hwang: "Accurate Learning of Graph Representations with Graph Multiset Pooling",
arXiv 2102.11533.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from gtpool.graph import check_count
from gtpool.nn import LayerNorm, Linear, with_edge_mask
from gtpool.ops.backend import Backend
from gtpool.ops.runs import linear, per_run


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
        >>> from gtpool.ops.packed import PackedGraph
        >>> read = GMT(24, 8, seeds=3, heads=2)
        >>> edges = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 0, 4, 3]])
        >>> graph = PackedGraph.of(edges, torch.tensor([0, 0, 0, 1, 1]))
        >>> read(torch.randn(5, 24), graph).shape
        torch.Size([2, 8])
    """

    reads_edges = True

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
        self.gather = _AttentionBlock(in_channels, in_channels, seeds, heads, layer_norm, GCNConv)
        self.mix = _AttentionBlock(in_channels, width, seeds, heads, layer_norm)
        self.total = _AttentionBlock(width, width, 1, heads, layer_norm)
        self.project = Linear(width, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.LayerNorm | GCNConv):
                part.reset_parameters()
        with torch.no_grad():
            for seeds in (self.seeds, self.seed):
                nn.init.xavier_uniform_(seeds.unsqueeze(0))  # one set of seeds, not a linear map

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Read out a batch of graphs, [N, in_channels] -> [G, width].

        Args:
            x: Node features, [N, in_channels].
            graph: The graphs of the batch.
        """
        query = self.gather.query(self.seeds)  # [k, in_channels]
        value = cast("GCNConv", self.gather.value)
        key = cast("GCNConv | None", self.gather.key)
        near = with_edge_mask(value, graph).gcn_sum(x)  # one sum for both maps
        taken = linear(near, value.lin.weight, value.bias)
        if key is None:
            taken = graph.rows.total(taken).unsqueeze(1)
        else:
            share = self._shares(query, linear(near, key.lin.weight, key.bias))  # [N, H, k]
            taken = graph.rows.products(share, taken.unflatten(1, (self.heads, -1)).to(share.dtype))
            taken = taken.transpose(1, 2).flatten(2)
        h = self.gather(per_run(torch.add, taken, query, 2))  # [G, k, in_channels]
        h = self.mix(self.mix.attended(h))  # [G, k, width]
        asked = self.total.query(self.seed)
        taken = per_run(torch.add, self.total.value(h).sum(1, keepdim=True), asked, 2)
        return self.project(self.total(taken).squeeze(1))

    def _shares(self, query: Tensor, key: Tensor) -> Tensor:
        """Divide each row among the seeds of its run, [k, W] and [N, W] -> [N, H, k]."""
        query = query if query.dim() == 3 else query.unsqueeze(0)
        query = _split(query, self.heads)  # [R, H, k, C]
        key = _split(key.unflatten(0, (query.size(0), -1)), self.heads)  # [R, H, N, C]
        width = self.heads * query.size(-1)
        return (key @ query.mT * width**-0.5).softmax(-1).transpose(1, 2).flatten(0, 1)

    def __repr__(self) -> str:
        """Name the class, the widths and the choices that change the result."""
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, "
            f"seeds={self.seeds.size(0)}, heads={self.heads}, layer_norm={self.layer_norm})"
        )


class _AttentionBlock(nn.Module):
    """The maps of queries Q that share n rows among them, and what each does with its part."""

    def __init__(
        self,
        in_channels: int,
        width: int,
        queries: int,
        heads: int,
        layer_norm: bool,
        convolve: Callable[[int, int], nn.Module] = Linear,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.query = Linear(in_channels, width)
        self.key = convolve(in_channels, width) if queries > 1 else None
        self.value = convolve(in_channels, width)
        self.inner = LayerNorm(width) if layer_norm else nn.Identity()
        self.feed = Linear(width, width)
        self.outer = LayerNorm(width) if layer_norm else nn.Identity()

    def attended(self, h: Tensor) -> Tensor:
        """Let the rows of each graph share each other, [G, k, in] -> [G, k, width]."""
        query, value = self.query(h), self.value(h)
        if self.key is None:
            return query + value
        key, split = self.key(h), _split(query, self.heads)
        share = (_split(key, self.heads) @ split.mT * query.size(-1) ** -0.5).softmax(-1)
        taken = share.mT @ _split(value, self.heads).to(share.dtype)  # autocast makes it float32
        return query + taken.transpose(1, 2).flatten(2)

    def forward(self, z: Tensor) -> Tensor:
        """Do with queries and what they took what the row-wise network makes of them."""
        z = self.inner(z)
        return self.outer(z + self.feed(z).relu())


def _split(rows: Tensor, heads: int) -> Tensor:
    """Set the heads apart, [..., n, width] -> [..., H, n, C]."""
    return rows.unflatten(-1, (heads, -1)).transpose(-3, -2)
