"""Several classifiers of one spec in one program, on batches of fixed capacity.

Parameters have a leading axis of runs, and a batch holds the graphs of all runs; what is no linear
map does not care whose graph a row belongs to. One run alone is a stack of one: the static network
that is captured, compiled and exported.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gtpool.fixed import FixedBatch
from gtpool.model.classifier import Classifier
from gtpool.model.stack_merge import MERGES, MergePass
from gtpool.model.stack_pass import Pass
from gtpool.ops.steps import WIDEST, Steps, plain, steps_on
from gtpool.pool.gtpool import GTPool
from gtpool.spec import ModelSpec, ShapeSpec

POOLS = ("gtpool", "gtpool-v", "sagpool", "topkpool", *MERGES, "none")


def why_not_stacked(spec: ModelSpec, shape: ShapeSpec) -> str | None:
    """Say why a network has no static form; None if it has one."""
    options = spec.pool_options
    reasons = {
        f"pool {spec.pool!r} has no static form, {', '.join(POOLS)} have": spec.pool not in POOLS,
        "linear attention has no static form, exact attention has": (
            options.get("attention", "exact") != "exact"
        ),
        "only scores through tanh have a static form": options.get("act", "tanh") != "tanh",
        "conv 'gcn' of weighted edges has no static form": (
            spec.conv == "gcn" and shape.edge_weighted
        ),
        f"conv {spec.conv!r} has a static form for edges of coded kinds alone": (
            spec.conv in ("ogb-gcn", "gine") and not shape.edge_categories
        ),
        "readout 'gmt' of clusters has no static form": (
            spec.readout == "gmt" and spec.pool in MERGES
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def pads_attention(model: Classifier) -> bool:
    """Say whether a head of GTPool is too wide for the kernel: then graphs are padded to attend."""
    heads = [(pool, pool.heads) for pool in model.pools if isinstance(pool, GTPool)]
    return any(pool.in_channels > WIDEST * count for pool, count in heads)


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
        self.pools, self.readouts = list(first.pools), list(first.readouts)
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
        kernels = not pads_attention(first)
        self.steps: Steps = steps_on(self.theta.device, self.theta.dtype) if kernels else plain()

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
        return self.learn(batch, key)[0]

    def learn(self, batch: FixedBatch, key: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Give the logits, and the auxiliary loss of all places, [RG], where the pooler has one."""
        kind = MergePass if self.spec.pool in MERGES else Pass
        one = kind(self, key if self.training else None)
        return one.logits(batch), one.loss
