from collections import Counter

import networkx as nx
import pytest
import torch
from torch_geometric.nn import GCNConv, global_mean_pool

from gtpool.data.dataset import GraphDataset
from gtpool.data.encodings import with_encodings
from gtpool.data.synthetic import erdos_renyi, long_range, low_scores_matter
from gtpool.ops.sample import SAMPLERS
from gtpool.reproduce.paper import STUDIES
from gtpool.study.run_one import run_one

MAKERS = {
    "erdos_renyi": lambda seed: erdos_renyi(4, 30, 0.3, seed, channels=5),
    "long_range": lambda seed: long_range(4, seed),
    "low_scores_matter": lambda seed: low_scores_matter(4, seed),
}


def networks(data: GraphDataset) -> list[nx.Graph]:
    """Give each graph with the features of its nodes as a ``kind``."""
    made = []
    for graph in data.to_pyg():
        network = nx.Graph(graph.edge_index.T.tolist())
        assert network.number_of_nodes() == graph.num_nodes
        for node, row in enumerate(graph.x.tolist()):
            network.nodes[node]["kind"] = str(row)
        made.append(network)
    return made


def neighbourhoods(network: nx.Graph, radius: int) -> Counter[str]:
    """Count the balls around the nodes of a graph, alike where a hash of the ball is alike.

    The centre is marked. The hash is exact here: balls in a ring or a ring with a tail are paths,
    rings or trees, which colour refinement tells apart.
    """
    balls = Counter()
    for node in network:
        ball = nx.ego_graph(network, node, radius).copy()
        ball.nodes[node]["kind"] += "centre"
        balls[nx.weisfeiler_lehman_graph_hash(ball, node_attr="kind", iterations=2 * radius)] += 1
    return balls


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_fixes_the_graphs_and_another_changes_them(name):
    state = torch.get_rng_state()
    one, same, other = (MAKERS[name](seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    for part in ("x", "edge_index", "sizes", "edge_counts", "y"):
        assert torch.equal(getattr(one, part), getattr(same, part))
    assert not torch.equal(one.x, other.x)


@pytest.mark.parametrize("name", MAKERS)
def test_edges_go_both_ways_and_none_twice(name):
    for graph in MAKERS[name](0).to_pyg():
        assert graph.is_undirected()
        assert graph.coalesce().num_edges == graph.num_edges
        assert not graph.has_self_loops()


@pytest.mark.parametrize("density", [0.0, 0.2, 0.8, 1.0])
def test_erdos_renyi_joins_the_share_of_pairs_asked_for(density):
    data = erdos_renyi(3, 200, density)
    share = data.edge_counts / (200 * 199)
    assert torch.allclose(share, torch.tensor(density), atol=0.02)
    assert data.sizes.tolist() == [200] * 3


def test_erdos_renyi_refuses_a_density_above_one():
    with pytest.raises(ValueError, match=r"density .*got 80"):
        erdos_renyi(1, 10, 80)


@pytest.mark.parametrize("radius", [1, 3])
def test_three_hops_see_the_same_in_both_classes_of_long_range(radius):
    rings = networks(long_range(8, length=2 * radius + 1))
    for paired, alternating in zip(rings[::2], rings[1::2], strict=True):
        assert neighbourhoods(paired, radius) == neighbourhoods(alternating, radius)


def test_three_convolutions_give_both_classes_of_long_range_the_same_mean():
    torch.manual_seed(0)
    batch = long_range(8, length=7).take(range(8))
    x = batch.x.double()
    for width in (3, 16, 16):
        x = GCNConv(width, 16).double()(x, batch.edge_index).relu()
    mean = global_mean_pool(x, batch.batch)
    assert torch.allclose(mean[::2], mean[1::2], atol=1e-12)
    assert not torch.allclose(mean[::2], mean[1::2].roll(1, 0), atol=1e-6)  # sizes do show


def test_encodings_are_the_same_at_all_nodes_of_both_classes_of_long_range():
    data = with_encodings(long_range(6), ("rwse:16", "lappe:8", "cycles:8", "degree"))
    columns = data.x.size(1) - 3
    for first in range(0, 6, 2):
        pair = data.take([first, first + 1]).x[:, :columns]
        torch.testing.assert_close(pair, pair[:1].expand_as(pair))


@pytest.mark.slow
def test_k_mis_solves_long_range():
    cell = STUDIES["long-range"].only(line="kmis")[0]
    assert run_one(cell.specs[0], device="cpu").test == 1.0


def test_from_bead_to_bead_the_classes_of_long_range_differ():
    rings = networks(long_range(8, length=6))
    for paired, alternating in zip(rings[::2], rings[1::2], strict=True):
        gap = paired.number_of_nodes() // 4
        assert neighbourhoods(paired, gap) != neighbourhoods(alternating, gap)


def test_long_range_graphs_are_rings_with_four_beads_far_apart():
    for ring in networks(long_range(6, length=5)):
        assert nx.is_connected(ring)
        assert {degree for _, degree in ring.degree} == {2}
        beads = [node for node, kind in ring.nodes(data="kind") if not kind.startswith("[1.0")]
        assert len(beads) == 4
        distances = [
            nx.shortest_path_length(ring, one, two) for one in beads for two in beads if one < two
        ]
        assert 5 <= min(distances) <= 10


def test_long_range_comes_in_pairs():
    with pytest.raises(ValueError, match="num_graphs must be even"):
        long_range(3)


@pytest.fixture(scope="module")
def scored():
    """300 graphs with the score of each node, its graph, and whether it is coloured."""
    batch = low_scores_matter(300, seed=1).take(range(300))
    return batch.x[:, 0], batch.batch, batch.x[:, 2:].any(1)


@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_top_k_keeps_no_coloured_node(scored, ratio):
    score, batch, coloured = scored
    assert not coloured[SAMPLERS["topk"](score, batch, ratio)].any()


@pytest.mark.parametrize("ratio", [0.25, 0.5])
@pytest.mark.parametrize("order", ["index", "score"])
@pytest.mark.parametrize("sampler", ["rws", "rwsv"])
def test_a_wheel_keeps_coloured_nodes_of_every_graph(scored, sampler, order, ratio):
    score, batch, coloured = scored
    kept = SAMPLERS[sampler](score, batch, ratio, order=order)
    assert batch[kept[coloured[kept]]].unique().numel() == 300


def test_what_top_k_keeps_is_more_than_three_steps_from_any_colour():
    data = low_scores_matter(10)
    for graph, network in zip(data.to_pyg(), networks(data), strict=True):
        assert nx.is_connected(network)
        coloured = set(graph.x[:, 2:].any(1).nonzero().flatten().tolist())
        for node in graph.x[:, 0].nonzero().flatten().tolist():
            assert not coloured & set(nx.ego_graph(network, node, 3))


def test_the_colour_is_the_class():
    data = low_scores_matter(10)
    for graph in data.to_pyg():
        red, blue = graph.x[:, 2].any(), graph.x[:, 3].any()
        assert bool(red) != bool(blue)
        assert int(graph.y) == int(blue)
