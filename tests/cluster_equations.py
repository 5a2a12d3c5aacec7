"""A pooler with a fixed number of clusters against its equations, written out graph by graph.

``dense_layer(pool, graphs, weight)`` gives features, matrices, shares and losses; ``make`` takes
the width, the number of clusters and ``weighted``.
"""

from collections.abc import Callable

import torch
from contract import Graphs, Make, compare, drawn, pooler, ragged
from hypothesis import given
from hypothesis import strategies as st


def equals_dense_on_drawn_graphs(make: Make, dense_layer: Callable, *, weighted: bool) -> None:
    @drawn
    @given(ragged(), st.integers(1, 4))
    def check(graphs: Graphs, clusters: int) -> None:
        equals_dense(make, dense_layer, graphs, clusters, weighted=weighted)

    check()


def equals_dense(
    make: Make, dense_layer: Callable, graphs: Graphs, clusters: int, *, weighted: bool = False
) -> None:
    """Compare outputs and gradients, of weights too; weights are the first column."""
    pool = pooler(lambda width, count: make(width, count, weighted=weighted), clusters)
    asking = [graphs.x.requires_grad_(), *pool.parameters()]
    weight = torch.ones(graphs.edge_index.size(1), dtype=torch.double)
    if weighted:
        weight = torch.rand(weight.shape, generator=torch.Generator().manual_seed(5)).double()
        asking.append(weight.requires_grad_())
        graphs = graphs._replace(edge_attr=torch.stack([weight, -weight], 1))
    out = pool(*graphs)
    ours = out.x, out.edge_attr.view(-1, clusters, clusters), out.assign, out.loss
    compare(ours, dense_layer(pool, graphs, weight), asking)
