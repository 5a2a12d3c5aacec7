import gzip

import pytest
import torch

from gtpool.data.formats.ogb import read_ogb

# Methanol-like: three molecules, the second a single atom without a bond.
SOUND = {
    "raw/num-node-list": "3\n1\n2\n",
    "raw/num-edge-list": "2\n0\n1\n",
    "raw/node-feat": "".join(f"{atom},0,4,5,3,0,2,0,0\n" for atom in range(6)),
    "raw/edge": "0,1\n1,2\n0,1\n",
    "raw/edge-feat": "0,0,0\n1,0,1\n3,0,1\n",
    "raw/graph-label": "0.0,\n,\n1,0\n",
    "mapping/mol": 'NR-AR,"SR, p53",smiles,mol_id\n0.0,,COC,x\n',
}


def write(folder, files=None):
    for part, text in (SOUND | (files or {})).items():
        path = folder / f"{part}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else gzip.compress(text.encode()))
    return folder


def test_bonds_go_both_ways_and_blanks_are_missing_labels(tmp_path):
    data = read_ogb(write(tmp_path / "ogbg_molmine"))
    assert data.schema.name == "ogbg-molmine"
    assert (data.schema.task, data.schema.targets) == ("binary", ("NR-AR", "SR, p53"))
    assert data.sizes.tolist() == [3, 1, 2]
    assert data.edge_counts.tolist() == [4, 0, 2]
    assert data.edge_index.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [0, 1], [1, 0]]
    assert data.edge_attr.tolist() == [[0, 0, 0]] * 2 + [[1, 0, 1]] * 2 + [[3, 0, 1]] * 2
    assert data.x[:, 0].tolist() == list(range(6))
    assert data.y.isnan().tolist() == [[False, True], [True, True], [False, False]]
    assert data.y[2].tolist() == [1, 0]


def test_tasks_without_a_mapping_are_numbered(tmp_path):
    data = read_ogb(write(tmp_path, {"mapping/mol": None}))
    assert data.schema.targets == ("task 1", "task 2")


@pytest.mark.parametrize(
    ("files", "place", "reason"),
    [
        ({"raw/edge": None}, "edge.csv.gz", "is missing"),
        ({"raw/edge": ""}, "edge.csv.gz", "is empty"),
        ({"raw/edge": b"no gzip"}, "edge.csv.gz", "gzip"),
        ({"raw/edge": gzip.compress(b"0,1\n" * 99, mtime=0)[:-9]}, "edge.csv.gz", "damaged"),
        ({"raw/edge": "0,1\n"}, "edge.csv.gz", "has 1 lines for the 3 bonds"),
        ({"raw/edge": "0,1\n1,3\n0,1\n"}, "graph 0", "nodes 0 to 2"),
        ({"raw/node-feat": "1,2\n"}, "node-feat.csv.gz, line 1", "has 2 fields, expected 9"),
        ({"raw/graph-label": "0,1\n1,2\n0,0\n"}, "graph-label.csv.gz, line 2", "neither 0 nor 1"),
        ({"raw/graph-label": "0,1\n1\n0,0\n"}, "graph-label.csv.gz, line 2", "has 1 fields"),
        ({"raw/graph-label": "0,1\n"}, "graph-label.csv.gz", "has 1 lines for the 3 molecules"),
        ({"raw/num-edge-list": "2\n-\n1\n"}, "num-edge-list.csv.gz, line 2", "integer"),
        ({"raw/num-node-list": "3\n0\n2\n"}, "num-node-list.csv.gz, line 2", "range"),
        ({"raw/num-node-list": f"3\n{2**62}\n2\n"}, "num-node-list.csv.gz, line 2", "range"),
        ({"raw/num-edge-list": "3\n-1\n1\n"}, "num-edge-list.csv.gz, line 2", "range"),
        ({"raw/node-feat": "119,0,4,5,3,0,2,0,0\n" * 6}, "node-feat.csv.gz, line 1", "0 to 118"),
        ({"raw/node-feat": "5,0,-4,5,3,0,2,0,0\n" * 6}, "line 1, column 3", "0 to 11"),
        ({"raw/edge-feat": "0,0,0\n1,6,1\n3,0,1\n"}, "edge-feat.csv.gz, line 2", "0 to 5"),
        ({"raw/edge": f"0,1\n1,2\n0,{2**32}\n"}, "edge.csv.gz, line 3", "graph 2"),
        ({"mapping/mol": b"no gzip"}, "mol.csv.gz", "gzip"),
        ({"mapping/mol": gzip.compress(b"a,\xff\n")}, "mol.csv.gz", "UTF-8"),
        ({"mapping/mol": 'a,"b"c\n'}, "mol.csv.gz", "line 1"),
    ],
)
def test_an_error_names_the_file(tmp_path, files, place, reason):
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        read_ogb(write(tmp_path, files))
    assert place in str(error.value)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("name", "missing", "edgeless"),
    [
        ("molbbbp", "0.0", 0),
        ("moltox21", "17.1", 19),
        pytest.param("moltoxcast", "71.0", 11, marks=pytest.mark.slow),
        pytest.param("molhiv", "0.0", 0, marks=pytest.mark.slow),
    ],
)
def test_missing_labels_and_edgeless_molecules(data_dir, name, missing, edgeless):
    data = read_ogb(data_dir / "OGB" / f"ogbg_{name}")
    assert f"{100 * data.y.isnan().double().mean():.1f}" == missing
    assert int((data.edge_counts == 0).sum()) == edgeless
    assert data.x.size(1) == 9
    assert data.edge_attr.size(1) == 3
    assert not data.y.nan_to_num(0).sub(0.5).abs().ne(0.5).any()


@pytest.mark.parametrize("name", ["molbbbp", "moltox21"])
def test_equal_to_ogb(data_dir, name):
    reader = pytest.importorskip("ogb.io.read_graph_raw", reason="ogb is not installed")
    folder = data_dir / "OGB" / f"ogbg_{name}"
    theirs = reader.read_csv_graph_raw(str(folder / "raw"), add_inverse_edge=True)
    ours = read_ogb(folder).to_pyg()
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine.x, torch.from_numpy(other["node_feat"]))
        assert torch.equal(mine.edge_index, torch.from_numpy(other["edge_index"]))
        assert torch.equal(mine.edge_attr, torch.from_numpy(other["edge_feat"]))
