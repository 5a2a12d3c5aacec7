"""Dropping nodes: from the score of each node to those that stay."""

from importlib import import_module

import torch
from torch import Tensor

from gtpool.graph import GraphLayout
from gtpool.ops.entry import no_compile
from gtpool.ops.padded_ops import has_triton
from gtpool.ops.sample import SAMPLERS, Order, kept_counts, round_scores
from gtpool.ops.segment import device_layout, layout_from_sizes

LONGEST = 4096
"""Nodes of a graph up to which the kernel of a GPU samples it."""


@no_compile
def keep(score: Tensor, ratio: float, level: GraphLayout, *, sampler: str, order: Order) -> Tensor:
    """Choose the nodes that stay, ascending, [K]; equal nodes tie whatever rounding did to them."""
    kernel = score.is_cuda and score.dtype in (torch.float32, torch.float64) and has_triton()
    if kernel and int(level.sizes.max()) <= LONGEST:
        wheel = import_module("gtpool.ops.kernels.sample")
        layouts = device_layout(level), device_layout(kept_layout(level, ratio))
        longest = int(level.sizes.max())
        with torch.cuda.device_of(score):  # where Triton launches
            return wheel.sample(score, *layouts, sampler=sampler, order=order, longest=longest)[0]
    sample = SAMPLERS[sampler]
    return sample(round_scores(score), level.batch, ratio, order=order, level=level)


@no_compile
def kept_layout(level: GraphLayout, ratio: float) -> GraphLayout:
    """Return the layout of the pooled graphs when each graph keeps ``ratio`` of its nodes."""

    def compute() -> GraphLayout:
        return layout_from_sizes(kept_counts(level.sizes, ratio), level.batch.device)

    return level.cached(("kept level", str(ratio)), compute)  # 1 and 1.0 differ
