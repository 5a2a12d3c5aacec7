"""Triton kernels for neighbour sums with bond embeddings, and their gradients.

As in ``aggregate``, each program computes one row and no two write to the same address. Bond
embeddings are computed from the codes inside the kernel and never stored.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.ops.kernels.aggregate import edges_per_tile
from gtpool.padded_batch import EdgeTypes, PaddedCSR

KINDS = 64
"""Maximum rows of a table for the kernels; one program holds its gradient."""
_CHUNK = 256
"""Edges per program of the table gradient."""


def bond_sum(
    x: Tensor, table: Tensor, scale: Tensor, csr: PaddedCSR, edge_types: EdgeTypes
) -> Tensor:
    """Return s_i (s_i relu(x_i + r) + sum of s_j relu(x_j + e_ij) over edges j -> i), [N, D].

    Args:
        x: Features of the rows, [N, D]; padding is not read.
        table: Embedding of each code, then r as the last row, for each run, [R, codes + 1, D].
        scale: Factors s from ``root_out_degrees``, [N]; they get no gradient.
        csr: The edges.
        edge_types: Codes of the edges.
    """
    return _BondSum.apply(x, table, scale, csr, edge_types)


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _BondSum(Function):
    """Sum over incoming edges; gradients sum over outgoing edges, or over a run for the table."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        table: Tensor,
        scale: Tensor,
        csr: PaddedCSR,
        edge_types: EdgeTypes,
    ) -> Tensor:
        x, table = x.contiguous(), table.contiguous()
        ctx.save_for_backward(x, table, scale)
        ctx.edges = csr, edge_types
        return _sum_rows(x, None, table, scale, csr, edge_types)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, table, scale = ctx.saved_tensors
        parts = (x, d_out.contiguous(), table, scale, *ctx.edges)
        needs_x, needs_table, *_ = ctx.needs_input_grad
        d_x = _sum_rows(*parts) if needs_x else None
        return d_x, _table_grad(*parts) if needs_table else None, None, None, None


def _sum_rows(
    x: Tensor,
    d_out: Tensor | None,
    table: Tensor,
    scale: Tensor,
    csr: PaddedCSR,
    edge_types: EdgeTypes,
) -> Tensor:
    """Return the sums, or the gradient of the rows given that of the sums."""
    back = d_out is not None
    entering = (csr.source, csr.begin, csr.end, edge_types.entering)
    leaving = (csr.target, csr.out_begin, csr.out_end, edge_types.leaving)
    num_rows, width = x.shape
    out = torch.empty(
        x.shape,
        dtype=x.dtype if back else torch.promote_types(x.dtype, table.dtype),
        device=x.device,
    )
    columns = max(16, min(128, triton.next_power_of_2(width)))
    edges = edges_per_tile(csr, 32)
    _bond_sum[(num_rows, triton.cdiv(width, columns))](
        x,
        d_out,
        table,
        scale,
        out,
        *(leaving if back else entering),
        csr.origin,
        csr.place,
        num_rows // table.size(0),
        BACK=back,
        EXACT=_sum_dtype(x),
        WIDTH=width,
        KINDS=table.size(1),
        CODES=edge_types.entering.size(1),
        EDGES=edges,
        COLUMNS=columns,
        num_warps=max(1, edges * columns // 1024),
    )
    return out


@triton.jit
def _bond_sum(  # noqa: PLR0917
    x_ptr: tl.tensor,
    d_out_ptr: tl.tensor,
    table_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    out_ptr: tl.tensor,
    far_end_ptr: tl.tensor,
    begin_ptr: tl.tensor,
    end_ptr: tl.tensor,
    code_ptr: tl.tensor,
    origin_ptr: tl.tensor,
    place_ptr: tl.tensor,
    run_rows: int,
    BACK: tl.constexpr,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
    KINDS: tl.constexpr,
    CODES: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    table_ptr += row // run_rows * (KINDS * WIDTH)
    origin = tl.load(origin_ptr + row)
    begin = tl.load(begin_ptr + origin, mask=origin >= 0, other=0)
    end = tl.load(end_ptr + origin, mask=origin >= 0, other=0)
    here = column < tl.where(origin >= 0, WIDTH, 0)
    own = tl.load(x_ptr + row * WIDTH + column, mask=here, other=0.0).to(EXACT)
    total = tl.zeros((EDGES, COLUMNS), EXACT)
    for first in range(begin, end, EDGES):
        edge = first + tl.arange(0, EDGES)
        far = tl.load(far_end_ptr + edge, mask=edge < end, other=0)
        near = tl.load(place_ptr + far, mask=edge < end, other=-1)
        counts = near >= 0
        mask = counts[:, None] & (column < WIDTH)[None, :]
        at = near[:, None] * WIDTH + column[None, :]
        bond = _edge_embedding(
            table_ptr, code_ptr, edge, counts, column, EXACT, WIDTH, CODES, EDGES, COLUMNS
        )
        if BACK:
            lit = own[None, :] + bond
            sent = tl.load(d_out_ptr + at, mask=mask, other=0.0).to(EXACT)
        else:
            lit = tl.load(x_ptr + at, mask=mask, other=0.0).to(EXACT) + bond
            sent = lit
        scale = tl.load(scale_ptr + near, mask=counts, other=0.0)
        total += _relu_grad(sent, lit, mask) * scale[:, None]
    root = tl.load(table_ptr + (KINDS - 1) * WIDTH + column, mask=column < WIDTH, other=0.0)
    lit = own + root.to(EXACT)
    if BACK:
        sent = tl.load(d_out_ptr + row * WIDTH + column, mask=here, other=0.0).to(EXACT)
    else:
        sent = lit
    scale = tl.load(scale_ptr + row, mask=origin >= 0, other=0.0)
    out = scale * (scale * _relu_grad(sent, lit, here) + tl.sum(total, 0))
    tl.store(out_ptr + row * WIDTH + column, out, mask=column < WIDTH)


def _table_grad(
    x: Tensor, d_out: Tensor, table: Tensor, scale: Tensor, csr: PaddedCSR, edge_types: EdgeTypes
) -> Tensor:
    """Return the gradient of the tables."""
    (runs, kinds, width), num_rows = table.shape, x.size(0) // table.size(0)
    num_edges = csr.source.numel() // runs
    parts = triton.cdiv(num_edges, _CHUNK)
    sums = torch.empty((runs, parts, kinds, width), dtype=table.dtype, device=x.device)
    columns = max(16, min(64, triton.next_power_of_2(width)))
    _table_grad_kernel[(parts, runs, triton.cdiv(width, columns))](
        x,
        d_out,
        table,
        scale,
        sums,
        csr.source,
        csr.sink,
        edge_types.entering,
        csr.origin,
        csr.place,
        num_edges,
        num_rows,
        triton.cdiv(num_rows, parts),
        CHUNK=_CHUNK,
        EXACT=_sum_dtype(x),
        WIDTH=width,
        KINDS=kinds,
        CODES=edge_types.entering.size(1),
        HIGH=max(16, triton.next_power_of_2(kinds)),
        EDGES=32,
        COLUMNS=columns,
    )
    return sums.sum(1)


def _sum_dtype(x: Tensor) -> tl.dtype:
    """Return the dtype of the accumulators."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


@triton.jit
def _edge_embedding(
    table_ptr: tl.tensor,
    code_ptr: tl.tensor,
    edge: tl.tensor,
    counts: tl.tensor,
    column: tl.tensor,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
    CODES: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Return the sum of the embeddings of each edge's codes."""
    bond = tl.zeros((EDGES, COLUMNS), EXACT)
    mask = counts[:, None] & (column < WIDTH)[None, :]
    for nth in tl.static_range(CODES):
        code = tl.load(code_ptr + edge * CODES + nth, mask=counts, other=0).to(tl.int64)
        at = code[:, None] * WIDTH + column[None, :]
        bond += tl.load(table_ptr + at, mask=mask, other=0.0).to(EXACT)
    return bond


@triton.jit
def _relu_grad(sent: tl.tensor, lit: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Return ``sent`` where ``lit`` > 0; NaN passes, so that a failed run is detected."""
    return tl.where(mask & ~(lit <= 0), sent, 0.0)


@triton.jit
def _table_grad_kernel(  # noqa: PLR0917
    x_ptr: tl.tensor,
    d_out_ptr: tl.tensor,
    table_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    source_ptr: tl.tensor,
    sink_ptr: tl.tensor,
    code_ptr: tl.tensor,
    origin_ptr: tl.tensor,
    place_ptr: tl.tensor,
    num_edges: int,
    num_rows: int,
    part_rows: int,
    CHUNK: tl.constexpr,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
    KINDS: tl.constexpr,
    CODES: tl.constexpr,
    HIGH: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    part, run = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (column < WIDTH)[None, :]
    table_ptr += run * (KINDS * WIDTH)
    kind = tl.arange(0, HIGH)
    total = tl.zeros((HIGH, COLUMNS), EXACT)
    for first in range(part * CHUNK, tl.minimum((part + 1) * CHUNK, num_edges), EDGES):
        nth = first + tl.arange(0, EDGES)
        edge = run * num_edges + nth
        source = tl.load(source_ptr + edge, mask=nth < num_edges, other=-1)
        sink = tl.load(sink_ptr + edge, mask=nth < num_edges, other=-1)
        source = tl.load(place_ptr + source, mask=source >= 0, other=-1)
        sink = tl.load(place_ptr + sink, mask=sink >= 0, other=-1)
        counts = (source >= 0) & (sink >= 0)
        mask = counts[:, None] & inside
        lit = tl.load(x_ptr + source[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
        bond = _edge_embedding(
            table_ptr, code_ptr, edge, counts, column, EXACT, WIDTH, CODES, EDGES, COLUMNS
        )
        sent = tl.load(d_out_ptr + sink[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
        scale = tl.load(scale_ptr + source, mask=counts, other=0.0)
        scale *= tl.load(scale_ptr + sink, mask=counts, other=0.0)
        sent = _relu_grad(sent.to(EXACT), lit.to(EXACT) + bond, mask) * scale[:, None]
        is_of = tl.zeros((HIGH, EDGES), tl.int32)
        for nth_code in tl.static_range(CODES):
            code = tl.load(code_ptr + edge * CODES + nth_code, mask=counts, other=0)
            is_of += (code[None, :].to(tl.int32) == kind[:, None]).to(tl.int32)
        total += tl.dot(is_of.to(EXACT), sent.to(EXACT), input_precision="ieee", out_dtype=EXACT)
    root = tl.load(table_ptr + (KINDS - 1) * WIDTH + column, mask=column < WIDTH, other=0.0)
    d_root = tl.zeros((EDGES, COLUMNS), EXACT)
    for first in range(part * part_rows, tl.minimum((part + 1) * part_rows, num_rows), EDGES):
        nth = first + tl.arange(0, EDGES)
        within = nth < tl.minimum((part + 1) * part_rows, num_rows)
        row = run * num_rows + nth
        origin = tl.load(origin_ptr + row, mask=within, other=-1)
        mask = (origin >= 0)[:, None] & inside
        at = row[:, None] * WIDTH + column[None, :]
        lit = tl.load(x_ptr + at, mask=mask, other=0.0).to(EXACT) + root.to(EXACT)[None, :]
        sent = tl.load(d_out_ptr + at, mask=mask, other=0.0).to(EXACT)
        scale = tl.load(scale_ptr + row, mask=origin >= 0, other=0.0)
        d_root += _relu_grad(sent, lit, mask) * (scale * scale)[:, None]
    total += tl.where((kind == KINDS - 1)[:, None], tl.sum(d_root, 0)[None, :], 0.0)
    at = ((run * tl.num_programs(0) + part) * KINDS + kind)[:, None] * WIDTH + column[None, :]
    tl.store(sums_ptr + at, total, mask=(kind < KINDS)[:, None] & inside)
