"""The functions of ``gtpool.ops.padded_ops`` as Triton kernels, with their gradients."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.ops import padded_torch
from gtpool.ops.kernels import (
    aggregate,
    attention,
    bonds,
    layout,
    readout,
    score,
)
from gtpool.ops.kernels import sample as wheel
from gtpool.ops.padded_ops import KeptRows
from gtpool.ops.sample import Order
from gtpool.padded_batch import EdgeTypes, PaddedCSR, PaddedLayout

gather_layout, row_numbers = layout.gather_layout, layout.row_numbers
gather_shifted, gather_features = layout.gather_shifted, readout.gather
gcn_sum, gin_sum, mean_max = aggregate.gcn_sum, aggregate.gin_sum, readout.mean_max


def root_degrees(csr: PaddedCSR, like: Tensor) -> Tensor:
    """Give d^(-1/2) of each row, with d the degree of A + I and 0 on padding, [N]."""
    del like
    return aggregate.root_degrees(csr)


def root_out_degrees(csr: PaddedCSR, like: Tensor) -> Tensor:
    """Give d^(-1/2) of each row, d one more than the edges that leave it, 0 on padding, [N]."""
    del like
    return aggregate.root_out_degrees(csr)


def bond_sum(
    x: Tensor, table: Tensor, scale: Tensor, csr: PaddedCSR, edge_types: EdgeTypes
) -> Tensor:
    """Give s_i (s_i relu(x_i + r) + sum of s_j relu(x_j + e_ij) over edges j -> i), [N, D]."""
    add_up = bonds.bond_sum if table.size(1) <= bonds.KINDS else padded_torch.bond_sum
    return add_up(x, table, scale, csr, edge_types)


def attend(qkv: Tensor, rows: PaddedLayout, longest: int) -> tuple[Tensor, Tensor]:
    """Let every row attend to the rows of its graph: out [N, H, C] and log-sum-exp [N, H]."""
    del longest
    return _Attend.apply(qkv, rows)  # pyright: ignore[reportReturnType]


def attended_rows(
    qkv: Tensor, out: Tensor, lse: Tensor, chosen: KeptRows, rows: PaddedLayout, after: PaddedLayout
) -> Tensor:
    """Take the attended values of the kept rows, [K, H, C]; the gradient is for them alone."""
    if out.requires_grad:  # the score has a gradient too: there is one for all rows
        return padded_torch.attended_rows(qkv, out, lse, chosen, rows, after)
    return _AttendedRows.apply(qkv, out, lse, chosen, rows, after)  # pyright: ignore[reportReturnType]


def scores(
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    theta_global: Tensor,
    theta_local: Tensor,
    lam: float,
    csr: PaddedCSR,
    rows: PaddedLayout,
    act: Callable[[Tensor], Tensor] = torch.tanh,
) -> Tensor:
    """Score every row by equations (5) to (7) of GTPool, [N]; the kernel knows tanh alone."""
    thetas = theta_global, theta_local
    if torch.is_grad_enabled() or not (act is torch.tanh or isinstance(act, nn.Tanh)):
        return padded_torch.scores(qkv, out, lse, *thetas, lam, csr, rows, act)
    q, k, v = qkv.unbind(1)
    return score.node_scores(q, k, v, out, lse, *thetas, lam, csr, rows, q.size(-1) ** -0.5)


def sample(
    score: Tensor,
    rows: PaddedLayout,
    after: PaddedLayout,
    *,
    sampler: str,
    order: Order,
    longest: int,
) -> KeptRows:
    """Choose the rows that stay, as many of each graph as ``after`` says."""
    if longest > wheel.LONGEST:
        parts = (score, rows, after)
        return padded_torch.sample(*parts, sampler=sampler, order=order, longest=longest)
    return KeptRows(
        *wheel.sample(score.detach(), rows, after, sampler=sampler, order=order, longest=longest)
    )


def take(x: Tensor, chosen: KeptRows) -> Tensor:
    """Take the kept rows, zeros on padding, [N, D] -> [K, D]."""
    return readout.take(x, chosen.kept, chosen.number)


def induced_csr(csr: PaddedCSR, chosen: KeptRows) -> PaddedCSR:
    """Say where the ends of edges are after rows were dropped."""
    return csr._replace(
        origin=layout.compose(csr.origin, chosen.kept),
        place=layout.compose(chosen.number, csr.place),
    )


# Function hands its own subclass of FunctionCtx and any number of gradients to these methods, which
# its annotations do not say: hence Any and the override ignored.


class _Attend(Function):
    """Attention of all rows, and its gradient."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, rows: PaddedLayout) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        q, k, v = qkv.unbind(1)
        out, lse = attention.attend(q, k, v, rows, q.size(-1) ** -0.5)
        ctx.save_for_backward(qkv, out, lse)
        ctx.rows = rows
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor | None,
        d_lse: Tensor | None,
    ) -> tuple[Tensor, None]:
        qkv, out, lse = ctx.saved_tensors
        q, k, v = qkv.unbind(1)
        d_out = torch.zeros_like(out) if d_out is None else d_out.contiguous()
        scale = q.size(-1) ** -0.5
        grad = attention.attend_backward(q, k, v, out, lse, d_out, ctx.rows, scale, d_lse=d_lse)
        return grad, None


class _AttendedRows(Function):
    """Rows of what was attended, and the gradient of attention for these rows alone."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        qkv: Tensor,
        out: Tensor,
        lse: Tensor,
        chosen: KeptRows,
        rows: PaddedLayout,
        after: PaddedLayout,
    ) -> Tensor:
        pooled = take(out.flatten(1), chosen).unflatten(1, out.shape[1:])
        ctx.save_for_backward(qkv, pooled, lse, chosen.kept)
        ctx.layout = rows, after
        return pooled

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_pooled: Tensor,
    ) -> tuple[Tensor | None, ...]:
        qkv, pooled, lse, kept = ctx.saved_tensors
        rows, after = ctx.layout
        q, k, v = qkv.unbind(1)
        parts = (q, k, v, pooled, lse, d_pooled.contiguous(), rows, q.size(-1) ** -0.5)
        grad = attention.attend_backward(*parts, kept=kept, kept_rows=after)
        return grad, *(None,) * 5
