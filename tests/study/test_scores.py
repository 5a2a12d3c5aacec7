"""Ensembles of runs: scores, the model that is handed over, bags."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import gtpool
from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.jsonl import write_jsonl
from gtpool.data.sources import load
from gtpool.data.split import Split, bag_split
from gtpool.model.bundle import load_bundle
from gtpool.model.classifier import Classifier
from gtpool.model.predictor import EnsemblePredictor
from gtpool.predict import predict_source
from gtpool.report.results import write_results
from gtpool.spec import DataSpec, RunSpec, SplitSpec
from gtpool.study.final_model import runs_of_model
from gtpool.study.heldout import HeldOut
from gtpool.study.plan import Plan, make_plan
from gtpool.study.result import RunResult
from gtpool.study.scores import average_members, first_seed
from gtpool.study.store import Store
from gtpool.train.fit import predict_members

SMALL = {
    "split": {"folds": 3},
    "model": {"pool": "gtpool-v", "width": 8, "levels": 2},
    "train": {"epochs": 2, "batch_size": 64},
}
BASE = RunSpec(data=DataSpec(source="MUTAG"), split=SplitSpec(rule="stratified", folds=2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def result(folder):
    gtpool.cross_validate("MUTAG", SMALL, folder=folder)  # members share what is stored
    return gtpool.cross_validate("MUTAG", SMALL, ensemble=2, seeds=2, folder=folder)


def by_seed(result, folder):
    return {
        (row.spec.seed, row.spec.split.fold): load_file(Store(folder).artifact(row.key))
        for row in result.runs
    }


def test_members_are_ordinary_runs_that_differ_in_the_seed_alone(result, folder):
    assert len(result.runs) == 12
    assert {row.spec.seed for row in result.runs} == {42, 43, 44, 45}
    single = gtpool.cross_validate("MUTAG", SMALL, seeds=4, folder=folder)
    assert {row.key for row in single.runs} == {row.key for row in result.runs}
    assert single.ensembles is None


def test_the_metric_of_a_fold_is_that_of_the_mean_probability(result, folder):
    stored, data = by_seed(result, folder), load("MUTAG")
    for part in result.predictions:
        tests = [stored[part.seed + member, part.fold] for member in range(2)]
        shares = torch.stack([one["test_logits"].double().softmax(1) for one in tests])
        np.testing.assert_allclose(part.output, shares.mean(0), rtol=1e-9)
        np.testing.assert_allclose(part.spread, shares.std(0), rtol=1e-6, atol=1e-12)
        place = (42, 44).index(part.seed)
        right = (shares.mean(0).argmax(1) == data.y[tests[0]["test_index"]]).double().mean()
        assert result.ensembles.values[place][part.fold] == pytest.approx(right.item())
    assert result.cell.evidence == ("6 ensembles of 2 members, ± standard deviation over ensembles")
    assert result.single.n == 12
    assert result.mean == pytest.approx(np.mean(result.ensembles.values))


def test_the_model_is_the_ensemble_of_the_folds_of_one_group_of_seeds(result):
    final = result.chosen
    assert isinstance(final.model, EnsemblePredictor)
    losses = {
        first: np.mean([row.valid_loss for row in result.runs if row.spec.seed - first in {0, 1}])
        for first in (42, 44)
    }
    first = min(losses, key=losses.get)
    assert [(row.spec.seed, row.spec.split.fold) for row in final.runs] == [
        (first + member, fold) for member in (0, 1) for fold in range(3)
    ]
    assert final.valid_loss == pytest.approx(losses[first])


def test_the_best_fold_hands_over_its_members(folder):
    found = gtpool.cross_validate("MUTAG", SMALL, ensemble=2, handover="best", folder=folder)
    assert len(found.chosen.runs) == 2
    assert len({row.spec.split.fold for row in found.chosen.runs}) == 1


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A file whose nodes have continuous features."""
    torch.manual_seed(0)
    graphs = load("MUTAG").to_pyg()[:45]
    for at, graph in enumerate(graphs):
        graph.x = torch.randn(graph.x.size(0), 3) * (1 + at)
        graph.edge_attr = None
    path = tmp_path_factory.mktemp("numbers") / "graphs.jsonl"
    write_jsonl(GraphDataset.from_pyg(graphs), path)
    return path


@pytest.fixture(scope="module")
def molecules(tmp_path_factory):
    path = tmp_path_factory.mktemp("molecules") / "mine.csv"
    smiles = [f"{'C' * (1 + at % 7)}{'ONSC'[at % 4]}{'c1ccccc1' * (at % 2)}" for at in range(45)]
    rows = [f"{one},{at % 3 > 0:d}" for at, one in enumerate(smiles)]
    path.write_text("\n".join(["smiles,y", *rows]))
    return path


@pytest.mark.parametrize(
    ("source", "encode", "columns"),
    [("numbers", (), 3), ("MUTAG", ("rwse:4",), 3), ("molecules", ("rwse:4", "degree"), 4)],
)
def test_members_standardise_as_their_runs_did(source, encode, columns, request, tmp_path):
    path = source if source == "MUTAG" else request.getfixturevalue(source)
    settings = {**SMALL, "data": {"encode": list(encode)}}
    found = gtpool.cross_validate(path, settings, ensemble=2, folder=tmp_path)
    model, data = found.chosen.model, found.loaded.dataset
    assert model.mean.size(1) == data.schema.recipe.continuous == columns
    assert model.mean.unique(dim=0).size(0) == 3  # one for each fold
    outputs = predict_members(model, data, torch.arange(len(data)))
    stored = by_seed(found, tmp_path)
    for member, row in enumerate(found.chosen.runs):
        test = stored[row.spec.seed, row.spec.split.fold]
        own = outputs[test["test_index"], member]
        torch.testing.assert_close(own, test["test_logits"], atol=1e-5, rtol=1e-4)
    write_results(tmp_path / "out", found)
    said = predict_source(load_bundle(tmp_path / "out/model"), str(path))
    shares = torch.tensor([row.probabilities for row in said.rows])
    torch.testing.assert_close(shares, outputs.softmax(2).mean(1), atol=1e-5, rtol=1e-4)


def test_a_member_that_failed_leaves_its_fold_without_a_figure():
    plan = Plan(BASE, 1, ensemble=2)
    y, shares = np.array([0]), np.array([[0.9, 0.1]])
    parts = [
        HeldOut(seed, fold, np.array([fold]), shares, y)
        for seed, fold in ((42, 0), (42, 1), (43, 1))
    ]
    assert [(part.seed, part.fold) for part in average_members(parts, plan)] == [(42, 1)]
    moved = [parts[1], parts[2]._replace(graph=np.array([7]))]
    with pytest.raises(ValueError, match="different graphs of fold 2"):
        average_members(moved, plan)


def test_seeds_are_grouped_in_order():
    plan = Plan(BASE, 2, ensemble=5)
    assert [first_seed(seed, plan) for seed in range(42, 52)] == [42] * 5 + [47] * 5


def row(seed, fold, loss, status="done"):
    spec = replace(BASE, seed=seed, split=replace(BASE.split, fold=fold))
    return RunResult(key=spec.key, spec_json=spec.to_json(), status=status, valid_loss=loss)


def test_the_model_is_chosen_by_validation_alone_and_prefers_whole_ensembles():
    rows = [row(42, 0, 0.5), row(42, 1, 0.3), row(43, 0, 0.1), row(43, 1, None, "failed")]
    assert runs_of_model(rows, Plan(BASE, 2)) == tuple(rows[:2])
    assert runs_of_model(rows, Plan(BASE, 2, handover="best")) == (rows[2],)
    assert runs_of_model(rows, Plan(BASE, 1, ensemble=2)) == tuple(rows[:3])
    assert runs_of_model(rows[3:], Plan(BASE, 1)) == ()


@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 20)),
    bag=st.integers(1, 2**31),
    with_classes=st.booleans(),
)
def test_a_bag_never_touches_a_test_graph(sizes, bag, with_classes):
    train, valid, _ = sizes
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(bag))
    train_part, valid_part, test = order.split(sizes)
    split = Split(train_part, valid_part, test, "mine", len(order))
    y = order % 3 if with_classes else None
    bagged = bag_split(split, bag, y)
    assert torch.equal(bagged.test, split.test)
    assert (bagged.train.numel(), bagged.valid.numel()) == (train, valid)
    both = torch.cat([bagged.train, bagged.valid]).sort().values
    assert torch.equal(both, torch.cat([split.train, split.valid]).sort().values)
    again = bag_split(split, bag, y)
    assert again.digest == bagged.digest
    if y is not None:  # each class has its share of the validation part, up to one graph
        for kind in y.unique():
            share = int((y[both] == kind).sum()) * valid / both.numel()
            assert abs(int((y[bagged.valid] == kind).sum()) - share) <= 1


def test_bags_change_training_graphs_keys_and_digests_but_no_test_graph(tmp_path):
    plain = gtpool.cross_validate("MUTAG", SMALL, ensemble=2, folder=tmp_path)
    bags = gtpool.cross_validate("MUTAG", SMALL, ensemble=2, bag=True, folder=tmp_path)
    assert not {row.key for row in plain.runs} & {row.key for row in bags.runs}
    assert [row.spec.split.bag for row in bags.runs] == [1, 1, 1, 2, 2, 2]
    assert len({row.split.digest for row in (*plain.runs, *bags.runs)}) == 9
    for one, two in zip(plain.predictions, bags.predictions, strict=True):
        assert np.array_equal(one.graph, two.graph)
    assert all(", bag " in row.split.rule for row in bags.runs)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"bag": True}, "ensemble to at least 2"),
        ({"bag": True, "ensemble": 2, "split": {"bag": 1}}, "split.bag to 0"),
        ({"bag": "yes", "ensemble": 2}, "bag must be"),
        ({"ensemble": 0}, "ensemble must be an integer of at least 1"),
        ({"ensemble": "five"}, "ensemble must be"),
        ({"handover": "all"}, "handover must be one of folds, best"),
    ],
)
def test_impossible_ensembles_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        make_plan({"data": {"source": "MUTAG"}, **settings}, {})


def test_a_plan_with_an_ensemble_comes_back_from_its_settings():
    plan = make_plan({"data": {"source": "MUTAG"}, "ensemble": 5, "bag": True}, {})
    assert (plan.ensemble, plan.bag, plan.handover) == (5, True, "best")
    assert make_plan(json.loads(json.dumps(plan.to_json())), {}) == plan


def test_an_outdated_split_is_refused(tmp_path):
    done = gtpool.cross_validate("MUTAG", SMALL, folder=tmp_path)
    run = done.runs[0]
    Store(tmp_path).put(run.updated(split_json={**run.split_json, "digest": "0" * 12}))
    with pytest.raises(ValueError, match="outdated split"):
        gtpool.cross_validate("MUTAG", SMALL, folder=tmp_path)


def test_one_network_is_handed_over_where_there_is_one_run(tmp_path):
    one = {**SMALL, "split": {"rule": "random"}}
    found = gtpool.cross_validate("MUTAG", one, folder=tmp_path)
    assert isinstance(found.chosen.model, Classifier)
    several = gtpool.cross_validate("MUTAG", one, ensemble=2, folder=tmp_path)
    assert len(several.chosen.model.members) == 2
