"""`gtpool reproduce cell`: repeated runs beside the committed ones."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from gtpool.cli import app
from gtpool.reproduce import paper, repeat_cell
from gtpool.reproduce.paper import Study, StudyCell
from gtpool.reproduce.status import read_rows
from gtpool.reproduce.study_compare import compare_table, comparison_section
from gtpool.reproduce.study_results import cell_results
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study.result import RunResult
from gtpool.study.run import run_many
from gtpool.study.store import Store

RUN = RunSpec(
    data=DataSpec(source="MUTAG"),
    split=SplitSpec(rule="stratified", folds=3),
    model=ModelSpec(width=8, levels=1),
    train=TrainSpec(epochs=2, warmup=0),
)
FOLDS = tuple(replace(RUN, split=replace(RUN.split, fold=fold)) for fold in range(3))
CELL = StudyCell("gtpool-v", "MUTAG", FOLDS)


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("committed")
    run_many(CELL.runs(3), Store(folder), device="cpu")
    return folder


@pytest.fixture
def ask(tmp_path, monkeypatch):
    monkeypatch.setitem(paper.STUDIES, "tiny", Study("", "", 3, (CELL,)))
    words = ["reproduce", "cell", "tiny", "MUTAG", "gtpool-v", "--device", "cpu"]
    words += ["--output-dir", str(tmp_path / "again")]
    return lambda *more: CliRunner().invoke(app, [*words, *map(str, more)])


def stored(committed, path, change):
    rows = [row.to_json() for row in read_rows([committed]).values()]
    path.write_text("".join(json.dumps(change(row)) + "\n" for row in rows))
    return path


def test_the_same_machine_gives_equal_figures(ask, committed):
    told = ask("--known", committed)
    assert told.exit_code == 0
    assert told.stdout.splitlines()[-1] == "equal"


def test_a_difference_is_measured_by_the_spread_of_seeds(ask, committed, tmp_path):
    def shifted(row, by):
        return {**row, "test": row["test"] + by, "device": "another"}

    near = stored(committed, tmp_path / "near.jsonl", lambda row: shifted(row, 1e-4))
    told = ask("--known", near)
    assert (told.exit_code, "another" in told.stdout) == (0, True)
    assert told.stdout.splitlines()[-1].startswith("difference -0.01; within")
    far = stored(committed, tmp_path / "far.jsonl", lambda row: shifted(row, -0.9))
    told = ask("--known", far)
    assert told.exit_code == 1
    assert told.stdout.splitlines()[-1].startswith("difference +90.00; outside")


def test_rows_that_are_not_there_are_counted(ask, committed, tmp_path):
    some = stored(committed, tmp_path / "some.jsonl", lambda row: row)
    lines = some.read_text().splitlines(keepends=True)
    some.write_text(next(line for line in lines if json.loads(line)["key"] == FOLDS[0].key))
    told = ask("--known", some).stdout.splitlines()
    assert (told[0][:6], told[-1]) == ("2 of 3", "equal")
    some.write_text(next(line for line in lines if json.loads(line)["key"] != FOLDS[0].key))
    assert ask("--known", some, "--seeds", 3).exit_code == 0


def test_a_cell_without_committed_rows_is_refused_before_any_training(ask, tmp_path):
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    told = ask("--known", nothing)
    assert "none of the 3 runs of gtpool-v on MUTAG is in the committed" in str(told.exception)
    assert not (tmp_path / "again").exists()


def test_unknown_names_are_errors_with_a_hint():
    with pytest.raises(ValueError, match="table1"):
        repeat_cell.find_cell("table11", "MUTAG", "gcn", 1, {})
    with pytest.raises(ValueError, match="did you mean 'MUTAG'"):
        repeat_cell.find_cell("table1", "MUTAGG", "gcn", 1, {})
    with pytest.raises(ValueError, match="no line 'gcnn'"):
        repeat_cell.find_cell("table1", "MUTAG", "gcnn", 1, {})
    with pytest.raises(ValueError, match="no cell of gcn on ENZYMES"):
        repeat_cell.find_cell("tuned", "ENZYMES", "gcn", 1, {})


def test_the_repeated_study_has_25_disjoint_test_parts_for_each_method():
    study = paper.STUDIES["repeated"]
    places = {tuple((run.split.seed, run.split.fold) for run in cell.specs) for cell in study.cells}
    assert len(places) == 1
    assert len(set(next(iter(places)))) == 25
    assert len(study.datasets) == 7


def test_the_report_compares_all_methods_of_a_repeated_cross_validation(committed):
    study = paper.STUDIES["repeated"]
    cells = study.only(dataset="MUTAG")[:3]
    (example,) = [row for row in read_rows([committed]).values() if row.key == FOLDS[0].key]
    scores = {cell.line: 0.9 - 0.05 * at for at, cell in enumerate(cells)}
    rows = {}
    for cell in cells:
        for at, run in enumerate(cell.specs):
            test = scores[cell.line] + 0.01 * (at % 7) + 0.001 * (int(run.key, 16) % 10)
            changes = {"key": run.key, "spec": run.to_json(), "test": test}
            rows[run.key] = RunResult.from_json({**example.to_json(), **changes})
    found = cell_results("repeated", study, rows)
    section = comparison_section("c", "", found, compare_table(found))
    (table,) = section.sheets
    said = [tuple(cell.text for cell in line) for line in table.lines]
    assert [line[1] for line in said] == [cell.line for cell in cells]
    assert [line[3] for line in said] == ["yes", "no", "no"]
    assert said[1][7] == "best is better"
    assert {line[8] for line in said} == {"25"}
    none = cell_results("repeated", study, {})
    assert comparison_section("c", "", none, compare_table(none)).sheets == ()
