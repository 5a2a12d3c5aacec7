"""Clipping, Adam and the average of weights, for several runs at once."""

from collections.abc import Mapping, Sequence
from importlib import import_module

import torch
from torch import Tensor, nn

from gtpool.ops.padded_ops import has_triton
from gtpool.spec import TrainSpec
from gtpool.train.epoch import WeightAverage

_FIRST, _SECOND, _EPSILON = 0.9, 0.999, 1e-8
_CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class Adam:
    """``clip_grad_norm_`` followed by ``torch.optim.Adam``, separately for each row of a matrix.

    Args:
        theta: The parameters, one row per run, [R, P].
        specs: The training spec of each run; only learning rate and weight decay may differ.
    """

    def __init__(self, theta: nn.Parameter, specs: Sequence[TrainSpec]) -> None:
        self.theta, self.clip = theta, specs[0].clip
        self.mean, self.square = (torch.zeros_like(theta) for _ in range(2))
        self.count = theta.new_zeros(theta.size(0), 1)
        self.decay = theta.new_tensor([[spec.weight_decay] for spec in specs])
        self.peak = theta.new_tensor([[spec.lr] for spec in specs], dtype=torch.double)
        self.lr = self.peak.to(theta.dtype, copy=True)

    def select(self, rows: Tensor, theta: nn.Parameter) -> None:
        """Keep only the given rows; ``theta`` holds their parameters."""
        self.theta = theta
        self.mean, self.square, self.count, self.peak, self.decay, self.lr = (
            part.index_select(0, rows)
            for part in (self.mean, self.square, self.count, self.peak, self.decay, self.lr)
        )

    def set_lr_factor(self, factor: float) -> None:
        """Set each learning rate to ``factor`` times its peak, in place."""
        self.lr.copy_(self.peak * factor)

    def step(
        self,
        grad: Tensor,
        active: Tensor,
        state: Mapping[str, Tensor],
        average: WeightAverage | None,
    ) -> None:
        """Take one step and update the average, in place.

        Args:
            grad: Gradient of the parameters, [R, P].
            active: Runs that take the step, bool [R]; the others do not change.
            state: Current weights by name, ``theta`` among them.
            average: The average of ``state``, if there is one.
        """
        if self.theta.is_cuda and self.theta.dtype == torch.float32 and has_triton():
            self.update_by_kernels(grad, active, state, average)
            return
        self.update(grad, active)
        if average is not None:
            average.update(state, active)

    @torch.no_grad()
    def update(self, grad: Tensor, active: Tensor) -> None:
        """Take one step in place; runs that are not ``active``, bool [R], do not change."""
        norm = torch.linalg.vector_norm(grad, dim=1, keepdim=True)
        grad = grad * (self.clip / (norm + _CLIP_EPSILON)).clamp(max=1)
        grad = grad.addcmul(self.theta, self.decay)
        share = active.to(grad.dtype).unsqueeze(1)
        self.count += share
        self.mean.lerp_(grad, (1 - _FIRST) * share)
        self.square.lerp_(grad.square(), (1 - _SECOND) * share)
        count = self.count.clamp(min=1)
        root = self.square.sqrt() / (1 - _SECOND**count).sqrt() + _EPSILON
        rate = share * self.lr / (1 - _FIRST**count)
        self.theta.addcmul_(self.mean / root, -rate)

    @torch.no_grad()
    def update_by_kernels(
        self,
        grad: Tensor,
        active: Tensor,
        state: Mapping[str, Tensor],
        average: WeightAverage | None,
    ) -> None:
        """Do the same as ``step`` in two Triton kernels, and a few for weights besides theta."""
        adam = import_module("gtpool.ops.kernels.adam")
        own = adam.State(
            self.theta.detach(), self.mean, self.square, self.count, self.lr, self.decay
        )
        constants = adam.Constants(self.clip, _CLIP_EPSILON, _FIRST, _SECOND, _EPSILON)
        if average is None:
            adam.update(own, grad, active, constants)
            return
        averaged = adam.Average(average.state["theta"], average.count, average.decay)
        weight = adam.update(own, grad, active, constants, averaged)
        average.blend({name: part for name, part in state.items() if name != "theta"}, weight)
