"""Layers with weights [...], or [R, ...] for R runs side by side; see ``gtpool.ops.runs``."""

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GCNConv, MessagePassing

from gtpool.ops.backend import Backend
from gtpool.ops.dropout import Dropout
from gtpool.ops.padded_ops import has_triton
from gtpool.ops.runs import add_bias, kernels, linear, uses_kernels

_Graph = TypeVar("_Graph", bound=Backend)
_MOMENTUM = 0.1
"""Share of a batch in the running statistics of batch norm."""


class HasRealRows(Protocol):
    """Row layout as normalisation needs it: the mask of real rows."""

    @property
    def real(self) -> Tensor | None:
        """Mask of rows that are nodes, not padding, bool [N]; None if all are nodes."""
        ...


class Linear(nn.Linear):
    """``nn.Linear`` for one run or many."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Linear's name
        """Return the mapped rows, [..., I] -> [..., O]."""
        return linear(input, self.weight, self.bias)


class Sequential(nn.Sequential):
    """``nn.Sequential`` that runs activation and dropout after a linear map in one kernel."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:  # noqa: A002
        """Apply the layers in order and add a residual, if there is one."""
        layers = [layer for layer in self if not isinstance(layer, nn.Identity)]
        if residual is None:
            return apply_layers(layers, input)
        *front, last = layers
        if type(last) is Linear and len(last.weight) > 1 and uses_kernels(input, last.bias):
            mapped = linear(apply_layers(front, input), last.weight)  # the bias would be a pass
            return kernels().activate(mapped, last.bias, residual=residual)
        return apply_layers(layers, input) + residual


def apply_layers(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Apply layers in order; some are joined on a GPU, see ``add_and_apply``.

    Args:
        layers: The layers.
        x: Their input, [N, in].
    """
    for at, layer in enumerate(layers):
        if type(layer) is Linear and _joins(x, layer.bias, layers[at + 1 :]):
            return map_and_apply(x, layer.weight, layer.bias, layers[at + 1 :])
        x = layer(x)
    return x


def map_and_apply(x: Tensor, weight: Tensor, bias: Tensor, layers: Sequence[nn.Module]) -> Tensor:
    """Map rows and apply layers, [N, in] -> [N, out]; see ``add_and_apply``."""
    if _joins(x, bias, layers):
        return add_and_apply(linear(x, weight), bias, layers)
    return apply_layers(layers, linear(x, weight, bias))


def add_and_apply(x: Tensor, bias: Tensor, layers: Sequence[nn.Module]) -> Tensor:
    """Add a bias and apply layers, [N, D], [D] or [R, D] -> [N, out].

    On a GPU, a bias per run, an activation and dropout are one kernel. Hooks on these layers do not
    run there.
    """
    if not _joins(x, bias, layers):
        return apply_layers(layers, add_bias(x, bias))
    joined = _joined(layers)
    x = kernels().activate(x, bias, joined.act, joined.share, joined.key)
    return apply_layers(layers[joined.layers :], x)


def _joins(x: Tensor, bias: Tensor | None, layers: Sequence[nn.Module]) -> bool:
    """Return whether a kernel adds the bias and computes some of the layers."""
    return bias is not None and uses_kernels(x, bias) and _joined(layers).layers > 0


class _Joined(NamedTuple):
    """What one kernel computes after the addition of a bias."""

    layers: int
    """Number of layers."""
    act: str = "none"
    share: float = 0.0
    """Probability of dropping an entry."""
    key: Tensor | None = None


def _joined(layers: Sequence[nn.Module]) -> _Joined:
    """Return how many of the first layers are an activation and dropout, and which."""
    first, second = (*layers, None, None)[:2]
    if isinstance(first, Dropout):
        drops = first.training and first.p > 0 and first.key is not None
        return _Joined(1, "none", first.p, first.key) if drops else _Joined(0)
    if isinstance(first, nn.GELU) and first.approximate == "none":
        act = "gelu"
    elif isinstance(first, nn.ReLU):
        act = "relu"
    else:
        return _Joined(0)
    if not isinstance(second, Dropout):
        return _Joined(1, act)
    if not second.training or second.p == 0:
        return _Joined(2, act)
    return _Joined(1, act) if second.key is None else _Joined(2, act, second.p, second.key)


class Identity(nn.Identity):
    """Identity with the signature of a norm."""

    def forward(self, input: Tensor, rows: HasRealRows | None = None) -> Tensor:  # noqa: A002
        """Return the input."""
        del rows
        return input


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` over the last axis, for one run or many."""

    def forward(self, input: Tensor, rows: HasRealRows | None = None) -> Tensor:  # noqa: A002
        """Normalise each row, [..., D]."""
        del rows
        weight, bias, width = self.weight, self.bias, input.shape[-1:]
        if weight.dim() == 1:
            return functional.layer_norm(input, width, weight, bias, self.eps)
        if _has_kernel(input, weight):
            kernels = import_module("gtpool.ops.kernels.layer_norm")
            return kernels.layer_norm(input, weight, bias, self.eps)
        if weight.size(0) == 1:
            return functional.layer_norm(input, width, weight.squeeze(0), bias.squeeze(0), self.eps)
        normal = functional.layer_norm(input, width, eps=self.eps)
        normal = normal.reshape(weight.size(0), -1, *width)
        return torch.addcmul(bias.unsqueeze(1), normal, weight.unsqueeze(1)).view(input.shape)


class BatchNorm(nn.BatchNorm1d):
    """``nn.BatchNorm1d`` over the real rows of each run; padding is excluded."""

    def forward(
        self,
        input: Tensor,  # noqa: A002 - nn.BatchNorm1d's name
        rows: HasRealRows | None = None,
        *,
        relu: bool = False,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Normalise each column, [N, D], then apply ReLU and add a residual if requested."""
        real = None if rows is None else rows.real
        if real is None:
            return relu_add(super().forward(input), residual, relu=relu)
        added = () if residual is None else (residual,)
        if not _has_kernel(input, self.weight, *added):
            return relu_add(self._normalize(input, real), residual, relu=relu)
        running_mean, running_var, _ = self.buffers()
        return import_module("gtpool.ops.kernels.batch_norm").batch_norm(
            input,
            real,
            (running_mean, running_var),
            self.weight,
            self.bias,
            training=self.training,
            eps=self.eps,
            momentum=_MOMENTUM,
            relu=relu,
            residual=residual,
        )

    def _normalize(self, x: Tensor, real: Tensor) -> Tensor:
        """Normalise the real rows of each run; all weights and statistics are [R, D]."""
        running_mean, running_var, _ = self.buffers()
        runs = running_mean.size(0)
        x = x.unflatten(0, (runs, -1)).to(running_mean.dtype)
        counted = real.to(x.dtype).view(runs, -1, 1)
        if self.training:
            count = counted.sum(1, keepdim=True).clamp(min=1)
            mean = (x * counted).sum(1, keepdim=True) / count
            centred = (x - mean) * counted
            var = centred.square().sum(1, keepdim=True) / count
            with torch.no_grad():
                seen = counted.amax(1) * _MOMENTUM  # an empty batch does not change the statistics
                unbiased = var * count / (count - 1).clamp(min=1)
                for held, now in ((running_mean, mean), (running_var, unbiased)):
                    held.lerp_(now.squeeze(1), seen.expand_as(held))
        else:
            mean, var = running_mean.unsqueeze(1), running_var.unsqueeze(1)
            centred = (x - mean) * counted
        # Set padding to zero: divided by a small deviation, its values could become very large.
        factor = (var + self.eps).rsqrt() * self.weight.unsqueeze(1)
        return torch.addcmul(self.bias.unsqueeze(1), centred, factor).flatten(0, 1)


def norm_relu(
    norm: nn.Module, x: Tensor, rows: HasRealRows, residual: Tensor | None = None
) -> Tensor:
    """Return relu(norm(x)) + residual; a kernel of batch norm does all in one pass.

    Args:
        norm: A module of this file.
        x: The rows, [N, D].
        rows: Their layout.
        residual: Added at the end, [N, D].
    """
    if isinstance(norm, BatchNorm):
        return norm(x, rows, relu=True, residual=residual)
    return relu_add(norm(x, rows), residual)


def relu_add(x: Tensor, residual: Tensor | None = None, *, relu: bool = True) -> Tensor:
    """Return relu(x) + residual, each only if requested."""
    out = x.relu() if relu else x
    return out if residual is None else out + residual


def _has_kernel(*parts: Tensor) -> bool:
    """Return whether the kernels of norms apply: float32 on a GPU, outside ``torch.compile``."""
    fits = all(part.is_cuda and part.dtype == torch.float32 for part in parts)
    return fits and not torch.compiler.is_compiling() and has_triton()


def gcn(conv: GCNConv, x: Tensor, graph: Backend, layers: Sequence[nn.Module] = ()) -> Tensor:
    """Return a GCN convolution without edge weights; propagates the narrower of input and output.

    Args:
        conv: Module with the weights, [out, in] and [out], or those of R runs.
        x: Node features, [N, in].
        graph: The graphs of the batch.
        layers: Layers to apply to the result, such as an activation.
    """
    graph = with_edge_mask(conv, graph)
    weight, bias = conv.lin.weight, conv.bias
    if conv.in_channels <= conv.out_channels:
        return map_and_apply(graph.gcn_sum(x), weight, bias, layers)
    return add_and_apply(graph.gcn_sum(linear(x, weight)), bias, layers)


def with_edge_mask(conv: MessagePassing, graph: _Graph) -> _Graph:
    """Return the graph with the edge mask that PyG's ``Explainer`` set on a layer, if any."""
    if not conv.explain:
        return graph
    mask, sigmoid = (getattr(conv, name) for name in ("_edge_mask", "_apply_sigmoid"))
    return cast("_Graph", graph.with_edge_mask(mask.sigmoid() if sigmoid else mask))
