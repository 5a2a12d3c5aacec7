"""Layouts of padded batches, for the tests of kernels."""

import torch

from gtpool.padded_batch import PaddedLayout


def padded_layout(sizes, padding=2, *, device="cpu") -> PaddedLayout:
    """Place runs of graphs of these sizes, [R, G]; the longest run has so many rows of padding."""
    sizes = torch.as_tensor(sizes)
    capacity = int(sizes.sum(1).max()) + padding
    start = sizes.cumsum(1) - sizes + capacity * torch.arange(len(sizes))[:, None]
    batch = torch.full((len(sizes) * capacity,), sizes.numel())
    spans = zip(start.flatten().tolist(), sizes.flatten().tolist(), strict=True)
    for graph, (at, nodes) in enumerate(spans):
        batch[at : at + nodes] = graph
    return PaddedLayout(*(part.flatten().to(device) for part in (start, sizes, batch)))
