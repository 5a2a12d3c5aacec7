"""Model folders that a stranger has written: a clear error or a prediction, and nothing else."""

import json
from copy import deepcopy

import pytest
import torch

from gtpool.model.bundle import load_bundle, save_bundle
from gtpool.model.classifier import Classifier
from gtpool.predict import predict_source, was_trained_on
from gtpool.spec import DataSpec, ModelSpec, RunSpec
from gtpool.study.inputs import load_data, shape_of, source_digest

GRAPH = {
    "nodes": 3,
    "edges": [[0, 1], [1, 2]],
    "undirected": True,
    "node_features": [[0.5], [1.5], [2.0]],
    "node_labels": [0, 1, 1],
    "edge_weights": [1.0, 0.5],
}
STRUCTPOOL = ModelSpec(
    width=4, levels=1, pool="structpool", readout="set2set", pool_options={"steps": 2}
)
HOSTILE = [10**9, -1, 10**30, "a\nb" * 500, None, [10**9], {"a": {"b": [1]}}, True]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "graphs.jsonl"
    path.write_text("".join(json.dumps({**GRAPH, "label": label}) + "\n" for label in (0, 1)))
    return path


def save(folder, source, model=STRUCTPOOL, features="gmt"):
    spec = RunSpec(data=DataSpec(source=str(source), features=features), model=model)
    data = load_data(spec.data).dataset.standardized(torch.arange(2))
    torch.manual_seed(0)
    about = {
        "schema": data.schema.to_json(),
        "metrics": {"metric": "accuracy", "test": 0.5},
        "versions": {"gtpool": "0.1.0"},
        "data": {"target_columns": []},
        "run": spec.to_json(),
        "source_digest": source_digest(str(source)),
    }
    save_bundle(folder, Classifier(model, shape_of(data)), about)
    return folder


def leaves(value, path=()):
    """List the ways to all values inside a value, the first two of a list."""
    inner = value.items() if isinstance(value, dict) else ()
    inner = list(enumerate(value))[:2] if isinstance(value, list) else inner
    return [path] * bool(path) + [way for key, part in inner for way in leaves(part, (*path, key))]


def replaced(config, path, value):
    config = deepcopy(config)
    at = config
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(config)


def ask(folder, source):
    """Load and predict; give the message of a ValueError, and let all else out."""
    try:
        assert len(predict_source(load_bundle(folder), source, device="cpu").rows) == 2
    except ValueError as error:
        return str(error)
    return ""


def test_a_hostile_value_anywhere_is_a_clear_error_or_does_no_harm(source, tmp_path):
    folder = save(tmp_path / "model", source)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    assert ask(folder, source) == ""
    refused = 0
    for way in leaves(config):
        for value in HOSTILE:
            path.write_text(replaced(config, way, value))
            message = ask(folder, source)
            assert "\n" not in message, (way, value)
            assert len(message) < 700, (way, value)
            refused += bool(message)
    assert refused > 300


@pytest.mark.parametrize(
    ("way", "value"),
    [
        ("about.schema.recipe.max_degree", 10**9),
        ("about.schema.recipe.attributes", 10**9),
        ("about.schema.recipe.edge_attributes", 5),
        ("about.schema.recipe.std", [0.0]),
        ("about.schema.recipe.kind", "other"),
        ("about.run.data.smiles_column", ["smiles"]),
        ("about.metrics.test", [1]),
        ("about.data.target_columns", [1]),
        ("model.pool_options.steps", 10**9),
        ("model.readout_options", {"steps": 10**9}),
        ("shape.edge_weighted", False),
        ("shape.mean_nodes", -1),
    ],
)
def test_what_would_take_all_memory_or_never_end_is_refused(source, tmp_path, way, value):
    folder = save(tmp_path / "model", source)
    path = folder / "config.json"
    path.write_text(replaced(json.loads(path.read_text()), tuple(way.split(".")), value))
    assert ask(folder, source) != ""


def test_a_number_beyond_floats_is_refused(source, tmp_path):
    path = save(tmp_path / "model", source) / "config.json"
    path.write_text(path.read_text().replace('"test": 0.5', '"test": 1e999'))
    assert "1e999" in ask(path.parent, source)


@pytest.mark.parametrize("features", ["gmt", "fair", "degree", "constant"])
def test_the_columns_of_each_recipe_are_those_of_its_network(source, tmp_path, features):
    assert ask(save(tmp_path / "model", source, features=features), source) == ""


def test_a_saved_model_names_the_file_it_was_trained_on_and_not_its_path(source, tmp_path):
    folder = save(tmp_path / "model", source)
    bundle = load_bundle(folder)
    assert bundle.part("run", "data")["source"] == source.name
    assert all(str(tmp_path).encode() not in path.read_bytes() for path in folder.iterdir())
    assert was_trained_on(bundle, str(source))
    source.write_text(source.read_text() + "\n")
    assert not was_trained_on(bundle, str(source))


def test_an_older_model_with_a_path_still_loads_and_knows_its_data(source, tmp_path):
    folder = save(tmp_path / "model", source)
    path = folder / "config.json"
    config = json.loads(
        replaced(json.loads(path.read_text()), ("about", "run", "data", "source"), str(source))
    )
    del config["about"]["source_digest"]
    path.write_text(json.dumps(config))
    assert was_trained_on(load_bundle(folder), str(source))
    assert not was_trained_on(load_bundle(folder), str(tmp_path / "other.jsonl"))
