"""Dropping nodes: from the score of each node to those that stay."""

from importlib import import_module

import torch
from torch import Tensor

from gtpool.graph import GraphLayout
from gtpool.ops.entry import eager
from gtpool.ops.sample import SAMPLERS, Order, kept_counts, settle
from gtpool.ops.segment import device_rows, plan
from gtpool.ops.steps import has_triton

LONGEST = 4096
"""Nodes of a graph up to which the kernel of a GPU samples it."""


@eager
def keep(score: Tensor, ratio: float, level: GraphLayout, *, sampler: str, order: Order) -> Tensor:
    """Choose the nodes that stay, ascending, [K]; equal nodes tie whatever rounding did to them."""
    kernel = score.is_cuda and score.dtype in (torch.float32, torch.float64) and has_triton()
    if kernel and int(level.sizes.max()) <= LONGEST:
        wheel = import_module("gtpool.ops.kernels.wheel")
        layouts = device_rows(level), device_rows(kept_level(level, ratio))
        longest = int(level.sizes.max())
        with torch.cuda.device_of(score):  # where Triton launches
            return wheel.sample(score, *layouts, sampler=sampler, order=order, longest=longest)[0]
    sample = SAMPLERS[sampler]
    return sample(settle(score), level.batch, ratio, order=order, level=level)


@eager
def kept_level(level: GraphLayout, ratio: float) -> GraphLayout:
    """Lay out what is left when a share of the nodes of each graph stays."""

    def lay_out() -> GraphLayout:
        return plan(kept_counts(level.sizes, ratio), level.batch.device)

    return level.recall(("kept level", str(ratio)), lay_out)  # 1 and 1.0 are not one ratio
