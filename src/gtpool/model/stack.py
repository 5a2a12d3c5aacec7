"""Several classifiers of one spec in one program, on batches of fixed capacity.

Parameters have a leading axis of runs, and a batch holds the graphs of all runs; what is no linear
map does not care whose graph a row belongs to. One run alone is a stack of one: the static network
that is captured, compiled and exported.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear

from gtpool.fixed import Bonds, FixedBatch, Links, Rows
from gtpool.model.classifier import Classifier
from gtpool.ops import static
from gtpool.ops.dropout import next_key
from gtpool.ops.noise import noise_of
from gtpool.ops.steps import WIDEST, Chosen, Steps, plain, steps_on
from gtpool.pool.gtpool import GTPool
from gtpool.spec import ModelSpec, ShapeSpec

POOLS = ("gtpool", "gtpool-v", "none")
CONVS = ("gcn", "gin", "ogb-gcn", "linear")
READOUTS = ("mean", "max", "sum", "mean-max")
_PLAIN = plain()  # not at each call: a compiler cannot follow it


def why_not_stacked(spec: ModelSpec, shape: ShapeSpec) -> str | None:
    """Say why a network has no static form; None if it has one."""
    options, weighted = spec.pool_options, shape.edge_weighted and spec.conv == "gcn"
    conv = f"conv {spec.conv!r}{' of weighted edges' if weighted else ''}"
    reasons = {
        f"pool {spec.pool!r} has no static form, {', '.join(POOLS)} have": spec.pool not in POOLS,
        "linear attention has no static form, exact attention has": (
            options.get("attention", "exact") != "exact"
        ),
        "only scores through tanh have a static form": options.get("act", "tanh") != "tanh",
        f"{conv} has no static form, {', '.join(CONVS)} have": (spec.conv not in CONVS or weighted),
        "conv 'ogb-gcn' needs molecules with coded bonds": (
            spec.conv == "ogb-gcn" and not shape.edge_categories
        ),
        f"readout {spec.readout!r} has no static form, {', '.join(READOUTS)} have": (
            spec.readout not in READOUTS
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class Stack(nn.Module):
    """Classifiers of one spec side by side, as one module without a look at the host.

    Args:
        models: Of one spec and shape, on one device; their weights are copied.
        longest: Nodes of the largest graph there can be.
    """

    def __init__(self, models: Sequence[Classifier], longest: int) -> None:
        super().__init__()
        first = models[0]
        reason = why_not_stacked(first.spec, first.shape)
        if reason is not None:
            raise ValueError(reason)
        self.spec, self.shape, self.ratios = first.spec, first.shape, first.ratios
        self.runs, self.longest = len(models), longest
        self.pools = [cast("GTPool", pool) for pool in first.pools]
        learned = {name for name, part in first.named_parameters() if part.requires_grad}
        states = [model.state_dict() for model in models]
        self.names = [name for name in states[0] if name in learned]
        self.shapes = [states[0][name].shape for name in self.names]
        rows = [torch.cat([state[name].flatten() for name in self.names]) for state in states]
        self.theta = nn.Parameter(torch.stack(rows))
        """All learned parameters, one row a run, [R, P]."""
        self.fixed = {
            name: torch.stack([state[name] for state in states])
            for name in states[0]
            if name not in learned
        }
        """What is not learned: frozen parameters, statistics, units of a regression, [R, ...]."""
        wide = any(pool.in_channels > WIDEST * pool.heads for pool in self.pools)
        self.steps: Steps = plain() if wide else steps_on(self.theta.device, self.theta.dtype)

    def whole(self) -> dict[str, Tensor]:
        """Give the states of all runs by the names that their classifiers have, [R, ...] each."""
        sizes = [shape.numel() for shape in self.shapes]
        theta = self.theta.detach().clone()
        parts = zip(self.names, theta.split(sizes, 1), self.shapes, strict=True)
        learned = {name: part.view(self.runs, *shape) for name, part, shape in parts}
        return learned | {name: part.clone() for name, part in self.fixed.items()}

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the runs only."""
        self.theta = nn.Parameter(self.theta.detach().index_select(0, rows))
        self.fixed = {name: part.index_select(0, rows) for name, part in self.fixed.items()}
        self.runs = rows.numel()

    def forward(self, batch: FixedBatch, key: Tensor | None = None) -> Tensor:
        """Give the logits of all places for graphs, [RG, outputs].

        Args:
            batch: The graphs of all runs.
            key: Of each run, from which dropout draws while training, int64 [R].
        """
        return _Pass(self, key if self.training else None).logits(batch)


class _Pass:
    """One pass forwards: the weights by name, and the number of the key that comes next."""

    def __init__(self, stack: Stack, key: Tensor | None) -> None:
        sizes = [shape.numel() for shape in stack.shapes]
        parts = zip(stack.names, stack.theta.split(sizes, 1), stack.shapes, strict=True)
        self.weights = stack.fixed | {
            name: part.view(stack.runs, *shape) for name, part, shape in parts
        }
        self.stack, self.key, self.drawn, self.steps = stack, key, 0, stack.steps

    def logits(self, batch: FixedBatch) -> Tensor:
        stack, spec = self.stack, self.stack.spec
        x, links = batch.x, batch.links
        if stack.shape.node_categories:
            table = self.weights["encoder.table.weight"]
            x = self._multiply(x.to(table.dtype), table.mT)
        reads: list[Tensor] = []
        for level in range(spec.levels):
            rows = batch.levels[level if stack.pools else 0]
            x = self._convolve(level, x, links, rows, batch.bonds)
            if not stack.pools:
                continue
            if spec.read_input and level == 0:
                reads.append(self._read_out(x, rows))
            after = batch.levels[level + 1]
            x, chosen = self._pool(level, x, links, rows, after)
            if level + 1 < spec.levels:
                links = self.steps.follow(links, chosen)
            reads.append(self._read_out(x, after))
        if not stack.pools:
            reads.append(self._read_out(x, batch.levels[0]))
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
        scale = self._root_degrees(x, links, rows)
        for number in range(spec.convs_per_level):
            name, before = f"levels.{level}.{number}", x
            if spec.conv == "gin":
                x = self.steps.gin_sum(x, links)
                for layer in (0, 2):
                    x = self._linear(f"{name}.conv.conv.nn.{layer}", x).relu()
                x = self._batch_norm(f"{name}.conv.conv.nn.4", x, rows)
            elif scale is None:
                x = self._linear(f"{name}.conv.linear", x)
            else:
                x = self._pass_on(f"{name}.conv", x, scale, links, bonds)
            if spec.norm == "batch":
                x = self._batch_norm(f"{name}.norm", x, rows)
            elif spec.norm == "layer":
                x = self._layer_norm(f"{name}.norm", x)
            x = x.relu()
            if spec.residual and before.size(1) == x.size(1):
                x = x + before
            outputs.append(x)
        return torch.cat(outputs, 1) if spec.jump else x

    def _root_degrees(self, x: Tensor, links: Links, rows: Rows) -> Tensor | None:
        """Give d^(-1/2) of each row as the convolution counts it; None if it does not, [N]."""
        if self.stack.spec.conv == "gcn":
            return self.steps.root_degrees(links, rows, x)
        if self.stack.spec.conv == "ogb-gcn":
            return self.steps.root_out_degrees(links, self.stack.theta)
        return None

    def _pass_on(
        self, name: str, x: Tensor, scale: Tensor, links: Links, bonds: Bonds | None
    ) -> Tensor:
        """Convolve by a matrix that degrees scale: that of a GCN, or OGB's."""
        if self.stack.spec.conv == "gcn":
            x = self._multiply(x, self.weights[f"{name}.conv.lin.weight"])
            return self._add(self.steps.gcn_sum(x, scale, links), f"{name}.conv.bias")
        if bonds is None:
            raise ValueError("the batch has no codes of edges: give Stock.of their edge_categories")
        table, root = (self.weights[f"{name}.{part}"] for part in ("bonds.table.weight", "root"))
        table = torch.cat([table, root.unsqueeze(1)], 1)
        return self.steps.bond_sum(self._linear(f"{name}.linear", x), table, scale, links, bonds)

    def _pool(
        self, level: int, x: Tensor, links: Links, rows: Rows, after: Rows
    ) -> tuple[Tensor, Chosen]:
        """Pool as ``GTPool.forward`` does, equation by equation."""
        pool, name, steps, longest = (
            self.stack.pools[level],
            f"pools.{level}",
            self.steps,
            self.stack.longest,
        )
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

    def _read_out(self, x: Tensor, rows: Rows) -> Tensor:
        read_outs = {"mean": static.mean, "max": static.maximum, "sum": static.total}
        return read_outs.get(self.stack.spec.readout, self.steps.mean_max)(x, rows)

    def _dropout(self, x: Tensor, share: float) -> Tensor:
        key = self._next_key(used=share > 0)
        return x if key is None else self.steps.drop(x, share, key)

    def _next_key(self, *, used: bool = True) -> Tensor | None:
        """Count as ``set_keys`` does; give the key of what draws next, None where nothing does."""
        number = self.drawn
        self.drawn += 1
        return None if self.key is None or not used else next_key(self.key, number)

    def _multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply the rows of each run with its matrix, [RN, I] and [R, O, I] -> [RN, O]."""
        if self.stack.runs == 1:
            return linear(x, weight.squeeze(0))
        return torch.bmm(x.unflatten(0, (self.stack.runs, -1)), weight.mT).flatten(0, 1)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        if self.stack.runs == 1:
            return linear(x, weight.squeeze(0), bias.squeeze(0))
        rows = x.unflatten(0, (self.stack.runs, -1))
        return torch.baddbmm(bias.unsqueeze(1), rows, weight.mT).flatten(0, 1)

    def _add(self, x: Tensor, name: str) -> Tensor:
        """Add to the rows of each run its vector."""
        rows = x.unflatten(0, (self.stack.runs, -1))
        return (rows + self.weights[name].unsqueeze(1)).flatten(0, 1)

    def _layer_norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        if self.stack.runs == 1:
            return layer_norm(x, x.shape[1:], weight.squeeze(0), bias.squeeze(0))
        rows = layer_norm(x, x.shape[1:]).unflatten(0, (self.stack.runs, -1))
        return torch.addcmul(bias.unsqueeze(1), rows, weight.unsqueeze(1)).flatten(0, 1)

    def _batch_norm(self, name: str, x: Tensor, rows: Rows) -> Tensor:
        """Normalise over the real rows of each run, as ``nn.BatchNorm1d`` does for one."""
        weights, runs = self.weights, self.stack.runs
        x = x.unflatten(0, (runs, -1)).to(weights[f"{name}.running_mean"].dtype)
        real = (rows.batch < rows.size.numel()).to(x.dtype).view(runs, -1, 1)
        if self.stack.training:
            count = real.sum(1, keepdim=True).clamp(min=1)
            mean = (x * real).sum(1, keepdim=True) / count
            var = ((x - mean).square() * real).sum(1, keepdim=True) / count
            with torch.no_grad():
                seen = real.amax(1) * 0.1  # nothing is learned from a batch without graphs
                unbiased = var * count / (count - 1).clamp(min=1)
                for part, now in (("mean", mean), ("var", unbiased)):
                    held = weights[f"{name}.running_{part}"]
                    held.lerp_(now.squeeze(1), seen.expand_as(held))
        else:
            mean, var = (weights[f"{name}.running_{part}"].unsqueeze(1) for part in ("mean", "var"))
        weight, bias = (weights[f"{name}.{part}"].unsqueeze(1) for part in ("weight", "bias"))
        # Padding may be far from all real rows, where a small deviation makes it very large.
        x = torch.where(real > 0, (x - mean) * (var + 1e-5).rsqrt() * weight + bias, 0.0)
        return x.flatten(0, 1)
