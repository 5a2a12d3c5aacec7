"""Measure how time and memory grow with the nodes of one graph and with the graphs of a set.

Each size has a process of its own. One graph is a random graph of mean degree 4 with 2 features,
written as a JSON line; a set is a table of random molecules (chains of rings and atoms, 22 atoms in
the mean). Steps: reading the file, encodings (cycles), packing PyG's graphs, standardising
features, a training epoch and predicting all. The network is
GTPool-V of width 32 with linear attention, since exact attention is quadratic. Time is CPU seconds;
memory is the peak above what was there before the step. The exponents are least squares on the
logarithms of the sizes whose step took at least 50 ms, or grew by 5 MB.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from math import log
from pathlib import Path
from random import Random
from statistics import linear_regression
from tempfile import TemporaryDirectory
from typing import Any

import torch

from gtpool.bench.timing import print_table, record
from gtpool.data.dataset import GraphDataset
from gtpool.data.encodings import with_encodings
from gtpool.data.sources import load
from gtpool.data.split import Split
from gtpool.model.classifier import Classifier
from gtpool.spec import ModelSpec, TrainSpec
from gtpool.study.inputs import shape_of
from gtpool.train.fit import fit, predict_members

SIZES = {"nodes": (10**3, 10**4, 10**5, 10**6), "graphs": (10**3, 10**4, 10**5)}
MOST_ENCODED = 10**5
"""Nodes of one graph: the cycles of a million would take 8 GB."""
LEAST_SECONDS, LEAST_MB = 0.05, 5
PIECES = ("C", "N", "O", "C(=O)", "C(C)", "c1ccc(cc1)", "C1CCN(CC1)")
Row = dict[str, Any]


def main() -> None:
    """Measure, print a table, append the rows to results/bench/exponents.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--axis", choices=[*SIZES], action="append", help="both by default")
    parser.add_argument("--sizes", type=int, nargs="+", help="other sizes")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu", help="where to train and predict")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(_steps(given.axis[0], given.one, given.device)))
        return
    rows: list[Row] = []
    for axis in given.axis or SIZES:
        sizes = given.sizes or SIZES[axis]
        measured = {size: _process(axis, size, given.device) for size in sizes}
        for step in measured[sizes[0]]:
            rows += _rows(
                axis, step, {size: steps[step] for size, steps in measured.items() if step in steps}
            )
    print_table([*rows[0]], [list(row.values()) for row in rows])
    record("exponents", rows)


def _process(axis: str, size: int, device: str) -> dict[str, tuple[float, float]]:
    words = ["--axis", axis, "--one", str(size), "--device", device]
    run = [sys.executable, __file__, *words]
    return json.loads(subprocess.run(run, check=True, stdout=subprocess.PIPE).stdout)


def _rows(axis: str, step: str, measured: dict[int, tuple[float, float]]) -> list[Row]:
    seconds = {size: took for size, (took, _) in measured.items() if took >= LEAST_SECONDS}
    memory = {size: grew for size, (_, grew) in measured.items() if grew >= LEAST_MB}
    fitted = {"time_exponent": _exponent(seconds), "memory_exponent": _exponent(memory)}
    load = round(os.getloadavg()[0], 1)
    return [
        {
            "axis": axis,
            "step": step,
            "size": size,
            "seconds": round(took, 3),
            "mb": round(grew, 1),
            **fitted,
            "load": load,
        }
        for size, (took, grew) in measured.items()
    ]


def _exponent(values: dict[int, float]) -> float | None:
    if len(values) < 2:
        return None
    found = linear_regression([*map(log, values)], [*map(log, values.values())])
    return round(found.slope, 2)


def _steps(axis: str, size: int, device: str) -> dict[str, tuple[float, float]]:
    """Return the CPU seconds and megabytes of each step."""
    torch.set_num_threads(1)
    _measure(axis, 100, device)  # imports and first calls
    return _measure(axis, size, device)


def _measure(axis: str, size: int, device: str) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}

    def timed(step: str, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before, begin = _memory("VmRSS"), time.process_time()
        value = work()
        found[step] = time.process_time() - begin, _memory("VmHWM") - before
        return value

    with TemporaryDirectory() as folder:
        path = Path(folder) / ("made.jsonl" if axis == "nodes" else "made.csv")
        (_write_graph if axis == "nodes" else _write_table)(path, size)
        data = timed("read", lambda: load(str(path)))
    if axis == "graphs" or size <= MOST_ENCODED:
        timed("encode (cycles)", lambda: with_encodings(data, ("cycles",)))
    graphs = data.to_pyg()
    timed("pack", lambda: GraphDataset.from_pyg(graphs, data.schema))
    everyone = torch.arange(len(data))
    data = timed("standardise", lambda: data.standardized(everyone)).to(device)
    torch.manual_seed(0)
    options = {"attention": "linear"}
    model = Classifier(ModelSpec(width=32, pool_options=options), shape_of(data)).to(device)
    split = Split(everyone[2:], everyone[:1], everyone[1:2], "bench", len(data))
    timed("train an epoch", lambda: list(fit(model, data, split, TrainSpec(epochs=1), seed=0)))
    with torch.no_grad():
        timed("predict", lambda: predict_members(model, data, everyone))
    return found


def _write_graph(path: Path, nodes: int) -> None:
    """Write three graphs, since a split has three parts; two are of three nodes."""
    random = torch.Generator().manual_seed(nodes)
    with path.open("w", encoding="utf-8") as file:
        for count, label in ((3, 0), (3, 1), (nodes, 0)):
            ends = torch.randint(count, (2 * count, 2), generator=random)
            values = torch.randn(count, 2, generator=random).mul(100).round().div(100)
            graph = {"nodes": count, "edges": ends.tolist(), "undirected": True}
            graph |= {"node_features": values.tolist(), "label": label}
            file.write(json.dumps(graph) + "\n")


def _write_table(path: Path, molecules: int) -> None:
    draw = Random(molecules)  # noqa: S311
    with path.open("w", encoding="utf-8") as file:
        file.write("smiles,y\n")
        for number in range(molecules):
            file.write(f"{_molecule(draw)},{number % 2}\n")


def _molecule(draw: Random) -> str:
    return "C" + "".join(draw.choices(PIECES, k=draw.randint(2, 12))) + "C"


def _memory(what: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


if __name__ == "__main__":
    main()
