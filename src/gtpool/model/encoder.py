"""Encoders of node and edge features."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gtpool.graph import check_features
from gtpool.nn import Linear
from gtpool.ops.bag import sum_embeddings
from gtpool.ops.runs import linear
from gtpool.spec import ShapeSpec


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
