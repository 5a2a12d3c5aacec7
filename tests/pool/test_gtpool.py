"""The layer against its equations: by hand on four nodes, and dense on random batches."""

import math

import pytest
import torch
from contract import CHANNELS, Graphs, close, drawn, graph_of, pack, pooler, ragged, ring
from hypothesis import given
from reference_sample import sample
from torch import Tensor, nn
from torch_geometric.nn import SAGPooling

from gtpool import GTPool, NodeDrop, unpool
from gtpool.ops import memory
from gtpool.ops.attention import attend
from gtpool.ops.dropout import set_keys
from gtpool.ops.sample import round_scores
from gtpool.ops.segment import layout_from_batch

# A path of four nodes, both ways, and weights that make the attention a matrix of fractions.
X = [[1, 0], [0, 1], [1, 1], [0, 0]]
PATH = [[0, 1], [1, 0], [1, 2], [2, 1], [2, 3], [3, 2]]
LAM = 0.4


def hand_layer(sampler: str) -> GTPool:
    pool = GTPool(2, ratio=0.5, lam=LAM, sampler=sampler, ffn_channels=1).double()
    weights = {
        "query.weight": [[math.sqrt(2) * math.log(2), 0], [0, math.sqrt(2) * math.log(2)]],
        "key.weight": [[1, 0], [0, 1]],
        "value.weight": [[-1, 0], [-1, 1]],
        "theta_global": [[1, 1]],
        "theta_local": [[1, 1]],
        "norm.weight": [2, 1],
        "norm.bias": [0, -1],
        "ffn.0.weight": [[1, 2]],
        "ffn.0.bias": [0.5],
        "ffn.3.weight": [[1], [-1]],
        "ffn.3.bias": [0, 1],
    }
    assert weights.keys() == pool.state_dict().keys()
    pool.load_state_dict({name: doubles(value) for name, value in weights.items()})
    return pool


def doubles(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


# (4) Q Kᵀ / √2 = ln 2 · X Xᵀ, so row i of the softmax is 2^(x_i·x_j), divided by its sum.
ATTENTION = [
    [2 / 6, 1 / 6, 2 / 6, 1 / 6],
    [1 / 6, 2 / 6, 2 / 6, 1 / 6],
    [2 / 9, 2 / 9, 4 / 9, 1 / 9],
    [1 / 4, 1 / 4, 1 / 4, 1 / 4],
]
V = [[-1, -1], [0, 1], [-1, 0], [0, 0]]  # X W_V, and V Θ = (-2, 1, -1, 0) for both Θ
# (5) A V Θ_g, for example (2·-2 + 1·1 + 2·-1 + 1·0) / 6 in row 0.
S_GLOBAL = [math.tanh(a) for a in (-5 / 6, -2 / 6, -6 / 9, -2 / 4)]
# (6) The same on the path and the diagonal only: (2·-2 + 1·1) / 6 in row 0.
S_LOCAL = [math.tanh(a) for a in (-3 / 6, -2 / 6, -2 / 9, -1 / 4)]
# (7) s and its softmax S, (8).
RAW = [LAM * far + (1 - LAM) * near for far, near in zip(S_GLOBAL, S_LOCAL, strict=True)]
SHARE = [math.exp(s) / sum(math.exp(s) for s in RAW) for s in RAW]
# (9) the right border of each node
CDF = [sum(SHARE[: i + 1]) for i in range(4)]


def hand_kept(sampler: str) -> list[int]:
    points = (1 / 3, 2 / 3)  # M = ⌈0.5 · 4⌉ = 2, so k = 1/3 and 2/3
    if sampler == "topk":
        return sorted(sorted(range(4), key=SHARE.__getitem__)[-2:])
    borders = CDF  # (10) the interval of node i ends at CDF_i
    if sampler == "rwsv":  # (12) and midway to CDF_{i+1} in the variant
        borders = [(CDF[i] + CDF[i + 1]) / 2 for i in range(3)] + [1.0]
    # (10), (11) the first node whose interval ends at or after the point; none is hit twice here.
    return [next(i for i in range(4) if borders[i] >= point) for point in points]


def hand_features(node: int) -> list[float]:
    # (14), (15) X̂ = A' V + X
    row = [
        sum(ATTENTION[node][j] * V[j][channel] for j in range(4)) + X[node][channel]
        for channel in range(2)
    ]
    # (16) LN with weight (2, 1) and bias (0, -1); FFN with W_1 = (1, 2), b_1 = 0.5,
    # W_2 = (1, -1), b_2 = (0, 1).
    mean = sum(row) / 2
    spread = math.sqrt(sum((value - mean) ** 2 for value in row) / 2 + 1e-5)
    normed = [2 * (row[0] - mean) / spread, (row[1] - mean) / spread - 1]
    hidden = normed[0] + 2 * normed[1] + 0.5
    hidden = hidden * (1 + math.erf(hidden / math.sqrt(2))) / 2  # GELU
    return [row[0] + hidden, row[1] - hidden + 1]


def test_scores_by_hand():
    pool = hand_layer("rws")
    x, edge_index = doubles(X), torch.tensor(PATH).T
    level = layout_from_batch(torch.zeros(4, dtype=torch.long))
    q, k, v = (part(x).unsqueeze(1) for part in (pool.query, pool.key, pool.value))
    attended, lse = attend(q, k, v, level.ptr)
    close(q[:, 0], x * math.sqrt(2) * math.log(2))
    assert k[:, 0].tolist() == X
    assert v[:, 0].tolist() == V
    attention = ((q[:, 0] @ k[:, 0].T) / math.sqrt(2) - lse).exp()
    close(attention, doubles(ATTENTION))
    close(attended[:, 0], doubles(ATTENTION) @ v[:, 0])

    scores = pool.scores(x, edge_index)
    assert scores.global_score.tolist() == pytest.approx(S_GLOBAL, abs=1e-12)
    assert scores.local_score.tolist() == pytest.approx(S_LOCAL, abs=1e-12)
    assert scores.score.tolist() == pytest.approx(RAW, abs=1e-12)


@pytest.mark.parametrize(
    ("sampler", "kept", "edges"),
    [
        ("rws", [1, 2], [(0, 1), (1, 0)]),
        ("rwsv", [0, 2], []),
        ("topk", [1, 3], []),
    ],
)
def test_layer_by_hand(sampler, kept, edges):
    assert hand_kept(sampler) == kept
    pool = hand_layer(sampler)
    out = pool(doubles(X), torch.tensor(PATH).T)
    assert out.perm.tolist() == kept
    assert sorted(map(tuple, out.edge_index.T.tolist())) == edges  # (13)
    assert out.score.tolist() == pytest.approx([SHARE[i] for i in kept], abs=1e-12)
    expected = [hand_features(i) for i in kept]
    close(out.x, doubles(expected))


def dense_layer(pool: GTPool, graphs: Graphs, attn=None):
    """Compute the layer graph by graph with n × n matrices: features, shares and kept nodes."""
    seen = graphs.x if attn is None else attn
    q, k, v = pool.query(seen), pool.key(seen), pool.value(graphs.x)
    xs, shares, kepts = [], [], []
    for graph in range(int(graphs.batch.max()) + 1):
        nodes = (graphs.batch == graph).nonzero().flatten()
        first, n = int(nodes[0]), len(nodes)
        adjacency = torch.zeros(n, n, dtype=torch.double)
        for source, target in graphs.edge_index.T.tolist():
            if graphs.batch[source] == graph and source != target:
                adjacency[target - first, source - first] += 1
        raw, attended = torch.zeros(n, dtype=torch.double), []
        for head in range(pool.heads):
            width = pool.in_channels // pool.heads
            part = slice(head * width, (head + 1) * width)
            qh, kh, vh = q[nodes, part], k[nodes, part], v[nodes, part]
            attention = (qh @ kh.T / math.sqrt(width)).softmax(1)  # (4)
            s_global = (attention @ vh @ pool.theta_global[head]).tanh()  # (5)
            masked = attention * (adjacency + torch.eye(n))
            s_local = (masked @ vh @ pool.theta_local[head]).tanh()  # (6)
            raw = raw + pool.lam * s_global + (1 - pool.lam) * s_local  # (7)
            attended.append(attention @ vh)
        wheel = raw / pool.temperature
        kept = sample(
            pool.sampler, round_scores(wheel), [n], pool.ratio, order=pool.order
        )  # (8)-(12)
        pooled = torch.cat(attended, 1)[kept]  # (14)
        if pool.gate is not None:
            pooled = pooled * raw[kept].tanh()[:, None]
        if pool.project is not None:
            pooled = pooled @ pool.project.weight.T
        x = pooled + graphs.x[nodes[kept]]  # (15)
        mean = x.mean(1, keepdim=True)
        normed = (x - mean) / (x.var(1, keepdim=True, unbiased=False) + pool.norm.eps).sqrt()
        hidden = (normed * pool.norm.weight + pool.norm.bias) @ pool.ffn[0].weight.T
        hidden = nn.functional.gelu(hidden + pool.ffn[0].bias)
        xs.append(hidden @ pool.ffn[3].weight.T + pool.ffn[3].bias + x)  # (16)
        shares.append(wheel.softmax(0)[kept])
        kepts.append(nodes[kept])
    return torch.cat(xs), torch.cat(shares), torch.cat(kepts)


@pytest.mark.parametrize("with_attn", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler": "rws", "gate": "tanh"},
        {"heads": 2, "order": "score"},
        {"heads": 4, "out_proj": True, "gate": "tanh", "lam": 0.7},
        {"lam": 0.0, "gate": "tanh", "heads": 2},
        {"lam": 1.0, "gate": "tanh", "sampler": "topk"},
        {"out_proj": True, "ffn_channels": 3, "sampler": "rws", "order": "score"},
        {"temperature": 0.1, "sampler": "rws"},
        {"temperature": 7.0, "heads": 2, "gate": "tanh"},
        {"gate": "tanh", "learn_score": False},
    ],
    ids=str,
)
def test_layer_equals_dense_layer(options, with_attn):
    @drawn
    @given(ragged())
    def check(graphs):
        compare_with_dense(graphs, options, with_attn)

    check()


@pytest.mark.parametrize("gate", [None, "tanh"])
def test_layer_equals_dense_layer_on_large_graphs(gate):
    graphs = pack([(n, ring(n)) for n in (3, 130, 40, 100, 1, 260)], seed=0)
    compare_with_dense(graphs, {"gate": gate, "heads": 2}, with_attn=False)


def compare_with_dense(graphs: Graphs, options: dict, with_attn: bool) -> None:
    pool = pooler(lambda width, ratio: GTPool(width, ratio, **options), 0.5)
    asking = [graphs.x.requires_grad_(), *(p for p in pool.parameters() if p.requires_grad)]
    attn = graphs.x.detach().roll(1, 1).requires_grad_() if with_attn else None
    asking += [] if attn is None else [attn]

    out = pool(*graphs, attn)
    x, share, kept = dense_layer(pool, graphs, attn)
    assert out.perm.tolist() == kept.tolist()
    results = (out.x, out.score), (x, share)
    gradients = []
    for features, shares in results:
        loss = features.sin().sum()
        if pool.gate is not None:  # the share of the wheel has a gradient only then
            loss = loss + shares.cos().sum()
        gradients.append(torch.autograd.grad(loss, asking, materialize_grads=True))
    ours, theirs = ([*results[i], *gradients[i]] for i in range(2))
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-10, atol=1e-10)


def linear_layer(**options) -> GTPool:
    """A layer without activation, whose local score adds up over edges."""
    torch.manual_seed(0)
    return GTPool(CHANNELS, act=nn.Identity(), **options).double()


def test_a_self_loop_counts_once_listed_or_not():
    pool, plain = linear_layer(), graph_of(3, ring(3))
    looped = graph_of(3, [*ring(3), (0, 0), (2, 2), (2, 2)])
    for one, other in zip(
        pool.scores(plain.x, plain.edge_index),
        pool.scores(looped.x, looped.edge_index),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_repeated_edges_add_up():
    pool = linear_layer()
    local = [
        pool.scores(g.x, g.edge_index).local_score
        for g in (graph_of(3, [(0, 1)] * count) for count in range(3))
    ]
    assert (local[1] - local[0])[1].abs() > 1e-3
    close(local[2] - local[0], 2 * (local[1] - local[0]))


def test_an_edge_counts_for_its_target():
    pool = linear_layer()
    none, edge = graph_of(3, []), graph_of(3, [(0, 1)])
    before = pool.scores(none.x, none.edge_index)
    after = pool.scores(edge.x, edge.edge_index)
    assert torch.equal(before.global_score, after.global_score)
    changed = (before.local_score != after.local_score).tolist()
    assert changed == [False, True, False]


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({}, (False, False)),
        ({"gate": "tanh"}, (True, True)),
        ({"gate": "tanh", "lam": 0}, (False, True)),
        ({"gate": "tanh", "lam": 1}, (True, False)),
        ({"lam": 1}, (False, False)),
        ({"gate": "tanh", "learn_score": False}, (False, False)),
    ],
)
def test_theta_asks_for_a_gradient_only_where_one_can_come(options, asks):
    pool = GTPool(CHANNELS, **options)
    assert (pool.theta_global.requires_grad, pool.theta_local.requires_grad) == asks
    pool.reset_parameters()
    assert (pool.theta_global.requires_grad, pool.theta_local.requires_grad) == asks


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_lam_weighs_the_two_scores(lam):
    pool, graphs = linear_layer(lam=lam), graph_of(5, ring(5))
    scores = pool.scores(graphs.x, graphs.edge_index)
    assert torch.equal(scores.score, scores.global_score if lam else scores.local_score)


def test_output_unpacks_as_pyg_poolers_do():
    graphs = graph_of(6, ring(6))
    ours = GTPool(CHANNELS).double()(*graphs)
    theirs = SAGPooling(CHANNELS).double()(*graphs)
    assert isinstance(ours, NodeDrop)
    x, edge_index, edge_attr, batch, perm, score = ours
    for mine, its in zip((x, batch, perm, score), (theirs[i] for i in (0, 3, 4, 5)), strict=True):
        assert (mine.shape, mine.dtype) == (its.shape, its.dtype)
    assert edge_index.dtype == theirs[1].dtype
    assert edge_attr is None
    assert NodeDrop._fields == ("x", "edge_index", "edge_attr", "batch", "perm", "score")


def test_perm_says_which_input_node_each_row_was():
    torch.manual_seed(0)
    graphs = pack([(7, ring(7)), (4, ring(4))], seed=0)
    pool = GTPool(CHANNELS).double()
    nn.init.zeros_(pool.value.weight)
    nn.init.zeros_(pool.ffn[3].weight)
    nn.init.zeros_(pool.ffn[3].bias)
    out = pool(*graphs)  # only the residual is left
    assert torch.equal(out.x, graphs.x[out.perm])
    assert out.perm.tolist() == sorted(out.perm.tolist())


def test_unpool_puts_features_back():
    graphs = graph_of(9, ring(9))
    out = GTPool(CHANNELS).double()(*graphs)
    back = unpool(out.x, out.perm, 9)
    assert torch.equal(back[out.perm], out.x)
    dropped = sorted(set(range(9)) - set(out.perm.tolist()))
    assert len(dropped) == 4
    assert not back[dropped].any()
    assert unpool(out.score, out.perm, 9).shape == (9,)


def test_attn_stands_in_for_x_in_queries_and_keys_only():
    pool, graphs = linear_layer(), graph_of(5, ring(5))
    plain, same = (pool(*graphs, attn) for attn in (None, graphs.x))
    assert torch.equal(plain.x, same.x)
    # Alike in attn, all nodes attend evenly: each has the global score of the mean value.
    scores = pool.scores(graphs.x, graphs.edge_index, attn=torch.zeros_like(graphs.x))
    mean = pool.value(graphs.x).mean(0) @ pool.theta_global[0]
    close(scores.global_score, mean.expand(5))


def test_dropout_acts_in_training_only():
    graphs = graph_of(6, ring(6))
    pool = GTPool(CHANNELS, dropout=0.5).double()
    assert not torch.equal(pool(*graphs).x, pool(*graphs).x)
    pool.eval()
    assert torch.equal(pool(*graphs).x, pool(*graphs).x)


# What the paper did not ask


def test_the_wheel_is_spun_at_a_temperature_and_the_gate_is_not():
    torch.manual_seed(0)
    plain = GTPool(CHANNELS, ratio=1.0, gate="tanh").double()
    graphs = graph_of(6, ring(6))
    before, score = plain(*graphs), plain.scores(graphs.x, graphs.edge_index).score
    for temperature in (0.01, 1.0, 100.0):
        pool = GTPool(CHANNELS, ratio=1.0, gate="tanh", temperature=temperature).double()
        pool.load_state_dict(plain.state_dict())
        after = pool(*graphs)
        close(after.score, (score / temperature).softmax(0))
        assert torch.equal(after.x, before.x)


def test_a_temperature_changes_who_is_kept():
    kept = set()
    for temperature in (0.01, 100.0):
        torch.manual_seed(0)
        pool = GTPool(CHANNELS, temperature=temperature).double()
        kept.add(tuple(pool(*graph_of(20, ring(20))).perm.tolist()))
    assert len(kept) == 2


@pytest.mark.parametrize("sampler", ["rws", "rwsv"])
@pytest.mark.parametrize("order", ["index", "score"])
def test_random_points_draw_by_share_and_without_replacement(sampler, order):
    count, temperature = 4000, 0.2
    wheel = {"sampler": sampler, "order": order, "points": "random", "temperature": temperature}
    pool = GTPool(2, lam=LAM, ffn_channels=1, **wheel).double()
    pool.load_state_dict(hand_layer(sampler).state_dict())
    first = 4 * torch.arange(count)
    edges = (torch.tensor(PATH).T.unsqueeze(1) + first.unsqueeze(1)).flatten(1)
    batch = torch.arange(count).repeat_interleave(4)
    set_keys(pool, torch.tensor([3]))
    pairs = pool(doubles(X).repeat(count, 1), edges, None, batch).perm.view(count, 2) % 4
    share = [math.exp(s / temperature) for s in RAW]
    share = [part / sum(share) for part in share]
    for i in range(4):
        for j in range(i + 1, 4):
            wanted = share[i] * share[j] * (1 / (1 - share[i]) + 1 / (1 - share[j]))
            found = (pairs == torch.tensor([i, j])).all(1).double().mean().item()
            assert found == pytest.approx(wanted, abs=0.025), (i, j)


@pytest.mark.parametrize("keyed", [True, False])
def test_random_points_are_drawn_anew_at_each_step_of_training(keyed):
    torch.manual_seed(0)
    pool, graphs = GTPool(CHANNELS, points="random").double(), graph_of(30, ring(30))
    kept = set()
    for step in range(5):
        set_keys(pool, torch.tensor([step]) if keyed else None)
        kept.add(tuple(pool(*graphs).perm.tolist()))
    assert len(kept) == 5
    pool.eval()
    assert torch.equal(pool(*graphs).perm, pool(*graphs).perm)


def test_random_points_follow_from_the_key():
    pool, graphs = GTPool(CHANNELS, points="random").double(), graph_of(30, ring(30))
    kept = []
    for _ in range(2):
        set_keys(pool, torch.tensor([7]))
        kept.append(pool(*graphs).perm)
    assert torch.equal(*kept)


def test_at_rest_random_points_do_not_favour_a_number():
    torch.manual_seed(0)
    graphs = pack([(n, []) for n in range(20, 120)], seed=0)
    out = GTPool(CHANNELS, points="random", temperature=100.0).double().eval()(*graphs)
    first = torch.arange(20, 120).cumsum(0) - torch.arange(20, 120)
    number = out.perm - first[out.batch]
    assert (number[number < 20].bincount() / 100 - 0.5).abs().max() < 0.2


def test_a_frozen_score_still_passes_gradients_to_the_attention():
    torch.manual_seed(0)
    pool = GTPool(CHANNELS, gate="tanh", learn_score=False).double()
    kept = pool(*graph_of(6, ring(6)))
    kept.x.square().sum().backward()
    assert pool.theta_global.grad is None
    assert all(part.weight.grad.any() for part in (pool.query, pool.key, pool.value))


def test_the_defaults_leave_the_weights_by_name_and_the_keys_as_they_are():
    plain, spun = GTPool(CHANNELS), GTPool(CHANNELS, points="random", temperature=2.0)
    assert plain.state_dict().keys() == spun.state_dict().keys()
    for pool in (plain, spun):
        pool.ffn[2].p = 0.5  # a layer that draws nothing needs no key
        set_keys(pool, torch.tensor([1]))
    assert spun.noise is not None
    assert plain.noise is None
    assert torch.equal(plain.ffn[2].key, spun.noise.key)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be a finite number above 0, got 0.0"),
        ({"temperature": -1.0}, "temperature must be a finite number above 0, got -1.0"),
        ({"temperature": math.inf}, "temperature must be a finite number above 0, got inf"),
        ({"temperature": math.nan}, "temperature must be a finite number above 0, got nan"),
        ({"points": "fixed"}, "unknown points 'fixed'; choose one of 'even', 'random'"),
        ({"points": "random", "sampler": "topk"}, "needs a wheel"),
        ({"learn_score": False}, "learn_score=False needs a gate"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GTPool(CHANNELS, **options)


# Linear attention


@pytest.mark.parametrize("options", [{}, {"heads": 2, "gate": "tanh"}])
def test_linear_attention_is_near_the_exact_one_while_logits_are_small(options):
    torch.manual_seed(0)
    exact, linear = (GTPool(8, attention=kind, **options) for kind in ("exact", "linear"))
    linear.load_state_dict(exact.state_dict())
    x, ring = 0.1 * torch.randn(12, 8), torch.stack([torch.arange(12), torch.arange(12).roll(1)])
    seen = [layer.scores(x, ring).score for layer in (exact, linear)]
    torch.testing.assert_close(*seen, atol=1e-4, rtol=1e-3)
    assert not torch.equal(*seen)


def test_a_batch_that_would_not_fit_is_refused_before_it_is_tried(monkeypatch):
    monkeypatch.setattr(memory, "CHECK_FROM_NODES", 10)
    monkeypatch.setattr(memory, "free_memory", lambda _: 1000)
    with pytest.raises(ValueError, match=r"needs about .* GB, but .* GB are free"):
        GTPool(8)(torch.randn(20, 8), torch.zeros(2, 0, dtype=torch.long))


# Attention whose keys look like its values


@pytest.mark.parametrize("graphs", [1, 2])
def test_what_attends_may_share_memory_with_the_features(graphs):
    x = torch.randn(6 * graphs, 8, dtype=torch.double, requires_grad=True)
    edges = torch.zeros(2, 0).long()
    batch = torch.arange(graphs).repeat_interleave(6)
    pool = GTPool(8).double()
    grads = []
    for attn in (x.detach(), x.detach().clone()):
        out = pool(x, edges, None, batch, attn).x
        grads.append(torch.autograd.grad(out.square().sum(), [x])[0])
    close(*grads)


@pytest.mark.parametrize("options", [{}, {"heads": 2}, {"gate": "tanh"}], ids=str)
def test_the_backward_pass_may_run_under_autocast(options):
    torch.manual_seed(0)
    pool, x = GTPool(8, **options), torch.randn(12, 8, requires_grad=True)
    batch = torch.tensor([0] * 5 + [1] * 7)
    with torch.autocast("cpu", torch.bfloat16):
        pool(x, torch.zeros(2, 0).long(), None, batch).x.float().sum().backward()
    assert x.grad.isfinite().all()
