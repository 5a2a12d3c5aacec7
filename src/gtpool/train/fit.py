"""One run: train on one part of the graphs, select the epoch on a second, test on a third."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, Protocol
from warnings import warn

import torch
from torch import Tensor, nn

from gtpool.data.coarsening import with_chain
from gtpool.data.dataset import GraphDataset
from gtpool.data.split import Split
from gtpool.graph import Coarsening, PackedBatch
from gtpool.model.classifier import Classifier
from gtpool.model.encoder import set_statistics
from gtpool.model.ensemble import pads_attention, why_not_captured
from gtpool.model.predictor import Predictor, member_outputs
from gtpool.ops.dropout import next_key, set_keys
from gtpool.ops.padded_ops import WIDEST
from gtpool.spec import TrainSpec
from gtpool.train.distributed import SINGLE_PROCESS, Group, synchronized_layers
from gtpool.train.epoch import (
    EarlyStopping,
    Epoch,
    Outcome,
    TrainingError,
    WeightAverage,
    autocast,
    averaged,
    check_metric_defined,
    epoch_seed,
    in_precision,
    lr_factor,
    mean_loss,
    shuffled_batches,
)
from gtpool.train.fit_many import fit_many
from gtpool.train.loss import Loss, weighted_mean
from gtpool.train.metric import metric_of

_KEPT_NODES = 1 << 20  # of the graphs that are evaluated after each epoch


class Model(Protocol):
    """Interface of a module that ``fit`` can train."""

    shift: Tensor
    scale: Tensor

    @property
    def ratios(self) -> Sequence[float]:
        """Ratios of the pooling steps; batches carry the layout of each level."""
        ...

    @property
    def coarsening(self) -> Coarsening | None:
        """Coarsening chain that the graphs must carry; None if none."""
        ...

    def classify(self, graphs: PackedBatch) -> Tensor:
        """Return logits, [G, outputs]."""
        ...

    def learn(self, graphs: PackedBatch) -> tuple[Tensor, Tensor | None]:
        """Return logits and the auxiliary loss of each graph, [G], or None."""
        ...

    def modules(self) -> Iterator[nn.Module]: ...  # noqa: D102 - nn.Module's own
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...  # noqa: D102
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
    group: Group = SINGLE_PROCESS,
) -> Generator[Epoch, None, Outcome]:
    """Train ``model``: yield each finished epoch, return the outcome.

    Args:
        model: On the device of ``data``; afterwards it has the weights of the selected epoch.
        data: The graphs, featurised and standardised.
        split: Indices of the training, validation and test graphs.
        spec: Training options.
        seed: Seed of the order of the graphs and of dropout. Torch's global generators are restored
            before each epoch is yielded.
        group: Processes that train one model; each calls ``fit`` with the same arguments.
    """
    if data.x.is_cuda and isinstance(model, Classifier):
        reason = _why_eager(model, group)
        if reason is None:
            return (yield from _fit_captured(model, data, split, spec, seed))
        warn(f"training eagerly, which is slower on a GPU: {reason}", stacklevel=2)
    data = with_chain(data, *model.coarsening) if model.coarsening else data
    metric = metric_of(data.schema.task, spec.metric)
    if spec.select == "metric":
        check_metric_defined(data, split.valid, "validation", metric)
    stopping = EarlyStopping(spec, metric)
    evaluator = _Evaluator(model, data, split, spec, group)
    loss_of = Loss(data, [split.train], weigh=spec.class_weights, smoothing=spec.label_smoothing)
    set_target_scale(model, loss_of)
    set_statistics(model.state_dict(), data.graph_features, [split.train])
    loop = _TrainLoop(model, data, split.train, spec, loss_of, group)
    random = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}
    while not stopping.finished:
        start, number = time.perf_counter(), len(stopping.epochs) + 1
        train_loss = loop.epoch(number, random)
        with averaged(model.state_dict(), loop.average):
            measured = evaluator.measure(loss_of)
            epoch = Epoch(number, train_loss, *measured, time.perf_counter() - start)
            if stopping.update(epoch):
                state = {name: part.detach().clone() for name, part in model.state_dict().items()}
        yield epoch
    model.load_state_dict(state)
    return stopping.outcome(state)


def _why_eager(model: Classifier, group: Group) -> str | None:
    """Return why a network cannot be trained with a captured step; None if it can."""
    if group.size > 1:
        return "several processes exchange gradients in each step"
    if pads_attention(
        model
    ):  # padded attention of large graphs would not fit; eager attention streams
        return f"an attention head has more than {WIDEST} channels; use more heads"
    return why_not_captured(model)


def _fit_captured(
    model: Classifier, data: GraphDataset, split: Split, spec: TrainSpec, seed: int
) -> Generator[Epoch, None, Outcome]:
    """Train on a GPU with a captured step."""
    runs = fit_many([model], data, [split], [spec], seeds=[seed])
    while True:
        try:
            yield from next(runs).values()
        except StopIteration as end:
            (outcome,) = end.value
            break
    if isinstance(outcome, TrainingError):
        raise outcome
    return outcome


@torch.no_grad()
def predict(model: Model, data: GraphDataset, indices: Tensor, batch_size: int = 128) -> Tensor:
    """Return the logits of some graphs in evaluation mode, [graphs, outputs].

    Each batch moves to the device of the model.
    """
    model.train(False)
    batches = _batches(model, data, indices, batch_size)
    _, weight = next(iter(model.named_parameters()))
    return torch.cat([model.classify(graphs.to(weight.device)) for graphs in batches])


@torch.no_grad()
def predict_members(
    model: Predictor, data: GraphDataset, indices: Tensor, batch_size: int = 128
) -> Tensor:
    """Return the outputs of each member of a model in evaluation mode, [graphs, members, outputs].

    A single network is its own only member.
    """
    if any(module.training for module in model.modules()):
        model.train(False)
    batches = _batches(model, data, indices, batch_size)
    return torch.cat([member_outputs(model, graphs) for graphs in batches])


def _batches(
    model: "Model | Predictor", data: GraphDataset, indices: Tensor, batch_size: int
) -> Iterator[PackedBatch]:
    data = with_chain(data, *model.coarsening) if model.coarsening else data
    return _gather(data, indices.split(batch_size), model.ratios)


def _gather(
    data: GraphDataset, parts: Sequence[Tensor], ratios: Sequence[float]
) -> Iterator[PackedBatch]:
    """Yield a batch for each part; the next one is read from disk meanwhile."""
    for part, following in zip_longest(parts, parts[1:]):
        if following is not None:
            data.prefetch(following)
        yield data.take(part, ratios)


@contextmanager
def seeded(seed: int, device: torch.device) -> Generator[None]:
    """Seed torch's generators inside the block and restore them afterwards."""
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


class _TrainLoop:
    """Epochs of optimisation: batches, optimiser and learning-rate schedule."""

    def __init__(
        self,
        model: Model,
        data: GraphDataset,
        train: Tensor,
        spec: TrainSpec,
        loss_of: Loss,
        group: Group,
    ) -> None:
        self.model, self.data, self.train = model, data, train
        self.spec, self.loss_of, self.group = spec, loss_of, group
        self.weights = {key: part for key, part in model.named_parameters() if part.requires_grad}
        self.optimizer = torch.optim.Adam(
            self.weights.values(), lr=spec.lr, weight_decay=spec.weight_decay, fused=True
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda epoch: lr_factor(epoch, spec)
        )
        self.average = WeightAverage(model.state_dict(), spec.ema) if spec.ema else None

    def epoch(self, number: int, random: torch.Generator) -> float:
        """Train for one epoch and return the mean loss over its graphs."""
        self.model.train(True)
        batches = shuffled_batches(self.train, self.spec.batch_size, random)
        # Dropout has one key per step; all other randomness is seeded once per epoch.
        seed = epoch_seed(random)
        key = torch.tensor([seed], device=self.data.x.device)
        losses: list[Tensor] = []
        try:
            with seeded(seed, self.data.x.device):
                for step, part in enumerate(batches):
                    for following in batches[step + 1 : step + 2]:
                        self.data.prefetch(self.group.share(following))
                    set_keys(self.model, next_key(key, step))
                    losses.append(self._step(part, first=number == 1 and step == 0))
        finally:
            set_keys(self.model, None)
        self.schedule.step()
        each = torch.stack(losses).cpu()  # one device sync per epoch
        return mean_loss(each, batches, number, self.spec)

    @in_precision
    def _step(self, part: Tensor, *, first: bool) -> Tensor:
        """Take one step on this process's share of a batch; return the loss of the whole batch."""
        own = self.group.share(part)
        # A process without graphs runs one that does not count, to stay in step with the others.
        counts = own.numel() > 0
        graphs = self.data.take(own if counts else part[:1], self.model.ratios)
        with (
            autocast(self.spec, graphs.x.device),
            synchronized_layers(self.model, self.group, counts=counts),
        ):
            logits, auxiliary = self.model.learn(graphs)
        logits = logits.to(self.model.scale.dtype)
        total, weight = self.loss_of.sums(logits, graphs.y, training=True)
        loss = weighted_mean(counts * total, self.group.sum(counts * weight)).squeeze(0)
        if auxiliary is not None:
            loss = loss + counts * auxiliary.sum() / part.numel()
        self.optimizer.zero_grad()
        loss.backward()
        if first:
            self.group.check_gradients(self.weights)
        weights = list(self.weights.values())
        loss = self.group.sum_gradients(weights, loss.detach())
        nn.utils.clip_grad_norm_(weights, self.spec.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.model.state_dict())
        return loss


class _Evaluator:
    """Evaluation on the validation and test parts, whose batches are kept if they are small."""

    def __init__(
        self, model: Model, data: GraphDataset, split: Split, spec: TrainSpec, group: Group
    ) -> None:
        self.model, self.spec, self.group = model, spec, group
        self.metric = metric_of(data.schema.task, spec.metric)
        both = torch.cat([split.valid, split.test])
        own = group.share(both)
        self.parts = [part for part in own.split(spec.batch_size) if part.numel()]
        self.data, small = data, int(data.sizes[own].sum()) <= _KEPT_NODES
        self.batches = [*_gather(data, self.parts, model.ratios)] if small else None
        self.y, self.cut = data.y[both.to(data.y.device)], split.valid.numel()

    @in_precision
    @torch.no_grad()
    def measure(self, loss_of: Loss) -> tuple[float, float, float]:
        """Return validation loss, validation metric and test metric."""
        self.model.train(False)
        with autocast(self.spec, self.y.device):
            batches = self.batches or _gather(self.data, self.parts, self.model.ratios)
            rows = [self.model.classify(graphs) for graphs in batches]
        outputs = self.model.scale.numel()
        logits = self.group.gather(rows, self.model.scale.new_zeros(self.y.size(0), outputs))
        (valid, test), (y, y_test) = (part.tensor_split([self.cut]) for part in (logits, self.y))
        metrics = self.metric.measure(valid, y), self.metric.measure(test, y_test)
        loss, on_valid, on_test = self.group.broadcast_floats([loss_of(valid, y).item(), *metrics])
        return loss, on_valid, on_test


def set_target_scale(model: Model, loss_of: Loss) -> None:
    """Set the shift and scale of a regression's outputs from the training targets."""
    if loss_of.shift is not None and loss_of.scale is not None:
        with torch.no_grad():
            model.shift.copy_(loss_of.shift[0])
            model.scale.copy_(loss_of.scale[0])
