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
    gate,
    layout,
    readout,
    score,
    score_backward,
    structure,
)
from gtpool.ops.kernels import sample as wheel
from gtpool.ops.padded_ops import KeptRows
from gtpool.ops.sample import Order
from gtpool.padded_batch import EdgeTypes, PaddedCSR, PaddedLayout

gather_layout, gather_rows = layout.gather_layout, layout.gather_rows
row_numbers = layout.row_numbers
gather_shifted, gather_features = layout.gather_shifted, readout.gather
gcn_sum, gin_sum, mean_max = aggregate.gcn_sum, aggregate.gin_sum, readout.mean_max


def root_degrees(csr: PaddedCSR, like: Tensor) -> Tensor:
    """Return d^(-1/2) of each row, with d the degree of A + I, 0 on padding, [N]."""
    del like
    return aggregate.root_degrees(csr)


def root_out_degrees(csr: PaddedCSR, like: Tensor) -> Tensor:
    """Return d^(-1/2) of each row, with d the out-degree plus 1, 0 on padding, [N]."""
    del like
    return aggregate.root_out_degrees(csr)


def bond_sum(
    x: Tensor, table: Tensor, scale: Tensor, csr: PaddedCSR, edge_types: EdgeTypes
) -> Tensor:
    """Return s_i (s_i relu(x_i + r) + sum of s_j relu(x_j + e_ij) over edges j -> i), [N, D]."""
    add_up = bonds.bond_sum if table.size(1) <= bonds.KINDS else padded_torch.bond_sum
    return add_up(x, table, scale, csr, edge_types)


def attend(qkv: Tensor, rows: PaddedLayout, longest: int) -> tuple[Tensor, Tensor]:
    """Return the attention output [N, H, C] and log-sum-exp [N, H] of each row in its graph."""
    del longest
    return _Attend.apply(qkv, rows)  # pyright: ignore[reportReturnType]


def attended_rows(
    qkv: Tensor, out: Tensor, lse: Tensor, chosen: KeptRows, rows: PaddedLayout, after: PaddedLayout
) -> Tensor:
    """Return the attention output of the kept rows, [K, H, C]; only they get gradients."""
    return _AttendedRows.apply(qkv, out, lse, chosen, rows, after)  # pyright: ignore[reportReturnType]


def gated_rows(out: Tensor, score: Tensor, chosen: KeptRows) -> Tensor:
    """Return tanh(score) times the attention output of the kept rows, [K, H, C]."""
    rows = gate.gated_rows(out.flatten(1), score, chosen.kept, chosen.number)
    return rows.unflatten(1, out.shape[1:])


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
) -> tuple[Tensor, Tensor]:
    """Return the score of every row and ``out``, [N] and [N, H, C]; kernels for tanh.

    One backward pass computes the gradients of both.
    """
    thetas = theta_global, theta_local
    if not (act is torch.tanh or isinstance(act, nn.Tanh)):
        return padded_torch.scores(qkv, out, lse, *thetas, lam, csr, rows, act)
    parts = (qkv, out.detach(), lse.detach(), *thetas, lam, csr, rows)
    return _Scores.apply(*parts)  # pyright: ignore[reportReturnType]


def sample(
    score: Tensor,
    rows: PaddedLayout,
    after: PaddedLayout,
    *,
    sampler: str,
    order: Order,
    longest: int,
    colour: Tensor | None = None,
) -> KeptRows:
    """Return the rows to keep; ``after`` gives their number in each graph."""
    draw = padded_torch.sample if longest > wheel.LONGEST else wheel.sample
    parts = (score.detach(), rows, after)
    return KeptRows(*draw(*parts, sampler=sampler, order=order, longest=longest, colour=colour))


def node_colours(score: Tensor, csr: PaddedCSR) -> Tensor:
    """Return integers that depend on the surroundings of each row and not on numbers, [N]."""
    return structure.node_colours(score.detach(), csr)


def take(x: Tensor, chosen: KeptRows) -> Tensor:
    """Return the kept rows, zeros on padding, [N, D] -> [K, D]."""
    return readout.take(x, chosen.kept, chosen.number)


def induced_csr(csr: PaddedCSR, chosen: KeptRows) -> PaddedCSR:
    """Return the edges with the rows of their ends after pooling."""
    return csr._replace(
        origin=layout.compose(csr.origin, chosen.kept),
        place=layout.compose(chosen.number, csr.place),
    )


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _Attend(Function):
    """Attention of all rows, with the gradient of all rows."""

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


class _Scores(Function):
    """Scores and attention output of all rows; their gradients pass attention together."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        qkv: Tensor,
        out: Tensor,
        lse: Tensor,
        theta_global: Tensor,
        theta_local: Tensor,
        lam: float,
        csr: PaddedCSR,
        rows: PaddedLayout,
    ) -> tuple[Tensor, Tensor]:
        thetas, scale = (theta_global, theta_local), qkv.size(-1) ** -0.5
        q, k, v = qkv.unbind(1)
        found, parts = score.node_scores(q, k, v, out, lse, *thetas, lam, csr, rows, scale)
        ctx.save_for_backward(qkv, out, lse, *thetas, parts)
        ctx.rest = lam, csr, rows
        return found, out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_score: Tensor,
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        qkv, out, lse, far, near, parts = ctx.saved_tensors
        lam, csr, rows = ctx.rest
        (q, k, v), scale = qkv.unbind(1), qkv.size(-1) ** -0.5
        given = (qkv, out, lse, far, near, parts, d_score, d_out, lam, csr, rows, scale)
        grads = score_backward.node_scores_backward(*given)
        d_global = d_local = None
        if any(ctx.needs_input_grad[3:5]):
            of = (v, out, parts, d_score, grads.sent, lam, rows, far.size(0))
            d_global, d_local = score_backward.theta_grads(*of)
        d_qkv = attention.attend_backward(
            *(q, k, v, None, lse, grads.out, rows, scale), d_lse=grads.lse, into=grads.qkv
        )
        return d_qkv, None, None, d_global, d_local, None, None, None


class _AttendedRows(Function):
    """Kept rows of the attention output, with the gradient of these rows."""

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
