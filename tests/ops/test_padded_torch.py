"""The steps in fixed shapes against those on packed batches."""

import pytest
import torch
from drawn import BONDS, batches, bonded, wider
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpool.data.device_dataset import DeviceDataset
from gtpool.graph import GraphLayout
from gtpool.ops import padded_torch
from gtpool.ops.attention import attend_reference
from gtpool.ops.packed import PackedRows
from gtpool.ops.padded_segment import layout_of_sizes
from gtpool.ops.padded_torch import keep_mask
from gtpool.ops.sample import ORDERS, SAMPLERS, kept_counts, round_scores
from gtpool.ops.segment import induced_edges, offsets

RATIOS = (0.1, 0.5, 0.77, 1.0, 1, 3)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def layout(seed, runs=3, graphs=12, largest=12):
    """Draw runs of graphs, some places of them empty, with some rows of padding behind each."""
    random = torch.Generator().manual_seed(seed)
    sizes = torch.randint(largest + 1, (runs, graphs), generator=random)
    spare = int(torch.randint(4, (), generator=random))
    return layout_of_sizes(sizes, max(1, int(sizes.sum(1).max()) + spare))


def smaller(rows, ratio, runs, spare=2):
    """Lay out what a ratio keeps of each graph."""
    kept = kept_counts(rows.size, ratio).view(runs, -1)
    return layout_of_sizes(kept, int(kept.sum(1).max()) + spare)


def at_level_0(data, index, extra=0):
    stock = DeviceDataset.of(data)
    return stock.gather(index, wider(stock.capacity(index, ()), extra), ())


def pairs(csr):
    """List the edges that count, in the numbers of the level."""
    source, target, counts = padded_torch.ends(csr, loops=True)
    return sorted(zip(source[counts].tolist(), target[counts].tolist(), strict=True))


def adjacency(batch):
    """Give A with A[i, j] the number of edges j -> i, in rows of level 0."""
    csr, rows = batch.csr, batch.x.size(0)
    real = csr.source >= 0
    dense = torch.zeros(rows, rows, dtype=torch.float64)
    ends = (csr.sink[real], csr.source[real])
    return dense.index_put(ends, torch.ones(int(real.sum()), dtype=torch.float64), accumulate=True)


# Which rows stay


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_rows_that_stay_are_those_that_the_sampler_keeps(sampler, order, dtype):
    for seed in range(60):
        runs = 1 + 2 * (seed % 2)
        rows, ratio = layout(seed, runs), RATIOS[seed % len(RATIOS)]
        score = normal(rows.batch.numel(), seed=seed, dtype=dtype)
        if seed % 3:  # many ties, and wheels whose points fall on borders
            score = (score * (seed % 3)).round()
        real = rows.batch < rows.size.numel()
        score[~real] = (0.0, torch.nan, 1e30)[seed % 3]
        kept = kept_counts(rows.size, ratio)
        found = keep_mask(score, rows, kept, sampler=sampler, order=order)
        assert not found[~real].any()
        settled, sizes = round_scores(score[real]), rows.size[rows.size > 0]
        batch = torch.arange(sizes.numel()).repeat_interleave(sizes)
        wanted = SAMPLERS[sampler](settled, batch, ratio, order=order)
        assert found[real].nonzero().flatten().tolist() == wanted.tolist()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_extreme_score_is_sampled_alike(sampler):
    rows = layout_of_sizes(torch.tensor([[4, 1]]), 7)
    for values in ([1e4, -1e4, 0.0, 1e4, 3.0], [-0.0, 0.0, -0.0, 0.0, 0.0]):
        score = torch.tensor([*values, 0.0, 0.0])
        found = keep_mask(score, rows, torch.tensor([2, 1]), sampler=sampler, order="index")
        batch = torch.tensor([0, 0, 0, 0, 1])
        wanted = SAMPLERS[sampler](round_scores(score[:5]), batch, 0.5)
        assert found.nonzero().flatten().tolist() == wanted.tolist()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_kept_rows_and_new_numbers_are_inverse(sampler):
    for seed in range(30):
        rows = layout(seed)
        after = smaller(rows, 0.5, 3)
        score = normal(rows.batch.numel(), seed=seed)
        kept, number = padded_torch.sample(
            score, rows, after, sampler=sampler, order="index", longest=12
        )
        there, stay = kept >= 0, number >= 0
        assert torch.equal(there, after.batch < after.size.numel())
        assert torch.equal(number[kept[there]], torch.arange(kept.numel())[there])
        assert torch.equal(kept[number[stay]], torch.arange(number.numel())[stay])
        assert torch.equal(rows.batch[kept[there]], after.batch[there])
        for run in kept.view(3, -1):  # nodes stay in order
            assert torch.equal(run[run >= 0], run[run >= 0].sort().values)


def test_taken_rows_are_zero_on_padding_and_pass_the_gradient_to_kept_rows_alone():
    rows = layout(1)
    after = smaller(rows, 0.5, 3)
    x = normal(rows.batch.numel(), 4).requires_grad_()
    chosen = padded_torch.sample(x[:, 0], rows, after, sampler="rwsv", order="index", longest=12)
    taken = padded_torch.take(x, chosen)
    there = chosen.kept >= 0
    assert torch.equal(taken[there], x[chosen.kept[there]])
    assert not taken[~there].any()
    sent = normal(*taken.shape, seed=1)
    (grad,) = torch.autograd.grad(taken, x, sent)
    wanted = torch.zeros_like(grad).index_copy(0, chosen.kept[there], sent[there])
    assert torch.equal(grad, wanted)


@given(drawn=batches(), ratio=st.sampled_from((0.5, 0.8, 2)), extra=st.sampled_from((0, 70)))
@settings(max_examples=60, deadline=None)
def test_edges_follow_the_nodes_from_level_to_level(drawn, ratio, extra):
    data, index = drawn
    batch = at_level_0(data, index, extra)
    csr, rows, nodes = batch.csr, batch.levels[0], batch.x.size(0)
    edges = torch.stack([csr.source, csr.sink])[:, csr.source >= 0]
    for level in range(3):
        assert pairs(csr) == sorted(map(tuple, edges.T.tolist()))
        after = smaller(rows, ratio, len(index))
        score = normal(rows.batch.numel(), seed=level)
        chosen = padded_torch.sample(score, rows, after, sampler="rwsv", order="index", longest=7)
        csr, there = padded_torch.induced_csr(csr, chosen), chosen.kept >= 0
        # What is induced is numbered without padding between runs.
        edges, _ = induced_edges(edges, None, chosen.kept[there], nodes)
        edges = torch.arange(chosen.kept.numel())[there][edges]
        rows, nodes = after, after.batch.numel()


@given(drawn=batches())
@settings(max_examples=20, deadline=None)
def test_origin_and_place_are_inverse(drawn):
    data, index = drawn
    batch = at_level_0(data, index)
    rows = batch.levels[0]
    after = smaller(rows, 0.5, len(index))
    chosen = padded_torch.sample(
        batch.x[:, 0], rows, after, sampler="rws", order="index", longest=7
    )
    csr = padded_torch.induced_csr(batch.csr, chosen)
    there, placed = csr.origin >= 0, csr.place >= 0
    assert torch.equal(csr.place[csr.origin[there]], torch.arange(there.numel())[there])
    assert torch.equal(csr.origin[csr.place[placed]], torch.arange(placed.numel())[placed])


# Convolutions


@given(drawn=batches(), extra=st.sampled_from((0, 3)))
@settings(max_examples=60, deadline=None)
def test_the_sums_over_neighbours_are_products_with_the_matrix(drawn, extra):
    data, index = drawn
    batch = at_level_0(data, index, extra)
    rows, matrix = batch.levels[0], adjacency(batch)
    real = (rows.batch < rows.size.numel()).unsqueeze(1)
    x = torch.where(real, normal(batch.x.size(0), 4), 7.0)  # what is on padding stays there
    torch.testing.assert_close(
        torch.where(real, padded_torch.gin_sum(x, batch.csr), 0.0), real * (x + matrix @ x)
    )
    matrix = matrix.fill_diagonal_(1)  # A + I, in which a listed loop does not count
    root = matrix.sum(1).rsqrt().unsqueeze(1)
    scale = padded_torch.root_degrees(batch.csr, x)
    torch.testing.assert_close(scale.unsqueeze(1), root * real)
    found = padded_torch.gcn_sum(x, scale, batch.csr)
    torch.testing.assert_close(found, real * root * (matrix @ (root * x)))


@given(drawn=batches(), ratio=st.sampled_from((None, 0.5)), extra=st.sampled_from((0, 3)))
@settings(max_examples=40, deadline=None)
def test_sums_along_bonds_go_by_the_formula(drawn, ratio, extra):
    data, index = drawn
    stock, runs = DeviceDataset.of(bonded(data), edge_categories=BONDS), len(index)
    batch = stock.gather(index, wider(stock.capacity(index, ()), extra), ())
    csr, rows = batch.csr, batch.levels[0]
    if ratio is not None:
        after = smaller(rows, ratio, runs)
        score = normal(rows.batch.numel())
        chosen = padded_torch.sample(score, rows, after, sampler="rwsv", order="index", longest=7)
        csr, rows = padded_torch.induced_csr(csr, chosen), after
    x, table = normal(rows.batch.numel(), 4), normal(runs, sum(BONDS) + 1, 4, seed=1)
    run = torch.arange(x.size(0)) // (x.size(0) // runs)
    source, target, counts = padded_torch.ends(csr, loops=True)
    source, target = source[counts], target[counts]
    degree = 1 + source.bincount(minlength=x.size(0)).double()
    bond = torch.stack(
        [
            table[run[end], codes].sum(0)
            for end, codes in zip(target, batch.edge_types.entering[counts].long(), strict=True)
        ]
        or [table.new_empty(4)]
    )[: source.numel()]
    passed = (x[source] + bond).relu() / (degree[source] * degree[target]).sqrt().unsqueeze(1)
    wanted = (x + table[run, -1]).relu() / degree.unsqueeze(1)
    wanted = wanted.index_add(0, target, passed)
    real = (rows.batch < rows.size.numel()).unsqueeze(1)
    scale = padded_torch.root_out_degrees(csr, x)
    torch.testing.assert_close(scale.unsqueeze(1), degree.rsqrt().unsqueeze(1) * real)
    found = padded_torch.bond_sum(x, table, scale, csr, batch.edge_types)
    torch.testing.assert_close(found, wanted * real)


# Attention


@pytest.mark.parametrize("way", ["packed", "dense"])
@pytest.mark.parametrize(("runs", "heads"), [(1, 1), (3, 2)])
def test_attention_is_that_of_the_reference(way, runs, heads, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: way == "dense")
    for seed in range(8):
        rows = layout(seed, runs, graphs=5, largest=9)
        real = rows.batch < rows.size.numel()
        if not real.any():
            continue
        qkv = normal(rows.batch.numel(), 3, heads, 4, seed=seed)
        qkv[~real] = 1e3
        qkv.requires_grad_()
        found = padded_torch.attend(qkv, rows, 9)
        ptr = torch.cat([rows.size.new_zeros(1), rows.size[rows.size > 0].cumsum(0)])
        wanted = attend_reference(*qkv[real].unbind(1), ptr, scale=0.5)
        sent = [normal(*part.shape, seed=1) for part in wanted]
        inner = [part[real] for part in found]
        torch.testing.assert_close(inner, list(wanted), rtol=1e-10, atol=1e-10)
        grads = [torch.autograd.grad(parts, qkv, sent)[0] for parts in (inner, wanted)]
        torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)
        assert all(part.isfinite().all() for part in found)


def test_attention_compiles_whole():
    rows = layout(3, 2, graphs=4, largest=6)
    qkv = normal(rows.batch.numel(), 3, 2, 4)
    compiled = torch.compile(padded_torch.attend, fullgraph=True, backend="eager")
    real = rows.batch < rows.size.numel()
    found, wanted = compiled(qkv, rows, 6), padded_torch.attend(qkv, rows, 6)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one[real], other[real])


@pytest.mark.parametrize("way", ["packed", "dense"])
def test_a_run_gone_wrong_leaves_the_attention_of_others_alone(way, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: way == "dense")
    rows = layout(5, 2, graphs=4, largest=6)
    qkv = normal(2, rows.batch.numel() // 2, 3, 2, 4)
    wanted = padded_torch.attend(qkv.flatten(0, 1), rows, 6)
    qkv[0] = torch.nan
    found = padded_torch.attend(qkv.flatten(0, 1), rows, 6)
    other = (torch.arange(rows.batch.numel()) >= qkv.size(1)) & (rows.batch < rows.size.numel())
    for before, after in zip(wanted, found, strict=True):
        torch.testing.assert_close(after[other], before[other])


# Read-outs


@pytest.mark.parametrize("name", ["mean", "maximum", "total", "mean_max"])
@pytest.mark.parametrize("runs", [1, 3])
def test_read_outs_are_those_of_the_packed_batch(name, runs):
    for seed in range(5):
        rows = layout(seed, runs, graphs=5, largest=6)
        real = rows.batch < rows.size.numel()
        x = normal(rows.batch.numel(), 3, seed=seed).round()  # with ties
        x[~real] = 1e3
        x.requires_grad_()
        found = getattr(padded_torch, name)(x, rows)
        packed = PackedRows(GraphLayout(rows.size, offsets(rows.size), rows.batch[real]))
        wanted = getattr(packed, name)(x[real])
        torch.testing.assert_close(found, wanted)
        sent = normal(*found.shape, seed=1)
        grads = [torch.autograd.grad(part, x, sent)[0] for part in (found, wanted)]
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", ["mean", "maximum", "total", "mean_max"])
def test_a_run_gone_wrong_leaves_the_read_outs_of_others_alone(name):
    rows = layout_of_sizes(torch.tensor([[2, 1], [1, 3]]), 6)
    x = normal(12, 3)
    x[:6] = torch.nan
    x.requires_grad_()
    found = getattr(padded_torch, name)(x, rows)[2:]
    assert found.isfinite().all()
    (grad,) = torch.autograd.grad(found.sum(), x)
    assert grad[6:].isfinite().all()
