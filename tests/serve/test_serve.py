"""A model behind HTTP; one test runs the command in a process of its own, as users do."""

import csv
import gzip
import json
import re
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving import JSON, PATHS, HalfSent, paths_model, serving, serving_process
from waiting import wait_for

from gtpool.data.locate import EMBEDDED
from gtpool.estimator import GraphClassifier
from gtpool.model.bundle import load_bundle
from gtpool.predict import predict_source, write_predictions

B3DB = gzip.decompress((EMBEDDED / "B3DB/B3DB.tsv.gz").read_bytes()).decode().splitlines()[1:]
MOLECULES = [line.split("\t") for line in B3DB[:40] + B3DB[-40:]]
KEY = "a key of ours"
SMILES = [smiles for smiles, _ in MOLECULES]
LARGE_RING = "c1" + "c" * 1994 + "c1"  # a tenth of a second to read, and more


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of molecules, trained for a moment."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    model = GraphClassifier(width=16, epochs=2)
    model.fit(SMILES, [label for _, label in MOLECULES]).save(folder)
    return folder


@pytest.fixture(scope="module")
def molecules(trained):
    with serving(trained) as served:
        yield served


@pytest.fixture(scope="module")
def graphs_folder(tmp_path_factory):
    return paths_model(tmp_path_factory.mktemp("paths") / "model")


@pytest.fixture(scope="module")
def graphs(graphs_folder):
    options = (
        "--max-graphs",
        "12",
        "--max-nodes",
        "100",
        "--max-edges",
        "150",
        "--max-body-mb",
        "1",
    )
    with serving(graphs_folder, *options) as served:
        yield served


def told_by_predict(model, source, tmp_path):
    """What `gtpool predict` writes of the same graphs."""
    write_predictions(tmp_path / "said.csv", predict_source(load_bundle(model), source))
    with (tmp_path / "said.csv").open(newline="") as file:
        return [{"id": line.get("smiles"), **line} for line in csv.DictReader(file)]


def check_same(answer, line, targets):
    assert answer["id"] == line["id"]
    assert answer["prediction"] == (line["prediction"] or None)
    if line["reason"]:
        assert (answer["probabilities"], answer["reason"]) == (None, line["reason"])
        return
    assert answer["reason"] is None
    assert list(answer["probabilities"]) == targets
    for name, share in answer["probabilities"].items():
        assert share == pytest.approx(float(line[f"p_{name}"]), abs=2e-6)


def test_many_clients_get_what_the_command_line_predicts(trained, molecules, tmp_path):
    asked = [*SMILES, "C1CC", "CCO"]
    (tmp_path / "new.csv").write_text("\n".join(["smiles", *asked]))
    lines = told_by_predict(trained, tmp_path / "new.csv", tmp_path)
    together = molecules.ask({"smiles": asked}).json()
    assert (together["task"], together["targets"]) == ("classes", ["BBB+", "BBB-"])
    for answer, line in zip(together["predictions"], lines, strict=True):
        check_same(answer, line, together["targets"])

    sound = [line for line in lines if not line["reason"]]
    with ThreadPoolExecutor(24) as clients:
        found = list(clients.map(lambda line: molecules.ask({"smiles": line["id"]}), sound))
    for response, line in zip(found, sound, strict=True):
        assert response.status_code == 200
        (answer,) = response.json()["predictions"]
        check_same(answer, line, together["targets"])


def test_without_batching_the_answers_are_the_same(trained, molecules):
    bodies = [{"smiles": SMILES[at : at + 3]} for at in range(0, 24, 3)]
    with serving(trained, "--no-batch") as served, ThreadPoolExecutor(8) as clients:
        alone = list(clients.map(served.ask, bodies))
        assert served.metric("gtpool_batch_graphs_count") == 8
        assert served.metric("gtpool_graphs_predicted_total") == 24
    for body, response in zip(bodies, alone, strict=True):
        expected = molecules.ask(body).json()["predictions"]
        for one, two in zip(response.json()["predictions"], expected, strict=True):
            assert one["prediction"] == two["prediction"]
            assert one["probabilities"] == pytest.approx(two["probabilities"], abs=1e-5)


def test_graphs_get_what_the_command_line_predicts(graphs_folder, graphs, tmp_path):
    source = tmp_path / "new.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in PATHS))
    lines = told_by_predict(graphs_folder, source, tmp_path)
    found = graphs.ask({"graphs": PATHS}).json()
    for answer, line in zip(found["predictions"], lines, strict=True):
        check_same(answer, line, ["even", "odd"])
    for record, answer in zip(PATHS, found["predictions"], strict=True):
        alone = graphs.ask({"graphs": [record]}).json()["predictions"][0]
        assert alone["prediction"] == answer["prediction"]
        assert alone["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-5)


def test_a_graph_without_edges_fits_a_model_of_weighted_edges(graphs):
    single = {"node_features": [[1, 2]], "node_labels": [0], "edges": []}
    assert graphs.ask({"graphs": [single]}).status_code == 200


def test_model_says_what_it_takes_and_how_much(molecules, graphs):
    told = molecules.http.get("/model").json()
    assert (told["takes"], told["method"], told["levels"]) == ("smiles", "gtpool-v", 1)
    assert (told["targets"], told["smiles_columns"]) == (["BBB+", "BBB-"], ["smiles"])
    assert "valid_loss" in told["metrics"]
    told = graphs.http.get("/model").json()
    assert told["takes"] == "graphs"
    limits = {"graphs": 12, "nodes": 100, "edges": 150, "body_bytes": 1 << 20}
    assert told["limits"] == limits


BROKEN = {
    "not JSON": (b"{", None),
    "nothing": (b"", None),
    "not UTF-8": (b'{"smiles": "\xff"}', None),
    "another encoding": ('{"smiles": "C"}'.encode("utf-16"), None),
    "deep": (b"[" * 100_000, None),
    "deep inside": (b'{"smiles": ' + b"[" * 100_000, None),
    "a list": (b"[]", None),
    "null": (b"null", None),
    "a key twice": (b'{"smiles": "C", "smiles": "CC"}', None),
    "a number of 5000 digits": (b'{"smiles": ' + b"9" * 5000 + b"}", None),
    "NaN": (b'{"smiles": NaN}', "smiles"),
    "a number": ({"smiles": 3}, "smiles"),
    "a number in a list": ({"smiles": ["C", 3]}, "smiles[1]"),
    "a list in a list": ({"smiles": ["C", ["C"]]}, "smiles[1]"),
    "no molecule": ({"smiles": []}, "smiles"),
    "nothing asked": ({}, "smiles"),
    "an empty SMILES": ({"smiles": ""}, "smiles"),
    "a bad SMILES alone": ({"smiles": "C1CC"}, "smiles"),
    "a bad SMILES alone in a list": ({"smiles": ["C1CC"]}, "smiles[0]"),
    "too many hydrogens": ({"smiles": "[CH99999]"}, "smiles"),
    "half a character": (b'{"smiles": "\\ud800"}', "smiles"),
    "a zero byte": ({"smiles": "C\0C"}, "smiles"),
    "beyond ASCII": ({"smiles": "Cé"}, "smiles"),
    "a long SMILES": ({"smiles": "C" * 2001}, "smiles"),
    "a SMILES of too many cycles": ({"smiles": f"C1{'C%10CCC(CC%10)' * 16}C1"}, "smiles"),
    "more graphs than allowed": ({"smiles": ["C"] * 513}, "smiles[512]"),
    "more atoms than allowed": ({"smiles": ["C" * 2000] * 11}, "smiles[10]"),
    "graphs for molecules": ({"graphs": PATHS}, "smiles"),
    "a file for molecules": ({"smiles": "C", "path": "/etc/passwd"}, "path"),
}


@pytest.mark.parametrize(("body", "where"), BROKEN.values(), ids=BROKEN.keys())
def test_a_bad_body_is_refused_with_its_place(molecules, body, where):
    check_refused(molecules.ask(body), 422, where)


def check_refused(response, status, where):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    told = response.json()
    assert set(told) == {"detail", "where"}
    assert told["where"] == where
    assert 0 < len(told["detail"]) < 300
    assert "\n" not in told["detail"]
    assert "Traceback" not in response.text


PATH = PATHS[4]
BAD_GRAPHS = {
    "an end outside": ({"edges": [[0, 1]] * 5 + [[1, 6]]}, ".edges[5]"),
    "an end below": ({"edges": [[0, 1], [-1, 0]]}, ".edges[1][0]"),
    "an end that is half": ({"edges": [[0, 1.5]]}, ".edges[0][1]"),
    "an end that is true": ({"edges": [[0, True]]}, ".edges[0][1]"),
    "an enormous end": ({"edges": [[0, 10**30]]}, ".edges[0][1]"),
    "three ends": ({"edges": [[0, 1, 2]]}, ".edges[0]"),
    "edges as text": ({"edges": "0-1"}, ".edges"),
    "no edges told": ({"edges": None}, ".edges"),
    "not a number": ({"node_features": [[1, 2]] * 5 + [[1, float("nan")]]}, ".node_features[5][1]"),
    "infinite": ({"node_features": [[1, float("inf")]]}, ".node_features[0][1]"),
    "beyond float32": ({"node_features": [[1, 1e39]]}, ".node_features[0][1]"),
    "an enormous number": ({"node_features": [[1, 10**400]]}, ".node_features[0][1]"),
    "rows of several lengths": ({"node_features": [[1, 2]] * 5 + [[1]]}, ""),
    "too few rows": ({"node_features": [[1, 2]] * 5}, ""),
    "another width": ({"node_features": [[1, 2, 3]] * 6}, None),
    "no features": ({"node_features": None}, None),
    "no labels": ({"node_labels": None}, None),
    "an enormous label": ({"node_labels": [10**20] * 6}, ".node_labels[0]"),
    "weights of other edges": ({"edge_weights": [1.0]}, ""),
    "too many nodes": ({"nodes": 10**9}, ""),
    "no nodes": ({"nodes": 0}, ".nodes"),
    "nodes in words": ({"nodes": "six"}, ".nodes"),
    "undirected as a number": ({"undirected": 1}, ".undirected"),
    "a name that is a list": ({"id": ["x"]}, ".id"),
    "an unknown key": ({"weights": []}, ".weights"),
}


@pytest.mark.parametrize(("change", "place"), BAD_GRAPHS.values(), ids=BAD_GRAPHS.keys())
def test_a_bad_graph_is_refused_with_its_place(graphs, change, place):
    where = "graphs" if place is None else f"graphs[0]{place}"
    check_refused(graphs.ask({"graphs": [{**PATH, **change}]}), 422, where)
    if place is not None:
        bodies = {"graphs": [PATH, {**PATH, **change}]}
        check_refused(graphs.ask(bodies), 422, f"graphs[1]{place}")


def test_a_label_that_the_model_never_saw_is_a_reason(graphs):
    strange = {**PATH, "node_labels": [0, 1, 2, 0, 7, 1]}
    reason = "node label 7 was not in the training data"
    response = graphs.ask({"graphs": [strange]})
    assert (response.status_code, response.json()) == (
        422,
        {"detail": reason, "where": "graphs[0]"},
    )
    first, second, third = graphs.ask({"graphs": [PATH, strange, PATH]}).json()["predictions"]
    assert second == {
        "id": "path 6",
        "prediction": None,
        "probabilities": None,
        "spread": None,
        "reason": reason,
    }
    assert first == third
    assert first["prediction"] in {"even", "odd"}


def test_what_the_client_calls_a_graph_and_its_label_are_free(graphs):
    for label in ("even", 3, [1, None], {"a": [{}]}, True, None):
        assert graphs.ask({"graphs": [{**PATH, "label": label}]}).status_code == 200
    for name, told in (("π\n", "π\n"), (0, "0"), (None, ""), ("x" * 5000, "x" * 5000)):
        (row,) = graphs.ask({"graphs": [{**PATH, "id": name}]}).json()["predictions"]
        assert row["id"] == told


def test_numbers_that_overflow_the_model_are_a_reason(graphs):
    large = {**PATH, "node_features": [[3e38, 3e38]] * 6}
    response = graphs.ask({"graphs": [large]})
    assert response.status_code == 422
    assert "large" in response.json()["detail"]
    first, second = graphs.ask({"graphs": [large, PATH]}).json()["predictions"]
    assert (first["prediction"], first["probabilities"]) == (None, None)
    assert "large" in first["reason"]
    assert second == graphs.ask({"graphs": [PATH]}).json()["predictions"][0] | second
    assert second["prediction"] in {"even", "odd"}


def test_each_limit_is_told(graphs):
    assert graphs.ask({"graphs": [PATHS[0]] * 12}).status_code == 200
    check_refused(graphs.ask({"graphs": [PATHS[0]] * 13}), 422, "graphs[12]")
    bare = {**PATHS[9], "edges": [], "edge_weights": []}
    check_refused(graphs.ask({"graphs": [bare] * 10}), 422, "graphs[9]")  # 11 nodes each
    dense = {**PATHS[9], "edges": [[a, b] for a in range(11) for b in range(a)]}
    dense["edge_weights"] = [1.0] * 55
    check_refused(graphs.ask({"graphs": [dense, dense]}), 422, "graphs[1]")  # 110 edges each
    large = b'{"graphs": [' + b" " * (1 << 20) + b"]}"
    check_refused(graphs.ask(large), 413, None)

    def parts():
        for _ in range(20):
            yield b" " * (1 << 16)

    assert graphs.http.post("/predict", content=parts(), headers=JSON).status_code == 413
    assert graphs.ask({"graphs": [PATH]}).status_code == 200  # it goes on


def test_other_paths_methods_and_kinds_of_body(molecules):
    http, body = molecules.http, b'{"smiles": "C"}'
    check_refused(http.get("/nothing"), 404, None)
    check_refused(http.get("/../../etc/passwd"), 404, None)
    for method in ("GET", "PUT", "DELETE", "PATCH", "TRACE"):
        response = http.request(method, "/predict")
        check_refused(response, 405, None)
        assert response.headers["allow"] == "POST"
    check_refused(http.post("/model", content=body, headers=JSON), 405, None)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        check_refused(
            http.post("/predict", content=body, headers={"Content-Type": kind}), 415, None
        )
    packed = {**JSON, "Content-Encoding": "gzip"}
    check_refused(http.post("/predict", content=gzip.compress(body), headers=packed), 415, None)
    for kind in ("application/json; charset=utf-8", "Application/JSON"):
        answered = http.post("/predict", content=body, headers={"Content-Type": kind})
        assert answered.status_code == 200


def test_the_pages_need_nothing_beside_themselves(molecules):
    for path in ("/", "/docs"):
        response = molecules.http.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert response.headers["content-security-policy"] == "frame-ancestors 'none'"
        assert 'src="http' not in response.text
        assert '<link rel="stylesheet"' not in response.text
    docs = molecules.http.get("/docs").text
    for told in ("/predict", "/explain", "/model", "/metrics", "PredictSmiles", "Problem", "422"):
        assert told in docs
    assert molecules.http.get("/openapi.json").json()["openapi"].startswith("3.")
    assert molecules.http.get("/healthz").json() == {"status": "ok"}


def read_metrics(served):
    """Read the text as Prometheus does: the kind of each metric, and the value of each sample."""
    response = served.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    kinds, values = {}, {}
    for line in response.text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            name, value = re.fullmatch(
                r'(\w+(?:{\w+="[^"\\\n]*"(?:,\w+="[^"\\\n]*")*})?) (\S+)', line
            ).groups()
            assert name not in values
            values[name] = float(value)
    return kinds, values


def test_metrics_count_what_happened(molecules):
    _, before = read_metrics(molecules)
    for body in ({"smiles": SMILES[:3]}, {"smiles": "C"}, {"smiles": "C1CC"}):
        molecules.ask(body)
    molecules.http.get("/nothing-of-the-kind")
    kinds, values = read_metrics(molecules)
    grown = {name: value - before.get(name, 0) for name, value in values.items()}
    assert grown['gtpool_requests_total{path="/predict",status="200"}'] == 2
    assert grown['gtpool_requests_total{path="/predict",status="422"}'] == 1
    assert grown['gtpool_requests_total{path="other",status="404"}'] == 1
    assert grown['gtpool_request_seconds_count{path="/predict"}'] == 3
    assert grown['gtpool_request_seconds_bucket{le="+Inf",path="/predict"}'] == 3
    assert (grown["gtpool_batch_graphs_count"], grown["gtpool_batch_graphs_sum"]) == (2, 4)
    assert grown["gtpool_graphs_predicted_total"] == 4
    assert (values["gtpool_requests_in_hand"], values["gtpool_queue_graphs"]) == (0, 0)
    assert not any("nothing-of-the-kind" in name for name in values)
    assert set(kinds.values()) == {"counter", "gauge", "histogram"}
    for name in values:
        base = name.partition("{")[0]
        assert kinds.get(base, kinds.get(re.sub("_(bucket|sum|count)$", "", base)))


@pytest.fixture(scope="module")
def narrow(trained):
    with serving(trained, "--max-requests", "2", key=KEY) as served:
        yield served


def test_a_full_queue_tells_when_to_come_again(narrow):
    held = [HalfSent(narrow, {"smiles": smiles}) for smiles in SMILES[:2]]
    wait_for(lambda: narrow.metric("gtpool_requests_in_hand") == 2)
    response = narrow.ask({"smiles": "C"})
    check_refused(response, 429, None)
    assert int(response.headers["retry-after"]) > 0
    assert narrow.http.get("/healthz").status_code == 200
    for smiles, half in zip(SMILES[:2], held, strict=True):
        status, answer = half.finish()
        assert (status, answer["predictions"][0]["id"]) == (200, smiles)
    assert narrow.ask({"smiles": "C"}).status_code == 200


def test_a_client_that_goes_away_leaves_its_place(narrow):
    held = [HalfSent(narrow, {"smiles": "C"}) for _ in range(2)]
    wait_for(lambda: narrow.metric("gtpool_requests_in_hand") == 2)
    for half in held:
        half.socket.close()
    wait_for(lambda: narrow.ask({"smiles": "C"}).status_code == 200)


def test_only_those_with_the_key_are_served(narrow):
    assert narrow.ask({"smiles": "C"}).status_code == 200
    for key in (None, "", KEY[:-1], KEY + "x", "ключ".encode()):
        sent = {} if key is None else {"X-API-Key": key}
        with httpx.Client(base_url=narrow.url, headers=sent) as stranger:
            for path in ("/predict", "/explain"):
                check_refused(stranger.post(path, content=b"{}", headers=JSON), 401, None)
            for path in ("/model", "/metrics"):
                check_refused(stranger.get(path), 401, None)
            for path in ("/", "/docs", "/openapi.json", "/healthz"):
                assert stranger.get(path).status_code == 200


def test_only_requests_for_its_own_host_are_answered(trained, molecules):
    def ask(served, host, path="/healthz"):
        return served.http.get(path, headers={"Host": host})

    for host in ("localhost", "LOCALHOST.:80", "127.0.0.1:1", "[::1]", "[0:0::1]:8000"):
        assert ask(molecules, host).status_code == 200, host
    for host in ("evil.test", "localhost.evil.test", "10.0.0.1", "[::2]", "a b", "", "x" * 5000):
        response = ask(molecules, host, "/model")
        check_refused(response, 400, None)
        assert "--allowed-host" in response.json()["detail"]
    chosen = ("--allowed-host", "models.example.org", "--allowed-host", "10.0.0.1")
    with serving(trained, *chosen) as served:
        assert ask(served, "Models.Example.org:443").status_code == 200
        assert ask(served, "10.0.0.1").status_code == 200
        assert ask(served, "example.org").status_code == 400
    with serving(trained, "--allowed-host", "*") as served:
        response = ask(served, "evil.test", "/docs/")
        assert (response.status_code, "location" in response.headers) == (404, False)


def test_what_takes_too_long_is_given_up(trained):
    rings = [LARGE_RING] * 40
    with serving(trained, "--time-limit", "1", "--max-nodes", "99999") as served:
        check_refused(served.ask({"smiles": rings}), 503, None)
        status, told = HalfSent(served, {"smiles": "C"}).answer()
        assert (status, told["where"]) == (408, None)
        wait_for(lambda: served.ask({"smiles": "C"}).status_code == 200)


def test_the_process_finishes_what_is_in_flight_when_it_is_stopped(trained):
    with serving_process(trained) as served:
        stop_in_flight(served, signal.SIGTERM)


@pytest.mark.slow
def test_memory_of_large_requests_comes_back_and_ctrl_c_stops_too(trained):
    with serving_process(trained) as served:

        def megabytes():
            status = Path(f"/proc/{served.process.pid}/status").read_text()
            return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

        served.ask({"smiles": SMILES})
        before = megabytes()
        assert served.ask({"smiles": [LARGE_RING] * 8}).status_code == 200
        wait_for(lambda: megabytes() < before + 50)
        stop_in_flight(served, signal.SIGINT)


def stop_in_flight(served, told):
    half = HalfSent(served, {"smiles": SMILES})
    wait_for(lambda: served.metric("gtpool_requests_in_hand") == 1)
    served.process.send_signal(told)

    def refused():
        try:
            httpx.get(f"{served.url}/healthz")
        except httpx.TransportError:
            return True
        return False

    wait_for(refused)
    assert served.process.poll() is None
    status, answer = half.finish()
    assert status == 200
    assert [row["id"] for row in answer["predictions"]] == SMILES
    assert served.process.wait(timeout=300) == 0


def test_a_key_in_a_file_and_what_is_no_key(trained, gtpool, tmp_path, monkeypatch):
    path = tmp_path / "key"
    path.write_text("from a file\n")
    with serving(trained, "--api-key-file", str(path)) as served:
        assert served.ask({"smiles": "C"}).status_code == 401
        served.http.headers["X-API-Key"] = "from a file"
        assert served.ask({"smiles": "C"}).status_code == 200
    path.write_text("\n")
    code, _, err = gtpool("serve", trained, "--api-key-file", path)
    assert code == 2
    assert f"{path} must hold an API key" in err
    monkeypatch.setenv("GTPOOL_API_KEY", "")
    code, _, err = gtpool("serve", trained)
    assert (code, err.count("\n")) == (2, 1)


def test_what_cannot_be_served_is_one_line(trained, gtpool, monkeypatch):
    code, out, err = gtpool(
        "serve", trained, "--allowed-host", "http://models.example.org", "--port", "0"
    )
    assert (code, out) == (2, "")
    assert "http://models.example.org" in err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = gtpool("serve", trained, "--port", port)
    assert (code, out) == (2, "")
    assert err == f"gtpool: cannot listen on 127.0.0.1, port {port}: Address already in use\n"
    monkeypatch.delitem(sys.modules, "gtpool.serve.app")
    monkeypatch.setitem(sys.modules, "fastapi", None)
    code, out, err = gtpool("serve", trained)
    assert (code, out) == (2, "")
    assert "fastapi" in err
    assert err.endswith("pip install '.[serve]' in a clone\n")


def test_it_listens_to_this_machine_alone_unless_told(trained, molecules, capfd):
    assert molecules.url.startswith("http://127.0.0.1:")
    capfd.readouterr()
    with serving(trained, "--host", "::") as served:
        at = served.url.replace("[::]", "[::1]")
        for host, status in (("[::1]", 200), ("192.0.2.7", 200), ("evil.test", 400)):
            assert httpx.get(f"{at}/healthz", headers={"Host": host}).status_code == status
    said, warned = capfd.readouterr()
    assert " on http://[::]:" in said
    assert "--api-key-file" in warned
