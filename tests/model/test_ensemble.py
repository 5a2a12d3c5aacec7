"""Networks side by side in fixed shapes against each of them on a packed batch."""

from dataclasses import replace

import pytest
import torch
from drawn import BONDS, batches, bonded, molecules, wider
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gtpool.data.coarsening import with_chain
from gtpool.data.dataset import GraphDataset
from gtpool.data.device_dataset import DeviceDataset
from gtpool.data.encodings import with_encodings
from gtpool.data.sources import load
from gtpool.model import METHODS
from gtpool.model.classifier import Classifier
from gtpool.model.ensemble import ModelEnsemble, pads_attention, why_spec_not_captured
from gtpool.ops.dropout import set_keys
from gtpool.spec import ModelSpec, ShapeSpec
from gtpool.study.inputs import shape_of

MERGES = ("mincutpool", "dmon", "diffpool", "structpool")
KEYS = torch.tensor([11, 22, 33])
CLOSE = {"rtol": 1e-8, "atol": 1e-10}
SPECS = {
    "the paper's": {},
    "top-k": {"pool_options": {"sampler": "topk"}},
    "by score": {"pool_options": {"order": "score"}},
    "by structure": {"pool_options": {"order": "structure"}},
    "top-k by structure": {"pool": "topkpool", "pool_options": {"order": "structure"}},
    "rws by structure, closest": {
        "pool": "sagpool",
        "pool_options": {"order": "structure", "sampler": "rws"},
        "connect": "closest",
    },
    "rws by score": {"pool": "gtpool", "pool_options": {"order": "score"}},
    "heads": {"pool_options": {"heads": 4}},
    "gate": {"pool_options": {"gate": "tanh", "heads": 2}},
    "gate, global alone": {"pool_options": {"gate": "tanh", "lam": 1.0}},
    "gate, local alone": {"pool_options": {"gate": "tanh", "lam": 0.0}},
    "gate, the score frozen": {"pool_options": {"gate": "tanh", "learn_score": False}},
    "temperature": {"pool_options": {"temperature": 0.2}},
    "random points": {"pool_options": {"points": "random", "temperature": 0.5}},
    "sagpool after all": {"pool": "sagpool", "levels": 1, "convs_per_level": 3, "jump": True},
    "sagpool by rws": {"pool": "sagpool", "pool_options": {"sampler": "rws", "order": "score"}},
    "sagpool by rwsv": {"pool": "sagpool", "pool_options": {"sampler": "rwsv"}, "conv": "gin"},
    "topkpool": {"pool": "topkpool"},
    "topkpool by rwsv": {
        "pool": "topkpool",
        "pool_options": {"sampler": "rwsv"},
        "read_input": True,
        "ratio": 0.8,
    },
    "mincutpool": {"pool": "mincutpool"},
    "dmon": {"pool": "dmon"},
    "mincutpool, max": {
        "pool": "mincutpool",
        "pool_options": {"hidden_channels": 5},
        "readout": "max",
        "read_input": True,
        "combine": "cat",
    },
    "diffpool": {"pool": "diffpool"},
    "diffpool once, gat": {"pool": "diffpool", "levels": 1, "conv": "gat"},
    "diffpool, linear": {"pool": "diffpool", "conv": "linear", "norm": "layer"},
    "diffpool, jump": {
        "pool": "diffpool",
        "convs_per_level": 2,
        "jump": True,
        "residual": True,
        "readout": "sum",
    },
    "diffpool, batch norm": {"pool": "diffpool", "norm": "batch", "convs_per_level": 2},
    "structpool": {"pool": "structpool"},
    "structpool, two steps": {
        "pool": "structpool",
        "pool_options": {"steps": 2},
        "levels": 2,
        "ratio": 1,
    },
    "out_proj": {"pool_options": {"out_proj": True, "ffn_channels": 5}},
    "dropout in the pools": {"pool_options": {"dropout": 0.3}},
    "no dropout": {"dropout": 0.0},
    "so many nodes": {"ratio": 4},
    "all nodes": {"ratio": 1.0, "levels": 2},
    "gin": {"conv": "gin"},
    "gat": {"conv": "gat", "convs_per_level": 2},
    "linear": {"conv": "linear"},
    "layer norm": {"norm": "layer", "convs_per_level": 2},
    "batch norm": {"norm": "batch"},
    "gin with batch norm": {"conv": "gin", "norm": "batch", "convs_per_level": 2},
    "jump": {"jump": True, "convs_per_level": 2, "combine": "cat"},
    "read input": {"read_input": True, "combine": "cat"},
    "sum": {"readout": "sum"},
    "flat": {"pool": "none", "levels": 1},
    "set2set": METHODS["set2set"].model,
    "set2set, five steps": {"readout": "set2set", "readout_options": {"steps": 5}, "levels": 2},
    "sortpool": METHODS["sortpool"].model,
    "sortpool, other sizes": {
        "readout": "sortpool",
        "readout_options": {"filters": (3, 5), "kernel": 2},
        "levels": 2,
    },
    "gmt": METHODS["gmt"].model,
    "gmt, heads and layer norm": {
        **METHODS["gmt"].model,
        "readout_options": {"heads": 4, "layer_norm": True},
    },
    "graphtrans": METHODS["graphtrans"].model,
    "graphtrans at each level": {
        "readout": "graphtrans",
        "readout_options": {"layers": 2, "heads": 2, "dropout": 0.0},
    },
    "graphtrans of clusters": {"pool": "mincutpool", "readout": "graphtrans", "levels": 2},
    "gmt at each level": {"readout": "gmt", "readout_options": {"heads": 2}, "read_input": True},
    "gmt of clusters": {"pool": "mincutpool", "readout": "gmt"},
    "other activations": {"pool_options": {"act": "relu"}},
    "maxcutpool": {"pool": "maxcutpool", "connect": "closest"},
    "maxcutpool, induced": {
        "pool": "maxcutpool",
        "pool_options": {"sampler": "rwsv", "conv_channels": [8, 4], "mlp_channels": []},
    },
    "mid": {"pool": "mid"},
    "mid, projected": {"pool": "mid", "pool_options": {"scorer": "projection", "merge": "mean"}},
    "closest": {"connect": "closest"},
    "closest, gate": {"connect": "closest", "pool_options": {"gate": "tanh", "order": "score"}},
    "gmt of one seed": {**METHODS["gmt"].model, "conv": "gat", "ratio": 1},
    "feed-forward, batch norm": {"ffn": True, "norm": "batch", "residual": True},
    "dropout in the blocks": {"block_dropout": 0.3, "ffn": True, "residual": True},
    "virtual node": {"virtual_node": True},
    "virtual node, flat": {"pool": "none", "levels": 2, "virtual_node": True, "readout": "sum"},
    "virtual node, diffpool": {"pool": "diffpool", "virtual_node": True, "norm": "layer"},
    "all of a block, batch norm": {
        "conv": "gin",
        "convs_per_level": 2,
        "norm": "batch",
        "residual": True,
        "block_dropout": 0.2,
        "ffn": True,
        "virtual_node": True,
        "ratio": 0.75,
        "read_input": True,
    },
    "dmpnn": {"conv": "dmpnn"},
    "dmpnn, closest": {"conv": "dmpnn", "connect": "closest", "ratio": 0.3},
    "dmpnn, batch norm": {
        "conv": "dmpnn",
        "norm": "batch",
        "residual": True,
        "convs_per_level": 2,
    },
    "dmpnn, sagpool": {"conv": "dmpnn", "pool": "sagpool", "virtual_node": True},
    "dmpnn, flat": {"conv": "dmpnn", "pool": "none", "levels": 1, "readout": "sum"},
}
BONDED = {
    "as the paper has it": {},
    "jump": {"jump": True, "convs_per_level": 2, "readout": "max"},
    "batch norm": {"norm": "batch", "convs_per_level": 2},
    "gate": {"pool_options": {"gate": "tanh", "heads": 2}},
    "flat": {"pool": "none", "levels": 1, "convs_per_level": 3, "residual": True},
    "sagpool": {"pool": "sagpool"},
    "topkpool": {"pool": "topkpool", "pool_options": {"sampler": "rwsv"}},
    "mincutpool": {"pool": "mincutpool"},
    "diffpool": {"pool": "diffpool", "read_input": True, "convs_per_level": 2},
    "structpool": {"pool": "structpool", "levels": 2},
    "gine": {"conv": "gine"},
    "gine, diffpool": {"conv": "gine", "pool": "diffpool", "levels": 1},
    "gine, sagpool": {"conv": "gine", "pool": "sagpool", "convs_per_level": 2},
    "gmt at each level": {"readout": "gmt", "combine": "cat"},
    "closest": {"connect": "closest"},
    "gine, closest": {"conv": "gine", "connect": "closest", "pool": "topkpool", "ratio": 0.3},
    "flat gine": {"conv": "gine", "pool": "none", "levels": 1, "readout": "sum"},
    "gine, all of a block": {
        "conv": "gine",
        "convs_per_level": 2,
        "norm": "batch",
        "residual": True,
        "block_dropout": 0.2,
        "ffn": True,
        "virtual_node": True,
    },
    "virtual node": {"virtual_node": True, "residual": True, "block_dropout": 0.2},
    "dmpnn": {"conv": "dmpnn"},
    "dmpnn, closest": {"conv": "dmpnn", "connect": "closest", "virtual_node": True},
    "dmpnn, diffpool": {"conv": "dmpnn", "pool": "diffpool", "levels": 1},
    "dmpnn, flat": {"conv": "dmpnn", "pool": "none", "levels": 2, "residual": True},
}
"""Networks that read bonds, of conv "ogb-gcn" unless they say otherwise."""
SIZED = ShapeSpec(outputs=2, node_width=3, mean_nodes=8, common_nodes=5)
"""Of drawn graphs, with what sizes some read-outs."""
STEADY = [
    name for name, options in SPECS.items() if "batch" not in name and options.get("conv") != "gin"
]
"""What can be trained on a single node, which has no variance."""


def of_each_kind(options):
    """Name the first network of each combination of pooler, convolution and read-out."""
    kinds = {}
    for name, one in options.items():
        kinds.setdefault((one.get("pool"), one.get("conv"), one.get("readout")), name)
    return list(kinds.values())


CLUSTERED = [name for name in SPECS if name.startswith(MERGES)]
BONDED_STEADY = [name for name in BONDED if "gine" not in name]


@pytest.fixture(scope="module")
def mutag():
    data = load("MUTAG")
    return replace(data, x=data.x.double())


@pytest.fixture(scope="module")
def coded():
    return molecules(40)


def networks(options, shape, runs=3):
    models = []
    for seed in range(runs):
        torch.manual_seed(seed)
        models.append(Classifier(ModelSpec(**{"width": 8, **options}), shape).double())
    return models


def drawn_index(data, runs=3, places=16):
    random = torch.Generator().manual_seed(1)
    index = torch.stack([torch.randperm(len(data), generator=random) for _ in range(runs)])
    index = index[:, :places].clone()
    index[1:, 12:] = -1
    return index


def gathered(data, index, models, extra=0):
    first = models[0]
    coded = (first.shape.node_categories, first.edge_categories)
    data = with_chain(data, *first.coarsening) if first.coarsening else data
    stock = DeviceDataset.of(data, *coded, edge_features=first.reads_edge_numbers)
    capacity = wider(stock.capacity(index, models[0].ratios), extra)
    return stock.gather(index, capacity, models[0].ratios)


def side_by_side(logits, auxiliary):
    """Set the auxiliary loss of each graph beside its logits, where there is one."""
    return logits if auxiliary is None else torch.cat([logits, auxiliary.unsqueeze(1)], 1)


def assert_like_classifiers(models, data, index, extra=0):
    """Compare logits, auxiliary losses, gradients and statistics of a step of training."""
    runs = len(models)
    stack = ModelEnsemble(models, int(data.sizes.max())).train()
    results = side_by_side(*stack.learn(gathered(data, index, models, extra), KEYS[:runs]))
    results = results.unflatten(0, (runs, -1))
    assert results.isfinite().all()
    random = torch.Generator().manual_seed(0)
    sent = torch.randn(results.shape, generator=random, dtype=torch.float64)
    sent = sent * (index >= 0).unsqueeze(2)
    (grad,) = torch.autograd.grad(results, stack.theta, sent)
    after = stack.state_dicts()
    for run, model in enumerate(models):
        there = index[run] >= 0
        set_keys(model.train(), KEYS[run : run + 1])
        chained = with_chain(data, *model.coarsening) if model.coarsening else data
        wanted = side_by_side(*model.learn(chained.take(index[run][there], model.ratios)))
        torch.testing.assert_close(results[run, there], wanted, **CLOSE)
        by_name = dict(model.named_parameters())
        leaves = [by_name[name] for name in stack.names]
        grads = torch.autograd.grad(
            wanted, leaves, sent[run, there], allow_unused=True, materialize_grads=True
        )
        flat = torch.cat([part.flatten() for part in grads])
        torch.testing.assert_close(grad[run, : flat.numel()], flat, **CLOSE)
        assert not grad[run, flat.numel() :].any()
        for name, part in model.state_dict().items():
            if not name.endswith("num_batches_tracked"):  # which nothing reads
                torch.testing.assert_close(after[name][run], part, **CLOSE)


@pytest.mark.parametrize("options", SPECS.values(), ids=SPECS)
def test_runs_side_by_side_do_what_they_do_alone(options, mutag):
    models = networks(options, shape_of(mutag))
    assert_like_classifiers(models, mutag, drawn_index(mutag), extra=5)


@pytest.mark.parametrize("name", of_each_kind(SPECS))
def test_one_run_is_a_stack_of_one(name, mutag):
    models = networks(SPECS[name], shape_of(mutag), runs=1)
    assert_like_classifiers(models, mutag, drawn_index(mutag)[1:2])


@pytest.mark.parametrize("options", [{}, {"conv": "gine", "norm": "batch", "residual": True}])
def test_codes_beside_encodings(options, coded):
    data = with_encodings(coded, ("rwse:5", "cycles"))
    data = replace(data, x=data.x.double()).standardized(range(20))
    models = networks({"conv": "ogb-gcn", **options}, shape_of(data))
    assert_like_classifiers(models, data, drawn_index(data), extra=5)
    first = models[0].eval()
    batch = data.take([0, 3, 5])
    codes = batch.x[:, 7:].long()
    expected = first.encoder.numbers(batch.x[:, :7]) + first.encoder.codes(codes)
    x = first.encoder(batch.x)
    torch.testing.assert_close(x, expected)
    rest = (batch.edge_index, batch.edge_attr, batch.batch)
    wanted = first.classify(data.take([0, 3, 5], first.ratios))
    torch.testing.assert_close(first(batch.x, *rest), wanted)
    torch.testing.assert_close(first(x, *rest, encoded=True), wanted)
    with pytest.raises(ValueError, match="must be codes of categories"):
        first(batch.x + 0.5, *rest)
    with pytest.raises(ValueError, match="nodes, 16"):
        first(x, *rest)


@given(drawn=batches(), name=st.sampled_from(STEADY), extra=st.sampled_from((0, 70)))
@settings(max_examples=50, deadline=None)
def test_graphs_of_any_form_do(drawn, name, extra):
    data, index = drawn
    # Dropout goes by place, and empty places are last in training.
    index = index.gather(1, (index < 0).long().argsort(dim=1, stable=True))
    models = networks(SPECS[name], SIZED, runs=len(index))
    assert_like_classifiers(models, data, index, extra)


@pytest.mark.parametrize(
    "name",
    [
        "the paper's",
        "temperature",
        "random points",
        "batch norm",
        "gin",
        "flat",
        "sum",
        "set2set",
        "sortpool",
        "gmt",
        "graphtrans",
        "dmpnn, batch norm",
        "all of a block, batch norm",
        *CLUSTERED,
    ],
)
def test_logits_in_evaluation_are_those_of_the_classifiers(name, mutag):
    models = networks(SPECS[name], shape_of(mutag))
    index = drawn_index(mutag)
    with torch.no_grad():
        for number, model in enumerate(models):  # statistics and units of each run's own
            for buffer, part in model.named_buffers():
                if buffer.endswith(("running_mean", "running_var", "shift", "scale")):
                    part.add_(number + 1)
        logits = ModelEnsemble(models, 28).eval()(gathered(mutag, index, models))
        for run, model in enumerate(models):
            there = index[run] >= 0
            wanted = model.eval().classify(mutag.take(index[run][there], model.ratios))
            torch.testing.assert_close(logits.view(3, 16, -1)[run, there], wanted, **CLOSE)


@given(seed=st.integers(0, 99), kinds=st.sampled_from((1, 2, 3)), runs=st.sampled_from((1, 3)))
@settings(max_examples=20, deadline=None)
def test_sortpool_orders_nodes_that_tie_in_many_channels(seed, kinds, runs):
    # A linear map that is the identity hands features of few values on as they are.
    random = torch.Generator().manual_seed(seed)
    graphs = []
    for nodes in torch.randint(1, 30, (9,), generator=random).tolist():
        x = torch.randint(kinds, (nodes, 70), generator=random).double()
        x[:, 20:] = x[:, 20:21]  # the last fifty channels are one
        x[::2] *= -1
        graphs.append(Data(x, torch.empty(2, 0, dtype=torch.long), y=torch.tensor([nodes % 2])))
    data = GraphDataset.from_pyg(graphs)
    shape = ShapeSpec(outputs=2, node_width=70, common_nodes=12)
    options = {"pool": "none", "levels": 1, "conv": "linear", "readout": "sortpool", "width": 70}
    models = networks(options, shape, runs)
    with torch.no_grad():
        for model in models:
            linear = model.levels[0][0].conv.linear
            linear.weight.copy_(torch.eye(70))
            linear.bias.zero_()
    index = torch.randperm(9, generator=random).expand(runs, -1).clone()
    index[-1, 7:] = -1
    assert_like_classifiers(models, data, index, extra=5)


def test_coded_nodes_are_embedded():
    codes = [
        Data(torch.randint(4, (n, 2)), torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([n % 2]))
        for n in range(2, 9)
    ]
    data = GraphDataset.from_pyg(codes)
    shape = ShapeSpec(outputs=2, node_categories=(4, 4))
    index = torch.tensor([[0, 1, 2], [3, 4, -1], [5, 6, 0]])
    assert_like_classifiers(networks({}, shape), data, index)


@pytest.mark.parametrize(
    ("runs", "key"), [*((3, key) for key in BONDED), *((1, key) for key in of_each_kind(BONDED))]
)
def test_bonds_count_for_what_they_do_alone(runs, key, coded):
    models = networks({"conv": "ogb-gcn", **BONDED[key]}, shape_of(coded), runs)
    with torch.no_grad():
        for model in models:
            for name, part in model.named_parameters():
                if name.endswith("root"):  # which starts at zero
                    part.normal_()
    assert_like_classifiers(models, coded, drawn_index(coded, runs), extra=5)


CHAINED = {
    "haarpool": {},
    "mean": {"readout": "mean"},
    "two levels": {"levels": 2, "readout": "gmt", "norm": "batch", "read_input": True},
    "linear": {"conv": "linear", "convs_per_level": 2},
    "sepg": {"pool": "sepg"},
    "graclus": {"pool": "graclus"},
    "ndp": {"pool": "ndp"},
}


@pytest.mark.parametrize(("runs", "name"), [*((3, name) for name in CHAINED), (1, "haarpool")])
def test_clusters_of_a_chain_count_for_what_they_do_alone(runs, name, mutag):
    models = networks({"pool": "haarpool", **CHAINED[name]}, shape_of(mutag), runs)
    with torch.no_grad():
        for model in models:
            for bias, part in model.named_parameters():
                if bias.endswith("bias"):  # equal nodes have details of 0, where relu has a kink
                    part.normal_()
    assert_like_classifiers(models, mutag, drawn_index(mutag, runs), extra=5)


@given(drawn=batches(), extra=st.sampled_from((0, 70)))
@settings(max_examples=15, deadline=None)
def test_chains_of_graphs_of_any_form_do(drawn, extra):
    data, index = drawn
    index = index.gather(1, (index < 0).long().argsort(dim=1, stable=True))
    models = networks({"pool": "haarpool", "conv": "linear", "readout": "sum"}, SIZED, len(index))
    chained = with_chain(data, 3)
    for model in models:
        model.eval()
    with torch.no_grad():
        logits = ModelEnsemble(models, int(data.sizes.max())).eval()(
            gathered(data, index, models, extra)
        )
        for run, model in enumerate(models):
            there = index[run] >= 0
            wanted = model.classify(chained.take(index[run][there]))
            found = logits.unflatten(0, (len(index), -1))[run, there]
            torch.testing.assert_close(found, wanted, **CLOSE)


NUMBERED = {
    "weighted gcn": {},
    "weighted gcn, sagpool": {"pool": "sagpool", "convs_per_level": 2},
    "weighted gcn, closest": {"connect": "closest"},
    "weighted gcn, diffpool": {"pool": "diffpool"},
    "weighted gcn, mincutpool": {"pool": "mincutpool"},
    "weighted gcn, structpool": {"pool": "structpool"},
    "gine": {"conv": "gine"},
    "gine, sagpool": {"conv": "gine", "pool": "sagpool"},
    "gine, all of a block": {"conv": "gine", "norm": "batch", "ffn": True, "virtual_node": True},
    "dmpnn": {"conv": "dmpnn"},
}


@pytest.mark.parametrize(
    ("runs", "options"), [*((3, one) for one in NUMBERED.values()), (1, {}), (1, {"conv": "gine"})]
)
def test_numbers_on_edges_count_for_what_they_do_alone(runs, options, mutag):
    random = torch.Generator().manual_seed(0)
    weight = torch.rand(mutag.edge_index.size(1), 2, generator=random, dtype=torch.double) + 0.1
    data = replace(mutag, edge_attr=weight)
    shape = replace(shape_of(mutag), edge_weighted=True, edge_width=2, edge_categories=())
    models = networks(options, shape, runs)
    assert_like_classifiers(models, data, drawn_index(data, runs), extra=5)


@given(drawn=batches(), name=st.sampled_from(BONDED_STEADY), extra=st.sampled_from((0, 70)))
@settings(max_examples=20, deadline=None)
def test_bonds_may_be_directed_and_repeated_and_lead_back(drawn, name, extra):
    data, index = drawn
    index = index.gather(1, (index < 0).long().argsort(dim=1, stable=True))
    shape = replace(SIZED, edge_categories=BONDS)
    options = {"conv": "ogb-gcn", **BONDED[name], "norm": "none"}
    models = networks(options, shape, runs=len(index))
    assert_like_classifiers(models, bonded(data), index, extra)


def test_a_batch_without_the_bonds_that_are_read_is_refused(coded):
    models, index = networks({"conv": "ogb-gcn"}, shape_of(coded)), drawn_index(coded)
    batch = gathered(coded, index, models)._replace(edge_types=None)
    with pytest.raises(ValueError, match="edge_features"):
        ModelEnsemble(models, 99)(batch)


@pytest.mark.parametrize(
    "name",
    [
        "the paper's",
        "random points",
        "gin",
        "flat",
        "sum",
        "set2set",
        "sortpool",
        "gmt",
        "graphtrans",
        "dmpnn",
        "all of a block, batch norm",
        *MERGES,
    ],
)
def test_a_graph_is_the_same_alone_and_in_a_full_batch(name, mutag):
    models = networks(SPECS[name], shape_of(mutag), runs=1)
    stack = ModelEnsemble(models, 28).eval()
    full = stack(gathered(mutag, torch.arange(20)[None], models))
    for graph in (0, 7, 19):
        alone = stack(gathered(mutag, torch.tensor([[graph]]), models))
        torch.testing.assert_close(alone[0], full[graph], **CLOSE)


@pytest.mark.parametrize(
    "name",
    [
        "the paper's",
        "gate",
        "random points",
        "batch norm",
        "flat",
        "set2set",
        "sortpool",
        "gmt at each level",
        "dmpnn, batch norm",
        "all of a block, batch norm",
        *CLUSTERED,
    ],
)
def test_more_room_changes_nothing(name, mutag):
    models, index = networks(SPECS[name], shape_of(mutag)), drawn_index(mutag)
    results = []
    for extra in (0, 1, 200):
        stack = ModelEnsemble(models, 28 + extra).train()
        logits = stack(gathered(mutag, index, models, extra), KEYS)
        logits = logits[index.flatten() >= 0]
        results.append((logits, *torch.autograd.grad(logits.sin().sum(), stack.theta)))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], **CLOSE)


@pytest.mark.parametrize(
    "options",
    [
        *({"conv": conv} for conv in ("gcn", "gin", "gat", "ogb-gcn", "gine", "dmpnn")),
        {"virtual_node": True, "norm": "batch", "residual": True, "ffn": True},
        *({"readout": readout} for readout in ("set2set", "sortpool", "gmt")),
    ],
    ids=str,
)
def test_a_run_gone_wrong_leaves_the_others_alone(options, coded):
    models = networks({"read_input": True, **options}, shape_of(coded))
    run, others = 1, [0, 2]
    index, longest = drawn_index(coded), int(coded.sizes.max())
    results = []
    for wrong in (False, True):
        if wrong:
            for part in models[run].parameters():
                part.data.fill_(torch.nan)
        stack = ModelEnsemble(models, longest).train()
        logits = stack(gathered(coded, index, models, 5), KEYS)
        (grad,) = torch.autograd.grad(logits.sum(), stack.theta)
        results.append((logits.view(3, -1)[others], grad[others]))
    torch.testing.assert_close(*results, **CLOSE)


@pytest.mark.parametrize("pool", MERGES)
def test_clusters_of_a_run_gone_wrong_leave_those_of_others_alone(pool, coded):
    models = networks({"pool": pool, "conv": "ogb-gcn", "levels": 2}, shape_of(coded))
    index, wrong, others = drawn_index(coded), 0, [1, 2]
    results = []
    for number in (1.0, torch.nan, torch.inf):
        for part in models[wrong].parameters():
            part.data.mul_(number)
        stack = ModelEnsemble(models, 1).train()
        found = side_by_side(*stack.learn(gathered(coded, index, models, 70), KEYS))
        (grad,) = torch.autograd.grad(found[index.flatten() >= 0].sum(), stack.theta)
        results.append((found.unflatten(0, (3, -1))[others], grad[others]))
    torch.testing.assert_close(results[1], results[0], **CLOSE)
    torch.testing.assert_close(results[2], results[0], **CLOSE)


@pytest.mark.parametrize(
    ("pool", "readout"),
    list(zip(MERGES, ("mean-max", "set2set", "sortpool", "mean-max"), strict=True)),
)
def test_places_may_be_empty_anywhere_among_graphs_that_are_merged(pool, readout, mutag):
    models = networks({"pool": pool, "readout": readout, "dropout": 0.0}, shape_of(mutag))
    index = drawn_index(mutag)
    index[:, 0] = -1
    index[0, 5:8] = -1
    index[2] = -1
    index[2, 9] = 4
    assert_like_classifiers(models, mutag, index)


def test_some_runs_go_on_by_themselves(mutag):
    models, index = networks(SPECS["batch norm"], shape_of(mutag)), drawn_index(mutag)
    stack, rest = ModelEnsemble(models, 28), ModelEnsemble([models[2], models[0]], 28)
    stack.select(torch.tensor([2, 0]))
    batch = gathered(mutag, index[[2, 0]], models)
    assert torch.equal(stack(batch, KEYS[:2]), rest(batch, KEYS[:2]))
    assert stack.state_dicts().keys() == rest.state_dicts().keys() == models[0].state_dict().keys()
    for name, part in stack.state_dicts().items():
        assert torch.equal(part, rest.state_dicts()[name])


@pytest.mark.parametrize("options", [{}, SPECS["gate, the score frozen"]])
def test_what_is_frozen_stays_out_of_what_is_learned(options, mutag):
    (model,) = networks(options, shape_of(mutag), runs=1)
    stack = ModelEnsemble([model], 28)
    assert not any("theta" in name for name in stack.names)
    learned = sum(part.numel() for part in model.parameters() if part.requires_grad)
    assert sum(shape.numel() for shape in stack.shapes) == learned
    assert stack.theta.numel() - learned in range(32)
    assert stack.theta.size(1) % 32 == 0


def test_the_states_are_copies(mutag):
    (model,) = networks({}, shape_of(mutag), runs=1)
    stack = ModelEnsemble([model], 28)
    with torch.no_grad():
        stack.theta.zero_()
    assert any(part.any() for part in model.parameters())
    whole = stack.state_dicts()
    with torch.no_grad():
        stack.theta.fill_(1)
    assert not whole["head.6.weight"].any()


@pytest.mark.parametrize(
    ("options", "shape", "reason"),
    [
        ({"pool": "asap"}, {}, "pool 'asap' has no static form"),
        ({"pool_options": {"attention": "linear"}}, {}, "linear attention has no static form"),
    ],
)
def test_what_has_no_static_form_is_said(options, shape, reason):
    spec, shape = ModelSpec(width=8, **options), ShapeSpec(outputs=2, node_width=3, **shape)
    assert reason in why_spec_not_captured(spec, shape)
    with pytest.raises(ValueError, match=reason):
        ModelEnsemble([Classifier(spec, shape)], 10)


def test_others_do_not_mind_weighted_edges():
    shape = ShapeSpec(outputs=2, node_width=3, edge_weighted=True, edge_width=1)
    for conv in ("gin", "gat", "linear"):
        assert why_spec_not_captured(ModelSpec(conv=conv), shape) is None


@pytest.mark.parametrize(
    ("options", "training"),
    [
        ({}, True),
        *(
            pytest.param(options, False, marks=pytest.mark.slow)
            for options in (
                {"conv": "dmpnn", "pool": "sagpool"},
                {"conv": "gat", "virtual_node": True, "norm": "batch", "convs_per_level": 2},
                {"pool": "structpool", "readout": "gmt"},
                {"pool_options": {"points": "random"}, "readout": "graphtrans"},
            )
        ),
    ],
    ids=str,
)
def test_a_network_compiles_whole(options, training, mutag):
    torch.compiler.reset()  # a network more would be one too many for it to remember
    options = {"levels": 1, **options}
    models, index = networks(options, shape_of(mutag)), drawn_index(mutag)
    batch, stack = gathered(mutag, index, models), ModelEnsemble(models, 28).train(training)
    torch.compiler.reset()  # or the networks before would count as this one compiled anew
    compiled = torch.compile(stack, fullgraph=True, backend="eager")
    torch.testing.assert_close(
        compiled(batch, KEYS)[batch.present], stack(batch, KEYS)[batch.present], **CLOSE
    )


@pytest.mark.slow
def test_forward_and_backward_with_bonds_compile_whole(coded):
    options = {"conv": "ogb-gcn", "levels": 1}
    models, index = networks(options, shape_of(coded)), drawn_index(coded)
    batch, longest = gathered(coded, index, models, 5), int(coded.sizes.max())
    results = []
    for compiled in (False, True):
        stack = ModelEnsemble(models, longest).train()
        run = torch.compile(stack, fullgraph=True, backend="aot_eager") if compiled else stack
        logits = run(batch, KEYS)[batch.present]
        (grad,) = torch.autograd.grad(logits.sin().sum(), stack.theta)
        results.append((logits, grad))
    torch.testing.assert_close(*results, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["the paper's", "gin with batch norm", "mincutpool"],
)
def test_forward_and_backward_compile_whole(name, mutag):
    levels = 2 if name == "the paper's" else 1  # each level takes seconds
    models, index = networks({**SPECS[name], "levels": levels}, shape_of(mutag)), drawn_index(mutag)
    batch = gathered(mutag, index, models, 5)
    results = []
    torch.compiler.reset()
    for compiled in (False, True):
        stack = ModelEnsemble(models, 28).train()
        run = torch.compile(stack, fullgraph=True, backend="aot_eager") if compiled else stack
        logits = run(batch, KEYS)[batch.present]
        (grad,) = torch.autograd.grad(logits.sin().sum(), stack.theta)
        results.append((logits, grad, stack.state_dicts()))
    torch.testing.assert_close(*results, **CLOSE)


@pytest.mark.parametrize(("heads", "pads"), [(1, True), (2, False)])
def test_a_head_wider_than_the_kernel_takes_is_known(heads, pads, mutag):
    options = {"width": 264, "levels": 1, "pool_options": {"heads": heads}}
    (model,) = networks(options, shape_of(mutag), runs=1)
    assert pads_attention(model) == pads
