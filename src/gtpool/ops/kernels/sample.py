"""Triton kernels for the samplers of ``ops.sample`` on a padded batch: one program per graph.

Scores are rounded, so the last bits of a float are free. The float is read as an integer of the
same order, and the free bits hold the index of the node. One integer thus serves as sort key and
tie-breaker, and gives back score and node.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtpool.ops.sample import ORDERS, SAMPLERS, check_choice
from gtpool.padded_batch import PaddedLayout

_SMALL = tl.constexpr(64)
"""Nodes up to which a graph is sampled in a block of this size."""
LONGEST = 4096
"""Maximum nodes of a graph: indices must fit the 12 bits freed by rounding in float32."""


def sample(
    score: Tensor,
    rows: PaddedLayout,
    kept_rows: PaddedLayout,
    *,
    sampler: str,
    order: str,
    longest: int,
    colour: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the kept rows, the same as by ``ops.sample`` with fixed points.

    Args:
        score: Raw score of each row, rounded here, [N]; padding is not read.
        rows: The layout to sample from.
        kept_rows: The layout of the next level: graph g keeps ``kept_rows.size[g]`` nodes.
        sampler: A name of ``ops.sample.SAMPLERS``.
        order: Order of the nodes on the wheel, one of ``ops.sample.ORDERS``.
        longest: Maximum nodes of a graph, at most ``LONGEST``.
        colour: Integers that order nodes of equal score before their indices do, [N].

    Returns:
        The row of this level for each row of the next level [K], and the row of the next level for
        each row of this level [N]; -1 on padding and for dropped rows.
    """
    check_choice("sampler", sampler, SAMPLERS)
    check_choice("order", order, ORDERS)
    if not 1 <= longest <= LONGEST:
        raise ValueError(f"longest must be from 1 to {LONGEST}, got {longest}")
    kept, number = (torch.empty_like(part.batch) for part in (kept_rows, rows))
    block = max(16, triton.next_power_of_2(longest))
    double = score.dtype == torch.float64
    _sample[(rows.size.numel(),)](
        score.detach().contiguous(),
        colour,
        rows.start,
        rows.size,
        kept_rows.start,
        kept_rows.size,
        kept,
        number,
        kept.numel(),
        number.numel(),
        SAMPLER=sampler,
        BY_SCORE=order == "score",
        COLOURED=colour is not None,
        BITS=64 if double else 32,
        SPARE=27 if double else 12,
        BLOCK=block,
        num_warps=min(16, max(1, block // 128)),
    )
    return kept, number


@triton.jit
def _sample(  # noqa: PLR0917
    score_ptr: tl.tensor,
    colour_ptr: tl.tensor,
    start_ptr: tl.tensor,
    size_ptr: tl.tensor,
    kept_start_ptr: tl.tensor,
    kept_size_ptr: tl.tensor,
    kept_ptr: tl.tensor,
    number_ptr: tl.tensor,
    kept_count: int,
    count: int,
    SAMPLER: tl.constexpr,
    BY_SCORE: tl.constexpr,
    COLOURED: tl.constexpr,
    BITS: tl.constexpr,
    SPARE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    small: tl.constexpr = min(_SMALL, BLOCK)
    n = tl.load(size_ptr + tl.program_id(0))
    if n <= small:  # most graphs are far smaller than the largest
        _draw(
            score_ptr,
            colour_ptr,
            start_ptr,
            size_ptr,
            kept_start_ptr,
            kept_size_ptr,
            kept_ptr,
            number_ptr,
            kept_count,
            count,
            SAMPLER,
            BY_SCORE,
            COLOURED,
            BITS,
            SPARE,
            small,
        )
    elif small < BLOCK:
        _draw(
            score_ptr,
            colour_ptr,
            start_ptr,
            size_ptr,
            kept_start_ptr,
            kept_size_ptr,
            kept_ptr,
            number_ptr,
            kept_count,
            count,
            SAMPLER,
            BY_SCORE,
            COLOURED,
            BITS,
            SPARE,
            BLOCK,
        )


@triton.jit
def _draw(  # noqa: PLR0917
    score_ptr: tl.tensor,
    colour_ptr: tl.tensor,
    start_ptr: tl.tensor,
    size_ptr: tl.tensor,
    kept_start_ptr: tl.tensor,
    kept_size_ptr: tl.tensor,
    kept_ptr: tl.tensor,
    number_ptr: tl.tensor,
    kept_count: int,
    count: int,
    SAMPLER: tl.constexpr,
    BY_SCORE: tl.constexpr,
    COLOURED: tl.constexpr,
    BITS: tl.constexpr,
    SPARE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Sample one graph of at most BLOCK nodes."""
    far: tl.constexpr = (1 << (BITS - 1)) - 1
    graph = tl.program_id(0)
    start, first = tl.load(start_ptr + graph), tl.load(kept_start_ptr + graph)
    n = tl.load(size_ptr + graph).to(tl.int32)
    m = tl.load(kept_size_ptr + graph).to(tl.int32)
    place = tl.arange(0, BLOCK)
    real = place < n
    digits = _round_scores(tl.load(score_ptr + start + place, mask=real, other=0.0), BITS, SPARE)
    rank = _ranks(colour_ptr + start, n, BLOCK) if COLOURED else place
    if SAMPLER == "topk":
        key = tl.where(real, rank - digits, far)  # the highest first
        keep = real & (key <= _smallest(key, m, BITS))
    elif BY_SCORE:
        if COLOURED:  # score, rank and index in one integer
            wide = (digits.to(tl.int64) >> SPARE) << 24 | (rank << 12 | place).to(tl.int64)
            wide = tl.sort(tl.where(real, wide, (1 << 63) - 1))
            digits = ((wide >> 24) << SPARE).to(digits.dtype)
            node = tl.where(real, wide & 4095, place).to(tl.int32)
        else:
            key = tl.sort(tl.where(real, digits + place, far))
            digits = key & -(1 << SPARE)
            node = tl.where(real, key - digits, place).to(tl.int32)
        keep = _spin(_float(digits, BITS), n, m, SAMPLER, BLOCK)
        keep = tl.sort(2 * node + keep.to(tl.int32)) & 1 == 1  # back in the order of indices
    else:
        keep = _spin(_float(digits, BITS), n, m, SAMPLER, BLOCK)
    number = first + tl.cumsum(keep.to(tl.int32), 0) - 1
    tl.store(number_ptr + start + place, tl.where(keep, number, -1), mask=real)
    tl.store(kept_ptr + number, start + place, mask=keep)
    last = graph == tl.num_programs(0) - 1
    _pad(number_ptr, start + n, start_ptr + graph + 1, count, last, BLOCK)
    _pad(
        kept_ptr,
        first + tl.sum(keep.to(tl.int32), 0),
        kept_start_ptr + graph + 1,
        kept_count,
        last,
        BLOCK,
    )


@triton.jit
def _pad(
    out_ptr: tl.tensor,
    begin: tl.tensor,
    next_ptr: tl.tensor,
    count: tl.tensor,
    last: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Store -1 from the end of a graph to the next graph, or to the end of the batch."""
    end = tl.load(next_ptr, mask=last == 0, other=0)
    end = tl.where(last, count, end)
    for at in range(begin, end, BLOCK):
        row = at + tl.arange(0, BLOCK)
        tl.store(out_ptr + row, tl.full((BLOCK,), -1, tl.int64), mask=row < end)


@triton.jit
def _ranks(colour_ptr: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """Return the number of nodes before each one by colour, then index, int32 [BLOCK]."""
    place = tl.arange(0, BLOCK)
    own = tl.load(colour_ptr + place, mask=place < n, other=0)[:, None]
    rank = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, n, 16):
        other = first + tl.arange(0, 16)
        colour = tl.load(colour_ptr + other, mask=other < n, other=0)[None, :]
        before = (colour < own) | ((colour == own) & (other[None, :] < place[:, None]))
        rank += tl.sum((before & (other < n)[None, :]).to(tl.int32), 1)
    return rank


@triton.jit
def _round_scores(score: tl.tensor, BITS: tl.constexpr, SPARE: tl.constexpr) -> tl.tensor:
    """Return scores rounded as by ``ops.sample.round_scores``, as integers in the same order.

    The bits of a negative float become minus its magnitude; -0.0 becomes 0. The last SPARE bits
    are zero.
    """
    exact = score.to(tl.float32 if BITS == 32 else tl.float64)
    bits = exact.to(tl.int32 if BITS == 32 else tl.int64, bitcast=True)
    return _mirror((bits + (1 << (SPARE - 1))) & -(1 << SPARE), BITS)


@triton.jit
def _smallest(key: tl.tensor, m: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Return the m-th smallest key, found bit by bit."""
    one = tl.full((), 1, key.dtype)
    found = one << (BITS - 1)  # the lowest integer
    for digit in range(BITS):
        higher = found ^ (one << (BITS - 1 - digit))
        found = tl.where(tl.sum((key < higher).to(tl.int32), 0) < m, higher, found)
    return found


@triton.jit
def _float(digits: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Return rounded scores as float64."""
    score = _mirror(digits, BITS).to(tl.float32 if BITS == 32 else tl.float64, bitcast=True)
    return score.to(tl.float64)


@triton.jit
def _mirror(bits: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Return the bits with the order of negative numbers reversed; an involution."""
    return tl.where(bits < 0, -(1 << (BITS - 1)) - bits, bits)


@triton.jit
def _spin(
    score: tl.tensor, n: tl.tensor, m: tl.tensor, SAMPLER: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """Return the mask of nodes kept by m points on a wheel of n nodes, bool [BLOCK]."""
    place = tl.arange(0, BLOCK)
    real = place < n
    # Integer widths as in ops.sample: floor(unit * exp(s - max s)).
    gap = tl.where(real, score - tl.max(tl.where(real, score, float("-inf")), 0), 0.0)
    unit = tl.full((), 1, tl.int64) << (62 - _bit_length(tl.maximum(n, 1)) - _bit_length(m + 1))
    share = tl.where(real & (gap == gap), tl.exp(gap), 0.0)  # noqa: PLR0124 - false for NaN
    weight = (share * unit.to(tl.float64)).to(tl.int64)
    border = tl.cumsum(weight, 0) - weight
    whole = tl.sum(weight, 0)
    if SAMPLER == "rwsv":
        border = tl.where(place == 0, 0, 2 * border + weight)
        whole = 2 * whole
    passed = border * (m + 1) // tl.maximum(whole, 1)  # whole is 0 only if a score is not finite
    # E of ops.sample: points left of a node minus nodes left of it. A node is dropped if it is the
    # last of its level L and L is one of the n - m highest levels. Then E > E_j for all later j: E
    # starts at 0, so L > max E - (n - m) >= m - n. E falls by at most one per node and is m - n
    # after the last node, so from a later node above L it would pass L again.
    excess = tl.minimum(passed, m).to(tl.int32) - place
    top = tl.max(tl.where(real, excess, -BLOCK), 0)
    key = tl.where(real, excess * BLOCK + place, -BLOCK * BLOCK)  # the later of equal ones wins
    latest = key == tl.associative_scan(key, 0, _larger, reverse=True)
    return real & ~(latest & (top - excess < n - m))


@triton.jit
def _bit_length(value: tl.tensor) -> tl.tensor:
    """Return the bit length of a positive integer below 2**24, from the exponent of its float."""
    return (value.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126


@triton.jit
def _larger(one: tl.tensor, other: tl.tensor) -> tl.tensor:
    return tl.maximum(one, other)
