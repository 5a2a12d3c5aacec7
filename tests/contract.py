"""The laws that every node-dropping pooler obeys, and the exceptions that are declared.

A law takes a factory ``make(in_channels, ratio) -> nn.Module``, whose modules have PyG's call
convention and return PyG's six, and fails by an AssertionError. Poolers that cluster nodes get
laws of their own in place of ``sizes`` and ``induced``, in a dict of their own beside ``LAWS``; the
rest of the laws they share.
"""

import copy
import pickle
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

CHANNELS = 8
RATIOS = (0.07, 0.25, 0.5, 0.8, 1.0, 1, 3)
NUMBERING = "the paper lays the wheel out in index order, so the numbering of the nodes decides"

Make = Callable[[int, float], nn.Module]

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
        x, _, _, batch, perm, score = pooler(make, ratio)(*graphs)
        expected = [kept_of(n, ratio) for n in graphs.batch.bincount().tolist()]
        assert batch.bincount().tolist() == expected
        assert batch.tolist() == sorted(batch.tolist())
        assert batch.tolist() == graphs.batch[perm].tolist()
        assert perm.unique().numel() == perm.numel()
        assert x.shape == (len(perm), CHANNELS)
        assert score.shape == perm.shape

    check()


def law_relabelling(make: Make) -> None:
    """2. Other numbers for the nodes, the same nodes kept: scores are distinct here."""

    @drawn
    @given(ragged(), st.sampled_from(RATIOS), st.randoms(use_true_random=False))
    def check(graphs: Graphs, ratio: float, random) -> None:
        shuffled = [nodes for part in nodes_of(graphs) for nodes in random.sample(part, len(part))]
        old = torch.tensor(shuffled)
        new = old.argsort()
        pool = pooler(make, ratio)
        before = pool(*graphs)
        after = pool(graphs.x[old], new[graphs.edge_index], graphs.edge_attr, graphs.batch)
        by_old = old[after[4]].argsort()
        assert before[4].sort()[0].tolist() == old[after[4]][by_old].tolist()
        by_number = before[4].argsort()
        close(before[0][by_number], after[0][by_old])
        close(before[5][by_number], after[5][by_old])
        assert edges_of(before, before[4]) == edges_of(after, old[after[4]])

    check()


def law_batch(make: Make) -> None:
    """3. A batch gives what its graphs give one by one, also where all nodes of a graph tie."""

    @drawn
    @given(ragged(), st.sampled_from(RATIOS))
    def check(graphs: Graphs, ratio: float) -> None:
        same_alone(pooler(make, ratio), graphs)

    check()
    for dtype in (torch.float32, torch.float64):
        twins = complete_graphs(dtype)
        for ratio in (0.25, 0.5, 0.75):
            same_alone(pooler(make, ratio, dtype, channels=twins.x.size(1)), twins)


def law_induced(make: Make) -> None:
    """4. The edges are those between kept nodes, each with its features; symmetry stays."""

    @drawn
    @given(ragged(), st.sampled_from(RATIOS))
    def check(graphs: Graphs, ratio: float) -> None:
        pool = pooler(make, ratio)
        out = pool(*graphs)
        kept = out[4].tolist()
        attrs = [None] * graphs.edge_index.size(1)
        attrs = attrs if graphs.edge_attr is None else graphs.edge_attr.tolist()
        expected = Counter(
            (source, target, str(attr))
            for (source, target), attr in zip(graphs.edge_index.T.tolist(), attrs, strict=True)
            if source in kept and target in kept
        )
        assert edges_of(out, out[4]) == expected
        both = torch.cat([graphs.edge_index, graphs.edge_index.flip(0)], 1)
        symmetric = pool(graphs.x, both, None, graphs.batch)[1]
        assert Counter(map(tuple, symmetric.T.tolist())) == Counter(
            map(tuple, symmetric.flip(0).T.tolist())
        )

    check()


def law_gradients(make: Make) -> None:
    """5. A non-zero gradient reaches every parameter that asks for one, and the features."""
    pool, graphs = pooler(make, 0.5), sample_batch()
    graphs.x.requires_grad_()
    loss_of(pool, graphs).backward()
    for name, parameter in pool.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, f"no gradient reaches {name}"
            assert parameter.grad.isfinite().all(), f"the gradient of {name} is not finite"
            assert parameter.grad.any(), f"the gradient of {name} is zero"
        else:
            assert parameter.grad is None, f"{name} asks for no gradient, but has one"
    assert graphs.x.grad.isfinite().all()
    assert graphs.x.grad.any(1).all()


def law_odd_graphs(make: Make) -> None:
    """6. Odd graphs, alone and together, give finite outputs and gradients of the right size."""
    odd = {
        "one node": (1, []),
        "one node with a loop": (1, [(0, 0)]),
        "no edges": (4, []),
        "isolated nodes": (5, [(0, 1), (1, 0)]),
        "loops": (3, [(0, 0), (1, 1), (2, 2), (0, 1), (1, 0)]),
        "nothing but loops": (2, [(0, 0), (1, 1)]),
        "repeated edges": (3, [(0, 1), (0, 1), (1, 0), (1, 2), (1, 2), (1, 2), (2, 2), (2, 2)]),
    }
    for name, graphs in [*((n, [g]) for n, g in odd.items()), ("together", list(odd.values()))]:
        pool, packed = pooler(make, 0.5), pack(graphs, seed=0)
        packed.x.requires_grad_()
        x, _, _, batch, _, score = pool(*packed)
        assert batch.bincount().tolist() == [kept_of(n, 0.5) for n, _ in graphs], name
        x.square().sum().backward()
        for value in (x, score, packed.x.grad):
            assert value.isfinite().all(), name


def law_same_seed(make: Make) -> None:
    """7. The same seed gives the same output and gradients, bit for bit on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    runs = []
    for _ in range(2):
        pool, graphs = pooler(make, 0.5, torch.float32), sample_batch(torch.float32)
        loss = loss_of(pool, graphs)
        loss.backward()
        runs.append([*pool(*graphs), loss, *(p.grad for p in pool.parameters() if p.requires_grad)])
    torch.set_num_threads(threads)
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


def law_copies(make: Make) -> None:
    """8. state_dict, pickle and deepcopy keep the output; reset_parameters draws anew; repr."""
    pool, other, graphs = pooler(make, 0.5), pooler(make, 0.5, seed=1), sample_batch()
    before = pool(*graphs)
    assert not torch.equal(before[0], other(*graphs)[0])
    other.load_state_dict(pool.state_dict())
    for twin in (other, copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):  # noqa: S301
        assert all(map(torch.equal, before, twin(*graphs)))
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
    assert "0.5" in repr(pool)


def law_compile(make: Make, backend: str = "aot_eager") -> None:
    """9. torch.compile gives what eager gives, outputs and gradients."""
    eager, graphs = pooler(make, 0.5), sample_batch()
    torch.compiler.reset()
    runs = []
    for pool in (eager, torch.compile(copy.deepcopy(eager), backend=backend)):
        loss = loss_of(pool, graphs)
        loss.backward()
        runs.append([*pool(*graphs), *(p.grad for p in pool.parameters() if p.requires_grad)])
    for plain, compiled in zip(*runs, strict=True):
        close(plain, compiled)


def law_dtypes(make: Make) -> None:
    """10. float64 stays float64; bf16 keeps the right number of nodes."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        sizes = [257, 3, 1]
        graphs = pack([(n, ring(n)) for n in sizes], seed=0, dtype=dtype)
        x, _, _, batch, _, score = pooler(make, 0.5, dtype)(*graphs)
        assert batch.bincount().tolist() == [129, 2, 1]
        assert x.dtype == dtype
        assert x.isfinite().all()
        assert score.dtype == (torch.float64 if dtype == torch.float64 else score.dtype)


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
}

EXCEPTIONS = {
    "gtpool": {"relabelling": NUMBERING},
    "gtpool-v": {"relabelling": NUMBERING},
    "gtpool-v gated": {"relabelling": NUMBERING},
    "gtpool-v gated, four heads, projected": {"relabelling": NUMBERING},
    "gtpool-v gated, local only": {"relabelling": NUMBERING},
    "gtpool-v gated, global only": {"relabelling": NUMBERING},
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


def same_alone(pool: nn.Module, graphs: Graphs) -> None:
    """Compare a batch with its graphs one by one."""
    x, edge_index, edge_attr, batch, perm, score = pool(*graphs)
    for number, nodes in enumerate(nodes_of(graphs)):
        first, last = nodes[0], nodes[-1] + 1
        inside = graphs.batch[graphs.edge_index[0]] == number
        attr = None if graphs.edge_attr is None else graphs.edge_attr[inside]
        alone = pool(graphs.x[first:last], graphs.edge_index[:, inside] - first, attr)
        here = batch == number
        assert perm[here].tolist() == (alone[4] + first).tolist(), f"{len(nodes)} nodes"
        close(x[here], alone[0])
        close(score[here], alone[5])
        kept = batch[edge_index[0]] == number
        assert torch.equal(edge_index[:, kept] - int(here.nonzero()[0]), alone[1])
        assert attr is None or torch.equal(edge_attr[kept], alone[2])


def edges_of(out: tuple, names: Tensor) -> Counter[tuple[int, int, str]]:
    """Count the edges of a pooled batch with their features, under the given names of nodes."""
    attrs = [None] * out[1].size(1) if out[2] is None else out[2].tolist()
    ends = names[out[1]].T.tolist()
    return Counter((*pair, str(attr)) for pair, attr in zip(ends, attrs, strict=True))


def loss_of(pool: nn.Module, graphs: Graphs) -> Tensor:
    """Weigh the pooled features by fixed random numbers."""
    x = pool(*graphs)[0]
    return (x * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x)).sum()


def close(first: Tensor, second: Tensor) -> None:
    """Assert that two tensors differ by rounding only."""
    exact = first.dtype == torch.float64
    torch.testing.assert_close(
        first, second, rtol=1e-9 if exact else 1e-4, atol=1e-11 if exact else 1e-5
    )
