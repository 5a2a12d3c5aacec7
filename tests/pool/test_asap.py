"""The layer against its equations on dense matrices, and beside PyG's."""

from functools import partial

import pytest
import torch
from contract import CHANNELS, Graphs, close, drawn, nodes_of, pack, pooler, ragged, ring
from hypothesis import given
from hypothesis import strategies as st
from reference_sample import sample
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, logsigmoid
from torch_geometric.nn import ASAPooling, GCNConv

from gtpool.graph import NodeDrop
from gtpool.ops.sample import round_scores
from gtpool.pool.asap import ASAPool

SAMPLERS = ("topk", "rws", "rwsv")
RATIOS = (0.25, 0.5, 0.8, 1.0, 2)


def dense_layer(pool: ASAPool, graphs: Graphs, weight: Tensor, attn: Tensor | None) -> NodeDrop:
    """Compute the layer graph by graph with n × n matrices."""
    outs, shift = [], 0
    for nodes in nodes_of(graphs):
        first, last = nodes[0], nodes[-1] + 1
        inside = graphs.batch[graphs.edge_index[0]] == graphs.batch[first]
        inside &= graphs.edge_index[0] != graphs.edge_index[1]
        x = graphs.x[first:last]
        seen = x if attn is None else attn[first:last]
        edges = graphs.edge_index[:, inside] - first
        x, pairs, weights, kept, fitness = dense_graph(pool, x, seen, edges, weight[inside])
        batch = graphs.batch[first].expand(len(kept))
        outs.append((x, pairs + shift, weights, batch, kept + first, fitness))
        shift += len(kept)
    return NodeDrop(
        *(
            torch.cat(parts, parts[0].dim() - 1 if at == 1 else 0)
            for at, parts in enumerate(zip(*outs, strict=True))
        )
    )


def dense_graph(pool: ASAPool, x: Tensor, seen: Tensor, edges: Tensor, weight: Tensor):
    n, (source, target) = len(x), edges
    eye = torch.eye(n, dtype=x.dtype)
    A = eye.index_put((source, target), weight, accumulate=True)  # A + I
    degree = A.sum(0)
    normed = A / (degree[:, None] * degree[None, :]).sqrt()
    seen = normed.T @ seen @ pool.gcn.lin.weight.T + pool.gcn.bias  # X'
    columns = []
    for i in range(n):
        members = torch.tensor([*source[target == i].tolist(), i])
        query = pool.query(seen[members].amax(0))
        logits = [pool.attention(torch.cat([query, seen[j]])) for j in members]
        share = leaky_relu(torch.cat(logits), 0.2).softmax(0)
        columns.append(torch.zeros(n, dtype=x.dtype).index_add(0, members, share))
    S = torch.stack(columns, 1)
    clusters = S.T @ x
    own, centre, other = pool.fitness.lin3, pool.fitness.lin2, pool.fitness.lin1
    logits = []
    for i in range(n):
        gaps = [-centre(clusters[i]) + other(clusters[j]) for j in source[target == i]]
        logits.append(own(clusters[i]) + sum(gaps))
    logit = torch.cat(logits)
    score = logsigmoid(logit) if pool.sampler == "topk" else logit.sigmoid()
    kept = sample(pool.sampler, round_scores(score), [n], pool.ratio, order=pool.order)
    coarse = S[:, kept].T @ A @ S[:, kept]
    near = eye.index_put((source, target), torch.ones_like(weight))
    joined = near[:, kept].T @ near @ near[:, kept]
    pairs = [(a, b) for a, b in joined.nonzero().tolist() if a != b]
    pairs = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    fitness = logit.sigmoid()[kept]
    pooled = fitness[:, None] * clusters[kept]
    return pooled, pairs, coarse[*pairs][:, None], torch.tensor(kept), fitness


def compare_with_dense(graphs: Graphs, ratio: float, *, with_attn: bool = False, **options) -> None:
    pool = pooler(partial(ASAPool, **options), ratio)
    asking = [graphs.x.requires_grad_(), *pool.parameters()]
    attn = graphs.x.detach().roll(1, 1).requires_grad_() if with_attn else None
    asking += [] if attn is None else [attn]
    weight = torch.ones(graphs.edge_index.size(1), dtype=torch.double)
    if pool.weighted:
        weight = torch.rand(len(weight), 3, dtype=torch.double).requires_grad_()
        graphs = graphs._replace(edge_attr=weight)
        asking.append(weight)
        weight = weight[:, 0]

    outs = pool(*graphs, attn), dense_layer(pool, graphs, weight, attn)
    for at in (1, 3, 4):
        assert torch.equal(outs[0][at], outs[1][at])
    results = []
    for out in outs:
        loss = out.x.sin().sum() + out.score.cos().sum() + out.edge_attr.tan().sum()
        gradients = torch.autograd.grad(loss, asking, materialize_grads=True)
        results.append([out.x, out.edge_attr, out.score, *gradients])
    for ours, its in zip(*results, strict=True):
        torch.testing.assert_close(ours, its, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weighted": True},
        {"with_attn": True, "weighted": True},
        {"sampler": "rws"},
        {"sampler": "rws", "order": "score", "weighted": True},
        {"sampler": "rwsv"},
        {"sampler": "rwsv", "order": "score"},
    ],
    ids=str,
)
def test_layer_equals_dense_layer(options):
    @drawn
    @given(ragged(), st.sampled_from(RATIOS))
    def check(graphs, ratio):
        compare_with_dense(graphs, ratio, **options)

    check()


def test_layer_equals_dense_layer_on_a_complete_and_a_large_graph():
    whole = [(i, j) for i in range(12) for j in range(12) if i != j]
    compare_with_dense(pack([(12, whole), (40, ring(40)), (1, [])], seed=0), 0.5, weighted=True)


# Two layers alike, PyG's and ours: PyG counts a node among its own neighbours in the fitness.
def twins(seed: int, ratio: float) -> tuple[ASAPooling, ASAPool]:
    torch.manual_seed(seed)
    theirs = ASAPooling(CHANNELS, ratio, GNN=GCNConv).double()
    ours = ASAPool(CHANNELS, ratio, weighted=True).double()
    for mine, its in (
        (ours.gcn, theirs.gnn_intra_cluster),
        (ours.query, theirs.lin),
        (ours.attention, theirs.att),
        (ours.fitness, theirs.gnn_score),
    ):
        mine.load_state_dict(its.state_dict())
    with torch.no_grad():
        le = ours.fitness
        le.lin3.weight += le.lin1.weight - le.lin2.weight
        le.lin3.bias += le.lin1.bias
    return theirs, ours


@pytest.mark.parametrize("seed", range(2))
def test_output_is_that_of_pyg_when_its_selection_is_mended(seed):
    graphs = pack([(9, ring(9)), (1, []), (20, ring(20)), (6, [])], seed)
    weight = torch.rand(graphs.edge_index.size(1), dtype=torch.double)
    theirs, ours = twins(seed, 0.5)
    nn.init.ones_(theirs.select.weight)
    x, edges, weights, batch, perm = theirs(graphs.x, graphs.edge_index, weight, graphs.batch)
    out = ours(graphs.x, graphs.edge_index, weight, graphs.batch)
    place = perm.argsort()
    assert out.perm.tolist() == perm[place].tolist()
    assert out.batch.tolist() == batch[place].tolist()
    close(out.x, x[place])
    number = torch.empty_like(place)
    number[place] = torch.arange(len(place))
    its = torch.sparse_coo_tensor(number[edges], weights, (len(place),) * 2).coalesce()
    assert torch.equal(out.edge_index, its.indices())
    close(out.edge_attr[:, 0], its.values())


def test_the_fittest_clusters_stay_whatever_the_seed_and_in_pyg_do_not():
    graphs, lowest = pack([(20, ring(20))], seed=0), 0
    inputs = graphs.x, graphs.edge_index, torch.ones(40, dtype=torch.double)
    for seed in range(20):
        theirs, ours = twins(seed, 0.5)
        logits = []
        for conv in (ours.fitness, theirs.gnn_score):
            conv.register_forward_hook(lambda *args, seen=logits: seen.append(args[2].flatten()))
        kept, perm = ours(*inputs).perm.tolist(), theirs(*inputs)[4].sort()[0].tolist()
        close(*logits)
        order = logits[0].argsort()
        low, high = order[:10].sort()[0].tolist(), order[10:].sort()[0].tolist()
        assert kept == high
        assert perm in (low, high)
        lowest += perm == low
    assert 5 <= lowest <= 15


def test_no_gradient_would_mend_the_sign_in_pyg():
    graphs = pack([(20, ring(20))], seed=0)
    theirs, _ = twins(0, 0.5)
    weight = torch.ones(40, dtype=torch.double)
    theirs(graphs.x, graphs.edge_index, weight)[0].sum().backward()
    assert theirs.select.weight.grad is None


def test_the_fittest_are_told_apart_where_the_sigmoid_rounds_to_one():
    graphs = pack([(20, ring(20))], seed=0, dtype=torch.float32)
    pool = pooler(ASAPool, 0.5, torch.float32)
    before = pool(*graphs)
    with torch.no_grad():
        pool.fitness.lin3.bias += 30
    after = pool(*graphs)
    assert (after.score == 1).all()
    assert before.perm.tolist() == after.perm.tolist() != list(range(10))


def test_the_master_query_changes_the_clusters():
    graphs, pool = pack([(20, ring(20))], seed=0), pooler(ASAPool, 1.0)
    before = pool(*graphs).x
    nn.init.zeros_(pool.query.weight)
    assert not torch.allclose(before, pool(*graphs).x)


def test_clusters_are_joined_that_share_a_node_or_an_edge():
    path = [(i, i + 1) for i in range(8)]
    graphs = pack([(9, path + [(j, i) for i, j in path])], seed=0)
    out = pooler(ASAPool, 1.0)(*graphs)
    expected = [[i, j] for i in range(9) for j in range(9) if i != j and abs(i - j) <= 3]
    assert out.edge_index.T.tolist() == expected  # sorted, and without self-loops
    assert out.edge_attr.shape == (len(expected), 1)
    # A weight is a mean over pairs of members, 1 for a pair that is joined and 0 for another.
    assert ((out.edge_attr > 0) & (out.edge_attr < 1)).all()


def test_an_edge_puts_its_source_into_the_cluster_of_its_target():
    pool = pooler(ASAPool, 1.0)
    none, edge = pack([(3, [])], seed=0), pack([(3, [(0, 1)])], seed=0)
    changed = (pool(*none).x != pool(*edge).x).any(1).tolist()
    assert changed == [False, True, False]


@pytest.mark.parametrize("edges", [[], [(0, 0), (1, 1), (1, 1)]])
@pytest.mark.parametrize("nodes", [2, 5])
def test_a_node_without_neighbours_is_its_own_cluster(nodes, edges):
    graphs = pack([(nodes, edges), (1, [])], seed=0)
    out = pooler(ASAPool, 0.5)(*graphs)
    assert out.batch.bincount().tolist() == [(nodes + 1) // 2, 1]
    close(out.x, out.score[:, None] * graphs.x[out.perm])
    assert out.edge_index.shape == (2, 0)
    assert out.edge_attr.shape == (0, 1)


def test_a_self_loop_counts_once_listed_or_not():
    pool = pooler(ASAPool, 0.5)
    plain = pack([(6, ring(6))], seed=0)
    looped = pack([(6, [(0, 0), *ring(6), (2, 2), (2, 2)])], seed=0)
    assert all(map(torch.equal, pool(*plain), pool(*looped)))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (None, "edge_attr"),
        (torch.tensor([1.0, -0.5]), "edge 1 has weight -0.5"),
        (torch.tensor([[float("nan")], [1.0]]), "edge 0 has weight nan"),
    ],
)
def test_missing_or_bad_weights_are_refused(weight, message):
    pool = ASAPool(CHANNELS, weighted=True)
    with pytest.raises(ValueError, match=message):
        pool(torch.randn(2, CHANNELS), torch.tensor([[0, 1], [1, 0]]), weight)


def test_layers_stack_and_the_weights_between_them_learn():
    graphs = pack([(16, ring(16)), (11, ring(11)), (1, [])], seed=0)
    first, second = pooler(ASAPool, 0.5), pooler(partial(ASAPool, weighted=True), 0.5, seed=1)
    out = first(*graphs)
    out = second(out.x.detach(), *out[1:4])
    assert out.batch.bincount().tolist() == [4, 3, 1]
    (out.x.sum() + out.edge_attr.sum()).backward()
    for part in (first.gcn.lin, first.query, first.attention):
        assert part.weight.grad.any()
    assert all(parameter.grad.any() for parameter in second.parameters())


def test_attn_stands_in_for_x_in_the_attention_only():
    pool, graphs = pooler(ASAPool, 1.0), pack([(6, ring(6))], seed=0)
    assert all(map(torch.equal, pool(*graphs), pool(*graphs, graphs.x)))
    # Alike in attn, the members of a cluster have equal shares.
    out = pool(*graphs, torch.zeros_like(graphs.x))
    mean = (graphs.x + graphs.x.roll(1, 0) + graphs.x.roll(-1, 0)) / 3
    close(out.x, out.score[:, None] * mean)
    with pytest.raises(ValueError, match="attn has 5 rows, but x has 6"):
        pool(*graphs, graphs.x[:5])


def test_dropout_acts_on_the_shares_in_training_only():
    graphs = pack([(20, ring(20))], seed=0)
    pool = pooler(partial(ASAPool, dropout=0.5), 1.0)
    trained = [pool(*graphs) for _ in range(2)]
    assert not torch.equal(trained[0].x, trained[1].x)
    assert torch.equal(trained[0].edge_index, trained[1].edge_index)
    pool.eval()
    assert torch.equal(pool(*graphs).x, pool(*graphs).x)


def test_bf16_joins_the_same_clusters():
    graphs = pack([(30, ring(30)), (5, ring(5))], seed=0)
    pool = pooler(ASAPool, 1.0)
    exact = pool(*graphs)
    coarse = pool.bfloat16()(*graphs._replace(x=graphs.x.bfloat16()))
    assert torch.equal(exact.edge_index, coarse.edge_index)
    assert coarse.edge_attr.dtype == coarse.x.dtype == torch.bfloat16
    torch.testing.assert_close(coarse.edge_attr.double(), exact.edge_attr, rtol=0.1, atol=0.02)
