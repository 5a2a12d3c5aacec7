"""The paper's tables as data: which runs, the published numbers, and what is still missing."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from gtpool.commands.plan import make_plan
from gtpool.data.registry import DATASETS as SOURCES
from gtpool.model import METHODS, method_name
from gtpool.spec import RunSpec
from gtpool.study.paper import STUDIES, find
from gtpool.study.published import DATASETS, TABLE_1, TABLE_2, TABLE_3, TABLE_6
from gtpool.study.recipe import recipe
from gtpool.study.status import find_runs, known_rows, name_runs, standings
from gtpool.study.store import Store, check_writable


def _row(spec: RunSpec, **changes):
    return {"key": spec.key, "spec": spec.to_json(), "status": "done", "seconds": 2.0, **changes}


def test_table_1_has_every_method_of_the_paper_on_every_dataset():
    cells = {(cell.line, cell.dataset): cell for cell in STUDIES["table1"].cells}
    for method, published in TABLE_1.items():
        for dataset in DATASETS:
            assert cells[method, dataset].published == published[dataset]
    assert cells["gtpool-v", "MUTAG"].published == (88.15, 0.45)
    assert cells["haarpool", "PROTEINS"].published is None


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
        find(["xx"])
    with pytest.raises(ValueError, match=r"no dataset 'xx' in this study \(it has 'MUTAG'\)"):
        find_runs(["mutag"], "dataset=xx", None)
    with pytest.raises(ValueError, match="--only is dataset=NAME"):
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


def test_runs_are_named_by_their_line():
    names = name_runs(["table1", "ratio"], "dataset=PROTEINS", 1)
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
    (found,) = standings(["table1"], "dataset=MUTAG,pool=gcn", 2, known_rows([tmp_path]))
    assert (found.wanted, found.done, found.failed, found.seconds) == (20, 4, 1, 32.0)
    (nothing,) = standings(["table1"], "dataset=MUTAG,pool=gcn", 2, {})
    assert (nothing.done, nothing.seconds) == (0, None)


def test_rows_are_read_from_stores_files_and_folders_of_files(tmp_path):
    one, two = find_runs(["table1"], "dataset=MUTAG,pool=gcn", 1)[:2]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text(json.dumps(_row(one, status="failed")) + "\n")
    (tmp_path / "rows" / "b.jsonl").write_text(json.dumps(_row(one)) + "\n")
    Store(tmp_path / "store").put(_row(two))
    rows = known_rows([tmp_path / "rows", tmp_path / "store"])
    assert {key: row["status"] for key, row in rows.items()} == {one.key: "done", two.key: "done"}


def test_studies_are_listed_without_torch():
    code = (
        "import sys, gtpool.study.paper, gtpool.study.status, gtpool.report.standing;"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cells_are_picked_from_all_studies_that_have_them():
    found = standings([], "dataset=MUTAG,pool=gtpool-v", 1, {})
    assert [cell.study for cell in found] == ["table1", "tuned", "mutag"]
    with pytest.raises(ValueError, match=r"no study has dataset=MUTAG,pool=0\.25"):
        find_runs([], "dataset=MUTAG,pool=0.25", None)


@pytest.mark.parametrize("only", ["", "dataset=MUTAG,dataset=PROTEINS,dataset=x", "pool"])
def test_what_cannot_be_meant_by_only_is_refused(only):
    with pytest.raises(ValueError, match=r"--only is|no dataset"):
        find_runs(["table1"], only, None)


def test_a_folder_that_cannot_be_written_is_said_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file cannot be written: .*; choose another folder"):
        check_writable(tmp_path / "file")
