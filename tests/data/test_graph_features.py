"""Features of whole molecules in a dataset: from a table, from SMILES, and for a trained model."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from gtpool.data import graph_features
from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.memory import read_graphs
from gtpool.data.formats.table import read_table
from gtpool.data.graph_features import describe_molecules, descriptor_names
from gtpool.data.inference import check_fit, read_schema
from gtpool.data.sources import load, load_source, read_for_inference
from gtpool.spec import DataSpec
from gtpool.study.inputs import load_data, shape_of

SALT = "O=C([O-])c1ccccc1.[Na+]"
ROWS = f"""\
smiles,y,logd,dose
CCO,0.5,1.5,10
C1CC,0.1,2,3
{SALT},1.5,,-2e3
c1ccccc1O,2.5,NA,1
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(ROWS)
    return path


def spec(path, **options):
    return DataSpec(source=str(path), target_columns=("y",), **options)


def columns_of(data, *names):
    places = [data.schema.recipe.graph_columns.index(name) for name in names]
    return data.graph_features[:, places]


def test_columns_of_a_table_follow_the_descriptors(table):
    found = load_data(spec(table, molecule_features=("rdkit2d",), feature_columns=("dose", "logd")))
    data, recipe = found.dataset, found.dataset.schema.recipe
    assert recipe.descriptors == descriptor_names(["rdkit2d"])
    assert recipe.graph_columns == (*recipe.descriptors, "dose", "logd")
    assert shape_of(data).graph_width == len(recipe.graph_columns) == data.graph_features.size(1)
    assert columns_of(data, "dose").flatten().tolist() == [10, -2000, 1]  # C1CC cannot be read
    assert columns_of(data, "logd").isnan().flatten().tolist() == [False, True, True]
    wanted = describe_molecules(["CCO", SALT, "c1ccccc1O"], ["rdkit2d"])
    np.testing.assert_array_equal(data.graph_features[:, :-2], wanted)


def test_feature_columns_are_no_targets(tmp_path):
    (tmp_path / "mine.csv").write_text("smiles,y,logd\nCCO,1,0.5\nCC,2,0.1\n")
    found = read_table(tmp_path / "mine.csv", feature_columns=["logd"])
    assert found.targets == ("y",)  # the only other column


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (("loqd",), r"no column 'loqd' for feature_columns .*did you mean 'logd'"),
        (("y",), "column 'y' is chosen twice"),
        (("smiles",), "column 'smiles' is chosen twice"),
        (("logd", "logd"), "column 'logd' is chosen twice"),
    ],
)
def test_wrong_columns_are_named(table, columns, told):
    with pytest.raises(ValueError, match=told):
        load_data(spec(table, feature_columns=columns))


@pytest.mark.parametrize(
    ("cell", "told"),
    [("high", "is not a number"), ("1,5", "decimal point"), ("1e39", "largest number of float32")],
)
def test_a_cell_that_is_no_number_is_named(table, cell, told):
    table.write_text(ROWS.replace("CCO,0.5,1.5", f'CCO,0.5,"{cell}"'))
    with pytest.raises(ValueError, match=rf"line 2, column 'logd': '{cell}' .*{told}"):
        load_data(spec(table, feature_columns=("logd",)))


def test_a_blank_column_is_named(table):
    table.write_text(ROWS.replace("1.5,10", ",10"))  # the 2 belongs to a SMILES that fails
    with pytest.raises(ValueError, match="column 'logd': blank in all rows"):
        load_data(spec(table, feature_columns=("logd",)))


def test_descriptors_that_no_molecule_has_are_named_and_counted(tmp_path):
    (tmp_path / "salts.csv").write_text("smiles,y\n[Na+].[Cl-],1\n[K+].[Br-],2\n")
    with pytest.warns(UserWarning, match=r"8 of 217 descriptors have no value .*: \w+, .* and 3 m"):
        data = load_source(spec(tmp_path / "salts.csv", molecule_features=("rdkit2d",))).dataset
    assert data.graph_features.shape == (2, 217)


@pytest.mark.parametrize("source", ["MUTAG", "mine.jsonl"])
def test_other_sources_have_no_molecules_to_describe(tmp_path, source):
    (tmp_path / "mine.jsonl").write_text('{"nodes": 1, "edges": [], "label": 1}\n')
    place = str(tmp_path / source) if "." in source else source
    with pytest.raises(ValueError, match="molecule_features applies only to SMILES, not to"):
        load(place, molecule_features=["morgan"])
    with pytest.raises(ValueError, match="feature_columns applies only to a table, not to"):
        load_data(DataSpec(source=place, feature_columns=("a",)))
    with pytest.raises(ValueError, match="only from a list of SMILES"):
        read_graphs(load("MUTAG"), molecule_features=["morgan"])


def test_a_trained_model_reads_the_same_numbers(table):
    options = {"molecule_features": ("rdkit2d",), "feature_columns": ("logd", "dose")}
    data = load_data(spec(table, **options)).dataset
    found = read_for_inference(table, data.schema)
    assert [row.reason for row in found.rows] == [None, "not a valid SMILES", None, None]
    assert found.data.schema.recipe == data.schema.recipe
    torch.testing.assert_close(
        found.data.graph_features, data.graph_features, rtol=0, atol=0, equal_nan=True
    )
    check_fit(found.data, shape_of(data), edges=True)


def test_bad_cells_get_a_reason_and_nothing_is_lost(table):
    data = load_data(spec(table, feature_columns=("logd", "dose"))).dataset
    table.write_text("dose,smiles,logd\n1,CC,?\n2,C1CC,3\n,CCC,1e50\n3,CCO,4\n")
    found = read_for_inference(table, data.schema)
    reasons = [row.reason for row in found.rows]
    assert reasons[0].startswith("column 'logd': '?' is not a number")
    assert reasons[1] == "not a valid SMILES"
    assert "column 'logd': '1e50' is beyond" in reasons[2]
    assert reasons[3] is None
    assert found.data.graph_features.tolist() == [[4, 3]]


def test_a_column_that_is_missing_at_prediction_is_named(table, tmp_path):
    data = load_data(spec(table, feature_columns=("logd", "dose"))).dataset
    (tmp_path / "new.csv").write_text("smiles,logd\nCC,1\n")
    with pytest.raises(ValueError, match="no column 'dose' for feature_columns"):
        read_for_inference(tmp_path / "new.csv", data.schema)
    with pytest.raises(ValueError, match=r"lacks features that the model reads: 'logd', 'dose'"):
        read_graphs(["CC"], data.schema.recipe)


def test_lists_of_smiles_have_descriptors():
    data = read_graphs(["CCO", "CC"], molecule_features=["morgan"])
    assert data.graph_features.shape == (2, 2048)
    assert data.schema.recipe.molecule_features == ("morgan",)
    again = read_graphs(["CC"], data.schema.recipe)
    torch.testing.assert_close(again.graph_features, data.graph_features[1:])
    with pytest.raises(ValueError, match=r"other features of whole graphs .* reads morgan"):
        read_graphs(read_graphs(["CC"]), data.schema.recipe)


def test_another_rdkit_is_read_by_the_names_of_the_descriptors(monkeypatch):
    data = read_graphs(["CCO", SALT], molecule_features=["rdkit2d"])
    names = data.schema.recipe.descriptors
    own = graph_features.MOLECULE_FEATURES["rdkit2d"]()

    def change(first):
        """Replace rdkit by a version with another order, one new descriptor and less old ones."""
        newer = graph_features._Descriptors(
            (*names[::-1], "New")[first:],
            lambda molecule: np.append(own.describe(molecule)[::-1], 0.0)[first:],
        )
        monkeypatch.setitem(graph_features.MOLECULE_FEATURES, "rdkit2d", lambda: newer)

    change(first=0)
    again = read_graphs(["CCO", SALT], data.schema.recipe)
    torch.testing.assert_close(again.graph_features, data.graph_features, equal_nan=True)
    change(first=2)
    with pytest.raises(ValueError, match=rf"reads the descriptor '{names[-2]}', which rdkit"):
        read_graphs(["CCO"], data.schema.recipe)


def test_a_saved_dataset_keeps_its_features(table, tmp_path):
    data = load_data(spec(table, molecule_features=("morgan",), feature_columns=("logd",))).dataset
    data.save(tmp_path / "saved")
    again = GraphDataset.load(tmp_path / "saved")
    assert again.schema == data.schema
    torch.testing.assert_close(again.graph_features, data.graph_features, equal_nan=True)
    assert not {"descriptors", "feature_columns"} & load("MUTAG").schema.to_json()["recipe"].keys()


def test_a_schema_from_a_file_is_checked(table):
    data = load_data(spec(table, feature_columns=("logd",))).dataset
    shape, value = shape_of(data), data.schema.to_json()
    assert read_schema(value, "here", shape) == data.schema
    with pytest.raises(ValueError, match="1 features of the whole graph, but its network takes 2"):
        read_schema(value, "here", replace(shape, graph_width=2))
    for wrong in ({"feature_columns": [3]}, {"molecule_features": ["x"]}, {"descriptors": "a"}):
        with pytest.raises(ValueError, match="invalid schema"):
            read_schema({**value, "recipe": {**value["recipe"], **wrong}}, "here")


@pytest.mark.skipif("GTPOOL_DATA" not in os.environ, reason="needs the files of OGB")
def test_molecules_of_ogb_are_described_by_their_mapping():
    data = load("ogbg-moltox21", molecule_features=["morgan"])
    assert data.graph_features.shape == (7831, 2048)
    unread = data.graph_features.isnan().all(1)
    assert unread.sum() == 8  # aluminium of too many bonds
    assert not data.graph_features[~unread].isnan().any()
    assert data.schema.recipe.molecule_features == ("morgan",)
    assert torch.equal(data.x, load("ogbg-moltox21").x)
