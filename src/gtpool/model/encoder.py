"""Encoders of node and edge features; features of whole graphs for the head."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from gtpool.graph import check_features
from gtpool.nn import Linear
from gtpool.ops.bag import sum_embeddings
from gtpool.ops.dropout import Dropout
from gtpool.ops.runs import linear, per_run
from gtpool.spec import ShapeSpec

LIMIT = 5.0
"""Largest standardised feature; descriptors have heavy tails."""


class CategoryEncoder(nn.Module):
    """Sum of one embedding per column of codes, [N, F] -> [N, D], like OGB's atom encoder."""

    def __init__(self, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.table = nn.Embedding(sum(sizes), width)
        first = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.first: Tensor
        self.register_buffer("first", first, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the embeddings; each column's table is a separate Xavier matrix."""
        with torch.no_grad():
            for part in self.table.weight.split(self.sizes):
                nn.init.xavier_uniform_(part)

    def forward(self, codes: Tensor) -> Tensor:
        """Return the embeddings of each row of codes, [N, F] -> [N, D]."""
        codes = codes + self.first
        on_cpu = codes.device.type == "cpu" and not torch.compiler.is_compiling()
        return sum_embeddings(self.table.weight, codes) if on_cpu else self.table(codes).sum(1)

    def encode_one_hot(self, x: Tensor) -> Tensor:
        """Return the embeddings of multi-hot rows, one column per code, [N, codes] -> [N, D]."""
        return linear(x.to(self.table.weight.dtype), self.table.weight.mT)


class MixedEncoder(nn.Module):
    """Embeddings of codes plus a linear map of the continuous columns before them."""

    def __init__(self, columns: int, sizes: Sequence[int], width: int) -> None:
        super().__init__()
        self.columns = columns
        self.codes, self.numbers = CategoryEncoder(sizes, width), Linear(columns, width)

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows of numbers, then codes, as floats, [N, columns + F] -> [N, D]."""
        numbers, codes = x[:, : self.columns], x[:, self.columns :]
        return self.numbers(numbers) + self.codes(codes.long())

    def encode_one_hot(self, x: Tensor) -> Tensor:
        """Encode rows of numbers, then one-hot codes, [N, columns + codes] -> [N, D]."""
        numbers, codes = x[:, : self.columns], x[:, self.columns :]
        return self.numbers(numbers.to(self.numbers.weight.dtype)) + self.codes.encode_one_hot(
            codes
        )


class EdgeEncoder(Linear):
    """Linear map of edge features of any dtype."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Linear's name
        """Map edges, [E, in] -> [E, out]."""
        return super().forward(input.to(self.weight.dtype))


def make_encoder(shape: ShapeSpec, width: int) -> nn.Module:
    """Make the encoder of nodes; nodes without codes enter as they are."""
    if not shape.node_categories:
        return nn.Identity()
    if not shape.node_width:
        return CategoryEncoder(shape.node_categories, width)
    return MixedEncoder(shape.node_width, shape.node_categories, width)


def check_nodes(x: Tensor, shape: ShapeSpec, width: int, *, encoded: bool) -> None:
    """Raise a ValueError unless ``x`` is what the encoder takes, or ``encoded``, what it gave."""
    columns, sizes = shape.node_width, shape.node_categories
    if encoded or not sizes:
        check_features("x", x, width if sizes else columns)
    elif not columns:
        check_codes("x", x, sizes)
    else:
        check_features("x", x, columns + len(sizes))
        codes = x[:, columns:]
        if (codes != codes.round()).any():
            raise ValueError(f"x[:, {columns}:] must be codes of categories, which are integers")
        check_codes(f"x[:, {columns}:]", codes.long(), sizes)


def check_codes(name: str, codes: object, sizes: Sequence[int]) -> None:
    """Raise a ValueError unless ``codes`` is int64 [N, F] with entries below ``sizes`` per column.

    A code that is too large would select a row of the next column's table.
    """
    columns = len(sizes)
    if not isinstance(codes, Tensor) or codes.dtype != torch.long or codes.shape[1:] != (columns,):
        raise ValueError(f"{name} must be int64 codes of categories in {columns} columns")
    wrong = (codes < 0) | (codes >= torch.tensor(sizes, device=codes.device))
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name}[{row}, {column}] is {int(codes[row, column])}, "
            f"but the codes of that column are 0 to {sizes[column] - 1}"
        )


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
