"""Two sets of the same functions on batches of fixed capacity, and which of them to take."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from gtpool.fixed import EdgeTypes, PaddedCSR, Rows
from gtpool.ops.sample import Order

WIDEST = 256
"""Channels of a head up to which the kernels hold their tiles."""


class Chosen(NamedTuple):
    """Which rows stay."""

    kept: Tensor
    """Row of each row of the next level, -1 on padding, [K]."""
    number: Tensor
    """Row at the next level of each row, -1 where it has none, [N]."""


class Steps(Protocol):
    """What ``gtpool.ops.static`` and ``gtpool.ops.kernels.steps`` have in common."""

    def lay_out(  # noqa: D102
        self, index: Tensor, counts: Tensor, ratios: Sequence[float], capacity: int
    ) -> Rows: ...
    def place(self, rows: Rows, index: Tensor, first: Tensor) -> tuple[Tensor, Tensor]: ...  # noqa: D102
    def shift(self, values: Tensor, number: Tensor, rows: Rows, by: Tensor) -> Tensor: ...  # noqa: D102
    def bring(self, x: Tensor, number: Tensor, dtype: torch.dtype) -> Tensor: ...  # noqa: D102
    def root_degrees(self, links: PaddedCSR, like: Tensor) -> Tensor: ...  # noqa: D102
    def gcn_sum(self, x: Tensor, scale: Tensor, links: PaddedCSR) -> Tensor: ...  # noqa: D102
    def gin_sum(self, x: Tensor, links: PaddedCSR) -> Tensor: ...  # noqa: D102
    def root_out_degrees(self, links: PaddedCSR, like: Tensor) -> Tensor: ...  # noqa: D102
    def bond_sum(  # noqa: D102
        self, x: Tensor, table: Tensor, scale: Tensor, links: PaddedCSR, bonds: EdgeTypes
    ) -> Tensor: ...
    def attend(self, qkv: Tensor, rows: Rows, longest: int) -> tuple[Tensor, Tensor]: ...  # noqa: D102
    def attended_rows(  # noqa: D102
        self, qkv: Tensor, out: Tensor, lse: Tensor, chosen: Chosen, rows: Rows, after: Rows
    ) -> Tensor: ...
    def scores(  # noqa: D102
        self,
        qkv: Tensor,
        out: Tensor,
        lse: Tensor,
        theta_global: Tensor,
        theta_local: Tensor,
        lam: float,
        links: PaddedCSR,
        rows: Rows,
        act: Callable[[Tensor], Tensor] = torch.tanh,
    ) -> Tensor: ...
    def choose(  # noqa: D102
        self, score: Tensor, rows: Rows, after: Rows, *, sampler: str, order: Order, longest: int
    ) -> Chosen: ...
    def take(self, x: Tensor, chosen: Chosen) -> Tensor: ...  # noqa: D102
    def follow(self, links: PaddedCSR, chosen: Chosen) -> PaddedCSR: ...  # noqa: D102
    def drop(self, x: Tensor, share: float, key: Tensor) -> Tensor: ...  # noqa: D102
    def mean_max(self, x: Tensor, rows: Rows) -> Tensor: ...  # noqa: D102


@cache
def has_triton() -> bool:
    """Say whether there is a compiler for kernels."""
    return find_spec("triton") is not None


def steps_on(device: torch.device, dtype: torch.dtype) -> Steps:
    """Give the functions that serve a device best."""
    if device.type == "cuda" and dtype == torch.float32 and has_triton():
        return cast("Steps", import_module("gtpool.ops.kernels.steps"))
    return plain()


def plain() -> Steps:
    """Give the functions in plain PyTorch."""
    return cast("Steps", import_module("gtpool.ops.static"))
