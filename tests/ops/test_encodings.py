"""Structural encodings: equal to slow references, whatever the numbering and the batch."""

from itertools import combinations, permutations
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE

from gtpool.ops import encodings
from gtpool.ops.encodings import PackedEdges, cycles, degree, eigenspaces, random_walk


def long_cycles(edges: PackedEdges) -> Tensor:
    """Count cycles of up to 8 nodes, also in graphs so dense that users get an error."""
    with patch.object(encodings, "MOST_WALKS", torch.inf):
        return cycles(edges, 8)


FUNCTIONS = {
    "rwse": lambda edges: random_walk(edges, 9),
    "lappe": lambda edges: eigenspaces(edges, 4),
    "cycles": lambda edges: cycles(edges, 5),
    "cycles:8": long_cycles,
    "degree": degree,
}


def packed(*graphs: tuple[int, list[tuple[int, int]]]) -> PackedEdges:
    edges = [torch.tensor(pairs, dtype=torch.long).view(-1, 2).T for _, pairs in graphs]
    return PackedEdges(
        torch.cat(edges, 1),
        torch.tensor([nodes for nodes, _ in graphs]),
        torch.tensor([part.size(1) for part in edges]),
    )


def both_ways(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [end for a, b in pairs for end in ((a, b), (b, a))]


def ring(nodes: int) -> tuple[int, list[tuple[int, int]]]:
    return nodes, both_ways([(node, (node + 1) % nodes) for node in range(nodes)])


def adjacency(edges: PackedEdges) -> Tensor:
    matrix = torch.zeros(int(edges.sizes[0]), int(edges.sizes[0]), dtype=torch.double)
    for source, target in edges.edge_index.T.tolist():
        matrix[source, target] += 1
    return matrix


def undirected(edges: PackedEdges) -> Tensor:
    matrix = adjacency(edges)
    return ((matrix + matrix.T) > 0).double().fill_diagonal_(0)


def rwse_reference(edges: PackedEdges) -> Tensor:
    matrix = adjacency(edges)
    matrix = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
    powers = [torch.linalg.matrix_power(matrix, step).diagonal() for step in range(2, 10)]
    return torch.stack(powers, 1)


def lappe_reference(edges: PackedEdges) -> Tensor:
    matrix = undirected(edges)
    degrees = matrix.sum(1)
    scale = degrees.clamp(min=1).rsqrt()
    values, vectors = torch.linalg.eigh(
        (degrees > 0).double().diag() - matrix * scale * scale[:, None]
    )
    columns: list[Tensor] = []
    for place, value in enumerate(values.tolist()):
        if place == 0 or value - values[place - 1] > 1e-6:
            columns.append(torch.zeros(len(values), dtype=torch.double))
        columns[-1] += vectors[:, place] ** 2
    columns += [torch.zeros(len(values), dtype=torch.double)] * 4
    return torch.stack(columns[:4], 1)


def cycles_reference(edges: PackedEdges, longest: int) -> Tensor:
    matrix = undirected(edges).bool()
    nodes = matrix.size(0)
    counts = torch.zeros(nodes, longest - 2, dtype=torch.double)
    for length in range(3, longest + 1):
        for members in combinations(range(nodes), length):
            for order in permutations(members[1:]):
                tour = [members[0], *order]
                steps = zip(tour, [*order, members[0]], strict=True)
                if order[0] < order[-1] and all(matrix[a, b] for a, b in steps):
                    counts[tour, length - 3] += 1
    return counts.log1p()


REFERENCES = {
    "rwse": rwse_reference,
    "lappe": lappe_reference,
    "cycles": lambda edges: cycles_reference(edges, 5),
    "cycles:8": lambda edges: cycles_reference(edges, 8),
    "degree": lambda edges: adjacency(edges).sum(1, keepdim=True).log1p(),
}


@st.composite
def graphs(draw: st.DrawFn, most: int = 7) -> tuple[int, list[tuple[int, int]]]:
    """Directed graphs with loops and parallel edges, or undirected ones."""
    nodes = draw(st.integers(1, most))
    node = st.integers(0, nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=3 * nodes))
    return nodes, both_ways(pairs) if draw(st.booleans()) else pairs


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=25, deadline=None)
@given(graph=graphs())
def test_equals_its_reference(name: str, graph: tuple[int, list[tuple[int, int]]]):
    edges = packed(graph)
    found = FUNCTIONS[name](edges)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), REFERENCES[name](edges), atol=2e-7, rtol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=25, deadline=None)
@given(graph=graphs(9), data=st.data())
def test_follows_a_permutation_of_the_nodes(
    name: str, graph: tuple[int, list[tuple[int, int]]], data: st.DataObject
):
    nodes, pairs = graph
    number = data.draw(st.permutations(range(nodes)))
    moved = [(number[a], number[b]) for a, b in data.draw(st.permutations(pairs))]
    found = FUNCTIONS[name](packed((nodes, moved)))
    torch.testing.assert_close(found[number], FUNCTIONS[name](packed(graph)))


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=25, deadline=None)
@given(batch=st.lists(graphs(10), min_size=1, max_size=6))
def test_batch_equals_each_graph_alone(name: str, batch: list[tuple[int, list[tuple[int, int]]]]):
    alone = torch.cat([FUNCTIONS[name](packed(graph)) for graph in batch])
    torch.testing.assert_close(FUNCTIONS[name](packed(*batch)), alone)
    assert alone.isfinite().all()


@settings(max_examples=25, deadline=None)
@given(graph=graphs(12))
def test_random_walk_equals_pyg(graph: tuple[int, list[tuple[int, int]]]):
    nodes, pairs = graph[0], sorted(set(graph[1]))  # PyG drops parallel edges, but counts them
    edges = packed((nodes, pairs))
    data = Data(edge_index=edges.edge_index, num_nodes=nodes)
    expected = AddRandomWalkPE(9)(data).random_walk_pe[:, 1:]  # column k is step k + 1
    torch.testing.assert_close(random_walk(edges, 9), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_graph_without_edges(name: str):
    found = FUNCTIONS[name](packed((2, []), ring(3)))
    expected = {"lappe": torch.tensor([1.0, 0, 0, 0])}.get(name, torch.zeros(found.size(1)))
    assert torch.equal(found[0], expected)
    assert torch.equal(found[1], expected)


def test_walks_of_loops_parallel_and_directed_edges():
    loop = random_walk(packed((2, [(0, 0), (0, 1), (1, 0)])), 3)
    assert loop.tolist() == [[0.75, 0.625], [0.5, 0.25]]
    parallel = random_walk(packed((3, [(0, 1), (0, 1), (0, 2), (1, 0), (2, 2)])), 2)
    torch.testing.assert_close(parallel[:, 0], torch.tensor([2 / 3, 2 / 3, 1]))
    one_way = random_walk(packed((3, [(0, 1), (1, 2), (2, 0)])), 4)
    assert one_way.tolist() == [[0, 1, 0]] * 3


def test_cycles_of_known_graphs():
    petersen = both_ways(
        [(i, (i + 1) % 5) for i in range(5)]
        + [(i, i + 5) for i in range(5)]
        + [(5 + i, 5 + (i + 2) % 5) for i in range(5)]
    )
    found = cycles(packed((10, petersen), ring(6), ring(2000)), 8).exp().sub(1).round()
    assert found[:10].tolist() == [[0, 0, 6, 6, 0, 12]] * 10
    assert found[10:16].tolist() == [[0, 0, 0, 1, 0, 0]] * 6
    assert not found[16:].any()


def test_projectors_do_not_depend_on_the_basis_of_an_eigenspace():
    found = eigenspaces(packed(ring(8)), 5)  # eigenvalues 0, two, two, two, 2
    torch.testing.assert_close(found[0], torch.tensor([1, 2, 2, 2, 1]) / 8)
    assert torch.equal(found, found[:1].expand_as(found))
    assert eigenspaces(packed(ring(3)), 4)[0, 2:].tolist() == [0, 0]  # two distinct eigenvalues


def test_large_graph_is_estimated(monkeypatch: pytest.MonkeyPatch):
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(0, 300, (450, 2), generator=generator).tolist()
    for graph in ((300, both_ways(pairs)), (300, [*map(tuple, pairs)])):
        edges = packed(graph, ring(5))
        exact = random_walk(edges, 8)
        with monkeypatch.context() as patched:
            patched.setattr(encodings, "LARGE", 100)
            with pytest.warns(UserWarning, match="rwse of graphs of more than 100 nodes"):
                found = random_walk(edges, 8)
        assert torch.equal(found[300:], exact[300:])
        assert (found - exact).abs().mean() < 0.01
        assert (found - exact).abs().max() < 0.2


def test_cycles_of_a_large_graph_are_exact(monkeypatch: pytest.MonkeyPatch):
    generator = torch.Generator().manual_seed(0)
    pairs = both_ways(torch.randint(0, 200, (400, 2), generator=generator).tolist())
    edges = packed((200, pairs), ring(5))
    exact = cycles(edges, 5)
    monkeypatch.setattr(encodings, "LARGE", 100)
    torch.testing.assert_close(cycles(edges, 5), exact)
    torch.testing.assert_close(cycles(edges, 6)[:, :3], exact)


def test_what_a_graph_cannot_have_is_named(monkeypatch: pytest.MonkeyPatch):
    dense = packed(ring(4), (40, both_ways([*combinations(range(40), 2)])))
    with pytest.raises(ValueError, match=r"'cycles:6' .* graph 1"):
        cycles(dense, 6)
    monkeypatch.setattr(encodings, "LARGE", 30)
    with pytest.raises(ValueError, match=r"'lappe' .* graph 1 .* 40 nodes"):
        eigenspaces(dense, 2)
