"""Interface of the padded operations, implemented in plain PyTorch and as Triton kernels."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from gtpool.ops.sample import Order
from gtpool.padded_batch import EdgeTypes, PaddedCSR, PaddedLayout

WIDEST = 256
"""Maximum channels per head of the attention kernels."""


class KeptRows(NamedTuple):
    """The rows that a pooling step keeps, as indices in both directions."""

    kept: Tensor
    """Row of this level for each row of the next level, -1 on padding, [K]."""
    number: Tensor
    """Row of the next level for each row of this level, -1 if dropped or padding, [N]."""


class FeatureScaler(NamedTuple):
    """Mean and standard deviation of the first feature columns of each run, [R, columns]."""

    mean: Tensor
    std: Tensor


class PaddedOps(Protocol):
    """Functions of ``gtpool.ops.padded_torch`` and ``gtpool.ops.kernels.padded_triton``.

    They are documented in ``padded_torch``, ``padded_segment`` and ``aggregate`` of ``gtpool.ops``.
    """

    def gather_layout(  # noqa: D102
        self, index: Tensor, counts: Tensor, ratios: Sequence[float], capacity: int
    ) -> PaddedLayout: ...
    def row_numbers(  # noqa: D102
        self, rows: PaddedLayout, index: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor]: ...
    def gather_shifted(  # noqa: D102
        self, values: Tensor, number: Tensor, rows: PaddedLayout, by: Tensor
    ) -> Tensor: ...
    def gather_rows(  # noqa: D102
        self,
        rows: PaddedLayout,
        index: Tensor,
        first: Tensor,
        values: Sequence[Tensor],
        by: Tensor,
    ) -> tuple[Tensor, ...]: ...
    def gather_features(  # noqa: D102
        self, x: Tensor, number: Tensor, dtype: torch.dtype, scaler: FeatureScaler | None = None
    ) -> Tensor: ...
    def root_degrees(self, csr: PaddedCSR, like: Tensor) -> Tensor: ...  # noqa: D102
    def gcn_sum(self, x: Tensor, scale: Tensor, csr: PaddedCSR) -> Tensor: ...  # noqa: D102
    def gin_sum(self, x: Tensor, csr: PaddedCSR) -> Tensor: ...  # noqa: D102
    def root_out_degrees(self, csr: PaddedCSR, like: Tensor) -> Tensor: ...  # noqa: D102
    def bond_sum(  # noqa: D102
        self, x: Tensor, table: Tensor, scale: Tensor, csr: PaddedCSR, edge_types: EdgeTypes
    ) -> Tensor: ...
    def attend(self, qkv: Tensor, rows: PaddedLayout, longest: int) -> tuple[Tensor, Tensor]: ...  # noqa: D102
    def attended_rows(  # noqa: D102
        self,
        qkv: Tensor,
        out: Tensor,
        lse: Tensor,
        chosen: KeptRows,
        rows: PaddedLayout,
        after: PaddedLayout,
    ) -> Tensor: ...
    def gated_rows(self, out: Tensor, score: Tensor, chosen: KeptRows) -> Tensor: ...  # noqa: D102
    def scores(  # noqa: D102
        self,
        qkv: Tensor,
        out: Tensor,
        lse: Tensor,
        theta_global: Tensor,
        theta_local: Tensor,
        lam: float,
        csr: PaddedCSR,
        rows: PaddedLayout,
        act: Callable[[Tensor], Tensor] = torch.tanh,
    ) -> tuple[Tensor, Tensor]: ...
    def sample(  # noqa: D102
        self,
        score: Tensor,
        rows: PaddedLayout,
        after: PaddedLayout,
        *,
        sampler: str,
        order: Order,
        longest: int,
        colour: Tensor | None = None,
    ) -> KeptRows: ...
    def node_colours(self, score: Tensor, csr: PaddedCSR) -> Tensor: ...  # noqa: D102
    def take(self, x: Tensor, chosen: KeptRows) -> Tensor: ...  # noqa: D102
    def induced_csr(self, csr: PaddedCSR, chosen: KeptRows) -> PaddedCSR: ...  # noqa: D102
    def mean_max(self, x: Tensor, rows: PaddedLayout) -> Tensor: ...  # noqa: D102


@cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


def padded_ops_for(device: torch.device, dtype: torch.dtype) -> PaddedOps:
    """Return the Triton kernels for float32 on a GPU, plain PyTorch otherwise."""
    if device.type == "cuda" and dtype == torch.float32 and has_triton():
        return cast("PaddedOps", import_module("gtpool.ops.kernels.padded_triton"))
    return torch_ops()


def torch_ops() -> PaddedOps:
    """Return the functions in plain PyTorch, for any device."""
    return cast("PaddedOps", import_module("gtpool.ops.padded_torch"))
