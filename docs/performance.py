"""Print docs/performance-tables.md, made from results/bench/*.jsonl; a test compares.

`make performance` makes it anew, and then the tables of docs/performance.md by docs/tables.py.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import kernel_tables

from gtpool.bench.bench_tables import BENCH_TABLES, MISSING, Row, device_name, evidence, newest_rows
from gtpool.bench.paper_speed import BASELINES, CAPTURED, EAGER, OURS, REFERENCE
from gtpool.bench.paper_speed import SPEED as PUBLISHED

RESULTS = Path(__file__).parent.parent / "results" / "bench"
TEXT = {
    "",
    "dataset",
    "encoding",
    "network",
    "loop",
    "method",
    "layer",
    "case",
    "back-end",
    "sampler",
    "command",
    "attention",
    "precision",
    "of",
    "machine",
    "sizing",
}
"""Headings of words; under the others stand numbers."""
INTRO = """\
# Performance: all tables

The measurements behind the short page on [performance](performance.md). `make performance` makes
this page from `results/bench/`: the newest row of each case and machine.

Each ratio is between two things measured in the same run on the same machine, in turns. What was
not measured is shown as missing.
"""
SPEED = """\
## PyG's layers and GTPool-V

Time of SAGPool_h in milliseconds, and how many times as fast the others are, on batches of 128
graphs that are on the device already. In each round every network has one turn. "Published" is the
paper's own speed-up of GTPool-V, on an RTX 2080 Ti.

The rivals are PyG's own layers: three GCN layers with the pooler after each, ratio 0.5, maximum and
mean read-outs added up. GMT reads out once after the third layer. A captured step and a whole step
include clipping and Adam; the others are forward and backward alone. `gtpool bench` shows widths,
parameters, both passes and their spread.
"""
WORDS = {
    "scalability": """\
## The paper's scalability table

Time and peak memory of forward and backward on Erdős–Rényi graphs. The paper gives neither width
nor number of graphs; here width is 128, with one graph on a CPU and eight on a GPU, of which 11 GB
are used, the memory of the paper's card.

On a CPU, memory is what the passes add to the peak of their own process. On a GPU it is all
allocated memory. A case at least as large as a failed one is not run.
""",
    "roofline": """\
## Roofline

The training step of GTPool-V on PROTEINS. `gtpool.bench.roofline.count_work` counts operations and
bytes from the sizes of the batch. The floor is the longer of two times: operations at the rate of a
large matrix product, and bytes at the rate of a large copy. Both rates are measured in the same
run.
""",
}
KERNELS = {
    "before_and_after": """\
## The captured step, before and after

A training step on PROTEINS with 128 graphs a run, replayed as one CUDA graph (`bench/kernels.py`):
before most of torch's small kernels were replaced by fused ones in Triton, and after. A dash stands
for what was not measured.
""",
    "parts": """\
## What the captured step is made of

Milliseconds in which the kernels of these steps are busy, in float32. The name of a kernel gives
its kind. Before, torch did parts of norms, dropout, gradients of scores and Adam by elementwise
kernels.
""",
    "products": """\
## Products in Triton

Triton kernels with `input_precision="tf32x3"`, which is nearly float32, were slower on these shapes
than cuBLAS in float32, so they were dropped. Of four tiles the fastest is shown; errors are
relative to float64.
""",
}
"""Tables of kernel_tables.py, and what is said of them."""


class Brief(NamedTuple):
    """A table of what the scripts in bench/ measure."""

    file: str
    title: str
    keys: tuple[str, ...]
    """What makes two rows the same case."""
    columns: dict[str, str]
    """Keys of a row and their headings."""
    only: dict[str, tuple[object, ...]] = {}  # noqa: RUF012 - never written
    """Values of the rows that are shown, by key; all values of keys that are not there."""


BRIEFS = (
    Brief(
        "crossval",
        "Many runs of GTPool-V in one program, full protocol",
        ("dataset", "runs"),
        {
            "dataset": "dataset",
            "runs": "runs",
            "wall_s": "seconds for all",
            "mean_epochs": "epochs a run",
            "stacked_per_hour": "runs an hour, side by side",
            "captured_per_hour": "one by one, captured",
            "eager_per_hour": "one by one, eager",
        },
    ),
    Brief(
        "precision",
        "bf16 beside float32 and linear attention beside exact, GTPool-V",
        ("dataset", "attention", "precision"),
        {
            "dataset": "dataset",
            "attention": "attention",
            "precision": "precision",
            "runs": "runs",
            "accuracy": "accuracy, %",
            "deviation": "deviation",
            "of": "of",
        },
    ),
    Brief(
        "epoch",
        "An epoch of training, one thread",
        ("dataset", "network", "loop"),
        {
            "dataset": "dataset",
            "network": "network",
            "loop": "loop",
            "parameters": "parameters",
            "epoch_ms": "ms",
            "to_pyg": "time to PyG's",
        },
    ),
    Brief(
        "methods",
        "Every method, forward and backward of one batch, one thread",
        ("dataset", "method"),
        {
            "dataset": "dataset",
            "method": "method",
            "parameters": "parameters",
            "forward_ms": "forward, ms",
            "backward_ms": "backward, ms",
            "to_sagpool_h": "time to ours of sagpool_h",
            "peak_mb": "peak, MB",
        },
    ),
    Brief(
        "layers",
        "One pooling layer, ours and PyG's, forward and backward",
        ("dataset", "layer"),
        {"dataset": "dataset", "layer": "layer", "ours_ms": "ours, ms", "pyg_ms": "PyG, ms"},
    ),
    Brief(
        "attention",
        "Attention back-ends, forward and backward",
        ("case", "heads", "backend"),
        {"case": "case", "heads": "heads", "backend": "back-end", "ms": "ms", "mb": "MB"},
        {"backend": ("reference", "auto")},
    ),
    Brief(
        "sample",
        "Samplers",
        ("case", "sampler"),
        {
            "case": "case",
            "sampler": "sampler",
            "ms": "ms",
            "times_faster_than_pyg_topk": "times faster than PyG's top-k",
        },
        {"sampler": ("PyG topk", "topk", "rws", "rwsv", "rws, score order")},
    ),
    Brief(
        "take",
        "Batches by `take` and by PyG's DataLoader",
        ("dataset", "threads"),
        {
            "dataset": "dataset",
            "threads": "threads",
            "take_ms": "take, ms a batch",
            "pyg_ms": "PyG, ms a batch",
            "ratio": "PyG / take",
        },
    ),
    Brief(
        "take",
        "A packed dataset in memory, and PyG's graphs",
        ("dataset",),
        {
            "dataset": "dataset",
            "packed_mb": "packed, MB",
            "pyg_mb": "PyG, MB",
            "share": "packed / PyG",
        },
    ),
    Brief(
        "encodings",
        "Structural encodings of whole datasets and of one large graph, one thread",
        ("dataset", "encode"),
        {
            "dataset": "dataset",
            "encode": "encoding",
            "graphs": "graphs",
            "cpu_seconds": "processor seconds",
            "peak_mb": "peak, MB",
        },
        {"dataset": ("PROTEINS", "ogbg-molhiv", "random graph, 100,000 nodes, mean degree 4")},
    ),
    Brief(
        "predict",
        "`gtpool predict` on a long table, a process a core, GTPool-V of width 128",
        ("molecules", "processes"),
        {
            "molecules": "molecules",
            "processes": "processes",
            "cpu_seconds": "CPU seconds",
            "per_cpu_second": "molecules a CPU second",
            "read_per_cpu_second": "SMILES to graphs alone",
            "rdkit_per_cpu_second": "RDKit's calls alone",
            "peak_mb": "peak of all processes, MB",
        },
    ),
    Brief("start", "Start of the program", ("command",), {"command": "command", "ms": "ms"}),
)


def page(folder: Path = RESULTS) -> str:
    """Give the page in Markdown."""
    parts = [INTRO, SPEED, *_speed(folder)]
    for what, words in WORDS.items():
        parts.append(words)
        rows = [
            row for row in _read(folder, what) if row["device"] != "cuda" or row.get("cap_gb", 1)
        ]
        for sheet in BENCH_TABLES[what](rows, full=True):
            if sheet.rows:
                parts += [f"### {sheet.title}", _table(sheet.headings, sheet.lines)]
                parts.append(evidence(sheet.rows))
    for name, words in KERNELS.items():
        parts += [words, getattr(kernel_tables, name)(folder)]
    parts.append("## Parts")
    for brief in BRIEFS:
        parts += _brief(folder, brief)
    return "\n\n".join(part.strip() for part in parts) + "\n"


def summary(folder: Path = RESULTS) -> str:
    """Give the table of training steps in short: PyG's SAGPool_h beside GTPool-V."""
    heads = ("machine", "dataset", "PyG's SAGPool_h, ms", "GTPool-V, eager", "GTPool-V, captured")
    rows = [{**row, "machine": device_name(row)} for row in _read(folder, "step")]
    found = newest_rows(rows, "machine", "dataset", "model")
    places = dict.fromkeys((row["machine"], row["dataset"]) for row in rows)
    shown = (("SAGPool_h",), ("GTPool-V (eager)", "GTPool-V"), ("GTPool-V (captured)",))
    lines: list[list[str]] = []
    for place in places:
        cells = [
            [found[*place, name] for name in names if (*place, name) in found] for names in shown
        ]
        lines.append([*place, *(_step(cell[0]) if cell else "–" for cell in cells)])
    return _table(heads, sorted(lines))


def large(folder: Path = RESULTS) -> str:
    """Give the table of one large graph in short: float32, and the usual number of heads."""
    shown = {("float32", "exact", 1), ("float32", "linear", 4)}
    rows = [
        {**row, "machine": device_name(row), "s": round(row["forward_s"] + row["backward_s"], 3)}
        for row in _read(folder, "large")
        if (row["precision"], row["attention"], row["heads"]) in shown
    ]
    found = list(newest_rows(rows, "machine", "attention", "nodes").values())
    heads = {"machine": "machine", "attention": "attention", "nodes": "nodes", "s": "seconds"}
    heads |= {"peak_mb": "peak, MB", "time_exponent": "time ~ nodes to the"}
    heads |= {"memory_exponent": "memory ~ nodes to the"}
    lines = [[_cell(row[key]) for key in heads] for row in found]
    return f"{_table(tuple(heads.values()), lines)}\n\n{evidence(found)}"


def part(file: str, folder: Path = RESULTS) -> str:
    """Give the table of one of the scripts in bench/, without its heading."""
    brief = next(one for one in BRIEFS if one.file == file)
    return "\n\n".join(_brief(folder, brief)[1:])


def _step(row: Row) -> str:
    return f"{row['step_ms']:.1f} ± {row['step_std']:.1f}"


def _speed(folder: Path) -> list[str]:
    """Give the table of speed-ups over SAGPool_h, a line for each machine, sizing and dataset."""
    rows = [*_read(folder, "speed")]
    rows += [{**row, "sizing": "equal width, whole step"} for row in _read(folder, "step")]
    rows = [{**row, "machine": device_name(row)} for row in rows]
    found = newest_rows(rows, "machine", "sizing", "dataset", "model")
    rivals = BASELINES[1:]
    heads = (
        "machine",
        "sizing",
        "dataset",
        "SAGPool_h, ms",
        *rivals,
        OURS,
        "captured",
        "published",
    )
    lines: list[list[str]] = []
    for place in sorted({key[:3] for key in found}):
        first = found.get((*place, REFERENCE))
        ours = found.get((*place, OURS), found.get((*place, EAGER)))
        others = [found.get((*place, name)) for name in rivals]
        cells = [_times(row) for row in (*others, ours, found.get((*place, CAPTURED)))]
        told = PUBLISHED.get((place[2], OURS))
        whole = MISSING if first is None else f"{first['total_ms']:.1f}"
        lines.append([*place, whole, *cells, "–" if told is None else f"{told.speedup:.2f}×"])
    return [_table(heads, lines), evidence(list(found.values()))]


def _times(row: Row | None) -> str:
    if row is None:
        return "–"
    return str(row[MISSING]) if MISSING in row else f"{row['speedup']:.2f}×"


def _brief(folder: Path, brief: Brief) -> list[str]:
    rows = [row for row in _read(folder, brief.file) if set(brief.columns) <= set(row)]
    rows = [row for row in rows if all(row[key] in some for key, some in brief.only.items())]
    rows = [{**row, "machine": device_name(row)} for row in rows]
    found = list(newest_rows(rows, "machine", *brief.keys).values())
    lines = [[_cell(row[key]) for key in brief.columns] for row in found]
    table = _table(tuple(brief.columns.values()), lines) if lines else f"{MISSING}."
    return [f"### {brief.title}", table, evidence(found)]


def _read(folder: Path, name: str) -> list[Row]:
    path = folder / f"{name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [headings, ["---" if head in TEXT else "--:" for head in headings], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


if __name__ == "__main__":
    sys.stdout.write(page(*map(Path, sys.argv[1:])))
