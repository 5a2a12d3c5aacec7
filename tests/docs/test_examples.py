"""The examples run as they stand, and what they print is true."""

import gzip
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from gtpool.data.locate import EMBEDDED

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run():
    """Start an example by the name of its file; give what it prints."""
    beside = str(Path(sys.executable).parent)  # where the `gtpool` of this environment lies
    path = os.pathsep.join([beside, os.environ.get("PATH", "")])

    def start(name, *words):
        done = subprocess.run(
            [sys.executable, EXAMPLES / name, *words],
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return start


@pytest.fixture
def here(capsys):
    """Run an example in this process; give what it prints."""

    def start(name):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return start


def test_a_layer_in_a_pyg_model_learns(here):
    right, count = re.fullmatch(
        r"(\d+) of (\d+) test graphs right \([\d.]+%\)\n", here("layer_in_pyg.py")
    ).groups()
    assert int(count) == 38
    assert int(right) > 0.7 * 38  # the larger class is two thirds


def test_the_wheel_in_topk_pooling_keeps_as_many_atoms_and_sees_more(here):
    line = r"(.+): (\d+) atoms kept, ([\d.]+)% kept or next to one\n"
    said = re.fullmatch(line + line, here("rws_in_topk.py")).groups()
    topk, many, less, rws, same, more = said
    assert (topk, rws) == ("top-k", "RWS")
    assert many == same
    assert float(more) > float(less)


@pytest.mark.slow
def test_the_notebooks_run_and_hold_no_output(run):
    books = sorted(EXAMPLES.glob("*.ipynb"))
    assert [book.stem for book in books] == ["layer_in_pyg", "own_csv"]
    for book in books:
        for cell in json.loads(book.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs"), book
    printed = run("run_notebook.py", *books)
    assert re.search(r"\d+ of 38 test graphs are classified correctly", printed)
    assert re.search(r"CC\(C\)CO .*'alcohol': (1\.0|0\.[5-9])", printed)


@pytest.mark.slow
def test_from_a_csv_to_a_served_model(run, tmp_path):
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    rows = gzip.decompress((EMBEDDED / "B3DB/B3DB.tsv.gz").read_bytes()).decode().splitlines()
    table = tmp_path / "mine.csv"
    table.write_text("\n".join([rows[0], *rows[1::120]]).replace("\t", ",") + "\n")
    answer = json.loads(run("csv_to_service.py", table, "CCO"))
    assert answer["targets"] == ["BBB+", "BBB-"]
    (row,) = answer["predictions"]
    assert row["id"] == "CCO"
    assert row["prediction"] in answer["targets"]
    assert sum(row["probabilities"].values()) == pytest.approx(1)
