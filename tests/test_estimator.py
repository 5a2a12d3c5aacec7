import copy
import pickle
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gtpool
from gtpool.data.sources import load
from gtpool.estimator import GraphClassifier, GraphRegressor, NotFittedError
from gtpool.predict import evaluate_source, predict_source

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
    assert fitted.n_features_in_ == 7
    assert (fitted.predict(mutag) == fitted.classes_[shares.argmax(1)]).all()
    assert fitted.score(mutag) == (fitted.predict(mutag) == np.array(["-1", "1"])[mutag.y]).mean()
    assert len(fitted.history_) == 3
    assert fitted.best_epoch_ in fitted.history_
    assert not fitted.model_.training


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
    assert estimator.n_features_in_ == 9
    assert estimator.predict(["C", "[Na+]"]).dtype.kind == "i"
    with pytest.raises(ValueError, match=r"molecule 1 cannot be read: not a valid SMILES \('C1'\)"):
        estimator.predict(["C", "C1"])
    with pytest.raises(ValueError, match=r"give \['CCO'\]"):
        estimator.predict("CCO")
    with pytest.raises(ValueError, match="y is needed"):
        GraphClassifier(**QUICK).fit(smiles)
    with pytest.raises(ValueError, match="other features"):
        estimator.predict(load("MUTAG"))


def test_networkx_attributes_and_a_kind_of_node_that_is_new():
    graphs, names = _shapes()
    for graph in graphs:
        for node in graph:
            graph.nodes[node].update(kind=node % 2, size=[node, 1.0])
    estimator = GraphClassifier(**QUICK, node_label="kind", node_features=("size",))
    estimator.fit(graphs, names)
    assert estimator.n_features_in_ == 4
    strange = nx.Graph()
    strange.add_node("a", kind=9, size=[0, 1])
    with pytest.raises(ValueError, match="graph 1: node label 9 was not in the training data"):
        estimator.predict([graphs[0], strange])


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
        ([[0, 1]] * 24, "one class for each of 24 graphs"),
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
        ([float("nan")] * 24, "not all missing"),
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
    with pytest.raises(ValueError, match="1 numbers a graph, fitted were 2"):
        estimator.score(graphs, y[:, 0])


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"pool": "top"}, "unknown pool 'top'; choose one of"),
        ({"conv": "gnc"}, "conv must be one of gcn, gin, gat, ogb-gcn"),
        ({"width": 16.5}, "width must be int"),
        ({"epochs": 0}, "epochs"),
        ({"valid_fraction": 1.5}, "valid_fraction must lie between 0 and 1"),
        ({"device": "tpu9"}, "device must be auto"),
        ({"features": "colour"}, "unknown features 'colour'"),
    ],
    ids=str,
)
def test_a_wrong_parameter_is_named_when_fitting(params, says):
    graphs, names = _shapes()
    with pytest.raises(ValueError, match=says):
        GraphClassifier(**{**QUICK, **params}).fit(graphs, names)


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
        with pytest.raises(NotFittedError, match=r"not fitted yet: call fit\(graphs, y\) first"):
            call()
    assert issubclass(NotFittedError, ValueError)


def test_params_are_kept_as_given_and_shown():
    options = {"heads": 2}
    estimator = GraphClassifier("gtpool", ratio=0.8, pool_options=options)
    assert estimator.get_params()["pool_options"] is options
    assert repr(estimator) == "GraphClassifier(pool='gtpool', ratio=0.8, pool_options={'heads': 2})"
    assert estimator.set_params(width=32).get_params()["width"] == 32
    with pytest.raises(ValueError, match="unknown parameter 'widht'; there are pool, conv"):
        estimator.set_params(widht=3)
    assert GraphRegressor().get_params() == GraphClassifier().get_params()


def test_save_and_load(fitted, mutag, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = GraphClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(mutag), fitted.predict_proba(mutag))
    assert loaded.get_params() == fitted.get_params()
    assert loaded.classes_.tolist() == fitted.classes_.tolist()
    assert loaded.n_features_in_ == 7
    loaded.save(tmp_path / "again")
    rows = predict_source(gtpool.load_bundle(tmp_path / "again"), "MUTAG").rows
    assert [row.value for row in rows] == fitted.predict(mutag).tolist()
    scored = evaluate_source(gtpool.load_bundle(tmp_path / "model"), "MUTAG")
    assert scored["value"] == pytest.approx(fitted.score(mutag))
    with pytest.raises(ValueError, match="for classes, 2 targets: no GraphRegressor"):
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
    estimator = GraphClassifier(**QUICK).fit(graphs)
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


def test_scikit_learn_is_not_imported():
    program = (
        "import sys, gtpool; gtpool.GraphClassifier(); gtpool.GraphRegressor();"
        "print('sklearn' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


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
    numbers = [float(graph.num_nodes) for graph in graphs]
    errors = selection.cross_val_score(GraphRegressor(**QUICK), graphs, numbers, cv=2)
    assert np.isfinite(errors).all()
