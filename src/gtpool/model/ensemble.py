"""Several classifiers of one spec as one module, on padded batches.

Parameters have a leading axis of runs. A batch holds the graphs of all runs. The forward pass calls
the classifier's own network with the stacked weights. An ensemble of one run is the static network
that is captured, compiled and exported.
"""

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad

from gtpool.model.classifier import Classifier, Outputs
from gtpool.ops.backend import Backend
from gtpool.ops.dropout import set_keys
from gtpool.ops.padded import PaddedGraph
from gtpool.ops.padded_ops import WIDEST, PaddedOps, padded_ops_for
from gtpool.padded_batch import PaddedBatch
from gtpool.spec import ModelSpec, ShapeSpec

_ALIGNED = 32
"""Row length of the parameters is a multiple of this, as fast kernels need aligned addresses."""


def why_spec_not_captured(spec: ModelSpec, shape: ShapeSpec) -> str | None:
    """Return why a network cannot be captured; None if it can."""
    with torch.device("meta"):
        return why_not_captured(Classifier(spec, shape))


def why_not_captured(model: Classifier) -> str | None:
    """Return the reason of the first layer that cannot be captured; None if all can."""
    reasons = (getattr(part, "why_not_captured", None) for part in model.modules())
    return next((reason for reason in reasons if reason is not None), None)


def pads_attention(model: Classifier) -> bool:
    """Whether a GTPool head is too wide for the kernel; attention then pads each graph."""
    return any(getattr(pool, "head_channels", 0) > WIDEST for pool in model.pools)


class ModelEnsemble(nn.Module):
    """Classifiers of one spec side by side, as one module without host sync.

    Args:
        models: Classifiers of one spec and shape, on one device; their weights are copied.
        longest: Maximum nodes of a graph.
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
        """The network, in a tuple so that its parameters are not registered here."""
        learned = {name for name, part in first.named_parameters() if part.requires_grad}
        states = [model.state_dict() for model in models]
        self.names = [name for name in states[0] if name in learned]
        self.shapes = [states[0][name].shape for name in self.names]
        rows = [torch.cat([state[name].flatten() for name in self.names]) for state in states]
        room = -sum(shape.numel() for shape in self.shapes) % _ALIGNED
        self.theta = nn.Parameter(pad(torch.stack(rows), (0, room)))
        """All learned parameters, one row per run, then zeros, [R, P]."""
        self.fixed = {
            name: torch.stack([state[name] for state in states])
            for name in states[0]
            if name not in learned
        }
        """Frozen parameters and buffers, such as batch-norm statistics, [R, ...]."""
        self.ops: PaddedOps = padded_ops_for(self.theta.device, self.theta.dtype)
        self.train()

    def state_dicts(self) -> dict[str, Tensor]:
        """Return the state dicts of all runs, stacked by name, [R, ...] each."""
        learned = self._views(self.theta.detach().clone())
        return learned | {name: part.clone() for name, part in self.fixed.items()}

    def select(self, rows: Tensor) -> None:
        """Keep only the given runs."""
        self.theta = nn.Parameter(self.theta.detach().index_select(0, rows))
        self.fixed = {name: part.index_select(0, rows) for name, part in self.fixed.items()}
        self.runs = rows.numel()

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode."""
        self.networks[0].train(mode)
        return super().train(mode)

    def forward(self, batch: PaddedBatch, key: Tensor | None = None) -> Tensor:
        """Return the logits of all graph slots, [RG, outputs].

        Args:
            batch: The graphs of all runs.
            key: Dropout key of each run, used in training mode, int64 [R].
        """
        return self.learn(batch, key)[0]

    def learn(self, batch: PaddedBatch, key: Tensor | None = None) -> Outputs:
        """Return the logits and the auxiliary loss of all graph slots, [RG], or None."""
        (network,) = self.networks
        if self.training:
            set_keys(network, key)
        graph = PaddedGraph.of(batch, self.runs, self.longest, self.ops)
        weights = self.fixed | self._views(self.theta)
        weights = {f"net.{name}": part for name, part in weights.items()}
        return functional_call(network, weights, (batch.x, graph, batch.graph_features))

    def _views(self, theta: Tensor) -> dict[str, Tensor]:
        """Return views of the parameters by name, [R, ...] each."""
        sizes = [shape.numel() for shape in self.shapes]
        parts = theta.split([*sizes, theta.size(1) - sum(sizes)], 1)[: len(sizes)]
        parts = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.view(self.runs, *shape) for name, part, shape in parts}


class _Network(nn.Module):
    """A classifier called with a padded batch."""

    def __init__(self, net: Classifier) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, graph: Backend, features: Tensor | None) -> Outputs:
        if self.net.shape.node_categories:
            x = self.net.encoder.encode_one_hot(x)  # pyright: ignore[reportCallIssue]
        return self.net.run(x, graph, features=features)
