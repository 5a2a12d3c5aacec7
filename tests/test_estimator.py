import copy
import pickle

import networkx as nx
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import DataLoader

import gtpool
from gtpool.data.formats.table import read_table
from gtpool.data.sources import load
from gtpool.data.split import Split
from gtpool.estimator import (
    GraphClassifier,
    GraphRegressor,
    NotFittedError,
    _fit_members,
    _new_network,
    _run_to_end,
    _side_by_side,
)
from gtpool.predict import evaluate_source, predict_source
from gtpool.spec import ModelSpec, TrainSpec
from gtpool.study.inputs import shape_of

QUICK = {"width": 16, "levels": 2, "epochs": 3, "lr": 5e-3, "device": "cpu"}


@pytest.fixture(scope="module")
def mutag():
    return load("MUTAG")


@pytest.fixture(scope="module")
def fitted(mutag):
    return GraphClassifier(**QUICK).fit(mutag)


def _shapes(count=24):
    graphs = [
        nx.cycle_graph(4 + at % 5) if at % 2 else nx.star_graph(4 + at % 5) for at in range(count)
    ]
    return graphs, ["ring" if at % 2 else "star" for at in range(count)]


PATIENT = {
    "conv": "gin",
    "readout": "sum",
    "width": 16,
    "epochs": 100,
    "lr": 1e-2,
    "dropout": 0.0,
    "valid_fraction": 0.3,
    "device": "cpu",
}


def test_it_learns_rings_from_stars():
    graphs, names = _shapes(60)
    estimator = GraphClassifier("none", **PATIENT).fit(graphs[:40], names[:40])
    assert estimator.score(graphs[40:], names[40:]) >= 0.9
    assert set(estimator.predict(graphs[40:])) == {"ring", "star"}


def test_regressor_learns_the_number_of_nodes_in_its_units():
    graphs = [nx.path_graph(3 + at % 10) for at in range(60)]
    sizes = [100.0 * len(graph) for graph in graphs]
    estimator = GraphRegressor("none", **PATIENT).fit(graphs, sizes)
    assert estimator.score(graphs, sizes) > 0.8
    assert estimator.predict(graphs[:3]).shape == (3,)
    assert 300 < estimator.predict(graphs).mean() < 1200


def test_probabilities_and_attributes(fitted, mutag):
    shares = fitted.predict_proba(mutag)
    assert shares.shape == (188, 2)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert fitted.classes_.tolist() == ["-1", "1"]
    assert fitted.n_features_in_ == 15 + 7  # encodings and labels
    assert (fitted.predict(mutag) == fitted.classes_[shares.argmax(1)]).all()
    assert fitted.score(mutag) == (fitted.predict(mutag) == np.array(["-1", "1"])[mutag.y]).mean()
    assert len(fitted.history_) == 3
    assert fitted.best_epoch_ in fitted.history_
    assert not fitted.model_.training


def test_score_refuses_codes_in_place_of_names(fitted, mutag):
    assert fitted.score(mutag, np.array(["-1", "1"])[mutag.y]) == fitted.score(mutag)
    with pytest.raises(ValueError, match=r"such as 1, which are not among the classes"):
        fitted.score(mutag, mutag.y)


def test_the_same_seed_gives_the_same_model_and_leaves_the_global_state_alone(fitted, mutag):
    torch.manual_seed(11)
    state = torch.get_rng_state()
    again = GraphClassifier(**QUICK).fit(mutag)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(again.predict_proba(mutag), fitted.predict_proba(mutag))
    other = GraphClassifier(**QUICK, seed=1).fit(mutag)
    assert not np.array_equal(other.predict_proba(mutag), fitted.predict_proba(mutag))


def test_pyg_graphs_with_and_without_y(mutag):
    graphs = mutag.to_pyg()
    carried = GraphClassifier(**QUICK).fit(graphs)
    assert carried.classes_.tolist() == [0, 1]
    told = GraphClassifier(**QUICK).fit(
        [Data(graph.x, graph.edge_index, pos=torch.ones(1)) for graph in graphs],
        np.array(["no", "yes"])[mutag.y],
    )
    assert told.classes_.tolist() == ["no", "yes"]
    bare = [Data(graph.x, graph.edge_index) for graph in graphs[:10]]
    assert set(told.predict(bare)) <= {"no", "yes"}
    assert (told.predict(graphs[:10]) == told.predict(bare)).all()  # GCN sees no bonds
    with pytest.raises(ValueError, match="graph 1 has no x"):
        carried.predict([graphs[0], Data(num_nodes=3)])
    narrow = [Data(graph.x[:, :5], graph.edge_index) for graph in graphs[:3]]
    with pytest.raises(ValueError, match=r"5 attributes.*7 attributes"):
        carried.predict(narrow)


def test_smiles_and_what_cannot_be_read():
    smiles = ["CCO", "CCC", "c1ccccc1", "CC(=O)O", "C#N", "CN", "CCCC", "CO"]
    estimator = GraphClassifier(**QUICK, conv="ogb-gcn").fit(smiles, [0, 1] * 4)
    assert estimator.n_features_in_ == 15 + 9
    assert estimator.predict(["C", "[Na+]"]).dtype.kind == "i"
    with pytest.raises(ValueError, match=r"molecule 1 cannot be read: not a valid SMILES \('C1'\)"):
        estimator.predict(["C", "C1"])
    with pytest.raises(ValueError, match=r"\['CCO'\]"):
        estimator.predict("CCO")
    with pytest.raises(ValueError, match="y is required"):
        GraphClassifier(**QUICK).fit(smiles)
    with pytest.raises(ValueError, match="other features"):
        estimator.predict(load("MUTAG"))


def test_explain_takes_graphs_as_predict_does():
    smiles = ["OCC", "CCC", "c1ccccc1", "CC(=O)O", "C#N", "CN", "CCCC", "CO"]
    estimator = GraphClassifier(**QUICK, conv="ogb-gcn").fit(smiles, [0, 1] * 4)
    found = estimator.explain(iter(smiles), 0, importance=False)
    assert found == estimator.explain(smiles, 0, importance=False)
    with pytest.raises(ValueError, match="there is no graph 8: the graphs are 0 to 7"):
        estimator.explain(smiles, 8, importance=False)


def test_networkx_attributes_and_a_kind_of_node_that_is_new():
    graphs, names = _shapes()
    for graph in graphs:
        for node in graph:
            graph.nodes[node].update(kind=node % 2, size=[node, 1.0])
    estimator = GraphClassifier(**QUICK, node_label="kind", node_features=("size",))
    estimator.fit(graphs, names)
    assert estimator.n_features_in_ == 15 + 4
    strange = nx.Graph()
    strange.add_node("a", kind=9, size=[0, 1])
    with pytest.raises(ValueError, match="graph 1: node label 9 was not in the training data"):
        estimator.predict([graphs[0], strange])


def test_only_molecules_get_a_convolution_with_bonds(mutag):
    smiles = GraphClassifier(**QUICK).fit(["CCO", "CC", "CN", "CO"] * 2, [0, 1] * 4)
    assert smiles.model_.spec.conv == "ogb-gcn"
    graphs = mutag.to_pyg()  # a part of them may lack a kind of bond
    assert GraphClassifier(**QUICK).fit(graphs).model_.spec.conv == "gcn"


def test_edge_features_that_are_read_must_be_there(mutag):
    graphs = mutag.to_pyg()
    estimator = GraphClassifier(**QUICK, conv="ogb-gcn").fit(graphs)
    with pytest.raises(ValueError, match="0 edge features, but the model was made for 4"):
        estimator.predict([Data(graph.x, graph.edge_index) for graph in graphs[:2]])


def test_codes_that_the_training_data_did_not_have():
    edges = torch.tensor([[0, 1], [1, 0]])
    graphs = [
        Data(torch.tensor([[at % 3], [1]]), edges, y=torch.tensor([at % 2])) for at in range(12)
    ]
    estimator = GraphClassifier(**QUICK).fit(graphs)
    with pytest.raises(ValueError, match="node feature 0: code 3, but the model knows 0 to 2"):
        estimator.predict([Data(torch.tensor([[3], [1]]), edges)])


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ([0] * 24, "one class only"),
        ([0, 1], "one class for each of 24 graphs"),
        ([[0, 1]] * 24, "no column of y has both"),
        ([[0, 2], [1, 0]] * 12, "0, 1, or NaN"),
        ([["a", "b"]] * 24, "0, 1, or NaN"),
        ([[0.5, 1], [1, 0]] * 12, "to predict numbers, use GraphRegressor"),
        ([[0, float("nan")], [1, float("nan")]] * 12, "column 1 of y, counted from 0, is NaN"),
        ([1.0, 0.37] * 12, r"y looks like numbers, .*y\[1\] is 0.37; .*use GraphRegressor"),
        ([[0, 1], [1, 0]], "one row for each of 24 graphs"),
        ([0.0, float("nan")] * 12, r"y\[1\] is missing"),
        ([None, "a"] * 12, r"y\[0\] is missing"),
        (np.array([1, "a"] * 12, dtype=object), "all texts or all numbers"),
        ([0] * 23 + [1], None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_classes_that_cannot_be_learned(y, says):
    graphs, _ = _shapes()
    if says is None:  # a class of one graph trains and does not choose the epoch
        assert GraphClassifier(**QUICK).fit(graphs, y).classes_.tolist() == [0, 1]
        return
    with pytest.raises(ValueError, match=says):
        GraphClassifier(**QUICK).fit(graphs, y)


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (["a"] * 24, "y must hold numbers"),
        ([1.0], "one row for each of 24 graphs"),
        ([float("inf")] * 24, "finite"),
        ([1.0] * 23 + [1e39], r"y\[23, 0\] is 1e\+39; y must be finite in float32"),
        ([1] * 23 + [10**400], "y must hold numbers"),
        ([float("nan")] * 24, "y is NaN for all graphs"),
        ([[float("nan"), 1.5]] * 24, "column 0 of y, counted from 0, is NaN for all graphs"),
    ],
)
def test_numbers_that_cannot_be_learned(y, says):
    with pytest.raises(ValueError, match=says):
        GraphRegressor(**QUICK).fit(_shapes()[0], y)


def test_several_numbers_with_some_missing():
    graphs, _ = _shapes()
    y = np.array([[len(graph), np.nan if at % 3 else 1.5] for at, graph in enumerate(graphs)])
    estimator = GraphRegressor(**QUICK).fit(graphs, y)
    assert estimator.predict(graphs).shape == (24, 2)
    with pytest.raises(ValueError, match="y has 1 columns"):
        estimator.score(graphs, y[:, 0])


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"pool": "top"}, "unknown pool 'top'; choose one of"),
        ({"conv": "gnc"}, "conv must be one of gcn, gin, gat, ogb-gcn"),
        ({"width": 16.5}, "width must be int"),
        ({"epochs": 0}, "epochs"),
        ({"valid_fraction": 1.5}, "valid_fraction must be"),
        ({"device": "tpu9"}, "device must be auto"),
        ({"features": "colour"}, "unknown features 'colour'"),
    ],
    ids=str,
)
def test_a_wrong_parameter_is_named_when_fitting(params, says):
    graphs, names = _shapes()
    with pytest.raises(ValueError, match=says):
        GraphClassifier(**{**QUICK, **params}).fit(graphs, names)


def test_a_method_is_named_as_on_the_command_line(tmp_path):
    graphs, names = _shapes()
    estimator = GraphClassifier("gin", width=16, epochs=1).fit(graphs, names)
    spec = estimator.model_.spec
    assert (spec.pool, spec.conv, spec.readout) == ("none", "gin", "sum")
    assert (spec.levels, spec.convs_per_level, spec.width) == (1, 3, 16)
    estimator.save(tmp_path / "model")
    assert GraphClassifier.load(tmp_path / "model").get_params() == estimator.get_params()
    topk = GraphClassifier("gtpool-topk", **QUICK, readout="sum", pool_options={"heads": 2})
    spec = topk.fit(graphs, names).model_.spec
    assert (spec.pool, spec.readout, spec.levels) == ("gtpool", "sum", 2)
    assert spec.pool_options.items() >= {"sampler": "topk", "heads": 2}.items()


def _answers(graphs):
    y = [[at % 2, len(graph) > 6, np.nan if at % 3 else 1] for at, graph in enumerate(graphs)]
    return np.array(y, dtype=float)


def test_several_answers_with_some_missing(tmp_path):
    graphs, _ = _shapes()
    y = _answers(graphs)
    estimator = GraphClassifier("none", **PATIENT).fit(graphs, y)
    shares, found = estimator.predict_proba(graphs), estimator.predict(graphs)
    assert shares.shape == found.shape == (24, 3)
    assert estimator.schema_.task == "binary"
    assert (found == (shares >= 0.5)).all()
    assert [part.tolist() for part in estimator.classes_] == [[0, 1]] * 3
    assert estimator.score(graphs, y) == (found == y)[~np.isnan(y)].mean() > 0.9
    with pytest.raises(ValueError, match="y has 1 columns"):
        estimator.score(graphs, y[:, 0])
    assert estimator.explain(graphs, importance=False, target=2)
    estimator.save(tmp_path / "model")
    loaded = GraphClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(graphs), shares)
    assert len(loaded.classes_) == 3


def test_several_answers_that_the_graphs_carry(mutag):
    graphs = [
        Data(graph.x, graph.edge_index, y=torch.tensor([[float(at % 2), float(at % 3 == 0)]]))
        for at, graph in enumerate(mutag.to_pyg()[:20])
    ]
    carried = GraphClassifier(**QUICK).fit(graphs).predict_proba(graphs)
    told = GraphClassifier(**QUICK).fit(graphs, torch.cat([graph.y for graph in graphs]))
    np.testing.assert_array_equal(told.predict_proba(graphs), carried)


def test_validation_data_choose_the_epoch_and_train_nothing(mutag):
    graphs, y = mutag.to_pyg(), mutag.y.numpy()
    apart = graphs[100:], y[100:]
    estimator = GraphClassifier(**QUICK).fit(graphs[:100], y[:100], validation_data=apart)
    shares = estimator.predict_proba(apart[0])[range(88), apart[1]]
    assert estimator.best_epoch_.valid_loss == pytest.approx(-np.log(shares).mean(), rel=1e-4)
    fewer = GraphClassifier(**QUICK).fit(
        graphs[:100], y[:100], validation_data=(graphs[150:], None)
    )
    losses = [[epoch.train_loss for epoch in one.history_] for one in (estimator, fewer)]
    assert losses[0] == losses[1]
    bare = [Data(graph.x, graph.edge_index) for graph in graphs[150:]]  # GCN sees no bonds
    alike = GraphClassifier(**QUICK).fit(graphs[:100], y[:100], validation_data=(bare, y[150:]))
    np.testing.assert_array_equal(alike.predict_proba(graphs), fewer.predict_proba(graphs))
    numbers = [float(graph.num_nodes) for graph in graphs]
    regressor = GraphRegressor(**QUICK)
    regressor.fit(graphs[:50], numbers[:50], validation_data=(graphs[50:80], numbers[50:80]))
    error = (regressor.predict(graphs[50:80]) - numbers[50:80]) / np.std(numbers[:50])
    assert regressor.best_epoch_.valid_loss == pytest.approx((error**2).mean(), rel=1e-3)


def test_validation_data_that_do_not_fit():
    graphs, names = _shapes()
    with pytest.raises(ValueError, match="'cube'"):
        GraphClassifier(**QUICK).fit(graphs, names, validation_data=(graphs[:2], ["ring", "cube"]))
    with pytest.raises(ValueError, match="pair"):
        GraphClassifier(**QUICK).fit(graphs, names, validation_data=graphs)
    with pytest.raises(ValueError, match="pass SMILES"):
        GraphClassifier(**QUICK).fit(
            ["C", "CC"] * 4, [0, 1] * 4, validation_data=(graphs, [0] * 24)
        )
    with pytest.raises(ValueError, match="y has 2 columns"):
        GraphClassifier(**QUICK).fit(graphs, names, validation_data=(graphs, [[0, 1]] * 24))


def test_datasets_of_pyg_and_torch_are_lists_of_graphs(mutag):
    graphs = mutag.to_pyg()[:24]

    class Stored(InMemoryDataset):
        def __init__(self):
            super().__init__(None)
            self.data, self.slices = self.collate(graphs)

    class Endless(Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            return graphs[index % 24]

    expected = GraphClassifier(**QUICK).fit(graphs).predict_proba(graphs)
    for dataset in (Stored(), Endless(), Subset(Stored(), range(24)), iter(graphs)):
        found = GraphClassifier(**QUICK).fit(dataset).predict_proba(graphs)
        np.testing.assert_array_equal(found, expected)


def test_what_is_no_list_of_graphs_is_told_what_to_give(mutag, tmp_path):
    graphs, path = mutag.to_pyg()[:4], tmp_path / "mine.csv"
    path.write_text("smiles,y\nCC,a\nCO,b\n")
    for wrong, instead in (
        (DataLoader(graphs, batch_size=2), r"\.dataset"),
        (Batch.from_data_list(graphs), r"to_data_list\(\)"),
        (graphs[0], r"\[graph\]"),
        (path, "gtpool.load"),
        (str(path), "gtpool.load"),
        (read_table(path), r"\.dataset"),
        (3, "got int"),
    ):
        for call in (GraphClassifier().fit, GraphRegressor().fit):
            with pytest.raises(ValueError, match=instead):
                call(wrong)


def test_graphs_of_no_known_kind():
    with pytest.raises(ValueError, match="got int, str"):
        GraphClassifier().fit(["C", 3], [0, 1])
    with pytest.raises(ValueError, match="there are no graphs"):
        GraphRegressor().fit([], np.empty((0, 1)))


def test_before_fit_it_says_what_to_do(mutag, tmp_path):
    for call in (
        lambda: GraphClassifier().predict(mutag),
        lambda: GraphClassifier().predict_proba(mutag),
        lambda: GraphRegressor().score(mutag),
        lambda: GraphClassifier().save(tmp_path / "model"),
    ):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            call()
    assert issubclass(NotFittedError, ValueError)


def test_params_are_kept_as_given_and_shown():
    options = {"heads": 2}
    estimator = GraphClassifier("gtpool", ratio=0.8, pool_options=options)
    assert estimator.get_params()["pool_options"] is options
    assert repr(estimator) == "GraphClassifier(pool='gtpool', ratio=0.8, pool_options={'heads': 2})"
    assert estimator.set_params(width=32).get_params()["width"] == 32
    with pytest.raises(ValueError, match=r"'widht'; .*pool, recipe"):
        estimator.set_params(widht=3)
    assert GraphRegressor().get_params() == GraphClassifier().get_params()


def test_save_and_load(fitted, mutag, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = GraphClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(mutag), fitted.predict_proba(mutag))
    assert loaded.get_params() == fitted.get_params()
    assert loaded.classes_.tolist() == fitted.classes_.tolist()
    assert loaded.n_features_in_ == 15 + 7
    loaded.save(tmp_path / "again")
    rows = predict_source(gtpool.load_bundle(tmp_path / "again"), "MUTAG").rows
    assert [row.value for row in rows] == fitted.predict(mutag).tolist()
    scored = evaluate_source(gtpool.load_bundle(tmp_path / "model"), "MUTAG")
    assert scored["value"] == pytest.approx(fitted.score(mutag))
    with pytest.raises(ValueError, match="not a GraphRegressor"):
        GraphRegressor.load(tmp_path / "model")


def test_classes_of_numbers_come_back_as_numbers(tmp_path):
    graphs, _ = _shapes()
    estimator = GraphClassifier(**QUICK, pool_options={"lam": np.float64(0.5)})
    estimator.fit(graphs, np.array([3, 7] * 12)).save(tmp_path / "model")
    loaded = GraphClassifier.load(tmp_path / "model")
    assert loaded.predict(graphs).dtype.kind == "i"
    assert set(loaded.predict(graphs)) <= {3, 7}
    regressor = GraphRegressor(**QUICK).fit(graphs, range(24))
    regressor.save(tmp_path / "regressor")
    again = GraphRegressor.load(tmp_path / "regressor")
    np.testing.assert_array_equal(again.predict(graphs), regressor.predict(graphs))


def test_statistics_of_the_features_are_saved(tmp_path):
    graphs = [
        Data(
            torch.randn(4, 2) * 50 + 100 * (at % 2),
            torch.empty(2, 0).long(),
            y=torch.tensor([at % 2]),
        )
        for at in range(20)
    ]
    estimator = GraphClassifier(**QUICK, encode=()).fit(graphs)
    assert abs(estimator.schema_.recipe.mean[0] - 50) < 40
    estimator.save(tmp_path / "model")
    loaded = GraphClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(graphs), estimator.predict_proba(graphs))


def test_copies_and_pickle_predict_alike(fitted, mutag):
    expected = fitted.predict_proba(mutag)
    for twin in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):  # noqa: S301
        np.testing.assert_array_equal(twin.predict_proba(mutag), expected)


def test_progress_says_the_time_left(capsys):
    graphs, names = _shapes()
    GraphClassifier(**QUICK, verbose=True).fit(graphs, names)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[-1].startswith("epoch 3 of 3: loss")
    assert lines[0].endswith("s left")
    GraphClassifier(**QUICK).fit(graphs, names)
    assert not capsys.readouterr().err


def test_scikit_learn_takes_them_for_its_own(mutag):
    base = pytest.importorskip("sklearn.base")
    selection = pytest.importorskip("sklearn.model_selection")
    estimator = GraphClassifier(**QUICK)
    twin = base.clone(estimator)
    assert twin is not estimator
    assert twin.get_params() == estimator.get_params()
    assert base.is_classifier(estimator)
    assert base.is_regressor(GraphRegressor())
    graphs, y = mutag.to_pyg(), mutag.y.numpy()
    scores = selection.cross_val_score(estimator, graphs, y, cv=3)
    assert scores.shape == (3,)
    assert ((scores >= 0) & (scores <= 1)).all()
    auc = selection.cross_val_score(estimator, graphs, y, cv=3, scoring="roc_auc")
    assert np.isfinite(auc).all()
    search = selection.GridSearchCV(estimator, {"width": np.array([8, 16])}, cv=2).fit(graphs, y)
    assert search.best_params_["width"] in {8, 16}
    assert search.predict(graphs[:4]).shape == (4,)
    several = np.stack([y, np.arange(len(y)) % 2], 1)
    auc = selection.cross_val_score(estimator, graphs, several, cv=2, scoring="roc_auc")
    assert np.isfinite(auc).all()
    assert base.clone(GraphClassifier("gin", width=8)).get_params()["pool"] == "gin"
    numbers = [float(graph.num_nodes) for graph in graphs]
    errors = selection.cross_val_score(GraphRegressor(**QUICK), graphs, numbers, cv=2)
    assert np.isfinite(errors).all()


def test_an_ensemble_predicts_the_mean_of_its_members(mutag, tmp_path):
    estimator = GraphClassifier(**QUICK, ensemble=3).fit(mutag)
    members = [GraphClassifier(**QUICK, seed=42).fit(mutag)]
    assert torch.equal(
        torch.cat([part.flatten() for part in members[0].model_.parameters()]),
        torch.cat([part.flatten() for part in estimator.model_.members[0].parameters()]),
    )
    alone = []
    for network in estimator.model_.members:
        one = copy.copy(members[0])
        one.model_ = network
        alone.append(one.predict_proba(mutag))
    np.testing.assert_allclose(estimator.predict_proba(mutag), np.mean(alone, 0), rtol=1e-6)
    spread = np.std(alone, 0, ddof=1)
    np.testing.assert_allclose(estimator.predict_spread(mutag), spread, rtol=1e-4, atol=1e-8)
    estimator.save(tmp_path / "model")
    again = GraphClassifier.load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(mutag), estimator.predict_proba(mutag))
    assert again.get_params() == estimator.get_params()
    assert estimator.explain(mutag, 3, epochs=3).member in range(3)
    with pytest.raises(ValueError, match="no spread"):
        members[0].predict_spread(mutag)
    with pytest.raises(ValueError, match="ensemble must be an int of at least 1"):
        GraphClassifier(**QUICK, ensemble=0).fit(mutag)


def test_members_of_a_regressor_share_the_validation_part_and_standardise(tmp_path):
    graphs = [Data(100 * torch.randn(4, 2), torch.tensor([[0, 1], [1, 2]])) for _ in range(20)]
    y = [float(graph.x.sum()) for graph in graphs]
    estimator = GraphRegressor("none", conv="gin", **QUICK, ensemble=2).fit(graphs, y)
    assert estimator.model_.mean.shape == (2, 15 + 2)
    assert torch.equal(estimator.model_.mean[0], estimator.model_.mean[1])
    estimator.save(tmp_path / "model")
    again = GraphRegressor.load(tmp_path / "model")
    assert np.array_equal(again.predict(graphs), estimator.predict(graphs))
    assert again.predict_spread(graphs).shape == (20, 1)


def test_members_that_train_side_by_side_are_those_that_train_alone(mutag):
    spec = TrainSpec(epochs=2, warmup=0)
    parts = Split(torch.arange(100), torch.arange(100, 150), torch.arange(150, 188), "mine", 188)
    shape = shape_of(mutag)
    two = [[_new_network(ModelSpec(width=8), shape, seed) for seed in (1, 2)] for _ in range(2)]
    outcomes = _run_to_end(_side_by_side(two[0], mutag, parts, spec, (1, 2)), 2, False)
    alone = _fit_members(two[1], mutag, parts, spec, (1, 2), False)
    for one, other in zip(outcomes, alone, strict=True):
        assert one.best.valid_loss == pytest.approx(other.best.valid_loss, rel=1e-4)
