"""Many runs of one network at once on one device: folds, seeds and rates as one program."""

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
from gtpool.data.split import Split
from gtpool.model.classifier import Classifier
from gtpool.model.stack import ModelEnsemble
from gtpool.spec import TrainSpec
from gtpool.train.course import (
    Course,
    Epoch,
    Outcome,
    TrainingError,
    epoch_seed,
    mean_loss,
    shuffle,
    unmeasurable,
)
from gtpool.train.metric import METRICS
from gtpool.train.program import CapturedTrainer, FeatureScaler

_SHRINK = 0.6
"""Runs that are over go on taking their share of time; below this share of live ones they leave."""


def fit_many(
    models: Sequence[Classifier],
    data: GraphDataset,
    splits: Sequence[Split],
    specs: Sequence[TrainSpec],
    *,
    seeds: Sequence[int],
    standardize: bool = False,
    on_end: Callable[[int, Outcome | TrainingError], None] | None = None,
) -> Generator[dict[int, Epoch], None, list[Outcome | TrainingError]]:
    """Train several classifiers of one spec side by side, each as ``fit`` would train it alone.

    Yields the epoch of each run that is still going, by its number, and returns an outcome for each
    run, or the reason why it could not go on.

    Args:
        models: Of one spec and shape, on the device of ``data``; they are left with the weights of
            the chosen epoch.
        data: The graphs, not standardised.
        splits: Of each run.
        specs: The recipe of each run; they may differ in learning rate and weight decay.
        seeds: Of each run.
        standardize: Scale continuous features by each run's training part.
        on_end: Called with the number and the outcome of each run as soon as it is over, when its
            model has the weights of the chosen epoch.
    """
    with torch.cuda.device_of(data.x):  # where Triton launches and graphs are captured
        runs = _Runs(models, data, splits, specs, seeds, standardize=standardize)
        runs.end(on_end)
        runs.shrink()
    while runs.live:
        with torch.cuda.device_of(data.x):
            heard = runs.epoch()
            runs.end(on_end)
        yield heard
        with torch.cuda.device_of(data.x):
            runs.shrink()
    return [runs.outcomes[run] for run in range(len(models))]


class _Runs:
    """The runs, those that still go in one program."""

    def __init__(
        self,
        models: Sequence[Classifier],
        data: GraphDataset,
        splits: Sequence[Split],
        specs: Sequence[TrainSpec],
        seeds: Sequence[int],
        *,
        standardize: bool,
    ) -> None:
        if len({replace(spec, lr=0.0, weight_decay=0.0) for spec in specs}) > 1:
            raise ValueError("runs side by side may differ in lr and weight_decay, in nothing else")
        self.models, self.splits, self.specs = models, splits, specs
        self.stack = ModelEnsemble(models, int(data.sizes.max()))
        shape = models[0].shape
        steps, numbers = models[0].chain_steps, models[0].reads_edge_numbers
        data = with_chain(data, steps) if steps else data
        coded = (shape.node_categories, models[0].edge_categories)
        stock = DeviceDataset.of(data, *coded, edge_features=numbers)
        units = _units(data, splits, self.stack.theta) if standardize else None
        self.program = CapturedTrainer(self.stack, stock, data, splits, specs, units)
        self.randoms = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.courses = [Course(own, METRICS[data.schema.task]) for own in specs]
        valids = [split.valid for split in splits] if specs[0].select == "metric" else []
        self.errors = unmeasurable(data, valids, "validation")
        self.live = list(range(len(models)))
        """The run in each place of the program."""
        self.best = self.stack.whole()
        """The state of each run's best epoch, all runs in one tensor a name."""
        self.outcomes: dict[int, Outcome | TrainingError] = {}
        """What the runs that are over gave."""

    def epoch(self) -> dict[int, Epoch]:
        """Pass over the training parts once and look at the others."""
        start = time.perf_counter()
        size = self.specs[0].batch_size
        batches = [shuffle(self.splits[run].train, size, self.randoms[run]) for run in self.live]
        losses = self.program.epoch(batches, [epoch_seed(self.randoms[run]) for run in self.live])
        judged, losses = self.program.measure().tolist(), losses.cpu()
        sizes = _sizes(batches, losses)
        means = ((losses.where(sizes > 0, 0.0) * sizes).sum(0) / sizes.sum(0)).tolist()
        going = sum(map(self._goes, self.live))
        seconds = (time.perf_counter() - start) / max(1, going)
        heard: dict[int, Epoch] = {}
        improved: list[int] = []
        for place, run in enumerate(self.live):
            if not self._goes(run):
                continue
            mine, own, number = batches[place], self.specs[run], len(self.courses[run].epochs) + 1
            try:
                train_loss = means[place]
                if not math.isfinite(train_loss):  # says of which batch
                    train_loss = mean_loss(losses[: len(mine), place], mine, number, own)
                loss, valid, test = judged[place]
                epoch = Epoch(number, train_loss, loss, valid, test, seconds)
                if self.courses[run].add(epoch):
                    improved.append(place)
            except TrainingError as error:
                self.errors[run] = error
            else:
                heard[run] = epoch
        self._remember(improved)
        return heard

    def shrink(self) -> None:
        """Let runs go that are over, if they are many."""
        going = [place for place, run in enumerate(self.live) if self._goes(run)]
        if len(going) < _SHRINK * len(self.live) or not going:
            self.live = [self.live[place] for place in going]
            if going:
                self.program.keep(going)

    def end(self, tell: Callable[[int, Outcome | TrainingError], None] | None) -> None:
        """Sum up the runs that have come to their end, and tell who asked."""
        for run in self.live:
            if not self._goes(run) and run not in self.outcomes:
                self.outcomes[run] = self._outcome(run, self.models[run])
                if tell is not None:
                    tell(run, self.outcomes[run])

    def _outcome(self, run: int, model: Classifier) -> Outcome | TrainingError:
        """Load the best weights of a run, and sum it up."""
        if run in self.errors:
            return self.errors[run]
        state = {name: part[run].clone() for name, part in self.best.items()}
        model.load_state_dict(state)
        model.eval()
        return self.courses[run].outcome(state)

    def _goes(self, run: int) -> bool:
        return run not in self.errors and not self.courses[run].over

    def _remember(self, places: Sequence[int]) -> None:
        """Copy the state of the runs in some places."""
        if not places:
            return
        device = self.stack.theta.device
        here = torch.tensor(places, dtype=torch.long, device=device)
        there = torch.tensor([self.live[place] for place in places], device=device).long()
        for name, part in self.stack.whole().items():
            self.best[name].index_copy_(0, there, part.index_select(0, here))


def _sizes(batches: Sequence[Sequence[Tensor]], like: Tensor) -> Tensor:
    """Count the graphs of each step and run, 0 where a run has no such step, [S, R]."""
    counts = [[part.numel() for part in parts] for parts in batches]
    return torch.tensor(list(zip_longest(*counts, fillvalue=0)), dtype=like.dtype)


def _units(data: GraphDataset, splits: Sequence[Split], like: Tensor) -> FeatureScaler | None:
    """Take mean and deviation of the continuous columns over each run's training part."""
    if data.schema.recipe.mean is not None:
        return None
    by_part = {split.digest: split for split in splits}
    recipes = {key: data.standardized(split.train).schema.recipe for key, split in by_part.items()}
    means = [recipes[split.digest].mean for split in splits]
    stds = [recipes[split.digest].std for split in splits]
    if means[0] is None:
        return None
    return FeatureScaler(
        *(torch.tensor(part, dtype=like.dtype, device=like.device) for part in (means, stds))
    )
