import shutil

import pytest
import torch
from torch_geometric.datasets import TUDataset

from gtpool.data.tu import EMBEDDED, MUTAG_ATOMS, load_mutag, read_tu


@pytest.fixture(scope="module")
def mutag():
    return load_mutag()


def test_mutag_has_the_published_size(mutag):
    assert len(mutag) == 188
    assert torch.cat([graph.y for graph in mutag]).bincount().tolist() == [63, 125]
    nodes = sum(graph.num_nodes for graph in mutag)
    edges = sum(graph.num_edges for graph in mutag) / 2
    assert round(nodes / 188, 2) == 17.93
    assert round(edges / 188, 2) == 19.79


def test_mutag_features_are_atoms_and_bonds(mutag):
    assert {graph.num_node_features for graph in mutag} == {len(MUTAG_ATOMS)} == {7}
    assert {graph.num_edge_features for graph in mutag} == {4}
    atoms = torch.cat([graph.x for graph in mutag])
    assert atoms.sum(1).eq(1).all()
    assert atoms.any(0).all()
    first = [MUTAG_ATOMS[kind] for kind in mutag[0].x.argmax(1).tolist()]
    assert "".join(first) == "C" * 14 + "NOO"


def test_every_molecule_is_valid_undirected_and_without_loops(mutag):
    for graph in mutag:
        assert graph.validate(raise_on_error=True)
        assert graph.is_undirected()
        assert not graph.has_self_loops()
        assert not graph.has_isolated_nodes()


def test_reader_gives_what_the_reader_of_pyg_gives(mutag, tmp_path):
    shutil.copytree(EMBEDDED / "MUTAG", tmp_path / "MUTAG/raw")
    theirs = TUDataset(str(tmp_path), "MUTAG")
    assert len(theirs) == len(mutag)
    for own, other in zip(mutag, theirs, strict=True):
        assert torch.equal(own.x, other.x)
        assert torch.equal(own.y, other.y)
        assert edges_of(own) == edges_of(other)


def edges_of(graph) -> set[tuple[int, int, int]]:
    kinds = graph.edge_attr.argmax(1).tolist()
    ends = graph.edge_index.T.tolist()
    return {(*pair, kind) for pair, kind in zip(ends, kinds, strict=True)}


def test_reader_takes_files_of_another_name(tmp_path):
    files = {
        "A": "1, 2\n2, 1\n3, 4\n4,3\n",
        "graph_indicator": "1\n1\n2\n2\n2\n",
        "node_labels": "5\n0\n5\n5\n9\n",
        "edge_labels": "1\n1\n2\n2\n",
        "graph_labels": "1\n-1\n",
    }
    for name, text in files.items():
        (tmp_path / f"TOY_{name}.txt").write_text(text)
    first, second = read_tu(tmp_path, "TOY")
    assert first.edge_index.tolist() == second.edge_index.tolist() == [[0, 1], [1, 0]]
    assert first.x.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert second.x.argmax(1).tolist() == [1, 1, 2]
    assert [first.y.item(), second.y.item()] == [1, 0]
    assert second.edge_attr.tolist() == [[0, 1], [0, 1]]


def test_what_is_no_number_is_an_error(tmp_path):
    shutil.copytree(EMBEDDED / "MUTAG", tmp_path / "raw")
    with (tmp_path / "raw/MUTAG_A.txt").open("a") as file:
        file.write("12, x\n")
    with pytest.raises(ValueError, match="' x' to int64 at row 7442"):
        read_tu(tmp_path / "raw", "MUTAG")
