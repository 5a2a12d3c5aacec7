import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from gtpool.data.sources import load, read_for_inference
from gtpool.model.bundle import FORMAT, Bundle, load_bundle, save_bundle
from gtpool.model.card import model_card
from gtpool.model.classifier import Classifier
from gtpool.predict import predict_source, schema_of
from gtpool.spec import ModelSpec, ShapeSpec
from gtpool.train.fit import predict

SPEC = ModelSpec(width=8, conv="gin", norm="batch", ratio=0.7, pool_options={"gate": "tanh"})
SHAPE = ShapeSpec(outputs=2, node_width=7)
ABOUT = {
    "schema": {"name": "MUTAG", "task": "classes", "targets": ["-1", "1"]},
    "metrics": {"accuracy": 0.875, "roc_auc": float("nan")},
    "versions": {"gtpool": "0.1.0"},
}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Classifier(SPEC, SHAPE).eval()


@pytest.fixture
def folder(model, tmp_path):
    save_bundle(tmp_path / "model", model, ABOUT)
    return tmp_path / "model"


def _edit(folder: Path, change) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def test_a_model_comes_back_as_it_was(model, folder):
    bundle = load_bundle(folder)
    assert bundle.model.spec == SPEC
    assert bundle.model.shape == SHAPE
    assert bundle.folder == folder
    assert not bundle.model.training
    graphs = load("MUTAG").take(range(20), model.ratios)
    torch.testing.assert_close(
        bundle.model.classify(graphs), model.classify(graphs), rtol=0, atol=0
    )
    assert bundle.about["metrics"] == {"accuracy": 0.875, "roc_auc": None}
    assert bundle.part("schema")["targets"] == ["-1", "1"]
    assert bundle.part("schema", "task") == bundle.part("no", "such") == {}


def test_the_folder_holds_three_files_and_a_card_for_people(folder):
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["README.md", "config.json", "model.safetensors"]
    card = (folder / "README.md").read_text()
    for said in ("MUTAG", "-1, 1", "accuracy: 0.875", "conv gin", "gtpool predict"):
        assert said in card


def _front(card: str) -> dict:
    _, metadata, _ = card.split("---\n", 2)
    return yaml.safe_load(metadata)


def test_the_card_gives_the_figures_in_words_and_to_the_hub(model):
    metrics = {"metric": "accuracy", "test": 0.8947368, "valid_metric": None, "valid_loss": 0.25}
    run = {"seed": 42, "split": {"fold": 2, "folds": 10}}
    card = model_card(model, {**ABOUT, "metrics": metrics, "run": run, "license": "mit"})
    assert "- accuracy on the test part (seed 42, fold 3 of 10): 0.8947\n" in card
    assert "- accuracy on the validation part: unknown\n" in card
    assert "- loss on the validation part: 0.25\n" in card
    told = _front(card)
    assert (told["library_name"], told["license"], told["metrics"]) == (
        "gtpool",
        "mit",
        ["accuracy"],
    )
    (result,) = told["model-index"][0]["results"]
    assert result["dataset"]["name"] == "MUTAG"
    assert result["metrics"][0]["value"] == 0.8947368


def test_the_card_names_a_split_without_folds_and_what_the_model_rests_on(model):
    run = {"seed": 42, "split": {"rule": "random", "fold": 0, "folds": 10}}
    data = {"target_columns": ["a <b>"], "graphs": 1500, "train": 1200, "valid": 150, "test": 150}
    runs = {"metric": "rmse", "mean": 0.5, "std": 0.125, "spread": "seeds", "n": 2, "missing": 0}
    about = {"metrics": {"metric": "rmse", "test": 0.25}, "run": run, "data": data}
    card = model_card(model, {**ABOUT, **about, "all_runs": runs})
    assert "fold 1 of 10" not in card
    assert "- rmse on the test part (seed 42, one random split): 0.25\n" in card
    assert "- rmse, mean: 0.5 ± 0.125 (2 runs, ± standard deviation over seeds)\n" in card
    assert "- target: a &lt;b&gt;\n" in card
    assert "1,500 graphs; 1,200 train, 150 validate, 150 test" in card
    assert ", mean:" not in model_card(model, {**ABOUT, **about, "all_runs": {**runs, "n": 1}})


@pytest.mark.parametrize("about", [{}, {"metrics": {"metric": "rmse", "test": float("nan")}}])
def test_the_card_claims_no_figure_that_there_is_not(model, about):
    told = _front(model_card(model, about))
    assert {"metrics", "model-index", "license"} & set(told) == set()


def test_a_small_figure_stays_a_number(model):
    card = model_card(model, {"metrics": {"metric": "rmse", "test": 1e-05}})
    assert _front(card)["model-index"][0]["results"][0]["metrics"][0]["value"] == 1e-05


HOSTILE = 'a"b: [\n---\n<script>\u2028\x00\x85'


@pytest.mark.parametrize(
    "about",
    [
        {
            "schema": {"name": HOSTILE, "task": HOSTILE, "targets": [HOSTILE]},
            "metrics": {"metric": HOSTILE, "test": 1.0, HOSTILE: HOSTILE},
            "versions": {HOSTILE: HOSTILE},
            "license": HOSTILE,
        },
        {"schema": [1], "metrics": "good", "versions": 3, "run": {"split": 1}, "license": {}},
        {"schema": {"targets": 3, "recipe": "x"}, "run": {"split": {"fold": "1"}}},
        {
            "run": {"seed": HOSTILE, "split": {"rule": HOSTILE, "fold": 0, "folds": 3}},
            "data": {"target_columns": [HOSTILE], "graphs": HOSTILE},
            "metrics": {"metric": "rmse", "test": 1.0},
            "all_runs": {"n": 3, "mean": 1.0, "std": 1.0, "spread": HOSTILE, "metric": HOSTILE},
        },
        {"data": {"target_columns": 3}, "all_runs": {"n": "3", "mean": []}},
    ],
)
def test_what_strangers_wrote_into_a_bundle_stays_in_its_place(model, about):
    card = model_card(model, about)
    assert _front(card)["library_name"] == "gtpool"
    assert card.count("\n---\n") == 1
    assert "<script>" not in card.split("---\n", 2)[2]


@pytest.mark.parametrize("dtype", [torch.double, torch.bfloat16])
def test_the_type_of_the_weights_stays(model, tmp_path, dtype):
    save_bundle(tmp_path / "model", model.to(dtype), {})
    assert load_bundle(tmp_path / "model").model.shift.dtype == dtype


def test_loading_leaves_the_random_state_alone(folder):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    load_bundle(folder)
    assert torch.equal(torch.rand(2), expected)


def test_saving_again_replaces_and_leaves_nothing_else(model, folder):
    save_bundle(folder, model, {"metrics": {"accuracy": 1.0}})
    assert load_bundle(folder).about == {"metrics": {"accuracy": 1.0}}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_saving_to_a_symlink_keeps_the_link(model, tmp_path):
    link, target = tmp_path / "link", tmp_path / "target"
    target.mkdir()
    link.symlink_to(target)
    save_bundle(link, model, {})
    assert link.is_symlink()
    assert (target / "model.safetensors").exists()


def test_a_model_that_was_being_replaced_by_a_killed_process_is_found(folder):
    left = folder.with_name(".model-abcd1234")  # as it is between the two renames
    left.mkdir()
    (left / "lock").touch()
    folder.rename(left / "old")
    assert load_bundle(folder).part("metrics")["accuracy"] == 0.875
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_all_files_have_the_permissions_of_the_umask(folder):
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


def test_a_folder_of_the_users_is_not_deleted(model, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"thesis.txt, which is not part of a model"):
        save_bundle(tmp_path, model, ABOUT)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_what_json_cannot_hold_is_refused_before_anything_is_written(model, tmp_path):
    with pytest.raises(ValueError, match="cannot be saved"):
        save_bundle(tmp_path / "model", model, {"act": torch.relu})
    assert not list(tmp_path.iterdir())


def test_a_failure_while_writing_leaves_the_old_model(model, folder, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gtpool.model.bundle.save_file", fail)
    with pytest.raises(OSError, match="No space left"):
        save_bundle(folder, model, {})
    monkeypatch.undo()
    assert load_bundle(folder).about["metrics"]["accuracy"] == 0.875
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _tensors(change):
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = {name: part.clone() for name, part in load_file(path).items()}
        change(tensors)
        save_file(tensors, path)

    return edit


def _config(change):
    return lambda folder: _edit(folder, change)


DAMAGE = {
    "cut": (_cut, "model.safetensors is damaged"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "holds no model.safetensors",
    ),
    "no config": (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
    "not json": (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
    "binary": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"), "is not JSON"),
    "deep": (lambda folder: (folder / "config.json").write_text("[" * 100_000), "is not JSON"),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), "JSON object"),
    "nan": (
        lambda folder: (folder / "config.json").write_text('{"format": NaN}'),
        "NaN",
    ),
    "newer": (_config(lambda c: c.update(format=FORMAT + 1)), "format 6.*format 5; upgrade gtpool"),
    "format 0": (_config(lambda c: c.update(format=0)), "format must be from 1 to 5, got 0"),
    "format true": (_config(lambda c: c.update(format=True)), "from 1 to 5, got True"),
    "format text": (_config(lambda c: c.update(format="2")), "from 1 to 5, got 2"),
    "extra key": (_config(lambda c: c.update(hook="os.system")), "key 'hook' is unknown"),
    "no about": (_config(lambda c: c.pop("about")), "key 'about' is missing"),
    "about": (_config(lambda c: c.update(about=[])), "'about' must be an object"),
    "option": (
        _config(lambda c: c["model"].update(widht=8)),
        "unknown option 'widht'; did you mean 'width'",
    ),
    "pooler": (_config(lambda c: c["model"].update(pool="os.system")), "unknown pool 'os.system'"),
    "kind": (_config(lambda c: c["model"].update(width="8")), "width must be int"),
    "wide": (_config(lambda c: c["model"].update(width=2**20)), "GB of memory"),
    "wider": (_config(lambda c: c["model"].update(width=2**200)), "valid model"),
    "levels": (_config(lambda c: c["model"].update(levels=10**9)), "too few for 1000000000 levels"),
    "codes": (
        _config(lambda c: c["shape"].update(node_width=0, node_categories=["x"])),
        r"node_categories.* must be int",
    ),
    "act": (
        _config(lambda c: c["model"]["pool_options"].update(act="MultiheadAttention")),
        "valid model",
    ),
    "sampler": (
        _config(lambda c: c["model"]["pool_options"].update(sampler=["rws"])),
        "valid model",
    ),
    "lam": (_config(lambda c: c["model"]["pool_options"].update(lam="much")), "valid model"),
    "hook": (
        _config(lambda c: c["model"]["pool_options"].update(__class__="x")),
        "has no option '__class__'",
    ),
    "outputs": (
        _config(lambda c: c["shape"].update(outputs=5)),
        "must be of shape",
    ),
    "features": (_config(lambda c: c["shape"].update(node_width=9)), "must be of shape"),
    "missing tensor": (_tensors(lambda t: t.pop("head.0.bias")), "'head.0.bias' is missing"),
    "more tensors": (_tensors(lambda t: t.update(x=torch.ones(1))), "'x' is unknown"),
    "no shift": (_tensors(lambda t: t.pop("shift")), "'shift' is missing"),
    "mixed types": (
        _tensors(lambda t: t.update({"head.0.bias": t["head.0.bias"].double()})),
        "dtype",
    ),
    "nan weights": (
        _tensors(lambda t: t["head.0.bias"].fill_(float("nan"))),
        "head.0.bias must be finite",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_does_not_fit_is_refused_and_the_folder_named(folder, kind):
    damage, says = DAMAGE[kind]
    damage(folder)
    with pytest.raises((ValueError, OSError), match=says) as caught:
        load_bundle(folder)
    assert str(folder) in str(caught.value)


def test_a_path_that_is_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere is not a model"):
        load_bundle(tmp_path / "nowhere")


def test_the_folder_above_gets_a_hint(folder):
    with pytest.raises(FileNotFoundError, match=r"did you mean .*model\?"):
        load_bundle(folder.parent)


OLD = Path(__file__).parents[1] / "fixtures" / "bundle-0.1"
RECORDED = json.loads((OLD / "predictions.json").read_text())
SOURCES = [("molecules", "molecules.csv"), ("graphs", "graphs.jsonl")]


def _close_to_recorded(found: list[list[str]], recorded: list[list[str]]) -> None:
    """Compare numbers up to rounding: other versions and processors add in another order."""
    numbers = [[[float.fromhex(one) for one in row] for row in rows] for rows in (found, recorded)]
    here, there = (torch.tensor(rows, dtype=torch.double) for rows in numbers)
    torch.testing.assert_close(here, there, rtol=1e-6, atol=1e-6)


def _logits(bundle: Bundle, source: Path) -> list[list[str]]:
    data = read_for_inference(source, schema_of(bundle)).data
    assert data is not None
    logits = predict(bundle.model, data, torch.arange(len(data)))
    assert logits.dtype == torch.float32
    return [[one.hex() for one in row] for row in logits.tolist()]


@pytest.mark.parametrize(("name", "source"), SOURCES)
def test_a_model_of_version_0_1_predicts_what_it_did(name, source, tmp_path):
    assert json.loads((OLD / name / "config.json").read_text())["format"] == 1
    bundle, recorded = load_bundle(OLD / name), RECORDED[source]
    _close_to_recorded(_logits(bundle, OLD / source), recorded["logits"])
    rows = predict_source(bundle, OLD / source, device="cpu").rows
    expected = recorded["rows"]
    assert [[row.number, row.reason] for row in rows] == [[row[0], row[3]] for row in expected]
    told = [([row.value] if isinstance(row.value, str) else row.value or ()) for row in rows]
    if bundle.part("schema")["task"] == "classes":
        assert [list(value) for value in told] == [[row[1]] if row[1] else [] for row in expected]
        shares = [[one.hex() for one in row.probabilities] for row in rows if not row.reason]
        _close_to_recorded(shares, [row[2] for row in expected if not row[3]])
    else:
        values = [[one.hex() for one in value] for value in told]
        _close_to_recorded(values, [[one.hex() for one in row[1]] for row in expected])
    save_bundle(tmp_path / "again", bundle.model, bundle.about)
    assert json.loads((tmp_path / "again" / "config.json").read_text())["format"] == 2
    assert _logits(load_bundle(tmp_path / "again"), OLD / source) == _logits(bundle, OLD / source)


def test_atoms_of_a_model_of_version_0_1_stand_as_given(tmp_path):
    # In canonical order the wheel keeps other atoms, so the numbers above show the order.
    shutil.copytree(OLD / "molecules", tmp_path / "model")
    _edit(
        tmp_path / "model",
        lambda c: c["about"]["schema"]["recipe"].update(atom_order="canonical"),
    )
    found = _logits(load_bundle(tmp_path / "model"), OLD / "molecules.csv")
    assert found != RECORDED["molecules.csv"]["logits"]


def test_a_config_without_format_or_later_options_is_of_format_1(folder):
    def age(config) -> None:
        del config["format"], config["model"]["jump"], config["model"]["readout_options"]

    _edit(folder, age)
    assert load_bundle(folder).model.spec == SPEC


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_under_our_name_is_refused_and_not_executed(folder, tmp_path):
    trace = tmp_path / "executed"
    (folder / "model.safetensors").write_bytes(pickle.dumps(_Bomb(trace)))
    with pytest.raises(ValueError, match="damaged"):
        load_bundle(folder)
    torch.save({"head": _Bomb(trace)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="damaged"):
        load_bundle(folder)
    assert not trace.exists()
    pickle.loads(pickle.dumps(_Bomb(trace)))  # noqa: S301 - it would have left a trace
    assert trace.exists()
