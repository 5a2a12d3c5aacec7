"""The laws of poolers that put each node into one cluster, as many as the graph asks for.

A law takes a factory ``make(in_channels, size)``, where the size may have no effect, and fails
by an AssertionError.
"""

from functools import partial

import torch
from contract import (
    CHANNELS,
    Graphs,
    Make,
    apart,
    check_gradients,
    close,
    drawn,
    law_compile,
    law_copies,
    law_edge_features,
    law_layout,
    law_refusals,
    law_same_seed,
    law_weights,
    loss_of,
    matrices,
    odd_batches,
    pack,
    ragged,
    resting,
    ring,
    sample_batch,
    tensors,
)
from hypothesis import given

SIZE = 8  # of the factories that take one; the repr of each layer has the same number as its width


def law_partition(make: Make) -> None:
    """P1. Each node is in one cluster of its graph, clusters have nodes, no graph is lost."""

    @drawn
    @given(ragged())
    def check(graphs: Graphs) -> None:
        x, edge_index, edge_attr, batch, cluster, loss = resting(make, SIZE)(*graphs)
        count = len(batch)
        assert x.shape == (count, CHANNELS)
        assert edge_attr.shape == (edge_index.size(1), 1)
        assert cluster.unique().tolist() == list(range(count))
        assert torch.equal(batch[cluster], graphs.batch)
        assert batch.tolist() == sorted(batch.tolist())
        assert batch.unique().numel() == graphs.batch.unique().numel()
        assert torch.equal(*batch[edge_index])
        assert loss is None

    check()


def law_coarse_edges(make: Make) -> None:
    """P2. The edges are S^T A S without the diagonal, each pair once."""

    @drawn
    @given(ragged())
    def check(graphs: Graphs) -> None:
        out = resting(make, SIZE)(*graphs)
        assert out.edge_index.unique(dim=1).size(1) == out.edge_index.size(1)
        share = torch.nn.functional.one_hot(out.assign, len(out.batch)).double()
        nodes = torch.zeros_like(graphs.batch)
        (fine,) = matrices(graphs.edge_index, share.new_ones(graphs.edge_index.size(1)), nodes)
        expected = share.T @ fine @ share
        (ours,) = matrices(out.edge_index, out.edge_attr, torch.zeros_like(out.batch))
        close(ours, expected - expected.diag().diag())

    check()


def law_batch(make: Make) -> None:
    """P3. A batch gives what its graphs give one by one."""

    @drawn
    @given(ragged())
    def check(graphs: Graphs) -> None:
        same_alone(resting(make, SIZE), graphs)

    check()
    for dtype in (torch.float32, torch.float64):
        uneven = pack([(n, ring(n)) for n in (3, 90, 1, 2, 30)], seed=0, dtype=dtype)
        same_alone(resting(make, SIZE, dtype), uneven)
        same_alone(resting(make, SIZE, dtype), uneven._replace(x=torch.ones_like(uneven.x)))


def same_alone(pool: torch.nn.Module, graphs: Graphs) -> None:
    """Compare the clusters of a batch with those of its graphs one by one."""
    out, nodes, clusters = pool(*graphs), 0, 0
    for number, one in enumerate(apart(graphs)):
        alone = pool(*one)
        close(out.x[out.batch == number], alone.x)
        of = graphs.batch == number
        assert torch.equal(out.assign[of] - clusters, alone.assign)
        inside = out.batch[out.edge_index[0]] == number
        assert torch.equal(out.edge_index[:, inside] - clusters, alone.edge_index)
        close(out.edge_attr[inside], alone.edge_attr)
        nodes, clusters = nodes + len(one.x), clusters + len(alone.x)


def law_gradients(make: Make) -> None:
    """P4. A non-zero gradient reaches every parameter and node."""
    pool, graphs = resting(make, SIZE), sample_batch()
    graphs.x.requires_grad_()
    loss_of((pool(*graphs).x,)).backward()
    check_gradients(pool, graphs.x.grad)


def law_odd_graphs(make: Make) -> None:
    """P5. Odd graphs, alone and together, give finite outputs and gradients."""
    for name, packed in odd_batches():
        pool = resting(make, SIZE)
        packed.x.requires_grad_()
        out = pool(*packed)
        out.x.square().sum().backward()
        for value in (*tensors(out), packed.x.grad):
            assert value.isfinite().all(), name


def law_dtypes(make: Make) -> None:
    """P6. float64 stays float64, and bf16 gives clusters in bf16."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        graphs = pack([(n, ring(n)) for n in (257, 3, 1)], seed=0, dtype=dtype)
        out = resting(make, SIZE, dtype)(*graphs)
        assert out.x.dtype == out.edge_attr.dtype == dtype
        assert out.x.isfinite().all()
        assert out.batch.unique().numel() == 3


PARTITION_LAWS = {
    "partition": law_partition,
    "coarse edges": law_coarse_edges,
    "batch": law_batch,
    "gradients": law_gradients,
    "odd graphs": law_odd_graphs,
    "dtypes": law_dtypes,
    "same seed": partial(law_same_seed, size=SIZE),
    "copies": partial(law_copies, size=SIZE),
    "compile": partial(law_compile, size=SIZE),
    "layout": partial(law_layout, size=SIZE),
    "edge features": partial(law_edge_features, size=SIZE),
    "weights": partial(law_weights, size=SIZE),
    "refusals": partial(law_refusals, size=SIZE, wrong=()),
}


def same_as_twin(pool: torch.nn.Module, graphs: Graphs, naive: torch.Tensor) -> None:
    """Compare pooled features, and the gradients of a function of them."""
    parameters = [graphs.x, *pool.parameters()]
    ours = pool(*graphs).x
    close(ours, naive)
    weight = torch.linspace(-1, 2, ours.numel(), dtype=ours.dtype).view_as(ours)
    grads = [torch.autograd.grad((x * weight).sum(), parameters) for x in (ours, naive)]
    for one, other in zip(*grads, strict=True):
        close(one, other)
