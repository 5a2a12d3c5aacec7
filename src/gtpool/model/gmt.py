"""GMT: attention from learned seeds to nodes, self-attention of seeds, then one vector per graph.

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
    r"""Read-out by attention from seeds S to the nodes, then from one seed to those seeds.

    .. math::
        \mathrm{GMT}(H, A) &= W\,\mathrm{GMPool}_1(\mathrm{SelfAtt}(\mathrm{GMPool}_k(H, A))) \\
        \mathrm{GMPool}_k(H, A) &= \mathrm{block}(S W_Q, \mathrm{GCN}_K(H, A),
                                   \mathrm{GCN}_V(H, A)) \\
        \mathrm{SelfAtt}(H) &= \mathrm{block}(H W_Q, H W_K, H W_V) \\
        \mathrm{block}(Q, K, V) &= \mathrm{LN}(Z + \mathrm{relu}(Z W_F)), \quad
            Z = \mathrm{LN}(Q + \mathrm{softmax}_Q(Q K^\top / \sqrt{D})\, V)

    :math:`\mathrm{GMPool}_1` uses linear maps instead of GCN. D is the width of a block. The
    softmax is over the queries Q, so the weights of each key sum to 1 and values add up as in a
    sum read-out. SelfAtt's weights matter only through its ReLU and LN, because
    :math:`\mathrm{GMPool}_1` sums over all seeds.

    Args:
        in_channels: Width of the node features; the paper concatenates the outputs of three GCNs.
        width: Width of the output; the first block has width ``in_channels``.
        seeds: Seeds k of the first block; the paper uses a quarter of the mean number of nodes.
        heads: Attention heads, a divisor of both widths.
        layer_norm: Apply LN; otherwise LN is the identity.

    Differs from the paper:
        - The paper does not specify the softmax axis, the scale, rFF or the widths. They follow the
          authors' code and scripts. There the softmax is over queries; for one query this is a
          plain sum, which the paper's proof of injectivity needs.
        - As in that code, heads have no :math:`W_O`, the scale uses the whole width, and the
          residual is the mapped query, so that SelfAtt can reduce ``in_channels`` to ``width``.
        - The equations have LN. Eight of the ten scripts omit it (MUTAG and BBBP use it); so does
          this default. The scripts use 1, 2, 4 or 8 heads; the default is 1, as in the code.
        - A block with one query has no :math:`W_K`, because its softmax is constant. The authors'
          code keeps one without a gradient, and masks padding by -1e9, which gives NaN in float16.
        - PyG's class of the same name is a different model: softmax over keys, no edges.

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
        """Reinitialise all parameters."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.LayerNorm | GCNConv):
                part.reset_parameters()
        with torch.no_grad():
            for seeds in (self.seeds, self.seed):
                nn.init.xavier_uniform_(seeds.unsqueeze(0))  # one set of seeds, not a linear map

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Return one vector per graph, [N, in_channels] -> [G, width].

        Args:
            x: Node features, [N, in_channels].
            graph: The graphs of the batch.
        """
        query = self.gather.query(self.seeds)  # [k, in_channels]
        value = cast("GCNConv", self.gather.value)
        key = cast("GCNConv | None", self.gather.key)
        near = with_edge_mask(value, graph).gcn_sum(x)  # shared by keys and values
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
        """Return the weights of each row over the seeds, [k, W] and [N, W] -> [N, H, k]."""
        query = query if query.dim() == 3 else query.unsqueeze(0)
        query = _split(query, self.heads)  # [R, H, k, C]
        key = _split(key.unflatten(0, (query.size(0), -1)), self.heads)  # [R, H, N, C]
        width = self.heads * query.size(-1)
        return (key @ query.mT * width**-0.5).softmax(-1).transpose(1, 2).flatten(0, 1)

    def __repr__(self) -> str:
        """Return the class name, the widths and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, {self.out_channels}, "
            f"seeds={self.seeds.size(0)}, heads={self.heads}, layer_norm={self.layer_norm})"
        )


class _AttentionBlock(nn.Module):
    """Attention block of Q queries over rows, with its linear maps and norms."""

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
        """Return the self-attention of each graph's rows, [G, k, in] -> [G, k, width]."""
        query, value = self.query(h), self.value(h)
        if self.key is None:
            return query + value
        key, split = self.key(h), _split(query, self.heads)
        share = (_split(key, self.heads) @ split.mT * query.size(-1) ** -0.5).softmax(-1)
        taken = share.mT @ _split(value, self.heads).to(share.dtype)  # autocast makes it float32
        return query + taken.transpose(1, 2).flatten(2)

    def forward(self, z: Tensor) -> Tensor:
        """Return LN(Z + relu(Z W_F)) of Z = LN(z)."""
        z = self.inner(z)
        return self.outer(z + self.feed(z).relu())


def _split(rows: Tensor, heads: int) -> Tensor:
    """Split the width into heads, [..., n, width] -> [..., H, n, C]."""
    return rows.unflatten(-1, (heads, -1)).transpose(-3, -2)
