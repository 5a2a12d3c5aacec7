"""Triton kernels that clip gradients and take a step of Adam, for the rows of a matrix."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _SUM_BLOCK = 1024, 2048
_PARTS = 512
"""Maximum partial sums of a row."""


class State(NamedTuple):
    """Parameters and state of R runs, float32 and contiguous; a step changes the first four."""

    theta: Tensor
    """The parameters, [R, P]."""
    mean: Tensor
    """Mean of the gradients, [R, P]."""
    square: Tensor
    """Mean of their squares, [R, P]."""
    steps: Tensor
    """Steps taken, [R, 1]."""
    lr: Tensor
    """Learning rate, [R, 1]."""
    decay: Tensor
    """Weight decay, [R, 1]."""


class Average(NamedTuple):
    """Moving average of the parameters; a step changes it."""

    theta: Tensor
    """[R, P]"""
    steps: Tensor
    """Steps taken, float64 [R]."""
    decay: float
    """Maximum decay per step."""


class Constants(NamedTuple):
    """Constants of all runs."""

    clip: float
    """Maximum norm of a gradient."""
    clip_epsilon: float
    first: float
    """Decay of the mean."""
    second: float
    """Decay of the squares."""
    epsilon: float


def update(
    state: State, grad: Tensor, active: Tensor, constants: Constants, average: Average | None = None
) -> Tensor:
    """Take one step in place, in two launches; return the weight of the step in the average, [R].

    Args:
        state: Parameters and state.
        grad: Gradient of the parameters, [R, P].
        active: Runs that take the step, bool [R]; the others do not change.
        constants: Constants of all runs.
        average: The average to update; None for none.
    """
    grad = grad.contiguous()
    runs, columns = grad.shape
    clip, clip_epsilon, first, second, epsilon = constants
    parts = min(_PARTS, triton.cdiv(columns, _SUM_BLOCK))
    partial = torch.empty(runs, parts, dtype=torch.float32, device=grad.device)
    rate, root, weight = torch.empty(3, runs, dtype=torch.float32, device=grad.device)
    average_of, counted, most = average or (state.theta, state.steps, 0.0)
    _prepare[parts, runs](
        grad,
        active,
        state.steps,
        state.lr,
        counted,
        partial,
        rate,
        root,
        weight,
        columns,
        parts,
        LOG_FIRST=math.log(first),
        LOG_SECOND=math.log(second),
        MOST=most,
        AVERAGE=average is not None,
        BLOCK=_SUM_BLOCK,
    )
    _update[triton.cdiv(columns, _BLOCK), runs](
        grad,
        active,
        *state[:3],
        average_of,
        state.decay,
        partial,
        rate,
        root,
        weight,
        columns,
        parts,
        clip,
        clip_epsilon,
        epsilon,
        FIRST=1 - first,
        SECOND=1 - second,
        AVERAGE=average is not None,
        PARTS=triton.next_power_of_2(parts),
        BLOCK=_BLOCK,
    )
    return weight


@triton.jit
def _prepare(  # noqa: PLR0917
    grad_ptr: tl.tensor,
    active_ptr: tl.tensor,
    count_ptr: tl.tensor,
    lr_ptr: tl.tensor,
    counted_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    rate_ptr: tl.tensor,
    root_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    columns: int,
    parts: int,
    LOG_FIRST: tl.constexpr,
    LOG_SECOND: tl.constexpr,
    MOST: tl.constexpr,
    AVERAGE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Sum squares; one program per run counts the step and stores what depends on the count.

    1 - 0.999^n is computed in float64: float32 has few digits of it at first.
    """
    run, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(part * BLOCK, columns, parts * BLOCK):
        at = start + tl.arange(0, BLOCK)
        grad = tl.load(grad_ptr + run * columns + at, mask=at < columns, other=0.0)
        total += grad * grad
    tl.store(partial_ptr + run * parts + part, tl.sum(total, 0))
    if part == 0:
        share = tl.load(active_ptr + run).to(tl.float64)
        count = tl.load(count_ptr + run).to(tl.float64) + share
        tl.store(count_ptr + run, count.to(tl.float32))
        steps = tl.maximum(count, 1.0)
        rate = tl.load(lr_ptr + run).to(tl.float64) / (1 - tl.exp(steps * LOG_FIRST))
        tl.store(rate_ptr + run, rate.to(tl.float32))
        tl.store(root_ptr + run, tl.sqrt((1 - tl.exp(steps * LOG_SECOND)).to(tl.float32)))
        if AVERAGE:
            counted = tl.load(counted_ptr + run) + share
            tl.store(counted_ptr + run, counted)
            kept = (1 + counted) / (10 + counted)
            kept = tl.where(kept < MOST, kept, MOST)  # tl.minimum rounds a constant to float32
            tl.store(weight_ptr + run, ((1 - kept) * share).to(tl.float32))


@triton.jit
def _update(  # noqa: PLR0917
    grad_ptr: tl.tensor,
    active_ptr: tl.tensor,
    theta_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    square_ptr: tl.tensor,
    average_ptr: tl.tensor,
    decay_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    rate_ptr: tl.tensor,
    root_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    columns: int,
    parts: int,
    clip: float,
    clip_epsilon: float,
    epsilon: float,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    AVERAGE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    run = tl.program_id(1).to(tl.int64)
    if tl.load(active_ptr + run):
        part = tl.arange(0, PARTS)
        partial = tl.load(partial_ptr + run * parts + part, mask=part < parts, other=0.0)
        factor = clip / (tl.sqrt(tl.sum(partial, 0)) + clip_epsilon)
        factor = tl.where(factor > 1, 1.0, factor)  # NaN stays
        column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = column < columns
        at = run * columns + column
        theta = tl.load(theta_ptr + at, mask=mask, other=0.0)
        mean = tl.load(mean_ptr + at, mask=mask, other=0.0)
        square = tl.load(square_ptr + at, mask=mask, other=0.0)
        grad = tl.load(grad_ptr + at, mask=mask, other=0.0) * factor
        grad += theta * tl.load(decay_ptr + run)
        mean += FIRST * (grad - mean)
        square += SECOND * (grad * grad - square)
        root = tl.sqrt(square) / tl.load(root_ptr + run) + epsilon
        theta -= tl.load(rate_ptr + run) * (mean / root)
        tl.store(mean_ptr + at, mean, mask=mask)
        tl.store(square_ptr + at, square, mask=mask)
        tl.store(theta_ptr + at, theta, mask=mask)
        if AVERAGE:
            average = tl.load(average_ptr + at, mask=mask, other=0.0)
            average += tl.load(weight_ptr + run) * (theta - average)
            tl.store(average_ptr + at, average, mask=mask)
