"""Self-attention of a packed batch: scores of all rows, outputs of the kept rows."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from gtpool.graph import GraphLayout
from gtpool.ops.attention_linear import LinearAttention
from gtpool.ops.attention_materialized import MaterializedAttention
from gtpool.ops.attention_streamed import (
    BatchAttention,
    StreamedAttention,
    attend_no_grad,
    linear_known,
)
from gtpool.ops.bucket import each_head
from gtpool.ops.dense import linear
from gtpool.ops.segment import gather_by_graph, segment_sum


class Scores(NamedTuple):
    """GTPool's scores of each node, summed over heads, [N] each."""

    score: Tensor
    """Raw score s; the wheel takes its softmax over each graph."""
    global_score: Tensor
    """S_g: score from attention to the whole graph."""
    local_score: Tensor
    """S_l: score from attention to the neighbours and the node itself."""


class PackedAttention:
    """Attention inside each graph of a packed batch.

    With one head, Q K^T = (X W_Q^T W_K) X^T and A V = (A X) W_V^T. X then serves as key and value:
    W_K is not applied to rows, and W_V only to the kept rows.

    Args:
        x: Input of the values, [N, D].
        attn: Input of the queries and keys, [N, D].
        weights: Weights of queries, keys and values, [D, D] each.
        heads: Attention heads.
        edge_index: Source and target of each edge, [2, E].
        level: The layout of the batch.
        kind: "exact" or "linear".
        score_grad: Whether scores need a gradient. If not, only the kept rows get gradients.
        ratio: Share of rows that will be kept.
    """

    def __init__(
        self,
        x: Tensor,
        attn: Tensor,
        weights: tuple[Tensor, Tensor, Tensor],
        heads: int,
        edge_index: Tensor,
        level: GraphLayout,
        *,
        kind: str,
        score_grad: bool,
        ratio: float,
    ) -> None:
        query, key, self.value = weights
        self.heads, self.edge_index, self.score_grad, self.ratio = (
            heads,
            edge_index,
            score_grad,
            ratio,
        )
        self.x, self.attn = x, attn
        if heads > 1:
            self.weight = query
            self.k, self.v = self._split(linear(attn, key)), self._split(linear(x, self.value))
        else:
            self.weight = key.T @ query
            self.v = self._split(x)
            self.k = self.v if attn is x else self._split(attn)
        with torch.set_grad_enabled(torch.is_grad_enabled() and score_grad):
            self.queries = linear(attn, self.weight)
            parts = (self._split(self.queries), self.k, self.v, level)
            self.attention: BatchAttention
            if kind == "linear":
                self.attention = LinearAttention.of(*parts)
            else:
                self.attention = (
                    StreamedAttention.of(*parts) if score_grad else attend_no_grad(*parts)
                )

    def scores(
        self,
        theta_global: Tensor,
        theta_local: Tensor,
        lam: float,
        act: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Return the score of every row by equations (5) to (7) of GTPool, [N]."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.score_grad):
            kernel = None if self.score_grad else getattr(self.attention, "scores", None)
            atomic = not torch.are_deterministic_algorithms_enabled()
            if kernel is not None and atomic and isinstance(act, nn.Tanh):
                return kernel(self._thetas(theta_global, theta_local), lam, self.edge_index)
            return self.parts(theta_global, theta_local, lam, act).score

    def parts(
        self,
        theta_global: Tensor,
        theta_local: Tensor,
        lam: float,
        act: Callable[[Tensor], Tensor],
    ) -> Scores:
        """Return the global, local and total score of every node."""
        v, edge_index = self.v, self.edge_index
        thetas = self._thetas(theta_global, theta_local)
        near, far = (thetas @ v.permute(1, 2, 0)).unbind(1)  # V theta, [H, N] each
        nodes = torch.arange(v.size(0), device=v.device)
        source, target = torch.cat([edge_index, nodes.expand(2, -1)], 1)  # of A + I
        listed = pad(edge_index[0] == edge_index[1], (0, v.size(0)))
        weight = self.attention.edge_weights(source, target)  # [E + N, H]
        weight = weight.masked_fill(listed.unsqueeze(1), 0.0).flatten()
        source, target = each_head(source, self.heads), each_head(target, self.heads)
        sent = weight * gather_by_graph(near.T.flatten(), source)
        local = segment_sum(sent, target, near.numel()).view(-1, self.heads)
        global_score = act(self.attention.project(far.T, thetas[:, 1])).sum(1)
        local_score = act(local).sum(1)
        return Scores(lam * global_score + (1 - lam) * local_score, global_score, local_score)

    def rows(self, kept: Tensor, gate: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the attention output of the kept rows, and their input of the values, [K, D]."""
        pooled, own = self._outputs(kept)
        if gate is not None:
            gate = gate.index_select(0, kept).tanh().unsqueeze(1)
            pooled = (pooled * gate).to(pooled.dtype)  # the score of a bf16 layer is float32
        return pooled, own

    def _outputs(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        whole = self.attention
        if isinstance(whole, MaterializedAttention) and self._one_matrix(whole.v.dtype):
            weights = self.weight, self.value
            return whole.rows_of_one_head(self.x, weights, self.queries, kept, self.ratio)
        return self._rows(kept), self.x.index_select(0, kept)

    def _rows(self, kept: Tensor) -> Tensor:
        if self.score_grad and isinstance(self.attention, StreamedAttention | LinearAttention):
            rows = self.attention.out.index_select(0, kept)
        else:
            asking = self.attn.index_select(0, kept)
            q = self._split(linear_known(asking, self.weight, self.queries, kept))
            rows = self.attention.rows(q, self.k, self.v, kept, self.ratio)
        return rows.flatten(1) if self.heads > 1 else linear(rows.flatten(1), self.value)

    def _one_matrix(self, dtype: torch.dtype) -> bool:
        """Whether X itself is key, value and input of the queries, all of one dtype."""
        parts = self.x, self.weight, self.value, self.queries
        same = all(part.dtype == dtype for part in parts)
        return same and self.k is self.v and self.heads == 1

    def _thetas(self, theta_global: Tensor, theta_local: Tensor) -> Tensor:
        """Return theta_l and theta_g, multiplied by W_V if there is one head, [H, 2, C]."""
        thetas = torch.stack([theta_local, theta_global], 1)
        return thetas @ self.value if self.heads == 1 else thetas

    def _split(self, rows: Tensor) -> Tensor:
        return rows.unflatten(1, (self.heads, -1))
