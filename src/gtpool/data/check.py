"""What a dataset must hold to: checked once, when it is made, so that batches can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gtpool.data.schema import FLOAT32_MAX

if TYPE_CHECKING:
    from gtpool.data.dataset import GraphDataset


def check_dataset(data: GraphDataset) -> None:
    """Raise a ValueError that names the graph unless all tensors fit together."""
    graphs = data.sizes.numel()
    if graphs == 0:
        raise ValueError(f"{data.schema.name} has no graphs")
    if int(data.sizes.min()) < 1:
        raise ValueError(f"graph {int(data.sizes.argmin())} of {data.schema.name} has no nodes")
    for name, rows, expected in (
        ("x", data.x.size(0), int(data.sizes.sum())),
        ("edge_counts", data.edge_counts.numel(), graphs),
        ("edge_index", data.edge_index.size(1), int(data.edge_counts.sum())),
        ("y", data.y.size(0), graphs),
        (
            "edge_attr",
            None if data.edge_attr is None else data.edge_attr.size(0),
            data.edge_index.size(1),
        ),
    ):
        if rows not in (None, expected):
            raise ValueError(f"{data.schema.name}: {name} has {rows} rows, expected {expected}")
    _check_edges(data)
    _check_values(data)


def _check_edges(data: GraphDataset) -> None:
    if data.edge_index.numel() == 0:
        return
    graph = torch.arange(len(data)).repeat_interleave(data.edge_counts)
    edge_index = data.edge_index.cpu()
    outside = ((edge_index < 0) | (edge_index >= data.sizes[graph])).any(0)
    if outside.any():
        at = int(outside.nonzero()[0])
        raise ValueError(
            f"graph {int(graph[at])} of {data.schema.name} has nodes 0 to "
            f"{int(data.sizes[graph[at]]) - 1}, but an edge {edge_index[:, at].tolist()}"
        )


def _check_values(data: GraphDataset) -> None:
    for value, counts in ((data.x, data.sizes), (data.edge_attr, data.edge_counts)):
        if value is None or not value.is_floating_point():
            continue
        finite = value.isfinite().all(1)
        if not finite.all():
            row = int((~finite).nonzero()[0])
            graph = int(torch.searchsorted(counts.cumsum(0), row, right=True))
            raise ValueError(
                f"graph {graph} of {data.schema.name} has features that are not finite"
            )
    names = data.schema.num_outputs
    if data.schema.task == "classes":
        wrong = (data.y < 0) | (data.y >= names)
        if wrong.any():
            graph = int(wrong.nonzero()[0])
            raise ValueError(
                f"graph {graph} of {data.schema.name} has class {int(data.y[graph])}, "
                f"but the classes are 0 to {names - 1}"
            )
        return
    if data.y.shape != (len(data), names):
        raise ValueError(
            f"{data.schema.name} names {names} tasks, but y is of shape {list(data.y.shape)}"
        )
    wrong = data.y.abs() > FLOAT32_MAX  # NaN is a missing target
    if wrong.any():
        graph, task = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"graph {graph} of {data.schema.name} has the target {data.y[graph, task].item()} for "
            f"{data.schema.targets[task]!r}; targets must be finite in float32"
        )
