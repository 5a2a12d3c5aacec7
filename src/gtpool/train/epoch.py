"""Epochs of a run: early stopping, learning rates, order of the graphs, average of the weights."""

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.spec import TrainSpec
from gtpool.train.metric import Metric


class _Trained(Protocol):
    """What is trained by a spec."""

    @property
    def spec(self) -> TrainSpec: ...


_Owner = TypeVar("_Owner", bound=_Trained)
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class Epoch(NamedTuple):
    """Losses and metrics of one epoch."""

    number: int
    """Counted from 1."""
    train_loss: float
    valid_loss: float
    valid_metric: float
    test_metric: float
    """Recorded only; model selection does not use it."""
    seconds: float


class Outcome(NamedTuple):
    """Result of a run."""

    best: Epoch
    """The epoch selected by ``TrainSpec.select``."""
    state: dict[str, Tensor]
    """The state dict of that epoch."""
    epochs: list[Epoch]
    other_rules: dict[str, float]
    """Test metric under other selection rules; some of them use the test part."""


class TrainingError(RuntimeError):
    """Training failed and cannot continue."""


class EarlyStopping:
    """Epochs of a run so far; selects the best and stops when patience is exhausted.

    Args:
        spec: Its ``select``, ``patience`` and ``epochs`` are used.
        metric: The metric that is recorded.
    """

    def __init__(self, spec: TrainSpec, metric: Metric) -> None:
        if spec.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {spec.epochs}")
        if not spec.clip > 0:
            raise ValueError(f"clip must be more than 0, got {spec.clip}")
        self.spec, self.metric = spec, metric
        self.epochs: list[Epoch] = []
        self.best: Epoch | None = None
        self._lowest = (math.inf, 0)

    def update(self, epoch: Epoch) -> bool:
        """Append an epoch; return True if it is the best so far."""
        if not math.isfinite(epoch.valid_loss):
            what = "validation loss"
            raise TrainingError(_not_finite(what, epoch.valid_loss, epoch.number, self.spec))
        self.epochs.append(epoch)
        self._lowest = min(self._lowest, (epoch.valid_loss, epoch.number))
        better = self.best is None or self._better(epoch, self.best)
        self.best = epoch if better else self.best
        return better

    @property
    def finished(self) -> bool:
        """Whether all epochs are done or patience is exhausted."""
        number, patience = len(self.epochs), self.spec.patience
        exhausted = patience is not None and number - self._lowest[1] > patience
        return exhausted or number >= self.spec.epochs

    def outcome(self, state: dict[str, Tensor]) -> Outcome:
        """Return the result of the run, given the state dict of the best epoch."""
        if self.best is None:
            raise ValueError("the run has no epoch yet")
        return Outcome(self.best, state, self.epochs, self._other_rules())

    def _better(self, epoch: Epoch, best: Epoch) -> bool:
        if self.spec.select == "loss":
            return epoch.valid_loss < best.valid_loss
        sign = 1 if self.metric.higher_is_better else -1
        return sign * epoch.valid_metric > sign * best.valid_metric

    def _other_rules(self) -> dict[str, float]:
        """Return the test metric under the selection rules found in public code."""
        sign = 1 if self.metric.higher_is_better else -1
        by_metric = max(self.epochs, key=lambda epoch: sign * epoch.valid_metric)
        return {
            "valid_loss": min(self.epochs, key=lambda epoch: epoch.valid_loss).test_metric,
            "valid_metric": by_metric.test_metric,
            "last": self.epochs[-1].test_metric,
            "best_test": max(self.epochs, key=lambda epoch: sign * epoch.test_metric).test_metric,
        }


def _not_finite(what: str, value: float, number: int, spec: TrainSpec) -> str:
    """Return the error message for a NaN or infinite loss."""
    return (
        f"the {what} of epoch {number} is {value}; lower the learning rate (now {spec.lr}) "
        "or check the features for extreme values"
    )


def mean_loss(losses: Tensor, batches: Sequence[Tensor], number: int, spec: TrainSpec) -> float:
    """Return the mean loss over all graphs; raise a TrainingError if a loss is not finite.

    Args:
        losses: Mean loss of each batch, on the CPU, [batches].
        batches: Indices of the graphs in each batch.
        number: Number of the epoch, for the message.
        spec: Training options, for the message.
    """
    if not losses.isfinite().all():
        at = int((~losses.isfinite()).nonzero()[0])
        where = f"loss at batch {at + 1} of {len(batches)}"
        raise TrainingError(_not_finite(where, losses[at].item(), number, spec))
    sizes = torch.tensor([part.numel() for part in batches], dtype=losses.dtype)
    return ((losses * sizes).sum() / sizes.sum()).item()


def autocast(spec: TrainSpec, device: torch.device) -> torch.autocast:
    """Return the autocast context for ``spec.precision``, for the forward pass."""
    return torch.autocast(device.type, torch.bfloat16, enabled=spec.precision == "bf16")


def in_precision(
    step: Callable[Concatenate[_Owner, _Args], _Result],
) -> Callable[Concatenate[_Owner, _Args], _Result]:
    """Decorate a step, forward and backward, whose owner has a ``spec``: TF32 if that says so."""

    @wraps(step)
    def run(self: _Owner, *args: _Args.args, **options: _Args.kwargs) -> _Result:
        before = torch.get_float32_matmul_precision()
        if self.spec.precision == "tf32" and torch.cuda.is_available():
            torch.set_float32_matmul_precision("high")
        try:
            return step(self, *args, **options)
        finally:
            torch.set_float32_matmul_precision(before)

    return run


def lr_factor(epoch: int, spec: TrainSpec) -> float:
    """Return the learning-rate factor of an epoch (from 0): linear warm-up, then cosine decay."""
    if epoch < spec.warmup:
        return (epoch + 1) / spec.warmup
    done = (epoch - spec.warmup) / max(1, spec.epochs - spec.warmup)
    return 0.5 * (1 + math.cos(math.pi * done))


def shuffled_batches(train: Tensor, size: int, random: torch.Generator) -> list[Tensor]:
    """Split the shuffled graphs into batches; a last batch of one graph joins the one before."""
    parts = list(train[torch.randperm(train.numel(), generator=random)].split(size))
    if len(parts) > 1 and parts[-1].numel() == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def epoch_seed(random: torch.Generator) -> int:
    """Draw the seed of an epoch; call it after ``shuffled_batches``."""
    return int(torch.randint(2**62, (), generator=random))


_NEEDED = {
    "classes": "two classes",
    "binary": "a task with both classes",
    "regression": "a task with two different targets",
}
"""What the labels of a part must have for a metric that one label does not define."""


def check_metric_defined(data: GraphDataset, indices: Tensor, part: str, metric: Metric) -> None:
    """Raise a TrainingError if a metric is undefined for the labels of a part."""
    task, y = data.schema.task, data.y.cpu()[indices]
    if math.isnan(metric.measure(torch.zeros(indices.numel(), data.schema.num_outputs), y)):
        known = (y >= 0 if task == "classes" else ~y.isnan()).any()
        lacks = _NEEDED[task] if known else "a known target"
        raise TrainingError(
            f"the {part} part ({indices.numel()} graphs) does not have {lacks}, so "
            f"{metric.name} is undefined; use another split"
        )


def undefined_metrics(
    data: GraphDataset, parts: Sequence[Tensor], name: str, metric: Metric
) -> dict[int, TrainingError]:
    """Return the errors of the runs for which a metric is undefined, by run number."""
    errors: dict[int, TrainingError] = {}
    for run, part in enumerate(parts):
        try:
            check_metric_defined(data, part, name, metric)
        except TrainingError as error:
            errors[run] = error
    return errors


class WeightAverage:
    r"""Moving average of the floating-point entries of a state.

    .. math:: \bar{w}_t = d_t \bar{w}_{t-1} + (1 - d_t) w_t, d_t = \min(d, (1 + t) / (10 + t))

    The smaller decay of the first steps forgets the random start.

    Args:
        state: Current weights and statistics by name, [...] each, or [R, ...] for R runs.
        decay: Decay :math:`d` per step, above 0 and below 1.
        runs: R, or None if entries have no axis of runs.
    """

    def __init__(self, state: Mapping[str, Tensor], decay: float, runs: int | None = None) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"train.ema must be at least 0 and below 1, got {decay}")
        floats = {name: part for name, part in state.items() if part.is_floating_point()}
        if not floats:
            raise ValueError("there are no weights to average")
        self.decay = decay
        self.state = {name: part.detach().clone() for name, part in floats.items()}
        like = next(iter(floats.values()))
        self.count = like.new_zeros(() if runs is None else runs, dtype=torch.double)
        """Steps taken, of each run."""

    @torch.no_grad()
    def update(self, state: Mapping[str, Tensor], active: Tensor | None = None) -> None:
        """Add the weights after a step, in place and without a device sync.

        Args:
            state: Weights by name, as at construction.
            active: Mask of the runs that took the step, [R]; None means all.
        """
        share = torch.ones_like(self.count) if active is None else active.to(self.count.dtype)
        self.count += share
        decay = ((1 + self.count) / (10 + self.count)).clamp(max=self.decay)
        self.blend(state, (1 - decay) * share)

    @torch.no_grad()
    def blend(self, state: Mapping[str, Tensor], weight: Tensor) -> None:
        """Move the average of the given weights towards them by a share of each run, [R]."""
        alike: defaultdict[tuple[torch.Size, torch.dtype], list[str]] = defaultdict(list)
        for name in state:
            if name in self.state:
                alike[self.state[name].shape, self.state[name].dtype].append(name)
        for (shape, dtype), names in alike.items():
            own = weight.to(dtype).view(*weight.shape, *(1,) * (len(shape) - weight.dim()))
            averages, now = (
                [part[name].detach() for name in names] for part in (self.state, state)
            )
            if len(names) == 1:
                averages[0].lerp_(now[0], own)
            else:  # one kernel for all tensors of a shape
                lerp_all = torch._foreach_lerp_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
                lerp_all(averages, now, [own.expand(shape).contiguous()] * len(names))

    def select(self, rows: Tensor) -> None:
        """Keep some of the runs only."""
        self.count = self.count.index_select(0, rows)
        self.state = {name: part.index_select(0, rows) for name, part in self.state.items()}


@contextmanager
@torch.no_grad()
def averaged(state: Mapping[str, Tensor], average: WeightAverage | None) -> Generator[None]:
    """Exchange current weights for their average inside the block, in place.

    Args:
        state: Current weights by name, sharing memory with the model.
        average: Their average; None changes nothing.
    """
    held = {} if average is None else average.state
    before = {name: state[name].clone() for name in held}
    for name, part in held.items():
        state[name].copy_(part)
    try:
        yield
    finally:
        for name, part in before.items():
            state[name].copy_(part)
