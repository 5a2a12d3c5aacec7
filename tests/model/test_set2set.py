"""Set2Set against the equations of an LSTM, one graph at a time."""

import pytest
import torch
from contract import CHANNELS, Graphs, close, drawn, nodes_of, pack, ragged
from hypothesis import given
from readout_laws import compare_with_naive, read
from torch import Tensor

from gtpool.model.set2set import Set2Set


def readout(seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> Set2Set:
    torch.manual_seed(seed)
    return Set2Set(CHANNELS, **options).to(dtype)


def naive(pool: Set2Set, graphs: Graphs) -> Tensor:
    w_in, w_state, b_in, b_state = pool.parameters()
    vectors = []
    for nodes in nodes_of(graphs):
        x = graphs.x[nodes]
        q, cell, star = x.new_zeros(CHANNELS), x.new_zeros(CHANNELS), x.new_zeros(2 * CHANNELS)
        for _ in range(pool.steps):
            gates = w_in @ star + b_in + w_state @ q + b_state
            enter, forget, new, leave = gates.split(CHANNELS)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            q = leave.sigmoid() * cell.tanh()  # (3)
            share = (x @ q).exp() / (x @ q).exp().sum()  # (4), (5)
            star = torch.cat([q, share @ x])  # (6), (7)
        vectors.append(star)
    return torch.stack(vectors)


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_readout_equals_the_equations_graph_by_graph(steps):
    @drawn
    @given(ragged())
    def check(graphs):
        compare_with_naive(readout(steps=steps), graphs, naive)

    check()


def test_a_lone_node_is_its_own_answer():
    graphs = pack([(1, []), (4, []), (1, [])], seed=0)
    answers = read(readout(), graphs)[:, CHANNELS:]
    close(answers[[0, 2]], graphs.x[[0, 5]])


def test_repr_names_the_choices():
    assert repr(readout()) == "Set2Set(8, steps=3)"


def test_a_wrong_count_is_an_error():
    for options in ({"steps": 0}, {"steps": 1.5}):
        with pytest.raises(ValueError, match="must be an int of at least 1"):
            readout(**options)
