"""Load `gtpool serve` on loopback with wrk: one molecule a request, batching on and off.

GTPool-V of width 128 without descriptors or training, as in bench/predict.py, answers 1, 8 and 32 clients that each wait
for an answer before they ask again. wrk (Debian's package) runs on the same cores as the service,
which a row says in ``generator``; ``cpu_ms`` is the CPU time of the service alone. The last rows
have somebody ask for explanations all the while. Every round loads each case once, so that a slow
spell of the machine meets them all; medians over the rounds are told.
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import torch
from predict import save_model

from gtpool.bench.timing import print_table, record
from gtpool.data.locate import EMBEDDED

CLIENTS = (1, 8, 32)
SECONDS, ROUNDS = 5, 5
COLUMNS = (
    "batching",
    "clients",
    "beside",
    "per_second",
    "cpu_ms",
    "p50_ms",
    "p99_ms",
    "pass_graphs",
)
SCRIPT = """
local bodies, at = %s, 0
wrk.method, wrk.headers["Content-Type"] = "POST", "application/json"
request = function()
  at = at %% #bodies + 1
  return wrk.format(nil, nil, nil, bodies[at])
end
done = function(summary, latency)
  local wrong = summary.errors
  print(string.format('FOUND {"requests": %%d, "us": %%d, "p50": %%f, "p99": %%f, "errors": %%d}',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    wrong.connect + wrong.read + wrong.write + wrong.status + wrong.timeout))
end
"""


def main() -> None:
    """Measure, print a table, append the rows to results/bench/serve.jsonl."""
    if shutil.which("wrk") is None:
        sys.exit("bench/serve.py needs wrk: apt-get install wrk")
    torch.set_num_threads(1)  # as the service does
    lines = gzip.decompress((EMBEDDED / "B3DB/B3DB.tsv.gz").read_bytes()).decode().splitlines()
    molecules = [line.split("\t") for line in lines[1:201] + lines[-400:-200]]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        smiles = [row[0] for row in molecules]
        save_model(folder, smiles[:100])
        bodies = [json.dumps(json.dumps({"smiles": text})) for text in smiles[::4]]
        (folder / "ask.lua").write_text(SCRIPT % f"{{{', '.join(bodies)}}}")
        with _serving(folder, "--batch") as shared, _serving(folder, "--no-batch") as single:
            rounds = [_round(folder, shared, single, smiles[0]) for _ in range(ROUNDS)]
    rows = [_median(cases) for cases in zip(*rounds, strict=True)]
    print_table(COLUMNS, [[row[key] for key in COLUMNS] for row in rows])
    record("serve", rows)


class _Service(NamedTuple):
    url: str
    pid: int

    def cpu_seconds(self) -> float:
        """Return the CPU time of all threads."""
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _serving(folder: Path, *options: str) -> Generator[_Service]:
    program = [sys.executable, "-c", "from gtpool.cli import main; main()"]
    words = ["serve", str(folder / "model"), "--port", "0", *options]
    with subprocess.Popen([*program, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline() if process.stdout else ""
            service = _Service(said.split(" on ")[1].split()[0], process.pid)
            _load(service.url, folder, 8, 3)  # warms up
            yield service
        finally:
            process.terminate()


def _round(folder: Path, shared: _Service, single: _Service, smiles: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for clients in CLIENTS:
        rows.append({"batching": "on", "beside": "", **_row(shared, folder, clients)})
        rows.append({"batching": "off", "beside": "", **_row(single, folder, clients)})
    with _explaining(shared.url, smiles):
        for clients in CLIENTS:
            row = _row(shared, folder, clients)
            rows.append({"batching": "on", "beside": "explanations", **row})
    return rows


def _median(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Take the middle of what was measured; the rest is the same in all rounds."""
    measured = ("per_second", "cpu_ms", "p50_ms", "p99_ms", "pass_graphs", "load")
    middle = {key: median(case[key] for case in cases) for key in measured}
    return {**cases[0], **middle, "rounds": len(cases)}


def _row(service: _Service, folder: Path, clients: int) -> dict[str, Any]:
    before, begin = _passes(service.url), service.cpu_seconds()
    found = _load(service.url, folder, clients, SECONDS)
    cpu, after = service.cpu_seconds() - begin, _passes(service.url)
    graphs, passes = (after[part] - before[part] for part in (0, 1))
    if found["errors"]:
        sys.exit(f"{found['errors']} of {found['requests']} requests failed")
    return {
        "clients": clients,
        "per_second": round(1e6 * found["requests"] / found["us"]),
        "cpu_ms": round(1e3 * cpu / found["requests"], 2),
        "p50_ms": round(found["p50"] / 1e3, 1),
        "p99_ms": round(found["p99"] / 1e3, 1),
        "pass_graphs": round(graphs / passes, 1),
        "seconds": SECONDS,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "network": "GTPool-V, no descriptors",
        "width": 128,
        "generator": "wrk on the same cores",
    }


def _load(url: str, folder: Path, clients: int, seconds: int) -> dict[str, float]:
    words = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "30s", "--latency"]
    words += ["-s", str(folder / "ask.lua"), f"{url}/predict"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return json.loads(said.partition("FOUND ")[2])


def _passes(url: str) -> tuple[float, float]:
    """Count the graphs and the forward passes so far."""
    with urlopen(f"{url}/metrics") as answer:  # noqa: S310
        lines = answer.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line.startswith("gtpool_batch_graphs_"))
    return float(values["gtpool_batch_graphs_sum"]), float(values["gtpool_batch_graphs_count"])


@contextmanager
def _explaining(url: str, smiles: str) -> Generator[None]:
    """Ask for one explanation after the other."""
    stop, body = Event(), json.dumps({"smiles": smiles}).encode()

    def ask() -> None:
        while not stop.is_set():
            asked = Request(f"{url}/explain", body, {"Content-Type": "application/json"})  # noqa: S310
            with urlopen(asked) as answer:  # noqa: S310
                answer.read()

    thread = Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
