"""What several processes add to one training: each takes a share of every batch.

``torchrun`` starts the processes; all hold all graphs, shuffle alike and take the same steps. Of a
batch each takes graphs next to one another, and what goes over the wire are sums alone:

- The loss of a batch is a sum over its graphs divided by what counts in all of it, so the
  gradients of the shares add up to that of the whole: one flat vector a step, then clipping.
- Batch norm sums over the nodes of all shares. What is drawn by key and place (dropout) counts
  places through the whole batch, so a graph has the same mask whoever holds it.
- Logits of held-out graphs are gathered, and the first process's figures decide for all.

Hence a run has the numbers of one process, up to the order in which floats are added. There is no
``DistributedDataParallel``: it averages over processes, which is another loss where labels are
missing or shares are unequal. The first process does what leaves a trace; the others follow it.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gtpool.ops.backend import RowLayout
from gtpool.ops.dropout import STRIDE, HasModules, KeyedModule
from gtpool.train.epoch import TrainingError

_TIMEOUT = timedelta(hours=1)
"""How long a process waits for one that is silent, as while the first prepares data."""


class Group(NamedTuple):
    """The processes of one training; of one process, all is as if there were no group.

    Example:
        >>> [Group(rank, 2).share(torch.arange(5)).tolist() for rank in range(2)]
        [[0, 1, 2], [3, 4]]
    """

    rank: int = 0
    """Which of them this one is."""
    size: int = 1

    def share(self, indices: Tensor) -> Tensor:
        """Give this process's part of what all do, which may be empty; the last have the least."""
        return indices.tensor_split(self.size)[self.rank]

    def sum(self, value: Tensor) -> Tensor:
        """Add up what all processes have, in place."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def gather(self, rows: Sequence[Tensor], whole: Tensor) -> Tensor:
        """Fill zeros with the rows of all processes, each those of its ``share``, in place."""
        if rows:
            own = self.share(torch.arange(whole.size(0), device=whole.device))
            whole[own] = torch.cat(list(rows)).to(whole.dtype)
        return self.sum(whole)

    def broadcast_floats(self, values: Sequence[float]) -> list[float]:
        """Give the numbers that the first process has."""
        told = torch.tensor(values, dtype=torch.double)
        return self.sum(told if self.rank == 0 else torch.zeros_like(told)).tolist()

    def sum_gradients(self, weights: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        """Add up the gradients of all processes, in place, and give the sum of their losses."""
        if self.size == 1:
            return loss
        grads = [torch.zeros_like(part) if part.grad is None else part.grad for part in weights]
        flat = self.sum(torch.cat([loss.view(1), *(grad.flatten() for grad in grads)]))
        loss, *parts = flat.split([1, *(grad.numel() for grad in grads)])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.view_as(weight)
        return loss.squeeze(0)

    def check_gradients(self, weights: dict[str, nn.Parameter]) -> None:
        """Raise a ValueError, after a backward pass, if some weights have a gradient nowhere."""
        if self.size == 1:
            return
        device = next(iter(weights.values())).device
        got = [part.grad is not None for part in weights.values()]
        used = self.sum(torch.tensor(got, dtype=torch.long, device=device)).tolist()
        idle = [name for name, count in zip(weights, used, strict=True) if count == 0]
        if idle:
            raise ValueError(
                f"the loss does not depend on {', '.join(idle)}: take out of the network what it "
                "does not use, or set requires_grad to False, to train in several processes"
            )

    def check_same(self, values: Sequence[object]) -> None:
        """Raise a ValueError unless all processes see the same data."""
        self.broadcast(list(values))
        if self.rank > 0 and self.receive() != list(values):
            raise ValueError(f"{self} sees other data than process 0; give all the same files")

    @contextmanager
    def failing_together(self) -> Generator[None]:
        """Make what torch complains of a run that failed; of several processes, the end of all.

        The others do not know of it, so no process may go on to the next run.
        """
        try:
            yield
        except TrainingError:
            raise  # of numbers that all have
        except (RuntimeError, MemoryError) as error:
            said = str(error) or type(error).__name__
            if self.size == 1:
                raise TrainingError(said) from error
            raise ConnectionError(
                f"{self} cannot go on, and so all end; what is finished is kept: {said}"
            ) from error

    def broadcast(self, what: object) -> None:
        """Say something in the first process, which the others ``receive``."""
        if self.size > 1 and self.rank == 0:
            with self.failing_together():
                dist.broadcast_object_list([what], device=torch.device("cpu"))

    def receive(self) -> Any:  # noqa: ANN401 - whatever was told
        """Wait for what the first process says."""
        told = [None]
        dist.broadcast_object_list(told, device=torch.device("cpu"))
        return told[0]

    def close(self) -> None:
        """Part when all is done, which the first process tells the others by None."""
        self.broadcast(None)
        if self.size > 1:
            dist.destroy_process_group()

    def device_for(self, device: torch.device) -> torch.device:
        """Give a process its own GPU, where GPUs are asked for."""
        if self.size == 1 or device.type != "cuda":
            return device
        local, count = int(os.environ.get("LOCAL_RANK", self.rank)), torch.cuda.device_count()
        if local >= count:
            raise ValueError(
                f"{self} has no GPU of its own, there are {count} here: start no more processes a "
                "machine than it has GPUs, or choose --device cpu"
            )
        return torch.device("cuda", local)

    def __str__(self) -> str:
        return f"process {self.rank} of {self.size}"


SINGLE_PROCESS = Group()


def init_group() -> Group:
    """Join the processes that ``torchrun`` started, by the variables that it sets."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT)
    return current_group()


def current_group() -> Group:
    """Give the processes that this one has joined, or this one alone."""
    if dist.is_available() and dist.is_initialized():
        return Group(dist.get_rank(), dist.get_world_size())
    return Group()


@contextmanager
def synchronized_layers(model: HasModules, group: Group, *, counts: bool) -> Generator[None]:
    """Let the layers that look beyond a graph see the shares of all processes as one batch.

    Args:
        model: In training, with keys; what it draws without a key is an error.
        group: Whose processes all run the model, each its share.
        counts: Whether this process's graphs are part of the batch.
    """
    if group.size == 1:
        yield
        return
    kinds = (KeyedModule, nn.BatchNorm1d)
    found = (part for part in model.modules() if part.training and isinstance(part, kinds))
    layers = [part for part in found if getattr(part, "p", 1) > 0]  # but dropout of nothing
    for part in layers:
        way = _draw if isinstance(part, KeyedModule) else partial(_normalize, counts=counts)
        part.forward = partial(way, part, group)
    before = _random_states()
    try:
        yield
    finally:
        for part in layers:
            del part.forward  # and the method of its class is back
    if any(not old.equal(new) for old, new in zip(before, _random_states(), strict=True)):
        raise ValueError(
            "the network draws random numbers of its own (as dropout of asap "
            "does), which several processes cannot draw as one does; turn that off, or train in one"
        )


def _draw(part: KeyedModule, group: Group, value: Tensor | RowLayout, *more: Tensor) -> Tensor:
    """Draw for rows whose places go on from the processes before; a place is ``STRIDE`` of key."""
    key = part.key
    if key is None:
        raise ValueError("what a network draws in several processes needs a key: see set_keys")
    drawn = value.numel() if isinstance(value, Tensor) else value.num_rows
    counts = torch.zeros(group.size, dtype=torch.long, device=key.device)
    counts[group.rank] = drawn
    part.key = key + group.sum(counts)[: group.rank].sum() * STRIDE
    try:
        return type(part).forward(part, value, *more)
    finally:
        part.key = key


def _normalize(
    part: nn.BatchNorm1d, group: Group, x: Tensor, rows: object = None, *, counts: bool
) -> Tensor:
    """Do what ``nn.BatchNorm1d`` does in training, over the rows of all processes, [N, D]."""
    del rows  # of a packed batch, all real
    rows = x.to(torch.promote_types(x.dtype, torch.float32))
    total = _Sum.apply(counts * torch.cat([rows.new_full((1,), len(rows)), rows.sum(0)]), group)
    number, mean = total[0], total[1:] / total[0]
    var = _Sum.apply(counts * (rows - mean).square().sum(0), group) / number
    if part.track_running_stats:
        running_mean, running_var, seen = part.buffers()
        with torch.no_grad():
            seen.add_(1)
            share = 1 / int(seen) if part.momentum is None else part.momentum
            running_mean.lerp_(mean, share)
            running_var.lerp_(var * number / (number - 1).clamp(min=1), share)
    out = (rows - mean) * (var + part.eps).rsqrt()
    return (out * part.weight + part.bias if part.affine else out).to(x.dtype)


class _Sum(torch.autograd.Function):
    """The sum over processes; a share's gradient is the sum of those that all have of the sum."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group) -> Tensor:  # noqa: ANN401 - torch's own
        ctx.group = group
        return group.sum(value.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return ctx.group.sum(grads[0].clone()), None


def _random_states() -> list[Tensor]:
    gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if gpu else [])]
