"""`gtpool serve` in a thread or in a process, and models for it that are made in a moment."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import NamedTuple

import httpx
import pytest
import torch
import uvicorn
from waiting import wait_for

from gtpool import cli
from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.jsonl import read_jsonl
from gtpool.data.schema import Recipe, Schema
from gtpool.model.bundle import save_bundle
from gtpool.model.classifier import Classifier
from gtpool.serve import server
from gtpool.spec import ModelSpec
from gtpool.study.inputs import shape_of

MAIN = "from gtpool.cli import main; main()"
JSON = {"Content-Type": "application/json"}
DRUGS = ["CC(=O)OC1=CC=CC=C1C(=O)O", "CN1C=NC2=C1C(=O)N(C)C(=O)N2C", "CC(C)Cc1ccc(cc1)C(C)C(=O)O"]
PATHS = [
    {
        "id": f"path {size}",
        "node_features": [[0.5 * place, size / 9] for place in range(size)],
        "node_labels": [place % 3 for place in range(size)],
        "edges": [[place, place + 1] for place in range(size - 1)],
        "edge_weights": [1 + place / 7 for place in range(size - 1)],
        "undirected": True,
        "label": ["odd", "even"][size % 2 == 0],
    }
    for size in range(2, 12)
]


class Served(NamedTuple):
    """A service that runs, in a process of its own or in a thread of this one."""

    process: subprocess.Popen[str] | None
    url: str
    http: httpx.Client
    key: str | None

    def ask(self, body, path="/predict"):
        """Post JSON, or bytes as they are."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(path, content=sent, headers=JSON)

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


@contextmanager
def serving(model: Path, *options: str, key: str | None = None) -> Iterator[Served]:
    """Run the command in a thread, where the signals that end it cannot arrive."""
    servers = []

    class Noted(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            servers.append(self)

    without = SimpleNamespace(SIGINT=None, SIGTERM=None, signal=lambda *_: None)
    words = ["serve", str(model), "--port", "0", *options]
    command = Thread(target=cli.app, args=(words,), kwargs={"standalone_mode": False}, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "signal", without)
        patch.setattr(server, "uvicorn", SimpleNamespace(Server=Noted, Config=uvicorn.Config))
        patch.delenv("GTPOOL_API_KEY", raising=False)
        if key is not None:
            patch.setenv("GTPOOL_API_KEY", key)
        command.start()
        wait_for(lambda: (servers and servers[0].started) or not command.is_alive())
        host, port, *_ = servers[0].servers[0].sockets[0].getsockname()
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        sent = {} if key is None else {"X-API-Key": key}
        try:
            with httpx.Client(base_url=url, headers=sent, timeout=120) as http:
                yield Served(None, url, http, key)
        finally:
            servers[0].should_exit = True
            command.join(60)
    assert not command.is_alive()


@contextmanager
def serving_process(model: Path, *options: str, key: str | None = None) -> Iterator[Served]:
    """Serve on a free port; at the end it must stop cleanly and have complained of nothing."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("GTPOOL_API_KEY", None)
    if key is not None:
        environment["GTPOOL_API_KEY"] = key
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "serve", str(model), "--port", "0", *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            said = process.stdout.readline()
            assert " on http://127.0.0.1:" in said, process.communicate()
            url = said.split(" on ")[1].split()[0]
            sent = {} if key is None else {"X-API-Key": key}
            with httpx.Client(base_url=url, headers=sent, timeout=120) as http:
                yield Served(process, url, http, key)
        finally:
            process.terminate()
            _, complaints = process.communicate(timeout=300)
    assert process.returncode == 0
    assert set(complaints.splitlines()) <= {"WARNING:  Invalid HTTP request received."}


class HalfSent:
    """A request whose body is on its way, for as long as the test likes."""

    def __init__(self, served: Served, body, path="/predict") -> None:
        host, port = served.url.removeprefix("http://").split(":")
        text = json.dumps(body).encode()
        self.rest = text[5:]
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        if served.key is not None:
            head += f"X-API-Key: {served.key}\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text[:5])

    def finish(self) -> tuple[int, dict]:
        """Send the rest, and give the status and what was answered."""
        self.socket.sendall(self.rest)
        return self.answer()

    def answer(self) -> tuple[int, dict]:
        with self.socket, HTTPResponse(self.socket) as response:
            response.begin()
            return response.status, json.loads(response.read())


def save_model(folder: Path, data: GraphDataset, **spec) -> Path:
    """An untrained model of some data: its answers are as good to compare."""
    torch.manual_seed(0)
    model = Classifier(ModelSpec(**{"width": 16, "levels": 2, **spec}), shape_of(data)).eval()
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(2.0)  # let the answers differ between graphs
    save_bundle(folder, model, {"schema": data.schema.to_json(), "metrics": {}, "versions": {}})
    return folder


def paths_model(folder: Path, **spec) -> Path:
    """A model of ``PATHS``: numbers, labels and weights."""
    source = folder.parent / "paths.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in PATHS))
    return save_model(folder, read_jsonl(source), **spec)


def molecules_model(folder: Path, task="binary", targets=("a", "b"), **spec) -> Path:
    """A model of molecules with some targets."""
    from gtpool.data.formats.memory import read_graphs  # noqa: PLC0415

    data = read_graphs(DRUGS)
    y = torch.zeros(len(data), len(targets))
    schema = Schema("molecules", task, targets, Recipe("molecule"))
    return save_model(
        folder,
        GraphDataset(
            data.x, data.edge_index, data.edge_attr, data.sizes, data.edge_counts, y, schema
        ),
        **spec,
    )
