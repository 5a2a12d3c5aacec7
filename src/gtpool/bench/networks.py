"""Networks side by side on one batch: who takes part, how wide, and what a clock may call."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from gtpool.bench.baselines import PyGBaseline
from gtpool.bench.paper_speed import BASELINES, CAPTURED, OURS, REFERENCE, models, paper_name
from gtpool.bench.settings import BenchSettings
from gtpool.bench.timing import Row, Timing
from gtpool.data.dataset import GraphDataset
from gtpool.data.device_dataset import DeviceDataset
from gtpool.data.locate import locate
from gtpool.data.sources import load
from gtpool.data.split import Split
from gtpool.model.classifier import Classifier
from gtpool.model.ensemble import ModelEnsemble
from gtpool.spec import ModelSpec, ShapeSpec, TrainSpec
from gtpool.study.inputs import shape_of
from gtpool.train.captured import CapturedTrainer

SPEC = TrainSpec()


def build_gtpool(shape: ShapeSpec, width: int) -> Classifier:
    """Make GTPool-V: three levels, ratio .5, mean-max read-outs that are added up."""
    return Classifier(ModelSpec(width=width), shape)


NetworkFactory = Callable[[ShapeSpec, int], PyGBaseline | Classifier]
NETWORKS: dict[str, NetworkFactory] = {
    **{name: partial(PyGBaseline, name) for name in BASELINES},
    OURS: build_gtpool,
}


class TrainingStep:
    """A network and its batch, as calls that a clock can time.

    The batch lies on the device already: what it takes to gather it counts for nobody.
    """

    def __init__(self, model: PyGBaseline | Classifier, data: GraphDataset, index: Tensor) -> None:
        self.model, self.graphs = model, data.take(index, model.ratios)
        classes = data.schema.task == "classes"
        self.loss_of = cross_entropy if classes else binary_cross_entropy_with_logits
        self.weights = [part for part in model.parameters() if part.requires_grad]
        self.optimizer = torch.optim.Adam(
            self.weights, lr=SPEC.lr, weight_decay=SPEC.weight_decay, fused=True
        )
        self.loss = torch.zeros(())

    def forward(self) -> None:
        """Compute the loss."""
        logits, _ = self.model.learn(self.graphs)
        self.loss = self.loss_of(logits, self.graphs.y)

    def backward(self) -> None:
        """Compute the gradients of the loss."""
        self.optimizer.zero_grad()
        self.loss.backward()

    def step(self) -> None:
        """Train on the batch once: forward, backward, clip, Adam."""
        self.forward()
        self.backward()
        nn.utils.clip_grad_norm_(self.weights, SPEC.clip)
        self.optimizer.step()


class TimedNetwork(NamedTuple):
    """A network that takes part in a race."""

    width: int
    parameters: int
    stages: tuple[Callable[[], object], ...]
    """Forward and backward, or the whole step."""


def load_batch(name: str, settings: BenchSettings) -> tuple[GraphDataset, Tensor] | None:
    """Give a dataset on the device and a batch of its graphs; None where it would be downloaded."""
    if locate(name).folder is None:
        return None
    data = _load(name)
    random = torch.Generator().manual_seed(0)
    index = torch.randperm(len(data), generator=random)[: settings.batch]
    return data.to(settings.device), index


def prepare_network(
    model: str, data: GraphDataset, index: Tensor, width: int, *, whole: bool = False
) -> TimedNetwork | str:
    """Give a network's stages, or why it is missing.

    Args:
        model: A name of ``models(device)``.
        data: The graphs, on the device of the race.
        index: Which of them make the batch.
        width: Channels of the network.
        whole: Time whole steps, in place of the forward and the backward pass. What is captured
            has one stage in any case, a whole step.
    """
    torch.manual_seed(0)
    network = NETWORKS[paper_name(model)](shape_of(data), width).to(data.x.device).train()
    parameters = _count(network)
    if model == CAPTURED and isinstance(network, Classifier):
        try:
            return TimedNetwork(width, parameters, (capture_step(network, data, index, SPEC),))
        except ValueError as error:  # a batch beyond the usual capacity
            return str(error)
    runner = TrainingStep(network, data, index)
    return TimedNetwork(
        width, parameters, (runner.step,) if whole else (runner.forward, runner.backward)
    )


def capture_step(
    model: Classifier, data: GraphDataset, index: Tensor, spec: TrainSpec
) -> Callable[[], object]:
    """Capture a whole training step, forward, backward, clip and Adam, in one CUDA graph.

    Args:
        model: On the device of ``data``, which is a GPU.
        data: The graphs.
        index: Which of them make the batch, [B].
        spec: Rate, decay and clip.

    Returns:
        A call that replays the step, which gathers the batch too. Its capacity is what batches of
        as many graphs of the whole dataset are likely to need.
    """
    others = torch.arange(len(data))[~torch.isin(torch.arange(len(data)), index.cpu())]
    spec = replace(spec, batch_size=index.numel())
    train = torch.cat([index.cpu(), others[2:]])
    split = Split(train, others[:1], others[1:2], "bench", len(data))
    stock = DeviceDataset.of(data, model.shape.node_categories)
    program = CapturedTrainer(
        ModelEnsemble([model], int(data.sizes.max())), stock, data, [split], [spec]
    )
    need = stock.capacity(index.cpu().unsqueeze(0), model.ratios)
    if not program.capacity.holds(need):
        raise ValueError(f"the batch needs {need}, more than the usual {program.capacity}")
    program.order[0, 0].copy_(index)
    program.adam.lr.fill_(spec.lr)

    def step() -> None:
        program.step.zero_()
        program.train_step()

    return step


def choose_widths(shape: ShapeSpec, settings: BenchSettings, *, similar: bool) -> dict[str, int]:
    """Give the width of each network of a race.

    Args:
        shape: What the data fixes.
        settings: With the width of the first.
        similar: Bring the number of parameters nearest to that of the first, in place of one width.
    """
    goal = count_parameters(REFERENCE, shape, settings.width)

    def nearest(name: str) -> int:
        choices = range(8, 2 * settings.width + 1, 4)
        at = bisect_left(choices, goal, key=lambda width: count_parameters(name, shape, width))
        around = choices[max(0, at - 1) : at + 1]
        return min(around, key=lambda width: abs(count_parameters(name, shape, width) - goal))

    shown = models(settings.device.type)
    return {name: nearest(paper_name(name)) if similar else settings.width for name in shown}


@cache
def count_parameters(name: str, shape: ShapeSpec, width: int) -> int:
    """Count the parameters of a network of ``NETWORKS``, without making them."""
    with torch.device("meta"):
        return _count(NETWORKS[name](shape, width))


def timing_fields(times: Sequence[Timing]) -> Row:
    """Give what a row says of one network's times, in milliseconds."""
    names = ("forward", "backward") if len(times) == 2 else ("step",)
    row: Row = {}
    for name, taken in zip(names, times, strict=True):
        row[f"{name}_ms"] = round(1e3 * taken.median, 3)
        row[f"{name}_std"] = round(1e3 * taken.std, 3)
    return row | {"total_ms": round(1e3 * _total(times), 3), "rounds": times[0].rounds}


def speedup(name: str, taken: Mapping[str, Sequence[Timing]]) -> float:
    """Say how many times faster than the first a network is."""
    return round(_total(taken[REFERENCE]) / _total(taken[name]), 3)


@cache
def _load(name: str) -> GraphDataset:
    return load(name)


def _count(model: nn.Module) -> int:
    return sum(part.numel() for part in model.parameters())


def _total(times: Sequence[Timing]) -> float:
    return sum(taken.median for taken in times)
