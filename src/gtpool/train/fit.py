"""One run: train a module on one part of the graphs, pick the epoch on another, test on a third."""

import math
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from gtpool.data.chain import with_chain
from gtpool.data.dataset import GraphDataset
from gtpool.data.split import Split
from gtpool.graph import Graphs
from gtpool.spec import TrainSpec
from gtpool.train.loss import Loss, make_loss
from gtpool.train.metric import METRICS, Metric


class Epoch(NamedTuple):
    """What one pass over the training part gave."""

    number: int
    """From 1."""
    train_loss: float
    valid_loss: float
    valid_metric: float
    test_metric: float
    """For the record: no choice is made by it."""
    seconds: float


class Outcome(NamedTuple):
    """What a run gave."""

    best: Epoch
    """The epoch that the spec's rule chose."""
    state: dict[str, Tensor]
    """The weights of that epoch."""
    epochs: list[Epoch]
    other_rules: dict[str, float]
    """The test metric that other rules would have reported; some look at the test part."""


class TrainingError(RuntimeError):
    """The run cannot go on."""


class Model(Protocol):
    """What a module must have to be trained here."""

    shift: Tensor
    scale: Tensor

    @property
    def ratios(self) -> Sequence[float]:
        """The pooling steps that batches are planned for."""
        ...

    @property
    def chain_steps(self) -> int:
        """How long a chain of clusterings the graphs must carry; 0 where none is needed."""
        ...

    def classify(self, graphs: Graphs) -> Tensor:
        """Give the logits of a planned batch, [G, outputs]."""
        ...

    def learn(self, graphs: Graphs) -> tuple[Tensor, Tensor | None]:
        """Give the logits, and the auxiliary loss of each graph, [G], if there is one."""
        ...

    def parameters(self) -> Iterable[nn.Parameter]: ...  # noqa: D102 - nn.Module's own
    def state_dict(self) -> dict[str, Any]: ...  # noqa: D102
    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...  # noqa: D102
    def train(self, mode: bool = True, /) -> object: ...  # noqa: D102


def fit(
    model: Model,
    data: GraphDataset,
    split: Split,
    spec: TrainSpec,
    *,
    seed: int,
) -> Generator[Epoch, None, Outcome]:
    """Train ``model``, yielding each epoch as it ends, and return the outcome.

    Args:
        model: On the device of ``data``; it is left with the weights of the chosen epoch.
        data: The graphs, featurised and standardised.
        split: Which graphs train, choose and test.
        spec: The recipe.
        seed: Seeds the order of the graphs and the dropout; torch's own sources of random numbers
            are as they were whenever an epoch is yielded.
    """
    metric = METRICS[data.schema.task]
    data = with_chain(data, model.chain_steps) if model.chain_steps else data
    if spec.select == "metric":
        check_measurable(data, split.valid, "validation")
    judge = _Judge(model, data, split, spec.batch_size, metric)
    loss_of = make_loss(data, split.train, model.shift, model.scale, weigh=spec.class_weights)
    learner = _Learner(model, data, split.train, spec, loss_of)
    random = torch.Generator().manual_seed(seed)
    epochs: list[Epoch] = []
    best, state, lowest = None, {}, (math.inf, 0)
    for number in range(1, spec.epochs + 1):
        start = time.perf_counter()
        train_loss = learner.epoch(number, random)
        epoch = Epoch(number, train_loss, *judge.measure(loss_of), time.perf_counter() - start)
        if not math.isfinite(epoch.valid_loss):
            raise TrainingError(_not_finite("validation loss", epoch.valid_loss, number, spec))
        epochs.append(epoch)
        if best is None or _better(epoch, best, spec, metric):
            best = epoch
            state = {name: part.detach().clone() for name, part in model.state_dict().items()}
        lowest = min(lowest, (epoch.valid_loss, number))
        yield epoch
        if spec.patience is not None and number - lowest[1] > spec.patience:
            break
    if best is None:
        raise ValueError(f"epochs must be at least 1, got {spec.epochs}")
    model.load_state_dict(state)
    return Outcome(best, state, epochs, _other_rules(epochs, metric))


@torch.no_grad()
def predict(model: Model, data: GraphDataset, indices: Tensor, batch_size: int = 128) -> Tensor:
    """Give the logits of some graphs in evaluation mode, [graphs, outputs]."""
    model.train(False)
    data = with_chain(data, model.chain_steps) if model.chain_steps else data
    batches = (data.take(part, model.ratios) for part in indices.split(batch_size))
    return torch.cat([model.classify(graphs) for graphs in batches])


def check_measurable(data: GraphDataset, indices: Tensor, part: str) -> None:
    """Raise a TrainingError where the labels of a part leave the metric undefined."""
    metric, y = METRICS[data.schema.task], data.y.cpu()[indices]
    if math.isnan(metric.measure(torch.zeros(indices.numel(), data.schema.num_outputs), y)):
        lacks = "a task with both classes" if metric.name == "roc_auc" else "a known target"
        raise TrainingError(
            f"the {part} part ({indices.numel()} graphs) has not {lacks}: {metric.name} is "
            "undefined there; use another split"
        )


@contextmanager
def seeded(seed: int, device: torch.device) -> Generator[None]:
    """Draw random numbers from a seed, and leave the caller's sources as they were."""
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


class _Learner:
    """What changes the weights: batches, optimiser and schedule."""

    def __init__(
        self, model: Model, data: GraphDataset, train: Tensor, spec: TrainSpec, loss_of: Loss
    ) -> None:
        self.model, self.data, self.train = model, data, train
        self.spec, self.loss_of = spec, loss_of
        self.weights = [part for part in model.parameters() if part.requires_grad]
        self.optimizer = torch.optim.Adam(
            self.weights, lr=spec.lr, weight_decay=spec.weight_decay, fused=True
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda epoch: _rate(epoch, spec)
        )

    def epoch(self, number: int, random: torch.Generator) -> float:
        """Pass over the training part once; the mean loss over its graphs."""
        self.model.train(True)
        batches = _batches(self.train, self.spec.batch_size, random)
        # Dropout draws from torch's own source: it gets a seed an epoch, and is put back after.
        seed = int(torch.randint(2**62, (), generator=random))
        with seeded(seed, self.data.x.device):
            losses = [self._step(self.data.take(part, self.model.ratios)) for part in batches]
        self.schedule.step()
        each = torch.stack(losses).cpu()  # once an epoch: a look at every batch would halt a GPU
        if not each.isfinite().all():
            batch = int((~each.isfinite()).nonzero()[0]) + 1
            where = f"loss at batch {batch} of {len(losses)}"
            raise TrainingError(_not_finite(where, each[batch - 1].item(), number, self.spec))
        sizes = torch.tensor([part.numel() for part in batches], dtype=each.dtype)
        return ((each * sizes).sum() / sizes.sum()).item()

    def _step(self, graphs: Graphs) -> Tensor:
        logits, auxiliary = self.model.learn(graphs)
        loss = self.loss_of(logits, graphs.y)
        if auxiliary is not None:
            loss = loss + auxiliary.mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, self.spec.clip)
        self.optimizer.step()
        return loss.detach()


class _Judge:
    """What looks at the weights: the validation and test parts, gathered once and run together."""

    def __init__(
        self, model: Model, data: GraphDataset, split: Split, batch_size: int, metric: Metric
    ) -> None:
        self.model, self.metric = model, metric
        both = torch.cat([split.valid, split.test])
        self.batches = [data.take(part, model.ratios) for part in both.split(batch_size)]
        y = torch.cat([graphs.y for graphs in self.batches])
        self.valid, self.test = y.tensor_split([split.valid.numel()])

    @torch.no_grad()
    def measure(self, loss_of: Loss) -> tuple[float, float, float]:
        """Give the validation loss, the validation metric and the test metric."""
        self.model.train(False)
        logits = torch.cat([self.model.classify(graphs) for graphs in self.batches])
        valid, test = logits.tensor_split([self.valid.size(0)])
        loss = loss_of(valid, self.valid).item()
        return loss, self.metric.measure(valid, self.valid), self.metric.measure(test, self.test)


def _batches(train: Tensor, size: int, random: torch.Generator) -> list[Tensor]:
    """Shuffle the graphs into batches; a last one of a single graph joins the one before."""
    parts = list(train[torch.randperm(train.numel(), generator=random)].split(size))
    if len(parts) > 1 and parts[-1].numel() == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def _not_finite(what: str, value: float, number: int, spec: TrainSpec) -> str:
    return (
        f"the {what} of epoch {number} is {value}; lower the learning rate (now {spec.lr}) "
        "or look at the features"
    )


def _rate(epoch: int, spec: TrainSpec) -> float:
    """Factor on the learning rate in an epoch, from 0: a linear rise, then half a cosine."""
    if epoch < spec.warmup:
        return (epoch + 1) / spec.warmup
    done = (epoch - spec.warmup) / max(1, spec.epochs - spec.warmup)
    return 0.5 * (1 + math.cos(math.pi * done))


def _better(epoch: Epoch, best: Epoch, spec: TrainSpec, metric: Metric) -> bool:
    if spec.select == "loss":
        return epoch.valid_loss < best.valid_loss
    sign = 1 if metric.higher_is_better else -1
    return sign * epoch.valid_metric > sign * best.valid_metric


def _other_rules(epochs: list[Epoch], metric: Metric) -> dict[str, float]:
    """Say what the test metric would be under the rules found in this field's public code."""
    sign = 1 if metric.higher_is_better else -1
    by_metric = max(epochs, key=lambda epoch: sign * epoch.valid_metric)
    return {
        "valid_loss": min(epochs, key=lambda epoch: epoch.valid_loss).test_metric,
        "valid_metric": by_metric.test_metric,
        "last": epochs[-1].test_metric,
        "best_test": max(epochs, key=lambda epoch: sign * epoch.test_metric).test_metric,
    }
