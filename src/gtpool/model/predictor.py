"""Several trained classifiers that predict as one."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gtpool.graph import Coarsening, PackedBatch
from gtpool.model.classifier import Classifier
from gtpool.ops.average import average_outputs, standardize
from gtpool.spec import ModelSpec, ShapeSpec


class EnsemblePredictor(nn.Module):
    """Trained classifiers of one spec and shape whose mean prediction is that of the ensemble.

    It takes features that are not standardised; each member standardises them by the statistics of
    its own training part. To train runs side by side see ``ModelEnsemble``, which has no mean.

    Args:
        members: Of one spec and shape.
        task: "classes" and "binary" average probabilities, "regression" averages values.
        mean: Mean of each leading continuous column by member, [M, C]; None if no column is
            standardised.
        std: Standard deviation of the same.

    Example:
        >>> shape = ShapeSpec(outputs=2, node_width=7)
        >>> several = [Classifier(ModelSpec(width=8), shape) for _ in range(3)]
        >>> len(EnsemblePredictor(several, "classes").members)
        3
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        members: Sequence[Classifier],
        task: str,
        mean: Tensor | None = None,
        std: Tensor | None = None,
    ) -> None:
        super().__init__()
        first = members[0]
        if any((part.spec, part.shape) != (first.spec, first.shape) for part in members):
            raise ValueError("the members of an ensemble must have one spec and shape")
        self.members, self.task = nn.ModuleList(members), task
        empty = torch.empty(len(members), 0, dtype=torch.double)
        self.register_buffer("mean", empty if mean is None else mean)
        self.register_buffer("std", empty if std is None else std)
        self.eval()

    @property
    def spec(self) -> ModelSpec:
        """Spec of each member."""
        return members_of(self)[0].spec

    @property
    def shape(self) -> ShapeSpec:
        """Input and output sizes of each member."""
        return members_of(self)[0].shape

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ratio of each step that drops nodes."""
        return members_of(self)[0].ratios

    @property
    def coarsening(self) -> Coarsening | None:
        """Coarsening chain that batches must carry; None if none."""
        return members_of(self)[0].coarsening

    @property
    def uses_edge_features(self) -> bool:
        """Whether ``edge_attr`` makes a difference."""
        return members_of(self)[0].uses_edge_features

    def classify_members(self, graphs: PackedBatch) -> Tensor:
        """Return the outputs of each member, [G, M, outputs]."""
        found = [
            part.classify(member_inputs(self, graphs, member))
            for member, part in enumerate(members_of(self))
        ]
        return torch.stack(found, 1)

    def classify(self, graphs: PackedBatch) -> Tensor:
        """Return the logits of the mean prediction, [G, outputs], as ``average_outputs``."""
        return average_outputs(self.classify_members(graphs), self.task)


Predictor = Classifier | EnsemblePredictor
"""A trained network, or several that predict as one."""


def members_of(model: Predictor) -> list[Classifier]:
    """Return the members of an ensemble; a single network is its own only member."""
    return [model] if isinstance(model, Classifier) else list(model.members)  # pyright: ignore[reportReturnType]


def member_features(model: Predictor, x: Tensor, member: int) -> Tensor:
    """Return the node features that a member takes; a single network takes them as given."""
    if isinstance(model, Classifier) or not model.mean.size(1):
        return x
    return standardize(x, model.mean[member], model.std[member])


def member_inputs(model: Predictor, graphs: PackedBatch, member: int) -> PackedBatch:
    """Return graphs with the features that a member takes."""
    return graphs._replace(x=member_features(model, graphs.x, member))


def member_outputs(model: Predictor, graphs: PackedBatch) -> Tensor:
    """Return the outputs of each member, [G, M, outputs]; M is 1 for a single network."""
    if isinstance(model, Classifier):
        return model.classify(graphs).unsqueeze(1)
    return model.classify_members(graphs)
