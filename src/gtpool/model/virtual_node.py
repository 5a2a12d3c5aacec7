"""A virtual node for each graph, which exchanges messages with all its nodes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gtpool.model.conv import NORMS, make_dropout
from gtpool.nn import Linear, norm_relu
from gtpool.ops.backend import Backend
from gtpool.ops.runs import per_run
from gtpool.spec import ModelSpec


class VirtualNode(nn.Module):
    r"""OGB's virtual node: before each convolution all nodes get it, and it gets their sum.

    .. math:: x_i \leftarrow x_i + v, \qquad v' = MLP(v + \sum_i x_i)

    It starts as a learned vector, zero at first. Pooling leaves it as it is: at the next level it
    exchanges messages with the nodes that are left. With ``residual`` v is added to v'.

    Args:
        spec: Norm, residual and dropout, which are those of the convolutions.
        widths: Width of the nodes before each convolution of the network.
    """

    def __init__(self, spec: ModelSpec, widths: Sequence[int]) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(widths[0]))
        self.updates = nn.ModuleList(_Update(spec, *pair) for pair in pairwise(widths))

    def forward(
        self, x: Tensor, graph: Backend, held: Tensor | None, number: int
    ) -> tuple[Tensor, Tensor]:
        """Exchange messages before a convolution.

        Args:
            x: Features of the nodes, [N, in].
            graph: Their graphs.
            held: The virtual nodes so far, [G, in]; None before the first convolution.
            number: Number of the convolution in the network, from 0.

        Returns:
            The nodes with their virtual node added, [N, in], and the virtual nodes for the next
            convolution, [G, out].
        """
        rows = graph.rows
        if held is None:
            held = per_run(torch.add, x.new_zeros(rows.graphs, x.size(1)), self.start)
        x = x + rows.broadcast(held)
        if number == len(self.updates):
            return x, held
        return x, self.updates[number](held, held + rows.total(x), rows.real_graphs)


class _Update(nn.Module):
    """A network of two layers, each with norm and ReLU."""

    def __init__(self, spec: ModelSpec, in_channels: int, out_channels: int) -> None:
        super().__init__()
        hidden = 2 * spec.width
        self.maps = nn.ModuleList([Linear(in_channels, hidden), Linear(hidden, out_channels)])
        self.norms = nn.ModuleList(NORMS[spec.norm](width) for width in (hidden, out_channels))
        self.dropout = make_dropout(spec.block_dropout)
        self.residual = spec.residual and in_channels == out_channels

    def forward(self, held: Tensor, x: Tensor, real: Tensor | None) -> Tensor:
        for linear, norm in zip(self.maps, self.norms, strict=True):
            x = norm_relu(norm, linear(x), _Graphs(real))
        x = self.dropout(x)
        return x + held if self.residual else x


class _Graphs(NamedTuple):
    """Rows that are graphs, for a norm."""

    real: Tensor | None
