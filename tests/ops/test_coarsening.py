"""Chains of clusterings: their shape, their clusters, and how a dataset gets and keeps them."""

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import networkx as nx
import pytest
import torch
from contract import Graphs, complete_graphs, drawn, pack, ragged, ring
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from gtpool.data import coarsening as data_chain
from gtpool.data import parallel
from gtpool.data.coarsening import with_chain
from gtpool.data.dataset import GraphDataset
from gtpool.data.locate import cache_dir
from gtpool.data.synthetic import low_scores_matter
from gtpool.graph import CoarseningStep
from gtpool.ops import spectral
from gtpool.ops.coarsening import build_chain
from gtpool.ops.segment import layout_from_batch

Chain = tuple[CoarseningStep, ...]


def chain_of(graphs: Graphs, steps: int) -> Chain:
    return build_chain(graphs.edge_index, layout_from_batch(graphs.batch), steps)


def same(one: Chain, two: Chain) -> bool:
    pairs = zip(one, two, strict=True)
    return all(
        all(map(torch.equal, (*a[:3], *a.level[:3]), (*b[:3], *b.level[:3])))
        and a.cluster.dtype == b.cluster.dtype
        for a, b in pairs
    )


def one_graph(graph: nx.Graph) -> Graphs:
    return pack([(len(graph), [*graph.edges, *((j, i) for i, j in graph.edges)])], seed=0)


def families() -> list[nx.Graph]:
    """Give graphs with every kind of symmetry, where eigenvalues and distances tie."""
    shapes = [nx.complete_graph, nx.path_graph, nx.cycle_graph, nx.star_graph, nx.empty_graph]
    graphs = [shape(n) for shape in shapes for n in (3, 4, 5, 8, 9, 16, 21, 33)]
    graphs += [nx.hypercube_graph(4), nx.petersen_graph(), nx.complete_bipartite_graph(4, 7)]
    graphs += [nx.disjoint_union(nx.cycle_graph(7), nx.cycle_graph(7)), nx.grid_2d_graph(5, 5)]
    return [nx.convert_node_labels_to_integers(graph) for graph in graphs]


def packed(graphs: list[nx.Graph]) -> Graphs:
    return pack([(len(g), [*g.edges, *((j, i) for i, j in g.edges)]) for g in graphs], seed=0)


@drawn
@given(ragged(), st.integers(1, 4))
def test_a_level_has_half_the_nodes_and_one_more_and_the_last_has_one(graphs, steps):
    chain = chain_of(graphs, steps)
    sizes = graphs.batch.bincount().tolist()
    of = graphs.batch
    for number, step in enumerate(chain):
        sizes = [n // 2 + 1 if n > 2 else 1 for n in sizes]
        sizes = [1] * len(sizes) if number == steps - 1 else sizes
        assert step.level.sizes.tolist() == sizes
        assert step.level.ptr.tolist() == [0, *torch.tensor(sizes).cumsum(0).tolist()]
        assert step.cluster.unique().tolist() == list(range(sum(sizes)))  # none is empty
        assert torch.equal(step.level.batch[step.cluster], of)  # and none in two graphs
        assert number == 0 or bool((step.cluster.diff() >= 0).all())
        of = step.level.batch


@drawn
@given(ragged(), st.integers(1, 4))
def test_coarse_edges_weigh_as_many_edges_as_they_stand_for(graphs, steps):
    n = graphs.batch.numel()
    adjacency = torch.zeros(n, n)
    for source, target in graphs.edge_index.T.tolist():
        adjacency[source, target] += 1
    for step in chain_of(graphs, steps):
        k = int(step.level.ptr[-1])
        assign = torch.zeros(step.cluster.numel(), k)
        assign[torch.arange(step.cluster.numel()), step.cluster] = 1
        adjacency = assign.T @ adjacency @ assign
        assert torch.equal(adjacency.nonzero().T, step.edge_index)
        assert torch.equal(adjacency[tuple(step.edge_index)], step.edge_attr.flatten())


@drawn
@given(ragged(), st.integers(1, 3))
def test_a_graph_alone_gives_the_chain_that_it_has_in_a_batch(graphs, steps):
    alone_as_in_batch(graphs, steps)


def test_symmetric_graphs_alone_give_the_chain_that_they_have_in_a_batch():
    alone_as_in_batch(packed(families()), 3)
    alone_as_in_batch(complete_graphs(torch.float32), 3)


def alone_as_in_batch(graphs: Graphs, steps: int) -> None:
    chain = chain_of(graphs, steps)
    for number, size in enumerate(graphs.batch.bincount().tolist()):
        first = int((graphs.batch == number).nonzero()[0])
        inside = graphs.batch[graphs.edge_index[0]] == number
        alone = build_chain(
            graphs.edge_index[:, inside] - first, layout_from_batch(torch.zeros(size).long()), steps
        )
        of = graphs.batch
        for whole, part in zip(chain, alone, strict=True):
            start = int(whole.level.ptr[number])
            edges = whole.level.batch[whole.edge_index[0]] == number
            assert torch.equal(whole.cluster[of == number] - start, part.cluster), size
            assert torch.equal(whole.edge_index[:, edges] - start, part.edge_index)
            assert torch.equal(whole.edge_attr[edges], part.edge_attr)
            of = whole.level.batch


@drawn
@given(ragged())
def test_clusters_stay_inside_components_unless_isolated_nodes_are_paired(graphs):
    chain = chain_of(graphs, 2)
    for number, size in enumerate(graphs.batch.bincount().tolist()):
        first = int((graphs.batch == number).nonzero()[0])
        graph = nx.empty_graph(range(first, first + size))
        graph.add_edges_from(e for e in graphs.edge_index.T.tolist() if e[0] in graph)
        parts = list(nx.connected_components(graph))
        clusters = int(chain[0].level.sizes[number])
        members = [
            set((chain[0].cluster == c).nonzero().flatten().tolist())
            for c in range(int(chain[0].level.ptr[number]), int(chain[0].level.ptr[number + 1]))
        ]
        across = [m for m in members if not any(m <= part for part in parts)]
        assert len(across) == max(0, len(parts) - clusters)
        lone = [v for part in parts if len(part) == 1 for v in part]
        pairs = [set(lone[i : i + 2]) for i in range(0, 2 * len(across), 2)]
        assert sorted(map(sorted, across)) == sorted(map(sorted, pairs))


def test_components_get_clusters_in_proportion_to_their_nodes():
    path = [(i, i + 1) for i in range(9)]
    other = [(i + 10, i + 11) for i in range(3)]
    chain = chain_of(pack([(15, path + other)], seed=0), 2)  # 10, 4 and 1 nodes, 8 clusters
    counts = [chain[0].cluster[part].unique().numel() for part in (range(10), range(10, 14), [14])]
    assert counts == [5, 2, 1]


def test_an_edgeless_graph_is_merged_two_by_two():
    first = chain_of(pack([(7, [])], seed=0), 2)[0]
    assert first.cluster.tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert first.edge_index.shape == (2, 0)
    assert first.edge_attr.shape == (0, 1)


def test_clusters_are_numbered_by_the_one_above_and_then_by_their_first_node():
    chain = chain_of(packed(families()), 3)
    lowest = [torch.arange(chain[0].cluster.numel())]
    for step in chain[:2]:
        first = torch.full((int(step.level.ptr[-1]),), 10**6)
        lowest.append(first.scatter_reduce(0, step.cluster, lowest[-1], "amin"))
    for below, step in zip(lowest[1:], chain[1:], strict=True):
        keys = list(zip(step.cluster.tolist(), below.tolist(), strict=True))
        assert keys == sorted(keys)


def test_direction_loops_and_the_order_of_edges_do_not_change_the_clusters():
    graphs = packed([nx.gnm_random_graph(n, 2 * n, seed=n) for n in (9, 14, 30)])
    chain = chain_of(graphs, 3)
    half = graphs.edge_index[:, graphs.edge_index[0] < graphs.edge_index[1]]
    nodes = torch.arange(graphs.batch.numel())
    for edges in (half, half.flip(0), half.flip(1), torch.cat([half, nodes.repeat(2, 1)], 1)):
        other = chain_of(graphs._replace(edge_index=edges), 3)
        for one, two in zip(chain, other, strict=True):
            assert torch.equal(one.cluster, two.cluster)


def test_what_hangs_together_comes_together():
    cliques = nx.ring_of_cliques(4, 5)
    dense = torch.tensor(nx.to_numpy_array(cliques)).unsqueeze(0)
    found = spectral._cluster(dense, 4)[0]
    assert [len(set(found[part : part + 5].tolist())) for part in range(0, 20, 5)] == [1] * 4
    assert found.unique().numel() == 4


@pytest.mark.parametrize("n", [5, 8, 13, 20])
def test_one_matrix_and_loops_give_the_same_clusters(n):
    graphs = [nx.connected_watts_strogatz_graph(n, 4, 0.3, seed=seed) for seed in range(5)]
    k = n // 2 + 1
    dense = torch.stack([torch.tensor(nx.to_numpy_array(graph)) for graph in graphs])
    found = spectral._cluster(dense, k)
    for one, ours in zip(dense, found, strict=True):
        assert same_partition(naive_cluster(one, k), ours.tolist())


def naive_cluster(adjacency: torch.Tensor, k: int) -> list[int]:
    """Cluster one graph: farthest points first, then k-means until nothing moves."""
    n = len(adjacency)
    degree = adjacency.sum(1)
    laplacian = torch.eye(n).double() - adjacency / (degree[:, None] * degree[None]).sqrt()
    laplacian += torch.diag(spectral._NUDGE * spectral._noise(n))
    points = torch.linalg.eigh(laplacian).eigenvectors[:, :k] / degree.sqrt()[:, None]
    chosen = [max(range(n), key=lambda i: float(points[i].norm()))]
    while len(chosen) < k:
        rest = [i for i in range(n) if i not in chosen]
        chosen.append(
            max(rest, key=lambda i: min(float((points[i] - points[c]).norm()) for c in chosen))
        )
    centres, cluster = points[chosen], []
    while True:
        before = cluster
        cluster = [
            min(range(k), key=lambda c: float((points[i] - centres[c]).norm())) for i in range(n)
        ]
        assert set(cluster) == set(
            range(k)
        )  # or the relocation of empty ones would have to be here
        if cluster == before:
            return cluster
        members = [[i for i in range(n) if cluster[i] == c] for c in range(k)]
        centres = torch.stack([points[m].mean(0) for m in members])


def same_partition(one: list[int], two: list[int]) -> bool:
    return len(set(zip(one, two, strict=True))) == len(set(one)) == len(set(two))


def test_an_empty_cluster_gets_the_point_farthest_from_its_centre():
    cluster = torch.tensor([[0, 0, 0, 2], [1, 1, 2, 0], [0, 0, 0, 0]])
    distance = torch.tensor([[1.0, 3, 2, 9], [1, 2, 3, 4], [4, 3, 2, 1]])
    found, size = spectral._without_empty(cluster, distance, 3)
    assert found.tolist() == [[0, 1, 0, 2], [1, 1, 2, 0], [1, 2, 0, 0]]
    assert size.tolist() == [[2, 1, 1], [1, 2, 1], [2, 1, 1]]


def test_points_that_are_all_alike_still_fill_all_clusters():
    found = spectral._kmeans(torch.ones(2, 7, 4, dtype=torch.double), 4)
    assert [row.unique().numel() for row in found] == [4, 4]


def test_room_changes_nothing(monkeypatch):
    graphs = packed(families())
    chain = chain_of(graphs, 3)
    monkeypatch.setattr(spectral, "_ROOM", 1)
    assert same(chain_of(graphs, 3), chain)


@pytest.mark.parametrize("steps", [0, -1, 2.0, True])
def test_steps_are_counted(steps):
    with pytest.raises(ValueError, match="steps must be an int of at least 1"):
        chain_of(pack([(3, ring(3))], seed=0), steps)
    with pytest.raises(ValueError, match="steps must be an int of at least 1"):
        with_chain(low_scores_matter(2), steps)


def mixed() -> GraphDataset:
    """Give a dataset of all kinds of graphs, out of order of size."""
    graphs = families()
    graphs = graphs[::2] + graphs[1::2]
    return GraphDataset.from_pyg(
        [Data(torch.randn(len(g), 2), one_graph(g).edge_index, y=torch.tensor([0])) for g in graphs]
    )


@pytest.fixture
def fresh_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GTPOOL_CACHE", str(tmp_path))
    return tmp_path


def refuse(*_):
    raise AssertionError("it was to be read from the cache")


@pytest.mark.usefixtures("fresh_cache")
@pytest.mark.parametrize("chunk", [data_chain._CHUNK, 2000.0])
def test_batches_of_a_dataset_carry_the_chain_of_their_graphs(monkeypatch, chunk):
    monkeypatch.setattr(data_chain, "_CHUNK", chunk)
    plain = mixed()
    data = with_chain(plain, 3)
    assert same(data.chain, build_chain(plain.take(range(len(plain))).edge_index, level(plain), 3))
    generator = torch.Generator().manual_seed(0)
    for chosen in (torch.randperm(len(data), generator=generator), [5, 5, 0, 41], [len(data) - 1]):
        batch = data.take(chosen)
        assert same(batch.chain, build_chain(batch.edge_index, batch.levels[0], 3))
    assert plain.take([0]).chain == ()
    assert with_chain(data, 3) is data
    assert len(with_chain(data, 2).chain) == 2


def level(data: GraphDataset):
    return data.take(range(len(data))).levels[0]


def test_a_chain_is_computed_once(monkeypatch, fresh_cache):
    data, told = mixed(), []
    first = with_chain(data, 3, tell=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(data), len(data))
    assert len(list((fresh_cache / "chains").iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(data_chain, "_build", refuse)
        assert same(with_chain(data, 3).chain, first.chain)
        scaled = replace(data, x=data.x * 2)  # features have no part in it
        assert same(with_chain(scaled, 3).chain, first.chain)
        for other in (replace(data, edge_index=data.edge_index.flip(0)), low_scores_matter(4)):
            with pytest.raises(AssertionError, match="read from the cache"):
                with_chain(other, 3)
        with pytest.raises(AssertionError, match="read from the cache"):
            with_chain(data, 2)
        patch.setattr(data_chain, "VERSION", data_chain.VERSION + 1)
        with pytest.raises(AssertionError, match="read from the cache"):
            with_chain(data, 3)


def test_a_damaged_cache_is_made_anew(fresh_cache):
    data = mixed()
    sound = with_chain(data, 3).chain
    entry = next((fresh_cache / "chains").iterdir())
    tensors, values = entry / "graphs.safetensors", entry / "schema.json"
    whole, text = tensors.read_bytes(), values.read_bytes()
    flipped = whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:]
    for path, content in [
        (tensors, b""),
        (tensors, whole[:-9]),
        (tensors, flipped),
        (values, b"[]"),
        (values, b'{"format": 1}'),
        (values, text[:-2]),
    ]:
        path.write_bytes(content)
        assert same(with_chain(data, 3).chain, sound)
        assert (tensors.read_bytes(), values.read_bytes()) == (whole, text)
    tensors.unlink()
    assert same(with_chain(data, 3).chain, sound)


def test_a_cache_that_cannot_be_written_is_said_and_done_without(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    data = mixed()
    monkeypatch.setenv("GTPOOL_CACHE", str(blocked))
    with pytest.warns(UserWarning, match="cannot be cached"):
        chain = with_chain(data, 2).chain
    assert len(chain) == 2


@pytest.mark.usefixtures("fresh_cache")
def test_an_error_while_telling_reaches_the_caller():
    def tell(_done, _total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with_chain(mixed(), 2, tell=tell)
    assert not (cache_dir() / "chains").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_cache")
def test_two_processes_give_what_one_gives(monkeypatch):
    data = mixed()
    chain = with_chain(data, 3, jobs=1).chain
    monkeypatch.setattr(data_chain, "_CHUNK", 2e4)
    monkeypatch.setattr(data_chain, "_MIN_PARALLEL", 0)
    monkeypatch.setattr(data_chain, "_read", lambda *_: {}["not there"])
    told = []
    assert same(with_chain(data, 3, jobs=2, tell=lambda *t: told.append(t)).chain, chain)
    assert len(told) > 2


def test_a_process_that_dies_is_explained(monkeypatch):
    class Dying(ThreadPoolExecutor):
        def __init__(self, jobs, *_):
            super().__init__(jobs)

        def submit(self, *_):
            return super().submit(self.die)

        def die(self):
            raise BrokenProcessPool

    monkeypatch.setattr(parallel, "ProcessPoolExecutor", Dying)
    with pytest.raises(RuntimeError, match="must do so below `if __name__"):
        list(parallel.run_tasks(abs, [1], 2, "counts"))


@pytest.mark.parametrize("jobs", [0, 1.0])
def test_jobs_are_counted(jobs):
    with pytest.raises(ValueError, match="jobs must be an int of at least 1"):
        with_chain(low_scores_matter(2), 2, jobs=jobs)
