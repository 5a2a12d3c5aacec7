"""The laws of poolers along a chain of partitions, which depend on the structure alone."""

import copy
import pickle

import torch
from contract import (
    CHANNELS,
    Graphs,
    Make,
    drawn,
    ragged,
    refined_colours,
    sample_batch,
    shuffled,
)
from hypothesis import given
from hypothesis import strategies as st
from partition_laws import PARTITION_LAWS, SIZE

from gtpool.data.coarsening import with_chain
from gtpool.data.synthetic import low_scores_matter


def law_no_parameters(make: Make) -> None:
    """H1. The layer has no parameters, and copies are alike."""
    pool, graphs = make(CHANNELS, SIZE), sample_batch()
    pool.reset_parameters()
    assert not pool.state_dict()
    assert repr(pool) == f"{type(pool).__name__}({CHANNELS}, steps={SIZE})"
    for twin in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):  # noqa: S301
        assert torch.equal(twin(*graphs).x, pool(*graphs).x)


def law_numbering(make: Make) -> None:
    """H2. Other numbers give the same clusters, symmetric nodes counted as one."""

    @drawn
    @given(ragged(), st.randoms(use_true_random=False))
    def check(graphs: Graphs, random) -> None:
        both = torch.cat([graphs.edge_index, graphs.edge_index.flip(0)], 1)
        both = both[:, both[0] != both[1]]  # loops have no part in it
        graphs = Graphs(torch.ones_like(graphs.x), both, None, graphs.batch)
        old, renumbered = shuffled(graphs, random)
        pool, colour = make(CHANNELS, 2), refined_colours(graphs)
        before, after = pool(*graphs), pool(*renumbered)
        clusters = []
        for assign in (before.assign, after.assign[old.argsort()]):
            members = [(assign == c).nonzero().flatten().tolist() for c in range(len(before.x))]
            clusters.append(sorted(sorted(colour[i] for i in nodes) for nodes in members))
        assert clusters[0] == clusters[1]
        assert sorted(before.x[:, 0].tolist()) == sorted(after.x[:, 0].tolist())

    check()


def law_steps(make: Make) -> None:
    """H3. A chain gives level by level what the layer gives with what is left of it."""
    data = low_scores_matter(6)
    data = with_chain(data, 3, make(CHANNELS, 3).method)
    batch = data.take([4, 0, 5])
    alone = make(1, 3)(batch.x[:, :1], batch.edge_index, None, batch.batch)
    out = make(1, 3)(batch.x[:, :1], batch.edge_index, None, batch.batch, chain=batch.chain)
    assert all(map(torch.equal, alone[:5], out[:5]))
    for step in range(1, 3):
        out = make(1, 3)(*out[:4], chain=batch.chain[step:])
        assert torch.equal(out.assign, batch.chain[step].cluster)
        assert out.batch.bincount().tolist() == batch.chain[step].level.sizes.tolist()


CHAIN_LAWS = {
    **{name: law for name, law in PARTITION_LAWS.items() if name not in {"copies", "weights"}},
    "no parameters": law_no_parameters,
    "numbering": law_numbering,
    "steps": law_steps,
}
