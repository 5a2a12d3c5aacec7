"""What a layer asks of a batch of graphs. A layer never sees how the batch is stored.

Three classes answer: ``PackedGraph`` (any sizes), ``PaddedGraph`` (fixed capacity, R runs, plain
PyTorch or Triton) and ``ClusterGraph`` (as many clusters of each graph, after a merge).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from gtpool.ops.adjacency import Adjacency
from gtpool.ops.directed_edges import DirectedEdges
from gtpool.ops.sample import Order
from gtpool.spec import Connect

Kept = Any
"""Which rows stay: what ``keep`` gave, to hand on."""


class RowLayout(Protocol):
    """Which row belongs to which graph; N rows of G graphs."""

    @property
    def real(self) -> Tensor | None:
        """Whether each row is a node, bool [N]; None where all are."""
        ...

    @property
    def graphs(self) -> int:
        """Number G of graphs, or of places for them."""
        ...

    @property
    def real_graphs(self) -> Tensor | None:
        """Whether each place holds a graph, bool [G]; None where all do."""
        ...

    @property
    def num_rows(self) -> int:
        """Number N of rows."""
        ...

    def mask_padding(self, x: Tensor) -> Tensor:
        """Set padding to zero, [N, D]."""
        ...

    def broadcast(self, value: Tensor) -> Tensor:
        """Give each row the entry of its graph, zeros on padding, [G, D] -> [N, D]."""
        ...

    def total(self, x: Tensor) -> Tensor:
        """Add up the rows of each graph, [N, D] -> [G, D]."""
        ...

    def mean(self, x: Tensor) -> Tensor:
        """Average the rows of each graph, [N, D] -> [G, D]."""
        ...

    def maximum(self, x: Tensor) -> Tensor:
        """Take the largest entry of each column over the rows of each graph, [N, D] -> [G, D]."""
        ...

    def mean_max(self, x: Tensor) -> Tensor:
        """Set mean and maximum side by side, [N, D] -> [G, 2D]."""
        ...

    def softmax(self, logit: Tensor) -> Tensor:
        """Divide one among the rows of each graph, [N]."""
        ...

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        """Add up outer products over each graph, [N, H, A] and [N, H, B] -> [G, H, A, B]."""
        ...

    def topk_rows(self, x: Tensor, nodes: int) -> Tensor:
        """Give the first rows of each graph, descending by the last channel, [G, nodes, D]."""
        ...

    def positions(self) -> tuple[Tensor, Tensor]:
        """Give each row its number in its graph and the size of that graph, [N] each."""
        ...


class Attention(Protocol):
    """The self-attention of each graph, of which all rows are scored and some are kept."""

    def scores(
        self,
        theta_global: Tensor,
        theta_local: Tensor,
        lam: float,
        act: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Score every row by equations (5) to (7) of GTPool, [N]."""
        ...

    def rows(self, kept: Kept) -> Tensor:
        """Give the attended values of the kept rows, [K, D]."""
        ...


class Backend(Protocol):
    """A batch of graphs at one level of a network."""

    @property
    def rows(self) -> RowLayout:
        """Which row belongs to which graph."""
        ...

    def with_edge_mask(self, mask: Tensor) -> "Backend":
        """Scale what edges carry by a mask of PyG's ``Explainer``, [E]."""
        ...

    def gcn_sum(self, x: Tensor) -> Tensor:
        """Multiply by D^-1/2 (A + I) D^-1/2; a listed loop does not count beside I, [N, D]."""
        ...

    def weighted_gcn_sum(self, x: Tensor) -> Tensor:
        """Do the same with the weights of edges; a listed loop stands for its entry of I."""
        ...

    def coarse_gcn_sum(self, x: Tensor) -> Tensor:
        """Do the same with the weights of edges, loops and I added up."""
        ...

    def gin_sum(self, x: Tensor) -> Tensor:
        """Multiply by A + I, [N, D]."""
        ...

    def bond_sum(
        self, x: Tensor, encoder: nn.Module, root: Tensor | None, *, scaled: bool
    ) -> Tensor:
        """Give s_i (s_i o_i + sum of s_j relu(x_j + e_ij) over edges j -> i), [N, D].

        Args:
            x: Features of the rows, [N, D].
            encoder: From the features of an edge to e.
            root: The r of o_i = relu(x_i + r); None makes o_i = x_i.
            scaled: Whether s is d^-1/2, d one more than the edges that leave a row; else it is 1.
        """
        ...

    def encode_edges(self, encoder: nn.Module) -> Tensor:
        """Encode the features of the edges, in the order of ``directed_edges``, [E, D]."""
        ...

    def directed_edges(self) -> DirectedEdges:
        """Give the edges for messages that each edge carries itself."""
        ...

    def gat_sum(self, x: Tensor, sent: Tensor, got: Tensor) -> Tensor:
        """Average each row and its neighbours by attention, as PyG's ``GATConv``, [N, H, C]."""
        ...

    def attention(
        self,
        x: Tensor,
        attn: Tensor,
        weights: tuple[Tensor, Tensor, Tensor],
        heads: int,
        *,
        kind: Literal["exact", "linear"],
        score_grad: bool,
        ratio: float,
    ) -> Attention:
        """Attend inside each graph.

        Args:
            x: What values are made of, [N, D].
            attn: What queries and keys are made of, [N, D].
            weights: Of the maps to queries, keys and values, [D, D] each.
            heads: Attention heads.
            kind: "exact" or "linear".
            score_grad: Whether the scores need a gradient.
            ratio: Share of rows that will be kept.
        """
        ...

    def keep(self, score: Tensor, ratio: float, *, sampler: str, order: Order) -> Kept:
        """Choose the rows that stay; equal scores tie whatever rounding did to them."""
        ...

    def take(self, x: Tensor, kept: Kept) -> Tensor:
        """Take the kept rows, [N, ...] -> [K, ...]."""
        ...

    def subgraph(
        self, kept: Kept, ratio: float, score: Tensor, connect: Connect, *, edges: bool = True
    ) -> "Backend":
        """Give the graphs of the kept rows.

        Args:
            kept: The rows that stay.
            ratio: Share of rows that stay.
            score: Score of every row, which breaks ties between nearest kept rows, [N].
            connect: Edges between the kept rows; see ``gtpool.pool.layer.DropPool``.
            edges: Whether anything will ask for edges.
        """
        ...

    def coarsen(self, x: Tensor, steps: int) -> "Pooled":
        """Take the next step of a chain of clusterings: features in its Haar basis, and clusters.

        Args:
            x: Features of the rows, [N, D].
            steps: Steps of a chain that is built where the batch has none.
        """
        ...

    def adjacency(self, dtype: torch.dtype, *, weighted: bool) -> Adjacency:
        """Give the adjacency matrices, for poolers that merge rows."""
        ...

    def merged(self, coarse: Tensor) -> "Backend":
        """Give graphs of clusters with these weights between them, [G, C, C]."""
        ...


class Pooled(NamedTuple):
    """What a pooling step leaves."""

    x: Tensor
    """Features of the rows that stay, or of clusters, [K, D]."""
    graph: Backend
    """Their graphs."""
    loss: Tensor | None = None
    """Auxiliary loss of each graph, [G]."""


class Pooler(Protocol):
    """A pooling layer, as a network calls it."""

    def pool(self, x: Tensor, graph: Backend, *, edges: bool = True) -> Pooled:
        """Take one step; without ``edges`` nothing will ask for edges after it."""
        ...
