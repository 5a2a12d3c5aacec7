"""Triton kernels for the mean loss of each run, with its gradient in the same launch."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

MOST = 2**14
"""Maximum logits of a run, which one program reads."""
_BLOCK = 1024


def mean_loss(
    logits: Tensor,
    y: Tensor,
    present: Tensor | None,
    weight: Tensor | None,
    *,
    runs: int,
    task: str,
    smoothing: float,
) -> Tensor:
    """Return the mean loss of each run, [R], for at most ``MOST`` logits a run.

    Args:
        logits: Graphs of all runs, run after run, float32 [RG, outputs].
        y: Targets: classes [RG], or numbers, NaN if missing, [RG, outputs].
        present: Mask of the graphs that count, bool [RG]; None means all.
        weight: Weights of classes or of positives, or units of a regression, [R, outputs] or None.
        runs: Number of runs R.
        task: ``"classes"``, ``"binary"`` or ``"regression"``.
        smoothing: Probability mass moved from the label to all classes.
    """
    return _MeanLoss.apply(logits, y, present, weight, runs, task, smoothing)  # pyright: ignore[reportReturnType]


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _MeanLoss(Function):
    """The forward pass stores the gradient of each run's mean."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        logits: Tensor,
        y: Tensor,
        present: Tensor | None,
        weight: Tensor | None,
        runs: int,
        task: str,
        smoothing: float,
    ) -> Tensor:
        logits, width = logits.contiguous(), logits.size(1)
        loss, d_logits = logits.new_empty(runs), torch.empty_like(logits)
        wide = triton.next_power_of_2(width) if task == "classes" else 1
        _mean_loss[(runs,)](
            logits,
            y.contiguous(),
            logits if present is None else present,
            logits if weight is None else weight.contiguous(),
            loss,
            d_logits,
            len(logits) // runs,
            smoothing,
            TASK=task,
            MASKED=present is not None,
            WEIGHTED=weight is not None,
            WIDTH=width,
            ROWS=max(1, _BLOCK // wide),
            COLUMNS=wide,
        )
        ctx.save_for_backward(d_logits)
        return loss

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_loss: Tensor,
    ) -> tuple[Tensor | None, ...]:
        (d_logits,) = ctx.saved_tensors
        d_logits = (d_logits.unflatten(0, (d_loss.numel(), -1)) * d_loss.view(-1, 1, 1)).flatten(
            0, 1
        )
        return d_logits, None, None, None, None, None, None


@triton.jit
def _mean_loss(  # noqa: PLR0917
    logits_ptr: tl.tensor,
    y_ptr: tl.tensor,
    present_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    loss_ptr: tl.tensor,
    d_logits_ptr: tl.tensor,
    graphs: int,
    smoothing: float,
    TASK: tl.constexpr,
    MASKED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Sum losses and weights of a run, then store gradients; a row is a graph or one number."""
    run = tl.program_id(0).to(tl.int64)
    rows = graphs if TASK == "classes" else graphs * WIDTH
    total, weights = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        graph = row if TASK == "classes" else row // WIDTH
        counts = row < rows
        if MASKED:
            counts = counts & tl.load(present_ptr + run * graphs + graph, mask=counts, other=0)
        if TASK == "classes":
            each, weight, _ = _class_loss(
                logits_ptr, y_ptr, weight_ptr, run, row, rows, smoothing, WEIGHTED, WIDTH, COLUMNS
            )
        else:
            each, weight, _ = _task_loss(
                logits_ptr, y_ptr, weight_ptr, run, row, rows, smoothing, TASK, WEIGHTED, WIDTH
            )
        weight = tl.where(counts, weight, 0.0)
        total += tl.where(weight > 0, each * weight, 0.0)
        weights += weight
    whole = tl.sum(weights, 0)
    whole = tl.where(whole > 0, whole, 1.0)
    tl.store(loss_ptr + run, tl.sum(total, 0) / whole)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        graph = row if TASK == "classes" else row // WIDTH
        counts = row < rows
        if MASKED:
            counts = counts & tl.load(present_ptr + run * graphs + graph, mask=counts, other=0)
        if TASK == "classes":
            _, weight, d = _class_loss(
                logits_ptr, y_ptr, weight_ptr, run, row, rows, smoothing, WEIGHTED, WIDTH, COLUMNS
            )
            weight = tl.where(counts, weight, 0.0)[:, None]
            column = tl.arange(0, COLUMNS)[None, :]
            at = (run * rows + row)[:, None] * WIDTH + column
            mask = (row < rows)[:, None] & (column < WIDTH)
        else:
            _, weight, d = _task_loss(
                logits_ptr, y_ptr, weight_ptr, run, row, rows, smoothing, TASK, WEIGHTED, WIDTH
            )
            weight = tl.where(counts, weight, 0.0)
            at, mask = run * rows + row, row < rows
        tl.store(d_logits_ptr + at, tl.where(weight > 0, d * (weight / whole), 0.0), mask=mask)


@triton.jit
def _class_loss(
    logits_ptr: tl.tensor,
    y_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    run: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    smoothing: tl.tensor,
    WEIGHTED: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return cross entropy and weight of graphs, [ROWS], and gradients, [ROWS, COLUMNS]."""
    column, real = tl.arange(0, COLUMNS)[None, :], row < rows
    inside = column < WIDTH
    at = (run * rows + row)[:, None] * WIDTH + column
    logits = tl.load(logits_ptr + at, mask=real[:, None] & inside, other=0.0)
    label = tl.load(y_ptr + run * rows + row, mask=real, other=0)
    top = tl.max(tl.where(inside, logits, float("-inf")), 1)
    power = tl.where(inside, tl.exp(logits - top[:, None]), 0.0)
    power_sum = tl.sum(power, 1)
    own = tl.where(column == label[:, None], 1.0 - smoothing, 0.0) + smoothing / WIDTH
    own = tl.where(inside, own, 0.0)
    log_share = logits - (top + tl.log(power_sum))[:, None]
    each = -tl.sum(tl.where(own > 0, own * log_share, 0.0), 1)
    weight = tl.zeros_like(each) + 1.0
    if WEIGHTED:
        weight = tl.load(weight_ptr + run * WIDTH + label, mask=real, other=0.0).to(tl.float32)
    return each, weight, power / power_sum[:, None] - own


@triton.jit
def _task_loss(
    logits_ptr: tl.tensor,
    y_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    run: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    smoothing: tl.tensor,
    TASK: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return loss, weight and gradient of single numbers, [ROWS]; missing ones have weight 0."""
    real = row < rows
    x = tl.load(logits_ptr + run * rows + row, mask=real, other=0.0)
    y = tl.load(y_ptr + run * rows + row, mask=real, other=0.0).to(tl.float32)
    known = y == y  # noqa: PLR0124 - not NaN
    weight, y = tl.where(known, 1.0, 0.0), tl.where(known, y, 0.0)
    scale = tl.zeros_like(x) + 1.0
    if WEIGHTED:
        scale = tl.load(weight_ptr + run * WIDTH + row % WIDTH, mask=real, other=1.0).to(tl.float32)
    if TASK == "regression":
        error = x / scale - y / scale
        return error * error, weight, 2 * error / scale
    y = y * (1 - smoothing) + smoothing / 2
    positive = (scale - 1) * y + 1
    small = tl.exp(-tl.abs(x))
    below = tl.where(x < 0, 1.0, small) / (1 + small)  # sigmoid(-x)
    missed = tl.log(1 + small) + tl.where(x < 0, -x, 0.0)  # softplus(-x)
    return (1 - y) * x + positive * missed, weight, (1 - y) - positive * below
