"""The registry of formats. docs/extend/format.md adds a format to it."""

import sys
from pathlib import Path

import pytest

from gtpool.cli import main
from gtpool.data.formats import FORMATS, Format, format_of, formats_with_option, recognise
from gtpool.data.formats.reader import FormatReader
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study import inputs
from gtpool.study.run_one import run_one


def _run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["gtpool", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


@pytest.mark.parametrize(
    "command",
    [
        ("train", "--folds", "3", "--width", "16", "--epochs", "2"),
        ("train", "--folds", "3", "--width", "16", "--epochs", "2", "--together", "3"),
        ("train", "--folds", "3", "--width", "16", "--epochs", "2", "--pool", "haarpool"),
        ("data", "info"),
    ],
    ids=["train", "together", "haarpool", "info"],
)
def test_a_command_loads_its_data_once(command, monkeypatch, tmp_path):
    loads = []
    found = inputs._load_data.__wrapped__  # without the memory of it, which is for workers
    monkeypatch.setattr(inputs, "_load_data", lambda *args: loads.append(args) or found(*args))
    monkeypatch.setenv("GTPOOL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "mine.csv"
    rows = [f"{'C' * (2 + at)}O,{at % 2}" for at in range(18)]
    path.write_text("\n".join(["smiles,y", *rows]) + "\n")
    where = ("--output-dir", tmp_path / "out", "--device", "cpu") if command[0] == "train" else ()
    words = command[:1] if command[0] == "train" else command
    assert _run(monkeypatch, *words, path, *command[len(words) :], *where) == 0
    assert len(loads) == 1


def test_runs_say_which_files_they_were_loaded_from(tmp_path):
    path = tmp_path / "mine.csv"
    rows = [f"{'C' * (2 + at)}O,{at % 2}" for at in range(18)]
    path.write_text("\n".join(["smiles,y", *rows]) + "\n")
    spec = RunSpec(
        data=DataSpec(source=str(path), atom_order="canonical"),
        model=ModelSpec(pool="none", width=8),
        split=SplitSpec(folds=3),
        train=TrainSpec(epochs=1, warmup=0),
    )
    loaded, before = inputs.load_data(spec.data), inputs.source_digest(str(path))
    path.write_text("\n".join(["smiles,y", *rows[:9]]) + "\n")
    assert inputs.source_digest(str(path)) != before
    row = run_one(spec, device="cpu", loaded=loaded)
    assert row.source_digest == before
    assert row.split.train + row.split.valid + row.split.test == 18
    assert len(inputs.load_data(spec.data).dataset) == 9


def test_messages_name_all_formats(monkeypatch, tmp_path):
    line = Format(module="unread", called="edges", endings=(".edges",), options=("task",))
    monkeypatch.setitem(FORMATS, "edges", line)
    assert formats_with_option("task") == "a table or JSON lines or edges"
    (tmp_path / "mine.doc").write_text("")
    with pytest.raises(ValueError, match=r"must end in \.csv, .*, \.jsonl or \.edges, or one of"):
        format_of(tmp_path / "mine.doc")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"neither NAME_A\.txt \(TU format\), nor raw/edge\.csv"):
        format_of(tmp_path / "folder")
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        format_of(tmp_path / "other.edges")


def test_every_format_has_a_reader_and_is_recognised(tmp_path):
    for name, form in FORMATS.items():
        assert isinstance(form.reader, FormatReader), name
        assert bool(form.endings) != bool(form.holds), "a file or a folder"
        for ending in form.endings:
            for packed in ("", ".gz"):
                assert recognise(Path(f"mine{ending.upper()}{packed}")) is form
        if form.holds:
            inside = tmp_path / name / form.holds.replace("*", "NAME")
            inside.parent.mkdir(parents=True)
            inside.touch()
            assert recognise(tmp_path / name) is form
