"""Coarsening chains by name: how each is built, and what a step does to features."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor

from gtpool.graph import Coarsening, CoarseningStep, GraphLayout
from gtpool.ops.coarsening import build_chain, haar_transform
from gtpool.ops.coding_tree import coding_tree_labels
from gtpool.ops.decimation import decimation_chain
from gtpool.ops.entry import no_compile
from gtpool.ops.partitions import graclus_labels, partition_chain, pool_shares

Build = Callable[[Tensor, GraphLayout, int], tuple[CoarseningStep, ...]]


class Chain(NamedTuple):
    """A method of coarsening."""

    build: Build
    """Computes the steps of a batch from its edges, its layout and the number of steps."""
    pool: Callable[[Tensor, Sequence[CoarseningStep]], Tensor]
    """Pools features by the first step of a chain, [N, D] -> [N', D]; linear."""


@no_compile
def coarsen_graphs(
    edge_index: Tensor, level: GraphLayout, coarsening: Coarsening
) -> tuple[CoarseningStep, ...]:
    """Return the coarsening steps of a batch.

    Args:
        edge_index: Source and target of each edge, [2, E].
        level: The layout of the batch.
        coarsening: The number of steps and the method.
    """
    return CHAINS[coarsening.method].build(edge_index, level, coarsening.steps)


def pool_features(x: Tensor, chain: Sequence[CoarseningStep]) -> Tensor:
    """Return the features after the first step of a chain, [N, D] -> [N', D]."""
    return CHAINS[chain[0].method].pool(x, chain)


CHAINS = {
    "spectral": Chain(build_chain, haar_transform),
    "sep": Chain(
        partial(partition_chain, method="sep", split=coding_tree_labels, mean=False), pool_shares
    ),
    "graclus": Chain(
        partial(partition_chain, method="graclus", split=graclus_labels, mean=True), pool_shares
    ),
    "ndp": Chain(decimation_chain, pool_shares),
}
"""Chains by name: those of HaarPool, SEP-G, Graclus and NDP."""
