"""Encodings as part of the features: their columns, recipes, caches and errors."""

from dataclasses import replace

import networkx as nx
import pytest
import torch
from drawn import molecules
from torch_geometric.data import Data

from gtpool.data.dataset import GraphDataset
from gtpool.data.encodings import encode_nodes, with_encodings
from gtpool.data.formats.memory import read_graphs
from gtpool.data.formats.reader import inference_from_dataset
from gtpool.data.inference import apply_recipe, check_fit, read_schema
from gtpool.data.schema import Schema, parse_encodings
from gtpool.data.sources import load, read_for_inference
from gtpool.data.summary import describe, describe_targets
from gtpool.estimator import GraphClassifier
from gtpool.spec import DataSpec
from gtpool.study.inputs import load_data, shape_of

ENCODE = ("rwse:4", "cycles")  # three columns each


@pytest.fixture(scope="module")
def mutag():
    return load("MUTAG")


def columns(data: GraphDataset, names=ENCODE):
    return encode_nodes(names, data.edge_index, data.sizes, data.edge_counts, "graphs")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rwes:16", "unknown encoding 'rwes:16'; did you mean 'rwse'"),
        ("rwse:1", "'rwse:1': K of rwse:K must be an integer, at least 2"),
        ("rwse", "'rwse': K of rwse:K"),
        ("lappe:x", "'lappe:x'"),
        ("cycles:9", "'cycles:9': K of cycles:K must be an integer, from 3 to 8"),
        ("degree:2", "degree takes no number"),
    ],
)
def test_wrong_names(name, message):
    with pytest.raises(ValueError, match=message):
        load("MUTAG", encode=[name])


def test_an_encoding_is_given_once():
    with pytest.raises(ValueError, match="encoding 'rwse' is given twice"):
        parse_encodings(["rwse:4", "degree", "rwse:8"])
    with pytest.raises(ValueError, match=r"must be a tuple of names, such as \('rwse:4',\)"):
        load("MUTAG", encode="rwse:4")


@pytest.mark.parametrize("name", ["rwse:16", "lappe:5", "degree", "cycles", "cycles:8"])
def test_number_of_columns(name, mutag):
    assert columns(mutag, [name]).size(1) == parse_encodings([name])[0].columns


def test_encodings_come_before_labels(mutag):
    data = load("MUTAG", encode=ENCODE)
    assert torch.equal(data.x, torch.cat([columns(mutag), mutag.x], 1))
    assert data.schema.recipe == replace(mutag.schema.recipe, encode=ENCODE)
    assert (data.schema.recipe.encoded, data.schema.recipe.continuous) == (6, 6)
    assert shape_of(data).node_width == 6 + 7
    assert "encodings: rwse:4, cycles (6 per node)" in describe_targets(data)
    assert "6 encodings (rwse:4, cycles)" in describe(data)["features"]


def test_encodings_come_before_codes():
    plain = molecules(20)
    data = with_encodings(plain, ENCODE)
    assert data.x.dtype == torch.float32
    assert torch.equal(data.x[:, :6], columns(plain))
    assert torch.equal(data.x[:, 6:], plain.x.float())
    shape = shape_of(data)
    assert (shape.node_width, shape.node_categories) == (6, shape_of(plain).node_categories)
    assert "encodings: rwse:4, cycles" in describe(data)["features"]
    check_fit(data, shape, edges=True)
    with pytest.raises(ValueError, match="9 node features, but the model was made for 15"):
        check_fit(plain, shape, edges=True)
    wrong = replace(data, x=data.x.index_fill(1, torch.tensor([6]), 119.0))
    with pytest.raises(ValueError, match="node feature 0: code 119"):
        check_fit(wrong, shape, edges=True)


def test_all_are_standardized_by_the_training_part():
    graphs = [Data(torch.rand(5, 2), torch.randint(0, 5, (2, 9)), y=at % 2) for at in range(9)]
    data = with_encodings(GraphDataset.from_pyg(graphs), ("rwse:3", "degree"))
    assert (data.schema.recipe.encoded, data.schema.recipe.attributes) == (3, 2)
    seen = data.standardized([0, 1, 2]).take([0, 1, 2]).x
    torch.testing.assert_close(seen.mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.std(0, correction=0), torch.ones(5))
    coded = with_encodings(molecules(20), ("rwse:3",))
    after = coded.standardized(range(10))
    assert torch.equal(after.x[:, 2:], coded.x[:, 2:])
    assert len(after.schema.recipe.mean) == 2


@pytest.mark.parametrize("name", ["long-range", "low-scores"])
def test_synthetic_data(name):
    plain, data = load(name), load(name, encode=("degree",))
    assert torch.equal(data.x[:, 1:], plain.x)
    assert data.x[0, 0] == torch.tensor(2.0).log1p()
    assert shape_of(data).node_width == plain.num_features + 1


def test_graphs_in_memory_and_the_recipe_of_a_model():
    coded = [Data(torch.tensor([[0], [3]]), torch.tensor([[0, 1], [1, 0]])) for _ in range(2)]
    for graphs in (coded, [nx.path_graph(3)], ["CCO", "C1CC1"]):
        plain, data = read_graphs(graphs), read_graphs(graphs, encode=ENCODE)
        assert torch.equal(data.x, torch.cat([columns(plain), plain.x.float()], 1))
        again = read_graphs(graphs, data.schema.recipe)
        assert torch.equal(again.x, data.x)
        assert shape_of(again) == shape_of(data)
    assert shape_of(read_graphs(coded, encode=ENCODE)).node_categories == (4,)


def test_saved_data_keep_their_encodings(tmp_path, mutag):
    data = with_encodings(mutag, ENCODE)
    data.save(tmp_path / "mine")
    for encode in ((), ENCODE):
        found = load(tmp_path / "mine", encode=encode)
        assert found.schema == data.schema
        assert torch.equal(found.x, data.x)
    with pytest.raises(ValueError, match=r"MUTAG cannot get the encodings degree.*rwse:4"):
        load(tmp_path / "mine", encode=("degree",))
    assert Schema.from_json(data.schema.to_json()) == data.schema
    assert not {"encode", "coded"} & mutag.schema.to_json()["recipe"].keys()


def test_prediction_repeats_the_encodings(mutag):
    data = load("MUTAG", encode=ENCODE).standardized(range(100))
    for source in ("MUTAG", mutag, load("MUTAG", encode=ENCODE)):
        if isinstance(source, GraphDataset):
            found = inference_from_dataset(source, data.schema).data
        else:
            found = read_for_inference(source, data.schema).data
        torch.testing.assert_close(found.x, data.x)
    degree = with_encodings(mutag, ("degree",))
    with pytest.raises(ValueError, match=r"degree.*trained on .*rwse:4, cycles"):
        apply_recipe(degree, data.schema.recipe)
    graphs = [Data(torch.rand(5, 2), torch.randint(0, 5, (2, 9)), y=at % 2) for at in range(9)]
    standard = GraphDataset.from_pyg(graphs).standardized(range(9))
    with pytest.raises(ValueError, match=r"cannot get the encodings rwse:4.*standardised"):
        with_encodings(standard, ENCODE)


def test_a_schema_of_unknown_encodings_is_refused(mutag):
    value = with_encodings(mutag, ENCODE).schema.to_json()
    shape = shape_of(load("MUTAG", encode=ENCODE))
    assert read_schema(value, "here", shape).recipe.encode == ENCODE
    for encode, message in (
        (["magic:3"], "here: unknown encoding 'magic:3'"),
        ([1], "invalid schema"),
        (["rwse:8"], "14 node and 4 edge columns"),
    ):
        value["recipe"]["encode"] = encode
        with pytest.raises(ValueError, match=message):
            read_schema(value, "here", shape)


def test_named_data_are_cached_by_encodings(tmp_path, monkeypatch):
    monkeypatch.setenv("GTPOOL_CACHE", str(tmp_path))
    first = load("MUTAG", encode=ENCODE)
    names = {path.name.rpartition("-")[0] for path in (tmp_path / "graphs").iterdir()}
    assert names == {"MUTAG-gmt", "MUTAG-gmt+rwse4+cycles"}
    monkeypatch.setattr("gtpool.data.encodings.encode_nodes", None)
    assert torch.equal(load("MUTAG", encode=ENCODE).x, first.x)
    spec = DataSpec(source="MUTAG", encode=ENCODE)
    assert torch.equal(load_data(spec).dataset.x, first.x)


def test_estimator(tmp_path, mutag):
    quick = {"width": 8, "levels": 1, "epochs": 2, "device": "cpu"}
    for graphs, y in ((mutag, None), (["CCO", "CC", "C1CC1", "CCCC"], [0, 1, 0, 1])):
        model = GraphClassifier(**quick, encode=("rwse:4",)).fit(graphs, y)
        assert model.schema_.recipe.encode == ("rwse:4",)
        assert model.n_features_in_ == model.model_.shape.node_width + len(
            model.model_.shape.node_categories
        )
        model.save(tmp_path / "model")
        again = GraphClassifier.load(tmp_path / "model")
        assert again.encode == ("rwse:4",)
        assert (again.predict_proba(graphs) == model.predict_proba(graphs)).all()
        assert len(again.explain(graphs, 1, epochs=3).importance) > 1
