"""The training of several runs as one program of fixed shapes, captured where there is a GPU.

What a step needs of the host is nothing: which graphs it takes, its keys and its number are on the
device. So a step is captured once as a CUDA graph and replayed; one whose graphs do not fit is run
as it is, at a capacity of its own.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gtpool.data.dataset import GraphDataset
from gtpool.data.device_dataset import DeviceDataset
from gtpool.data.split import Split
from gtpool.model.ensemble import ModelEnsemble
from gtpool.ops.dropout import next_key
from gtpool.padded_batch import Capacity, PaddedBatch
from gtpool.spec import TrainSpec
from gtpool.train.average import WeightAverage
from gtpool.train.epoch import autocast, lr_factor
from gtpool.train.loss import Loss
from gtpool.train.metric import METRICS

_DRAWS = 200
"""Capacity is meant to hold all but one in so many batches."""


class FeatureScaler(NamedTuple):
    """What the first columns of the features are scaled by, of each run, [R, columns]."""

    mean: Tensor
    std: Tensor


class CapturedTrainer:
    """R runs of one network that train side by side.

    Args:
        ensemble: The networks, on the device of ``dataset``.
        dataset: The graphs.
        data: The same graphs, for the task and the targets.
        splits: Of each run.
        specs: The recipe of each run; they may differ in learning rate and weight decay.
        scaler: By which continuous features are scaled; None where they are as they should be.
    """

    def __init__(
        self,
        ensemble: ModelEnsemble,
        dataset: DeviceDataset,
        data: GraphDataset,
        splits: Sequence[Split],
        specs: Sequence[TrainSpec],
        scaler: FeatureScaler | None = None,
    ) -> None:
        self.ensemble, self.dataset, self.spec, self.scaler = ensemble, dataset, specs[0], scaler
        self.data, self.splits = data, list(splits)
        self.adam = Adam(ensemble.theta, specs)
        self.average: WeightAverage | None = None
        self.epochs = 0
        self._prepare()

    @property
    def state(self) -> dict[str, Tensor]:
        """Current weights and statistics of all runs, by name."""
        return {"theta": self.ensemble.theta.detach(), **self.ensemble.fixed}

    def select(self, runs: Sequence[int]) -> None:
        """Go on with some of the runs only."""
        rows = torch.tensor(runs, device=self.dataset.x.device)
        self.ensemble.select(rows)
        self.adam.select(rows, self.ensemble.theta)
        if self.average is not None:
            self.average.select(rows)
        self.splits = [self.splits[run] for run in runs]
        if self.scaler is not None:
            self.scaler = FeatureScaler(*(part[rows] for part in self.scaler))
        self._prepare()

    def epoch(self, batches: Sequence[Sequence[Tensor]], seeds: Sequence[int]) -> Tensor:
        """Pass over the training parts once; the loss of each step and run, until the next, [S, R].

        There is no wait for the device here: it goes on to ``measure`` at once.

        Args:
            batches: Of each run, its graphs in order, batch by batch.
            seeds: Of each run, the seed of the epoch.
        """
        self.ensemble.train()
        order = _batch_table(batches, self.places)
        steps = order.size(0)
        self.order[:steps].copy_(order, non_blocking=True)
        self.seeds.copy_(torch.tensor(seeds), non_blocking=True)
        self.step.zero_()
        self.adam.set_lr_factor(lr_factor(self.epochs, self.spec))
        for graphs in order:
            need = self.dataset.capacity(graphs, self.ensemble.ratios)
            if self.capacity.holds(need):
                self.train_step()
            else:
                self._train(need)
        self.epochs += 1
        return self.losses[:steps]

    def measure(self) -> Tensor:
        """Give validation loss, validation metric and test metric of each run, on the host."""
        self.ensemble.eval()
        self.evaluate_step()
        metric = METRICS[self.data.schema.task]
        logits = self.logits.unflatten(0, (self.ensemble.runs, -1))
        found = [self.held_out_loss, *(metric.batched(logits, y) for y in self.targets)]
        return torch.stack(found, 1).cpu()

    def _prepare(self) -> None:
        """Lay out buffers for as many runs as there are, and capture what is replayed."""
        device, runs = self.dataset.x.device, self.ensemble.runs
        self.train_step = self.evaluate_step = _nothing  # what was captured lets its memory go
        trains = [split.train for split in self.splits]
        self.loss_of = Loss(
            self.data,
            trains,
            weigh=self.spec.class_weights,
            smoothing=self.spec.label_smoothing,
        )
        for name, part in (("shift", self.loss_of.shift), ("scale", self.loss_of.scale)):
            if part is not None:
                self.ensemble.fixed[name].copy_(part)
        if self.spec.ema and self.average is None:
            self.average = WeightAverage(self.state, self.spec.ema, runs)
        size = self.spec.batch_size
        single = any(train.numel() > size and (train.numel() - 1) % size == 0 for train in trains)
        self.places = min(size + single, max(train.numel() for train in trains))
        steps = max(-(-train.numel() // size) for train in trains)
        self.capacity = _capacity(self.dataset, trains, self.places, self.ensemble.ratios)
        self.order = torch.full((steps, runs, self.places), -1, device=device)
        self.seeds = torch.zeros(runs, dtype=torch.long, device=device)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.losses = self.ensemble.theta.new_zeros(steps, runs)
        self.held_out, self.valid = self._held_out()
        y = self.held_out.y
        absent = torch.full_like(y, -1 if self.data.schema.task == "classes" else torch.nan)
        columns = (-1, *(1,) * (y.dim() - 1))
        self.targets = [
            torch.where(part.view(columns), y, absent).unflatten(0, (runs, -1))
            for part in (self.valid, ~self.valid & self.held_out.present)
        ]
        """Of the validation and of the test part, missing elsewhere, [R, G] or [R, G, T]."""
        self.ensemble.train()
        self.train_step = _capture(lambda: self._train(self.capacity), self.step)
        self.ensemble.eval()
        self.evaluate_step = _capture(self._evaluate, self.step)

    def _held_out(self) -> tuple[PaddedBatch, Tensor]:
        """Gather the validation and test parts once; say which places are for validation."""
        device = self.dataset.x.device
        parts = [[torch.cat([split.valid, split.test])] for split in self.splits]
        longest = max(part[0].numel() for part in parts)
        index = _batch_table(parts, longest)[0]
        cuts = torch.tensor([split.valid.numel() for split in self.splits])
        valid = torch.arange(longest) < cuts.unsqueeze(1)  # places that are empty come last
        need = self.dataset.capacity(index, self.ensemble.ratios)
        return self._gather(index.to(device), need), valid.flatten().to(device)

    def _gather(self, index: Tensor, capacity: Capacity) -> PaddedBatch:
        batch = self.dataset.gather(index, capacity, self.ensemble.ratios)
        if self.scaler is None:
            return batch
        x = batch.x.unflatten(0, (self.ensemble.runs, -1))
        columns = self.scaler.mean.size(1)
        scaled = (x[..., :columns] - self.scaler.mean.unsqueeze(1)) / self.scaler.std.unsqueeze(1)
        x = torch.cat([scaled, x[..., columns:]], 2)
        return batch._replace(x=x.flatten(0, 1))

    def _train(self, capacity: Capacity) -> None:
        """Do one step: gather, forwards, backwards, clip, Adam."""
        index = self.order.index_select(0, self.step).squeeze(0)
        batch = self._gather(index, capacity)
        with autocast(self.spec, batch.x.device):
            logits, auxiliary = self.ensemble.learn(batch, next_key(self.seeds, self.step))
        logits = logits.to(self.ensemble.theta.dtype)
        loss = self.loss_of(logits, batch.y, batch.present, training=True)
        if auxiliary is not None:
            loss = loss + self._mean(auxiliary, batch.present)
        (grad,) = torch.autograd.grad(loss.sum(), [self.ensemble.theta])
        active = batch.present.view(self.ensemble.runs, -1).any(1)
        self.adam.update(grad, active)
        if self.average is not None:
            self.average.update(self.state, active)
        self.losses.index_copy_(0, self.step, loss.detach().unsqueeze(0))
        self.step += 1

    def _mean(self, each: Tensor, present: Tensor) -> Tensor:
        """Average over the graphs of each run, 0 where there are none, [RG] -> [R]."""
        counted = torch.where(present, each, 0.0).view(self.ensemble.runs, -1)
        return counted.sum(1) / present.view_as(counted).sum(1).clamp(min=1)

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Fill ``logits`` and ``held_out_loss``."""
        batch = self.held_out
        with autocast(self.spec, batch.x.device):
            self.logits = self.ensemble(batch).to(self.ensemble.theta.dtype)
        self.held_out_loss = self.loss_of(self.logits, batch.y, self.valid & batch.present).double()


def _nothing() -> None:
    """Stand in for what is captured next."""


def _capacity(
    dataset: DeviceDataset, trains: Sequence[Tensor], places: int, ratios: Sequence[float]
) -> Capacity:
    """Choose a capacity from the sizes of the graphs, which all but few batches keep within."""
    table = dataset.requirements(
        torch.cat(list(trains)).unique(), ratios
    ).double()  # [graphs, levels + 1]
    deviations = math.sqrt(2 * math.log(_DRAWS * len(trains)))
    mean, std = table.mean(0), table.std(0, correction=0)
    likely = places * mean + deviations * math.sqrt(places) * std
    largest = table.sort(0, descending=True).values[:places].sum(0)
    return dataset.capacity_for(places, likely.minimum(largest).ceil().long())


def _batch_table(batches: Sequence[Sequence[Tensor]], places: int) -> Tensor:
    """List the graphs that each run takes at each step, -1 for an empty place, [S, R, places]."""
    steps = max(len(parts) for parts in batches)
    table = torch.full((steps, len(batches), places), -1)
    for run, parts in enumerate(batches):
        for step, part in enumerate(parts):
            table[step, run, : part.numel()] = part
    return table


def _capture(step: Callable[[], None], number: Tensor) -> Callable[[], object]:
    """Capture a function as a CUDA graph; on a CPU it is itself.

    It is tried out first; a step of training finds no graphs in any place, from which it learns
    nothing, and the number of the step is set back.
    """
    if not number.is_cuda:
        return step
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            number.zero_()
            step()
    torch.cuda.current_stream().wait_stream(aside)
    number.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    number.zero_()
    return graph.replay


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

    def select(self, rows: Tensor, theta: nn.Parameter) -> None:
        """Go on with some of the runs only."""
        self.theta = theta
        self.mean, self.square, self.count, self.peak, self.decay, self.lr = (
            part.index_select(0, rows)
            for part in (self.mean, self.square, self.count, self.peak, self.decay, self.lr)
        )

    def set_lr_factor(self, factor: float) -> None:
        """Set the learning rates to a share of the highest, in place."""
        self.lr.copy_(self.peak * factor)

    @torch.no_grad()
    def update(self, grad: Tensor, active: Tensor) -> None:
        """Take a step, in place; runs that are not ``active`` [R] stay as they are."""
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
