"""What a captured training step of one network is made of: its kernels, for one run and many.

Run on a GPU: `python bench/kernels.py [DATASET ...]`. Each row has the time of a step, the number
of its kernels, the time they are busy, and this time by kind of kernel. The tables of kernels go to
the folder that the environment variable KERNELS names.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from gtpool.bench.timing import print_table, record
from gtpool.data.device_dataset import DeviceDataset
from gtpool.model.classifier import Classifier
from gtpool.model.ensemble import ModelEnsemble
from gtpool.reproduce.paper import STUDIES
from gtpool.spec import Precision
from gtpool.study.inputs import load_data, shape_of
from gtpool.study.split_rules import choose_split
from gtpool.train.captured import CapturedTrainer

LINES = (("paper", "float32"), ("best", "float32"), ("gcn", "float32"), ("paper", "tf32"))
"""Line of the study "best", and precision."""
RUNS = (1, 5, 30)
HEADINGS = [
    "dataset",
    "recipe",
    "precision",
    "runs",
    "step, ms",
    "a run, ms",
    "kernels",
    "busy, ms",
]

PARTS = {
    "matrix products": r"gemm|cublas",
    "attention, scores": r"^_(for|back)ward$|_scores$|^_(edge_weights|add_heads|theta_grads)$",
    "sampling": r"^_(sample|draw|refine|colours)$",
    "norms": r"layer_norm|GammaBeta|^_(normalize|(block|run)_statistics|\w+_gradients)$",
    "bias, activation, dropout": r"Gelu|activate_tiles|sum_parts|^_(add_blocks|drop|mix)$|_keys$",
    "neighbour sums": r"^_(sum|count|bond_sum|table_grad_kernel)$",
    "read-out": r"^_mean_max",
    "gathering, layouts": r"gather|index(Func|Select|_)|CatArray|Memcpy|^_(gate|compose|check)",
    "loss, optimiser": r"nll_loss|multi_tensor|^_(mean_loss|prepare|update)$",
    "elementwise, sums, sorts by torch": r"elementwise_kernel|reduce_kernel|radix_sort",
}
"""Kinds of kernels: the first pattern found in the name of a kernel is its kind."""


def main() -> None:
    """Measure, print a table, append the rows to results/bench/kernels.jsonl."""
    folder = Path(os.environ.get("KERNELS", "out/kernels"))
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for name in sys.argv[1:] or ["PROTEINS"]:
        for line, precision in LINES:
            for runs in RUNS:
                row, text = _measure(name, line, precision, runs)
                rows.append(row)
                (folder / f"{name}-{line}-{precision}-{runs}.txt").write_text(
                    text, encoding="utf-8"
                )
    keys = ("dataset", "recipe", "precision", "runs", "step_ms", "run_ms", "kernels", "kernels_ms")
    print_table(HEADINGS, [[row[key] for key in keys] for row in rows])
    record("kernels", rows)


def _measure(
    name: str, line: str, precision: Precision, runs: int
) -> tuple[dict[str, object], str]:
    """Return the row of a network and the table of its kernels and operators."""
    (cell,) = STUDIES["best"].only(dataset=name, line=line)
    specs = cell.runs(3)[:runs]
    loaded = load_data(specs[0].data)
    data = loaded.dataset.to(torch.device("cuda"))
    splits = [choose_split(spec.split, loaded) for spec in specs]
    models = [Classifier(spec.model, shape_of(data)).to("cuda") for spec in specs]
    codes = models[0].shape.node_categories, models[0].edge_categories
    trainer = CapturedTrainer(
        ModelEnsemble(models, int(data.sizes.max())),
        DeviceDataset.of(data, *codes),
        data,
        splits,
        [replace(spec.train, precision=precision) for spec in specs],
    )
    random = torch.Generator().manual_seed(0)
    for place, split in enumerate(splits):
        drawn = torch.randperm(split.train.numel(), generator=random)[: trainer.places]
        trainer.order[:, place].copy_(split.train[drawn])
    trainer.adam.set_lr_factor(1.0)

    def step() -> None:
        trainer.step.zero_()
        trainer.train_step()

    taken = _time(step)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as replayed:
        step()
        torch.cuda.synchronize()
    kernels = [event for event in replayed.key_averages() if event.self_device_time_total > 0]
    trainer.ensemble.train()
    trainer.step.zero_()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True, acc_events=True) as eager:
        trainer._train(trainer.capacity)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        torch.cuda.synchronize()
    shaped = {"sort_by": "self_device_time_total", "row_limit": 70, "max_name_column_width": 60}
    text = replayed.key_averages().table(**shaped | {"max_name_column_width": 110})
    text += eager.key_averages(group_by_input_shape=True).table(**shaped)
    row = {
        "device": "cuda",
        "dataset": name,
        "recipe": line,
        "precision": precision,
        "runs": runs,
        "batch": trainer.places,
        "step_ms": round(taken, 3),
        "run_ms": round(taken / runs, 4),
        "kernels": sum(event.count for event in kernels),
        "kernels_ms": round(sum(event.self_device_time_total for event in kernels) / 1e3, 3),
        "parts": parts((event.key, event.self_device_time_total / 1e3) for event in kernels),
    }
    return row, text


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel; "other" if no pattern is found in its name."""
    name = kernel[:107]  # what the profiler's table shows: types follow, which do not count
    return next((kind for kind, names in PARTS.items() if re.search(names, name)), "other")


def parts(kernels: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the milliseconds of each kind of kernel, from those of each kernel."""
    found = dict.fromkeys((*PARTS, "other"), 0.0)
    for name, taken in kernels:
        found[kind_of(name)] += taken
    return {kind: round(taken, 3) for kind, taken in found.items()}


def _time(step: Callable[[], None], seconds: float = 1.0) -> float:
    """Return the median milliseconds of a step."""
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    probe = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    probe[0].record()
    step()
    probe[1].record()
    torch.cuda.synchronize()
    rounds = max(10, min(300, int(1e3 * seconds / probe[0].elapsed_time(probe[1]))))
    for _ in range(rounds):
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        step()
        pair[1].record()
        events.append(pair)
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) for begin, end in events)
    return times[len(times) // 2]


if __name__ == "__main__":
    main()
