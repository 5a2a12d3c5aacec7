"""The laws that every pooler obeys, and the exceptions that are declared.

A law takes a factory of modules with PyG's call convention and fails by an AssertionError. The
factory of a pooler that drops nodes is ``make(in_channels, ratio)`` and its modules return PyG's
six (``LAWS``); that of a pooler that merges them is ``make(in_channels, clusters)`` and its modules
return a ``NodeMerge`` (``CLUSTER_LAWS``).
"""

import copy
import inspect
import operator
import pickle
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from math import ceil
from typing import NamedTuple

import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gtpool.graph import NodeMerge
from gtpool.ops.segment import layout_from_batch

CHANNELS = 8
RATIOS = (0.07, 0.25, 0.5, 0.8, 1.0, 1, 3)
CLUSTERS = (1, 2, 5)
NUMBERING = "the paper lays the wheel out in index order, so the numbering of the nodes decides"

Make = Callable[[int, float], nn.Module]

# Small graphs in which something is missing or there twice.
ODD_GRAPHS = {
    "one node": (1, []),
    "one node with a loop": (1, [(0, 0)]),
    "no edges": (4, []),
    "isolated nodes": (5, [(0, 1), (1, 0)]),
    "loops": (3, [(0, 0), (1, 1), (2, 2), (0, 1), (1, 0)]),
    "nothing but loops": (2, [(0, 0), (1, 1)]),
    "repeated edges": (3, [(0, 1), (0, 1), (1, 0), (1, 2), (1, 2), (1, 2), (2, 2), (2, 2)]),
}

# No shrinking: the graphs are small as drawn, and declared exceptions fail quickly.
drawn = settings(
    max_examples=20, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
)


class Graphs(NamedTuple):
    """A packed batch, in the order in which a pooler takes it."""

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None
    batch: Tensor


def law_sizes(make: Make) -> None:
    """1. A graph of n nodes keeps ceil(ratio·n), no graph is lost, ``batch`` stays sorted."""

    @drawn
    @given(ragged(), st.sampled_from(RATIOS))
    def check(graphs: Graphs, ratio: float) -> None:
        x, _, _, batch, perm, score = resting(make, ratio)(*graphs)
        expected = [kept_of(n, ratio) for n in graphs.batch.bincount().tolist()]
        assert batch.bincount().tolist() == expected
        assert batch.tolist() == sorted(batch.tolist())
        assert batch.tolist() == graphs.batch[perm].tolist()
        assert perm.unique().numel() == perm.numel()
        assert x.shape == (len(perm), CHANNELS)
        assert score.shape == perm.shape

    check()


def law_relabelling(make: Make) -> None:
    """2. Other numbers for the nodes, the same nodes kept, where no two scores are equal."""

    @drawn
    @given(ragged(), st.sampled_from(RATIOS), st.randoms(use_true_random=False))
    def check(graphs: Graphs, ratio: float, random) -> None:
        assume(distinct(resting(make, 1.0)(*graphs)))
        old, renumbered = shuffled(graphs, random)
        pool = resting(make, ratio)
        before = pool(*graphs)
        after = pool(*renumbered)
        by_old = old[after[4]].argsort()
        assert before[4].sort()[0].tolist() == old[after[4]][by_old].tolist()
        by_number = before[4].argsort()
        close(before[0][by_number], after[0][by_old])
        close(before[5][by_number], after[5][by_old])
        one, other = edges_of(before, before[4]), edges_of(after, old[after[4]])
        close(torch.tensor(one, dtype=torch.double), torch.tensor(other, dtype=torch.double))

    check()


def law_numbering(make: Make) -> None:
    """2b. Other numbers, the same kept nodes, where scores tie too; symmetric nodes count as one.

    Few features are different, so that many scores are equal.
    """

    @settings(drawn, max_examples=60)
    @given(ragged(), st.sampled_from(RATIOS), st.integers(1, 3), st.randoms(use_true_random=False))
    def check(graphs: Graphs, ratio: float, kinds: int, random) -> None:
        kind = torch.tensor([random.randrange(kinds) for _ in graphs.x])
        graphs = graphs._replace(x=graphs.x[:1].repeat(kinds, 1).cumsum(0)[kind], edge_attr=None)
        old, renumbered = shuffled(graphs, random)
        pool = resting(make, ratio)
        before, after = pool(*graphs), pool(*renumbered)
        colour = refined_colours(graphs)
        one, other = (
            sorted(colour[k] for k in kept.tolist()) for kept in (before[4], old[after[4]])
        )
        assert one == other

    check()


def refined_colours(graphs: Graphs) -> list[int]:
    """Number the classes of nodes that colour refinement tells apart, until nothing changes."""
    edges, count = graphs.edge_index.T.tolist(), len(graphs.x)
    colour: list = list(zip(graphs.batch.tolist(), map(tuple, graphs.x.tolist()), strict=True))
    for _ in range(count):
        colour = [
            (
                colour[node],
                tuple(sorted(colour[s] for s, t in edges if t == node)),
                tuple(sorted(colour[t] for s, t in edges if s == node)),
            )
            for node in range(count)
        ]
        names = {value: name for name, value in enumerate(sorted(set(colour)))}
        colour = [names[value] for value in colour]
    return colour


def law_batch(make: Make) -> None:
    """3. A batch gives what its graphs give one by one, also where all nodes of a graph tie."""

    @drawn
    @given(ragged(), st.sampled_from(RATIOS))
    def check(graphs: Graphs, ratio: float) -> None:
        same_alone(resting(make, ratio), graphs)

    check()
    for dtype, ratio in ((torch.float32, 0.25), (torch.float64, 0.5)):
        twins = complete_graphs(dtype)
        same_alone(resting(make, ratio, dtype, channels=twins.x.size(1)), twins)


def law_induced(make: Make) -> None:
    """4. The edges are those between kept nodes, each with its features; symmetry stays."""

    @drawn
    @given(ragged(), st.sampled_from(RATIOS))
    def check(graphs: Graphs, ratio: float) -> None:
        pool = resting(make, ratio)
        out = pool(*graphs)
        kept = out[4].tolist()
        every = edges_of(graphs, torch.arange(len(graphs.x)))
        inside = [edge for edge in every if edge[0] in kept and edge[1] in kept]
        assert edges_of(out, out[4]) == inside
        both = torch.cat([graphs.edge_index, graphs.edge_index.flip(0)], 1)
        symmetric = pool(graphs.x, both, None, graphs.batch)[1]
        assert Counter(map(tuple, symmetric.T.tolist())) == Counter(
            map(tuple, symmetric.flip(0).T.tolist())
        )

    check()


def law_gradients(make: Make) -> None:
    """5. A non-zero gradient reaches every parameter that asks for one, and every kept node."""
    pool, graphs = resting(make, 0.5), sample_batch()
    graphs.x.requires_grad_()
    out = pool(*graphs)
    loss_of(out).backward()
    check_gradients(pool, graphs.x.grad[out[4]])


def law_odd_graphs(make: Make) -> None:
    """6. Odd graphs, alone and together, give finite outputs and gradients of the right size."""
    for name, packed in odd_batches():
        pool = resting(make, 0.5)
        packed.x.requires_grad_()
        x, _, _, batch, _, score = pool(*packed)
        assert batch.bincount().tolist() == [kept_of(n, 0.5) for n in sizes_of(packed)], name
        x.square().sum().backward()
        for value in (x, score, packed.x.grad):
            assert value.isfinite().all(), name


def law_same_seed(make: Make, size: float = 0.5) -> None:
    """7. The same seed gives the same output and gradients, bit for bit on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    runs = []
    for _ in range(2):
        pool, graphs = pooler(make, size, torch.float32), sample_batch(torch.float32)
        runs.append(results_of(pool, graphs))
    torch.set_num_threads(threads)
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


def law_copies(make: Make, size: float = 0.5) -> None:
    """8. state_dict, pickle and deepcopy keep the output; reset_parameters draws anew; repr."""
    pool, other, graphs = resting(make, size), resting(make, size, seed=1), sample_batch()
    before = tensors(pool(*graphs))
    assert not torch.equal(before[0], other(*graphs)[0])
    other.load_state_dict(pool.state_dict())
    for twin in (other, copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):  # noqa: S301
        assert all(map(torch.equal, before, tensors(twin(*graphs))))
        asks = [[p.requires_grad for p in module.parameters()] for module in (pool, twin)]
        assert asks[0] == asks[1]
    drawn_anew = []
    for _ in range(2):
        torch.manual_seed(2)
        pool.reset_parameters()
        drawn_anew.append(pool(*graphs)[0])
    assert torch.equal(*drawn_anew)
    assert not torch.equal(before[0], drawn_anew[0])
    assert type(pool).__name__ in repr(pool)
    assert str(size) in repr(pool)


def law_compile(make: Make, size: float = 0.5, backend: str = "aot_eager") -> None:
    """9. torch.compile gives what eager gives, outputs and gradients."""
    eager, graphs = resting(make, size), sample_batch()
    torch.compiler.reset()
    compiled = torch.compile(copy.deepcopy(eager), backend=backend)
    for one, other in zip(results_of(eager, graphs), results_of(compiled, graphs), strict=True):
        close(one, other)


def law_dtypes(make: Make) -> None:
    """10. float64 stays float64; bf16 keeps the right number of nodes."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        sizes = [257, 3, 1]
        graphs = pack([(n, ring(n)) for n in sizes], seed=0, dtype=dtype)
        x, _, _, batch, _, score = resting(make, 0.5, dtype)(*graphs)
        assert batch.bincount().tolist() == [129, 2, 1]
        assert x.dtype == dtype
        assert x.isfinite().all()
        assert score.dtype == (torch.float64 if dtype == torch.float64 else score.dtype)


def law_layout(make: Make, size: float = 0.5) -> None:
    """11. A planned layout gives what ``batch`` gives; without either the nodes are one graph."""
    pool, graphs, alone = resting(make, size), sample_batch(), graph_of(6, ring(6))
    same(pool(*graphs), pool(*graphs[:3], level=layout_from_batch(graphs.batch)))
    same(pool(*alone), pool(*alone[:2]))


def law_edge_features(make: Make, size: float = 0.5) -> None:
    """12. Features of edges change nothing but themselves, where edges have no weights."""
    pool, graphs = resting(make, size), sample_batch()
    with_features, without = pool(*graphs), pool(*graphs._replace(edge_attr=None))
    same(with_features[:2] + with_features[3:], without[:2] + without[3:])


def law_weights(make: Make, size: float = 0.5) -> None:
    """13. A weight is a vector or a first column; weights of one are none; they must be there."""
    if "weighted" not in inspect.signature(make).parameters:
        return
    pool, graphs = resting(partial(make, weighted=True), size), sample_batch()
    edges = graphs.edge_index.size(1)
    weight = torch.rand(edges, generator=torch.Generator().manual_seed(5)).double()
    alone = pool(*graphs._replace(edge_attr=weight))
    same(alone, pool(*graphs._replace(edge_attr=torch.stack([weight, -weight], 1))))
    ones = pool(*graphs._replace(edge_attr=torch.ones(edges, dtype=torch.long)))
    same(ones, resting(make, size)(*graphs))
    assert not torch.equal(ones.edge_attr, alone.edge_attr)
    refuses("edge_attr", lambda: pool(*graphs._replace(edge_attr=None)))


def law_refusals(make: Make, size: float = 0.5, wrong: tuple = (0.0, 1.5, 0, True, None)) -> None:
    """14. What is wrong with an option or a batch is a ValueError that names it."""
    for value in wrong:
        refuses("", lambda value=value: make(CHANNELS, value))
    refuses("in_channels", lambda: make(0, size))
    taken = inspect.signature(make).parameters
    for option, value in {"sampler": "rwz", "order": "degree", "act": "tahn"}.items():
        if option in taken:
            refuses(value, lambda kind={option: value}: make(CHANNELS, size, **kind))
    pool, (x, edge_index, _, batch) = resting(make, size), sample_batch()
    broken, unsorted = x.clone(), batch.clone()
    broken[2, 1], unsorted[1] = torch.nan, 1
    refuses(f"in_channels={CHANNELS}", lambda: pool(x[:, 1:], edge_index, None, batch))
    refuses("x[2, 1] is nan", lambda: pool(broken, edge_index, None, batch))
    refuses("sorted", lambda: pool(x, edge_index, None, unsorted))
    refuses("joins nodes", lambda: pool(x, edge_index + 1, None, batch))
    if "attn" in inspect.signature(pool.forward).parameters:
        refuses("attn has 4 rows, but x has 28", lambda: pool(x, edge_index, None, batch, x[:4]))
        refuses("attn must be", lambda: pool(x, edge_index, None, batch, x[:, 1:]))


LAWS = {
    "sizes": law_sizes,
    "relabelling": law_relabelling,
    "batch": law_batch,
    "induced": law_induced,
    "gradients": law_gradients,
    "odd graphs": law_odd_graphs,
    "same seed": law_same_seed,
    "copies": law_copies,
    "compile": law_compile,
    "dtypes": law_dtypes,
    "layout": law_layout,
    "edge features": law_edge_features,
    "weights": law_weights,
    "refusals": law_refusals,
}


def law_assignment(make: Make) -> None:
    """C1. The shares of a node are not negative and sum to one."""

    @drawn
    @given(ragged(), st.sampled_from(CLUSTERS))
    def check(graphs: Graphs, clusters: int) -> None:
        assign = resting(make, clusters)(*graphs).assign
        assert assign.shape == (len(graphs.x), clusters)
        assert (assign >= 0).all()
        close(assign.sum(1), torch.ones_like(assign[:, 0]))

    check()


def law_clusters(make: Make) -> None:
    """C2. Every graph has as many clusters as asked for, and edges join clusters of one graph."""

    @drawn
    @given(ragged(), st.sampled_from(CLUSTERS))
    def check(graphs: Graphs, clusters: int) -> None:
        x, edge_index, edge_attr, batch, _, loss = resting(make, clusters)(*graphs)
        count = len(sizes_of(graphs))
        assert batch.tolist() == [graph for graph in range(count) for _ in range(clusters)]
        assert x.shape == (count * clusters, CHANNELS)
        assert edge_attr.shape == (edge_index.size(1), 1)
        assert torch.equal(*batch[edge_index])
        assert loss is None or loss.shape == (count,)

    check()


def law_coarse_edges(make: Make) -> None:
    """C3. The edges are S^T A S of each graph."""

    @drawn
    @given(ragged(), st.sampled_from(CLUSTERS))
    def check(graphs: Graphs, clusters: int) -> None:
        out = resting(make, clusters)(*graphs)
        coarse = matrices(out.edge_index, out.edge_attr, out.batch)
        for number, fine in enumerate(adjacency_of(graphs)):
            assign = out.assign[graphs.batch == number]
            close(coarse[number], assign.T @ fine @ assign)

    check()


def law_symmetry(make: Make) -> None:
    """C4. Edges both ways stay edges both ways, of one weight."""

    @drawn
    @given(ragged(), st.sampled_from(CLUSTERS))
    def check(graphs: Graphs, clusters: int) -> None:
        both = torch.cat([graphs.edge_index, graphs.edge_index.flip(0)], 1)
        out = resting(make, clusters)(graphs.x, both, None, graphs.batch)
        for coarse in matrices(out.edge_index, out.edge_attr, out.batch):
            close(coarse, coarse.T)

    check()


def law_cluster_relabelling(make: Make) -> None:
    """2. Other numbers for the nodes, the same clusters."""

    @drawn
    @given(ragged(), st.sampled_from(CLUSTERS), st.randoms(use_true_random=False))
    def check(graphs: Graphs, clusters: int, random) -> None:
        old, renumbered = shuffled(graphs, random)
        pool = resting(make, clusters)
        before, after = pool(*graphs), pool(*renumbered)
        after = after._replace(assign=after.assign[old.argsort()])
        for one, other in zip(tensors(before), tensors(after), strict=True):
            close(one, other)

    check()


def law_cluster_batch(make: Make) -> None:
    """3. A batch gives what its graphs give one by one, of very different sizes too."""

    @drawn
    @given(ragged(), st.sampled_from(CLUSTERS))
    def check(graphs: Graphs, clusters: int) -> None:
        clusters_same_alone(resting(make, clusters), graphs)

    check()
    for dtype in (torch.float32, torch.float64):
        uneven = pack([(n, ring(n)) for n in (3, 90, 1, 2, 30)], seed=0, dtype=dtype)
        clusters_same_alone(resting(make, 4, dtype), uneven)


def law_cluster_gradients(make: Make) -> None:
    """5. A non-zero gradient reaches every parameter and node, from features, and from the loss."""
    for read in (lambda out: loss_of((out.x,)), lambda out: out.loss):
        pool, graphs = resting(make, 4), sample_batch()
        graphs.x.requires_grad_()
        value = read(pool(*graphs))
        if value is not None:
            value.sum().backward()
            check_gradients(pool, graphs.x.grad)


def law_cluster_odd_graphs(make: Make) -> None:
    """6. Odd graphs, alone and together, give finite outputs and gradients."""
    for name, packed in odd_batches():
        for clusters in CLUSTERS:
            pool = resting(make, clusters)
            packed.x.grad = None
            out = pool(*packed._replace(x=packed.x.requires_grad_()))
            loss_of(out).backward()
            gradients = [packed.x.grad, *(p.grad for p in pool.parameters() if p.requires_grad)]
            for value in (*tensors(out), *gradients):
                assert value.isfinite().all(), name


def law_cluster_dtypes(make: Make) -> None:
    """10. float64 stays float64; bf16 gives clusters in bf16 whose shares sum to one."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        graphs = pack([(n, ring(n)) for n in (257, 3, 1)], seed=0, dtype=dtype)
        out = resting(make, 4, dtype)(*graphs)
        assert out.batch.bincount().tolist() == [4, 4, 4]
        assert out.x.dtype == out.edge_attr.dtype == dtype
        assert all(part.isfinite().all() for part in tensors(out))
        total = out.assign.sum(1)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=2e-2)
        if dtype == torch.float64:
            assert out.assign.dtype == dtype
            assert out.loss is None or out.loss.dtype == dtype


CLUSTER_LAWS = {
    "assignment": law_assignment,
    "clusters": law_clusters,
    "coarse edges": law_coarse_edges,
    "symmetry": law_symmetry,
    "relabelling": law_cluster_relabelling,
    "batch": law_cluster_batch,
    "gradients": law_cluster_gradients,
    "odd graphs": law_cluster_odd_graphs,
    "same seed": partial(law_same_seed, size=4),
    "copies": partial(law_copies, size=4),
    "compile": partial(law_compile, size=4),
    "dtypes": law_cluster_dtypes,
    "layout": partial(law_layout, size=4),
    "edge features": partial(law_edge_features, size=4),
    "weights": partial(law_weights, size=4),
    "refusals": partial(law_refusals, size=4, wrong=(0, -1, 0.5, True, None)),
}

EXCEPTIONS = {
    "gtpool": {"relabelling": NUMBERING},
    "gtpool-v": {"relabelling": NUMBERING},
    "gtpool-v gated, four heads, projected": {"relabelling": NUMBERING},
    "gtpool-v gated, local only": {"relabelling": NUMBERING},
    "gtpool-v gated, global only": {"relabelling": NUMBERING},
    "gtpool-v with random points": {"relabelling": NUMBERING},
    "gtpool-v gated, random points, linear attention": {"relabelling": NUMBERING},
    "asap": {"induced": "its edges are S^T A S"},
    "reppool": {"induced": "its edges are B^T (A + I) B"},
    "mincutpool": {"coarse edges": "it normalises A, takes the diagonal away, normalises again"},
    "dmon": {"coarse edges": "it takes the diagonal away and normalises"},
}

OWN_TESTS = {
    "kmis": "as many clusters as the scores ask for: see partition_laws.py, test_kmispool.py",
    "edgepool": "as many clusters as the scores ask for: see partition_laws.py, test_edgepool.py",
    "sepg": "no parameters, and as many clusters as the tree has: see test_sepg.py",
    "graclus": "no parameters, and as many clusters as the matching has: see test_graclus.py",
    "ndp": "no parameters, and as many nodes as the cut asks for: see test_ndp.py",
    "haarpool": "no parameters, and as many clusters as the graph asks for: see test_haarpool.py",
}


@st.composite
def ragged(draw) -> Graphs:
    """Draw one to four graphs, with loops, repeated edges and nodes without any, in float64."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    graphs = []
    for size in sizes:
        node = st.integers(0, size - 1)
        graphs.append((size, draw(st.lists(st.tuples(node, node), max_size=2 * size))))
    return pack(graphs, draw(st.integers(0, 999)), edge_width=draw(st.sampled_from([None, 0, 3])))


def pack(
    graphs: list[tuple[int, list[tuple[int, int]]]],
    seed: int,
    *,
    dtype: torch.dtype = torch.float64,
    edge_width: int | None = None,
) -> Graphs:
    """Make a batch of (nodes, edges) with random features; edge features [E] if the width is 0."""
    generator = torch.Generator().manual_seed(seed)
    edges, first = [], 0
    for size, joins in graphs:
        edges += [(first + source, first + target) for source, target in joins]
        first += size
    sizes = torch.tensor([size for size, _ in graphs])
    shape = {None: None, 0: (len(edges),)}.get(edge_width, (len(edges), edge_width))
    return Graphs(
        torch.randn(first, CHANNELS, generator=generator, dtype=torch.float64).to(dtype),
        torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T,
        None if shape is None else torch.randn(shape, generator=generator, dtype=dtype),
        torch.arange(len(graphs)).repeat_interleave(sizes),
    )


def sample_batch(dtype: torch.dtype = torch.float64) -> Graphs:
    """Give three graphs of middle size, where nothing is degenerate."""
    chords = [(0, 3), (3, 0), (2, 5), (5, 2)]
    graphs = [(9, ring(9) + chords), (7, ring(7)), (12, ring(12) + chords)]
    return pack(graphs, seed=3, dtype=dtype, edge_width=3)


def odd_batches() -> list[tuple[str, Graphs]]:
    """Give each odd graph alone, and all of them as one batch."""
    alone = [(name, pack([graph], seed=0)) for name, graph in ODD_GRAPHS.items()]
    return [*alone, ("together", pack(list(ODD_GRAPHS.values()), seed=0))]


@cache
def complete_graphs(dtype: torch.dtype) -> Graphs:
    """Give complete graphs whose nodes are all alike, so that points fall on borders.

    They are wide and of many sizes: rounding errors then differ from node to node.
    """
    sizes = [*range(1, 28), 33, 50, 62, 98, 99, 122]
    graphs = [(n, [(i, j) for i in range(n) for j in range(n) if i != j]) for n in sizes]
    node = torch.randn(1, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return pack(graphs, seed=0)._replace(x=node.to(dtype).repeat(sum(sizes), 1))


def ring(size: int) -> list[tuple[int, int]]:
    """Join each node to the next and the last to the first, both ways."""
    ways = [(i, (i + 1) % size) for i in range(size)]
    return ways + [(j, i) for i, j in ways]


def pooler(
    make: Make,
    ratio: float,
    dtype: torch.dtype = torch.float64,
    *,
    channels: int = CHANNELS,
    seed: int = 0,
) -> nn.Module:
    """Make a pooler from a seed."""
    torch.manual_seed(seed)
    return make(channels, ratio).to(dtype)


def resting(
    make: Make,
    ratio: float,
    dtype: torch.dtype = torch.float64,
    *,
    channels: int = CHANNELS,
    seed: int = 0,
) -> nn.Module:
    """Make a pooler as it is after training, when nothing is drawn."""
    return pooler(make, ratio, dtype, channels=channels, seed=seed).eval()


def kept_of(nodes: int, ratio: float) -> int:
    """Count the nodes to keep, exactly."""
    if isinstance(ratio, int):
        return min(ratio, nodes)
    return ceil(Fraction(str(ratio)) * nodes)


def nodes_of(graphs: Graphs) -> list[list[int]]:
    """List the nodes of each graph."""
    return [part.tolist() for part in torch.arange(len(graphs.batch)).split(sizes_of(graphs))]


def sizes_of(graphs: Graphs) -> list[int]:
    """Count the nodes of each graph."""
    return graphs.batch.bincount().tolist()


def shuffled(graphs: Graphs, random) -> tuple[Tensor, Graphs]:
    """Number the nodes of each graph anew; also give the old number of each new one."""
    old = torch.tensor([n for part in nodes_of(graphs) for n in random.sample(part, len(part))])
    edge_index = old.argsort()[graphs.edge_index]
    return old, graphs._replace(x=graphs.x[old], edge_index=edge_index)


def apart(graphs: Graphs) -> list[Graphs]:
    """Give the graphs of a batch one by one."""
    alone = []
    for number, nodes in enumerate(nodes_of(graphs)):
        first, last = nodes[0], nodes[-1] + 1
        inside = graphs.batch[graphs.edge_index[0]] == number
        attr = None if graphs.edge_attr is None else graphs.edge_attr[inside]
        edges = graphs.edge_index[:, inside] - first
        alone.append(Graphs(graphs.x[first:last], edges, attr, graphs.batch[first:last] - number))
    return alone


def same_alone(pool: nn.Module, graphs: Graphs) -> None:
    """Compare a batch with its graphs one by one."""
    x, edge_index, edge_attr, batch, perm, score = pool(*graphs)
    for number, one in enumerate(apart(graphs)):
        alone = pool(*one)
        here = batch == number
        first = nodes_of(graphs)[number][0]
        assert perm[here].tolist() == (alone[4] + first).tolist(), f"{len(one.x)} nodes"
        close(x[here], alone[0])
        close(score[here], alone[5])
        kept = batch[edge_index[0]] == number
        assert torch.equal(edge_index[:, kept] - int(here.nonzero()[0]), alone[1])
        if edge_attr is not None:
            close(edge_attr[kept], alone[2])


def clusters_same_alone(pool: nn.Module, graphs: Graphs) -> None:
    """Compare the clusters of a batch with those of its graphs one by one."""
    out = pool(*graphs)
    coarse = matrices(out.edge_index, out.edge_attr, out.batch)
    for number, one in enumerate(apart(graphs)):
        alone = pool(*one)
        close(out.x[out.batch == number], alone.x)
        close(coarse[number], matrices(alone.edge_index, alone.edge_attr, alone.batch)[0])
        close(out.assign[graphs.batch == number], alone.assign)
        if out.loss is not None:
            close(out.loss[number : number + 1], alone.loss)


def matrices(edge_index: Tensor, weight: Tensor, batch: Tensor) -> list[Tensor]:
    """Write the edges of each graph as a matrix, source by target, where repeated ones add up."""
    whole = weight.new_zeros(len(batch), len(batch))
    whole = whole.index_put(tuple(edge_index), weight.flatten(), accumulate=True)
    return [whole[batch == number][:, batch == number] for number in batch.unique()]


def adjacency_of(graphs: Graphs) -> list[Tensor]:
    """Give the adjacency matrix of each graph, whose edges weigh one."""
    return matrices(graphs.edge_index, graphs.x.new_ones(graphs.edge_index.size(1)), graphs.batch)


def edges_of(graphs: tuple, names: Tensor) -> list[list[float]]:
    """List the edges of a batch and their features, in order, under the given names of nodes."""
    _, edge_index, edge_attr, *_ = graphs
    ends = names[edge_index].T
    attrs = ends[:, :0] if edge_attr is None else edge_attr[:, None].flatten(1)
    return sorted(map(operator.add, ends.tolist(), attrs.tolist()))


def distinct(out: tuple) -> bool:
    """Say whether the scores of each graph differ by more than rounding; all nodes are kept.

    Neither may their products with distances be equal, which RepPool compares.
    """
    for graph in out[3].unique():
        score = out[5][out[3] == graph]
        by_distance = score.outer(torch.arange(1, score.numel() + 1).to(score))
        gap = (by_distance[:, None, :, None] - by_distance[None, :, None]).abs().amin((2, 3))
        if (gap.fill_diagonal_(torch.inf) <= 1e-6 * score.abs()).any():
            return False
    return True


def loss_of(out: tuple) -> Tensor:
    """Weigh pooled features by fixed random numbers; of clusters also edges, and the own loss."""
    weighed = out[0:3:2] if isinstance(out, NodeMerge) else out[:1]
    generator = torch.Generator().manual_seed(1)
    parts = [
        (part * torch.randn(part.shape, generator=generator).to(part)).sum() for part in weighed
    ]
    if isinstance(out, NodeMerge) and out.loss is not None:
        parts.append(out.loss.sum())
    return torch.stack(parts).sum()


def results_of(pool: nn.Module, graphs: Graphs) -> list[Tensor]:
    """Give all outputs and the gradients of the parameters, or of the features without any."""
    asking = [p for p in pool.parameters() if p.requires_grad]
    if not asking:
        graphs = graphs._replace(x=graphs.x.clone().requires_grad_())
        asking = [graphs.x]
    out = pool(*graphs)
    loss = loss_of(out)
    loss.backward()
    return [*tensors(out), loss, *(part.grad for part in asking)]


def same(one: tuple, other: tuple) -> None:
    """Assert that two outputs are equal bit for bit."""
    for first, second in zip(one, other, strict=True):
        assert first is second is None or torch.equal(first, second)


def refuses(part: str, call: Callable[[], object]) -> None:
    """Assert that a call raises a ValueError whose message has this part."""
    told = None
    try:
        call()
    except ValueError as error:
        told = str(error)
    assert told is not None, f"nothing was refused for {part!r}"
    assert part in told


def compare(
    ours: tuple, theirs: tuple, asking: list[Tensor], their_own: list[Tensor] | None = None
) -> None:
    """Compare outputs, and gradients of a function of all of them; theirs may have own weights."""
    gradients = [
        torch.autograd.grad(sum(part.sin().sum() for part in parts), leaves, materialize_grads=True)
        for parts, leaves in ((ours, asking), (theirs, their_own or asking))
    ]
    for one, other in zip((*ours, *gradients[0]), (*theirs, *gradients[1]), strict=True):
        torch.testing.assert_close(one, other.view_as(one), rtol=1e-9, atol=1e-9)


def compare_with_pyg(
    ours: nn.Module, theirs: nn.Module, graphs: Graphs, own: list[Tensor], their_own: list[Tensor]
) -> None:
    """Compare a pooler that drops nodes with PyG's, whose nodes stand in order of their scores."""
    x = graphs.x.requires_grad_()
    out, (their_x, edge_index, edge_attr, batch, perm, score) = ours(*graphs), theirs(*graphs)
    by = perm.argsort()
    assert out.perm.tolist() == perm[by].tolist()
    assert torch.equal(out.perm[out.edge_index], perm[edge_index])
    assert torch.equal(out.batch, batch[by])
    assert edge_attr is None or torch.equal(out.edge_attr, edge_attr)
    compare((out.x, out.score), (their_x[by], score[by]), [x, *own], [x, *their_own])


def graph_of(nodes: int, edges: list[tuple[int, int]]) -> Graphs:
    """Give one graph as a batch."""
    return pack([(nodes, edges)], seed=0)


def tensors(out: tuple) -> list[Tensor]:
    """Leave out what a pooler does not return."""
    return [part for part in out if part is not None]


def check_gradients(pool: nn.Module, of_nodes: Tensor) -> None:
    """Assert that gradients are finite and reach every parameter that asks, and every node."""
    for name, parameter in pool.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, f"no gradient reaches {name}"
            assert parameter.grad.isfinite().all(), f"the gradient of {name} is not finite"
            assert parameter.grad.any(), f"the gradient of {name} is zero"
        else:
            assert parameter.grad is None, f"{name} asks for no gradient, but has one"
    assert of_nodes.isfinite().all()
    assert of_nodes.any(1).all()


def close(first: Tensor, second: Tensor) -> None:
    """Assert that two tensors differ by rounding only."""
    exact = first.dtype == torch.float64
    torch.testing.assert_close(
        first, second, rtol=1e-9 if exact else 1e-4, atol=1e-11 if exact else 1e-5
    )
