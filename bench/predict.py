"""Run `gtpool predict` on long tables: molecules a second, CPU seconds and memory.

The molecules of ogbg-molhiv are repeated in a random order. The network is GTPool-V of width 128
without training, since its weights do not change the time. RDKit's own time for the same molecules
is measured in the same run: two times reading and one time writing a SMILES, as the canonical order
of atoms needs, without their features.
"""

import csv
import gzip
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from proc import children, read
from rdkit import Chem
from rdkit.rdBase import BlockLogs

from gtpool.bench.timing import print_table, record
from gtpool.data.formats.table import read_table
from gtpool.data.locate import find_raw
from gtpool.data.molecule import read_molecules
from gtpool.data.parallel import usable_cores
from gtpool.model.bundle import save_bundle
from gtpool.model.classifier import Classifier
from gtpool.spec import ModelSpec
from gtpool.study.inputs import shape_of

SIZES = (20_000, 40_000)
SAMPLE = 3_000
Row = dict[str, object]


def main() -> None:
    """Measure, print a table, append the rows to results/bench/predict.jsonl."""
    sizes = [int(size) for size in sys.argv[1:]] or SIZES
    torch.set_num_threads(1)
    with gzip.open(find_raw("ogbg-molhiv", None) / "mapping/mol.csv.gz", "rt") as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)]
    order = torch.randperm(len(smiles), generator=torch.Generator().manual_seed(0))
    smiles = [smiles[at] for at in order.tolist()]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_model(folder, smiles[:100])
        rows = [_row(folder, smiles, size) for size in sizes]
    keys = list(rows[0])
    print_table(keys, [[row[key] for key in keys] for row in rows])
    record("predict", rows)


def save_model(folder: Path, smiles: Sequence[str]) -> None:
    """Save the network of this bench under ``folder / "model"``."""
    lines = (f"{text},{number % 2}\n" for number, text in enumerate(smiles))
    (folder / "train.csv").write_text("smiles,y\n" + "".join(lines))
    data = read_table(folder / "train.csv").dataset
    torch.manual_seed(0)
    model = Classifier(ModelSpec(), shape_of(data)).eval()
    save_bundle(folder / "model", model, {"schema": data.schema.to_json()})


def _row(folder: Path, smiles: Sequence[str], size: int) -> Row:
    table = folder / f"{size}.csv"
    lines = (f"{smiles[number % len(smiles)]},{number}\n" for number in range(size))
    table.write_text("smiles,name\n" + "".join(lines))
    bare, read = _rdkit_rate(smiles[:SAMPLE]), _read_rate(smiles[:SAMPLE])
    wall, cpu, peak = _run(folder, table)
    again = _rdkit_rate(smiles[:SAMPLE])
    return {
        "molecules": size,
        "processes": usable_cores(),
        "seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "per_cpu_second": round(size / cpu),
        "rdkit_per_cpu_second": round((bare + again) / 2),
        "read_per_cpu_second": round(read),
        "peak_mb": round(peak / 2**20),
        "load": round(os.getloadavg()[0], 1),
    }


def _rdkit_rate(smiles: Sequence[str]) -> float:
    """Return molecules per CPU second of RDKit's calls alone."""
    begin = time.process_time()
    with BlockLogs():
        for text in smiles:
            molecule = Chem.MolFromSmiles(text)
            if molecule is not None:
                Chem.MolFromSmiles(Chem.MolToSmiles(molecule))
    return len(smiles) / (time.process_time() - begin)


def _read_rate(smiles: Sequence[str]) -> float:
    begin = time.process_time()
    read_molecules(smiles)
    return len(smiles) / (time.process_time() - begin)


def _run(folder: Path, table: Path) -> tuple[float, float, float]:
    """Return seconds, CPU seconds and peak bytes of the command with its worker processes.

    Memory is the proportional set size: pages that processes share count once.
    """
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "gtpool", "predict", folder / "model", table]
    running = subprocess.Popen([*command, "-o", folder / "out.csv"], stderr=subprocess.DEVNULL)
    peak = 0
    while running.poll() is None:
        peak = max(peak, _memory(running.pid))
        time.sleep(0.5)
    if running.returncode:
        sys.exit("gtpool predict failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begin, cpu, peak


def _memory(process: int) -> int:
    """Return the bytes of a process and of those that it started."""
    found = 0
    with suppress(OSError):  # one has ended meanwhile
        for pid in (process, *children(process)):
            lines = read(pid, "smaps_rollup").decode().splitlines()
            found += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found


if __name__ == "__main__":
    main()
