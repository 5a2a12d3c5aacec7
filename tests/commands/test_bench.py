import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gtpool.bench import benches
from gtpool.bench.settings import BenchJob
from gtpool.cli import app, main

BENCH = ["bench", "--device", "cpu", "--quick"]


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_bench_measures_keeps_and_shows(tmp_path):
    result = CliRunner().invoke(app, [*BENCH, "step", "roofline", "--out", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    rows = rows_of(tmp_path / "new/step.jsonl")
    assert [row["model"] for row in rows] == ["SAGPool_h", "TopKPool", "ASAP", "GMT", "GTPool-V"]
    assert {row["device"] for row in rows} == {"cpu"}
    assert len(rows_of(tmp_path / "new/roofline.jsonl")) == 1
    assert "1 of 2: MUTAG, training step, about" in result.output
    assert "GTPool-V" in result.output
    assert f"6 rows added to {tmp_path / 'new'}" in result.output


def test_an_unknown_bench_is_one_line_that_lists_the_choices(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gtpool", "bench", "sped", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err == "gtpool: no bench 'sped'; there are speed, step, scalability, roofline\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rows", [0, 2])
def test_interrupted_it_keeps_the_rows_that_are_done(rows, tmp_path, monkeypatch):
    row = {"device": "cpu", "dataset": "MUTAG", "missing": "for this test"}

    def measure():
        yield from ({**row, "model": f"net {number}"} for number in range(rows))
        os.kill(os.getpid(), signal.SIGINT)

    job = BenchJob("step", "a job", 1.0, measure)
    monkeypatch.setitem(benches.BENCHES, "step", lambda _: [job, job])
    result = CliRunner().invoke(app, [*BENCH, "step", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "interrupted" in result.output
    assert f"{rows} rows added" in result.output
    kept = rows_of(tmp_path / "step.jsonl") if rows else []
    assert [row["model"] for row in kept] == [f"net {number}" for number in range(rows)]


def test_commands_import_the_laboratory_when_they_are_called():
    code = (
        "import sys, gtpool.cli\n"
        "laboratory = ('gtpool.bench', 'gtpool.reproduce')\n"
        "print([name for name in sys.modules if name.startswith(laboratory)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_imports_no_torch():
    code = "import sys; from gtpool.cli import app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert " bench " in CliRunner().invoke(app, ["--help"]).output
