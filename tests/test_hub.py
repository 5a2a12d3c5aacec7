"""Bundles by Hugging Face's mixin: a local folder, and a small hub of our own on loopback."""

import json
import os
import re
import subprocess
import sys
import threading
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from huggingface_hub import ModelCard, ModelHubMixin
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from gtpool.data.sources import load
from gtpool.hub import HubModel
from gtpool.model.bundle import FILES, load_bundle, save_bundle
from gtpool.model.classifier import Classifier
from gtpool.spec import ModelSpec, ShapeSpec

ABOUT = {
    "schema": {"name": "MUTAG", "task": "classes", "targets": ["-1", "1"]},
    "metrics": {"metric": "accuracy", "test": 0.875, "valid_metric": 0.9, "valid_loss": 1e-05},
    "run": {"seed": 42, "split": {"fold": 1, "folds": 10}},
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """Nothing here may reach the real hub; the library reads these when it is imported."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    model = Classifier(ModelSpec(width=8), ShapeSpec(outputs=2, node_width=7)).eval()
    save_bundle(tmp_path / "model", model, ABOUT)
    return tmp_path / "model"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_bundle_goes_through_the_mixin_and_comes_back_byte_for_byte(folder, tmp_path):
    model = HubModel.from_bundle(folder)
    assert isinstance(model, ModelHubMixin)
    assert model.save_pretrained(tmp_path / "saved") is None
    assert contents(tmp_path / "saved") == contents(folder)
    again = HubModel.from_pretrained(str(tmp_path / "saved"))
    graphs = load("MUTAG").take(range(10), again.bundle.model.ratios)
    assert torch.equal(again.bundle.model.classify(graphs), model.bundle.model.classify(graphs))
    assert again.bundle.about == ABOUT


def test_what_the_mixin_saves_is_a_bundle_and_a_bundle_is_what_it_loads(folder, tmp_path):
    HubModel.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    assert load_bundle(tmp_path / "saved").about == ABOUT
    assert {*contents(tmp_path / "saved")} == {*FILES[:3]}


def test_the_hub_reads_the_true_figures_from_the_card(folder):
    data = ModelCard.load(folder / "README.md").data
    assert (data.library_name, data.pipeline_tag, data.license) == ("gtpool", "graph-ml", None)
    assert "graph-classification" in data.tags
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name, result.dataset_split) == (
        "accuracy",
        0.875,
        "MUTAG",
        "test",
    )
    assert result.metric_name == "accuracy (seed 42, fold 2 of 10)"
    assert HubModel.from_bundle(folder).generate_model_card().data.to_dict() == data.to_dict()


def test_a_licence_is_the_authors_to_name(folder, tmp_path):
    HubModel.from_bundle(load_bundle(folder), licence="mit").save_pretrained(tmp_path / "saved")
    assert ModelCard.load(tmp_path / "saved" / "README.md").data.license == "mit"
    assert HubModel.from_pretrained(tmp_path / "saved").bundle.about["license"] == "mit"


def test_saving_deletes_nothing_of_the_users(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("years of work")
    (tmp_path / "mine" / "thesis.txt").write_text("more")
    with pytest.raises(FileExistsError, match=r"thesis\.txt"):
        HubModel.from_bundle(folder).save_pretrained(tmp_path / "mine")
    assert (tmp_path / "mine" / "config.json").read_text() == "years of work"


@pytest.mark.parametrize("option", ["config", "model_card_kwargs"])
def test_what_would_be_ignored_is_refused(folder, tmp_path, option):
    with pytest.raises(ValueError, match=option):
        HubModel.from_bundle(folder).save_pretrained(tmp_path / "saved", **{option: {"a": 1}})
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("[]", "JSON object"),
        ("{", "is not JSON"),
        ('{"bundle": 1}', "'about' is missing"),
        ('{"format": 7}', "format 7"),
    ],
)
def test_a_folder_of_a_strangers_is_checked_before_it_is_trusted(folder, config, says):
    (folder / "config.json").write_text(config)
    with pytest.raises(ValueError, match=says):
        HubModel.from_pretrained(str(folder))


def test_a_name_that_leads_nowhere(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a model"):
        HubModel.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(LocalEntryNotFoundError, match="cached"):
        HubModel.from_pretrained("owner/nowhere")
    with pytest.raises(HFValidationError, match="Repo id"):
        HubModel.from_pretrained("./nowhere")


def test_without_the_extra_one_line_says_what_to_install():
    program = "import sys; sys.modules['huggingface_hub'] = None; import gtpool.hub"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)  # noqa: PLW1510
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: gtpool.hub needs huggingface_hub: pip install '.[hub]' in a clone"
    )


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a push and a download of small files ask for."""

    stored: dict[str, bytes]

    def do_POST(self):
        here = f"http://{self.headers['Host']}/owner/name"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/preupload/" in self.path:
            how = {"uploadMode": "regular", "shouldIgnore": False}
            self.say(files=[{"path": file["path"], **how} for file in json.loads(body)["files"]])
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.stored[line["value"]["path"]] = b64decode(line["value"]["content"])
            self.say(commitUrl=f"{here}/commit/1", commitOid="1" * 40)
        else:  # create a repository, check the metadata
            self.say(url=here, errors=[], warnings=[])

    def do_GET(self):
        if "/tree/" in self.path:
            listed = [
                {"type": "file", "path": name, "size": len(body), "oid": "2" * 40}
                for name, body in self.stored.items()
            ]
            self.send(json.dumps(listed).encode(), "application/json")
        elif self.path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in self.stored]
            self.say(id="owner/name", sha="1" * 40, siblings=siblings)
        else:
            self.send(self.stored[self.path.rsplit("/", 1)[1]])

    def do_HEAD(self):
        self.do_GET()

    def say(self, **answer):
        self.send(json.dumps(answer).encode(), "application/json")

    def send(self, body, kind="application/octet-stream"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", "1" * 40)
        self.send_header("ETag", f'"{hash(body):x}"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    Hub.stored = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_push_sends_the_three_files_and_loading_gets_them_back(hub, folder, tmp_path):
    program = """
import sys
from gtpool.hub import HubModel
print(HubModel.from_bundle(sys.argv[1]).push_to_hub("owner/name", token="none"))
HubModel.from_pretrained("owner/name").save_pretrained(sys.argv[2])
"""
    places = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path / "hf")}
    plain = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    kept = {name: value for name, value in os.environ.items() if not re.match(r"HF_|.*proxy", name)}
    done = subprocess.run(
        [sys.executable, "-c", program, folder, tmp_path / "loaded"],
        env={**kept, **places, **plain},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("/owner/name/commit/1")
    assert hub.RequestHandlerClass.stored == contents(folder) == contents(tmp_path / "loaded")
