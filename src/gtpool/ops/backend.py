"""Interface between layers and batches of graphs, independent of how a batch is stored.

Three classes implement it: ``PackedGraph`` (any sizes), ``PaddedGraph`` (fixed capacity, R runs,
plain PyTorch or Triton) and ``ClusterGraph`` (after a merge, with equal numbers of clusters).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from gtpool.graph import Coarsening
from gtpool.ops.adjacency import Adjacency
from gtpool.ops.directed_edges import DirectedEdges
from gtpool.ops.sample import Order
from gtpool.spec import Connect

Kept = Any
"""The kept rows: result of ``Backend.keep``, opaque to layers."""


class RowLayout(Protocol):
    """Layout of N rows in G graphs."""

    @property
    def real(self) -> Tensor | None:
        """Mask of rows that are nodes, not padding, bool [N]; None if all are nodes."""
        ...

    @property
    def graphs(self) -> int:
        """Number G of graphs, or of graph slots."""
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
        """Return the rows with padding set to zero, [N, D]."""
        ...

    def broadcast(self, value: Tensor) -> Tensor:
        """Return the value of each row's graph, zeros on padding, [G, D] -> [N, D]."""
        ...

    def total(self, x: Tensor) -> Tensor:
        """Return the sum over the rows of each graph, [N, D] -> [G, D]."""
        ...

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean over the rows of each graph, [N, D] -> [G, D]."""
        ...

    def maximum(self, x: Tensor) -> Tensor:
        """Return the maximum of each column over the rows of each graph, [N, D] -> [G, D]."""
        ...

    def mean_max(self, x: Tensor) -> Tensor:
        """Return mean and maximum, concatenated, [N, D] -> [G, 2D]."""
        ...

    def softmax(self, logit: Tensor) -> Tensor:
        """Return the softmax over the rows of each graph, [N]."""
        ...

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        """Return left^T right of each graph and head, [N, H, A] and [N, H, B] -> [G, H, A, B]."""
        ...

    def attend(self, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """Return softmax attention of each row to the rows of its graph, and log-sum-exps.

        Args:
            qkv: Queries, keys and values, finite on padding too, [N, 3, H, C].

        Returns:
            [N, H, C], and the log-sum-exp of each row of logits q·k/sqrt(C), [N, H].
        """
        ...

    def topk_rows(self, x: Tensor, nodes: int) -> Tensor:
        """Return the first rows of each graph, descending by the last channel, [G, nodes, D]."""
        ...

    def positions(self) -> tuple[Tensor, Tensor]:
        """Return the index of each row in its graph and the size of that graph, [N] each."""
        ...


class Attention(Protocol):
    """Self-attention of each graph: scores of all rows, outputs of the kept rows."""

    def scores(
        self,
        theta_global: Tensor,
        theta_local: Tensor,
        lam: float,
        act: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Return the score of every row by equations (5) to (7) of GTPool, [N]."""
        ...

    def rows(self, kept: Kept, gate: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the attention output of the kept rows, and their input of the values, [K, D].

        Args:
            kept: The kept rows.
            gate: Scores whose tanh scales the attention output, [N]; None means no scaling.
        """
        ...


class Backend(Protocol):
    """A batch of graphs at one level of a network."""

    @property
    def rows(self) -> RowLayout:
        """Layout of the rows."""
        ...

    def with_edge_mask(self, mask: Tensor) -> "Backend":
        """Return the graphs with messages scaled by a mask of PyG's ``Explainer``, [E]."""
        ...

    def gcn_sum(self, x: Tensor) -> Tensor:
        """Return D^-1/2 (A + I) D^-1/2 x; self-loops of A are ignored, [N, D]."""
        ...

    def weighted_gcn_sum(self, x: Tensor) -> Tensor:
        """Return the same with edge weights; self-loops of A replace those of I."""
        ...

    def coarse_gcn_sum(self, x: Tensor) -> Tensor:
        """Return the same with edge weights; self-loops of A and I add up."""
        ...

    def gin_sum(self, x: Tensor) -> Tensor:
        """Return (A + I) x, [N, D]."""
        ...

    def bond_sum(
        self, x: Tensor, encoder: nn.Module, root: Tensor | None, *, scaled: bool
    ) -> Tensor:
        """Return s_i (s_i o_i + sum of s_j relu(x_j + e_ij) over edges j -> i), [N, D].

        Args:
            x: Features of the rows, [N, D].
            encoder: Maps edge features to e.
            root: The r of o_i = relu(x_i + r); if None, o_i = x_i.
            scaled: If True, s is d^-1/2 with d the out-degree plus 1; else s is 1.
        """
        ...

    def encode_edges(self, encoder: nn.Module) -> Tensor:
        """Encode the features of the edges, in the order of ``directed_edges``, [E, D].

        Pairs that a pooler joined without a code get zeros.
        """
        ...

    def directed_edges(self) -> DirectedEdges:
        """Return the edges as rows, for messages between edges."""
        ...

    def gat_sum(self, x: Tensor, sent: Tensor, got: Tensor) -> Tensor:
        """Return the attention-weighted mean of each row and its neighbours, [N, H, C].

        Logits are those of PyG's ``GATConv``: ``sent`` of sources and ``got`` of targets, [N, H].
        """
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
        """Return the self-attention inside each graph.

        Args:
            x: Input of the values, [N, D].
            attn: Input of the queries and keys, [N, D].
            weights: Weights of queries, keys and values, [D, D] each.
            heads: Attention heads.
            kind: "exact" or "linear".
            score_grad: Whether the scores need a gradient.
            ratio: Share of rows that will be kept.
        """
        ...

    def keep(self, score: Tensor, ratio: float, *, sampler: str, order: Order) -> Kept:
        """Choose the rows that stay; equal scores tie whatever rounding did to them.

        Args:
            score: Of each row, [N].
            ratio: Share of rows that stay.
            sampler: A key of ``SAMPLERS``.
            order: A name of ``NODE_ORDERS``: "structure" sorts by score, ties by ``node_colours``.
        """
        ...

    def take(self, x: Tensor, kept: Kept) -> Tensor:
        """Return the kept rows, [N, ...] -> [K, ...]."""
        ...

    def subgraph(
        self, kept: Kept, ratio: float, score: Tensor, connect: Connect, *, edges: bool = True
    ) -> "Backend":
        """Return the graphs of the kept rows.

        Args:
            kept: The kept rows.
            ratio: Share of kept rows.
            score: Score of every row, which breaks ties between nearest kept rows, [N].
            connect: Edges between the kept rows; see ``gtpool.pool.layer.DropPool``.
            edges: Whether edges are needed; if False, they are undefined.
        """
        ...

    def coarsen(self, x: Tensor, coarsening: Coarsening) -> "Pooled":
        """Return the next coarsening step: pooled features, and clusters.

        Args:
            x: Features of the rows, [N, D].
            coarsening: The chain that is built if the batch has none.
        """
        ...

    def adjacency(self, dtype: torch.dtype, *, weighted: bool) -> Adjacency:
        """Return the adjacency matrices, for poolers that merge rows."""
        ...

    def merged(self, coarse: Tensor) -> "Backend":
        """Return graphs of clusters with the given weights between them, [G, C, C]."""
        ...


class Pooled(NamedTuple):
    """Result of a pooling step."""

    x: Tensor
    """Features of the kept rows, or of clusters, [K, D]."""
    graph: Backend
    """Graphs of the kept rows or clusters."""
    loss: Tensor | None = None
    """Auxiliary loss of each graph, [G]."""


class Pooler(Protocol):
    """Interface of a pooling layer inside a network."""

    def pool(self, x: Tensor, graph: Backend, *, edges: bool = True) -> Pooled:
        """Return the pooled graphs; with ``edges=False`` their edges are undefined."""
        ...
