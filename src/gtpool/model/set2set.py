"""Set2Set: read-out by several steps of attention with an LSTM query.

Vinyals, Bengio, Kudlur: "Order Matters: Sequence to sequence for sets", arXiv 1511.06391.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch_geometric.nn import aggr

from gtpool.graph import check_count
from gtpool.ops.backend import Backend
from gtpool.ops.runs import linear


class Set2Set(nn.Module):
    r"""Read-out by attention over the nodes of each graph; an LSTM updates the query.

    .. math::
        q_t &= \mathrm{LSTM}(q^*_{t-1})                                        && (3) \\
        e_{i,t} &= x_i^\top q_t                                                && (4) \\
        a_{i,t} &= \exp(e_{i,t}) / \textstyle\sum_j \exp(e_{j,t})              && (5) \\
        r_t &= \textstyle\sum_i a_{i,t} x_i                                    && (6) \\
        q^*_t &= [q_t \; r_t], \quad q^*_0 = 0, \quad h_g = q^*_T              && (7)

    Args:
        in_channels: Width D of the node features; the output is 2D wide.
        steps: Attention steps T. The first query is the same for all graphs, so the LSTM's matrices
            get no gradient if T is 1.

    Differs from the paper:
        the paper's LSTM has no input and the state q*. Here, as in PyG, q* is the input and q the
        state. The gates are linear in (q, r) in both.

    Example:
        >>> from gtpool.ops.packed import PackedGraph
        >>> graph = PackedGraph.of(torch.tensor([[0], [1]]), torch.tensor([0, 0, 0, 1]))
        >>> Set2Set(8)(torch.randn(4, 8), graph).shape
        torch.Size([2, 16])
    """

    def __init__(self, in_channels: int, *, steps: int = 3) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_count("steps", steps)
        self.in_channels, self.steps, self.out_channels = in_channels, steps, 2 * in_channels
        # PyG's weights and names, without its nn.LSTM, which cannot be compiled.
        weights = aggr.Set2Set(in_channels, processing_steps=steps).lstm.named_parameters()
        self.ask = nn.ModuleDict({"lstm": nn.ParameterDict(OrderedDict(weights))})

    def reset_parameters(self) -> None:
        """Reinitialise all parameters as ``nn.LSTM`` does."""
        for part in self.parameters():
            nn.init.uniform_(part, -(self.in_channels**-0.5), self.in_channels**-0.5)

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Return one vector per graph, [N, D] -> [G, 2D]; edges are ignored."""
        rows = graph.rows
        # q is the state of the LSTM and the first half of its input, so both matrices add up.
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        of_input, of_state, *biases = (getattr(self.ask["lstm"], name) for name in names)
        weight, bias = of_input + pad(of_state, (0, x.size(1))), biases[0] + biases[1]
        x = rows.mask_padding(x)  # padding may hold NaN from a failed run
        query = answer = cell = x.new_zeros(rows.graphs, x.size(1))
        for _ in range(self.steps):
            gates = linear(torch.cat([query, answer], 1), weight, bias)
            enter, stay, new, leave = gates.chunk(4, 1)
            cell = stay.sigmoid() * cell + enter.sigmoid() * new.tanh()
            query = leave.sigmoid() * cell.tanh()  # (3)
            share = rows.softmax((x * rows.broadcast(query)).sum(1))  # (4), (5)
            answer = rows.total(x * share.unsqueeze(1))  # (6)
        return torch.cat([query, answer], 1)  # (7)

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return f"{type(self).__name__}({self.in_channels}, steps={self.steps})"
