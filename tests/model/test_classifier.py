import copy

import pytest
import torch
from torch_geometric.explain import Explainer, GNNExplainer

from gtpool.data.coarsening import with_chain
from gtpool.data.dataset import GraphDataset
from gtpool.data.molecule import ATOM_SIZES, BOND_SIZES, read_molecules
from gtpool.data.sources import load
from gtpool.model import METHODS
from gtpool.model.classifier import Classifier
from gtpool.model.conv import CONVS
from gtpool.model.readout import READOUTS
from gtpool.ops.packed import PackedGraph
from gtpool.pool import POOLS
from gtpool.spec import ModelSpec, ShapeSpec

SHAPE = ShapeSpec(outputs=3, node_width=7, mean_nodes=18, common_nodes=17)
MOLECULES = ShapeSpec(
    outputs=2,
    node_categories=ATOM_SIZES,
    edge_categories=BOND_SIZES,
    mean_nodes=8,
    common_nodes=3,
)
SMILES = ["CCO", "c1ccccc1C(=O)O", "[Na+]", "CC(C)Cc1ccc(cc1)C(C)C(=O)O", "C#N", "[Na+].[Cl-]"]


@pytest.fixture(scope="module")
def mutag():
    return load("MUTAG")


@pytest.fixture(scope="module")
def molecules():
    read = read_molecules(SMILES)
    return read.to_dataset(torch.arange(6) % 2, "few", "classes", ("a", "b"))


def _model(shape=SHAPE, **options):
    torch.manual_seed(0)
    return Classifier(ModelSpec(width=16, **options), shape).double().eval()


def _take(data, indices, model):
    data = with_chain(data, *model.coarsening) if model.coarsening else data
    return data.take(indices, model.ratios)


def _double(data: GraphDataset) -> GraphDataset:
    return (
        data
        if not data.x.is_floating_point()
        else GraphDataset(
            data.x.double(),
            data.edge_index,
            data.edge_attr,
            data.sizes,
            data.edge_counts,
            data.y,
            data.schema,
        )
    )


VARIANTS = [
    *({"conv": conv} for conv in CONVS if conv not in {"ogb-gcn", "gine"}),
    *({"pool": pool} for pool in ("none", *POOLS)),
    *({"readout": readout, "pool": "none"} for readout in READOUTS),
    {"readout": "set2set", "jump": True, "convs_per_level": 2},
    {"readout": "gmt", "pool": "sagpool", "read_input": True},
    {"pool": "diffpool", "read_input": True, "combine": "cat", "jump": True},
    {"pool": "asap", "pool_options": {"sampler": "rwsv"}, "norm": "batch"},
    {"combine": "cat", "read_input": True, "convs_per_level": 2},
    {"norm": "batch", "residual": True},
    {"norm": "layer", "ratio": 3, "levels": 2},
    {"pool_options": {"gate": "tanh", "heads": 2, "sampler": "topk"}},
    {"ffn": True, "block_dropout": 0.2, "norm": "layer"},
    {"virtual_node": True, "residual": True},
    {"virtual_node": True, "pool": "haarpool", "ffn": True},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_batch_gives_what_its_graphs_give_one_by_one(mutag, options):
    model, data, indices = _model(**options), _double(mutag), [3, 100, 7, 42]
    together = model.classify(_take(data, indices, model))
    alone = [model.classify(_take(data, [index], model)) for index in indices]
    assert together.shape == (4, 3)
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-9, atol=1e-9)
    batch = data.take(indices)
    unplanned = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch)
    torch.testing.assert_close(unplanned, together, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        *({"conv": conv, "read_input": True} for conv in CONVS),
        *({"conv": "ogb-gcn", "pool": pool} for pool in POOLS),
        *({"conv": "ogb-gcn", "pool": "none", "readout": readout} for readout in READOUTS),
        {"conv": "gine", "pool": "gtpool-v"},
        {"conv": "gine", "pool": "none", "readout": "sum"},
        {"conv": "gine", "norm": "batch", "ffn": True, "virtual_node": True},
        {"conv": "dmpnn", "pool": "none", "readout": "sum", "virtual_node": True},
        {"conv": "dmpnn", "connect": "khop:2"},
    ],
    ids=str,
)
def test_molecules_with_single_atoms_and_without_bonds(molecules, options):
    model = _model(MOLECULES, **options)
    together = model.classify(_take(molecules, range(6), model))
    alone = [model.classify(_take(molecules, [index], model)) for index in range(6)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-9, atol=1e-9)
    assert together.isfinite().all()
    batch = molecules.take(range(6))
    encoded = model(model.encoder(batch.x), batch.edge_index, batch.edge_attr, batch.batch)
    torch.testing.assert_close(encoded, together, rtol=0, atol=0)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_every_parameter_that_asks_for_a_gradient_gets_one(mutag, options):
    model = _model(**options).train()
    logits, auxiliary = model.learn(_take(_double(mutag), range(0, 188, 8), model))
    loss = logits.square().sum()
    (loss if auxiliary is None else loss + auxiliary.sum()).backward()
    starved = [
        name
        for name, part in model.named_parameters()
        if part.requires_grad and (part.grad is None or not part.grad.abs().sum() > 0)
    ]
    assert not starved


def test_concatenation_holds_the_read_out_of_each_level(mutag):
    graphs = _double(mutag).take([0, 1], (0.5,) * 3)
    for options, reads in (
        ({}, 1),
        ({"combine": "cat"}, 3),
        ({"combine": "cat", "read_input": True}, 4),
    ):
        model = _model(**options)
        assert model.head[0].in_features == 32 * reads
        assert model.classify(graphs).shape == (2, 3)


@pytest.mark.parametrize("pool", POOLS)
def test_poolers_with_a_loss_of_their_own_give_it_for_each_graph(mutag, pool):
    model, indices = _model(pool=pool), [3, 100, 7]
    together = model.learn(_take(_double(mutag), indices, model))[1]
    assert (together is not None) == METHODS.get(pool, METHODS["gcn"]).auxiliary
    if together is not None:
        alone = [model.learn(_take(_double(mutag), [index], model))[1] for index in indices]
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-9, atol=1e-9)


def test_clusters_are_a_share_of_the_mean_graph_at_each_level():
    pools = _model(pool="mincutpool").pools
    assert [pool.clusters for pool in pools] == [9, 5, 3]
    assert [pool.weighted for pool in pools] == [False, True, True]


def test_a_batch_without_the_chain_is_refused(mutag):
    model = _model(pool="haarpool")
    with pytest.raises(ValueError, match=r"a chain of 3 coarsening steps.*has 0"):
        model.classify(_double(mutag).take([0], model.ratios))


def test_side_by_side_convolutions_are_the_three_apart(mutag):
    model = _model(pool="none", readout="sum", levels=1, convs_per_level=3, jump=True)
    graphs = _double(mutag).take([5])
    x, seen = graphs.x, []
    for block in model.levels[0]:
        x = block(x, PackedGraph.of(graphs.edge_index, graphs.batch))
        seen.append(x.sum(0))
    torch.testing.assert_close(model.classify(graphs)[0], model.head(torch.cat(seen)))


def test_the_blind_network_does_not_see_edges(mutag):
    torch.manual_seed(0)
    model = Classifier(ModelSpec(**METHODS["mlp"].model), SHAPE).double().eval()
    graphs = _double(mutag).take([0, 1])
    cut = graphs._replace(edge_index=graphs.edge_index[:, :0])
    assert torch.equal(model.classify(graphs), model.classify(cut))


def test_regression_is_brought_into_the_units_of_the_targets(mutag):
    model = _model()
    graphs = _double(mutag).take([0, 1], model.ratios)
    before = model.classify(graphs)
    model.shift.fill_(5.0)
    model.scale.fill_(2.0)
    torch.testing.assert_close(model.classify(graphs), before * 2 + 5)


@pytest.mark.parametrize(
    ("name", "parameters", "learned"),
    [
        ("gcn", 58_946, 58_946),
        ("gin", 109_250, 109_250),
        ("gtpool", 422_082, 421_314),
        ("gtpool-v", 422_082, 421_314),
        ("gtpool-topk", 422_082, 421_314),
        ("mlp", 25_922, 25_922),
        ("sagpool_h", 75_717, 75_717),
        ("sagpool_g", 141_251, 141_251),
    ],
)
def test_parameters_of_the_named_methods_on_mutag(name, parameters, learned):
    model = Classifier(ModelSpec(**METHODS[name].model), ShapeSpec(outputs=2, node_width=7))
    assert sum(part.numel() for part in model.parameters()) == parameters
    assert sum(part.numel() for part in model.parameters() if part.requires_grad) == learned


def test_named_methods_differ_in_the_sampler_alone():
    samplers = {
        name: Classifier(ModelSpec(width=8, **METHODS[name].model), SHAPE).pools[0].sampler
        for name in ("gtpool", "gtpool-v", "gtpool-topk")
    }
    assert samplers == {"gtpool": "rws", "gtpool-v": "rwsv", "gtpool-topk": "topk"}
    assert not Classifier(ModelSpec(width=8, **METHODS["gcn"].model), SHAPE).pools


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pool": "topk"}, "unknown pool 'topk'; choose one of 'none', 'gtpool', 'gtpool-v'"),
        ({"conv": "gnc"}, "unknown conv 'gnc'; choose one of 'gcn', 'gin', 'gat', 'ogb-gcn'"),
        ({"readout": "med"}, "choose one of 'mean', 'max', 'sum', 'mean-max'"),
        ({"norm": "group"}, "choose one of 'none', 'batch', 'layer'"),
        ({"combine": "add"}, "choose one of 'sum', 'cat'"),
        ({"pool_options": {"haeds": 2}}, "gtpool-v has no option 'haeds'; it has heads, lam"),
        ({"pool": "none", "pool_options": {"heads": 2}}, "pool_options"),
        ({"pool": "none", "read_input": True}, "read_input"),
        ({"ratio": 0.0}, "ratio"),
        ({"dropout": 1.5}, "dropout must lie between 0 and 1"),
        ({"block_dropout": -0.1}, "block_dropout must lie between 0 and 1"),
        ({"levels": 0}, "levels must be an int of at least 1"),
        ({"width": 18, "conv": "gat"}, "width must be a multiple of 4"),
        ({"width": 7}, "width must be a multiple of 2"),
        ({"width": 1_000_000_000}, "GB"),
        ({"levels": 1_000_000_000}, "GB"),
        ({"conv": "ogb-gcn"}, "needs molecules"),
        ({"pool": "asap", "conv": "gin"}, "after asap edges have weights.*choose one of gcn"),
        ({"pool": "diffpool", "pool_options": {"weighted": True}}, "diffpool has no option"),
        ({"pool": "haarpool", "pool_options": {"heads": 2}}, "has no option 'heads'; it has none"),
        ({"pool": "sagpool", "pool_options": {"sampler": "top"}}, "choose one of 'topk', 'rws'"),
    ],
    ids=str,
)
def test_an_unknown_option_is_an_error_that_lists_the_choices(options, says):
    with pytest.raises(ValueError, match=says):
        Classifier(ModelSpec(**{"width": 16, **options}), SHAPE)


@pytest.mark.parametrize(
    "shape",
    [
        {"outputs": 0, "node_width": 3},
        {"outputs": 2},
        {"outputs": 2, "node_width": -1},
        {"outputs": 2, "node_width": -3, "node_categories": (2,)},
        {"outputs": 2, "node_categories": (2, "b")},
    ],
    ids=str,
)
def test_a_shape_that_cannot_be(shape):
    with pytest.raises(ValueError, match=r"outputs|node"):
        Classifier(ModelSpec(width=16), ShapeSpec(**shape))


def test_the_public_door_checks_what_it_is_given(molecules):
    model = _model(MOLECULES, conv="ogb-gcn")
    batch = molecules.take([0])
    with pytest.raises(ValueError, match="edge_attr must be int64 codes"):
        model(batch.x, batch.edge_index)
    with pytest.raises(ValueError, match=r"x\[0, 0\] is 505"):
        model(batch.x + 500, batch.edge_index, batch.edge_attr)
    weighted = _model(ShapeSpec(outputs=2, node_width=7, edge_width=1, edge_weighted=True))
    with pytest.raises(ValueError, match="edge weights"):
        weighted(torch.randn(3, 7).double(), torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match=r"x must be a float tensor of shape \[nodes, 7\]"):
        weighted(torch.zeros(3, 7, dtype=torch.long), torch.tensor([[0], [1]]))
    unsorted = torch.tensor([0, 1, 0])
    with pytest.raises(ValueError, match="batch must be sorted"):
        _model()(torch.ones(3, 7).double(), torch.empty(2, 0).long(), None, unsorted)


@pytest.mark.parametrize("name", ["pool", "readout"])
def test_what_is_sized_by_the_data_asks_for_the_size(name):
    sized = {"pool": ["diffpool", "mincutpool", "structpool"], "readout": ["gmt", "sortpool"]}
    for choice in sized[name]:
        with pytest.raises(ValueError, match=f"{choice}.* is sized by the data"):
            Classifier(ModelSpec(**{name: choice}), ShapeSpec(outputs=2, node_width=7))


def test_state_dict_deepcopy_and_dtype(mutag):
    model = _model(conv="gin", norm="batch")
    other = Classifier(model.spec, model.shape).double().eval()
    graphs = _double(mutag).take([0, 5], model.ratios)
    assert not torch.equal(model.classify(graphs), other.classify(graphs))
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.classify(graphs), other.classify(graphs), rtol=0, atol=0)
    twin = copy.deepcopy(model)
    torch.testing.assert_close(model.classify(graphs), twin.classify(graphs), rtol=0, atol=0)
    assert twin.classify(graphs).dtype == torch.double


def _explain(model, x, edge_index, edge_attr=None):
    torch.manual_seed(0)
    explainer = Explainer(
        model,
        GNNExplainer(epochs=5),
        explanation_type="model",
        node_mask_type="attributes",
        edge_mask_type="object",
        model_config={
            "mode": "multiclass_classification",
            "task_level": "graph",
            "return_type": "raw",
        },
    )
    return explainer(x, edge_index, edge_attr=edge_attr)


EXPLAINED = [
    {"convs_per_level": 2},
    {"pool": "none"},
    {"readout": "gmt", "pool": "none"},
    {"readout": "gmt"},
    *({"pool": pool} for pool in POOLS),
]


@pytest.mark.parametrize("options", EXPLAINED, ids=str)
def test_gnn_explainer_on_a_molecule_of_mutag(mutag, options):
    model = _model(**options).float()
    graph = mutag.to_pyg()[0]
    before = model(graph.x, graph.edge_index)
    explanation = _explain(model, graph.x, graph.edge_index)
    assert explanation.edge_mask.shape == (graph.edge_index.size(1),)
    assert explanation.edge_mask.min() >= 0
    assert explanation.edge_mask.max() > 0
    assert explanation.node_mask.abs().sum() > 0
    torch.testing.assert_close(model(graph.x, graph.edge_index), before)


@pytest.mark.parametrize("conv", ["ogb-gcn", "dmpnn"])
def test_gnn_explainer_on_a_molecule_of_codes(conv, molecules):
    model = _model(MOLECULES, conv=conv).float()
    batch = molecules.take([1])
    x = model.encoder(batch.x).detach()
    explanation = _explain(model, x, batch.edge_index, batch.edge_attr)
    assert explanation.edge_mask.max() > 0
