import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpool.data.features import featurize
from gtpool.data.formats.nx import from_networkx, from_networkx_raw


def labelled(graph: nx.Graph) -> nx.Graph:
    nx.set_node_attributes(graph, {node: float(i) for i, node in enumerate(graph)}, "mass")
    nx.set_node_attributes(graph, 6, "element")
    nx.set_edge_attributes(graph, 1.5, "length")
    return graph


def test_nodes_of_any_kind_are_numbered_in_their_order():
    graph = nx.Graph([("b", (1, 2)), ((1, 2), frozenset())])
    one, _ = from_networkx([graph, nx.path_graph(2)], [0, 1]).to_pyg()
    assert one.edge_index.T.tolist() == [[0, 1], [1, 2], [1, 0], [2, 1]]


def test_a_digraph_keeps_its_directions_and_a_loop_is_listed_once():
    directed, loop = nx.DiGraph([(0, 1), (1, 2)]), nx.Graph([(0, 0), (0, 1)])
    one, two = from_networkx([directed, loop], ["a", "b"]).to_pyg()
    assert one.edge_index.T.tolist() == [[0, 1], [1, 2]]
    assert sorted(two.edge_index.T.tolist()) == [[0, 0], [0, 1], [1, 0]]


def test_attributes_become_features():
    graphs = [labelled(nx.path_graph(2)), labelled(nx.path_graph(3))]
    nx.set_node_attributes(graphs[0], [1, 2], "at")
    nx.set_node_attributes(graphs[1], np.array([3.0, 4.0]), "at")
    data = from_networkx(
        graphs,
        ["a", "b"],
        node_features=["mass", "at"],
        node_label="element",
        edge_features=["length"],
        edge_weight="length",
    )
    assert data.x.tolist() == [
        [0, 1, 2, 1],
        [1, 1, 2, 1],
        [0, 3, 4, 1],
        [1, 3, 4, 1],
        [2, 3, 4, 1],
    ]
    assert data.edge_attr.tolist() == [[1.5, 1.5]] * 6
    assert data.schema.recipe.edge_weighted


@pytest.mark.parametrize(
    "labels",
    [np.array([1, 0]), torch.tensor([1, 0]), [np.int64(1), np.int64(0)], ["1", "0"], (1, 0)],
)
def test_labels_of_any_container_are_classes(labels):
    data = from_networkx([nx.path_graph(2), nx.path_graph(3)], labels)
    assert (data.schema.task, data.schema.targets) == ("classes", ("0", "1"))
    assert data.y.tolist() == [1, 0]


def test_rows_of_labels_are_tasks():
    data = from_networkx([nx.path_graph(2), nx.path_graph(3)], [(1, None), (0, 1)])
    assert data.schema.task == "binary"
    assert data.y.nan_to_num(-1).tolist() == [[1, -1], [0, 1]]


def test_what_is_missing_is_named():
    graphs = [labelled(nx.path_graph(3)), labelled(nx.path_graph(3))]
    del graphs[1].nodes[2]["mass"]
    del graphs[1].edges[0, 1]["length"]
    with pytest.raises(ValueError, match="graph 1: node 2 has no attribute 'mass'"):
        from_networkx(graphs, [0, 1], node_features=["mass"])
    with pytest.raises(ValueError, match=r"graph 1: edge \(0, 1\) has no attribute 'length'"):
        from_networkx(graphs, [0, 1], edge_weight="length")


def test_graphs_that_cannot_be_packed():
    path = nx.path_graph(2)
    with pytest.raises(ValueError, match="graph 1 is a multigraph"):
        from_networkx([path, nx.MultiGraph([(0, 1), (0, 1)])], [0, 1])
    with pytest.raises(ValueError, match=r"graph 1: .*no nodes"):
        from_networkx([path, nx.Graph()], [0, 1])
    with pytest.raises(ValueError, match="there are 2 graphs, but 3 labels"):
        from_networkx([path, path], [0, 1, 1])
    with pytest.raises(ValueError, match="graphs has no graphs"):
        from_networkx([], [])
    nx.set_node_attributes(path, "C", "element")
    with pytest.raises(ValueError, match="graph 0: node_labels must be"):
        from_networkx([path, path], [0, 1], node_label="element")


def test_to_predict_the_recipe_is_repeated_without_labels():
    recipe = from_networkx([nx.star_graph(3), nx.path_graph(3)], [0, 1]).schema.recipe
    seen = featurize(from_networkx_raw([nx.star_graph(5)]), recipe)
    assert seen.x.argmax(1).tolist() == [3, 1, 1, 1, 1, 1]  # degree 5 shares the last column


@given(st.integers(1, 12), st.floats(0, 1), st.booleans(), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_random_graphs_keep_their_edges(nodes, density, directed, seed):
    graph = nx.gnp_random_graph(nodes, density, seed=seed, directed=directed)
    data = from_networkx([graph, graph], [0, 1])
    expected = set(graph.edges) | (set() if directed else {(v, u) for u, v in graph.edges})
    for one in data.to_pyg():
        found = [tuple(edge) for edge in one.edge_index.T.tolist()]
        assert len(found) == len(set(found))
        assert set(found) == expected
        assert one.num_nodes == nodes
