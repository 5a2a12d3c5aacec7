"""Every method by the door that users take: a name, a few epochs, a saved model."""

import csv

import pytest
import torch
from torch_geometric.data import Data
from typer.testing import CliRunner

from gtpool.cli import app
from gtpool.data.dataset import GraphDataset
from gtpool.model import METHODS, method_name
from gtpool.model.bundle import load_bundle, save_bundle
from gtpool.model.classifier import Classifier
from gtpool.pool import KINDS, POOLS
from gtpool.reproduce.published import TABLE_1
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study.inputs import shape_of
from gtpool.study.run_one import run_one
from gtpool.train.fit import predict

SHORT = TrainSpec(epochs=1, batch_size=64, warmup=0)
SMILES = (
    "CCO",
    "c1ccccc1",
    "[Na+]",
    "C",
    "CC(=O)O",
    "[Na+].[Cl-]",
    "CCN",
    "c1ccncc1O",
    "O",
    "CCCl",
)


def spec_of(name, **data):
    model = ModelSpec(width=16, **METHODS[name].model)
    return RunSpec(data=DataSpec(**data), split=SplitSpec(folds=4), model=model, train=SHORT)


@pytest.fixture(scope="module")
def sparse_labels(tmp_path_factory):
    """Give a table of molecules, lone atoms and salts among them, with labels missing."""
    path = tmp_path_factory.mktemp("methods") / "toxic.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["smiles", "a", "b"])
        for at in range(40):
            lines.writerow([SMILES[at % 10], at % 2 if at % 3 else "", (at // 2) % 2])
    return path


def test_every_competitor_of_the_paper_is_a_method():
    assert set(TABLE_1) <= set(METHODS)
    assert KINDS.keys() == POOLS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_on_mutag_and_is_known_by_its_name(name):
    spec = spec_of(name, source="MUTAG")
    row = run_one(spec, device="cpu")
    assert row.status == "done", row.error
    assert row.epochs_run == 1
    assert 0 <= row.test <= 1
    assert method_name(row.spec.model.to_json()) == name


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_on_molecules_with_missing_labels(name, sparse_labels):
    row = run_one(spec_of(name, source=str(sparse_labels), target_columns=("a", "b")), device="cpu")
    assert row.status == "done", row.error
    assert row.metric == "roc_auc"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_one_node_and_no_edges_and_comes_back_from_a_folder(name, tmp_path):
    random = torch.Generator().manual_seed(0)
    data = GraphDataset.from_pyg(
        Data(
            torch.randn(nodes, 4, generator=random),
            torch.empty(2, 0, dtype=torch.long),
            y=torch.tensor([at % 2]),
        )
        for at, nodes in enumerate((1, 1, 3))
    )
    torch.manual_seed(0)
    model = Classifier(ModelSpec(width=16, **METHODS[name].model), shape_of(data)).eval()
    logits = predict(model, data, torch.arange(3))
    assert logits.isfinite().all()
    save_bundle(tmp_path / "model", model, {})
    again = predict(load_bundle(tmp_path / "model").model, data, torch.arange(3))
    assert torch.equal(logits, again)


def test_list_shows_every_method_with_what_it_is():
    out = CliRunner().invoke(app, ["list"], env={"COLUMNS": "120"}).output
    lines = {line.split()[0]: line for line in out.splitlines() if line.split()}
    for name, method in METHODS.items():
        assert method.kind in lines[name]
        assert method.paper in lines[name]
        assert ("yes" in lines[name].split()) == method.auxiliary
    assert "422,082" in lines["gtpool-v"]


def test_train_takes_the_name_of_a_method(tmp_path):
    words = ["train", "MUTAG", "--pool", "sagpool_h-rwsv", "--width", "16", "--epochs", "2"]
    result = CliRunner().invoke(
        app, [*words, "--folds", "3", "--output-dir", str(tmp_path / "run")]
    )
    assert result.exit_code == 0, result.output
    pools = load_bundle(tmp_path / "run" / "model").model.members[0].pools
    assert [pool.sampler for pool in pools] == ["rwsv"] * 3
