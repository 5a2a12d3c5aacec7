"""Long tables: predicted in parts, and continued after an interruption."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from itertools import count, islice

import pytest
import torch
from peak_memory import peak_of_large

from gtpool import predict_stream
from gtpool.data.formats.table import read_table
from gtpool.model.bundle import save_bundle
from gtpool.model.classifier import Classifier
from gtpool.predict import predict_source, predictions_text
from gtpool.predict_stream import predict_file
from gtpool.resumable import ResumableFile, resumable_file
from gtpool.spec import ModelSpec
from gtpool.study.inputs import shape_of
from gtpool.study.ordered_map import ordered_map

_SMILES = ("CCO", "c1ccccc1", "C1CC", "CC(=O)O", "", "C#N", "[Na+].[Cl-]")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream")
    table = folder / "train.csv"
    table.write_text("smiles,toxic\nCCO,no\nc1ccccc1,yes\nCC(=O)O,no\nC#N,yes\n")
    data = read_table(table).dataset
    torch.manual_seed(0)
    network = Classifier(ModelSpec(width=16, levels=1), shape_of(data)).eval()
    save_bundle(folder / "model", network, {"schema": data.schema.to_json()})
    return folder / "model"


@pytest.fixture
def parts_of_three(monkeypatch):
    monkeypatch.setattr(predict_stream, "FEW", 4)
    monkeypatch.setattr(predict_stream, "PART", 3)
    monkeypatch.setattr(predict_stream, "usable_cores", lambda: 1)


def _write(path, rows, mark=","):
    lines = (f'"a{mark} {at}\nb"{mark}{_SMILES[at % len(_SMILES)]}' for at in range(rows))
    path.write_text("\n".join([f'"the\nname"{mark}smiles', *lines, ""]))


def _cells(text, mark=","):
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=mark))


def _nearly_equal(found, expected):
    """Compare rows whose probabilities may differ by rounding, since other graphs are beside."""
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        numbers = [at for at, cell in enumerate(other) if cell.startswith("0.")]
        assert [float(row[at]) for at in numbers] == pytest.approx(
            [float(other[at]) for at in numbers], abs=2e-6
        )
        assert [cell for at, cell in enumerate(row) if at not in numbers] == [
            cell for at, cell in enumerate(other) if at not in numbers
        ]


@pytest.mark.usefixtures("parts_of_three")
@pytest.mark.parametrize(("name", "mark"), [("new.csv", ","), ("new.tsv", "\t")])
def test_parts_make_the_file_that_one_go_makes(model, tmp_path, name, mark):
    _write(tmp_path / name, 11, mark)
    told = []
    out = tmp_path / f"out{name}"
    found = predict_file(model, str(tmp_path / name), out, tell=lambda *at: told.append(at))
    whole = predict_source(predict_stream.load_bundle(model), tmp_path / name)
    text = out.read_bytes().decode()
    _nearly_equal(_cells(text, mark), _cells(predictions_text(whole, mark), mark))
    assert told == [(0, 11), (3, 11), (6, 11), (9, 11), (11, 11)]
    assert found == (11, 8, {"not a valid SMILES": 2, "the SMILES is empty": 1})
    assert {path.name for path in tmp_path.iterdir()} == {name, out.name}
    stream = io.BytesIO()
    assert predict_file(model, str(tmp_path / name), stream) == found
    assert _cells(stream.getvalue().decode()) == _cells(text, mark)


@pytest.mark.usefixtures("parts_of_three")
def test_a_model_that_replaces_another_predicts(model, tmp_path):
    table, folder = tmp_path / "new.csv", tmp_path / "model"
    _write(table, 11)
    first = predict_stream.load_bundle(model)
    save_bundle(folder, first.model, first.about)
    predict_file(folder, str(table), tmp_path / "first.csv")
    torch.manual_seed(1)
    other = Classifier(first.model.spec, first.model.shape).eval()
    save_bundle(folder, other, first.about)
    predict_file(folder, str(table), tmp_path / "second.csv")
    whole = predictions_text(predict_source(predict_stream.load_bundle(folder), table))
    _nearly_equal(_cells((tmp_path / "second.csv").read_bytes().decode()), _cells(whole))


@pytest.mark.usefixtures("parts_of_three")
def test_a_repeated_call_continues_unless_something_changed(model, tmp_path):
    table, out = tmp_path / "new.csv", tmp_path / "out.csv"
    _write(table, 11)
    predict_file(model, str(table), out)
    whole = out.read_bytes()
    out.write_text("old")

    def stop(done, _total):
        if done == 6:
            raise KeyboardInterrupt

    def begun(**options):
        told = []
        predict_file(model, str(table), out, tell=lambda done, _: told.append(done), **options)
        return told[0]

    def interrupt():
        with pytest.raises(KeyboardInterrupt):
            predict_file(model, str(table), out, tell=stop)

    interrupt()
    assert out.read_text() == "old"
    assert begun() == 6
    assert out.read_bytes() == whole
    interrupt()
    with (tmp_path / ".out.csv.partial" / "content").open("ab") as file:
        file.write(b"half a row")  # as a killed process leaves it
    assert begun() == 6
    assert out.read_bytes() == whole
    interrupt()
    assert begun(device="cpu") == 0
    interrupt()
    table.write_text(table.read_text() + "z,C\n")
    assert begun() == 0
    assert len(_cells(out.read_text())) == 13


@pytest.mark.usefixtures("parts_of_three")
def test_a_malformed_row_is_an_error_before_anything_is_written(model, tmp_path):
    table = tmp_path / "new.csv"
    table.write_text("smiles\n" + "C\n" * 20 + "C,C\n")
    with pytest.raises(ValueError, match="line 22: 2 cells"):
        predict_file(model, str(table), tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


_TABLES = """
import random
import sys
from gtpool import predict_stream
predict_stream.FEW, predict_stream.PART = 4, 128
predict_stream.usable_cores = lambda: 1
folder = Path(sys.argv[1])
def peak():  # what is kept: the size of a batch, which is not, varies
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
def predict(parts):
    draw = random.Random(parts)
    rows = ("C" * draw.randint(5, 40) + "c1ccccc1" for _ in range(128 * parts))
    (folder / "new.csv").write_text("\\n".join(["smiles", *rows, ""]))
    predict_stream.predict_file(folder / "model", str(folder / "new.csv"), folder / "out.csv")
def small():
    predict(10)
def large():
    predict(80)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_parts(model, tmp_path):
    network = predict_stream.load_bundle(model)
    wide = Classifier(ModelSpec(), network.model.shape).eval()
    save_bundle(tmp_path / "model", wide, network.about)
    assert peak_of_large(_TABLES, tmp_path) < 10  # MB; 50 if what a part needs is kept


def test_a_part_that_was_not_noted_is_never_taken_for_another(tmp_path):
    with closing(ResumableFile(tmp_path, "old")) as file:
        file.add(b"old", 1)
    unknown = object()  # JSON cannot hold it: as if the process were killed before the note
    with closing(ResumableFile(tmp_path, "new")) as file, pytest.raises(TypeError):
        file.add(b"other", unknown)
    with closing(ResumableFile(tmp_path, "old")) as file:
        assert file.note is None


def test_two_processes_do_not_write_one_file(tmp_path):
    path = tmp_path / "out.csv"
    with resumable_file(path, "a") as file:
        file.add(b"1", 1)
        with pytest.raises(ValueError, match="another process"), resumable_file(path, "a"):
            pass
        file.add(b"2", 2)
    assert path.read_bytes() == b"12"


def _square(number):
    time.sleep(0.2 if number == 0 else 0)
    return number * number


@pytest.mark.slow
def test_results_are_in_order_and_tasks_are_read_late():
    read = []

    def tasks():
        for number in count():
            read.append(number)
            yield number

    found = ordered_map(_square, tasks(), 2)
    assert list(islice(found, 20)) == [number * number for number in range(20)]
    assert len(read) < 30
    found.close()


def _ends(group, deadline):
    """Whether all processes of a group end in time."""
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.1)
    return time.monotonic() < deadline


def _start(model, table, out):
    command = [sys.executable, "-m", "gtpool", "predict", model, table, "-o", out]
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """A long table and the predictions for it."""
    folder = tmp_path_factory.mktemp("whole")
    _write(folder / "new.csv", 9_000)
    running = _start(model, folder / "new.csv", folder / "out.csv")
    assert running.communicate(timeout=300)
    assert running.returncode == 0
    return folder / "new.csv", (folder / "out.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_command_continues_and_leaves_no_process(model, whole, tmp_path, number):
    table, expected = whole
    cut = tmp_path / "cut.csv"
    stopped = _start(model, table, cut)
    state = tmp_path / ".cut.csv.partial" / "state.json"
    deadline = time.monotonic() + 200
    while not state.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    if number == signal.SIGINT:
        os.killpg(stopped.pid, number)  # as a terminal does
    else:
        os.kill(stopped.pid, number)
    _, said = stopped.communicate(timeout=100)
    if number == signal.SIGINT:
        assert stopped.returncode == 130
        assert "rows are kept; repeat the command to resume" in said
        assert "Traceback" not in said
    assert not cut.exists()
    rows, *_ = json.loads(state.read_text())["note"]
    assert 0 < rows < 9_000
    assert _ends(stopped.pid, deadline + 100)  # the workers, too
    again = _start(model, table, cut)
    _, said = again.communicate(timeout=300)
    assert again.returncode == 0
    assert f"{rows:,} of 9,000 rows are kept from before" in said
    assert cut.read_bytes() == expected
    assert not state.parent.exists()
