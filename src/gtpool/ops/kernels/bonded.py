"""Sums over neighbours that each pass through the kind of their bond, and the gradients, on a GPU.

As in ``aggregate``, one program sums into one row and none writes where another does. What passes
along an edge is made from the codes of its bond where it is needed, and never stored.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# A kernel is Triton's language, which Python's types do not describe.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.fixed import EdgeTypes, PaddedCSR
from gtpool.ops.kernels.aggregate import slice_of
from gtpool.ops.kernels.bond_table import bond_of, exact, let, sum_kinds


def bond_sum(x: Tensor, table: Tensor, scale: Tensor, links: PaddedCSR, bonds: EdgeTypes) -> Tensor:
    """Give s_i (s_i relu(x_i + r) + sum of s_j relu(x_j + e_ij) over edges j -> i), [N, D].

    Args:
        x: Features of the rows, [N, D]; padding is not read.
        table: What each code adds to e, and at the end r, of each run, [R, codes + 1, D].
        scale: The s, of ``root_out_degrees``, [N]; it gets no gradient.
        links: The edges.
        bonds: Their codes.
    """
    return _BondSum.apply(x, table, scale, links, bonds)


# Function hands its own subclass of FunctionCtx and any number of gradients to these methods, which
# its annotations do not say: hence Any and the override ignored.


class _BondSum(Function):
    """A sum over in-edges; back to rows a sum over out-edges, back to a table one over its run."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        table: Tensor,
        scale: Tensor,
        links: PaddedCSR,
        bonds: EdgeTypes,
    ) -> Tensor:
        x, table = x.contiguous(), table.contiguous()
        ctx.save_for_backward(x, table, scale)
        ctx.edges = links, bonds
        return _sum_rows(x, None, table, scale, links, bonds)

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
        return d_x, sum_kinds(*parts) if needs_table else None, None, None, None


def _sum_rows(
    x: Tensor,
    d_out: Tensor | None,
    table: Tensor,
    scale: Tensor,
    links: PaddedCSR,
    bonds: EdgeTypes,
) -> Tensor:
    """Give the sums, or from their gradient that of the rows."""
    back = d_out is not None
    entering = (links.source, links.begin, links.end, bonds.entering)
    leaving = (links.target, links.out_begin, links.out_end, bonds.leaving)
    num_rows, width = x.shape
    out = torch.empty(
        x.shape,
        dtype=x.dtype if back else torch.promote_types(x.dtype, table.dtype),
        device=x.device,
    )
    columns = max(16, min(128, triton.next_power_of_2(width)))
    edges = slice_of(links, 32)
    _pass[(num_rows, triton.cdiv(width, columns))](
        x,
        d_out,
        table,
        scale,
        out,
        *(leaving if back else entering),
        links.origin,
        links.place,
        num_rows // table.size(0),
        BACK=back,
        EXACT=exact(x),
        WIDTH=width,
        KINDS=table.size(1),
        CODES=bonds.entering.size(1),
        EDGES=edges,
        COLUMNS=columns,
        num_warps=max(1, edges * columns // 1024),
    )
    return out


@triton.jit
def _pass(  # noqa: PLR0917
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
        bond = bond_of(
            table_ptr, code_ptr, edge, counts, column, EXACT, WIDTH, CODES, EDGES, COLUMNS
        )
        if BACK:
            lit = own[None, :] + bond
            sent = tl.load(d_out_ptr + at, mask=mask, other=0.0).to(EXACT)
        else:
            lit = tl.load(x_ptr + at, mask=mask, other=0.0).to(EXACT) + bond
            sent = lit
        scale = tl.load(scale_ptr + near, mask=counts, other=0.0)
        total += let(sent, lit, mask) * scale[:, None]
    root = tl.load(table_ptr + (KINDS - 1) * WIDTH + column, mask=column < WIDTH, other=0.0)
    lit = own + root.to(EXACT)
    if BACK:
        sent = tl.load(d_out_ptr + row * WIDTH + column, mask=here, other=0.0).to(EXACT)
    else:
        sent = lit
    scale = tl.load(scale_ptr + row, mask=origin >= 0, other=0.0)
    out = scale * (scale * let(sent, lit, here) + tl.sum(total, 0))
    tl.store(out_ptr + row * WIDTH + column, out, mask=column < WIDTH)
