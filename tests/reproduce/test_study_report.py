import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from math import sqrt
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from html_page import Page
from scipy import stats
from typer.testing import CliRunner

from gtpool.cli import app
from gtpool.data.registry import DATASETS as SOURCES
from gtpool.model import METHODS
from gtpool.reproduce.claims import (
    CLAIMS,
    Figures,
    all_above,
    best_at,
    drops_at_high_ratio,
    gain_over_baselines,
    loss_is_larger,
    mean_gain,
    pairs_above,
    published_figures,
)
from gtpool.reproduce.comparison import critical_difference, rank_methods
from gtpool.reproduce.paper import STUDIES, Study, StudyCell, recipe
from gtpool.reproduce.published import STUDIED, TABLE_1, Published
from gtpool.reproduce.study_compare import compare_cells, compare_table
from gtpool.reproduce.study_content import dataset_section, make_report
from gtpool.reproduce.study_parts import WRONG
from gtpool.reproduce.study_results import (
    cell_results,
    comparable_figures,
    fold_means,
    published_by,
)
from gtpool.reproduce.study_text import csv_text, html, latex, markdown
from gtpool.study.result import RunResult
from gtpool.study.store import Store, read_rows
from gtpool.study.summarize import ScoreGrid

ROOT = Path(__file__).parents[2]
HOSTILE = "</script><script>alert(1)</script>"


def cell(line="gtpool-v", dataset="MUTAG", told=None, folds=None):
    specs = recipe(dataset, METHODS[line].model)[:folds]
    return StudyCell(line, dataset, specs, told)


def study(*cells, seeds=2, axis=None):
    return Study("A table", "A note.", seeds, cells, axis)


def run(spec, test, **more):
    """Give the result of a run."""
    said = {
        "key": spec.key,
        "spec": spec.to_json(),
        "status": "done" if test is not None else "failed",
        "error": None if test is not None else f"the loss is nan {HOSTILE}",
        "metric": None if test is None else "accuracy",
        "test": test,
        "valid_loss": None if test is None else 0.5,
        "valid_metric": None if test is None else 0.85,
        "parameters": None if test is None else 1200,
        "epoch": 7,
        "other_rules": {}
        if test is None
        else {"valid_loss": test, "valid_metric": test, "last": test - 0.1, "best_test": 1.0},
        "split": {"train": 80, "valid": 10, "test": 10},
        "seconds": 2.0,
        "device": "cpu",
        "versions": {"gtpool": "0.1.0"},
        "commit": "abc1234",
        "finished": "2026-11-15T10:00:00+00:00",
    }
    return RunResult.from_json(said | more)


def rows_of(place, values):
    """Give rows by key, a line of values a seed: "skip" is no run, None one that failed."""
    runs = place.runs(len(values))
    flat = [value for line in values for value in line]
    pairs = zip(runs, flat, strict=True)
    return {spec.key: run(spec, value) for spec, value in pairs if value != "skip"}


def only(place, values, seeds=2):
    (result,) = cell_results("table1", study(place, seeds=seeds), rows_of(place, values))
    return result


def test_a_figure_is_the_mean_over_seeds_with_the_deviation_over_seeds():
    place = cell(folds=2, told=Published(80.0, 1.0))
    result = only(place, [[0.7, 0.9], [0.6, 0.8]])
    assert result.percent == pytest.approx(75.0)
    assert result.figure.text == "75.00 ± 7.07"  # of 80 and 70
    assert (result.figure.spread, result.figure.n, result.figure.missing) == ("seeds", 4, 0)
    assert result.difference == pytest.approx(-5.0)
    assert result.has_complete_seed


def test_one_seed_has_its_deviation_over_folds():
    result = only(cell(folds=2), [[0.7, 0.9]], seeds=2)
    assert result.figure.text == "80.00 ± 14.14"
    assert (result.figure.spread, result.figure.n, result.figure.missing) == ("folds", 2, 2)


def test_seeds_that_are_not_whole_count_only_where_none_is():
    place = cell(folds=3)
    whole = only(place, [[0.7, 0.8, 0.9], [0.1, "skip", None]])
    assert (whole.percent, whole.figure.n, whole.figure.missing) == (pytest.approx(80.0), 3, 3)
    assert (whole.has_complete_seed, whole.failed, len(whole.rows)) == (True, 1, 5)
    begun = only(place, [[0.7, 0.8, "skip"], [0.1, "skip", None]])
    assert begun.percent == pytest.approx(100 * (0.75 + 0.1) / 2)
    assert (begun.has_complete_seed, begun.figure.missing) == (False, 3)
    nothing = only(place, [["skip"] * 3, [None] * 3])
    assert (nothing.percent, nothing.difference, nothing.has_complete_seed) == (None, None, False)
    assert (nothing.figure.text, nothing.figure.missing, nothing.failed) == ("missing", 6, 3)


def test_figures_that_are_equal_but_for_rounding_share_their_rank():
    first, second = cell(folds=3), cell("gin", folds=3)
    values = [[10 / 18, 10 / 18, 12 / 18]], [[10 / 18, 11 / 18, 11 / 18]]
    assert np.unique([only(first, line).figure.mean for line in values]).size == 2
    rows = rows_of(first, values[0]) | rows_of(second, values[1])
    made = comparable_figures(cell_results("table1", study(first, second), rows))
    assert rank_methods(made).ranks == {"gtpool-v": 1.5, "gin": 1.5}


def test_a_margin_that_is_met_but_not_passed_is_not_passed_by_rounding():
    known = ours("s", a={"x": 64.01}, b={"x": 63.01})  # floats 1.000000000000007 apart
    assert pairs_above("s", [("a", "b", "x")], known, margin=1.0).holds is False


def test_what_is_not_settled_is_not_compared():
    first, second = cell(folds=2), cell("gin", folds=2)
    rows = rows_of(first, [[0.7, "skip"]]) | rows_of(second, [[0.7, 0.8]])
    assert comparable_figures(cell_results("table1", study(first, second), rows)) == {
        "gin": {"MUTAG": pytest.approx(75.0)}
    }


def test_a_cell_whose_specs_differ_from_fold_to_fold_is_summed_up_by_its_runs():
    plain = cell(folds=2)
    other = replace(plain.specs[1], train=replace(plain.specs[1].train, lr=0.01))
    tuned = plain._replace(specs=(plain.specs[0], other))
    rows = rows_of(plain, [[0.9, 0.1]]) | {other.key: run(other, 0.7)}
    (result,) = cell_results("tuned", study(tuned, seeds=1), rows)
    assert result.percent == pytest.approx(80.0)


def test_other_rules_are_summed_up_the_same_way():
    result = only(cell(folds=2), [[0.7, 0.9], [0.5, "skip"]])
    means = {rule: round(figure.mean, 6) for rule, figure in result.rules.items()}
    assert means == {"valid_loss": 0.8, "valid_metric": 0.8, "last": 0.7, "best_test": 1.0}


def test_ogb_has_a_run_a_seed():
    place = cell(dataset="ogbg-molbbbp")
    result = only(place, [[0.7], [0.8]], seeds=3)
    assert (result.figure.n, result.figure.missing, result.figure.spread) == (2, 1, "seeds")
    (nothing,) = cell_results("table1", study(place), {})
    assert nothing.figure.metric == "roc_auc"


def test_it_is_told_whose_run_a_published_figure_is():
    told = Published(1.0, 1.0)
    assert published_by(cell("gin", "MUTAG", told)) == "GMT's paper"
    assert published_by(cell("gin", "ENZYMES", told)) == "the paper, of others' code"
    assert published_by(cell("gtpool-v", "MUTAG", told)) == "the paper"
    assert published_by(cell("asap-rws", "PROTEINS", told)) == "the paper"
    for method, whose in (("gin", "GMT's paper"), ("gtpool-v", "the paper")):
        pooled = cell(method, "MUTAG", told)._replace(line=f"{method}, pooled validation")
        assert published_by(pooled) == whose
    assert published_by(cell("sepg", "MUTAG", told)) == "its own paper"
    assert published_by(cell("haarpool", "ENZYMES")) == ""


def test_ranks_are_means_over_datasets_and_equal_figures_share():
    made = rank_methods(
        {"a": {"x": 3.0, "y": 3.0}, "b": {"x": 3.0, "y": 2.0}, "c": {"x": 1.0, "y": 1.0}}
    )
    assert made.ranks == {"a": 1.25, "b": 1.75, "c": 3.0}
    assert (made.datasets, made.left_out) == (("x", "y"), ())


def test_the_largest_full_table_is_ranked_and_what_is_needed_is_in_it():
    table = {name: dict.fromkeys("xyz", 1.0) for name in "abc"}
    table["d"] = {"x": 2.0}
    made = rank_methods(table)
    assert (made.datasets, set(made.ranks), made.left_out) == (tuple("xyz"), set("abc"), ("d",))
    made = rank_methods(table, needed="d")
    assert (made.datasets, next(iter(made.ranks)), made.left_out) == (("x",), "d", ())
    assert rank_methods(table, needed=("e",)) is None
    assert rank_methods({"a": {"x": 1.0}, "b": {"y": 1.0}}) is None


def test_the_published_table_is_ranked_without_haarpool():
    made = rank_methods(published_figures().tables["table1"], needed=("gtpool-v",))
    assert (len(made.ranks), len(made.datasets), made.left_out) == (14, 11, ("haarpool",))
    assert list(made.ranks)[:3] == ["gtpool-v", "gtpool", "gmt"]


def test_critical_difference_of_demsars_example():
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)  # section 3.2.2


def test_cliques_are_the_longest_runs_within_the_critical_difference():
    made = rank_methods({name: {"x": 4.0 - at} for at, name in enumerate("abcd")})
    assert made._replace(distance=1.0).cliques == [("a", "b"), ("b", "c"), ("c", "d")]
    assert made._replace(distance=2.5).cliques == [("a", "c"), ("b", "d")]
    assert made._replace(distance=0.5).cliques == []


def test_all_whole_seeds_are_averaged_before_folds_are_compared():
    two = ScoreGrid("accuracy", (42, 43), (0, 1), ((0.5, 0.7), (0.7, 0.9)))
    assert fold_means(two) == pytest.approx([0.6, 0.8])
    cut = ScoreGrid("accuracy", (42, 43, 44), (0, 1), ((0.4, 0.4), (0.1, None), (0.8, 0.2)))
    assert fold_means(cut) == pytest.approx([0.6, 0.3])


def verdicts(tables=None):
    against = published_figures() if tables is None else Figures(tables, final=False)
    return {claim.claimed: claim.judge(against) for claim in CLAIMS}


def test_the_papers_sentences_against_its_own_tables():
    said = verdicts()
    wrong = [claimed for claimed, verdict in said.items() if verdict.holds is False]
    assert wrong == [
        "GTPool and GTPool-V beat DiffPool and MinCutPool on all datasets",
        "GTPool and GTPool-V significantly surpass GMT",
        "GMT, GTPool and GTPool-V are better than other poolers (TU sets)",
        "GTPool and GTPool-V are higher than all others on the four OGB sets",
        "Losing the global score hurts more than losing the local one",
    ]
    assert said["4.71 points above the best baseline on MUTAG"].words.endswith("+4.71")
    assert "+0.84" in said["by 0.84 points on average in asap"].words
    unknown = [claim.where[:6] for claim in CLAIMS if said[claim.claimed].holds is None]
    assert set(unknown) == {"figure"}  # curves without numbers


def test_nothing_is_said_of_what_was_not_run():
    assert {verdict.holds for verdict in verdicts({}).values()} == {None}
    assert {verdict.words for verdict in verdicts({}).values()} == {""}


def ours(study_name, **lines):
    return Figures({study_name: lines}, final=False)


def test_one_counterexample_is_a_no_and_what_is_missing_keeps_it_open():
    pairs = [("a", "b", "x"), ("a", "b", "y")]
    assert pairs_above("s", pairs, ours("s", a={"x": 2, "y": 2}, b={"x": 1, "y": 1})).holds is True
    assert pairs_above("s", pairs, ours("s", a={"x": 2}, b={"x": 1, "y": 1})).holds is None
    no = pairs_above("s", pairs, ours("s", a={"x": 1}, b={"x": 1, "y": 1}))
    assert (no.holds, no.words) == (
        False,
        "0 of 1 comparisons hold, not a 1.00, b 1.00 on x; 1 cannot be made yet",
    )
    near = ours("s", a={"x": 2}, b={"x": 1})
    assert all_above("s", ["a"], ["b"], ["x"], near, margin=0.5).holds is True
    assert all_above("s", ["a"], ["b"], ["x"], near, margin=1.0).holds is False


def test_a_gain_is_open_while_a_baseline_that_might_beat_it_is_missing():
    some = {"gtpool": {"MUTAG": 88.0}, "gtpool-v": {"MUTAG": 87.0}, "gin": {"MUTAG": 80.0}}
    all_ = {name: {"MUTAG": 70.0} for name in TABLE_1} | some
    assert gain_over_baselines("MUTAG", 4.71, ours("table1", **some)).holds is None
    assert gain_over_baselines("MUTAG", 4.71, ours("table1", **all_)).holds is True
    assert (
        gain_over_baselines("MUTAG", 9.0, ours("table1", **some)).holds is False
    )  # others only lower it
    del all_["gmt"]
    last = gain_over_baselines("MUTAG", 4.71, ours("table1", **all_))
    assert last.words.endswith("; 1 baseline is not run yet")
    one = {name: line for name, line in some.items() if name != "gtpool-v"}
    assert (
        gain_over_baselines("MUTAG", 9.0, ours("table1", **one)).holds is None
    )  # the other may raise it


def test_average_gains_take_the_better_sampler_of_each_dataset():
    lines = {
        "asap": dict.fromkeys(STUDIED, 70.0),
        "asap-rws": dict(zip(STUDIED, (72.0, 70.0, 70.0), strict=True)),
        "asap-rwsv": dict(zip(STUDIED, (70.0, 71.0, 70.0), strict=True)),
    }
    verdict = mean_gain("asap", 0.84, ours("table2", **lines))
    assert verdict == (True, "the better of the two +1.00 (RWS +0.67, RWSV +0.33)")
    del lines["asap"]["PROTEINS"]
    assert mean_gain("asap", 0.84, ours("table2", **lines)).holds is None


@pytest.mark.parametrize(
    ("without_global", "without_local", "holds"),
    [(70.0, 72.0, True), (76.0, 78.0, False), (75.0, 78.0, False), (72.0, 70.0, False)],
)
def test_a_loss_hurts_more_only_where_it_hurts(without_global, without_local, holds):
    lines = {
        "gtpool-v": dict.fromkeys(STUDIED, 75.0),
        "no-global-score": dict.fromkeys(STUDIED, without_global),
        "no-local-score": dict.fromkeys(STUDIED, without_local),
    }
    said = loss_is_larger("no-global-score", "no-local-score", ours("table3", **lines))
    assert said.holds is holds
    assert f"no-global-score {without_global - 75:+.2f}" in said.words
    del lines["gtpool-v"]["PROTEINS"]
    said = loss_is_larger("no-global-score", "no-local-score", ours("table3", **lines))
    assert said.holds is (None if holds else False)


def test_an_answer_that_rests_on_one_seed_says_on_which():
    lines = {"a": {"x": 2.0, "y": 2.0}, "b": {"x": 1.0, "y": 3.0}}
    single = {("s", "a", "x"), ("s", "b", "y"), ("t", "b", "x")}
    known = Figures({"s": lines}, final=False, single=single)
    both = pairs_above("s", [("a", "b", "x"), ("a", "b", "y")], known)
    assert both.holds is False
    assert both.words.endswith("on y; of one seed: b on y")  # x decides nothing
    assert pairs_above("s", [("a", "b", "x")], known).words.endswith("; of one seed: a on x")
    curve = best_at("s", ("a", "b"), ("b",), ("y",), known)
    assert curve == (True, "y best at b (3.00); of one seed: b on y")
    many = known._replace(single={("s", line, dataset) for line in "ab" for dataset in "xy"})
    assert best_at("s", ("a", "b"), ("b",), ("x", "y"), many).words.endswith(
        "; of one seed: a on x, a on y, b on x and 1 more"
    )


def test_claims_of_a_report_name_the_figures_of_one_seed():
    places = [
        StudyCell(
            ratio, "PROTEINS", recipe("PROTEINS", {"pool": "gtpool-v", "ratio": float(ratio)})[:2]
        )
        for ratio in ("0.5", "0.75")
    ]
    rows = rows_of(places[0], [[0.7, 0.8], [0.7, 0.8]]) | rows_of(places[1], [[0.7, 0.7]])
    report = make_report(rows, {"ratio": study(*places, axis="μ")})
    notes = [line[3].notes for line in part(report, "claims").sheets[0].lines]
    assert ("PROTEINS -5.00; of one seed: 0.75 on PROTEINS",) in notes


def test_the_best_value_of_a_parameter_and_the_drop():
    curve = {"0.25": {"PROTEINS": 70.0}, "0.5": {"PROTEINS": 75.0}, "0.75": {"PROTEINS": 72.5}}
    known = Figures({"ratio": curve}, final=False)
    where = ("ratio", tuple(curve), ("0.5",))
    assert best_at(*where, ("PROTEINS",), known) == (True, "PROTEINS best at 0.5 (75.00)")
    assert best_at(*where, ("PROTEINS", "ogbg-molbbbp"), known).holds is None
    assert drops_at_high_ratio(known) == (None, "PROTEINS -2.50")
    curve["0.75"]["PROTEINS"] = 74.0
    assert drops_at_high_ratio(known).holds is False
    curve["0.25"]["PROTEINS"] = 75.0
    equal = (True, "PROTEINS best at 0.25 and 0.5 (75.00)")
    assert best_at(*where, ("PROTEINS",), known) == equal


def test_the_slips_of_the_papers_dataset_table_are_marked():
    (sheet,) = dataset_section().sheets
    marked = {
        (line[0].text, head)
        for line in sheet.lines
        for head, entry in zip(sheet.heads, line, strict=True)
        if entry.mark == "slip" and WRONG in entry.text
    }
    assert marked == {
        ("ENZYMES", "edges a graph"),
        ("PROTEINS", "graphs"),
        ("Synthie", "nodes a graph"),
        ("Synthie", "edges a graph"),
        ("ogbg-moltox21", "classes"),
        ("ogbg-moltoxcast", "classes"),
    }
    enzymes = next(line for line in sheet.lines if line[0].text == "ENZYMES")
    assert enzymes[-1].text == "counts both directions of an edge"


@pytest.fixture(scope="module")
def made():
    """Give a report on two methods and a curve, with runs that failed and some missing."""
    mine, theirs = cell(told=Published(88.15, 0.45)), cell("gin", told=Published(81.39, 1.53))
    rng = np.random.default_rng(0)
    values = (0.7 + rng.integers(0, 4, (3, 10)) / 20).tolist()
    rows = rows_of(mine, values) | rows_of(theirs, [[0.9] * 10, [None, *["skip"] * 9]])
    levels = [
        StudyCell(f"{at}", "MUTAG", recipe("MUTAG", {"pool": "gtpool-v", "levels": at})[:2])
        for at in (1, 2)
    ]
    for at, place in enumerate(levels):
        rows |= rows_of(place, [[0.7 + at / 10, 0.8]])
    spare = replace(mine.specs[0], seed=7)
    rows[spare.key] = run(spare, 0.5)
    studies = {
        "table1": study(mine, theirs, cell("gmt"), seeds=3),
        "levels": study(*levels, seeds=1, axis="levels"),
    }
    return make_report(rows, studies)


def stored(page):
    (text,) = re.findall(r'<script type="application/json" id="rows">(.*?)</script>', page)
    return json.loads(text)


def part(report, name):
    return next(part for part in report.parts if part.name == name)


def test_the_opening_says_what_was_run_and_what_is_missing(made):
    summary = part(made, "summary")
    assert summary.facts["runs"] == (
        "44 of 94 are done, 1 failed; 1 rows belong to no study shown here"
    )
    assert summary.facts["devices"] == "cpu (44 runs)"
    counts = [[entry.text for entry in line] for line in summary.sheets[0].lines]
    assert counts == [
        ["table1", "3", "1", "1", "40", "90", "1"],
        ["levels", "2", "2", "0", "4", "4", "0"],
    ]


def test_cells_say_ours_published_difference_and_runs_with_a_mark_where_some_are_missing(made):
    table = part(made, "table1").sheets[0]
    ours_, gin, gmt = (line[1] for line in table.lines)
    assert (ours_.mark, ours_.notes[1]) == ("", "30 runs")
    assert ours_.notes[0].startswith("paper 88.15 ± 0.45, -")
    assert (gin.text, gin.mark) == ("90.00 ± 0.00", "partial")
    assert gin.notes == ("paper 81.39 ± 1.53, +8.61", "◐ 10 of 30 runs, ± folds")
    assert (gmt.text, gmt.mark, gmt.value) == ("–", "missing", None)
    assert gmt.notes[-1] == "○ none of 30 runs"
    haarpool = study(cell("haarpool", "ENZYMES"), seeds=1)
    sheet = part(make_report({}, {"table1": haarpool}), "table1").sheets[0]
    assert sheet.lines[0][1].notes == ("paper: more than 10 days", "○ none of 10 runs")


def test_methods_of_a_table_are_compared_over_the_fixed_folds(made):
    best, rest = part(made, "compare-table1").sheets[0].lines
    assert [best[at].text for at in (0, 1, 3, 8)] == ["MUTAG", "gin", "yes", "10"]
    assert [rest[at].text for at in (1, 3)] == ["gtpool-v", "no"]
    mine, gin = made.results[:2]
    assert rest[4].value == pytest.approx(gin.percent - mine.percent)  # of the figures


def test_a_comparison_is_corrected_for_the_number_of_datasets():
    lines = ("gtpool-v", "gin")
    rng = np.random.default_rng(1)
    found = {}
    for dataset in ("MUTAG", "PTC_MR", "PROTEINS"):
        rows, places = {}, [cell(line, dataset) for line in lines]
        for at, place in enumerate(places):
            rows |= rows_of(place, [(0.7 + 0.02 * at + rng.random(10) / 20).tolist()])
        found[dataset] = cell_results("table1", study(*places, seeds=1), rows)
    alone = compare_cells(found["MUTAG"])
    gaps = np.subtract(*(100 * np.array(one.grid.values[0]) for one in reversed(found["MUTAG"])))
    error = sqrt((1 / 10 + 10 / 90) * gaps.var(ddof=1))  # tested: 10 graphs; trained, validated: 90
    assert alone.pairs[0].p == pytest.approx(2 * stats.t.sf(gaps.mean() / error, 9), abs=1e-7)
    assert alone.pairs[0].high == pytest.approx(gaps.mean() + stats.t.ppf(0.975, 9) * error)
    together = compare_table([one for several in found.values() for one in several])
    made = together.by_dataset["MUTAG"]
    assert made.alpha == pytest.approx(0.05 / 3)
    assert made.pairs[0].p == alone.pairs[0].p
    assert made.pairs[0].high > alone.pairs[0].high
    told = [together.is_told_from_best(one) for one in found["MUTAG"]]
    assert told == [line not in made.best for line in lines]
    assert together.is_told_from_best(only(cell("gmt"), [["skip"] * 10])) is None


def test_one_split_is_compared_over_seeds_of_which_three_are_needed():
    first, second = cell("gtpool-v", "ogbg-molbbbp"), cell("gin", "ogbg-molbbbp")
    rows = rows_of(first, [[0.7], [0.72], [0.69], [0.71]]) | rows_of(second, [[0.6], [0.61]])
    places = study(first, second, seeds=4)
    assert compare_table(cell_results("table1", places, rows)).by_dataset == {}
    rows |= rows_of(second, [[0.6], [0.61], [0.62]])
    made = compare_table(cell_results("table1", places, rows)).by_dataset["ogbg-molbbbp"]
    assert (made.blocks, made.best, made.test[:7]) == (3, ("gtpool-v",), "one-way")
    assert made.means["gtpool-v"] == pytest.approx(70.5)  # all four seeds


def test_boxes_need_three_seeds_and_curves_two_points(made):
    assert [picture.svg.count("gin") for picture in part(made, "seeds").pictures] == [0]
    assert len(part(made, "levels").pictures) == 1
    assert "levels" in part(made, "levels").pictures[0].svg
    assert len(part(made, "ranks").pictures) == 2


def test_tuned_and_untuned_methods_are_not_mixed():
    plain, gin = cell(folds=2), cell("gin", folds=2)
    tuned = [
        place._replace(specs=tuple(replace(spec, seed=90) for spec in place.specs))
        for place in (plain, gin)
    ]
    pooled = plain._replace(
        line="gtpool-v, pooled validation",
        specs=tuple(replace(spec, seed=95) for spec in plain.specs),
    )
    rows = rows_of(plain, [[0.7, 0.7]]) | rows_of(gin, [[0.8, 0.8]])
    rows |= rows_of(tuned[0], [[0.9, 0.9]]) | rows_of(tuned[1], [[0.6, 0.6]])
    rows |= rows_of(pooled, [[1.0, 1.0]])
    apart = {"Chosen with test labels.": ("gtpool-v, pooled validation",)}
    studies = {
        "table1": study(plain, gin, seeds=1),
        "tuned": study(*tuned, pooled, seeds=1)._replace(apart=apart),
    }
    report = make_report(rows, studies)
    ranked = part(report, "ranks").sheets[0].lines
    assert [line[0].text for line in ranked] == ["gin", "gtpool-v"]
    for name, order in (("table1", ["gin", "gtpool-v"]), ("tuned", ["gtpool-v", "gin"])):
        lines = part(report, f"compare-{name}").sheets[0].lines
        assert [line[1].text for line in lines] == order
    together, alone = part(report, "tuned").sheets[:2]
    assert [line[0].text for line in together.lines] == ["gtpool-v", "gin"]
    assert [line[0].text for line in alone.lines] == ["gtpool-v, pooled validation"]
    assert alone.caption == "Chosen with test labels."
    assert not alone.lines[0][1].best
    text = html(report)
    links = {unquote(link) for link in re.findall(r'href="#runs=([^"]*)"', text)}
    assert links == set(stored(text)["cells"])


def test_cells_with_the_best_are_marked_in_every_format(made):
    ours_, gin, gmt = (line[1] for line in part(made, "table1").sheets[0].lines)
    assert (ours_.best, gin.best, gmt.best) == (False, True, False)
    assert r"\textbf{90.00 $\pm$ 0.00}" in latex(made)
    assert 'class="partial best"' in html(made)


def test_each_number_has_its_settings(made):
    sheet = next(sheet for sheet in part(made, "table1").sheets if sheet.detail)
    gin = dict(zip(sheet.heads, (entry.text for entry in sheet.lines[1]), strict=True))
    assert (gin["runs"], gin["of"], gin["validation"]) == ("10", "30", "85.00")
    assert (gin["parameters"], gin["seconds a run"]) == ("1,200", "2.0")
    assert (gin["device"], gin["commit"], gin["beside the set"]) == ("cpu", "abc1234", "nothing")


def test_what_was_used_beside_the_set_is_said():
    def beside(place):
        (result,) = cell_results("x", study(place), {})
        return result.beside

    place, (spec, *_) = cell(), cell().specs
    assert beside(place) == "nothing"
    start = replace(spec, train=replace(spec.train, start="model"))
    assert beside(place._replace(specs=(start,))) == "pre-trained weights"
    described = replace(spec, data=replace(spec.data, molecule_features=("descriptors",)))
    both = place._replace(specs=(described,), beside="other sets")
    assert beside(both) == "other sets, molecular descriptors"
    found = {one.place.line: one.beside for one in cell_results("best", STUDIES["best"], {})}
    assert found["paper, rwse"] == found["gmt"] == "nothing"  # whose panel is not complete
    assert found["best"] == found["gcn"] == "validation parts of other sets"


def test_one_budget_has_ensembles_of_one_size_of_the_runs_of_the_report():
    several = STUDIES["best"]
    assert several.together == ("best", "gcn", "gin", "gmt", "mincutpool", "sagpool_h")
    (place,) = several.only(dataset="MUTAG", line="gcn")
    y = np.array([0, 1], np.uint8)
    right, wrong = (np.eye(2, dtype=np.float16)[:: 1 - 2 * at] for at in (0, 1))
    predictions = {}
    for at, spec in enumerate(place.runs(3)):
        predictions[f"MUTAG/{spec.key}"] = wrong if at % 10 == 0 and at < 10 else right
        predictions[f"MUTAG/y/{spec.split.fold}"] = y
    rows = rows_of(place, [[0.9] * 10] * 3)

    def ensemble(rows):
        report = make_report(rows, {"best": several}, predictions=predictions)
        (sheet,) = part(report, "ensembles").sheets
        column = sheet.heads.index("MUTAG")
        assert [line[0].text for line in sheet.lines] == list(several.together)
        return {line[0].text: line[column] for line in sheet.lines}

    made = ensemble(rows)
    assert (made["gcn"].text, made["gcn"].notes) == ("100.00 ± 0.00", ("1 ensemble",))
    assert made["best"].mark == "missing"
    assert ensemble({})["gcn"].mark == "missing"  # the prediction of a run that is not shown


def test_csv_has_a_line_for_each_cell_with_all_numbers(made):
    lines = list(csv.DictReader(io.StringIO(csv_text(made))))
    assert len(lines) == 5
    gin, gmt = lines[1:3]
    assert {name: gin[name] for name in ("study", "line", "dataset", "mean", "std_over")} == {
        "study": "table1",
        "line": "gin",
        "dataset": "MUTAG",
        "mean": "90.0000",
        "std_over": "folds",
    }
    assert (gin["runs"], gin["wanted"], gin["failed"]) == ("10", "30", "1")
    assert (gin["published"], gin["published_by"]) == ("81.39", "GMT's paper")
    assert float(gin["difference"]) == pytest.approx(8.61)
    assert (gin["by_last_epoch"], gin["by_test_optimistic"]) == ("80.0000", "100.0000")
    assert (gin["devices"], gin["commits"]) == ("cpu", "abc1234")
    assert (gin["valid"], gin["parameters"], gin["seconds"]) == ("85.0000", "1200", "2.00")
    assert (gin["with_best"], lines[0]["with_best"], gmt["with_best"]) == ("yes", "no", "")
    assert (gin["beside_the_set"], gmt["beside_the_set"]) == ("nothing", "nothing")
    assert (gmt["valid"], gmt["parameters"], gmt["seconds"]) == ("", "", "")
    assert (gmt["mean"], gmt["runs"], gmt["devices"]) == ("", "0", "")


def test_markdown_has_every_table(made):
    text = markdown(made)
    assert (
        "| gin | **90.00 ± 0.00** (paper 81.39 ± 1.53, +8.61; ◐ 10 of 30 runs, ± folds) |" in text
    )
    assert (
        "| by validation loss | by validation metric | last epoch | by test (optimistic) |" in text
    )
    assert (
        "| where | claimed | published tables say | ours say |\n| --- | --- | --- | --- |" in text
    )
    assert "| method | average rank |\n| --- | ---: |" in text
    assert "| method | MUTAG |\n| --- | ---: |" in text
    for title in ("Summary", "A table", "Average ranks", "Claims", "Datasets"):
        assert f"\n## {title}\n" in text
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = block.replace("\\|", "").splitlines()
        assert len({line.count("|") for line in lines}) == 1


def test_latex_has_sound_tables_of_plain_characters(made):
    text = latex(made)
    assert text.isascii()
    assert r"\pm" in text
    tables = re.findall(r"\\toprule(.*?)\\bottomrule", text, re.DOTALL)
    assert not re.search("[<>|]", "".join(tables))  # which plain LaTeX prints as other characters
    assert r"\textless{} 0.001" in "".join(tables)
    bare = re.sub(r"\\[{}\\]", "", text)
    assert bare.count("{") == bare.count("}")
    for table in re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        lines = [line for line in table.splitlines() if line.endswith(r" \\")]
        assert len(lines) > 1
        assert len({len(re.findall(r"(?<!\\)&", line)) for line in lines}) == 1
    labels = re.findall(r"\\label\{(.*?)\}", text)
    assert len(labels) == len(set(labels)) == text.count(r"\begin{table*}")


def test_latex_leaves_out_what_no_page_holds_and_says_so(made):
    long = part(made, "levels")
    sheets = tuple(sheet._replace(lines=31 * sheet.lines) for sheet in long.sheets)
    text = latex(made._replace(parts=[long, long._replace(name="long", sheets=sheets)]))
    assert r"\label{tab:levels-2}" in text
    assert "% Left out, longer than a page: tab:long-2. The CSV has it." in text
    assert r"\label{tab:long" not in text


def test_page_is_sound_needs_nothing_beside_itself_and_is_the_same_each_time(made):
    text = html(made)
    read = Page(text)
    assert len(read.ids) == len(set(read.ids))
    links = {at.strip("'\"") for at in read.addresses}
    assert {at for at in links if not at.startswith(("#", "data:"))} == set()
    inside = {at[1:] for at in links if at.startswith("#") and not at.startswith("#runs=")}
    assert inside <= set(read.ids)
    assert not re.search(r"@import|url\(\s*['\"]?http|innerHTML", text)
    assert "#runs=table1/gtpool-v/MUTAG" in links
    assert "#runs=table1/gmt/MUTAG" not in links  # nothing is behind it
    assert html(made) == text


def test_rows_behind_a_figure_are_in_the_page_and_cannot_break_it(made):
    text = html(made)
    assert HOSTILE not in text
    runs = stored(text)
    keys = runs["cells"]["table1/gin/MUTAG"]
    assert len(keys) == 11
    seed, fold, test, epoch, loss, seconds, device, commit, error = runs["rows"][keys[0]]
    assert (seed, fold, test, epoch, loss, seconds, error) == (42, 1, 90.0, 7, 0.5, 2.0, None)
    assert (runs["names"][device], runs["names"][commit]) == ("cpu", "abc1234")
    assert HOSTILE in runs["rows"][keys[-1]][-1]


def test_every_study_of_the_paper_fits_into_the_tables():
    for name, several in STUDIES.items():
        assert len({(place.line, place.dataset) for place in several.cells}) == len(several.cells)
        if several.axis is not None:
            assert [float(line) for line in several.lines]
        assert name not in {"summary", "seeds", "ranks", "tests", "claims", "datasets", "runs"}
    assert set(TABLE_1["gin"]) <= set(SOURCES)


def test_a_report_is_made_without_torch():
    code = (
        "import sys\n"
        "from gtpool.reproduce import study_text\n"
        "from gtpool.reproduce.study_content import make_report\n"
        "from gtpool.reproduce.paper import STUDIES\n"
        "made = make_report({}, {'tasks': STUDIES['tasks']})\n"
        "assert 'none of 30 runs' in study_text.html(made)\n"
        "assert study_text.latex(made)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_cannot_be_written_or_read_is_an_error_that_says_so(tmp_path):
    ask = CliRunner().invoke
    wrong = ask(app, ["report", str(tmp_path), "-o", "report.pdf"])
    assert "report.pdf must end in .html, .md, .tex, .csv" in str(wrong.exception)
    nothing = ask(app, ["report", str(tmp_path), "-o", str(tmp_path / "x.md")])
    assert f"in {tmp_path}" in str(nothing.exception)
    Store(tmp_path / "study").put(RunResult.from_json({"key": "abc", "status": "failed"}))
    above = ask(app, ["report", str(tmp_path), "-o", str(tmp_path / "x.md")])
    assert f"in {tmp_path}; did you mean {tmp_path / 'study'}?" in str(above.exception)
    absent = ask(app, ["report", str(tmp_path / "absent")])
    assert str(tmp_path / "absent") in str(absent.exception)


def test_a_report_that_fails_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed = CliRunner().invoke(app, ["report"])
    assert "results/runs and gtpool-runs/study" in str(failed.exception)
    assert list(tmp_path.iterdir()) == []


def test_timings_that_cannot_be_read_are_named_by_file_and_line(tmp_path):
    Store(tmp_path / "store").put(RunResult.from_json({"key": "abc", "status": "failed"}))
    bench = tmp_path / "bench"
    bench.mkdir()
    words = ["report", str(tmp_path / "store"), "-o", str(tmp_path / "x.md"), "--bench", str(bench)]
    nothing = CliRunner().invoke(app, words)
    assert f"{bench} has no speed.jsonl or scalability.jsonl" in str(nothing.exception)
    (bench / "speed.jsonl").write_text('{"name"')  # a bench that was killed
    cut = CliRunner().invoke(app, words)
    assert f"{bench / 'speed.jsonl'}, line 1: not a row of `gtpool bench`" in str(cut.exception)


def _is_asap_on_proteins(row):
    return (row.spec.model.pool, row.spec.data.source) == ("asap", "PROTEINS")


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Write a report on the rows of the repository but one cell, in all formats, as a user does."""
    folder = tmp_path_factory.mktemp("report")
    rows = [row for row in read_rows(ROOT / "results/runs") if not _is_asap_on_proteins(row)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row.to_json()) + "\n" for row in rows))
    code = (
        "import sys\nfrom gtpool.cli import main\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    outputs = [
        word
        for name in ("report.html", "report.md", "report.tex", "report.csv")
        for word in ("-o", str(folder / name))
    ]
    words = ["report", str(folder / "rows.jsonl"), *outputs, "--bench", str(ROOT / "results/bench")]
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_the_command_writes_all_formats_of_real_rows_without_torch(real):
    page = (real / "report.html").read_text()
    assert len(page) < 5_000_000
    assert "NVIDIA H200" in page
    assert "## Scalability" in (real / "report.md").read_text()
    assert (real / "report.tex").read_text().isascii()
    cells = sum(len(several.cells) for several in STUDIES.values())
    assert len((real / "report.csv").read_text().splitlines()) == cells + 1


@pytest.fixture
def visit(browser, real):
    """Open the report; in the end nothing was fetched and nothing went wrong."""
    noise, asked, contexts = [], [], []

    def start(**options):
        context = browser.new_context(**options)
        context.set_default_timeout(120_000)  # of a busy machine
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("console", lambda message: noise.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((real / "report.html").as_uri())
        return page

    yield start
    for context in contexts:
        context.close()
    assert noise == []
    assert {url for url in asked if not url.startswith(("file:", "data:"))} == set()


def column(page, number):
    cells = page.locator(f"#table1 table >> nth=0 >> tbody tr td:nth-child({number})")
    return [line.split("\n")[0] for line in cells.all_inner_texts()]


@pytest.mark.slow
def test_tables_sort_by_click_and_by_key_with_missing_figures_last(visit):
    page = visit()
    heads = page.locator("#table1 table >> nth=0 >> thead button")
    heads.nth(3).click()  # PROTEINS, where ASAP is missing
    values = column(page, 4)
    numbers = [float(value.split()[0]) for value in values[:-1]]
    assert numbers == sorted(numbers, reverse=True)
    assert (values[-1], column(page, 1)[-1]) == ("–", "asap")
    heads.nth(3).focus()
    page.keyboard.press("Enter")
    values = column(page, 4)
    assert [float(value.split()[0]) for value in values[:-1]] == sorted(numbers)
    assert values[-1] == "–"
    assert page.locator("#table1 th[aria-sort=ascending]").count() == 1
    heads.nth(0).click()
    assert column(page, 1) == sorted(column(page, 1))
    page.locator("#table1 table >> nth=0 >> th").nth(3).click(position={"x": 2, "y": 2})
    beside = [float(value.split()[0]) for value in column(page, 4)[:-1]]  # the words
    assert beside == sorted(numbers, reverse=True)


@pytest.mark.slow
def test_a_figure_leads_to_its_runs_and_back(visit):
    page = visit()
    runs = page.locator("#runs")
    assert not runs.is_visible()
    page.locator("#table1 a[href='#runs=table1/gtpool-v/PROTEINS']").first.click()
    page.wait_for_function("!document.getElementById('runs').hidden")
    assert runs.locator("h2").inner_text() == "Runs: gtpool-v, PROTEINS (table1)"
    lines = runs.locator("tbody tr")
    assert lines.count() == 100
    tests = [float(text) for text in runs.locator("tbody td:nth-child(4)").all_inner_texts()]
    shown = page.locator("#table1 a[href='#runs=table1/gtpool-v/PROTEINS']").first.inner_text()
    assert np.mean(tests) == pytest.approx(float(shown.split()[0]), abs=0.01)
    behind = runs.locator(".wide").evaluate("box => getComputedStyle(box).backgroundImage")
    grey = runs.evaluate("box => getComputedStyle(box).backgroundColor")
    assert behind.startswith(f"linear-gradient(90deg, {grey} ")
    runs.get_by_role("button", name="test, %").click()
    ordered = [float(text) for text in runs.locator("tbody td:nth-child(4)").all_inner_texts()]
    assert ordered == sorted(tests, reverse=True)
    page.get_by_role("link", name="Back to the table").click()
    page.wait_for_function("document.getElementById('runs').hidden")
    assert page.url.endswith("#table1")
    for link in page.locator("nav a").all():
        target = page.locator(link.get_attribute("href"))
        assert target.count() == 1


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_page_fits_a_phone_and_a_desk_in_light_and_dark(visit, width, scheme):
    page = visit(viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.locator("#table1 .wide").first
    assert wide.evaluate("box => box.scrollWidth > box.clientWidth")  # it scrolls in its own box
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(colour) == (
        "rgb(20, 25, 28)" if scheme == "dark" else "rgb(255, 255, 255)"
    )
    assert len(page.screenshot()) > 20_000
    assert page.locator("#ranks svg").count() == 2
