"""Exponential moving average of weights, for one run or for R runs side by side."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class WeightAverage:
    r"""Moving average of the floating-point entries of a state.

    .. math:: \bar{w}_t = d_t \bar{w}_{t-1} + (1 - d_t) w_t, d_t = \min(d, (1 + t) / (10 + t))

    The smaller decay of the first steps forgets the random start.

    Args:
        state: Current weights and statistics by name, [...] each, or [R, ...] for R runs.
        decay: Decay :math:`d` per step, above 0 and below 1.
        runs: R, or None if entries have no axis of runs.
    """

    def __init__(self, state: Mapping[str, Tensor], decay: float, runs: int | None = None) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"train.ema must be at least 0 and below 1, got {decay}")
        floats = {name: part for name, part in state.items() if part.is_floating_point()}
        if not floats:
            raise ValueError("there are no weights to average")
        self.decay = decay
        self.state = {name: part.detach().clone() for name, part in floats.items()}
        like = next(iter(floats.values()))
        self.count = like.new_zeros(() if runs is None else runs, dtype=torch.double)
        """Steps taken, of each run."""

    @torch.no_grad()
    def update(self, state: Mapping[str, Tensor], active: Tensor | None = None) -> None:
        """Add the weights after a step, in place and without a device sync.

        Args:
            state: Weights by name, as at construction.
            active: Mask of the runs that took the step, [R]; None means all.
        """
        share = torch.ones_like(self.count) if active is None else active.to(self.count.dtype)
        self.count += share
        decay = ((1 + self.count) / (10 + self.count)).clamp(max=self.decay)
        weight = (1 - decay) * share
        for name, part in self.state.items():
            rest = (1,) * (part.dim() - weight.dim())
            part.lerp_(state[name].detach(), weight.to(part.dtype).view(*weight.shape, *rest))

    def select(self, rows: Tensor) -> None:
        """Keep some of the runs only."""
        self.count = self.count.index_select(0, rows)
        self.state = {name: part.index_select(0, rows) for name, part in self.state.items()}


@contextmanager
@torch.no_grad()
def averaged(state: Mapping[str, Tensor], average: WeightAverage | None) -> Generator[None]:
    """Exchange current weights for their average inside the block, in place.

    Args:
        state: Current weights by name, sharing memory with the model.
        average: Their average; None changes nothing.
    """
    held = {} if average is None else average.state
    before = {name: state[name].clone() for name in held}
    for name, part in held.items():
        state[name].copy_(part)
    try:
        yield
    finally:
        for name, part in before.items():
            state[name].copy_(part)
