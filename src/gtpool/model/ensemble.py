"""Several classifiers of one spec in one program, on batches of fixed capacity.

Parameters have a leading axis of runs, and a batch holds the graphs of all runs. The network is the
classifier's own, called over the stacked weights. One run alone is a stack of one: the static
network that is captured, compiled and exported.
"""

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gtpool.model.classifier import Classifier, Outputs
from gtpool.ops.backend import Backend
from gtpool.ops.dropout import set_keys
from gtpool.ops.padded import PaddedGraph
from gtpool.ops.padded_ops import WIDEST, PaddedOps, padded_ops_for
from gtpool.padded_batch import PaddedBatch
from gtpool.spec import ModelSpec, ShapeSpec


def why_spec_not_captured(spec: ModelSpec, shape: ShapeSpec) -> str | None:
    """Say why a network has no static form; None if it has one."""
    with torch.device("meta"):
        return why_not_captured(Classifier(spec, shape))


def why_not_captured(model: Classifier) -> str | None:
    """Say which of its layers keeps a network from being captured; None if it can be."""
    reasons = (getattr(part, "why_not_captured", None) for part in model.modules())
    return next((reason for reason in reasons if reason is not None), None)


def pads_attention(model: Classifier) -> bool:
    """Say whether a head of GTPool is too wide for the kernel: then graphs are padded to attend."""
    return any(getattr(pool, "head_channels", 0) > WIDEST for pool in model.pools)


class ModelEnsemble(nn.Module):
    """Classifiers of one spec side by side, as one module without a look at the host.

    Args:
        models: Of one spec and shape, on one device; their weights are copied.
        longest: Nodes of the largest graph there can be.
    """

    def __init__(self, models: Sequence[Classifier], longest: int) -> None:
        super().__init__()
        first = models[0]
        reason = why_not_captured(first)
        if reason is not None:
            raise ValueError(reason)
        self.spec, self.shape, self.ratios = first.spec, first.shape, first.ratios
        self.runs, self.longest = len(models), longest
        self.networks = (_Network(copy.deepcopy(first).requires_grad_(requires_grad=False)),)
        """The network without weights of its own; in a tuple, so that it is no part of this one."""
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
        self.ops: PaddedOps = padded_ops_for(self.theta.device, self.theta.dtype)
        self.train()

    def state_dicts(self) -> dict[str, Tensor]:
        """Give the states of all runs by the names that their classifiers have, [R, ...] each."""
        learned = self._views(self.theta.detach().clone())
        return learned | {name: part.clone() for name, part in self.fixed.items()}

    def select(self, rows: Tensor) -> None:
        """Go on with some of the runs only."""
        self.theta = nn.Parameter(self.theta.detach().index_select(0, rows))
        self.fixed = {name: part.index_select(0, rows) for name, part in self.fixed.items()}
        self.runs = rows.numel()

    def train(self, mode: bool = True) -> Self:
        """Train, or evaluate."""
        self.networks[0].train(mode)
        return super().train(mode)

    def forward(self, batch: PaddedBatch, key: Tensor | None = None) -> Tensor:
        """Give the logits of all places for graphs, [RG, outputs].

        Args:
            batch: The graphs of all runs.
            key: Of each run, from which dropout draws while training, int64 [R].
        """
        return self.learn(batch, key)[0]

    def learn(self, batch: PaddedBatch, key: Tensor | None = None) -> Outputs:
        """Give the logits, and the auxiliary loss of all places, [RG], where the pooler has one."""
        (network,) = self.networks
        if self.training:
            set_keys(network, key)
        graph = PaddedGraph.of(batch, self.runs, self.longest, self.ops)
        weights = self.fixed | self._views(self.theta)
        weights = {f"net.{name}": part for name, part in weights.items()}
        return functional_call(network, weights, (batch.x, graph))

    def _views(self, theta: Tensor) -> dict[str, Tensor]:
        """Give the parameters by name, [R, ...] each."""
        sizes = [shape.numel() for shape in self.shapes]
        parts = zip(self.names, theta.split(sizes, 1), self.shapes, strict=True)
        return {name: part.view(self.runs, *shape) for name, part, shape in parts}


class _Network(nn.Module):
    """A classifier that is called with a batch of fixed capacity."""

    def __init__(self, net: Classifier) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, graph: Backend) -> Outputs:
        if self.net.shape.node_categories:
            x = self.net.encoder.encode_one_hot(x)  # pyright: ignore[reportCallIssue]
        return self.net.run(x, graph)
