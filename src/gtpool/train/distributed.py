"""Data-parallel training: each process trains on a share of every batch.

``torchrun`` starts the processes. All of them load all graphs, shuffle in the same order and take
the same steps. Each process takes a contiguous share of the graphs of a batch. Only sums are
exchanged:

- The loss of a batch is a weighted sum over its graphs, divided by the total weight of the batch.
  The gradients of the shares therefore add up: one all-reduce of a flat vector per step, then
  clipping.
- Batch norm sums over the nodes of all shares. Dropout masks depend on the key and the row in the
  whole batch, so a graph gets the same mask in any process.
- Logits of held-out graphs are gathered. The metrics of the first process decide for all.

Results equal those of one process up to the order of floating-point sums.
``DistributedDataParallel`` is not used: it averages over processes, which changes the loss if
labels are missing or shares are unequal. Only the first process writes files and prints.
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

from gtpool.nn import relu_add
from gtpool.ops.backend import RowLayout
from gtpool.ops.dropout import STRIDE, HasModules, KeyedModule
from gtpool.train.epoch import TrainingError

_TIMEOUT = timedelta(hours=1)
"""Timeout of a collective; other processes wait while the first prepares the data."""


class Group(NamedTuple):
    """The processes that train together; with a size of 1 no method communicates.

    Example:
        >>> [Group(rank, 2).share(torch.arange(5)).tolist() for rank in range(2)]
        [[0, 1, 2], [3, 4]]
    """

    rank: int = 0
    """Index of this process."""
    size: int = 1

    def share(self, indices: Tensor) -> Tensor:
        """Return this process's share, which may be empty; earlier processes get one more."""
        return indices.tensor_split(self.size)[self.rank]

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of ``value`` over all processes, computed in place."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def gather(self, rows: Sequence[Tensor], whole: Tensor) -> Tensor:
        """Return ``whole``, given as zeros, with the rows of every process's ``share`` filled."""
        if rows:
            own = self.share(torch.arange(whole.size(0), device=whole.device))
            whole[own] = torch.cat(list(rows)).to(whole.dtype)
        return self.sum(whole)

    def broadcast_floats(self, values: Sequence[float]) -> list[float]:
        """Return the values of the first process."""
        told = torch.tensor(values, dtype=torch.double)
        return self.sum(told if self.rank == 0 else torch.zeros_like(told)).tolist()

    def sum_gradients(self, weights: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        """Return the sum of the losses of all processes; sum their gradients in place."""
        if self.size == 1:
            return loss
        grads = [torch.zeros_like(part) if part.grad is None else part.grad for part in weights]
        flat = self.sum(torch.cat([loss.view(1), *(grad.flatten() for grad in grads)]))
        loss, *parts = flat.split([1, *(grad.numel() for grad in grads)])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.view_as(weight)
        return loss.squeeze(0)

    def check_gradients(self, weights: dict[str, nn.Parameter]) -> None:
        """Raise a ValueError if a weight has no gradient in any process after a backward pass."""
        if self.size == 1:
            return
        device = next(iter(weights.values())).device
        got = [part.grad is not None for part in weights.values()]
        used = self.sum(torch.tensor(got, dtype=torch.long, device=device)).tolist()
        idle = [name for name, count in zip(weights, used, strict=True) if count == 0]
        if idle:
            raise ValueError(
                f"the loss does not depend on {', '.join(idle)}; to train in several processes, "
                "remove unused parameters from the network or set requires_grad to False"
            )

    def check_same(self, values: Sequence[object]) -> None:
        """Raise a ValueError unless all processes have the same values."""
        self.broadcast(list(values))
        if self.rank > 0 and self.receive() != list(values):
            raise ValueError(f"{self} has other data than process 0; give all the same files")

    @contextmanager
    def failing_together(self) -> Generator[None]:
        """Turn errors of torch into a failed run, or end all processes if there are several.

        The other processes do not see the error, so none of them may go on to the next run.
        """
        try:
            yield
        except TrainingError:
            raise  # raised by all processes, whose losses are the same
        except (RuntimeError, MemoryError) as error:
            said = str(error) or type(error).__name__
            if self.size == 1:
                raise TrainingError(said) from error
            raise ConnectionError(
                f"{self} failed and all processes stop; finished runs are kept: {said}"
            ) from error

    def broadcast(self, what: object) -> None:
        """Send an object from the first process to the others, which call ``receive``."""
        if self.size > 1 and self.rank == 0:
            with self.failing_together():
                dist.broadcast_object_list([what], device=torch.device("cpu"))

    def receive(self) -> Any:  # noqa: ANN401 - any object
        """Return the object that the first process broadcasts; wait for it."""
        told = [None]
        dist.broadcast_object_list(told, device=torch.device("cpu"))
        return told[0]

    def close(self) -> None:
        """Leave the group; the first process broadcasts None to end the others."""
        self.broadcast(None)
        if self.size > 1:
            dist.destroy_process_group()

    def device_for(self, device: torch.device) -> torch.device:
        """Return the device of this process: its own GPU if ``device`` is a GPU."""
        if self.size == 1 or device.type != "cuda":
            return device
        local, count = int(os.environ.get("LOCAL_RANK", self.rank)), torch.cuda.device_count()
        if local >= count:
            raise ValueError(
                f"{self} has no GPU of its own: this machine has {count}; start at most one "
                "process per GPU, or choose --device cpu"
            )
        return torch.device("cuda", local)

    def __str__(self) -> str:
        return f"process {self.rank} of {self.size}"


SINGLE_PROCESS = Group()


def init_group() -> Group:
    """Return the group of processes started by ``torchrun``, from its environment variables."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT)
    return current_group()


def current_group() -> Group:
    """Return the group that this process has joined, or a group of one."""
    if dist.is_available() and dist.is_initialized():
        return Group(dist.get_rank(), dist.get_world_size())
    return Group()


@contextmanager
def synchronized_layers(model: HasModules, group: Group, *, counts: bool) -> Generator[None]:
    """Make batch norm and dropout treat the shares of all processes as one batch.

    Args:
        model: The model in training mode, with keys set; random numbers without a key are an error.
        group: The processes that run the model, each on its share.
        counts: Whether the graphs of this process belong to the batch.
    """
    if group.size == 1:
        yield
        return
    kinds = (KeyedModule, nn.BatchNorm1d)
    found = (part for part in model.modules() if part.training and isinstance(part, kinds))
    layers = [part for part in found if getattr(part, "p", 1) > 0]  # dropout with p=0 draws nothing
    for part in layers:
        way = _draw if isinstance(part, KeyedModule) else partial(_normalize, counts=counts)
        part.forward = partial(way, part, group)
    before = _random_states()
    try:
        yield
    finally:
        for part in layers:
            del part.forward  # restores the method of the class
    if any(not old.equal(new) for old, new in zip(before, _random_states(), strict=True)):
        raise ValueError(
            "the network draws random numbers without a key (for example asap's dropout), "
            "which differ between processes; turn that off, or train in one process"
        )


def _draw(part: KeyedModule, group: Group, value: Tensor | RowLayout, *more: Tensor) -> Tensor:
    """Run a keyed module with its key advanced by ``STRIDE`` per row of earlier processes."""
    key = part.key
    if key is None:
        raise ValueError("random numbers in several processes need a key: call set_keys")
    drawn = value.numel() if isinstance(value, Tensor) else value.num_rows
    counts = torch.zeros(group.size, dtype=torch.long, device=key.device)
    counts[group.rank] = drawn
    part.key = key + group.sum(counts)[: group.rank].sum() * STRIDE
    try:
        return type(part).forward(part, value, *more)
    finally:
        part.key = key


def _normalize(
    part: nn.BatchNorm1d,
    group: Group,
    x: Tensor,
    rows: object = None,
    *,
    counts: bool,
    relu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """Return ``BatchNorm.forward`` in training mode over the rows of all processes, [N, D]."""
    del rows  # a packed batch has no padding
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
    out = out * part.weight + part.bias if part.affine else out
    return relu_add(out.to(x.dtype), residual, relu=relu)


class _Sum(torch.autograd.Function):
    """Sum over processes; the backward pass sums the gradients over processes."""

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
