"""The back-end of merged graphs: as many clusters of each graph, and a matrix between them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gtpool.ops.adjacency import DenseAdjacency


class ClusterGraph(NamedTuple):
    """Graphs of C clusters each; see ``gtpool.ops.backend.Backend``.

    Convolutions of clusters and a second merge ask for a part of that alone.
    """

    matrix: Tensor
    """Weights between the clusters of each graph, from row to column, [G, C, C]."""
    rows: Any
    """The layout of the clusters, a ``RowLayout``."""

    def gcn_sum(self, x: Tensor) -> Tensor:
        """Average the clusters of each graph: without weights, all are joined to all."""
        by_graph = x.unflatten(0, self.matrix.shape[:2])
        return by_graph.mean(1, keepdim=True).expand_as(by_graph).flatten(0, 1)

    def coarse_gcn_sum(self, x: Tensor) -> Tensor:
        """Multiply by D^-1/2 (A + I)^T D^-1/2, D the weight that comes in, [N, D]."""
        scale = (self.matrix.sum(1) + 1).rsqrt().unsqueeze(2)
        sent = scale * x.unflatten(0, self.matrix.shape[:2])
        return (scale * torch.baddbmm(sent, self.matrix.mT, sent)).flatten(0, 1)

    def adjacency(self, dtype: torch.dtype, *, weighted: bool) -> DenseAdjacency:
        """Give the matrices, for a merge of clusters."""
        del weighted  # they are, whoever asks
        return DenseAdjacency(self.matrix.to(dtype))

    def merged(self, coarse: Tensor) -> "ClusterGraph":
        """Give graphs of clusters of these clusters."""
        return ClusterGraph(coarse, self.rows.of_clusters(coarse.size(1)))
