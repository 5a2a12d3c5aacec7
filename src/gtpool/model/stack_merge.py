"""A pass forwards through a stack of classifiers that merge nodes into clusters."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gtpool.fixed import Bonds, FixedBatch, Links, Rows
from gtpool.model.stack_pass import Pass
from gtpool.ops.merge import root_of, widen
from gtpool.ops.static_merge import Adjacent, Dense, Sparse, cluster_rows, merge
from gtpool.pool.diffpool import norm_of_difference
from gtpool.pool.mincutpool import between, cut, imbalance
from gtpool.pool.structpool import StructPool, inverse_row_sums, with_norm

if TYPE_CHECKING:
    from gtpool.model.stack import Stack

MERGES = ("mincutpool", "diffpool", "structpool")


class MergePass(Pass):
    """One pass forwards; from the second level on, rows are clusters."""

    def __init__(self, stack: "Stack", key: Tensor | None) -> None:
        super().__init__(stack, key)
        self.matrix: Tensor | None = None
        """Weights between the clusters of each graph, [RG, C, C], once there are clusters."""

    def _reads(self, batch: FixedBatch) -> list[Tensor]:
        spec = self.stack.spec
        x, links, rows = self._encode(batch), batch.links, batch.levels[0]
        reads: list[Tensor] = []
        losses: list[Tensor] = []
        for level in range(spec.levels):
            x = self._convolve(level, x, links, rows, batch.bonds)
            if spec.read_input and level == 0:
                reads.append(self._read_out(0, x, links, rows))
            dtype = torch.promote_types(x.dtype, torch.float32)
            if self.matrix is None:
                graphs = Sparse.of(links, rows, dtype)
            else:
                graphs = Dense(self.matrix.to(dtype))
            pooled, coarse, loss = self._merge(level, x, graphs)
            x, self.matrix = pooled.flatten(0, 1).to(x.dtype), coarse.to(x.dtype)
            rows = cluster_rows(rows, coarse.size(1))
            if loss is not None:
                losses.append(loss)
            reads.append(self._read_out(len(reads), x, links, rows))
        self.loss = torch.stack(losses).sum(0) if losses else None
        return reads

    def _root_degrees(self, x: Tensor, links: Links) -> Tensor | None:
        if self.matrix is None or self.stack.spec.conv == "linear":
            return super()._root_degrees(x, links)
        return (self.matrix.sum(1) + 1).rsqrt().unsqueeze(2)

    def _send(
        self,
        name: str,
        x: Tensor,
        scale: Tensor | None,
        links: Links,
        rows: Rows,
        bonds: Bonds | None,
    ) -> Tensor:
        """Convolve clusters as ``CoarseGCN`` does, nodes as without clusters."""
        if self.matrix is None or scale is None:
            return super()._send(name, x, scale, links, rows, bonds)
        x = self._multiply(x, self.weights[f"{name}.conv.lin.weight"])
        sent = scale * x.unflatten(0, self.matrix.shape[:2])
        x = (scale * torch.baddbmm(sent, self.matrix.mT, sent)).flatten(0, 1)  # (A + I)^T sent
        return self._add(x, f"{name}.conv.bias")

    def _merge(
        self, level: int, x: Tensor, graphs: Adjacent
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Pool: clusters [RG, C, D], weights between them [RG, C, C], the loss of each place."""
        pool, name = self.stack.pools[level], f"pools.{level}"
        if isinstance(pool, StructPool):
            return self._draw_together(name, x, graphs, pool.steps)
        if self.stack.spec.pool == "mincutpool":
            return self._cut_little(name, x, graphs)
        return self._keep_linked(name, x, graphs)

    def _cut_little(self, name: str, x: Tensor, graphs: Adjacent) -> tuple[Tensor, Tensor, Tensor]:
        """Pool as ``MinCutPool.forward`` does."""
        hidden = self._linear(f"{name}.hidden", x).relu()
        assign = widen(self._linear(f"{name}.out", hidden)).softmax(1)
        graphs = graphs.normalized()
        pooled, coarse, overlap = merge(graphs, assign, x)
        volume = graphs.total(graphs.degrees() * assign.square().sum(1))
        return pooled, between(coarse), cut(coarse, volume) + imbalance(overlap)

    def _keep_linked(self, name: str, x: Tensor, graphs: Adjacent) -> tuple[Tensor, Tensor, Tensor]:
        """Pool as ``DiffPool.forward`` does."""
        mapped = widen(self._multiply(x, self.weights[f"{name}.linear.weight"]))
        root = root_of(graphs.entering() + 1).unsqueeze(1)
        mapped = mapped / root
        logits = self._add((graphs.heard(mapped) + mapped) / root, f"{name}.bias")
        assign = logits.softmax(1)
        pooled, coarse, overlap = merge(graphs, assign, x)
        link = norm_of_difference(graphs.squares(), coarse, overlap)
        entropy = graphs.total(-(assign * logits.log_softmax(1)).sum(1))
        size = graphs.sizes()
        return pooled, coarse, link / size**2 + entropy / size

    def _draw_together(
        self, name: str, x: Tensor, graphs: Adjacent, steps: int
    ) -> tuple[Tensor, Tensor, None]:
        """Pool as ``StructPool.forward`` does."""
        unary = wide = widen(x)
        degree = (graphs.entering() + 1).unsqueeze(1)
        for layer in range(3):
            near = (unary + graphs.heard(unary)).to(x.dtype)
            unary = (self._linear(f"{name}.unary.{layer}", near) / degree).tanh()
        own, both = wide.square().sum(1, keepdim=True), with_norm(wide)
        inverse = inverse_row_sums(both, own, graphs.spread(graphs.total(both)))
        q, laid = unary, graphs.laid(wide)
        for _ in range(steps):
            share = q.softmax(1)
            drawn = graphs.drawn(laid, share)  # X (X^T L)
            q = unary + (drawn - own * share) * inverse
        pooled, coarse, _ = merge(graphs, q.softmax(1), x)
        return pooled, coarse, None
