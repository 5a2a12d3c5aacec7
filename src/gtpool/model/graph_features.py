"""Features of whole graphs, such as descriptors of molecules, for the head."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from gtpool.ops.dropout import Dropout
from gtpool.ops.runs import per_run

LIMIT = 5.0
"""Largest standardised feature; descriptors have heavy tails."""


class GraphFeatures(nn.Module):
    """Standardised features of each graph with dropout, [G, F] -> [G, F].

    Training sets mean and standard deviation of the training part. Standardised values are clipped
    to ``LIMIT``; a missing value, NaN, becomes the mean.

    Args:
        columns: Number of features F.
        dropout: Dropout probability.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, columns: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("std", torch.ones(columns))
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor | None) -> Tensor:
        """Return the features that the head reads."""
        if features is None:
            raise ValueError("the model needs graph_features, but the batch has none")
        centred = per_run(torch.sub, features.to(self.mean.dtype), self.mean)
        scaled = per_run(torch.div, centred, self.std)
        return self.dropout(scaled.clamp(-LIMIT, LIMIT).nan_to_num(0.0))


def feature_statistics(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each column, float64 [F], 0 and 1 without values.

    NaN is left out. The deviation of a constant column is 1.

    Args:
        features: Those of the training part, [G, F].

    Example:
        >>> columns = torch.tensor([[1.0, 7.0, torch.nan], [3.0, torch.nan, torch.nan]])
        >>> [part.tolist() for part in feature_statistics(columns)]
        [[2.0, 7.0, 0.0], [1.0, 1.0, 1.0]]
    """
    seen = features.double()
    known = ~seen.isnan()
    count = known.sum(0).clamp(min=1)
    mean = seen.nansum(0) / count
    std = ((seen - mean).square().nansum(0) / count).sqrt()
    # The deviation of a constant column is rounding error: do not divide by it.
    low = seen.where(known, torch.inf).amin(0)
    varies = low < seen.where(known, -torch.inf).amax(0)
    return mean, torch.where(varies, std, 1.0)


@torch.no_grad()
def set_statistics(
    state: Mapping[str, Tensor], features: Tensor | None, trains: Sequence[Tensor]
) -> None:
    """Set mean and standard deviation in the state of a classifier, in place.

    Args:
        state: Shares memory with the classifier, or with R of them, [R, ...] each.
        features: Those of all graphs, [G, F]; None changes nothing.
        trains: Indices of the training graphs of each run.
    """
    if features is None or "graph_features.mean" not in state:  # another kind of module
        return
    parts = [feature_statistics(features[index.to(features.device)]) for index in trains]
    for name, each in zip(("mean", "std"), zip(*parts, strict=True), strict=True):
        held = state[f"graph_features.{name}"]
        held.copy_(torch.stack(each).view_as(held))


def check_graph_features(features: Tensor | None, graphs: int, columns: int) -> None:
    """Raise a ValueError unless there is a row of features for each graph, or none is needed."""
    found = None if features is None else list(features.shape)
    if found != ([graphs, columns] if columns else None):
        raise ValueError(
            f"graph_features must be of shape {[graphs, columns]}, got {found or 'none'}"
            if columns
            else "the model reads no graph_features; leave them out"
        )
