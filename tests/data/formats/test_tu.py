import json
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.datasets import TUDataset
from torch_geometric.io import read_tu_data

from gtpool.data.features import featurize, learn_recipe
from gtpool.data.formats.tu import MUTAG_ATOMS, read_tu, tu_name
from gtpool.data.inference import read_schema, unknown_labels
from gtpool.data.locate import EMBEDDED
from gtpool.data.schema import Schema

# Two graphs: nodes 1, 2 with an edge each way, and nodes 3, 4, 5 with a loop and a repeated edge.
SOUND = {
    "A": "1, 2\n2, 1\n4, 4\n3, 4\n4, 3\n3, 4\n",
    "graph_indicator": "1\n1\n2\n2\n2\n",
    "graph_labels": "7\n-1\n",
    "node_labels": "3\n5\n3\n3\n9\n",
    "node_attributes": " 0.5, 1\n1e1,-2\n0,0\n0,0\n.25,+3\n",
    "edge_labels": "0\n1\n2\n3\n4\n5\n",
    "edge_attributes": "0.0\n0.1\n0.2\n0.3\n0.4\n0.5\n",
}


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for part, text in (SOUND | files).items():
        if text is not None:
            content = text if isinstance(text, bytes) else text.encode()
            (folder / f"SET_{part}.txt").write_bytes(content)
    return folder


def test_everything_a_folder_may_hold_is_read(tmp_path):
    raw = read_tu(write(tmp_path), "SET")
    assert raw.sizes.tolist() == [2, 3]
    assert raw.edge_counts.tolist() == [2, 3]
    assert raw.edge_index.T.tolist() == [[0, 1], [1, 0], [0, 1], [1, 0], [1, 1]]
    assert (raw.y.tolist(), raw.task, raw.targets) == ([1, 0], "classes", ("-1", "7"))
    assert raw.node_labels.tolist() == [3, 5, 3, 3, 9]
    assert raw.node_attributes.tolist() == [[0.5, 1], [10, -2], [0, 0], [0, 0], [0.25, 3]]
    # of the edge 3 → 4, listed twice, the first line counts
    assert raw.edge_labels.tolist() == [0, 1, 3, 4, 2]
    assert raw.edge_attributes.flatten().tolist() == pytest.approx([0, 0.1, 0.3, 0.4, 0.2])


def test_optional_files_may_be_missing(tmp_path):
    optional = ("node_labels", "node_attributes", "edge_labels", "edge_attributes")
    raw = read_tu(write(tmp_path, **dict.fromkeys(optional)), "SET")
    assert all(getattr(raw, part) is None for part in optional)


def test_graph_attributes_are_numbers_to_predict(tmp_path):
    folder = write(tmp_path, graph_labels=None, graph_attributes="1.5, 2\n-3,4\n")
    raw = read_tu(folder, "SET")
    assert (raw.task, raw.targets) == ("regression", ("task 1", "task 2"))
    assert raw.y.tolist() == [[1.5, 2], [-3, 4]]


LABELS = {
    "none": {"node_labels": None, "edge_labels": None},
    "one column": {"node_labels": "2\n0\n1\n1\n2\n", "edge_labels": "0\n1\n1\n0\n"},
    "several columns": {
        "node_labels": "0, 5, -1\n1, 5, 0\n0, 6, 1\n0, 7, 0\n1, 7, -1\n",
        "edge_labels": "3, 0\n4, 1\n4, 2\n3, 1\n",
    },
}
ATTRIBUTES = {
    "none": {"node_attributes": None, "edge_attributes": None},
    "one column": {"node_attributes": "1\n2.5\n-3\n0\n1\n", "edge_attributes": ".5\n1\n2\n3\n"},
    "many columns": {
        "node_attributes": "".join(f"{n}" + ", .5" * 40 + "\n" for n in range(5)),
        "edge_attributes": "1,2,3\n4,5,6\n7,8,9\n0,0,-1\n",
    },
}
TARGETS = {
    "classes": {"graph_labels": "7\n-1\n"},
    "numbers": {"graph_labels": None, "graph_attributes": "1.5\n-3\n"},
    "several numbers": {"graph_labels": None, "graph_attributes": "1.5, 2\n-3,4\n"},
    "several labels": {"graph_labels": "0, 1\n1, 1\n"},
}


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("attributes", ATTRIBUTES)
@pytest.mark.parametrize("labels", LABELS)
def test_features_and_targets_are_those_of_pyg(tmp_path, labels, attributes, targets):
    parts = LABELS[labels] | ATTRIBUTES[attributes] | TARGETS[targets]
    folder = write(tmp_path, A="1, 2\n2, 1\n4, 3\n3, 4\n", **parts)
    raw = read_tu(folder, "SET")
    data = featurize(raw, learn_recipe(raw))
    theirs, slices, _ = read_tu_data(str(folder), "SET")
    assert slices["edge_index"].diff().tolist() == raw.edge_counts.tolist()
    assert torch.equal(data.edge_index.long(), theirs.edge_index)
    if theirs.x is not None:  # without labels and attributes ours are degrees
        assert torch.equal(data.x, theirs.x)
    if theirs.edge_attr is None:
        assert data.edge_attr is None
    else:
        assert torch.equal(data.edge_attr.float(), theirs.edge_attr.view(4, -1))
    assert torch.equal(raw.y.float().flatten(), theirs.y.float().flatten())


def test_labels_in_several_columns_are_known_again(tmp_path):
    parts = LABELS["several columns"] | ATTRIBUTES["none"]
    folder = write(tmp_path / "a", A="1, 2\n2, 1\n4, 3\n3, 4\n", **parts)
    raw = read_tu(folder, "SET")
    recipe = learn_recipe(raw)
    assert recipe.label_sets == ((0, 1), (5, 6, 7), (-1, 0, 1))
    assert recipe.edge_label_sets == ((3, 4), (0, 1, 2))
    schema = featurize(raw, recipe).schema
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert read_schema(schema.to_json(), "here") == schema
    # 5 is known in the second column alone, and a column too few is no file for the model
    new = parts["node_labels"].replace("1, 5, 0", "5, 5, 0")
    other = read_tu(
        write(tmp_path / "b", A="1, 2\n", **parts | {"edge_labels": "3,0\n", "node_labels": new}),
        "SET",
    )
    assert unknown_labels(other, recipe) == {0: "node label 5 was not in the training data"}
    with pytest.raises(ValueError, match=r"node label 5 .* 0, 1"):
        featurize(other, recipe)
    with pytest.raises(ValueError, match="3 columns of node labels"):
        featurize(raw._replace(node_labels=raw.node_labels[:, 0]), recipe)


@pytest.mark.parametrize("wrong", [[3], [2, 2, 2, 2], [4, 4], [8, 0], "x", 8, [8.0], [[8]]])
def test_a_schema_with_senseless_columns_of_labels_is_refused(tmp_path, wrong):
    folder = write(
        tmp_path, A="1, 2\n2, 1\n4, 3\n3, 4\n", **LABELS["several columns"], edge_attributes=None
    )
    raw = read_tu(folder, "SET")
    value = featurize(raw, learn_recipe(raw)).schema.to_json()
    value["recipe"]["label_columns"] = wrong
    with pytest.raises(ValueError, match="here has an invalid schema"):
        read_schema(value, "here")


def test_labels_in_one_column_leave_schemas_as_they_were(tmp_path):
    raw = read_tu(write(tmp_path), "SET")
    recipe = featurize(raw, learn_recipe(raw)).schema.to_json()["recipe"]
    assert recipe["labels"] == (3, 5, 9)
    assert not {"label_columns", "edge_label_columns"} & set(recipe)


def test_windows_line_ends_and_blank_lines_at_the_end(tmp_path):
    files = {part: text.replace("\n", "\r\n") + "\n\n" for part, text in SOUND.items()}
    raw, plain = read_tu(write(tmp_path / "a", **files), "SET"), read_tu(write(tmp_path), "SET")
    assert torch.equal(raw.edge_index, plain.edge_index)
    assert torch.equal(raw.node_attributes, plain.node_attributes)


@pytest.mark.parametrize(
    ("files", "place", "reason"),
    [
        ({"A": None}, "SET_A.txt", "is missing"),
        ({"graph_indicator": None}, "SET_graph_indicator.txt", "is missing"),
        ({"graph_labels": None}, "SET_graph_labels.txt", "is missing"),
        ({"A": ""}, "SET_A.txt", "is empty"),
        ({"graph_labels": "\n\n"}, "SET_graph_labels.txt", "is empty"),
        ({"A": "1, 2\n2, 3\n"}, "SET_A.txt, line 2", "joins graphs 1 and 2"),
        ({"A": "1, 2\n2, 6\n"}, "SET_A.txt, line 2", "the nodes are 1 to 5"),
        ({"A": "0, 1\n"}, "SET_A.txt, line 1", "the nodes are 1 to 5"),
        ({"A": "1, 2\n2, one\n"}, "SET_A.txt, line 2", "'one'"),
        ({"A": "1, 2\n2, 1.5\n"}, "SET_A.txt, line 2", "'1.5'"),
        ({"A": "1, 2\n\n2, 1\n"}, "SET_A.txt, line 2", "is empty"),
        ({"A": "1, 2\n2\n1, 2, 1\n"}, "SET_A.txt, line 2", "has 1 fields, expected 2"),
        ({"A": "1, 2, 3\n"}, "SET_A.txt, line 1", "has 3 fields, expected 2"),
        ({"A": "1, 2\n1,\n"}, "SET_A.txt, line 2", "''"),
        ({"A": "1 2\n"}, "SET_A.txt, line 1", "has 1 fields, expected 2"),
        ({"A": b"1, 2\n\x00\xff\n"}, "SET_A.txt", "is not a text file"),
        ({"A": b"1, 2\n\xff, 1\n"}, "SET_A.txt, line 2", "integer"),
        ({"A": b"1," * (1 << 20)}, "SET_A.txt, line 1", "longer than 1 MiB"),
        (
            {"graph_indicator": "1\n1\n2\n1\n2\n"},
            "indicator.txt, line 4",
            "graph 1 follows graph 2",
        ),
        (
            {"graph_indicator": "1\n1\n3\n3\n3\n"},
            "indicator.txt, line 3",
            "graph 3 follows graph 1",
        ),
        ({"graph_indicator": "0\n0\n1\n1\n1\n"}, "indicator.txt, line 1", "numbered from 1"),
        ({"graph_indicator": "2\n2\n3\n3\n3\n"}, "indicator.txt, line 1", "numbered from 1"),
        ({"graph_labels": "1\n2\n1\n"}, "SET_graph_labels.txt", "has 3 lines, expected 2"),
        ({"graph_labels": "4\n4\n"}, "SET_graph_labels.txt", "class 4"),
        ({"node_labels": "1\n2\n"}, "SET_node_labels.txt", "has 2 lines, expected 5"),
        ({"node_labels": "1\n1,2\n" * 2 + "1\n"}, "labels.txt, line 2", "2 fields, expected 1"),
        ({"graph_labels": "0,1\n2,1\n"}, "graph_labels.txt, line 2", "label 2 in column 1"),
        ({"graph_labels": "0,1\n0,1\n"}, "graph_labels.txt", "no column has both"),
        ({"edge_labels": "1\n" * 7}, "SET_edge_labels.txt", "has 7 lines, expected 6"),
        ({"node_attributes": "1\n" * 4 + "nan\n"}, "attributes.txt, line 5", "finite number"),
        ({"node_attributes": "1,2\n" * 4 + "1\n"}, "attributes.txt, line 5", "expected 2"),
        ({"node_attributes": "1\n" * 4 + "1e39\n"}, "attributes.txt, line 5", "float32"),
        ({"graph_labels": f"1\n{2**63}\n"}, "SET_graph_labels.txt, line 2", "int64"),
        ({"graph_labels": "1\n-" + "9" * 5000 + "\n"}, "graph_labels.txt, line 2", "int64"),
        ({"node_labels": f"1\n{2**63 - 1}\n1\n1\n1\n"}, "node_labels.txt, line 2", "int64"),
        ({"A": f"1, 2\n{2**64 + 1}, 1\n"}, "SET_A.txt, line 2", "int64"),
        ({"A": f"1, 2\n{2**32 + 1}, 2\n"}, "SET_A.txt, line 2", "the nodes are 1 to 5"),
        (
            {"graph_labels": None, "graph_attributes": "1\n1e39\n"},
            "SET_graph_attributes.txt, line 2",
            "float32",
        ),
    ],
)
def test_an_error_names_the_file_and_the_line(tmp_path, files, place, reason):
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        read_tu(write(tmp_path, **files), "SET")
    assert place in str(error.value)
    assert reason in str(error.value)


def test_the_name_of_a_folder_is_that_of_its_edges(tmp_path):
    assert tu_name(write(tmp_path)) == "SET"
    (tmp_path / "OTHER_A.txt").write_text("1, 1\n")
    with pytest.raises(ValueError, match=r"exactly one NAME_A\.txt; found: OTHER, SET"):
        tu_name(tmp_path)


@st.composite
def written_graphs(draw):
    """Graphs with isolated nodes, loops and repeated edges, and the lines that list them."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    edges, first = [], 1
    for size in sizes:
        node = st.integers(first, first + size - 1)
        edges += draw(st.lists(st.tuples(node, node), max_size=8))
        first += size
    return sizes, draw(st.permutations(edges or [(1, 1)]))


@settings(max_examples=60, deadline=None)
@given(written=written_graphs())
def test_each_edge_is_kept_once_inside_its_graph(tmp_path_factory, written):
    sizes, edges = written
    folder = write(
        tmp_path_factory.mktemp("tu"),
        A="".join(f"{u}, {v}\n" for u, v in edges),
        graph_indicator="".join(f"{g}\n" * size for g, size in enumerate(sizes, 1)),
        graph_labels=None,
        edge_labels="".join(f"{line}\n" for line in range(len(edges))),
        **dict.fromkeys(("node_labels", "node_attributes", "edge_attributes")),
    )
    raw = read_tu(folder, "SET", need_targets=False)
    assert raw.y.shape == (len(sizes), 0)
    assert raw.sizes.tolist() == sizes
    first = 1 + (raw.sizes.cumsum(0) - raw.sizes).repeat_interleave(raw.edge_counts)
    found = [tuple(pair) for pair in (raw.edge_index + first).T.tolist()]
    assert found == sorted(set(edges))
    assert [edges[line] for line in raw.edge_labels.tolist()] == found
    assert raw.edge_labels.tolist() == [edges.index(pair) for pair in found]


def test_the_embedded_mutag():
    raw = read_tu(EMBEDDED / "MUTAG", "MUTAG")
    assert (raw.sizes.numel(), int(raw.sizes[0]), int(raw.edge_counts[0])) == (188, 17, 38)
    assert raw.node_labels.unique().tolist() == list(range(len(MUTAG_ATOMS)))
    assert raw.y.bincount().tolist() == [63, 125]


@pytest.mark.parametrize("name", ["PROTEINS", "Synthie", "MUTAG", "IMDB-BINARY"])
def test_equal_to_pyg(data_dir, tmp_path, name):
    shutil.copytree(data_dir / "TU" / name / "raw", tmp_path / name / "raw")
    theirs = TUDataset(str(tmp_path), name, use_node_attr=True)
    raw = read_tu(data_dir / "TU" / name / "raw", name)
    ours = featurize(raw, learn_recipe(raw)).to_pyg()
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine.edge_index, other.edge_index)
        assert torch.equal(mine.y, other.y)
        assert mine.num_nodes == other.num_nodes
        assert name == "IMDB-BINARY" or torch.equal(mine.x, other.x)


@pytest.mark.parametrize(
    ("name", "listed", "isolated"),
    [("Synthie", 202.18, 393), ("ENZYMES", 62.14, 8), ("PROTEINS", 72.82, 5)],
)
def test_repeated_edges_go_and_isolated_nodes_stay(data_dir, name, listed, isolated):
    folder = data_dir / "TU" / name / "raw"
    raw = read_tu(folder, name)
    lines = (folder / f"{name}_A.txt").read_bytes().count(b"\n")
    assert round(lines / 2 / raw.sizes.numel(), 2) == pytest.approx(listed, abs=0.011)
    graph = torch.arange(raw.sizes.numel())
    first = (raw.sizes.cumsum(0) - raw.sizes).repeat_interleave(raw.edge_counts)
    joined = torch.zeros(int(raw.sizes.sum()), dtype=torch.bool)
    joined[(raw.edge_index + first).flatten()] = True
    assert graph.repeat_interleave(raw.sizes)[~joined].unique().numel() == isolated
    pairs = torch.stack([graph.repeat_interleave(raw.edge_counts), *raw.edge_index])
    assert pairs.unique(dim=1).size(1) == pairs.size(1)
