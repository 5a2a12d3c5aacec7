import math
import subprocess
import sys

import numpy as np
import pytest

from gtpool.report.result_tables import (
    TextTable,
    methods_table,
    rules_table,
    runs_table,
    tasks_table,
)
from gtpool.study.result import RunResult
from gtpool.study.summarize import format_metric, score_grid, summarize


def row(test, *, seed=42, fold=0, status="done", rule="stratified", folds=3, **more):
    spec = {
        "data": {"source": "MUTAG"},
        "model": {"pool": "gtpool"},
        "split": {"rule": rule, "folds": folds, "fold": fold, "seed": 0},
        "seed": seed,
    }
    numbers = {"parameters": 10, "seconds": 2.0, "valid_loss": 1.0, "error": None}
    known = {"key": "", "spec": spec, "status": status, "metric": "accuracy", "test": test}
    return RunResult.from_json(known | numbers | more)


def rows_of(values, **more):
    return [
        row(test, seed=42 + seed, fold=fold, **more)
        for seed, line in enumerate(values)
        for fold, test in enumerate(line)
    ]


def test_mean_over_seeds_of_the_mean_over_folds_with_the_deviation_over_seeds():
    values = [[0.7, 0.8, 0.9], [0.8, 0.8, 0.95], [0.6, 0.7, 0.8]]
    cell = summarize(rows_of(values))
    assert cell.mean == pytest.approx(np.mean(values))
    assert cell.std == pytest.approx(np.std(np.mean(values, 1), ddof=1))
    assert (cell.spread, cell.n, cell.missing) == ("seeds", 9, 0)
    assert cell.text == "78.33 ± 7.64"
    assert cell.evidence == "9 runs, ± standard deviation over seeds"


def test_one_seed_has_its_deviation_over_folds_and_says_so():
    cell = summarize(rows_of([[0.7, 0.8, 0.9]]))
    assert cell.mean == pytest.approx(0.8)
    assert cell.std == pytest.approx(0.1)
    assert "over folds" in cell.evidence


def test_a_single_run_has_no_deviation():
    cell = summarize([row(0.5, rule="random")])
    assert (cell.text, cell.evidence) == ("50.00", "1 run")


def test_a_split_without_folds_is_named_by_its_rule():
    rows = [row(0.5, rule="random"), row(0.6, seed=43, rule="random")]
    assert runs_table(rows) == TextTable(
        ("split", "seed 42", "seed 43"), (("random", "50.00", "60.00"),)
    )


def test_failed_and_absent_runs_are_missing_and_in_no_mean():
    rows = rows_of([[0.8, 0.9]])  # the third fold is not there
    rows[1] = rows[1].updated(status="failed", test=None)
    cell = summarize(rows)
    assert (cell.mean, cell.n, cell.missing) == (pytest.approx(0.8), 1, 2)
    assert score_grid(rows).values == ((0.8, None, None),)
    assert runs_table(rows).lines[1] == ("2", "–")


def test_a_metric_that_is_not_defined_is_missing_too():
    for undefined in (None, math.nan):
        cell = summarize(rows_of([[0.8, undefined, 0.9]]))
        assert (cell.n, cell.missing, cell.text) == (2, 1, "85.00 ± 7.07")


def test_nothing_done_is_no_number():
    cell = summarize(rows_of([[None, None, None]], status="failed"))
    assert (cell.mean, cell.text, cell.n, cell.missing) == (None, "missing", 0, 3)


@pytest.mark.parametrize("rule", ["scaffold", "random", "column"])
def test_a_split_without_folds_expects_one_run_a_seed(rule):
    rows = [row(test, seed=seed, rule=rule) for seed, test in enumerate([0.7, 0.9])]
    assert (summarize(rows).n, summarize(rows).missing, summarize(rows).spread) == (2, 0, "seeds")


def test_rows_of_an_older_version_are_averaged_with_those_of_today():
    old, new = row(0.8, fold=0), row(0.9, fold=1)
    given, canonical = (
        new.updated(spec_json={**new.spec_json, "data": {"source": "MUTAG", "atom_order": order}})
        for order in ("given", "canonical")
    )
    assert summarize([old, given]).n == 2
    with pytest.raises(ValueError, match="method or dataset"):
        summarize([old, canonical])


def test_runs_that_differ_cannot_be_averaged():
    other = row(0.5, fold=1)
    other = other.updated(spec_json={**other.spec_json, "model": {"pool": "other"}})
    with pytest.raises(ValueError, match="method or dataset"):
        summarize([row(0.5), other])
    with pytest.raises(ValueError, match="two runs have seed 42 and fold 1"):
        summarize([row(0.5), row(0.6)])
    with pytest.raises(ValueError, match="no runs"):
        summarize([])


def test_runs_with_and_without_bags_cannot_be_averaged():
    def bagged(fold, bag):
        one = row(0.5, fold=fold)
        split = {**one.spec_json["split"], "bag": bag}
        return one.updated(spec_json={**one.spec_json, "split": split})

    assert summarize([bagged(0, 1), bagged(1, 2)]).n == 2
    with pytest.raises(ValueError, match="method or dataset"):
        summarize([bagged(0, 0), bagged(1, 1)])


def test_metrics_that_are_no_share_are_written_as_they_are():
    assert format_metric(0.12345, "rmse") == "0.1235"
    assert format_metric(12.5, "rmse") == "12.50"
    assert [format_metric(value, "rmse") for value in (0.0, 2.0, 100.0)] == [
        "0.000",
        "2.000",
        "100.0",
    ]
    assert format_metric(1234.4, "rmse") == "1234"
    assert format_metric(123456.0, "rmse") == "1.235e+05"


def test_tables_for_terminal_and_markdown():
    table = methods_table({"a|b": rows_of([[0.7, 0.8, 0.9]]), "c": rows_of([[0.5, 0.5]])})
    heading, first, second = table.terminal().splitlines()
    assert heading.split()[:3] == ["method", "accuracy,", "%"]
    assert first.split() == ["a|b", "80.00", "±", "10.00", "3", "0", "10", "2.0"]
    assert second.split()[4:6] == ["2", "1"]
    assert table.markdown().splitlines()[2].startswith("| a\\|b | 80.00 ± 10.00 | 3 | 0 |")
    assert TextTable(("x", "number"), (("a", "1"), ("bc", "10"))).terminal() == (
        "x   number\na        1\nbc      10"
    )
    wide = TextTable(("x", "n"), (("漢字", "1"), ("[b]", "20")))  # each sign is two columns wide
    assert wide.terminal() == "x      n\n漢字   1\n[b]   20"


def test_a_method_whose_runs_all_failed_does_not_name_the_metric_of_the_others():
    lost = rows_of([[None] * 3], status="failed", metric=None)
    table = methods_table({"lost": lost, "sound": rows_of([[1.0, 2.0, 3.0]], metric="rmse")})
    assert table.heads[1] == "RMSE"
    assert summarize(rows_of([[None]], status="failed", metric="rmse")).metric == "rmse"


def test_other_rules_are_told_beside_ours():
    rules = {"valid_loss": 0.5, "valid_metric": 0.6, "last": 0.7, "best_test": 0.9}
    table = rules_table([row(0.5, folds=1, other_rules=rules)])
    assert [line[1] for line in table.lines] == ["50.00", "60.00", "70.00", "90.00"]
    assert "optimistic" in table.lines[-1][0]


def test_numbers_tables_pictures_and_page_need_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; import gtpool.study.summarize, gtpool.study.plan,"
        "gtpool.study.heldout, gtpool.report.result_tables, gtpool.report.plot, gtpool.report.page"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_table_by_task_sums_up_the_runs_of_each():
    runs = {(42, 0): [0.8, None], (42, 1): [0.9, None], (43, 0): [0.7, 0.5], (43, 1): [0.6, None]}
    found = tasks_table(["a", "b"], [20, 7], {"roc_auc": runs})
    assert found.heads == ("task", "ROC-AUC, %", "labels", "runs")
    assert found.lines == (("a", "75.00 ± 14.14", "20", "4"), ("b", "50.00", "7", "1"))
    one = tasks_table(["a", "b"], [20, 7], {"rmse": {(0, 0): [1.5, None]}})
    assert one == TextTable(("task", "RMSE", "labels"), (("a", "1.500", "20"), ("b", "–", "7")))


def test_control_characters_do_not_reach_the_terminal():
    table = TextTable(("class\x9b", "n"), (("a\x1b[2J\n\tb", "1"), ("é →", "2")))
    lines = table.terminal().splitlines()
    assert [line.split() for line in lines] == [
        ["class\\x9b", "n"],
        ["a\\x1b[2J\\n\\tb", "1"],
        ["é", "→", "2"],
    ]
    assert len({len(line) for line in lines}) == 1
