"""Maps of the rows of each run by its own weights."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

if TYPE_CHECKING:
    from gtpool.model.stack import Stack


class Maps:
    """The weights of a stack by name, and what they do to the rows."""

    def __init__(self, stack: "Stack") -> None:
        sizes = [shape.numel() for shape in stack.shapes]
        parts = zip(stack.names, stack.theta.split(sizes, 1), stack.shapes, strict=True)
        self.weights = stack.fixed | {
            name: part.view(stack.runs, *shape) for name, part, shape in parts
        }
        self.stack, self.steps = stack, stack.steps

    def _multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply the rows of each run with its matrix, [RN, I] and [R, O, I] -> [RN, O]."""
        if self.stack.runs == 1:
            return linear(x, weight.squeeze(0))
        return torch.bmm(x.unflatten(0, (self.stack.runs, -1)), weight.mT).flatten(0, 1)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return self._map(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _map(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Multiply as ``_multiply`` does and add the run's bias, [R, O]."""
        if self.stack.runs == 1:
            return linear(x, weight.squeeze(0), bias.squeeze(0))
        rows = x.unflatten(0, (self.stack.runs, -1))
        return torch.baddbmm(bias.unsqueeze(1), rows, weight.mT).flatten(0, 1)

    def _add(self, x: Tensor, name: str) -> Tensor:
        """Add to the rows of each run its vector."""
        return self._each(x, torch.add, self.weights[name])

    def _each(
        self, x: Tensor, combine: Callable[[Tensor, Tensor], Tensor], vector: Tensor
    ) -> Tensor:
        """Combine the rows of each run with its own, [RN, ...] and [R, ...] -> [RN, ...]."""
        rows = x.unflatten(0, (self.stack.runs, -1))
        return combine(rows, vector.unsqueeze(1)).flatten(0, 1)

    def _layer_norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        if self.stack.runs == 1:
            return layer_norm(x, x.shape[1:], weight.squeeze(0), bias.squeeze(0))
        rows = layer_norm(x, x.shape[1:]).unflatten(0, (self.stack.runs, -1))
        return torch.addcmul(bias.unsqueeze(1), rows, weight.unsqueeze(1)).flatten(0, 1)
