"""Ensembles: members that predict as one, and their bundle."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from gtpool.data.dataset import GraphDataset
from gtpool.data.sources import load
from gtpool.model.bundle import Bundle, load_bundle, save_bundle
from gtpool.model.card import model_card
from gtpool.model.classifier import Classifier
from gtpool.model.export import export_classifier
from gtpool.model.predictor import EnsemblePredictor
from gtpool.ops.average import average_outputs, member_spread, probabilities
from gtpool.padded_batch import Capacity
from gtpool.predict import predict_source, predictions_text, schema_of
from gtpool.spec import ModelSpec
from gtpool.study.final_model import make_ensemble
from gtpool.study.inputs import shape_of
from gtpool.train.fit import predict, predict_members

TASKS = ("classes", "binary", "regression")
PARTS = (range(40), range(30, 120), range(100, 188))


@pytest.fixture(scope="module")
def data() -> GraphDataset:
    """MUTAG with two continuous columns in front, of another scale in each part."""
    mutag = load("MUTAG")
    torch.manual_seed(0)
    own = torch.randn(mutag.x.size(0), 2) * torch.linspace(1, 90, mutag.x.size(0)).unsqueeze(1)
    schema = replace(mutag.schema, recipe=replace(mutag.schema.recipe, attributes=2))
    return replace(mutag, x=torch.cat([own, mutag.x.float()], 1), schema=schema)


def networks(data: GraphDataset, count: int = 3) -> list[Classifier]:
    torch.manual_seed(1)
    spec = ModelSpec(width=8, conv="gin", norm="batch")
    return [Classifier(spec, shape_of(data)).eval() for _ in range(count)]


@pytest.fixture
def members(data):
    """Three networks, each with the dataset as its own training part standardises it."""
    return networks(data), [data.standardized(part) for part in PARTS]


@pytest.fixture
def ensemble(data, members):
    models, scaled = members
    return make_ensemble(models, [one.schema.recipe for one in scaled], data.schema)


def about(data) -> dict:
    return {"schema": data.schema.to_json(), "metrics": {"metric": "accuracy"}}


def test_an_ensemble_of_one_is_the_network_bit_for_bit(data):
    (model,) = networks(data, 1)
    scaled = data.standardized(PARTS[0])
    one = make_ensemble([model], [scaled.schema.recipe], data.schema)
    every = torch.arange(len(data))
    assert torch.equal(predict(one, data, every), predict(model, scaled, every))


def test_each_member_standardises_by_its_own_training_part(data, members, ensemble):
    every = torch.arange(len(data))
    found = predict_members(ensemble, data, every)
    alone = [predict(model, scaled, every) for model, scaled in zip(*members, strict=True)]
    assert torch.equal(found, torch.stack(alone, 1))
    assert len({scaled.schema.recipe.mean for scaled in members[1]}) == 3
    mean = torch.stack([logits.double().softmax(1) for logits in alone]).mean(0)
    torch.testing.assert_close(predict(ensemble, data, every).softmax(1), mean)


@pytest.mark.parametrize("task", TASKS)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([1e-3, 1.0, 40.0, 1e4]))
def test_the_prediction_is_the_mean_of_the_members(task, seed, scale):
    random = torch.Generator().manual_seed(seed)
    outputs = scale * torch.randn(4, 5, 3, generator=random)
    found = average_outputs(outputs, task)
    assert found.isfinite().all()
    by_hand = {
        "classes": outputs.double().softmax(2),
        "binary": outputs.double().sigmoid(),
        "regression": outputs.double(),
    }[task]
    torch.testing.assert_close(probabilities(found, task), by_hand.mean(1))
    torch.testing.assert_close(member_spread(outputs, task), by_hand.std(1))
    assert torch.equal(average_outputs(outputs[:, :1], task), outputs[:, 0])


def test_a_bundle_of_members_comes_back_bit_for_bit(data, ensemble, tmp_path):
    save_bundle(tmp_path / "model", ensemble, about(data))
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert (config["format"], config["members"]) == (3, 3)
    bundle = load_bundle(tmp_path / "model")
    every = torch.arange(len(data))
    assert torch.equal(
        predict_members(bundle.model, data, every), predict_members(ensemble, data, every)
    )
    assert schema_of(bundle) == data.schema
    card = (tmp_path / "model/README.md").read_text()
    assert "- ensemble: 3 networks" in card


def test_a_single_network_is_still_written_in_format_2(data, tmp_path):
    save_bundle(tmp_path / "model", networks(data, 1)[0], about(data))
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert config["format"] == 2
    assert "members" not in config


def _tensors(change):
    def damage(folder):
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return damage


def _config(change):
    def damage(folder):
        path = folder / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return damage


DAMAGE = {
    "members": (_config(lambda c: c.update(members=2)), "of 2 members"),
    "no members": (_config(lambda c: c.pop("members")), "'members' is missing"),
    "text": (_config(lambda c: c.update(members="3")), "members must be int"),
    "zero": (_config(lambda c: c.update(members=0)), "of 0 members"),
    "huge": (_config(lambda c: c.update(members=10**12)), "members"),
    "about": (_config(lambda c: c["about"].update(members=[{}])), "1 members"),
    "members of about": (_config(lambda c: c["about"].update(members=3)), "about.members"),
    "task": (_config(lambda c: c["about"]["schema"].update(task="x")), "schema.task"),
    "as single": (_config(lambda c: c.update(format=2)), "'members' is unknown"),
    "no std": (_tensors(lambda t: t.pop("scaling.std")), "scaling.mean and scaling.std"),
    "std": (_tensors(lambda t: t["scaling.std"].zero_()), "deviations above 0"),
    "nan": (_tensors(lambda t: t["scaling.mean"].fill_(float("nan"))), "finite"),
    "float": (
        _tensors(lambda t: t.update({"scaling.mean": t["scaling.mean"].float()})),
        "float64",
    ),
    "weights": (_tensors(lambda t: t.update(shift=t["shift"][:2])), "of 3 members"),
    "infinite": (_tensors(lambda t: t["shift"][2].fill_(float("inf"))), "shift"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_members_that_do_not_fit_together_are_refused(data, ensemble, tmp_path, kind):
    save_bundle(tmp_path / "model", ensemble, about(data))
    damage, says = DAMAGE[kind]
    damage(tmp_path / "model")
    with pytest.raises(ValueError, match=says):
        load_bundle(tmp_path / "model")


def test_statistics_of_other_columns_than_the_recipe_has_are_refused(data, ensemble):
    other = replace(data.schema, recipe=replace(data.schema.recipe, attributes=9, labels=()))
    with pytest.raises(ValueError, match="standardise 2 of 9"):
        schema_of(Bundle(ensemble, {"schema": other.to_json()}))
    scaled = data.standardized(PARTS[0]).schema
    with pytest.raises(ValueError, match="valid model"):
        schema_of(Bundle(ensemble, {"schema": scaled.to_json()}))


def test_members_of_different_networks_are_refused(data):
    wide = Classifier(ModelSpec(width=16), shape_of(data))
    with pytest.raises(ValueError, match="one spec and shape"):
        EnsemblePredictor([*networks(data, 1), wide], "classes")


def test_export_of_an_ensemble_says_what_to_do(ensemble):
    with pytest.raises(ValueError, match="export each of its members") as caught:
        export_classifier(ensemble, Capacity.rounded(2, [10, 5], 20), 8)
    assert "\n" not in str(caught.value)


def test_predictions_have_a_spread_and_it_is_that_of_the_predicted_class():
    mutag = load("MUTAG")
    torch.manual_seed(0)
    several = [Classifier(ModelSpec(width=8), shape_of(mutag)) for _ in range(3)]
    model = EnsemblePredictor(several, "classes")
    found = predict_source(Bundle(model, {"schema": mutag.schema.to_json()}), "MUTAG")
    shares = predict_members(model, mutag, torch.arange(188)).double().softmax(2)
    for row, mean, spread in zip(found.rows, shares.mean(1), shares.std(1), strict=True):
        assert row.probabilities == pytest.approx(mean.tolist())
        assert row.spread == pytest.approx(spread.tolist())
        assert row.value == mutag.schema.targets[int(mean.argmax())]
    head, first, *_ = predictions_text(found).splitlines()
    assert head == "graph,id,prediction,p_-1,p_1,spread,reason"
    place = mutag.schema.targets.index(found.rows[0].value)
    assert float(first.split(",")[5]) == pytest.approx(found.rows[0].spread[place], rel=1e-5)


def test_the_card_of_an_ensemble_of_one_split_names_no_seed(data, ensemble):
    run = {"seed": 42, "split": {"rule": "random", "fold": 0, "folds": 10}}
    metrics = {"metric": "accuracy", "test": 0.5}
    told = {**about(data), "metrics": metrics, "run": run, "members": [{"seed": 42}] * 3}
    assert "(ensemble, one random split): 0.5" in model_card(ensemble, told)
