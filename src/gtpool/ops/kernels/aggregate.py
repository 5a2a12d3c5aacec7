"""Triton kernels for neighbour sums at any level of a padded batch, and their transposes.

Each program computes one row, in slices of its edges. No two programs write to the same address,
and a row of high degree does not delay other rows. Edges join rows of level 0: ``origin`` maps a
row to its edges, ``place`` maps the far end of an edge to a row of this level, or to -1.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.padded_batch import PaddedCSR


def root_degrees(csr: PaddedCSR) -> Tensor:
    """Return (1 + in-degree without self-loops) ** -0.5, 0 on padding, float32 [N]."""
    return _root_degrees(csr, csr.source, csr.begin, csr.end, loops=False)


def root_out_degrees(csr: PaddedCSR) -> Tensor:
    """Return (1 + out-degree with self-loops) ** -0.5, 0 on padding, float32 [N]."""
    return _root_degrees(csr, csr.target, csr.out_begin, csr.out_end, loops=True)


def gcn_sum(x: Tensor, scale: Tensor, csr: PaddedCSR) -> Tensor:
    """Return s_i (s_i x_i + sum of s_j x_j over edges j -> i, j != i), as in a GCN, [N, D].

    Args:
        x: Features of the rows, [N, D]; padding is not read.
        scale: Factors s from :func:`root_degrees`, [N]; they get no gradient.
        csr: The edges.
    """
    return _NeighbourSum.apply(x, scale, csr)


def gin_sum(x: Tensor, csr: PaddedCSR) -> Tensor:
    """Return x_i + sum of x_j over all edges j -> i with self-loops, as in a GIN, [N, D]."""
    return _NeighbourSum.apply(x, None, csr)


def _root_degrees(
    csr: PaddedCSR, far_end: Tensor, begin: Tensor, end: Tensor, *, loops: bool
) -> Tensor:
    num_rows = csr.origin.numel()
    root = torch.empty(num_rows, device=csr.origin.device)
    edges = edges_per_tile(csr, 128)
    rows = 256 // edges
    _count[(triton.cdiv(num_rows, rows),)](
        root,
        far_end,
        begin,
        end,
        csr.origin,
        csr.place,
        num_rows,
        LOOPS=loops,
        ROWS=rows,
        EDGES=edges,
        num_warps=2,
    )
    return root


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _NeighbourSum(Function):
    """Sum over incoming edges; its backward pass is the same sum over outgoing edges."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        scale: Tensor | None,
        csr: PaddedCSR,
    ) -> Tensor:
        ctx.save_for_backward(scale)
        ctx.csr = csr
        return _sum_in(x, scale, csr)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        (scale,) = ctx.saved_tensors
        return _sum_out(d_out, scale, ctx.csr), None, None


def _sum_in(x: Tensor, scale: Tensor | None, csr: PaddedCSR) -> Tensor:
    return _launch(x, scale, csr, csr.source, csr.begin, csr.end)


def _sum_out(x: Tensor, scale: Tensor | None, csr: PaddedCSR) -> Tensor:
    return _launch(x, scale, csr, csr.target, csr.out_begin, csr.out_end)


def _launch(
    x: Tensor, scale: Tensor | None, csr: PaddedCSR, far_end: Tensor, begin: Tensor, end: Tensor
) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    num_rows, width = x.shape
    columns = max(16, min(128, triton.next_power_of_2(width)))
    edges = edges_per_tile(csr, 32)
    _sum[(num_rows, triton.cdiv(width, columns))](
        x,
        scale,
        out,
        far_end,
        begin,
        end,
        csr.origin,
        csr.place,
        SCALED=scale is not None,
        EXACT=tl.float64 if x.dtype == torch.float64 else tl.float32,
        WIDTH=width,
        EDGES=edges,
        COLUMNS=columns,
        num_warps=max(1, edges * columns // 1024),
    )
    return out


def edges_per_tile(csr: PaddedCSR, most: int) -> int:
    """Return the edges per slice, such that most rows need one slice."""
    mean = csr.source.numel() // csr.begin.numel()
    return max(8, min(most, int(triton.next_power_of_2(2 * mean))))


@triton.jit
def _count(
    root_ptr: tl.tensor,
    far_end_ptr: tl.tensor,
    begin_ptr: tl.tensor,
    end_ptr: tl.tensor,
    origin_ptr: tl.tensor,
    place_ptr: tl.tensor,
    num_rows: int,
    LOOPS: tl.constexpr,
    ROWS: tl.constexpr,
    EDGES: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    origin = tl.load(origin_ptr + row, mask=row < num_rows, other=-1)
    begin = tl.load(begin_ptr + origin, mask=origin >= 0, other=0)
    end = tl.load(end_ptr + origin, mask=origin >= 0, other=0)
    total = tl.zeros((ROWS, EDGES), tl.int32)
    for past in range(0, tl.max(end - begin, 0), EDGES):
        edge = begin[:, None] + past + tl.arange(0, EDGES)[None, :]
        within = edge < end[:, None]
        far = tl.load(far_end_ptr + edge, mask=within, other=0)
        near = tl.load(place_ptr + far, mask=within, other=-1)
        counts = near >= 0
        if not LOOPS:
            counts &= near != row[:, None]
        total += counts.to(tl.int32)
    degree = 1 + tl.sum(total, 1)
    root = tl.where(origin >= 0, tl.rsqrt(degree.to(tl.float32)), 0.0)
    tl.store(root_ptr + row, root, mask=row < num_rows)


@triton.jit
def _sum(  # noqa: PLR0917
    x_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    out_ptr: tl.tensor,
    far_end_ptr: tl.tensor,
    begin_ptr: tl.tensor,
    end_ptr: tl.tensor,
    origin_ptr: tl.tensor,
    place_ptr: tl.tensor,
    SCALED: tl.constexpr,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    origin = tl.load(origin_ptr + row)
    begin = tl.load(begin_ptr + origin, mask=origin >= 0, other=0)
    end = tl.load(end_ptr + origin, mask=origin >= 0, other=0)
    total = tl.zeros((EDGES, COLUMNS), EXACT)
    for first in range(begin, end, EDGES):
        edge = first + tl.arange(0, EDGES)
        far = tl.load(far_end_ptr + edge, mask=edge < end, other=0)
        near = tl.load(place_ptr + far, mask=edge < end, other=-1)
        counts = near >= 0
        if SCALED:
            counts &= near != row
        mask = counts[:, None] & (column < WIDTH)[None, :]
        part = tl.load(x_ptr + near[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
        part = part.to(EXACT)
        if SCALED:
            part *= tl.load(scale_ptr + near, mask=counts, other=0.0)[:, None]
        total += part
    at = row * WIDTH + column
    own = tl.load(x_ptr + at, mask=column < tl.where(origin >= 0, WIDTH, 0), other=0.0).to(EXACT)
    out = tl.sum(total, 0)
    if SCALED:
        scale = tl.load(scale_ptr + row, mask=origin >= 0, other=0.0)
        out = scale * (scale * own + out)
    else:
        out += own
    tl.store(out_ptr + at, out, mask=column < WIDTH)
