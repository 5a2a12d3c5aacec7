"""Export of a trained classifier with ``torch.export``, for padded batches of one capacity."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from gtpool.model.classifier import Classifier
from gtpool.model.ensemble import ModelEnsemble
from gtpool.model.predictor import Predictor
from gtpool.ops.padded_ops import torch_ops
from gtpool.ops.padded_segment import layout_of_sizes
from gtpool.padded_batch import Capacity, EdgeTypes, PaddedBatch, PaddedCSR, PaddedLayout


def export_classifier(model: Predictor, capacity: Capacity, longest: int) -> ExportedProgram:
    """Return a program that maps the tensors of ``inputs_of`` to logits.

    The program runs without gtpool. It uses plain PyTorch operations, and its shapes are fixed by
    the capacity. The boosted trees of a blend, and temperature and threshold of a calibration,
    are not in the program.

    Args:
        model: The trained classifier, on a CPU; an ensemble raises an error that says what to do.
        capacity: Capacity of a batch.
        longest: Maximum nodes of a graph.

    Example:
        >>> from gtpool.spec import ModelSpec, ShapeSpec
        >>> model = Classifier(ModelSpec(width=8, levels=1), ShapeSpec(outputs=2, node_width=3))
        >>> program = export_classifier(model, Capacity.rounded(2, [10, 5], 20), 8)
        >>> inputs_of(empty_batch(model, Capacity.rounded(2, [10, 5], 20)))[0].shape
        torch.Size([64, 3])
    """
    if not isinstance(model, Classifier):
        raise ValueError(
            "an ensemble cannot be exported as one program; export each of its members, with "
            "features from gtpool.model.predictor.member_features, and average their probabilities"
        )
    if model.coarsening:
        raise ValueError(f"pool {model.spec.pool!r} cannot be exported: it clusters on the host")
    module = _Flat(model, longest).eval()
    with torch.no_grad():
        return torch.export.export(module, inputs_of(empty_batch(model, capacity)))


def inputs_of(batch: PaddedBatch) -> tuple[Tensor, ...]:
    """Return the inputs of an exported program: nodes, edges, edge features and layouts.

    Edge features or codes, and features of graphs, are included only if the network reads them. The
    layout of each level is the first row of each graph, the nodes of each graph, and the graph of
    each row.
    """
    levels = (part for rows in batch.levels for part in rows)
    edges = () if batch.edge_types is None else (batch.edge_types.entering.long(),)
    edges = edges if batch.edge_attr is None else (batch.edge_attr,)
    features = () if batch.graph_features is None else (batch.graph_features,)
    return batch.x, batch.csr.source, batch.csr.sink, *edges, *features, *levels


def empty_batch(model: Classifier, capacity: Capacity) -> PaddedBatch:
    """Return a batch of a given capacity without graphs."""
    sizes = torch.zeros(1, capacity.graphs, dtype=torch.long)
    levels = tuple(layout_of_sizes(sizes.clone(), rows) for rows in capacity.nodes)
    width = model.shape.node_width + sum(model.shape.node_categories)
    # Two tensors, not one twice: export would take them for one input.
    source, sink = (torch.full((capacity.edges,), -1) for _ in range(2))
    batch = _batch(torch.zeros(capacity.nodes[0], width), source, sink, levels)
    if columns := model.shape.graph_width:
        batch = batch._replace(graph_features=torch.zeros(capacity.graphs, columns))
    if model.reads_edge_numbers:
        return batch._replace(edge_attr=torch.zeros(capacity.edges, model.shape.edge_width))
    codes = torch.zeros(capacity.edges, len(model.edge_categories), dtype=torch.long)
    return batch._replace(edge_types=EdgeTypes(codes, codes) if model.edge_categories else None)


class _Flat(nn.Module):
    """The static network, called with plain tensors instead of a batch."""

    def __init__(self, model: Classifier, longest: int) -> None:
        super().__init__()
        self.stack = ModelEnsemble([model], longest)
        self.stack.ops = torch_ops()
        self.coded, self.numbers = bool(model.edge_categories), model.reads_edge_numbers
        self.described = model.shape.graph_width > 0

    def forward(self, x: Tensor, source: Tensor, sink: Tensor, *plan: Tensor) -> Tensor:
        edges = int(self.coded or self.numbers)
        first = edges + self.described
        levels = tuple(PaddedLayout(*plan[at : at + 3]) for at in range(first, len(plan), 3))
        batch = _batch(x, source, sink, levels)
        if self.coded:
            batch = batch._replace(edge_types=EdgeTypes(plan[0], plan[0]))
        if self.numbers:
            batch = batch._replace(edge_attr=plan[0])
        if self.described:
            batch = batch._replace(graph_features=plan[edges])
        return cast("Tensor", self.stack(batch))


def _batch(x: Tensor, source: Tensor, sink: Tensor, levels: Sequence[PaddedLayout]) -> PaddedBatch:
    """Return a batch with the fields that the torch operations read; offsets are placeholders."""
    rows = torch.arange(x.size(0), device=x.device)
    own = torch.where(levels[0].batch < levels[0].size.numel(), rows, -1)
    csr = PaddedCSR(source, sink, own, own, source, own, own, own, own)
    present = levels[0].size > 0
    return PaddedBatch(x, csr, tuple(levels), present.long(), present)
