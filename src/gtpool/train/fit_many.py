"""Training of many runs of one network at once on one device: folds, seeds and learning rates."""

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from itertools import zip_longest

import torch
from torch import Tensor

from gtpool.data.coarsening import with_chain
from gtpool.data.dataset import GraphDataset
from gtpool.data.device_dataset import DeviceDataset
from gtpool.data.schema import Recipe
from gtpool.data.split import Split
from gtpool.model.classifier import Classifier
from gtpool.model.ensemble import ModelEnsemble
from gtpool.ops.padded_ops import FeatureScaler
from gtpool.spec import TrainSpec
from gtpool.train.captured import CapturedTrainer
from gtpool.train.epoch import (
    EarlyStopping,
    Epoch,
    Outcome,
    TrainingError,
    averaged,
    epoch_seed,
    mean_loss,
    shuffled_batches,
    undefined_metrics,
)
from gtpool.train.metric import metric_of

_SHRINK = 0.6
"""Finished runs are dropped once active runs fall below this share; each drop captures again."""


def fit_many(
    models: Sequence[Classifier],
    data: GraphDataset,
    splits: Sequence[Split],
    specs: Sequence[TrainSpec],
    *,
    seeds: Sequence[int],
    standardize: bool = False,
    recipes: Sequence[Recipe] | None = None,
    on_end: Callable[[int, Outcome | TrainingError], None] | None = None,
) -> Generator[dict[int, Epoch], None, list[Outcome | TrainingError]]:
    """Train several classifiers of one spec side by side, each as ``fit`` would train it alone.

    Yields the epochs of the active runs by run number. Returns for each run its outcome, or the
    error that ended it.

    Args:
        models: Models of one spec and shape, on the device of ``data``. Each ends with the weights
            of its selected epoch.
        data: The graphs, not standardised.
        splits: The split of each run.
        specs: The training spec of each run; only learning rate and weight decay may differ.
        seeds: The seed of each run.
        standardize: Scale continuous features by statistics of each run's training part.
        recipes: Scale them by the statistics in these recipes instead, one a run.
        on_end: Called with the number and the outcome of each run when it ends; its model then has
            the weights of the selected epoch.
    """
    with torch.cuda.device_of(data.x):  # Triton and CUDA graphs use the current device
        if recipes is None and standardize:
            recipes = _training_recipes(data, splits)
        runs = _Runs(models, data, splits, specs, seeds, recipes or [])
        runs.finish(on_end)
        runs.shrink()
    while runs.active:
        with torch.cuda.device_of(data.x):
            epochs = runs.epoch()
            runs.finish(on_end)
        yield epochs
        with torch.cuda.device_of(data.x):
            runs.shrink()
    return [runs.outcomes[run] for run in range(len(models))]


class _Runs:
    """State of all runs; the active ones train in one ``CapturedTrainer``."""

    def __init__(
        self,
        models: Sequence[Classifier],
        data: GraphDataset,
        splits: Sequence[Split],
        specs: Sequence[TrainSpec],
        seeds: Sequence[int],
        recipes: Sequence[Recipe],
    ) -> None:
        if len({replace(spec, lr=0.0, weight_decay=0.0) for spec in specs}) > 1:
            raise ValueError("specs of runs side by side may differ only in lr and weight_decay")
        self.models, self.splits, self.specs = models, splits, specs
        self.ensemble = ModelEnsemble(models, int(data.sizes.max()))
        shape = models[0].shape
        chain, numbers = models[0].coarsening, models[0].reads_edge_numbers
        data = with_chain(data, *chain) if chain else data
        coded = (shape.node_categories, models[0].edge_categories)
        dataset = DeviceDataset.of(data, *coded, edge_features=numbers)
        scaler = _feature_scaler(recipes, self.ensemble.theta)
        self.trainer = CapturedTrainer(self.ensemble, dataset, data, splits, specs, scaler)
        self.randoms = [torch.Generator().manual_seed(seed) for seed in seeds]
        metric = metric_of(data.schema.task, specs[0].metric)
        self.stopping = [EarlyStopping(own, metric) for own in specs]
        valids = [split.valid for split in splits] if specs[0].select == "metric" else []
        self.errors = undefined_metrics(data, valids, "validation", metric)
        self.active = list(range(len(models)))
        """Run number of each position in the trainer."""
        self.best = self.ensemble.state_dicts()
        """State of each run's best epoch, one tensor per name, [R, ...]."""
        self.outcomes: dict[int, Outcome | TrainingError] = {}
        """Outcomes of the finished runs."""

    def epoch(self) -> dict[int, Epoch]:
        """Train and evaluate for one epoch; return the epochs of the active runs."""
        start = time.perf_counter()
        size = self.specs[0].batch_size
        batches = [
            shuffled_batches(self.splits[run].train, size, self.randoms[run]) for run in self.active
        ]
        losses = self.trainer.epoch(batches, [epoch_seed(self.randoms[run]) for run in self.active])
        with averaged(self.trainer.state, self.trainer.average):
            return self._evaluate(batches, losses, start)

    def _evaluate(
        self, batches: Sequence[Sequence[Tensor]], losses: Tensor, start: float
    ) -> dict[int, Epoch]:
        """Measure the held-out parts and store the weights of runs that improved.

        Args:
            batches: Training graphs of each run, batch by batch.
            losses: Loss of each step and run, [S, R].
            start: Time at which the epoch started.
        """
        measured, losses = self.trainer.measure().tolist(), losses.cpu()
        sizes = _sizes(batches, losses)
        means = ((losses.where(sizes > 0, 0.0) * sizes).sum(0) / sizes.sum(0)).tolist()
        active = sum(map(self._is_active, self.active))
        seconds = (time.perf_counter() - start) / max(1, active)
        epochs: dict[int, Epoch] = {}
        improved: list[int] = []
        for place, run in enumerate(self.active):
            if not self._is_active(run):
                continue
            mine, own, number = batches[place], self.specs[run], len(self.stopping[run].epochs) + 1
            try:
                train_loss = means[place]
                if not math.isfinite(train_loss):  # raises an error that names the batch
                    train_loss = mean_loss(losses[: len(mine), place], mine, number, own)
                loss, valid, test = measured[place]
                epoch = Epoch(number, train_loss, loss, valid, test, seconds)
                if self.stopping[run].update(epoch):
                    improved.append(place)
            except TrainingError as error:
                self.errors[run] = error
            else:
                epochs[run] = epoch
        self._save_best(improved)
        return epochs

    def shrink(self) -> None:
        """Drop finished runs from the trainer if they are many."""
        active = [place for place, run in enumerate(self.active) if self._is_active(run)]
        if len(active) < _SHRINK * len(self.active) or not active:
            self.active = [self.active[place] for place in active]
            if active:
                self.trainer.select(active)

    def finish(self, on_end: Callable[[int, Outcome | TrainingError], None] | None) -> None:
        """Store the outcomes of runs that have just ended, and call ``on_end``."""
        for run in self.active:
            if not self._is_active(run) and run not in self.outcomes:
                self.outcomes[run] = self._outcome(run, self.models[run])
                if on_end is not None:
                    on_end(run, self.outcomes[run])

    def _outcome(self, run: int, model: Classifier) -> Outcome | TrainingError:
        """Return the outcome of a run, with its best weights loaded into ``model``."""
        if run in self.errors:
            return self.errors[run]
        state = {name: part[run].clone() for name, part in self.best.items()}
        model.load_state_dict(state)
        model.eval()
        return self.stopping[run].outcome(state)

    def _is_active(self, run: int) -> bool:
        return run not in self.errors and not self.stopping[run].finished

    def _save_best(self, places: Sequence[int]) -> None:
        """Copy the state of the runs at some positions to ``best``."""
        if not places:
            return
        device = self.ensemble.theta.device
        here = torch.tensor(places, dtype=torch.long, device=device)
        there = torch.tensor([self.active[place] for place in places], device=device).long()
        for name, part in self.ensemble.state_dicts().items():
            self.best[name].index_copy_(0, there, part.index_select(0, here))


def _sizes(batches: Sequence[Sequence[Tensor]], like: Tensor) -> Tensor:
    """Return the graphs of each step and run, 0 if a run has no such step, [S, R]."""
    counts = [[part.numel() for part in parts] for parts in batches]
    return torch.tensor(list(zip_longest(*counts, fillvalue=0)), dtype=like.dtype)


def _training_recipes(data: GraphDataset, splits: Sequence[Split]) -> list[Recipe]:
    """Return recipes with the statistics of each run's training part; none for scaled data."""
    if data.schema.recipe.mean is not None:
        return []
    by_part = {split.digest: split for split in splits}
    recipes = {key: data.standardized(split.train).schema.recipe for key, split in by_part.items()}
    return [recipes[split.digest] for split in splits]


def _feature_scaler(recipes: Sequence[Recipe], like: Tensor) -> FeatureScaler | None:
    """Return mean and deviation of the continuous columns of each run; None without them."""
    if not recipes or recipes[0].mean is None:
        return None
    parts = [recipe.mean for recipe in recipes], [recipe.std for recipe in recipes]
    return FeatureScaler(
        *(torch.tensor(part, dtype=like.dtype, device=like.device) for part in parts)
    )
