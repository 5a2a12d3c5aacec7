"""Adam with decay and clipping for several runs, each with a norm and a count of its own."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gtpool.spec import TrainSpec

_FIRST, _SECOND, _EPSILON = 0.9, 0.999, 1e-8
_CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ has it


class Adam:
    """What ``torch.optim.Adam`` and ``clip_grad_norm_`` do for one run, for the rows of a matrix.

    Args:
        theta: The parameters, one row a run, [R, P].
        specs: The recipe of each run; they may differ in learning rate and weight decay.
    """

    def __init__(self, theta: nn.Parameter, specs: Sequence[TrainSpec]) -> None:
        self.theta, self.clip = theta, specs[0].clip
        self.mean, self.square = (torch.zeros_like(theta) for _ in range(2))
        self.count = theta.new_zeros(theta.size(0), 1)
        self.decay = theta.new_tensor([[spec.weight_decay] for spec in specs])
        self.peak = theta.new_tensor([[spec.lr] for spec in specs], dtype=torch.double)
        self.lr = self.peak.to(theta.dtype, copy=True)

    def keep(self, rows: Tensor, theta: nn.Parameter) -> None:
        """Go on with some of the runs only."""
        self.theta = theta
        self.mean, self.square, self.count, self.peak, self.decay, self.lr = (
            part.index_select(0, rows)
            for part in (self.mean, self.square, self.count, self.peak, self.decay, self.lr)
        )

    def pace(self, rate: float) -> None:
        """Set the learning rates to a share of the highest, in place."""
        self.lr.copy_(self.peak * rate)

    @torch.no_grad()
    def update(self, grad: Tensor, busy: Tensor) -> None:
        """Take a step, in place; runs that are not ``busy`` [R] stay as they are."""
        norm = torch.linalg.vector_norm(grad, dim=1, keepdim=True)
        grad = grad * (self.clip / (norm + _CLIP_EPSILON)).clamp(max=1)
        grad = grad.addcmul(self.theta, self.decay)
        share = busy.to(grad.dtype).unsqueeze(1)
        self.count += share
        self.mean.lerp_(grad, (1 - _FIRST) * share)
        self.square.lerp_(grad.square(), (1 - _SECOND) * share)
        count = self.count.clamp(min=1)
        root = self.square.sqrt() / (1 - _SECOND**count).sqrt() + _EPSILON
        rate = share * self.lr / (1 - _FIRST**count)
        self.theta.addcmul_(self.mean / root, -rate)
