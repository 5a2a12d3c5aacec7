"""Networks of the benchmarks, their widths, and the stages that are timed."""

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
    """Return GTPool-V: three levels, ratio 0.5, summed mean-max read-outs."""
    return Classifier(ModelSpec(width=width), shape)


NetworkFactory = Callable[[ShapeSpec, int], PyGBaseline | Classifier]
NETWORKS: dict[str, NetworkFactory] = {
    **{name: partial(PyGBaseline, name) for name in BASELINES},
    OURS: build_gtpool,
}


class TrainingStep:
    """A network and its batch, as calls to be timed.

    The batch is already on the device; the time to gather it is not measured.
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
    """A network of a benchmark."""

    width: int
    parameters: int
    stages: tuple[Callable[[], object], ...]
    """Forward and backward, or the whole step."""


def load_batch(name: str, settings: BenchSettings) -> tuple[GraphDataset, Tensor] | None:
    """Return a dataset on the device and a batch of it; None if it needs a download."""
    if locate(name).folder is None:
        return None
    data = _load(name)
    random = torch.Generator().manual_seed(0)
    index = torch.randperm(len(data), generator=random)[: settings.batch]
    return data.to(settings.device), index


def prepare_network(
    model: str, data: GraphDataset, index: Tensor, width: int, *, whole: bool = False
) -> TimedNetwork | str:
    """Return the stages of a network, or the reason why it is missing.

    Args:
        model: A name of ``models(device)``.
        data: The graphs, on the device of the benchmark.
        index: Graphs of the batch.
        width: Channels of the network.
        whole: Measure training steps instead of the forward and backward pass. Captured networks
            always have one stage, a training step.
    """
    torch.manual_seed(0)
    network = NETWORKS[paper_name(model)](shape_of(data), width).to(data.x.device).train()
    parameters = _count(network)
    if model == CAPTURED and isinstance(network, Classifier):
        try:
            return TimedNetwork(width, parameters, (capture_step(network, data, index, SPEC),))
        except ValueError as error:  # the batch exceeds the capacity
            return str(error)
    runner = TrainingStep(network, data, index)
    return TimedNetwork(
        width, parameters, (runner.step,) if whole else (runner.forward, runner.backward)
    )


def capture_step(
    model: Classifier, data: GraphDataset, index: Tensor, spec: TrainSpec
) -> Callable[[], object]:
    """Return a training step (forward, backward, clip, Adam) captured as one CUDA graph.

    Args:
        model: The network, on the device of ``data``, a GPU.
        data: The graphs.
        index: Graphs of the batch, [B].
        spec: Learning rate, weight decay and clip.

    Returns:
        A call that replays the step, including the gathering of the batch. Its capacity fits most
        batches of the same number of graphs.
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
        raise ValueError(f"the batch needs {need}, more than the capacity {program.capacity}")
    program.order[0, 0].copy_(index)
    program.adam.lr.fill_(spec.lr)

    def step() -> None:
        program.step.zero_()
        program.train_step()

    return step


def choose_widths(shape: ShapeSpec, settings: BenchSettings, *, similar: bool) -> dict[str, int]:
    """Return the width of each network of a benchmark.

    Args:
        shape: Sizes fixed by the data.
        settings: Settings with the width of the first network.
        similar: Match the number of parameters of the first network instead of its width.
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
    """Return the number of parameters of a network of ``NETWORKS``, without allocating them."""
    with torch.device("meta"):
        return _count(NETWORKS[name](shape, width))


def timing_fields(times: Sequence[Timing]) -> Row:
    """Return the times of a network for a row, in milliseconds."""
    names = ("forward", "backward") if len(times) == 2 else ("step",)
    row: Row = {}
    for name, taken in zip(names, times, strict=True):
        row[f"{name}_ms"] = round(1e3 * taken.median, 3)
        row[f"{name}_std"] = round(1e3 * taken.std, 3)
    return row | {"total_ms": round(1e3 * _total(times), 3), "rounds": times[0].rounds}


def speedup(name: str, taken: Mapping[str, Sequence[Timing]]) -> float:
    """Return the speed-up of a network over the first."""
    return round(_total(taken[REFERENCE]) / _total(taken[name]), 3)


@cache
def _load(name: str) -> GraphDataset:
    return load(name)


def _count(model: nn.Module) -> int:
    return sum(part.numel() for part in model.parameters())


def _total(times: Sequence[Timing]) -> float:
    return sum(taken.median for taken in times)
