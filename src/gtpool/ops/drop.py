"""Node dropping: selection of the kept nodes by score."""

from importlib import import_module

import torch
from torch import Tensor

from gtpool.graph import GraphLayout
from gtpool.ops.entry import no_compile
from gtpool.ops.padded_ops import has_triton
from gtpool.ops.sample import SAMPLERS, Order, kept_counts, round_scores
from gtpool.ops.segment import device_layout, layout_from_sizes

LONGEST = 4096
"""Maximum nodes of a graph for the GPU kernel of the samplers."""


@no_compile
def keep(score: Tensor, ratio: float, level: GraphLayout, *, sampler: str, order: Order) -> Tensor:
    """Return the kept nodes, ascending, [K]; scores that differ only by rounding errors tie."""
    kernel = score.is_cuda and score.dtype in (torch.float32, torch.float64) and has_triton()
    if kernel and int(level.sizes.max()) <= LONGEST:
        wheel = import_module("gtpool.ops.kernels.sample")
        layouts = device_layout(level), device_layout(kept_layout(level, ratio))
        longest = int(level.sizes.max())
        with torch.cuda.device_of(score):  # Triton launches on the current device
            return wheel.sample(score, *layouts, sampler=sampler, order=order, longest=longest)[0]
    sample = SAMPLERS[sampler]
    return sample(round_scores(score), level.batch, ratio, order=order, level=level)


@no_compile
def kept_layout(level: GraphLayout, ratio: float) -> GraphLayout:
    """Return the layout after a share of the nodes of each graph is kept."""

    def compute() -> GraphLayout:
        return layout_from_sizes(kept_counts(level.sizes, ratio), level.batch.device)

    return level.cached(("kept level", str(ratio)), compute)  # as text: 1 and 1.0 differ
