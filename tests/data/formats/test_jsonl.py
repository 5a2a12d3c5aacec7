import gzip
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpool.data.dataset import GraphDataset
from gtpool.data.features import featurize
from gtpool.data.formats.jsonl import read_jsonl, read_jsonl_raw, write_jsonl
from gtpool.data.records import KEYS
from gtpool.data.schema import Recipe, Schema
from gtpool.data.synthetic import low_scores_matter

EDGE = {"nodes": 2, "edges": [[0, 1]], "undirected": True}
A, B = {**EDGE, "label": "a"}, {**EDGE, "label": "b"}


@pytest.fixture
def write(tmp_path):
    def to_file(*lines, name="mine.jsonl"):
        path = tmp_path / name
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts) + "\n")
        return path

    return to_file


def test_every_key_finds_its_place(write):
    first = {
        "id": "one",
        "edges": [[0, 1], [1, 2]],
        "node_features": [[1, 2.5], [3, 4], [5, 6]],
        "node_labels": [7, 7, 9],
        "edge_features": [[0.5], [1.5]],
        "edge_labels": [1, 2],
        "edge_weights": [10, 20],
        "label": "yes",
    }
    second = {**first, "id": "two", "undirected": True, "label": "no"}
    data = read_jsonl(write(first, second))
    assert data.schema.name == "mine"
    assert (data.schema.task, data.schema.targets) == ("classes", ("no", "yes"))
    one, two = data.to_pyg()
    assert one.x.tolist() == [[1, 2.5, 1, 0], [3, 4, 1, 0], [5, 6, 0, 1]]
    assert one.edge_index.tolist() == [[0, 1], [1, 2]]
    assert one.edge_attr.tolist() == [[10, 0.5, 1, 0], [20, 1.5, 0, 1]]
    assert two.edge_index.tolist() == [[0, 1, 1, 2], [1, 2, 0, 1]]
    assert two.edge_attr[:2].tolist() == one.edge_attr.tolist() == two.edge_attr[2:].tolist()
    assert data.y.tolist() == [1, 0]
    assert data.schema.recipe.edge_weighted


def test_features_are_those_asked_for(write):
    path = write(A, B)
    assert read_jsonl(path, features="constant").x.tolist() == [[1]] * 4
    assert read_jsonl(path).x.tolist() == [[0, 1]] * 4  # nothing given: the degree


@pytest.mark.parametrize(
    ("labels", "task", "expected", "y"),
    [
        (["b", "a", "b"], None, "classes", [1, 0, 1]),
        ([10, 2, 10], None, "classes", [1, 0, 1]),
        (["10", "-2", "10"], None, "classes", [1, 0, 1]),
        ([0.5, 2, -1], None, "regression", [[0.5], [2], [-1]]),
        ([1, 2, 3], "regression", "regression", [[1], [2], [3]]),
        ([0, 1, 1], "binary", "binary", [[0], [1], [1]]),
        ([[0, None], [1, 1], [None, 0]], None, "binary", [[0, None], [1, 1], [None, 0]]),
        ([[0, 0.5], [1, 1], [2, 0]], None, "regression", [[0, 0.5], [1, 1], [2, 0]]),
    ],
)
def test_labels_tell_the_task(write, labels, task, expected, y):
    data = read_jsonl(write(*({**EDGE, "label": label} for label in labels)), task=task)
    assert data.schema.task == expected
    wanted = (
        torch.tensor([[torch.nan if v is None else v for v in row] for row in y])
        if (expected != "classes")
        else torch.tensor(y)
    )
    assert torch.equal(data.y.nan_to_num(-9), wanted.nan_to_num(-9))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "JSON"),
        ("[1, 2]", "one object"),
        ("[" * 100_000, "JSON"),
        ('{"nodes": 1, "nodes": 2, "edges": []}', "key 'nodes'"),
        (
            {**A, "node_feature": [[1], [2]]},
            "unknown key 'node_feature'; did you mean node_features",
        ),
        ({**A, "colour": 1}, "unknown key 'colour'; the keys are nodes, edges"),
        ({"nodes": 0, "edges": [], "label": "a"}, "no nodes"),
        ({"edges": [], "node_features": [], "label": "a"}, "no nodes"),
        ({"edges": [], "label": "a"}, "number of nodes"),
        ({"nodes": 2.5, "edges": [], "label": "a"}, "2.5"),
        ({"nodes": True, "edges": [], "label": "a"}, "nodes must be"),
        ({"nodes": 2, "label": "a"}, "edges are missing"),
        ({**A, "edges": [[0, 2]]}, r"edge \[0, 2\] "),
        ({**A, "edges": [[0, -1]]}, r"edge \[0, -1\] "),
        ({**A, "edges": [[0, 1, 1]]}, r"an edge is \[source, target\]"),
        ({**A, "edges": [[0, 1], [1]]}, "edges must be a list of lists"),
        ({**A, "edges": [[0, 0.5]]}, "edges must be a list of lists"),
        ({**A, "edges": [0, 1]}, "edges must be a list of lists"),
        ({**A, "edges": [["0", "1"]]}, "edges must be a list of lists"),
        ({**A, "undirected": 1}, "undirected must be true or false, not 1"),
        ({**A, "node_features": [[1]]}, "node_features has 1 entries, but there are 2 nodes"),
        ({**A, "node_features": [[1], [1, 2]]}, "node_features must be a list of lists of numbers"),
        ({**A, "node_features": [[1], ["2"]]}, "node_features must be a list of lists of numbers"),
        ({**A, "node_features": [[1], [None]]}, "node_features must be a list of lists of numbers"),
        ({**A, "node_features": [[], []]}, "node_features must be a list of lists of numbers"),
        ({**A, "node_features": [1, 2]}, "node_features must be a list of lists of numbers"),
        ({**A, "node_features": {"a": 1}}, "node_features must be a list of lists of numbers"),
        ('{"nodes": 1, "edges": [], "node_features": [[NaN]]}', "NaN"),
        (
            '{"nodes": 1, "edges": [], "node_features": [[-Infinity]]}',
            "-Infinity",
        ),
        ('{"nodes": 1, "edges": [], "node_features": [[1e999]]}', "inf, which is not a finite"),
        ('{"nodes": 1, "edges": [], "node_features": [[1e39]]}', "not a finite float32"),
        ({**A, "node_labels": [[1], [2]]}, "node_labels must be a list"),
        ({**A, "node_labels": [1, 2.5]}, "node_labels must be a list"),
        ({**A, "node_labels": ["C", "N"]}, "node_labels must be a list"),
        ({**A, "node_labels": [1, 10**30]}, "node_labels must be a list"),
        ({**A, "edge_weights": [1, 2]}, "edge_weights has 2 entries, but there are 1 edges"),
        ({**A, "edge_weights": [[1]]}, "edge_weights must be a list of numbers"),
        ({**A, "label": None}, "there is no label"),
        ({**A, "label": True}, "a label is a text, a number or a list of numbers, not True"),
        ({**A, "label": "\ud800"}, "is an unpaired surrogate"),
        ({**A, "id": "\udfff"}, "is an unpaired surrogate"),
        ({**A, "nodes": 10**30}, "more than 2147483647 nodes"),
        ({**A, "nodes": 2**32, "edges": [[0, 2**32 - 1]]}, "more than 2147483647 nodes"),
        ({**A, "label": 1}, "the label is a number, but that of .*line 1.* is a text"),
        ({**A, "label": [1]}, "the label is a list of 1, but that of .*line 1.* is a text"),
        ({**A, "node_features": [[1], [2]]}, "has node_features of 1 columns, but .*line 1 has no"),
        ({**A, "edge_weights": [1]}, "has edge_weights, but .*line 1 has no edge_weights"),
    ],
)
def test_a_line_that_is_wrong_is_named(write, line, said):
    path = write(A, B, line)
    with pytest.raises(ValueError, match=rf"mine.jsonl, line 3.*{said}"):
        read_jsonl(path)


def test_numbers_beyond_int64_are_features_and_long_texts_are_classes(write):
    large = {"node_features": [[2**63], [1]], "edges": [], "label": "9" * 5000}
    data = read_jsonl(write(large, {**large, "label": "7"}))
    assert data.x[:2].tolist() == [[2.0**63], [1]]
    assert data.schema.targets == ("7", "9" * 5000)


def test_a_character_of_two_halves_is_whole(write):
    assert read_jsonl(write({**A, "label": "\U0001f600"}, B)).schema.targets[1] == "\U0001f600"


def test_features_of_another_width_are_refused(write):
    one = {**A, "node_features": [[1, 2], [3, 4]]}
    with pytest.raises(
        ValueError, match=r"line 2: has node_features of 1 columns, .* of 2 columns"
    ):
        read_jsonl(write(one, {**B, "node_features": [[1], [2]]}))


@pytest.mark.parametrize(
    ("labels", "task", "said"),
    [
        ([[1, 0], [0]], None, "the label is a list of 1, but"),
        ([[], []], None, "empty list"),
        ([["x"], [1]], None, "'x' in the label is not a number"),
        ([[1e39], [1]], None, "not finite in float32"),
        ([[10**400], [1]], None, "not finite in float32"),
        ([10**400, 1.5], None, "not finite in float32"),
        ([[[[1]]], [1]], None, "a list in the label is not a number"),
        ([1, 2], "binary", "label 2 is not 0, 1 or missing"),
        ([0.5, 1.5], "classes", "class 0.5 is neither"),
        (["a", "b"], "regression", "the label is a text, which does not fit task regression"),
        ([[0, 1], [1, 0]], "classes", "which does not fit task classes"),
        ([1, 2], "clases", "unknown task 'clases'; choose one of classes, binary, regression"),
        (["a", "a"], None, "line 1 .* class 'a'"),
        ([7, 7], None, "line 1 .* class '7'"),
        ([[1, 0], [1, None]], None, "no task has both"),
    ],
)
def test_labels_that_nothing_can_be_learned_from(write, labels, task, said):
    with pytest.raises(ValueError, match=said):
        read_jsonl(write(*({**EDGE, "label": label} for label in labels)), task=task)


def test_the_id_of_a_graph_is_named_with_its_line(write):
    with pytest.raises(ValueError, match=r"line 2 \(id 'caffeine'\): edge"):
        read_jsonl(write(A, {**B, "id": "caffeine", "edges": [[0, 9]]}))


def test_files_that_hold_no_graphs(tmp_path):
    empty, binary, blank = (tmp_path / name for name in ("e.jsonl", "b.jsonl", "n.jsonl"))
    empty.touch()
    binary.write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    blank.write_text("\n\n")
    with pytest.raises(ValueError, match=r"e.jsonl is empty"):
        read_jsonl(empty)
    with pytest.raises(ValueError, match=r"b.jsonl, line 1: not UTF-8"):
        read_jsonl(binary)
    with pytest.raises(ValueError, match=r"n has no graphs"):
        read_jsonl(blank)
    with pytest.raises(FileNotFoundError, match=r"missing.jsonl"):
        read_jsonl(tmp_path / "missing.jsonl")


def test_a_line_that_never_ends_is_refused_before_it_is_read():
    with pytest.raises(ValueError, match="line 1: longer than 1000 bytes"):
        read_jsonl(Path("/dev/zero"), longest_line=1000)


def test_blank_lines_and_a_byte_order_mark_are_passed_over(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\ufeff" + json.dumps(A) + "\r\n\r\n" + json.dumps(B), encoding="utf-8")
    assert len(read_jsonl(path)) == 2


def test_repeated_edges_count_once_in_the_order_they_were_listed(write):
    one = {"nodes": 3, "edges": [[2, 0], [0, 1], [2, 0], [1, 1], [0, 1]], "label": 1}
    both = {"nodes": 2, "edges": [[0, 1], [1, 0], [1, 1]], "undirected": True, "label": 2}
    first, second = read_jsonl(write(one, both)).to_pyg()
    assert first.edge_index.T.tolist() == [[2, 0], [0, 1], [1, 1]]
    assert second.edge_index.T.tolist() == [[0, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize(
    "twice",
    [
        {"edges": [[0, 1], [0, 1]], "edge_weights": [1, 2]},
        {"edges": [[0, 1], [1, 0]], "edge_weights": [1, 2], "undirected": True},
        {"edges": [[0, 1], [0, 1]], "edge_weights": [1, 1], "edge_labels": [1, 2]},
    ],
)
def test_an_edge_listed_again_with_other_values_is_refused(write, twice):
    with pytest.raises(ValueError, match=r"line 1: edge \[\d, \d\] is listed again"):
        read_jsonl(write({"nodes": 2, "label": 0.5, **twice}))


def test_graphs_without_edges_need_no_edge_features(write):
    lone = {"nodes": 1, "edges": [], "label": "a"}
    given = {**B, "edge_features": [[1.0, 2.0]]}
    data = read_jsonl(write(lone, given, {**lone, "edge_features": []}))
    assert data.edge_counts.tolist() == [0, 2, 0]
    assert data.edge_attr.tolist() == [[1, 2], [1, 2]]
    assert read_jsonl(write(lone, {**lone, "label": "b"})).edge_attr is None


def test_to_predict_no_label_is_needed_and_the_recipe_is_repeated(write):
    train = {**EDGE, "node_labels": [3, 5], "node_features": [[1.0], [3.0]]}
    data = read_jsonl(write({**train, "label": 0}, {**train, "label": 1}))
    data = data.standardized([0, 1])
    new = {**EDGE, "node_labels": [5, 5], "node_features": [[2.0], [5.0]]}
    raw = read_jsonl_raw(write(new, name="new.jsonl"), need_targets=False)
    seen = featurize(raw, data.schema.recipe)
    assert seen.x.tolist() == [[0, 0, 1], [3, 0, 1]]
    assert seen.y.shape == (1, 0)
    alike = read_jsonl_raw(write({**new, "label": "a"}, name="new.jsonl"), need_targets=False)
    assert alike.targets == ("a",)
    with pytest.raises(ValueError, match="line 2: there is no label"):
        read_jsonl_raw(write({**new, "label": "a"}, new), need_targets=False)


@st.composite
def datasets(draw):
    """Small datasets of any task, with and without edges, edge features and weights."""
    graphs = draw(st.integers(2, 5))
    sizes = torch.tensor(draw(st.lists(st.integers(1, 5), min_size=graphs, max_size=graphs)))
    task = draw(st.sampled_from(["classes", "binary", "regression"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    edges = [
        torch.rand(size, size, generator=generator).lt(0.5).nonzero() for size in sizes.tolist()
    ]
    ends = torch.cat(edges).T.int()
    x = torch.randn(int(sizes.sum()), 2, generator=generator)
    edge_attr = None
    weighted = False
    if draw(st.booleans()) and ends.numel():
        edge_attr = torch.randn(ends.size(1), draw(st.integers(1, 2)), generator=generator)
        weighted = draw(st.booleans())
    if task == "classes":
        y, targets = torch.arange(graphs), tuple(str(number) for number in range(2, graphs + 2))
    else:
        y = torch.rand(graphs, 2, generator=generator)
        y = y.round() if task == "binary" else y
        y[0], y[1] = 0, 1
        y[0, 0] = torch.nan
        targets = ("task 1", "task 2")
    columns = 0 if edge_attr is None else edge_attr.size(1)
    recipe = Recipe("gmt", attributes=2, edge_attributes=columns, edge_weighted=weighted)
    counts = torch.tensor([len(part) for part in edges])
    schema = Schema("made", task, targets, recipe)
    return GraphDataset(x, ends, edge_attr, sizes, counts, y, schema)


@given(datasets(), st.sampled_from([".jsonl", ".jsonl.gz"]))
@settings(deadline=None, max_examples=50)
def test_what_is_written_is_read_back_bit_for_bit(tmp_path_factory, data, ending):
    path = tmp_path_factory.mktemp("jsonl") / f"made{ending}"
    write_jsonl(data, path)
    back = read_jsonl(path, task=data.schema.task)
    assert back.schema == data.schema
    for part in ("x", "edge_index", "sizes", "edge_counts"):
        assert torch.equal(getattr(back, part), getattr(data, part))
    assert torch.equal(back.y.nan_to_num(-9), data.y.nan_to_num(-9))
    assert (back.edge_attr is None) == (data.edge_attr is None)
    assert data.edge_attr is None or torch.equal(back.edge_attr, data.edge_attr)


def test_a_packed_file_that_is_damaged_is_refused(tmp_path):
    path = tmp_path / "mine.jsonl.gz"
    write_jsonl(low_scores_matter(4), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"mine.jsonl.gz is damaged"):
        read_jsonl(path)
    path.write_text(json.dumps(A))
    with pytest.raises(ValueError, match="gzip"):
        read_jsonl(path)
    path.write_bytes(gzip.compress(json.dumps(A).encode() + b"\n" + json.dumps(B).encode()))
    assert len(read_jsonl(path)) == 2


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("precious")
    data = low_scores_matter(4)
    data.x[0, 0] = torch.inf  # JSON has no infinity, so writing fails on the way
    with pytest.raises(ValueError, match="JSON compliant"):
        write_jsonl(data, path)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_writing_to_a_symlink_keeps_the_link(tmp_path):
    link, target = tmp_path / "link.jsonl", tmp_path / "target.jsonl"
    link.symlink_to(target)
    write_jsonl(low_scores_matter(4), link)
    assert link.is_symlink()
    assert len(read_jsonl(target)) == 4


def test_the_example_of_the_docs_is_read(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "data-format.md").read_text(encoding="utf-8")
    example = page.split("```jsonl\n")[1].split("```")[0]
    path = tmp_path / "graphs.jsonl"
    path.write_text(example)
    data = read_jsonl(path)
    assert data.schema.targets == ("path", "ring")
    assert data.edge_counts.tolist() == [4, 6]
    keys = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert tuple(keys) == KEYS
