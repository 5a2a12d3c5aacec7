"""The back-end of merged graphs: the same number of clusters per graph, with dense matrices."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gtpool.ops.adjacency import DenseAdjacency


class ClusterGraph(NamedTuple):
    """Graphs of C clusters each; see ``gtpool.ops.backend.Backend``.

    It implements only the methods that convolutions of clusters and another merge need.
    """

    matrix: Tensor
    """Weights between the clusters of each graph, from row to column, [G, C, C]."""
    rows: Any
    """Layout of the clusters, a ``RowLayout``."""

    def gcn_sum(self, x: Tensor) -> Tensor:
        """Return the mean over the clusters of each graph: a complete graph without weights."""
        by_graph = x.unflatten(0, self.matrix.shape[:2])
        return by_graph.mean(1, keepdim=True).expand_as(by_graph).flatten(0, 1)

    def coarse_gcn_sum(self, x: Tensor) -> Tensor:
        """Return D^-1/2 (A + I)^T D^-1/2 x, with D the weighted in-degree, [N, D]."""
        scale = (self.matrix.sum(1) + 1).rsqrt().unsqueeze(2)
        sent = scale * x.unflatten(0, self.matrix.shape[:2])
        return (scale * torch.baddbmm(sent, self.matrix.mT, sent)).flatten(0, 1)

    def adjacency(self, dtype: torch.dtype, *, weighted: bool) -> DenseAdjacency:
        """Return the matrices, to merge clusters."""
        del weighted  # edges between clusters always have weights
        return DenseAdjacency(self.matrix.to(dtype))

    def merged(self, coarse: Tensor) -> "ClusterGraph":
        """Return graphs whose nodes are clusters of these clusters."""
        return ClusterGraph(coarse, self.rows.of_clusters(coarse.size(1)))
