"""Training losses by task."""

from collections.abc import Sequence
from importlib import import_module

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from gtpool.data.dataset import GraphDataset
from gtpool.ops.padded_ops import has_triton


class Loss:
    """Loss of a task for R runs; missing targets are ignored.

    Args:
        data: The graphs; the schema names the task.
        trains: Training graphs of each run, for class weights and the scale of a regression.
        weigh: Weight classes inversely to their frequency.
        smoothing: Probability mass that training moves from the true class to all classes.
    """

    def __init__(
        self,
        data: GraphDataset,
        trains: Sequence[Tensor],
        *,
        weigh: bool,
        smoothing: float = 0.0,
    ) -> None:
        self.task, self.runs, self.smoothing = data.schema.task, len(trains), smoothing
        if smoothing and self.task == "regression":
            raise ValueError("train.label_smoothing is for classes and binary tasks; set it to 0")
        if not 0 <= smoothing < 1:
            raise ValueError(
                f"train.label_smoothing must be at least 0 and below 1, got {smoothing}"
            )
        parts = [data.y[train.to(data.y.device)] for train in trains]
        self.shift: Tensor | None = None
        """Regression: mean of each target, [R, T]."""
        self.scale: Tensor | None = None
        """Regression: standard deviation of each target, the unit of errors, [R, T]."""
        self.weight: Tensor | None = None
        """Weight of each class, [R, classes], or of the positives of each task, [R, T]."""
        if self.task == "regression":
            self.shift = torch.stack([y.nanmean(0).nan_to_num(0.0) for y in parts])
            self.scale = torch.stack([_deviation(y) for y in parts])
        elif weigh and self.task == "classes":
            classes = data.schema.num_outputs
            self.weight = torch.stack([_class_weights(y, classes) for y in parts])
        elif weigh:
            self.weight = torch.stack([_positive_weights(y) for y in parts])

    def __call__(
        self, logits: Tensor, y: Tensor, present: Tensor | None = None, *, training: bool = False
    ) -> Tensor:
        """Return the mean loss of each run, [R]; arguments as for ``sums``."""
        if training and logits.is_cuda and logits.dtype == torch.float32 and has_triton():
            loss = import_module("gtpool.ops.kernels.loss")
            if logits.numel() <= self.runs * loss.MOST:
                return self.mean_by_kernel(logits, y, present)
        return weighted_mean(*self.sums(logits, y, present, training=training))

    def mean_by_kernel(self, logits: Tensor, y: Tensor, present: Tensor | None) -> Tensor:
        """Return the mean training loss of each run, [R], by a Triton kernel."""
        return import_module("gtpool.ops.kernels.loss").mean_loss(
            logits,
            y,
            present,
            self.weight if self.scale is None else self.scale,
            runs=self.runs,
            task=self.task,
            smoothing=self.smoothing,
        )

    def sums(
        self, logits: Tensor, y: Tensor, present: Tensor | None = None, *, training: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of losses and the sum of weights of each run, [R] each.

        Args:
            logits: Graphs of all runs, run after run, [RG, outputs].
            y: Targets, [RG] or [RG, T].
            present: Mask of the graphs that count, bool [RG]; None means all.
            training: Smooth the labels.
        """
        smoothing = self.smoothing if training else 0.0
        logits, y = (part.unflatten(0, (self.runs, -1)) for part in (logits, y))
        if self.task == "classes":
            each, counts = self._by_class(logits, y, smoothing)
        else:
            each, counts = self._by_task(logits, y, smoothing)
        if present is not None:
            counts = counts * present.view(self.runs, -1, *(1,) * (counts.dim() - 2))
        each, counts = each.flatten(1), counts.flatten(1)
        # Entries of weight 0 may be NaN.
        counted = torch.where(counts > 0, each * counts, 0.0)
        return counted.sum(1), counts.sum(1)

    def _by_class(self, logits: Tensor, y: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        each = cross_entropy(
            logits.flatten(0, 1), y.flatten(), reduction="none", label_smoothing=smoothing
        ).view_as(y)
        if self.weight is None:
            return each, torch.ones_like(each)
        return each, self.weight.to(each.dtype).gather(1, y)

    def _by_task(self, logits: Tensor, y: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        known, target = ~y.isnan(), y.nan_to_num(0.0)
        if self.scale is not None:
            unit = self.scale.to(logits.dtype).unsqueeze(1)
            return mse_loss(logits / unit, target / unit, reduction="none"), known
        weight = None if self.weight is None else self.weight.unsqueeze(1)
        if smoothing:
            target = target * (1 - smoothing) + smoothing / 2
        each = binary_cross_entropy_with_logits(logits, target, pos_weight=weight, reduction="none")
        return each, known


def weighted_mean(total: Tensor, weight: Tensor) -> Tensor:
    """Return total / weight, and 0 where the weight is 0."""
    return total / torch.where(weight > 0, weight, 1)


def _deviation(y: Tensor) -> Tensor:
    std = (y - y.nanmean(0)).square().nanmean(0).sqrt()
    return torch.where(std > 0, std, 1.0)


def _class_weights(y: Tensor, classes: int) -> Tensor:
    count = y.bincount(minlength=classes).clamp(min=1)
    return y.numel() / (classes * count)


def _positive_weights(y: Tensor) -> Tensor:
    return ((y == 0).sum(0).clamp(min=1) / (y == 1).sum(0).clamp(min=1)).float()
