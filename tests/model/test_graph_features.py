"""Features of whole graphs: what the head reads, and that all forms of a network agree."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from both_forms import train_both_forms

from gtpool.data.device_dataset import DeviceDataset
from gtpool.data.sources import load
from gtpool.data.split import stratified_folds
from gtpool.explain import explain
from gtpool.model.bundle import load_bundle, save_bundle
from gtpool.model.classifier import Classifier
from gtpool.model.encoder import LIMIT, GraphFeatures, feature_statistics
from gtpool.model.ensemble import ModelEnsemble, why_not_captured
from gtpool.model.export import export_classifier, inputs_of
from gtpool.spec import ModelSpec, ShapeSpec, TrainSpec
from gtpool.study.inputs import shape_of
from gtpool.train.fit import fit, predict
from gtpool.train.fit_many import fit_many

NAN = torch.nan


def described(data=None, *, noise=0.0):
    """Give MUTAG two numbers a graph, the second sometimes missing: the class, and the size."""
    data = load("MUTAG") if data is None else data
    random = torch.Generator().manual_seed(3)
    known = data.y.float() * 40 + 1000 + noise * torch.randn(len(data), generator=random)
    size = data.sizes.float().where(torch.arange(len(data)) % 5 > 0, NAN)
    recipe = replace(data.schema.recipe, feature_columns=("known", "size"))
    features = torch.stack([known, size], 1)
    return replace(data, graph_features=features, schema=replace(data.schema, recipe=recipe))


@pytest.fixture(scope="module")
def mutag():
    return described()


def network(data, **options):
    torch.manual_seed(0)
    return Classifier(ModelSpec(**{"width": 8, "levels": 2, **options}), shape_of(data)).eval()


def test_statistics_leave_missing_values_out():
    columns = torch.tensor([[1, 5, NAN, NAN], [3, 5, 4, NAN], [8, 5, NAN, NAN]])
    mean, std = feature_statistics(columns)
    assert mean.tolist() == [4, 5, 4, 0]
    assert std.tolist() == pytest.approx([np.std([1, 3, 8]), 1, 1, 1])


def test_a_constant_column_of_an_inexact_number_is_not_scaled():
    assert feature_statistics(torch.full((7, 1), 0.1))[1].tolist() == [1]


def test_features_are_standardised_clipped_and_filled():
    layer = GraphFeatures(2, 0.5).eval()
    layer.mean.copy_(torch.tensor([2.0, -3e38]))
    layer.std.copy_(torch.tensor([0.5, 1.0]))
    found = layer(torch.tensor([[3.0, NAN], [NAN, 3e38], [-1e30, -3e38]]))
    assert found.tolist() == [[2, 0], [0, LIMIT], [-LIMIT, 0]]


def test_the_network_learns_from_the_features(mutag):
    split = stratified_folds(mutag.y, 10, 0)[0]
    spec = TrainSpec(epochs=20, warmup=0, lr=0.03, batch_size=32)
    model = network(mutag, dropout=0.0, pool="none", levels=1)
    for _ in fit(model, mutag, split, spec, seed=0):
        pass
    mean, std = feature_statistics(mutag.graph_features[split.train])
    torch.testing.assert_close(model.graph_features.mean, mean.float())
    torch.testing.assert_close(model.graph_features.std, std.float())
    right = predict(model, mutag, split.test).argmax(1) == mutag.y[split.test]
    assert right.all()  # the first feature is the class


def test_training_agrees_eagerly_and_in_the_captured_form(mutag):
    assert why_not_captured(network(mutag)) is None
    eager, captured = train_both_forms(mutag, combine="cat")
    assert captured == pytest.approx(eager, rel=1e-4)


def test_runs_side_by_side_have_the_statistics_of_their_own_training_parts(mutag):
    splits = stratified_folds(mutag.y, 10, 0)[:2]
    spec = TrainSpec(epochs=1, warmup=0)
    models = [network(mutag) for _ in splits]
    for _ in fit_many(models, mutag, splits, [spec] * 2, seeds=[0, 1]):
        pass
    for model, split in zip(models, splits, strict=True):
        alone = network(mutag)
        for _ in fit(alone, mutag, split, spec, seed=0):
            pass
        torch.testing.assert_close(model.graph_features.mean, alone.graph_features.mean)
        torch.testing.assert_close(model.graph_features.std, alone.graph_features.std)
    assert not torch.equal(models[0].graph_features.mean, models[1].graph_features.mean)


def test_a_padded_batch_gives_the_logits_of_a_packed_one(mutag):
    model, dataset = network(mutag), DeviceDataset.of(mutag)
    index = torch.tensor([[4, 100, 7, -1]])
    batch = dataset.gather(index, dataset.capacity(index, model.ratios), model.ratios)
    found = ModelEnsemble([model], int(mutag.sizes.max())).eval()(batch)
    wanted = model.classify(mutag.take([4, 100, 7], model.ratios))
    torch.testing.assert_close(found[:3], wanted, rtol=1e-4, atol=1e-5)


def test_an_exported_program_takes_the_features(mutag):
    model, dataset = network(mutag, levels=1), DeviceDataset.of(mutag)
    index = torch.tensor([[4, 100, 7, -1]])
    capacity = dataset.capacity(index, model.ratios)
    program = export_classifier(model, capacity, int(mutag.sizes.max())).module()
    found = program(*inputs_of(dataset.gather(index, capacity, model.ratios)))
    wanted = model.classify(mutag.take([4, 100, 7], model.ratios))
    torch.testing.assert_close(found[:3], wanted, rtol=1e-4, atol=1e-5)


def test_a_bundle_keeps_the_statistics(mutag, tmp_path):
    model = network(mutag)
    model.graph_features.mean.fill_(7)
    save_bundle(tmp_path / "model", model, {"schema": mutag.schema.to_json()})
    again = load_bundle(tmp_path / "model").model
    batch = mutag.take(range(20), model.ratios)
    torch.testing.assert_close(again.classify(batch), model.classify(batch), rtol=0, atol=0)


def test_the_explanation_holds_the_features_fixed(mutag):
    model = network(mutag)
    found = explain(model, mutag, 3, epochs=2)
    wanted = model.classify(mutag.take([3], model.ratios))
    assert found.logits == pytest.approx(wanted[0].tolist(), rel=1e-4)
    assert len(found.importance) == int(mutag.sizes[3])
    flat = network(mutag, pool="none", levels=1)
    assert explain(flat, mutag, 3, epochs=2).fidelity is not None


def test_the_public_call_checks_the_features(mutag):
    model, graph = network(mutag), mutag.take([0, 1])
    given = graph.x, graph.edge_index, graph.edge_attr, graph.batch
    assert model(*given, graph_features=graph.graph_features).shape == (2, 2)
    with pytest.raises(ValueError, match=r"must be of shape \[2, 2\], got none"):
        model(*given)
    with pytest.raises(ValueError, match=r"must be of shape \[2, 2\], got \[1, 2\]"):
        model(*given, graph_features=graph.graph_features[:1])
    plain = Classifier(ModelSpec(width=8), ShapeSpec(outputs=2, node_width=7))
    with pytest.raises(ValueError, match="reads no graph_features"):
        plain(*given, graph_features=graph.graph_features)
    with pytest.raises(ValueError, match="the batch has none"):
        model.classify(load("MUTAG").take([0], model.ratios))


@pytest.mark.parametrize(
    ("features", "told"),
    [
        (None, "shape None, and its recipe names 2 columns for 188 graphs"),
        (torch.ones(188, 3), r"shape \[188, 3\], and its recipe names 2 columns"),
        (torch.tensor([[1.0, torch.inf]] * 188), "graph 0 of MUTAG: 'size' is infinite"),
    ],
)
def test_a_dataset_checks_its_features(mutag, features, told):
    with pytest.raises(ValueError, match=told):
        replace(mutag, graph_features=features)
