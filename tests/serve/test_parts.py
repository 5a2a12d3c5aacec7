"""The parts of the service: who shares a forward pass, and who pays for an error."""

import html
import json
from threading import Event
from time import monotonic

import pytest
import torch
from fastapi.testclient import TestClient
from serving import DRUGS, JSON, PATHS, molecules_model, paths_model, save_model
from torch_geometric.data import Data

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.memory import read_graphs
from gtpool.model.bundle import load_bundle
from gtpool.predict import schema_of
from gtpool.serve import batch
from gtpool.serve.app import create_app
from gtpool.serve.batch import Batcher
from gtpool.serve.limits import Limits, RequestError
from gtpool.serve.request_reader import RequestReader

CPU = torch.device("cpu")
PATH = PATHS[4]
LARGE = {**PATH, "node_features": [[3e38, 3e38]] * 6}


class Passes:
    """Notes the graphs of each forward pass, and holds passes up until told to go on."""

    def __init__(self):
        self.sizes, self.go = [], Event()

    def __call__(self, graphs):
        self.sizes.append(graphs)
        assert self.go.wait(60)


@pytest.fixture
def batcher_of():
    """Make batchers, and stop them at the end."""
    made = []

    def make(model, *, share=True, graphs=8, nodes=1000, on_batch=lambda _: None):
        batcher = Batcher(
            model, graphs=graphs, nodes=nodes, share=share, on_batch=on_batch, device=CPU
        )
        made.append(batcher)
        return batcher

    yield make
    for batcher in made:
        batcher.close()


@pytest.fixture
def molecules(tmp_path):
    return load_bundle(molecules_model(tmp_path / "model"))


def ask_while_busy(batcher, passes, jobs):
    """Queue all jobs behind a first one that holds the model up."""
    first = batcher.submit(jobs[0])
    while not passes.sizes:
        pass
    rest = [batcher.submit(job) for job in jobs[1:]]
    waiting = batcher.waiting()
    passes.go.set()
    return waiting, [answer.result(60) for answer in (first, *rest)]


@pytest.mark.parametrize(
    ("share", "graphs", "nodes", "sizes"),
    [
        (True, 8, 1000, [1, 6]),
        (True, 3, 1000, [1, 3, 3]),
        (True, 8, 45, [1, 3, 3]),
        (True, 1, 1000, [1] * 7),
        (False, 8, 1000, [1, 1, 2, 1, 2]),
    ],
)
def test_what_waits_together_shares_a_pass(molecules, batcher_of, share, graphs, nodes, sizes):
    sets = [DRUGS[:1], DRUGS[:1], DRUGS[1:], DRUGS[2:], DRUGS[:2]]
    jobs = [read_graphs(smiles) for smiles in sets]
    alone = batcher_of(molecules.model, share=False)
    expected = [alone.submit(job).result(60) for job in jobs]
    passes = Passes()
    batcher = batcher_of(molecules.model, share=share, graphs=graphs, nodes=nodes, on_batch=passes)
    waiting, found = ask_while_busy(batcher, passes, jobs)
    assert waiting == 6
    assert passes.sizes == sizes
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pool", ["gtpool", "gtpool-v", "sagpool", "asap", "diffpool", "haarpool"])
def test_numbers_that_overflow_stay_in_their_request(tmp_path, batcher_of, pool):
    bundle = load_bundle(paths_model(tmp_path / "model", pool=pool))
    reader = RequestReader(bundle.model, schema_of(bundle), Limits())
    records = [PATHS[0], PATH, LARGE, PATHS[7]]
    jobs = [
        reader.read_predict(json.dumps({"graphs": [record]}).encode(), float("inf")).data
        for record in records
    ]
    alone = batcher_of(bundle.model, share=False)
    expected = [alone.submit(job).result(60) for job in jobs]
    passes = Passes()
    _, found = ask_while_busy(batcher_of(bundle.model, on_batch=passes), passes, jobs)
    assert passes.sizes[:2] == [1, 3]
    for place in (0, 1, 3):
        assert expected[place].isfinite().all()
        torch.testing.assert_close(found[place], expected[place], atol=1e-5, rtol=1e-5)


def test_an_error_is_paid_for_by_the_request_that_makes_it(molecules, batcher_of):
    good = read_graphs(DRUGS)
    wrong = read_graphs(DRUGS).to(CPU)
    object.__setattr__(wrong, "x", wrong.x[:, :4])
    passes = Passes()
    batcher = batcher_of(molecules.model, graphs=99, on_batch=passes)
    first = batcher.submit(good)
    while not passes.sizes:
        pass
    answers = [batcher.submit(job) for job in (good, wrong, good)]
    dropped = batcher.submit(good)
    assert dropped.cancel()
    passes.go.set()
    assert answers[1].exception(60) is not None
    for answer in (answers[0], answers[2]):
        torch.testing.assert_close(answer.result(60), first.result(60))


def test_the_clock_is_checked_at_each_molecule(molecules):
    reader = RequestReader(molecules.model, schema_of(molecules), Limits())
    body = json.dumps({"smiles": ["c1" + "c" * 1994 + "c1"] * 8}).encode()  # 0.1 s each
    with pytest.raises(TimeoutError):
        reader.read_predict(body, monotonic() + 0.05)


def test_a_pass_waits_for_jobs_that_are_read_but_not_for_ever(molecules, batcher_of, monkeypatch):
    sizes = []
    batcher = batcher_of(molecules.model, on_batch=sizes.append)
    with batcher.expect():
        batcher.submit(read_graphs(["CCO"])).result(60)
    monkeypatch.setattr(batch, "WAIT", 60.0)
    with batcher.expect():
        answers = [batcher.submit(read_graphs([text])) for text in ("CCO", "CC", "C")]
    assert all(answer.result(60).shape[0] == 1 for answer in answers)
    assert sizes == [1, 3]


def test_a_closed_batcher_answers_what_is_queued_and_takes_no_more(molecules):
    batcher = Batcher(
        molecules.model, graphs=8, nodes=99, share=False, on_batch=lambda _: None, device=CPU
    )
    answers = [batcher.submit(read_graphs(DRUGS)) for _ in range(5)]
    batcher.close()
    assert all(answer.done() for answer in answers)
    with pytest.raises(RuntimeError, match="stopping"):
        batcher.submit(read_graphs(DRUGS))


def test_an_error_of_ours_is_one_line_to_the_client_and_all_of_it_to_the_server(molecules):
    del molecules.model.head[0].weight  # what no request can do
    with TestClient(create_app(molecules), raise_server_exceptions=False) as client:
        response = client.post("/predict", content=b'{"smiles": "CCO"}', headers=JSON)
        assert (response.status_code, response.json()) == (
            500,
            {"detail": "internal error; see the log of the service", "where": None},
        )
        assert client.get("/healthz").status_code == 200
    with (
        TestClient(create_app(molecules)) as client,
        pytest.raises(AttributeError, match="weight"),  # which the server writes into its log
    ):
        client.post("/predict", content=b'{"smiles": "CCO"}', headers=JSON)


def test_targets_of_their_own_and_regression(tmp_path):
    bundle = load_bundle(molecules_model(tmp_path / "binary"))
    with TestClient(create_app(bundle)) as client:
        found = client.post("/predict", json={"smiles": DRUGS}).json()
    assert (found["task"], found["targets"]) == ("binary", ["a", "b"])
    for row in found["predictions"]:
        assert row["prediction"] == [float(p >= 0.5) for p in row["probabilities"].values()]
    bundle = load_bundle(molecules_model(tmp_path / "numbers", "regression", ("logP",)))
    with TestClient(create_app(bundle)) as client:
        (row,) = client.post("/predict", json={"smiles": "CCO"}).json()["predictions"]
    assert len(row["prediction"]) == 1
    assert row["probabilities"] is None


@pytest.mark.parametrize("name", ["graphs", "seconds", "batch_graphs"])
def test_a_limit_of_nothing_is_refused(name):
    with pytest.raises(ValueError, match=f"the limit {name} must be above 0, got 0"):
        Limits(**{name: 0})


def test_a_model_of_codes_that_no_request_can_have_is_refused(tmp_path):
    codes = [
        Data(torch.tensor([[kind], [2]]), torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([kind]))
        for kind in (0, 1)
    ]
    bundle = load_bundle(save_model(tmp_path / "model", GraphDataset.from_pyg(codes)))
    with pytest.raises(ValueError, match=r"this model cannot be served: .*codes"):
        create_app(bundle)


@pytest.mark.parametrize("make", [molecules_model, paths_model])
def test_the_described_example_is_answered(tmp_path, make):
    with TestClient(create_app(load_bundle(make(tmp_path / "model")))) as client:
        paths = client.get("/openapi.json").json()["paths"]
        for path in ("/predict", "/explain"):
            body = paths[path]["post"]["requestBody"]["content"]["application/json"]["example"]
            assert client.post(path, json=body).status_code == 200
            assert json.dumps(body, sort_keys=True) in html.unescape(client.get("/docs").text)


def test_requests_that_are_read_together_get_what_each_gets_alone(molecules, batcher_of):
    limits = Limits(smiles_characters=40, nodes=20)
    reader = RequestReader(molecules.model, schema_of(molecules), limits)
    asked = [
        {"smiles": DRUGS[0]},
        {"smiles": ["CCO"], "coverage": 0.9},
        {"smiles": "C1CC"},  # not valid
        {"smiles": "C" * 30},  # too many nodes
        {"smiles": ["CC", "CCC", "C1CC"]},
        {"smiles": "C" * 50},  # too many characters
        {"smiles": []},
        {"graphs": []},
        {"smiles": "[Na+].[Cl-]"},
    ]
    bodies = [*(json.dumps(one).encode() for one in asked), b"not JSON"]
    batcher = batcher_of(molecules.model, graphs=99)
    together = reader.read_together(bodies, float("inf"))
    answers = [
        batcher.submit(one.data, one.rows)
        for one in together
        if not isinstance(one, Exception) and one.data is not None
    ]
    outputs = iter([answer.result(60) for answer in answers])
    for body, found in zip(bodies, together, strict=True):
        if isinstance(found, RequestError):
            with pytest.raises(RequestError) as refused:
                reader.read_predict(body, float("inf"))
            error = refused.value
            assert (found.status_code, found.detail) == (error.status_code, error.detail)
            assert found.where == error.where
            continue
        alone = reader.read_predict(body, float("inf"))
        assert found[:3] == alone[:3]
        assert found.coverage == alone.coverage
        assert (found.data is None) == (alone.data is None)
        if alone.data is not None:
            expected = batcher.submit(alone.data).result(60)
            torch.testing.assert_close(next(outputs), expected, atol=1e-5, rtol=1e-5)
    assert len(answers) == 4
