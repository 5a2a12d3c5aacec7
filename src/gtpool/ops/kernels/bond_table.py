"""The kinds of bonds in the kernels of ``bonded``: what they add, and the gradient of that."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
# A kernel is Triton's language, which Python's types do not describe.

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtpool.fixed import EdgeTypes, PaddedCSR

KINDS = 64
"""Rows of a table up to which one program holds its gradient."""
_CHUNK = 256
"""Edges that one program takes."""


def sum_kinds(
    x: Tensor, d_out: Tensor, table: Tensor, scale: Tensor, links: PaddedCSR, bonds: EdgeTypes
) -> Tensor:
    """Give the gradient of the tables."""
    (runs, kinds, width), num_rows = table.shape, x.size(0) // table.size(0)
    num_edges = links.source.numel() // runs
    parts = triton.cdiv(num_edges, _CHUNK)
    sums = torch.empty((runs, parts, kinds, width), dtype=table.dtype, device=x.device)
    columns = max(16, min(64, triton.next_power_of_2(width)))
    _collect[(parts, runs, triton.cdiv(width, columns))](
        x,
        d_out,
        table,
        scale,
        sums,
        links.source,
        links.sink,
        bonds.entering,
        links.origin,
        links.place,
        num_edges,
        num_rows,
        triton.cdiv(num_rows, parts),
        CHUNK=_CHUNK,
        EXACT=exact(x),
        WIDTH=width,
        KINDS=kinds,
        CODES=bonds.entering.size(1),
        HIGH=max(16, triton.next_power_of_2(kinds)),
        EDGES=32,
        COLUMNS=columns,
    )
    return sums.sum(1)


def exact(x: Tensor) -> tl.dtype:
    """Choose what to sum in."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


@triton.jit
def bond_of(
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
    """Add up what the codes of each edge stand for."""
    bond = tl.zeros((EDGES, COLUMNS), EXACT)
    mask = counts[:, None] & (column < WIDTH)[None, :]
    for nth in tl.static_range(CODES):
        code = tl.load(code_ptr + edge * CODES + nth, mask=counts, other=0).to(tl.int64)
        at = code[:, None] * WIDTH + column[None, :]
        bond += tl.load(table_ptr + at, mask=mask, other=0.0).to(EXACT)
    return bond


@triton.jit
def let(sent: tl.tensor, lit: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Let through what a ReLU does; NaN passes, so that a run gone wrong is seen to be."""
    return tl.where(mask & ~(lit <= 0), sent, 0.0)


@triton.jit
def _collect(  # noqa: PLR0917
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
        bond = bond_of(
            table_ptr, code_ptr, edge, counts, column, EXACT, WIDTH, CODES, EDGES, COLUMNS
        )
        sent = tl.load(d_out_ptr + sink[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
        scale = tl.load(scale_ptr + source, mask=counts, other=0.0)
        scale *= tl.load(scale_ptr + sink, mask=counts, other=0.0)
        sent = let(sent.to(EXACT), lit.to(EXACT) + bond, mask) * scale[:, None]
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
        d_root += let(sent, lit, mask) * (scale * scale)[:, None]
    total += tl.where((kind == KINDS - 1)[:, None], tl.sum(d_root, 0)[None, :], 0.0)
    at = ((run * tl.num_programs(0) + part) * KINDS + kind)[:, None] * WIDTH + column[None, :]
    tl.store(sums_ptr + at, total, mask=(kind < KINDS)[:, None] & inside)
