"""RWS and RWSV inside PyG's own poolers."""

import inspect

import pytest
import torch
from contract import CHANNELS, RATIOS, close, kept_of, sample_batch
from torch._dynamo.utils import counters
from torch_geometric.nn import ASAPooling, SAGPooling, TopKPooling
from torch_geometric.nn.pool.select import SelectTopK

from gtpool import SelectRWS, SelectRWSV
from gtpool.ops.sample import round_scores, rws, rwsv

SELECTS = {"rws": (SelectRWS, rws), "rwsv": (SelectRWSV, rwsv)}
every_select = pytest.mark.parametrize(("select", "sample"), SELECTS.values(), ids=SELECTS)


def with_select(pool, select):
    """Put ``select`` in place of the pooler's own, with the same weight."""
    own = pool.select
    pool.select = select(own.in_channels, own.ratio).to(own.weight)
    pool.select.load_state_dict(own.state_dict())
    return pool


@every_select
@pytest.mark.parametrize("order", ["index", "score"])
def test_select_gives_the_scores_of_top_k_and_the_nodes_of_the_wheel(select, sample, order):
    torch.manual_seed(0)
    graphs = sample_batch()
    own = SelectTopK(CHANNELS, ratio=1000).double()  # keeps every node, so shows every score
    ours = select(CHANNELS, ratio=0.5, order=order).double()
    ours.load_state_dict(own.state_dict())
    everything = own(graphs.x, graphs.batch)
    score = torch.empty(len(graphs.batch), dtype=torch.double)
    score[everything.node_index] = everything.weight.detach()

    out = ours(graphs.x, graphs.batch)
    assert (
        out.node_index.tolist()
        == sample(round_scores(score), graphs.batch, 0.5, order=order).tolist()
    )
    close(out.weight.detach(), score[out.node_index])
    assert out.cluster_index.tolist() == list(range(len(out.node_index)))
    assert (out.num_nodes, out.num_clusters) == (len(graphs.batch), len(out.node_index))
    top = SelectTopK(CHANNELS, ratio=0.5).double()
    top.load_state_dict(own.state_dict())
    assert set(top(graphs.x, graphs.batch).node_index.tolist()) != set(out.node_index.tolist())


@every_select
@pytest.mark.parametrize("kind", [TopKPooling, SAGPooling])
def test_select_changes_only_which_nodes_a_pooler_keeps(kind, select, sample):
    torch.manual_seed(0)
    graphs = sample_batch()
    pool = kind(CHANNELS, ratio=1000).double()
    x, _, _, _, perm, score = pool(*graphs)  # its own top-k keeps every node
    every_x, every_score = torch.empty_like(x), torch.empty_like(score)
    every_x[perm], every_score[perm] = x.detach(), score.detach()
    close(every_x, graphs.x * every_score[:, None])

    pool.select.ratio = 0.5
    x, edge_index, edge_attr, batch, perm, score = with_select(pool, select)(*graphs)
    assert perm.tolist() == sample(round_scores(every_score), graphs.batch, 0.5).tolist()
    assert torch.equal(x, every_x[perm])
    assert torch.equal(score, every_score[perm])
    assert batch.tolist() == graphs.batch[perm].tolist()
    kept, edges = set(perm.tolist()), graphs.edge_index.T.tolist()
    inside = [i for i, ends in enumerate(edges) if kept.issuperset(ends)]
    assert perm[edge_index].T.tolist() == [edges[i] for i in inside]
    assert torch.equal(edge_attr, graphs.edge_attr[inside])


@every_select
def test_select_changes_only_which_clusters_asap_keeps(select, sample):
    torch.manual_seed(0)
    x, edge_index, _, batch = sample_batch(torch.float32)  # PyG's ASAPooling knows no other type
    pool = ASAPooling(CHANNELS, ratio=1000).eval()
    every_x, every_edge, _, _, perm = pool(x, edge_index, None, batch)
    every_x = every_x[perm.argsort()]
    every_edge = set(map(tuple, perm[every_edge].T.tolist()))

    pool.select.ratio = 0.5
    pool = with_select(pool, select)
    fitness = []
    pool.select.register_forward_pre_hook(lambda _, args: fitness.append(args[0].detach()))
    pooled, edges, _, pooled_batch, kept = pool(x, edge_index, None, batch)
    score = (fitness[0] * pool.select.weight.detach().sign().squeeze()).tanh()
    assert kept.tolist() == sample(round_scores(score), batch, 0.5).tolist()
    close(pooled, every_x[kept])
    assert pooled_batch.tolist() == batch[kept].tolist()
    inside = {ends for ends in every_edge if set(ends) <= set(kept.tolist())}
    assert inside
    assert set(map(tuple, kept[edges].T.tolist())) == inside


@every_select
@pytest.mark.parametrize("ratio", RATIOS)
def test_select_keeps_the_right_number(select, sample, ratio):
    graphs = sample_batch()
    kept = select(CHANNELS, ratio).double()(graphs.x, graphs.batch).node_index
    expected = [kept_of(n, ratio) for n in graphs.batch.bincount().tolist()]
    assert graphs.batch[kept].bincount().tolist() == expected
    assert sample.__name__ == select.sampler.__name__


def test_select_takes_one_graph_and_one_channel_as_top_k_does():
    torch.manual_seed(0)
    score = torch.randn(9)
    one = SelectRWS(1, ratio=0.5)
    flat, column = one(score), one(score[:, None], torch.zeros(9, dtype=torch.long))
    assert flat.node_index.tolist() == column.node_index.tolist()
    assert flat.node_index.numel() == 5


@pytest.mark.parametrize("select", [SelectRWS, SelectRWSV])
def test_signature_is_that_of_top_k_and_an_order(select):
    theirs = inspect.signature(SelectTopK).parameters
    ours = dict(inspect.signature(select).parameters)
    order = ours.pop("order")
    assert order.kind is inspect.Parameter.KEYWORD_ONLY
    assert order.default == "index"
    assert list(ours) == list(theirs)
    for name, parameter in ours.items():
        assert (parameter.kind, parameter.default) == (theirs[name].kind, theirs[name].default)


@pytest.mark.parametrize("select", [SelectRWS, SelectRWSV])
def test_min_score_is_refused_with_the_reason(select):
    with pytest.raises(ValueError, match=f"{select.__name__} does not support min_score"):
        select(CHANNELS, min_score=0.2)


@every_select
def test_gradient_reaches_the_weight_of_top_k_pooling(select, sample):
    torch.manual_seed(0)
    graphs = sample_batch()
    pool = with_select(TopKPooling(CHANNELS).double(), select)
    pool(*graphs)[0].square().sum().backward()
    assert pool.select.sampler is sample
    assert pool.select.weight.grad.all()


@every_select
def test_compiled_pooler_leaves_the_wheel_as_it_is(select, sample):
    torch.manual_seed(0)
    torch.compiler.reset()
    counters.clear()
    graphs = sample_batch()
    wheel = select(CHANNELS).double()  # Inductor cannot build C++ of its whole numbers
    assert torch.compile(wheel)(graphs.x, graphs.batch).node_index.numel()
    assert counters["stats"]["unique_graphs"] == 0
    pool = with_select(TopKPooling(CHANNELS).double(), select)
    compiled = torch.compile(pool, backend="aot_eager")
    for eager, ours in zip(pool(*graphs), compiled(*graphs), strict=True):
        close(eager, ours)
    assert sample is pool.select.sampler


@pytest.mark.parametrize("select", [SelectRWS, SelectRWSV])
def test_width_that_does_not_fit_is_named(select):
    graphs, pool = sample_batch(), TopKPooling(CHANNELS).double()
    pool.select = select(CHANNELS + 1).double()
    with pytest.raises(ValueError, match=rf"shape \[nodes, {CHANNELS + 1}\], got float64 of shape"):
        pool(*graphs)
    with pytest.raises(ValueError, match=r"x\[2, 0\] is nan"):
        select(1)(torch.tensor([0.1, 0.2, torch.nan]))


def test_repr_is_that_of_top_k():
    assert repr(SelectRWS(8, ratio=0.3)) == "SelectRWS(8, ratio=0.3)"
    assert repr(SelectRWSV(8, ratio=3)) == "SelectRWSV(8, ratio=3)"
