"""A pass forwards through a stack of classifiers, as each of them does it alone."""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import gelu

from gtpool.fixed import Bonds, FixedBatch, Links, Rows
from gtpool.model.stack_reads import Reads
from gtpool.ops.dropout import next_key
from gtpool.ops.noise import noise_of
from gtpool.ops.static_edges import gat_sum
from gtpool.ops.steps import Chosen, plain
from gtpool.pool.gtpool import GTPool
from gtpool.pool.sagpool import SAGPool
from gtpool.pool.topkpool import TopKPool

if TYPE_CHECKING:
    from gtpool.model.stack import Stack

_PLAIN = plain()  # not at each call: a compiler cannot follow it


class Pass(Reads):
    """One pass forwards: the weights by name, and the number of the key that comes next."""

    def __init__(self, stack: "Stack", key: Tensor | None) -> None:
        super().__init__(stack)
        self.key, self.drawn = key, 0
        self.loss: Tensor | None = None
        """After ``logits``, the auxiliary loss of each place, [RG], where the pooler has one."""

    def logits(self, batch: FixedBatch) -> Tensor:
        """Give the logits of all places for graphs, [RG, outputs]."""
        return self._head(self._reads(batch))

    def _encode(self, batch: FixedBatch) -> Tensor:
        if not self.stack.shape.node_categories:
            return batch.x
        table = self.weights["encoder.table.weight"]
        return self._multiply(batch.x.to(table.dtype), table.mT)

    def _reads(self, batch: FixedBatch) -> list[Tensor]:
        """Go through the levels, and give what is read out of them."""
        stack, spec = self.stack, self.stack.spec
        x, links = self._encode(batch), batch.links
        reads: list[Tensor] = []
        for level in range(spec.levels):
            rows = batch.levels[level if stack.pools else 0]
            x = self._convolve(level, x, links, rows, batch.bonds)
            if not stack.pools:
                continue
            if spec.read_input and level == 0:
                reads.append(self._read_out(len(reads), x, links, rows))
            after = batch.levels[level + 1]
            x, chosen = self._pool(level, x, links, rows, after)
            if level + 1 < spec.levels or spec.readout == "gmt":
                links = self.steps.follow(links, chosen)
            reads.append(self._read_out(len(reads), x, links, after))
        if not stack.pools:
            reads.append(self._read_out(0, x, links, batch.levels[0]))
        return reads

    def _head(self, reads: list[Tensor]) -> Tensor:
        stack, spec = self.stack, self.stack.spec
        h = torch.cat(reads, 1) if spec.combine == "cat" else sum(reads[1:], reads[0])
        for number in (0, 3):
            h = self._linear(f"head.{number}", h).relu()
            h = self._dropout(h, spec.dropout)
        logits = self._linear("head.6", h).unflatten(0, (stack.runs, -1))
        scale, shift = (self.weights[name].unsqueeze(1) for name in ("scale", "shift"))
        return (logits * scale + shift).flatten(0, 1)

    def _convolve(
        self, level: int, x: Tensor, links: Links, rows: Rows, bonds: Bonds | None
    ) -> Tensor:
        spec = self.stack.spec
        outputs: list[Tensor] = []
        scale = self._root_degrees(x, links)
        for number in range(spec.convs_per_level):
            name, before = f"levels.{level}.{number}", x
            x = self._send(f"{name}.conv", x, scale, links, rows, bonds)
            if spec.norm == "batch":
                x = self._batch_norm(f"{name}.norm", x, rows)
            elif spec.norm == "layer":
                x = self._layer_norm(f"{name}.norm", x)
            x = x.relu()
            if spec.residual and before.size(1) == x.size(1):
                x = x + before
            outputs.append(x)
        return torch.cat(outputs, 1) if spec.jump else x

    def _send(
        self,
        name: str,
        x: Tensor,
        scale: Tensor | None,
        links: Links,
        rows: Rows,
        bonds: Bonds | None,
    ) -> Tensor:
        """Convolve once."""
        if self.stack.spec.conv in ("gin", "gine"):
            x = self._sum_of_all(name, x, links, bonds)
            for layer in (0, 2):
                x = self._linear(f"{name}.conv.nn.{layer}", x).relu()
            return self._batch_norm(f"{name}.conv.nn.4", x, rows)
        if self.stack.spec.conv == "gat":
            return self._attend_neighbours(f"{name}.conv", x, links)
        if scale is None:
            return self._linear(f"{name}.linear", x)
        return self._pass_on(name, x, scale, links, bonds)

    def _sum_of_all(self, name: str, x: Tensor, links: Links, bonds: Bonds | None) -> Tensor:
        """Add to each row what its neighbours send, that of a GIN or, with bonds, of a GINE."""
        if self.stack.spec.conv == "gin":
            return self.steps.gin_sum(x, links)
        table = self.weights[f"{name}.edges.table.weight"]
        table = torch.cat([table, torch.zeros_like(table[:, :1])], 1)
        all_count = (links.origin >= 0).to(table.dtype)
        summed = self.steps.bond_sum(x, table, all_count, links, _known(bonds))
        return summed - x.relu() + x  # of a row itself there is relu(x + 0) in the sum

    def _attend_neighbours(self, name: str, x: Tensor, links: Links) -> Tensor:
        """Convolve as a GAT; there is no kernel for it."""
        x = self._multiply(x, self.weights[f"{name}.lin.weight"])
        by_head = x.unflatten(1, self.weights[f"{name}.att_src"].shape[-2:])
        sent, got = (
            self._each(by_head, torch.mul, self.weights[f"{name}.att_{end}"].squeeze(1)).sum(2)
            for end in ("src", "dst")
        )
        return self._add(gat_sum(by_head, sent, got, links).flatten(1), f"{name}.bias")

    def _root_degrees(self, x: Tensor, links: Links) -> Tensor | None:
        """Give d^(-1/2) of each row as the convolution counts it; None if it does not, [N]."""
        if self.stack.spec.conv == "gcn":
            return self.steps.root_degrees(links, x)
        if self.stack.spec.conv == "ogb-gcn":
            return self.steps.root_out_degrees(links, self.stack.theta)
        return None

    def _pass_on(
        self, name: str, x: Tensor, scale: Tensor, links: Links, bonds: Bonds | None
    ) -> Tensor:
        """Convolve by a matrix that degrees scale: that of a GCN, or OGB's."""
        if self.stack.spec.conv == "gcn":
            return self._gcn(f"{name}.conv", x, scale, links)
        table, root = (self.weights[f"{name}.{part}"] for part in ("bonds.table.weight", "root"))
        table = torch.cat([table, root.unsqueeze(1)], 1)
        x = self._linear(f"{name}.linear", x)
        return self.steps.bond_sum(x, table, scale, links, _known(bonds))

    def _pool(
        self, level: int, x: Tensor, links: Links, rows: Rows, after: Rows
    ) -> tuple[Tensor, Chosen]:
        pool, name = self.stack.pools[level], f"pools.{level}"
        if isinstance(pool, SAGPool | TopKPool):
            return self._drop_and_scale(pool, name, x, links, rows, after)
        return self._attend_and_drop(cast("GTPool", pool), name, x, links, rows, after)

    def _drop_and_scale(
        self, pool: SAGPool | TopKPool, name: str, x: Tensor, links: Links, rows: Rows, after: Rows
    ) -> tuple[Tensor, Chosen]:
        """Pool as the ``forward`` of SAGPool and TopKPool does."""
        if isinstance(pool, SAGPool):
            value = self._multiply(x, self.weights[f"{name}.theta"].unsqueeze(1))
            value = value.to(torch.promote_types(value.dtype, torch.float32))
            scale = self.steps.root_degrees(links, value)
            raw = self._add(self.steps.gcn_sum(value, scale, links), f"{name}.bias")
        else:
            direction = self.weights[f"{name}.direction"].unsqueeze(1)
            raw = self._multiply(x, direction)
            raw = self._each(raw, torch.div, direction.norm(dim=2))
        score = raw.tanh()
        chosen = self.steps.choose(
            (raw if pool.sampler == "topk" else score).detach().squeeze(1),
            rows,
            after,
            sampler=pool.sampler,
            order=pool.order,
            longest=self.stack.longest,
        )
        scaled = self.steps.take(x, chosen) * self.steps.take(score, chosen)
        return scaled.to(x.dtype), chosen

    def _attend_and_drop(
        self, pool: GTPool, name: str, x: Tensor, links: Links, rows: Rows, after: Rows
    ) -> tuple[Tensor, Chosen]:
        """Pool as ``GTPool.forward`` does, equation by equation."""
        steps, longest = self.steps, self.stack.longest
        weight = torch.cat(
            [self.weights[f"{name}.{part}.weight"] for part in ("query", "key", "value")], 1
        )
        qkv = self._multiply(x, weight).unflatten(1, (3, pool.heads, -1))
        theta_global, theta_local = (
            self.weights[f"{name}.theta_{part}"] for part in ("global", "local")
        )
        here = steps is _PLAIN  # where the gradient of attention is that of all rows
        with torch.set_grad_enabled(torch.is_grad_enabled() and (here or pool.gate is not None)):
            out, lse = steps.attend(qkv, rows, longest)  # (4)
        with torch.set_grad_enabled(torch.is_grad_enabled() and pool.gate is not None):
            score = steps.scores(
                qkv, out, lse, theta_global, theta_local, pool.lam, links, rows
            )  # (5)-(7)
        wheel = score.detach() if pool.temperature == 1 else score.detach() / pool.temperature
        if pool.noise is not None:
            wheel = wheel + noise_of(rows, self._next_key())
        chosen = steps.choose(
            wheel, rows, after, sampler=pool.chooser, order=pool.order, longest=longest
        )  # (8)-(13)
        pooled = steps.attended_rows(qkv, out, lse, chosen, rows, after).flatten(1)  # (14)
        if pool.gate is not None:
            pooled = pooled * steps.take(score.unsqueeze(1), chosen).tanh()
        if pool.project is not None:
            pooled = self._multiply(pooled, self.weights[f"{name}.project.weight"])
        x = pooled + steps.take(x, chosen)  # (15)
        h = self._linear(f"{name}.ffn.0", self._layer_norm(f"{name}.norm", x))
        h = self._dropout(gelu(h), pool.dropout)
        return self._linear(f"{name}.ffn.3", h) + x, chosen  # (16)

    def _dropout(self, x: Tensor, share: float) -> Tensor:
        key = self._next_key(used=share > 0)
        return x if key is None else self.steps.drop(x, share, key)

    def _next_key(self, *, used: bool = True) -> Tensor | None:
        """Count as ``set_keys`` does; give the key of what draws next, None where nothing does."""
        number = self.drawn
        self.drawn += 1
        return None if self.key is None or not used else next_key(self.key, number)

    def _batch_norm(self, name: str, x: Tensor, rows: Rows) -> Tensor:
        """Normalise over the real rows of each run, as ``nn.BatchNorm1d`` does for one."""
        weights, runs = self.weights, self.stack.runs
        x = x.unflatten(0, (runs, -1)).to(weights[f"{name}.running_mean"].dtype)
        real = (rows.batch < rows.size.numel()).to(x.dtype).view(runs, -1, 1)
        if self.stack.training:
            count = real.sum(1, keepdim=True).clamp(min=1)
            mean = (x * real).sum(1, keepdim=True) / count
            centred = (x - mean) * real
            var = centred.square().sum(1, keepdim=True) / count
            with torch.no_grad():
                seen = real.amax(1) * 0.1  # nothing is learned from a batch without graphs
                unbiased = var * count / (count - 1).clamp(min=1)
                for part, now in (("mean", mean), ("var", unbiased)):
                    held = weights[f"{name}.running_{part}"]
                    held.lerp_(now.squeeze(1), seen.expand_as(held))
        else:
            mean, var = (weights[f"{name}.running_{part}"].unsqueeze(1) for part in ("mean", "var"))
            centred = (x - mean) * real
        weight, bias = (weights[f"{name}.{part}"].unsqueeze(1) for part in ("weight", "bias"))
        # Padding is zero here: far from all real rows, a small deviation would make it very large.
        return torch.addcmul(bias, centred, (var + 1e-5).rsqrt() * weight).flatten(0, 1)


def _known(bonds: Bonds | None) -> Bonds:
    if bonds is None:
        raise ValueError("the batch has no codes of edges: give Stock.of their edge_categories")
    return bonds
