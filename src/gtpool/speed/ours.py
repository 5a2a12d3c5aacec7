"""Our side of a race: the network, and its step as one captured CUDA graph."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.split import Split
from gtpool.data.stock import Stock
from gtpool.model.classifier import Classifier
from gtpool.model.stack import Stack
from gtpool.spec import ModelSpec, ShapeSpec, TrainSpec
from gtpool.train.program import Program


def build(shape: ShapeSpec, width: int) -> Classifier:
    """Make GTPool-V: three levels, ratio .5, mean-max read-outs that are added up."""
    return Classifier(ModelSpec(width=width), shape)


def captured(
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
    stock = Stock.of(data, model.shape.node_categories)
    program = Program(Stack([model], int(data.sizes.max())), stock, data, [split], [spec])
    need = stock.capacity(index.cpu().unsqueeze(0), model.ratios)
    if not program.capacity.holds(need):
        raise ValueError(f"the batch needs {need}, more than the usual {program.capacity}")
    program.order[0, 0].copy_(index)
    program.adam.lr.fill_(spec.lr)

    def step() -> None:
        program.step.zero_()
        program.train_step()

    return step
