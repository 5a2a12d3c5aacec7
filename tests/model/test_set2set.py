"""Set2Set against the equations of an LSTM, one graph at a time."""

import copy
import pickle

import pytest
import torch
from contract import CHANNELS, Graphs, close, drawn, nodes_of, pack, ragged
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gtpool.model.set2set import Set2Set
from gtpool.ops.packed import PackedGraph


def readout(seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> Set2Set:
    torch.manual_seed(seed)
    return Set2Set(CHANNELS, **options).to(dtype)


def read(pool: Set2Set, graphs: Graphs) -> Tensor:
    return pool(graphs.x, PackedGraph.of(graphs.edge_index, graphs.batch))


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
        pool = readout(steps=steps)
        asking = [graphs.x.requires_grad_(), *pool.parameters()]
        ours, theirs = (
            [out, *torch.autograd.grad(out.sin().sum(), asking)]
            for out in (read(pool, graphs), naive(pool, graphs))
        )
        assert ours[0].shape == (len(nodes_of(graphs)), pool.out_channels)
        for mine, its in zip(ours, theirs, strict=True):
            close(mine, its)

    check()


def test_numbering_of_nodes_does_not_matter():
    @drawn
    @given(ragged(), st.randoms(use_true_random=False))
    def check(graphs, random):
        old = [n for part in nodes_of(graphs) for n in random.sample(part, len(part))]
        close(read(readout(), graphs), read(readout(), graphs._replace(x=graphs.x[old])))

    check()


def test_a_batch_gives_what_its_graphs_give_alone():
    @drawn
    @given(ragged())
    def check(graphs):
        whole = read(readout(), graphs)
        for number, nodes in enumerate(nodes_of(graphs)):
            alone = pack([(len(nodes), [])], seed=0)._replace(x=graphs.x[nodes])
            close(whole[number], read(readout(), alone)[0])

    check()


def test_a_lone_node_is_its_own_answer():
    graphs = pack([(1, []), (4, []), (1, [])], seed=0)
    answers = read(readout(), graphs)[:, CHANNELS:]
    close(answers[[0, 2]], graphs.x[[0, 5]])


def test_a_gradient_reaches_every_parameter():
    pool = readout()
    read(pool, pack([(5, []), (3, [])], seed=0)).sin().sum().backward()
    assert all(parameter.grad.any() for parameter in pool.parameters())


def test_copies_keep_the_output_and_reset_draws_anew():
    pool, other, graphs = readout(), readout(1), pack([(5, []), (3, [])], seed=0)
    before = read(pool, graphs)
    assert not torch.equal(before, read(other, graphs))
    for twin in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):  # noqa: S301
        assert torch.equal(before, read(twin, graphs))
    other.load_state_dict(pool.state_dict())
    assert torch.equal(before, read(other, graphs))
    anew = []
    for _ in range(2):
        torch.manual_seed(2)
        pool.reset_parameters()
        anew.append(read(pool, graphs))
    assert torch.equal(*anew)
    assert not torch.equal(before, anew[0])
    assert repr(pool) == "Set2Set(8, steps=3)"


def test_compiled_readout_gives_what_the_readout_gives():
    plain, graphs = readout(), pack([(5, []), (3, [])], seed=0)
    torch.compiler.reset()
    runs = []
    for pool in (plain, torch.compile(copy.deepcopy(plain), backend="aot_eager")):
        out = read(pool, graphs)
        out.sin().sum().backward()
        runs.append([out, *(parameter.grad for parameter in pool.parameters())])
    for eager, compiled in zip(*runs, strict=True):
        close(eager, compiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype_stays(dtype):
    out = read(readout(dtype=dtype), pack([(257, []), (1, [])], seed=0, dtype=dtype))
    assert out.dtype == dtype
    assert out.isfinite().all()


def test_a_wrong_count_is_an_error():
    for options in ({"steps": 0}, {"steps": 1.5}):
        with pytest.raises(ValueError, match="must be an int of at least 1"):
            readout(**options)
