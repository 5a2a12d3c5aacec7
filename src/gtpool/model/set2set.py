"""Set2Set: read a graph by asking its nodes several times, each answer forming the next question.

Vinyals, Bengio, Kudlur: "Order Matters: Sequence to sequence for sets", arXiv 1511.06391.
"""

from torch import Tensor, nn
from torch_geometric.nn import aggr

from gtpool.graph import Level, check_count


class Set2Set(nn.Module):
    r"""Attention over the nodes of each graph with a query that an LSTM moves on.

    .. math::
        q_t &= \mathrm{LSTM}(q^*_{t-1})                                        && (3) \\
        e_{i,t} &= x_i^\top q_t                                                && (4) \\
        a_{i,t} &= \exp(e_{i,t}) / \textstyle\sum_j \exp(e_{j,t})              && (5) \\
        r_t &= \textstyle\sum_i a_{i,t} x_i                                    && (6) \\
        q^*_t &= [q_t \; r_t], \quad q^*_0 = 0, \quad h_g = q^*_T              && (7)

    Args:
        in_channels: Width D of the node features; the read-out is 2D wide.
        steps: Questions T. The first is the same for all graphs, so that with one step the LSTM's
            matrices learn nothing.

    Differs from the paper:
        the LSTM there has no input and q* is its state; here, as in PyG and elsewhere, q* is its
        input beside its own state q. The gates are linear in (q, r) either way.

    Example:
        >>> import torch
        >>> from gtpool.ops.segment import level_of
        >>> level = level_of(torch.tensor([0, 0, 0, 1]))
        >>> Set2Set(8)(torch.randn(4, 8), torch.empty(2, 0, dtype=torch.long), level).shape
        torch.Size([2, 16])
    """

    def __init__(self, in_channels: int, *, steps: int = 3) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_count("steps", steps)
        self.in_channels, self.steps, self.out_channels = in_channels, steps, 2 * in_channels
        self.ask = aggr.Set2Set(in_channels, processing_steps=steps)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        self.ask.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor, level: Level) -> Tensor:
        """Read out each graph, [N, D] -> [G, 2D]; edges do not enter."""
        del edge_index
        return self.ask(x, level.batch, dim_size=level.sizes.numel())

    def __repr__(self) -> str:
        """Name the class, the width and the choices that change the result."""
        return f"{type(self).__name__}({self.in_channels}, steps={self.steps})"
