"""Roofline of a training step: operations, bytes, lower bound and remaining time."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from gtpool.bench.networks import TimedNetwork, load_batch, prepare_network
from gtpool.bench.paper_speed import BASELINES, models
from gtpool.bench.settings import BenchJob, BenchSettings
from gtpool.bench.timing import Row, measure, measure_stages
from gtpool.graph import PackedBatch
from gtpool.model.classifier import Classifier
from gtpool.spec import ModelSpec, ShapeSpec
from gtpool.study.inputs import shape_of

_FLOAT, _INT = 4, 8  # bytes of a value and of an index
_ADAM_OPERATIONS, _ADAM_PASSES = 15, 10


class StepWork(NamedTuple):
    """Minimum work of a training step."""

    operations: float
    """Additions and multiplications of float32."""
    bytes: float
    """Bytes read from and written to memory."""


def roofline_jobs(settings: BenchSettings) -> list[BenchJob]:
    """Return the job: the training step of GTPool-V on the first dataset."""
    name = settings.sets[0]
    work = 10 + 2 * settings.seconds
    return [BenchJob("roofline", f"{name}, roofline", work, partial(_roofline, name, settings))]


def count_work(spec: ModelSpec, shape: ShapeSpec, graphs: PackedBatch, parameters: int) -> StepWork:
    r"""Return the minimum work of a training step of GTPool with GCN layers and mean-max read-outs.

    Operations of a level with N nodes, K kept, E edges and graphs of n nodes, k kept:

    - products with weights, 2 N D_in D for the convolution, 6 N D² for Q, K and V, 4 K D F for the
      feed-forward part: once forward, twice backward (for the input and for the weights);
    - messages 2 (E + N) D, once each way; scores on edges 2 E D, forward alone;
    - attention 4 D Σ n², and backward, for the kept rows alone, five products of 2 D Σ k n.

    Bytes: every activation between two products is written and read in the forward pass and read in
    the backward pass, and its gradient is written and read: five passes. Gathers along edges are
    assumed to hit the cache, so edges count only by their indices. Parameters are read twice; with
    their gradients and Adam's two moments there are ten passes. Attention weights stay in cache.

    The number of edges between kept nodes is estimated as the squared share of kept nodes.

    Args:
        spec: The network.
        shape: Sizes fixed by the data.
        graphs: The batch, with layouts for the network's ratios.
        parameters: Number of parameters of the network.
    """
    width, hidden = spec.width, spec.pool_options.get("ffn_channels") or 2 * spec.width
    enter_width = width if shape.node_categories else shape.node_width
    operations = moved = 0.0
    edges = float(graphs.edge_index.size(1))
    for before, after in zip(graphs.levels, graphs.levels[1:], strict=False):
        size, kept = before.sizes.double(), after.sizes.double()
        nodes, rows = float(size.sum()), float(kept.sum())
        weights = 2 * nodes * enter_width * width + 6 * nodes * width**2 + 4 * rows * width * hidden
        attended = 4 * float(size @ size) + 10 * float(kept @ size)
        operations += (
            3 * weights + attended * width + 4 * (edges + nodes) * width + 2 * edges * width
        )
        values = nodes * (enter_width + 6 * width) + rows * (3 * width + hidden)
        moved += 5 * _FLOAT * values + 3 * 2 * _INT * edges
        edges, enter_width = edges * (rows / nodes) ** 2, width
    head = 2 * width * width + width * width // 2 + width // 2 * shape.outputs
    operations += 6 * graphs.num_graphs * head + _ADAM_OPERATIONS * parameters
    moved += 5 * _FLOAT * graphs.num_graphs * 4 * width + _ADAM_PASSES * _FLOAT * parameters
    return StepWork(operations, moved)


def _roofline(name: str, settings: BenchSettings) -> Iterable[Row]:
    known: Row = {"device": settings.device.type, "dataset": name, "width": settings.width}
    found = load_batch(name, settings)
    if found is None:
        yield known | {"missing": f"not on this machine: gtpool data get {name}"}
        return
    data, index = found
    shape, spec = shape_of(data), ModelSpec(width=settings.width)
    ratios = Classifier(spec, shape).ratios
    rate, bandwidth = measure_peak_rates(settings.device, seconds=min(0.5, settings.seconds))
    ours = [name for name in models(settings.device.type) if name not in BASELINES]
    for model in ours:
        entry = prepare_network(model, data, index, settings.width, whole=True)
        row = known | {"model": model, "batch": index.numel()}
        if isinstance(entry, str):
            yield row | {"missing": entry}
            continue
        work = count_work(spec, shape, data.take(index, ratios), entry.parameters)
        yield row | _floor_fields(work, rate, bandwidth) | _profile_step(entry, settings)


def measure_peak_rates(device: torch.device, *, seconds: float = 0.5) -> tuple[float, float]:
    """Return the measured float32 operations per second of a matrix product and bytes of a copy."""
    gpu = device.type == "cuda"
    side, length = (8192, 2**28) if gpu else (1024, 2**24)
    a = torch.randn(side, side, device=device)
    source = torch.randn(length, device=device)
    target = torch.empty_like(source)
    taken = measure(
        {"product": partial(torch.mm, a, a), "copy": partial(target.copy_, source)}, seconds=seconds
    )
    return 2 * side**3 / taken["product"], 2 * _FLOAT * length / taken["copy"]


def _floor_fields(work: StepWork, rate: float, bandwidth: float) -> Row:
    compute, memory = 1e3 * work.operations / rate, 1e3 * work.bytes / bandwidth
    return {
        "operations": round(work.operations),
        "bytes": round(work.bytes),
        "gflops": round(rate / 1e9, 1),
        "gb_per_s": round(bandwidth / 1e9, 1),
        "compute_ms": round(compute, 4),
        "memory_ms": round(memory, 4),
        "floor_ms": round(max(compute, memory), 4),
    }


def _profile_step(entry: TimedNetwork, settings: BenchSettings) -> Row:
    """Measure the step, then profile it: kernels on a GPU, operators on a CPU."""
    stages = {"step": entry.stages}
    (taken,) = measure_stages(stages, seconds=settings.seconds, rounds=settings.rounds)["step"]
    kernels = _kernels(entry.stages[0], settings.device)
    total = sum(ms for ms, _ in kernels.values())
    longest = sorted(kernels.items(), key=lambda item: -item[1][0])[:5]
    return {
        "step_ms": round(1e3 * taken.median, 3),
        "step_std": round(1e3 * taken.std, 3),
        "kernels": sum(calls for _, calls in kernels.values()),
        "kernels_ms": round(total, 3),
        "longest": [[name, round(ms, 3), calls] for name, (ms, calls) in longest],
    }


def _kernels(call: Callable[[], object], device: torch.device) -> dict[str, tuple[float, int]]:
    """Return milliseconds and number of calls of each kernel or operator."""
    gpu = device.type == "cuda"
    activities = [ProfilerActivity.CUDA] if gpu else [ProfilerActivity.CPU]
    with profile(activities=activities, acc_events=True) as seen:
        call()
        if gpu:
            torch.cuda.synchronize()
    found: dict[str, tuple[float, int]] = {}
    for event in seen.key_averages():
        spent = event.self_device_time_total if gpu else event.self_cpu_time_total
        if spent > 0:
            ms, calls = found.get(event.key, (0.0, 0))
            found[event.key] = ms + spent / 1e3, calls + event.count
    return found
