"""Training of several runs side by side, with static shapes and CUDA graphs on a GPU.

The graphs of a step, its random keys and its number are tensors on the device. A training step
therefore needs no host sync: it is captured once as a CUDA graph and replayed. A batch that exceeds
the captured capacity runs without capture, at a larger capacity.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.device_dataset import DeviceDataset
from gtpool.data.split import Split
from gtpool.model.encoder import set_statistics
from gtpool.model.ensemble import ModelEnsemble
from gtpool.ops.dropout import next_key
from gtpool.ops.padded_ops import FeatureScaler
from gtpool.padded_batch import Capacity, PaddedBatch
from gtpool.spec import TrainSpec
from gtpool.train.adam import Adam
from gtpool.train.epoch import WeightAverage, autocast, in_precision, lr_factor
from gtpool.train.loss import Loss
from gtpool.train.metric import metric_of

_DRAWS = 200
"""The capacity is chosen so that about one batch in this many exceeds it."""


class CapturedTrainer:
    """Trainer for R runs of one network, side by side.

    Args:
        ensemble: The networks, on the device of ``dataset``.
        dataset: The graphs.
        data: The same graphs; supplies the task and the targets.
        splits: The split of each run.
        specs: The training spec of each run; only learning rate and weight decay may differ.
        scaler: FeatureScaler of continuous features; None if the features are used unchanged.
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
        """Keep only the given runs."""
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
        """Train for one epoch; return the loss of each step and run, [S, R].

        The result is a buffer that the next epoch overwrites. This method does not wait for the
        device.

        Args:
            batches: The batches of each run, as indices of graphs.
            seeds: The seed of the epoch for each run.
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
        """Return validation loss, validation metric and test metric of each run, on the host."""
        self.ensemble.eval()
        self.evaluate_step()
        metric = metric_of(self.data.schema.task, self.spec.metric)
        logits = self.logits.unflatten(0, (self.ensemble.runs, -1))
        found = [self.held_out_loss, *(metric.batched(logits, y) for y in self.targets)]
        return torch.stack(found, 1).cpu()

    def _prepare(self) -> None:
        """Allocate the buffers for the current runs and capture both steps."""
        device, runs = self.dataset.x.device, self.ensemble.runs
        self.train_step = self.evaluate_step = _nothing  # frees the memory of earlier captures
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
        set_statistics(self.ensemble.fixed, self.data.graph_features, trains)
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
        self.ones = torch.ones_like(self.losses[0])
        self.held_out, self.valid = self._held_out()
        y = self.held_out.y
        absent = torch.full_like(y, -1 if self.data.schema.task == "classes" else torch.nan)
        columns = (-1, *(1,) * (y.dim() - 1))
        self.targets = [
            torch.where(part.view(columns), y, absent).unflatten(0, (runs, -1))
            for part in (self.valid, ~self.valid & self.held_out.present)
        ]
        """Targets of the validation and the test part, absent elsewhere, [R, G] or [R, G, T]."""
        self.ensemble.train()
        self.train_step = _capture(lambda: self._train(self.capacity), self.step)
        self.ensemble.eval()
        self.evaluate_step = _capture(self._evaluate, self.step)

    def _held_out(self) -> tuple[PaddedBatch, Tensor]:
        """Return the batch of validation and test graphs, and the mask of validation graphs."""
        device = self.dataset.x.device
        parts = [[torch.cat([split.valid, split.test])] for split in self.splits]
        longest = max(part[0].numel() for part in parts)
        index = _batch_table(parts, longest)[0]
        cuts = torch.tensor([split.valid.numel() for split in self.splits])
        valid = torch.arange(longest) < cuts.unsqueeze(1)  # empty slots come last
        need = self.dataset.capacity(index, self.ensemble.ratios)
        return self._gather(index.to(device), need), valid.flatten().to(device)

    def _gather(self, index: Tensor, capacity: Capacity) -> PaddedBatch:
        return self.dataset.gather(index, capacity, self.ensemble.ratios, self.scaler)

    @in_precision
    def _train(self, capacity: Capacity) -> None:
        """Take one training step: gather, forward, backward, clip, Adam."""
        index = self.order.index_select(0, self.step).squeeze(0)
        batch = self._gather(index, capacity)
        with autocast(self.spec, batch.x.device):
            logits, auxiliary = self.ensemble.learn(batch, next_key(self.seeds, self.step))
        logits = logits.to(self.ensemble.theta.dtype)
        loss = self.loss_of(logits, batch.y, batch.present, training=True)
        if auxiliary is not None:
            loss = loss + self._mean(auxiliary, batch.present)
        (grad,) = torch.autograd.grad(loss, [self.ensemble.theta], [self.ones.to(loss.dtype)])
        active = batch.present.view(self.ensemble.runs, -1).any(1)
        self.adam.step(grad, active, self.state, self.average)
        self.losses.index_copy_(0, self.step, loss.detach().unsqueeze(0))
        self.step += 1

    def _mean(self, each: Tensor, present: Tensor) -> Tensor:
        """Return the mean over the graphs of each run, 0 for a run without graphs, [RG] -> [R]."""
        counted = torch.where(present, each, 0.0).view(self.ensemble.runs, -1)
        return counted.sum(1) / present.view_as(counted).sum(1).clamp(min=1)

    @in_precision
    @torch.no_grad()
    def _evaluate(self) -> None:
        """Fill ``logits`` and ``held_out_loss``."""
        batch = self.held_out
        with autocast(self.spec, batch.x.device):
            self.logits = self.ensemble(batch).to(self.ensemble.theta.dtype)
        self.held_out_loss = self.loss_of(self.logits, batch.y, self.valid & batch.present).double()


def _nothing() -> None:
    """Do nothing; placeholder for a step that is not captured yet."""


def _capacity(
    dataset: DeviceDataset, trains: Sequence[Tensor], places: int, ratios: Sequence[float]
) -> Capacity:
    """Return a capacity, estimated from the sizes of the graphs, that most batches fit."""
    table = dataset.requirements(
        torch.cat(list(trains)).unique(), ratios
    ).double()  # [graphs, levels + 1]
    deviations = math.sqrt(2 * math.log(_DRAWS * len(trains)))
    mean, std = table.mean(0), table.std(0, correction=0)
    likely = places * mean + deviations * math.sqrt(places) * std
    largest = table.sort(0, descending=True).values[:places].sum(0)
    return dataset.capacity_for(places, likely.minimum(largest).ceil().long())


def _batch_table(batches: Sequence[Sequence[Tensor]], places: int) -> Tensor:
    """Return the graph indices of each step and run, -1 for an empty slot, [S, R, places]."""
    steps = max(len(parts) for parts in batches)
    table = torch.full((steps, len(batches), places), -1)
    for run, parts in enumerate(batches):
        for step, part in enumerate(parts):
            table[step, run, : part.numel()] = part
    return table


def _capture(step: Callable[[], None], number: Tensor) -> Callable[[], object]:
    """Return ``step`` captured as a CUDA graph; on a CPU, ``step`` itself.

    Two warm-up steps on an empty batch precede capture; weights do not change. The step number is
    reset to 0 afterwards.
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
