"""The paper's tables as data: which runs, the published numbers, and what is still missing."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gtpool.cli import app
from gtpool.data.registry import DATASETS as SOURCES
from gtpool.model import METHODS, method_name
from gtpool.reproduce.paper import STUDIES, find_studies
from gtpool.reproduce.published import DATASETS, TABLE_1, TABLE_2, TABLE_3, TABLE_6
from gtpool.reproduce.status import cell_statuses, find_runs, named_runs, read_rows
from gtpool.spec import RunSpec
from gtpool.study.plan import make_plan, shard
from gtpool.study.recipe import recipe
from gtpool.study.result import RunResult
from gtpool.study.store import Store, check_writable

_SMALL = "dataset=low-scores,pool=gin"


def _row(spec: RunSpec, **changes):
    known = {"status": "done", "seconds": 2.0, "test": 0.5, "metric": "accuracy", "epochs_run": 3}
    known |= dict.fromkeys(("higher_is_better", "valid_loss", "valid_metric", "epoch", "device"))
    known |= {"other_rules": {}, "split": {}, "versions": {}}
    return RunResult.from_json({"key": spec.key, "spec": spec.to_json(), **known, **changes})


def test_table_1_has_every_method_of_the_paper_on_every_dataset():
    cells = {(cell.line, cell.dataset): cell for cell in STUDIES["table1"].cells}
    for method, published in TABLE_1.items():
        for dataset in DATASETS:
            assert cells[method, dataset].published == published[dataset]
    assert cells["gtpool-v", "MUTAG"].published == (88.15, 0.45)
    assert cells["haarpool", "PROTEINS"].published is None
    (sepg,) = STUDIES["poolers"].only(line="sepg", dataset="PROTEINS")
    assert sepg.published == (76.42, 0.39)


def test_the_same_run_has_one_key_in_all_studies_and_on_the_command_line():
    plain = [
        {run.key for run in study.only(dataset="PROTEINS", line="gtpool-v")[0].specs}
        for study in (STUDIES["table1"], STUDIES["table3"], STUDIES["ablation"])
    ]
    assert plain[0] == plain[1] == plain[2]
    asked = make_plan({}, {"data": {"source": "PROTEINS"}, "model": {"pool": "gtpool-v"}})
    fixed = replace(asked.run, split=replace(asked.run.split, rule="fixed"))
    assert fixed.key in plain[0]


def test_ogb_sets_have_one_run_a_seed_their_own_recipe_and_convolutions_that_see_bonds():
    (run,) = recipe("ogbg-molhiv", METHODS["gcn"].model)
    assert (run.split.rule, run.train.batch_size, run.train.patience) == ("scaffold", 512, None)
    assert run.model.conv == "ogb-gcn"
    assert method_name(run.model.to_json()) == "gcn"
    (run,) = recipe("ogbg-molbbbp", METHODS["gin"].model)
    assert (run.model.conv, method_name(run.model.to_json())) == ("gine", "gin")
    asked = make_plan({}, {"data": {"source": "ogbg-molbbbp"}, "model": {"pool": "sagpool_h"}})
    assert asked.run.model.conv == "ogb-gcn"
    asked = make_plan({}, {"data": {"source": "ogbg-molbbbp"}, "model": {"conv": "gcn"}})
    assert asked.run.model.conv == "gcn"


def test_figures_vary_one_parameter_and_share_the_run_of_the_default():
    default = STUDIES["table1"].only(dataset="IMDB-BINARY", line="gtpool-v")[0].specs
    for name, line in (("ratio", "0.5"), ("levels", "3"), ("lambda", "0.4")):
        assert STUDIES[name].only(dataset="IMDB-BINARY", line=line)[0].specs == default
    assert len(STUDIES["lambda"].lines) == 11


def test_published_tables_agree_where_they_say_the_same_thing():
    for dataset, published in TABLE_3["gtpool-v"].items():
        assert TABLE_1["gtpool-v"][dataset] == published
    for method in ("sagpool_h", "topkpool", "asap"):
        for dataset, published in TABLE_2[method].items():
            assert TABLE_1[method][dataset] == published


def test_the_papers_statistics_slip_where_the_notes_say():
    wrong = {name for name, said in TABLE_6.items() if said.graphs != SOURCES[name].graphs}
    assert wrong == {"PROTEINS"}


def test_a_study_or_cell_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(ValueError, match=r"no study 'xx' \(there are table1, table2"):
        find_studies(["xx"])
    with pytest.raises(ValueError, match=r"no dataset 'xx' in this study \(it has 'MUTAG'\)"):
        find_runs(["mutag"], "dataset=xx", None)
    with pytest.raises(ValueError, match="--only must be dataset=NAME"):
        find_runs(["mutag"], "seed=3", None)


@pytest.mark.parametrize(
    ("studies", "only", "meant"),
    [
        (["table4"], None, "table3"),
        (["table1"], "dataset=PROTEIN", "PROTEINS"),
        (["table1"], "dataset=proteins", "PROTEINS"),
        (["table1"], "pool=gtpoolv", "gtpool-v"),
        ([], "dataset=PROTEIN", "PROTEINS"),
        ([], "dataset=MUTAG,pool=gtpoolv", "gtpool-v"),
    ],
)
def test_a_name_that_is_nearly_right_is_asked_back(studies, only, meant):
    with pytest.raises(ValueError, match=f"; did you mean '{meant}'\\? \\(") as caught:
        find_runs(studies, only, None)
    assert str(caught.value).count("did you mean") == 1


@pytest.mark.parametrize(("studies", "who"), [(["tuned"], "cell of tuned"), ([], "study")])
def test_a_pair_that_no_study_has_is_refused_though_both_names_are_known(studies, who):
    with pytest.raises(ValueError, match=f"no {who} has dataset=PTC_MR,pool=gcn, pooled"):
        find_runs(studies, "dataset=PTC_MR,pool=gcn, pooled validation", None)


def test_runs_are_named_by_their_line():
    found = named_runs(["table1", "ratio"], "dataset=PROTEINS", 1)
    names = {run.key: name for run, name in found}
    few, half = (find_runs(["ratio"], f"dataset=PROTEINS,pool={ratio}", 1) for ratio in (0.25, 0.5))
    assert {names[run.key] for run in few} == {"ratio 0.25"}
    assert {names[run.key] for run in half} == {"gtpool-v"}  # as table 1, of which it is a part


def test_lines_with_commas_can_be_picked():
    runs = find_runs(["mutag"], "pool=gin, sum,dataset=MUTAG", 1)
    assert len(runs) == 10
    assert all((run.model.conv, run.model.readout) == ("gin", "sum") for run in runs)


def test_status_counts_what_is_done_failed_and_missing_and_how_long_it_takes(tmp_path):
    runs = find_runs(["table1"], "dataset=MUTAG,pool=gcn", 2)
    store = Store(tmp_path)
    for run in runs[:4]:
        store.put(_row(run))
    store.put(_row(runs[4], status="failed"))
    (found,) = cell_statuses(["table1"], "dataset=MUTAG,pool=gcn", 2, read_rows([tmp_path]))
    assert (found.wanted, found.done, found.failed, found.seconds) == (20, 4, 1, 32.0)
    (nothing,) = cell_statuses(["table1"], "dataset=MUTAG,pool=gcn", 2, {})
    assert (nothing.done, nothing.seconds) == (0, None)


def test_the_pace_of_one_kind_of_device_is_told_from_the_other():
    cell = "dataset=MUTAG,pool=gcn"
    runs = find_runs(["table1"], cell, 2)
    rows = {run.key: _row(run, device="cpu") for run in runs[:4]}
    rows |= {run.key: _row(run, device="NVIDIA H200", seconds=0.5) for run in runs[4:8]}
    for on, seconds in (("cpu", 24.0), ("gpu", 6.0), (None, 15.0)):
        (found,) = cell_statuses(["table1"], cell, 2, rows, on=on)
        assert (found.done, found.seconds) == (8, seconds)
    (found,) = cell_statuses(["table1"], cell, 2, dict(list(rows.items())[:4]), on="gpu")
    assert (found.done, found.seconds) == (4, None)
    with pytest.raises(ValueError, match="cpu or gpu, got 'tpu'"):
        cell_statuses(["table1"], cell, 2, rows, on="tpu")


def test_status_says_which_runs_made_the_pace(tmp_path):
    runs = find_runs(["tasks"], "dataset=low-scores,pool=gcn", 1)
    store, (one, two) = Store(tmp_path), runs[:2]
    store.put(_row(one, device="cpu"))
    store.put(_row(two, device="NVIDIA H200", seconds=0.5))
    words = ["study", "status", "tasks", "--known", str(tmp_path), "--output-dir", "absent"]
    pace = "time left: estimated from"
    assert f"{pace} runs on cpu: 1, NVIDIA H200: 1\n" in CliRunner().invoke(app, words).output
    assert f"{pace} runs on cpu: 1\n" in CliRunner().invoke(app, [*words, "--on", "cpu"]).output
    wrong = CliRunner().invoke(app, [*words, "--on", "tpu"])
    assert wrong.exit_code == 2
    assert "'cpu', 'gpu'" in wrong.output


def test_status_outside_the_repository_says_which_folder_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["study", "status", "table3"])
    assert found.exit_code == 0
    assert "results/runs" in found.stderr
    assert "--known" in found.stderr
    (tmp_path / "results/runs").mkdir(parents=True)
    assert not CliRunner().invoke(app, ["study", "status", "table3"]).stderr


def test_a_run_ends_with_the_command_that_shows_its_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["study", "run", "tasks", "--only", "dataset=low-scores,pool=gcn", "--seeds", "1"]
    for run in find_runs(words[2:3], words[4], 1):
        Store(tmp_path / "results/runs").put(_row(run))
        Store(tmp_path / "my rows").put(_row(run))
    said = CliRunner().invoke(app, words).output
    assert "`gtpool report` shows" in said
    assert not (tmp_path / "gtpool-runs").exists()
    said = CliRunner().invoke(app, [*words, "--output-dir", "my rows"]).output
    assert "`gtpool report results/runs 'my rows'` shows" in said
    (tmp_path / "t.json").write_text("{}")
    said = CliRunner().invoke(app, [*words, "--choices", "t.json"]).output
    assert "`gtpool report --choices t.json` shows" in said
    (tmp_path / "empty").mkdir()
    said = CliRunner().invoke(app, [*words, "--output-dir", "my rows", "--known", "empty"]).output
    assert "10 runs done, stored in my rows; `gtpool report 'my rows'`" in said


def test_the_small_example_of_the_page_has_the_runs_that_it_shows():
    folds = [run.split.fold for run in shard(find_runs(["tasks"], _SMALL, 1), "1/3")]
    page = (Path(__file__).parents[2] / "docs/studies.md").read_text(encoding="utf-8")
    assert f"study run tasks --only {_SMALL} --seeds 1 --shard 1/3 --known nothing" in page
    assert re.findall(r"^low-scores, gin, seed 42, fold (\d+):", page, re.MULTILINE) == [
        f"{fold + 1}" for fold in folds
    ]


def test_the_time_of_a_cell_that_has_not_begun_goes_by_its_dataset_and_its_method():
    def rows(line, dataset, seconds):
        runs = find_runs(["table1"], f"dataset={dataset},pool={line}", 1)
        return {run.key: _row(run, seconds=seconds) for run in runs}

    slow = rows("gcn", "MUTAG", 1.0) | rows("asap", "MUTAG", 9.0)  # 5.0 on average
    known = slow | rows("gcn", "PROTEINS", 10.0)
    (asap,) = cell_statuses(["table1"], "dataset=PROTEINS,pool=asap", 1, known)
    assert asap.seconds == pytest.approx(10 * 10.0 * 9.0 / 5.0)
    (gin,) = cell_statuses(["table1"], "dataset=PROTEINS,pool=gin", 1, known)  # has run nowhere
    assert gin.seconds == pytest.approx(10 * 10.0)


def test_the_time_on_a_dataset_without_runs_goes_by_its_size():
    def rows(line, dataset, seconds):
        runs = find_runs(["table1"], f"dataset={dataset},pool={line}", 1)
        return {run.key: _row(run, seconds=seconds) for run in runs}

    def nodes(name):
        return SOURCES[name].graphs * SOURCES[name].mean_nodes

    def seconds(line):
        (found,) = cell_statuses(["table1"], f"dataset=ogbg-molhiv,pool={line}", 10, known)
        return found.seconds

    known = rows("gcn", "MUTAG", 2.0) | rows("gcn", "PROTEINS", 20.0) | rows("asap", "MUTAG", 6.0)
    sizes = nodes("MUTAG") + nodes("PROTEINS")
    assert seconds("gcn") == pytest.approx(10 * 22.0 / sizes * nodes("ogbg-molhiv"))
    assert seconds("asap") == pytest.approx(10 * 6.0 / nodes("MUTAG") * nodes("ogbg-molhiv"))
    # A method that has run nowhere: MUTAG takes 4.0 on average over methods.
    assert seconds("gin") == pytest.approx(10 * 24.0 / sizes * nodes("ogbg-molhiv"))
    assert seconds("gcn") > 10 * 20.0  # more than on any set that has run
    for key, row in known.items():  # of a source of which no size is known
        mine = row.spec_json | {"data": {"source": "mine.csv"}}
        known[key] = row.updated(spec_json=mine)
    assert seconds("gcn") is None


def test_a_method_is_compared_with_others_on_the_same_kind_of_device():
    def rows(line, dataset, device, seconds):
        runs = find_runs(["table1"], f"dataset={dataset},pool={line}", 1)
        return {run.key: _row(run, device=device, seconds=seconds) for run in runs}

    known = rows("gcn", "MUTAG", "NVIDIA H200", 1.0) | rows("asap", "MUTAG", "cpu", 50.0)
    known |= rows("gcn", "PROTEINS", "NVIDIA H200", 3.0)
    (found,) = cell_statuses(["table1"], "dataset=PROTEINS,pool=asap", 1, known)
    assert found.seconds == pytest.approx(10 * 3.0)


def test_the_last_line_counts_runs_that_studies_share_once(tmp_path):
    runs = find_runs(["table1", "mutag"], "dataset=MUTAG,pool=gtpool-v", 1)
    assert len(runs) == 10
    for run in runs[:4]:
        Store(tmp_path).put(_row(run, device="cpu"))
    words = ["study", "status", "table1", "mutag", "--only", "dataset=MUTAG,pool=gtpool-v"]
    places = ["--seeds", "1", "--known", str(tmp_path), "--output-dir", "absent"]
    said = CliRunner().invoke(app, [*words, *places]).output.splitlines()
    assert [line.split()[4:7] for line in said[1:3]] == [["4", "of", "10"]] * 2
    assert said[-1] == (
        "all: 4 of 10 runs, 6 missing, 0 failed, time left 12 s; a run that studies share counts "
        "once"
    )


def test_the_first_example_of_each_page_has_runs_left_to_do():
    root = Path(__file__).parents[2]
    rows = read_rows([root / "results/runs"])
    for page in ("README.md", "docs/studies.md"):
        text = (root / page).read_text(encoding="utf-8")
        asked = re.search(r"\$ gtpool study run (\w+) --only (\S+) --seeds (\d+)", text)
        assert asked is not None
        study, only, seeds = asked.groups()
        (found,) = cell_statuses([study], only, int(seeds), rows)
        assert found.done < found.wanted, "name a cell that `gtpool study status --cells` has open"


def test_a_space_after_the_comma_of_only_does_not_count():
    spaced = find_runs(["table1"], "dataset=MUTAG, pool = gcn ", 1)
    assert spaced == find_runs(["table1"], "dataset=MUTAG,pool=gcn", 1)


def test_choices_that_cannot_be_read_or_lack_folds_are_said_in_one_line(tmp_path):
    path = tmp_path / "tuned.json"
    with pytest.raises(ValueError, match=r"tuned\.json: No such file"):
        find_studies(["tuned"], path)
    few = {"gcn": {"MUTAG": {"per_fold": [{}] * 9, "pooled": {}}}}
    path.write_text(json.dumps(few))
    with pytest.raises(ValueError, match="per_fold of gcn on MUTAG has 9 choices for 10 folds"):
        find_studies(["tuned"], path)
    few["gcn"]["MUTAG"]["per_fold"].append({})
    path.write_text(json.dumps(few))
    assert len(find_runs(["tuned"], "pool=gcn", 1, path)) == 10


def test_titles_of_studies_stand_left():
    heading, first, *_ = CliRunner().invoke(app, ["study", "list"]).output.splitlines()
    assert heading.index("title") == first.index("The paper's recipe")


def test_rows_are_read_from_stores_files_and_folders_of_files(tmp_path):
    one, two = find_runs(["table1"], "dataset=MUTAG,pool=gcn", 1)[:2]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text(
        json.dumps(_row(one, status="failed").to_json()) + "\n"
    )
    (tmp_path / "rows" / "b.jsonl").write_text(json.dumps(_row(one).to_json()) + "\n")
    Store(tmp_path / "store").put(_row(two))
    rows = read_rows([tmp_path / "rows", tmp_path / "store"])
    assert {key: row.status for key, row in rows.items()} == {one.key: "done", two.key: "done"}


def test_done_rows_of_a_run_that_differ_are_told_and_the_first_counts(tmp_path):
    runs = find_runs(["table1"], "dataset=MUTAG,pool=gcn", 1)[:3]
    for run in runs:
        Store(tmp_path / "one").put(_row(run, test=0.5, device="cpu"))
    other = {"seconds": 1.0, "device": "NVIDIA H200"}
    Store(tmp_path / "two").put(_row(runs[0], test=0.5, **other))
    Store(tmp_path / "two").put(_row(runs[1], status="failed", test=None, **other))
    sources = [tmp_path / "one", tmp_path / "two"]
    assert len(read_rows(sources)) == 3  # other circumstances, or a failure, are no matter
    Store(tmp_path / "one").put(_row(runs[1], status="failed", error="first"))
    assert read_rows(sources)[runs[1].key].error == "first"
    Store(tmp_path / "two").put(_row(runs[2], test=0.75, **other))
    key = runs[2].key
    said = rf"differ: 1; .*/one/runs/{key}\.json, not .*/two/runs/{key}\.json; .* differ in test$"
    with pytest.warns(UserWarning, match=said):
        assert read_rows(sources)[key].test == 0.5


def test_studies_are_listed_without_torch():
    code = (
        "import sys, gtpool.reproduce.paper, gtpool.reproduce.status, gtpool.reproduce.status;"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cells_are_picked_from_all_studies_that_have_them():
    found = cell_statuses([], "dataset=MUTAG,pool=gtpool-v", 1, {})
    assert [cell.study for cell in found] == ["table1", "tuned", "mutag"]
    with pytest.raises(ValueError, match=r"no study has dataset=MUTAG,pool=0\.25"):
        find_runs([], "dataset=MUTAG,pool=0.25", None)


@pytest.mark.parametrize("only", ["", "dataset=MUTAG,dataset=PROTEINS,dataset=x", "pool"])
def test_what_cannot_be_meant_by_only_is_refused(only):
    with pytest.raises(ValueError, match=r"--only must|no dataset"):
        find_runs(["table1"], only, None)


def test_a_folder_that_cannot_be_written_is_said_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file cannot be written: .*; choose another folder"):
        check_writable(tmp_path / "file")
