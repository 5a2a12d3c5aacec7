"""The samplers of ``ops.sample`` for a batch of fixed capacity: one program a graph, on a GPU.

Scores are settled, so the last digits of a float are free. Read as an integer it keeps its order,
and the free digits hold the place of the node: one integer is a sort key, a tie-breaker and a way
back to score and node.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# A kernel is Triton's language, which Python's types do not describe.

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtpool.ops.sample import ORDERS, SAMPLERS, check_choice
from gtpool.padded_batch import PaddedLayout

LONGEST = 4096
"""Nodes of a graph up to which its places fit the digits that settling frees in float32."""


def sample(
    score: Tensor,
    rows: PaddedLayout,
    kept_rows: PaddedLayout,
    *,
    sampler: str,
    order: str,
    longest: int,
) -> tuple[Tensor, Tensor]:
    """Keep of each graph the nodes that ``ops.sample`` keeps, with fixed points.

    Args:
        score: Raw score of each row, settled here, [N]; padding is not read.
        rows: The level to sample from.
        kept_rows: The level to fill: graph g keeps ``kept_rows.size[g]`` nodes.
        sampler: A name of ``ops.sample.SAMPLERS``.
        order: How nodes stand on the wheel, one of ``ops.sample.ORDERS``.
        longest: Nodes of the largest graph that may come, at most ``LONGEST``.

    Returns:
        The row that each row of the next level was [K], and the row of the next level that each
        row becomes [N]; -1 on padding and where there is none.
    """
    check_choice("sampler", sampler, SAMPLERS)
    check_choice("order", order, ORDERS)
    if not 1 <= longest <= LONGEST:
        raise ValueError(f"longest must lie between 1 and {LONGEST}, got {longest}")
    counts = kept_rows.batch.numel(), rows.batch.numel()
    kept, number = rows.batch.new_full((sum(counts),), -1).split(counts)
    block = max(16, triton.next_power_of_2(longest))
    double = score.dtype == torch.float64
    _sample[(rows.size.numel(),)](
        score.detach().contiguous(),
        rows.start,
        rows.size,
        kept_rows.start,
        kept_rows.size,
        kept,
        number,
        SAMPLER=sampler,
        BY_SCORE=order == "score",
        BITS=64 if double else 32,
        SPARE=27 if double else 12,
        BLOCK=block,
        num_warps=min(16, max(1, block // 128)),
    )
    return kept, number


@triton.jit
def _sample(
    score_ptr: tl.tensor,
    start_ptr: tl.tensor,
    size_ptr: tl.tensor,
    kept_start_ptr: tl.tensor,
    kept_size_ptr: tl.tensor,
    kept_ptr: tl.tensor,
    number_ptr: tl.tensor,
    SAMPLER: tl.constexpr,
    BY_SCORE: tl.constexpr,
    BITS: tl.constexpr,
    SPARE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    far: tl.constexpr = (1 << (BITS - 1)) - 1
    graph = tl.program_id(0)
    start, first = tl.load(start_ptr + graph), tl.load(kept_start_ptr + graph)
    n = tl.load(size_ptr + graph).to(tl.int32)
    m = tl.load(kept_size_ptr + graph).to(tl.int32)
    place = tl.arange(0, BLOCK)
    real = place < n
    digits = _round_scores(tl.load(score_ptr + start + place, mask=real, other=0.0), BITS, SPARE)
    if SAMPLER == "topk":
        key = tl.where(real, place - digits, far)  # the highest first
        keep = real & (key <= _smallest(key, m, BITS))
    elif BY_SCORE:
        key = tl.sort(tl.where(real, digits + place, far))
        digits = key & -(1 << SPARE)
        node = tl.where(real, key - digits, place).to(tl.int32)
        keep = _spin(_float(digits, BITS), n, m, SAMPLER, BLOCK)
        keep = tl.sort(2 * node + keep.to(tl.int32)) & 1 == 1  # as numbered again
    else:
        keep = _spin(_float(digits, BITS), n, m, SAMPLER, BLOCK)
    number = first + tl.cumsum(keep.to(tl.int32), 0) - 1
    tl.store(number_ptr + start + place, tl.where(keep, number, -1), mask=real)
    tl.store(kept_ptr + number, start + place, mask=keep)


@triton.jit
def _round_scores(score: tl.tensor, BITS: tl.constexpr, SPARE: tl.constexpr) -> tl.tensor:
    """Round scores as ``ops.sample.round_scores`` does and read them as integers in the same order.

    A negative float is its size below the lowest integer: it becomes minus its size, and -0.0
    becomes 0. The last SPARE digits are zeros.
    """
    exact = score.to(tl.float32 if BITS == 32 else tl.float64)
    bits = exact.to(tl.int32 if BITS == 32 else tl.int64, bitcast=True)
    return _mirror((bits + (1 << (SPARE - 1))) & -(1 << SPARE), BITS)


@triton.jit
def _smallest(key: tl.tensor, m: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Find the m-th smallest key, digit by digit: fewer than m keys lie below it."""
    one = tl.full((), 1, key.dtype)
    found = one << (BITS - 1)  # the lowest integer
    for digit in range(BITS):
        higher = found ^ (one << (BITS - 1 - digit))
        found = tl.where(tl.sum((key < higher).to(tl.int32), 0) < m, higher, found)
    return found


@triton.jit
def _float(digits: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Read settled scores as float64 again."""
    score = _mirror(digits, BITS).to(tl.float32 if BITS == 32 else tl.float64, bitcast=True)
    return score.to(tl.float64)


@triton.jit
def _mirror(bits: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """Turn the order of the negative ones around; twice is nothing."""
    return tl.where(bits < 0, -(1 << (BITS - 1)) - bits, bits)


@triton.jit
def _spin(
    score: tl.tensor, n: tl.tensor, m: tl.tensor, SAMPLER: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """Say which of the n nodes on a wheel the m points reach, [BLOCK] bool."""
    place = tl.arange(0, BLOCK)
    real = place < n
    # The wheel in integers, as ops.sample lays it: floor(unit * exp(s - max s)).
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
    # E of ops.sample: points left of a node minus nodes left of it. Dropped are the nodes that are
    # the last of their level L, on the n - m highest levels. Such a node has E > E_j for all later
    # j: E starts at 0, so L > max E - (n - m) >= m - n; E falls by at most one a node and would be
    # m - n after the last, so from a later node above L it would come down through L once more.
    excess = tl.minimum(passed, m).to(tl.int32) - place
    top = tl.max(tl.where(real, excess, -BLOCK), 0)
    key = tl.where(real, excess * BLOCK + place, -BLOCK * BLOCK)  # of equal ones the later wins
    latest = key == tl.associative_scan(key, 0, _larger, reverse=True)
    return real & ~(latest & (top - excess < n - m))


@triton.jit
def _bit_length(value: tl.tensor) -> tl.tensor:
    """Count the binary digits of a positive integer below 2**24: the exponent of its float."""
    return (value.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126


@triton.jit
def _larger(one: tl.tensor, other: tl.tensor) -> tl.tensor:
    return tl.maximum(one, other)
