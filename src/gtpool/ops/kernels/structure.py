"""Triton kernel for the colours of ``gtpool.ops.structure`` at any level of a padded batch."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

import triton
import triton.language as tl
from torch import Tensor

from gtpool.ops import structure
from gtpool.ops.kernels.aggregate import edges_per_tile
from gtpool.padded_batch import PaddedCSR

_ONE, _TWO, _THREE = (tl.constexpr(factor) for factor in structure.FACTORS)
_LOW, _HIGH = tl.constexpr(structure.LOW), tl.constexpr(structure.LOW >> 1)
_HALF, _ROUNDED = tl.constexpr(1 << 11), tl.constexpr(-(1 << 12))  # as ops.sample rounds float32
_MINUS_ZERO, _REST = tl.constexpr(-(1 << 31)), tl.constexpr((1 << 31) - 1)


def node_colours(score: Tensor, csr: PaddedCSR) -> Tensor:
    """Return the colours of ``gtpool.ops.structure.node_colours``, arbitrary on padding, [N].

    Args:
        score: Score of each row, not float64, [N].
        csr: The edges.
    """
    count, score = score.numel(), score.float().contiguous()
    edges = edges_per_tile(csr, 64)
    rows = 256 // edges
    first, second = csr.origin.new_empty(2, count, 2)
    colour = csr.origin.new_empty(count)
    for number in range(structure.ROUNDS + 1):
        _refine[(triton.cdiv(count, rows),)](
            score,
            first,
            second,
            colour,
            csr.source,
            csr.begin,
            csr.end,
            csr.target,
            csr.out_begin,
            csr.out_end,
            csr.origin,
            csr.place,
            count,
            FIRST=number == 0,
            LAST=number == structure.ROUNDS,
            ROWS=rows,
            EDGES=edges,
            num_warps=2,
        )
        first, second = second, first
    return colour


@triton.jit
def _refine(  # noqa: PLR0917
    score_ptr: tl.tensor,
    before_ptr: tl.tensor,
    after_ptr: tl.tensor,
    colour_ptr: tl.tensor,
    source_ptr: tl.tensor,
    begin_ptr: tl.tensor,
    end_ptr: tl.tensor,
    target_ptr: tl.tensor,
    out_begin_ptr: tl.tensor,
    out_end_ptr: tl.tensor,
    origin_ptr: tl.tensor,
    place_ptr: tl.tensor,
    num_rows: int,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    EDGES: tl.constexpr,
) -> None:
    """One round of refinement: each row adds the hashes of its neighbours to its own."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    origin = tl.load(origin_ptr + row, mask=row < num_rows, other=-1)
    real = origin >= 0
    shape, scored = _colours(score_ptr, before_ptr, row, real, FIRST)
    shape, scored = _mix(shape), _mix(scored)
    for direction in tl.static_range(2):
        if direction == 0:
            far_ptr, first_ptr, last_ptr = source_ptr, begin_ptr, end_ptr
        else:
            far_ptr, first_ptr, last_ptr = target_ptr, out_begin_ptr, out_end_ptr
        begin = tl.load(first_ptr + origin, mask=real, other=0)
        end = tl.load(last_ptr + origin, mask=real, other=0)
        shapes = tl.zeros((ROWS, EDGES), tl.int64)
        scores = tl.zeros((ROWS, EDGES), tl.int64)
        for past in range(0, tl.max(end - begin, 0), EDGES):
            edge = begin[:, None] + past + tl.arange(0, EDGES)[None, :]
            within = edge < end[:, None]
            far = tl.load(far_ptr + edge, mask=within, other=0)
            near = tl.load(place_ptr + far, mask=within, other=-1)
            counts = near >= 0
            one, other = _colours(score_ptr, before_ptr, near, counts, FIRST)
            one, other = _mix(one), _mix(other)
            if direction == 1:  # another hash against the direction
                one, other = _mix(one), _mix(other)
            shapes += tl.where(counts, one, 0)
            scores += tl.where(counts, other, 0)
        shape += tl.sum(shapes, 1)
        scored += tl.sum(scores, 1)
    if LAST:
        colour = (_mix(shape) & _HIGH) << 32 | _mix(scored) & _LOW
        tl.store(colour_ptr + row, colour, mask=row < num_rows)
    else:
        tl.store(after_ptr + 2 * row, shape, mask=row < num_rows)
        tl.store(after_ptr + 2 * row + 1, scored, mask=row < num_rows)


@triton.jit
def _colours(
    score_ptr: tl.tensor,
    before_ptr: tl.tensor,
    row: tl.tensor,
    mask: tl.tensor,
    FIRST: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return both halves of the rows' colours: of the structure, and of the scores."""
    if FIRST:
        score = tl.load(score_ptr + row, mask=mask, other=0.0)
        bits = score.to(tl.int32, bitcast=True)
        bits = (bits + _HALF) & _ROUNDED
        bits = tl.where(bits == _MINUS_ZERO, 0, bits)
        bits = tl.where(bits < 0, bits ^ _REST, bits)
        return tl.zeros_like(row), bits.to(tl.int64)
    shape = tl.load(before_ptr + 2 * row, mask=mask, other=0)
    return shape, tl.load(before_ptr + 2 * row + 1, mask=mask, other=0)


@triton.jit
def _mix(value: tl.tensor) -> tl.tensor:
    """Hash integers as ``gtpool.ops.structure.mix`` does."""
    value = value * _ONE
    value = value ^ (value >> 29)
    value = value * _TWO
    value = value ^ (value >> 29)
    value = value * _THREE
    value = value ^ (value >> 29)
    return value + 1
