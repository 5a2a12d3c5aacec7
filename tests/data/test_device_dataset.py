"""Batches of fixed capacity against those that a dataset gives by itself."""

from collections import Counter, defaultdict

import pytest
import torch
from drawn import BONDS, batches, bonded, molecules, wider
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot
from torch_geometric.data import Data

from gtpool.data.dataset import GraphDataset
from gtpool.data.device_dataset import DeviceDataset
from gtpool.data.molecule import ATOM_SIZES, BOND_SIZES
from gtpool.data.sources import load
from gtpool.ops.padded_segment import layout_of_sizes
from gtpool.padded_batch import Capacity

RATIOS = st.sampled_from(((), (0.5,), (0.3, 0.3), (0.8, 2), (1, 0.5), (1.0,)))
PATH = torch.tensor([[0, 1], [1, 2]])


def gathered(data, index, ratios=(), extra=0, categories=()):
    stock = DeviceDataset.of(data, categories)
    capacity = wider(stock.capacity(index, ratios), extra)
    return stock.gather(index, capacity, ratios), capacity


def graph(nodes, edges, y=0):
    return Data(torch.ones(nodes, 1), edges, y=torch.tensor([y]))


@given(drawn=batches(), ratios=RATIOS, extra=st.sampled_from((0, 1, 70)))
@settings(max_examples=150, deadline=None)
def test_a_run_s_part_is_what_the_dataset_gives(drawn, ratios, extra):
    data, index = drawn
    batch, capacity = gathered(data, index, ratios, extra)
    rows, edges = capacity.nodes[0], capacity.edges
    for run, places in enumerate(index):
        there = places >= 0
        wanted = data.take(places[there], ratios)
        own = slice(run * rows, (run + 1) * rows)
        count = wanted.x.size(0)
        torch.testing.assert_close(batch.x[own][:count], wanted.x)
        assert not batch.x[own][count:].any()
        ends = torch.stack([batch.csr.source, batch.csr.sink])
        ends = ends.view(2, len(index), edges)[:, run] - run * rows
        pairs = Counter(map(tuple, ends[:, : wanted.edge_index.size(1)].T.tolist()))
        assert pairs == Counter(map(tuple, wanted.edge_index.T.tolist()))
        targets = batch.y.view(len(index), -1)[run]
        assert torch.equal(targets[there], wanted.y)
        assert torch.equal(batch.present.view(len(index), -1)[run], there)


@given(drawn=batches(), ratios=RATIOS, extra=st.sampled_from((0, 1, 70)))
@settings(max_examples=100, deadline=None)
def test_each_level_is_laid_out_as_planned(drawn, ratios, extra):
    data, index = drawn
    batch, capacity = gathered(data, index, ratios, extra)
    assert len(batch.levels) == len(ratios) + 1
    for number, (rows, room) in enumerate(zip(batch.levels, capacity.nodes, strict=True)):
        assert rows.batch.numel() == len(index) * room
        for run, places in enumerate(index):
            there = places >= 0
            level = data.take(places[there], ratios).levels[number]
            size = rows.size.view(len(index), -1)[run]
            assert torch.equal(size[there], level.sizes)
            assert not size[~there].any()
            start = rows.start.view(len(index), -1)[run]
            assert torch.equal(start[there], level.ptr[:-1] + run * room)
            graph_of = rows.batch.view(len(index), -1)[run]
            number_of = there.nonzero().flatten() + run * index.size(1)
            assert torch.equal(graph_of[: level.batch.numel()], number_of[level.batch])
            assert (graph_of[level.batch.numel() :] == index.numel()).all()


@given(drawn=batches(), extra=st.sampled_from((0, 70)))
@settings(max_examples=150, deadline=None)
def test_the_edges_of_a_row_are_found_from_either_end(drawn, extra):
    data, index = drawn
    batch, capacity = gathered(data, index, extra=extra)
    csr, runs = batch.csr, len(index)
    ends = torch.stack([csr.source, csr.sink])[:, csr.source >= 0]
    entering, leaving = defaultdict(list), defaultdict(list)
    for source, sink in ends.T.tolist():
        entering[sink].append(source)
        leaving[source].append(sink)
    for row in range(csr.begin.numel()):
        here = slice(csr.begin[row], csr.end[row])
        assert sorted(csr.source[here].tolist()) == sorted(entering[row])
        assert set(csr.sink[here].tolist()) <= {row}
        found = csr.target[csr.out_begin[row] : csr.out_end[row]].tolist()
        assert sorted(found) == sorted(leaving[row])
    for run, sinks in enumerate(csr.sink.view(runs, -1)):
        real = sinks[sinks >= 0]
        assert torch.equal(real, real.sort().values)
        assert (sinks[real.numel() :] == -1).all()
        assert ((real >= run * capacity.nodes[0]) & (real < (run + 1) * capacity.nodes[0])).all()
    assert (csr.target >= 0).sum() == ends.size(1)


@given(drawn=batches())
@settings(max_examples=30, deadline=None)
def test_at_level_0_every_node_is_where_it_is(drawn):
    data, index = drawn
    batch, _ = gathered(data, index)
    rows = torch.arange(batch.x.size(0))
    real = batch.levels[0].batch < index.numel()
    for part in (batch.csr.origin, batch.csr.place):
        assert torch.equal(part, torch.where(real, rows, -1))


def test_graphs_without_any_edge_are_gathered():
    data = GraphDataset.from_pyg([graph(2, torch.empty(2, 0, dtype=torch.long)) for _ in range(3)])
    batch, _ = gathered(data, torch.tensor([[0, 2]]))
    assert (batch.csr.source == -1).all()
    assert torch.equal(batch.csr.begin, batch.csr.end)


def test_undirected_edges_are_kept_once():
    assert (stock := DeviceDataset.of(load("MUTAG"))).leaving is stock.entering
    directed = DeviceDataset.of(GraphDataset.from_pyg([graph(3, PATH)]))
    assert directed.leaving is not directed.entering


def test_a_batch_may_be_empty():
    batch, _ = gathered(load("MUTAG"), torch.full((2, 3), -1))
    assert not batch.present.any()
    assert not batch.x.any()
    assert not any(rows.size.any() for rows in batch.levels)


def test_codes_become_a_column_a_category():
    codes = [
        Data(torch.tensor([[0, 2], [3, 0]]), PATH[:, :1], y=torch.tensor([0])),
        Data(torch.tensor([[1, 1]]), y=torch.tensor([1])),
    ]
    data = GraphDataset.from_pyg(codes)
    batch, _ = gathered(data, torch.tensor([[1, 0]]), categories=(4, 3))
    wanted = data.take([1, 0]).x
    spread = torch.cat([one_hot(wanted[:, 0], 4), one_hot(wanted[:, 1], 3)], 1).float()
    assert torch.equal(batch.x[:3], spread)
    assert not batch.x[3:].any()


@given(drawn=batches(), extra=st.sampled_from((0, 70)))
@settings(max_examples=60, deadline=None)
def test_the_codes_of_edges_stand_where_the_edges_do_from_either_end(drawn, extra):
    data, index = drawn
    data = bonded(data)
    stock = DeviceDataset.of(data, edge_categories=BONDS)
    capacity = wider(stock.capacity(index, ()), extra)
    csr, bonds = (batch := stock.gather(index, capacity, ())).csr, batch.edge_types
    leaving = torch.full_like(csr.target, -1)
    for row, (begin, end) in enumerate(zip(csr.out_begin, csr.out_end, strict=True)):
        leaving[begin:end] = row
    ways = (
        (csr.source, csr.sink, bonds.entering),
        (leaving, csr.target, bonds.leaving),
    )
    for run, places in enumerate(index):
        wanted = data.take(places[places >= 0])
        codes = (wanted.edge_attr + torch.tensor([0, BONDS[0]])).T
        known = Counter(map(tuple, torch.cat([wanted.edge_index, codes]).T.tolist()))
        for source, target, kinds in ways:
            ends = torch.stack([source, target]).view(2, len(index), -1)[:, run]
            here = ends[0] >= 0
            numbered = ends[:, here] - run * capacity.nodes[0]
            found = torch.cat([numbered, kinds.unflatten(0, (len(index), -1))[run][here].T])
            assert Counter(map(tuple, found.T.tolist())) == known


def test_codes_that_are_the_same_both_ways_are_kept_once():
    data = molecules(4)
    stock = DeviceDataset.of(data, ATOM_SIZES, BOND_SIZES)
    assert stock.leaving is stock.entering
    assert stock.entering.kinds.dtype == torch.uint8
    index = torch.tensor([[0, 3]])
    bonds = stock.gather(index, stock.capacity(index, ()), ()).edge_types
    assert bonds.leaving is bonds.entering
    other = DeviceDataset.of(bonded(data), ATOM_SIZES, BONDS)
    assert other.leaving is not other.entering


def test_codes_of_edges_come_only_when_they_are_asked_for():
    data, index = molecules(4), torch.tensor([[0, 3]])
    batch, _ = gathered(data, index, categories=ATOM_SIZES)
    assert batch.edge_types is None


def test_codes_of_edges_that_are_not_there_are_an_error():
    data = GraphDataset.from_pyg([graph(3, PATH)])
    with pytest.raises(ValueError, match="graphs has no edge features"):
        DeviceDataset.of(data, edge_categories=BONDS)


def test_rows_and_edges_come_in_whole_blocks():
    assert Capacity.rounded(5, [1, 64, 65], 0) == Capacity(5, (64, 64, 128), 64)


@pytest.mark.parametrize(
    ("other", "fits"),
    [
        (Capacity(4, (128, 64), 64), True),
        (Capacity(3, (100, 10), 1), True),
        (Capacity(5, (128, 64), 64), False),
        (Capacity(4, (129, 64), 64), False),
        (Capacity(4, (128, 65), 64), False),
        (Capacity(4, (128, 64), 65), False),
    ],
)
def test_a_capacity_holds_what_is_nowhere_larger(other, fits):
    assert Capacity(4, (128, 64), 64).holds(other) is fits


@given(drawn=batches(), ratios=RATIOS)
@settings(max_examples=30, deadline=None)
def test_the_capacity_suffices_for_the_largest_run(drawn, ratios):
    data, index = drawn
    stock = DeviceDataset.of(data)
    capacity = stock.capacity(index, ratios)
    needs = stock.requirements(index, ratios)
    for places, need in zip(index, needs, strict=True):
        taken = data.take(places[places >= 0], ratios)
        counts = [level.batch.numel() for level in taken.levels]
        assert need.sum(0).tolist() == [*counts, taken.edge_index.size(1)]
        assert capacity.holds(Capacity(index.size(1), tuple(counts), taken.edge_index.size(1)))


def test_a_share_is_counted_on_its_decimal_value():
    # 0.07 * 100 is 7.000000000000001 in floats, and 8 nodes would be kept.
    data = GraphDataset.from_pyg([graph(100, PATH)])
    batch, _ = gathered(data, torch.tensor([[0]]), (0.07,))
    assert batch.levels[1].size.tolist() == [7]


def test_rows_of_lays_out_empty_places_too():
    rows = layout_of_sizes(torch.tensor([[0, 2, 0], [0, 0, 0]]), 3)
    assert rows.start.tolist() == [0, 0, 2, 3, 3, 3]
    assert rows.batch.tolist() == [1, 1, 6, 6, 6, 6]
