"""``gtpool.cross_validate`` as a user calls it, and beside the command line."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import gtpool
from gtpool.cli import app
from gtpool.data.dataset import standardize_columns
from gtpool.report.results import write_results
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study.store import Store, differing_fields
from gtpool.train.fit import predict

SMALL = {
    "split": {"folds": 3},
    "model": {"pool": "gtpool-v", "width": 8, "levels": 2},
    "train": {"epochs": 2, "batch_size": 64},
}


@pytest.fixture(scope="module")
def result():
    return gtpool.cross_validate("MUTAG", SMALL)


def test_every_graph_is_tested_once(result):
    assert [row.spec.split.fold for row in result.runs] == [0, 1, 2]
    assert {row.status for row in result.runs} == {"done"}
    tested = torch.cat([torch.from_numpy(part.graph) for part in result.predictions])
    assert tested.sort()[0].tolist() == list(range(188))
    assert result.metric == "accuracy"
    right = [float((part.output.argmax(1) == part.y).mean()) for part in result.predictions]
    assert result.mean == pytest.approx(sum(right) / 3)
    assert result.std == pytest.approx(torch.tensor(right).std().item())
    assert result.majority == pytest.approx(125 / 188, abs=0.01)


def test_the_best_run_is_handed_over_where_it_is_asked_for(tmp_path):
    best = gtpool.cross_validate("MUTAG", SMALL, handover="best", folder=tmp_path)
    run = best.chosen.run
    assert best.chosen.runs == (min(best.runs, key=lambda row: row.valid_loss),)
    (part,) = [one for one in best.predictions if one.fold == run.spec.split.fold]
    data = best.loaded.dataset
    data = replace(data, x=standardize_columns(data.x, best.chosen.schema.recipe))
    said = predict(best.chosen.model, data, torch.from_numpy(part.graph)).softmax(1)
    assert torch.allclose(said.double(), torch.from_numpy(part.output), atol=1e-5)


def test_the_command_line_gives_the_same(result, tmp_path):
    settings, folder = tmp_path / "small.json", tmp_path / "out"
    settings.write_text(json.dumps(SMALL))
    words = ["train", "MUTAG", "--config", settings, "--output-dir", folder]
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    stored = {row.key: row for row in Store(folder).rows()}
    assert stored.keys() == {row.key for row in result.runs}
    assert all(differing_fields(stored[row.key], row) == [] for row in result.runs)
    assert f"accuracy, %: {result.cell.text}" in done.output
    files = write_results(tmp_path / "mine", result)
    plots = {"curves", "confusion", "reliability"}
    assert files.keys() == {"page", "model", "predictions"} | plots
    assert files["predictions"].read_bytes() == (folder / "predictions.csv").read_bytes()
    weights = load_file(folder / "model" / "model.safetensors")
    mine = load_file(files["model"] / "model.safetensors")
    assert all(torch.equal(mine[name], part) for name, part in weights.items())


def test_the_settings_that_a_command_wrote_are_a_spec(result, tmp_path):
    settings = result.plan.to_json()
    assert gtpool.cross_validate("MUTAG", settings, folder=tmp_path).plan == result.plan


class Counter:
    """A watcher that lists what is started."""

    def __init__(self):
        self.specs = []

    def begin(self, specs, done): ...
    def preparing(self, what, done, total): ...
    def epoch(self, spec, epoch): ...
    def finished(self, row): ...

    def started(self, spec):
        self.specs.append(spec)


def test_a_folder_keeps_finished_runs(tmp_path):
    first, again = Counter(), Counter()
    one = gtpool.cross_validate("MUTAG", SMALL, folder=tmp_path / "runs", watch=first)
    two = gtpool.cross_validate("MUTAG", SMALL, folder=tmp_path / "runs", watch=again)
    assert (len(first.specs), len(again.specs)) == (3, 0)
    assert one.runs == two.runs
    assert len(one.chosen.runs) == 3
    assert all(map(torch.equal, one.chosen.model.parameters(), two.chosen.model.parameters()))


def test_a_run_spec_is_taken_as_it_is():
    run = RunSpec(
        data=DataSpec(source="ENZYMES", standardize=False),
        split=SplitSpec(rule="random"),
        model=ModelSpec(pool="none", width=8, levels=1),
        train=TrainSpec(epochs=1, warmup=0),
        seed=7,
    )
    begun = []
    found = gtpool.cross_validate(
        "MUTAG", run, seeds=2, on_start=lambda loaded, specs: begun.append((loaded, specs))
    )
    ((loaded, specs),) = begun
    assert loaded.dataset is found.loaded.dataset
    assert [spec.key for spec in specs] == [row.key for row in found.runs]
    assert [(spec.seed, spec.data.source) for spec in specs] == [(7, "MUTAG"), (8, "MUTAG")]
    assert specs[0].model == run.model
    assert not specs[0].data.standardize


def test_a_method_by_name_has_the_recipe_of_the_dataset():
    stop = RuntimeError("seen")

    def look(_, specs):
        assert len(specs) == 10
        assert (specs[0].model.conv, specs[0].train.epochs) == ("gin", 200)
        raise stop

    with pytest.raises(RuntimeError, match="seen"):
        gtpool.cross_validate("MUTAG", "gin", on_start=look)


@pytest.mark.parametrize(
    ("spec", "seeds", "said"),
    [
        ("gtpol", None, "'gtpol'; did you mean gtpool"),
        ({"modle": {}}, None, "unknown option 'modle'; did you mean 'model'"),
        (SMALL, 0, "seeds must be .*, got 0"),
        (RunSpec(data=DataSpec(source="MUTAG")), 0, "seeds must be"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_run(spec, seeds, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        gtpool.cross_validate("MUTAG", spec, seeds=seeds, folder=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
