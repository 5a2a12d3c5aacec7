"""The registry of formats, and CONTRIBUTING's toy format: one file and one line."""

import re
import sys
from pathlib import Path

import pytest

import gtpool
from gtpool.cli import main
from gtpool.data.formats import FORMATS, Format, format_of, formats_with_option, recognise
from gtpool.data.formats.reader import FormatReader
from gtpool.data.sources import load
from gtpool.explain import explain_source
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study import inputs
from gtpool.study.run_one import run_one

ROOT = Path(__file__).parents[3]
RING, PATH = "0-1 1-2 2-3 3-0", "0-1 1-2 2-3"


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """Add the format and write a file of it."""
    line = Format(
        module="toy_format", called="edges", endings=(".edges",), options=("task", "features")
    )
    monkeypatch.setitem(FORMATS, "edges", line)
    path = tmp_path / "mine.edges"
    path.write_text("".join(f"ring {RING}\npath {PATH}\n" for _ in range(12)))
    return path


def _run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["gtpool", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_a_format_is_one_file_and_one_line(toy, monkeypatch, tmp_path, capsys):
    data = load(toy)
    assert data.schema.targets == ("path", "ring")
    assert load(toy, features="constant").num_features == 1
    out, new = tmp_path / "out", tmp_path / "new.edges"
    tiny = ("--folds", "3", "--width", "16", "--epochs", "2", "--device", "cpu")
    assert _run(monkeypatch, "train", toy, *tiny, "--output-dir", out) == 0
    new.write_text(f"? {PATH}\n? {RING}\n")
    answers = tmp_path / "answers.csv"
    assert _run(monkeypatch, "predict", out / "model", new, "-o", answers) == 0
    assert len(answers.read_text().splitlines()) == 3
    assert _run(monkeypatch, "evaluate", out / "model", toy) == 0
    assert "24 graphs" in capsys.readouterr().out
    bundle = gtpool.load_bundle(out / "model")
    (row,) = explain_source(bundle, new, graph=1, epochs=2).graphs
    assert row.names == ["0", "1", "2", "3"]
    assert _run(monkeypatch, "data", "info", toy, "--smiles-column", "x") == 2
    assert "smiles_column is an option of a table, and" in capsys.readouterr().err


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


def test_the_toy_format_is_the_one_of_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text[text.index("## Add a format") :]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert code in (ROOT / "tests" / "toy_format.py").read_text()


def test_messages_name_all_formats(toy, tmp_path):
    assert formats_with_option("task") == "a table or JSON lines or edges"
    (tmp_path / "mine.doc").write_text("")
    with pytest.raises(ValueError, match=r"must end in \.csv, .*, \.jsonl or \.edges, or one of"):
        format_of(tmp_path / "mine.doc")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"neither NAME_A\.txt \(TU format\), nor raw/edge\.csv"):
        format_of(tmp_path / "folder")
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        format_of(toy.with_name("other.edges"))


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
