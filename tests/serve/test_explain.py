"""`POST /explain`: what it says, what it refuses, and that predictions go on beside it."""

import json
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient
from serving import DRUGS, PATHS, molecules_model, paths_model

from gtpool.data.molecule import atom_numbers, read_molecules
from gtpool.explain import explain
from gtpool.model.bundle import load_bundle
from gtpool.predict import schema_of
from gtpool.serve.app import create_app
from gtpool.serve.limits import Limits
from gtpool.serve.request_reader import RequestReader
from gtpool.serve.service import ExplanationWorker

LIMITS = Limits(explain_epochs=5, explain_requests=2)
PATH = {key: part for key, part in PATHS[6].items() if key != "label"}


@pytest.fixture(scope="module")
def molecules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return load_bundle(molecules_model(folder / "model", "regression", ("a", "b")))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    return load_bundle(paths_model(tmp_path_factory.mktemp("models") / "model"))


def serve(bundle, limits=LIMITS):
    return TestClient(create_app(bundle, limits))


def check_pictures(pictures):
    for picture in pictures:
        assert ET.fromstring(picture).get("role") == "img"  # noqa: S314 - ours


def test_a_molecule_is_explained_as_from_python(molecules):
    with serve(molecules) as client:
        response = client.post("/explain", json={"smiles": DRUGS[1]})
        predicted = client.post("/predict", json={"smiles": DRUGS[1]}).json()
    assert response.status_code == 200
    told = response.json()
    assert (told["task"], told["targets"]) == ("regression", ["a", "b"])
    assert told["prediction"] == predicted["predictions"][0]
    reader = RequestReader(molecules.model, schema_of(molecules), LIMITS)
    data = reader.read_explain(json.dumps({"smiles": DRUGS[1]}).encode(), float("inf")).data
    expected = explain(molecules.model, data, epochs=5, task="regression")
    assert told["explanation"] == json.loads(json.dumps(expected.to_json()))
    assert told["explanation"]["nodes"] == 14
    assert len(told["pictures"]) == 1 + len(expected.levels) == 3
    check_pictures(told["pictures"])


def test_atoms_have_the_numbers_of_the_smiles_that_was_sent(molecules):
    smiles = "OCC(N)=O"
    numbers = atom_numbers(smiles, "canonical")
    assert numbers != sorted(numbers)
    schema = {**molecules.about["schema"]}
    schema["recipe"] = {**schema["recipe"], "atom_order": "canonical"}
    model = molecules._replace(about={**molecules.about, "schema": schema})
    with serve(model) as client:
        told = client.post("/explain", json={"smiles": smiles}).json()["explanation"]
    given = read_molecules([smiles], atom_order="given")
    assert sorted(told["edges"]) == sorted(given.edge_index.T.tolist())
    reader = RequestReader(model.model, schema_of(model), LIMITS)
    data = reader.read_explain(json.dumps({"smiles": smiles}).encode(), float("inf")).data
    own = explain(model.model, data, epochs=5, task="regression")
    assert told["importance"] == pytest.approx(
        [own.importance[numbers.index(atom)] for atom in range(5)]
    )
    for level, plain in zip(told["levels"], own.levels, strict=True):
        assert set(level["kept"]) == {numbers[node] for node in plain.kept}


def test_a_graph_is_explained(graphs):
    with serve(graphs) as client:
        told = client.post("/explain", json={"graph": PATH}).json()
        predicted = client.post("/predict", json={"graphs": [PATH]}).json()
    assert told["prediction"] == predicted["predictions"][0]
    assert [len(level["kept"]) for level in told["explanation"]["levels"]] == [4, 2]
    assert told["explanation"]["levels"][0]["nodes"] == list(range(8))
    assert len(told["explanation"]["importance"]) == 8
    check_pictures(told["pictures"])


@pytest.mark.parametrize("pool", ["none", "diffpool", "haarpool", "sagpool"])
def test_any_model_is_explained(tmp_path, pool):
    bundle = load_bundle(paths_model(tmp_path / "model", pool=pool))
    with serve(bundle) as client:
        told = client.post("/explain", json={"graph": PATH}).json()
        single = {"node_features": [[1, 2]], "node_labels": [0], "edges": []}
        alone = client.post("/explain", json={"graph": single}).json()
    assert len(told["pictures"]) == (3 if pool == "sagpool" else 1)
    assert alone["explanation"]["nodes"] == 1


def test_what_cannot_be_explained_is_refused_with_its_place(molecules, graphs):
    ring = {
        "nodes": 251,
        "node_features": [[0, 0]] * 251,
        "node_labels": [0] * 251,
        "edges": [],
    }
    large = {**PATH, "node_features": [[3e38, 3e38]] * 8}
    strange = {**PATH, "node_labels": [9] * 8}
    with serve(molecules) as client:
        for body, where in (
            ({"smiles": "C1CC"}, "smiles"),
            ({"smiles": ["C"]}, "smiles"),
            ({"smiles": "C" * 251}, "smiles"),
            ({"graph": PATH}, "smiles"),
        ):
            response = client.post("/explain", json=body)
            assert (response.status_code, response.json()["where"]) == (422, where)
    with serve(graphs) as client:
        for body, where in (
            ({"graph": ring}, "graph"),
            ({"graph": large}, "graph"),
            ({"graph": strange}, "graph"),
            ({"graph": {**PATH, "edges": [[0, 8]]}}, "graph.edges[0]"),
            ({"graph": [PATH]}, "graph"),
            ({"graphs": [PATH]}, "graph"),
        ):
            response = client.post("/explain", json=body)
            assert (response.status_code, response.json()["where"]) == (422, where)


def test_an_explanation_stops_when_nobody_waits_for_it(molecules):
    reader = RequestReader(molecules.model, schema_of(molecules), LIMITS)
    data = reader.read_explain(json.dumps({"smiles": DRUGS[0]}).encode(), float("inf")).data
    work = ExplanationWorker(molecules.model, schema_of(molecules), epochs=10**9)
    with pytest.raises(TimeoutError):
        work.explain(data, DRUGS[0], time.monotonic() + 0.2)


def test_few_wait_for_an_explanation_and_predictions_go_on(molecules):
    endless = Limits(explain_epochs=10**9, explain_requests=2, seconds=2.0)
    with serve(molecules, endless) as client, ThreadPoolExecutor(2) as pool:

        def ask():
            return client.post("/explain", json={"smiles": DRUGS[0]})

        waiting = [pool.submit(ask) for _ in range(2)]
        while "gtpool_requests_in_hand 2" not in client.get("/metrics").text:
            assert not any(answer.done() for answer in waiting)
        refused = ask()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert client.post("/predict", json={"smiles": DRUGS[0]}).status_code == 200
        assert [answer.result(60).status_code for answer in waiting] == [503, 503]
