"""A search by validation alone: what it tries, what it may know, and what it survives."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace

import pytest
from optuna.trial import TrialState
from rich.console import Console
from waiting import wait_for

from gtpool.model import METHODS
from gtpool.report.search_report import SearchProgress, coverage, draw_importance
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study import optuna_study
from gtpool.study.inputs import expand_folds, load_data
from gtpool.study.plan import make_plan
from gtpool.study.search import Search, TrialResult
from gtpool.study.space import (
    PAPER_SPACE,
    Range,
    apply_choice,
    count_combinations,
    read_space,
    untried_values,
)
from gtpool.study.split_rules import choose_split
from gtpool.study.store import Store

MAIN = "from gtpool.cli import main; main()"
BASE = RunSpec(
    data=DataSpec(source="MUTAG"),
    split=SplitSpec(folds=3),
    model=ModelSpec(width=8, levels=1),
    train=TrainSpec(epochs=2, warmup=0),
)
SIX = {"model.width": (8, 12, 16), "train.lr": (1e-3, 1e-2)}
TINY = """
"model.width" = [8, 12, 16]
"model.ratio" = [0.5, 0.25]
"train.lr" = [1e-3, 1e-2]
"""
pytestmark = pytest.mark.usefixtures("no_data_folder")


class Untested:
    """The result of a run of which a search may look at nothing but what validation says."""

    def __init__(self, **known):
        self._known = known

    def __getattr__(self, name):
        assert name in {"status", "done", "error", "valid_loss", "valid_metric"}, (
            f"{name} was looked at"
        )
        return self._known[name]


def row(loss, metric=0.5, error=None):
    status = "done" if error is None else "failed"
    return Untested(
        status=status, done=status == "done", error=error, valid_loss=loss, valid_metric=metric
    )


def wide_is_good(specs):
    """Stand for runs: wider and slower is better, and later folds are harder for all."""
    return [
        row(spec.split.fold + 1 / spec.model.width + spec.train.lr, spec.model.width / 100)
        for spec in specs
    ]


def drain(folder, trials=6, do=wide_is_good, space=None, base=BASE, **how):
    return list(Search(base, space or SIX, folder).run(trials, do, **how))


def choices(tried):
    return [trial.choice for trial in tried]


# What to choose from


def test_the_papers_space_is_the_papers():
    assert count_combinations(PAPER_SPACE) == 144
    assert (
        read_space({name: list(values) for name, values in PAPER_SPACE.items()}, BASE)
        == PAPER_SPACE
    )


def test_options_are_named_with_dots_or_stand_in_tables():
    dots = '"model.ratio" = [0.5, 0.25]\n"train.lr" = {low = 1e-4, high = 1e-2, log = true}'
    tables = "[model]\nratio = [0.5, 0.25]\n[train]\nlr = {low = 1e-4, high = 1e-2, log = true}"
    space = read_space(tomllib.loads(dots), BASE)
    assert space == read_space(tomllib.loads(tables), BASE)
    assert space == {"model.ratio": (0.5, 0.25), "train.lr": Range(1e-4, 1e-2, log=True)}
    assert count_combinations(space) is None


def test_a_range_is_of_whole_numbers_where_the_option_is():
    wide = {"low": 1, "high": 3}
    space = read_space({"model.levels": wide, "model.dropout": {"low": 0, "high": 1}}, BASE)
    assert [type(end) for end in space["model.levels"][:2]] == [int, int]
    assert [type(end) for end in space["model.dropout"][:2]] == [float, float]
    assert count_combinations({"model.levels": space["model.levels"]}) == 3


def test_a_method_and_its_options_are_chosen_as_poolers_are():
    assert apply_choice(BASE, {"model.pool": "gin"}).model.conv == "gin"
    both = {"model.pool_options.heads": 2, "model.pool": "gtpool-topk"}
    assert apply_choice(BASE, both).model.pool_options == {"sampler": "topk", "heads": 2}
    assert METHODS["gtpool-topk"].model["pool_options"] == {"sampler": "topk"}
    assert apply_choice(BASE, {"model.width": 64, "train.lr": 1}).train.lr == 1.0


@pytest.mark.parametrize(
    ("base", "choice", "options"),
    [
        ({}, {"model.pool": "gtpool-v"}, {"order": "score"}),
        ({}, {"model.pool": "sagpool_h-rws"}, {"sampler": "rws", "order": "score"}),
        ({}, {"model.pool": "gtpool-topk"}, {"sampler": "topk"}),
        ({}, {"model.pool": "gtpool", "model.pool_options.order": "index"}, {"order": "index"}),
        (
            {"pool_options": {"sampler": "topk"}},
            {"model.pool_options.sampler": "rws"},
            {"sampler": "rws", "order": "score"},
        ),
    ],
)
def test_a_choice_on_a_table_is_what_train_makes_of_it(base, choice, options):
    plan = make_plan({"data": {"source": "mine.csv"}, "model": base}, {})
    run = apply_choice(plan.run, choice)
    assert run.model.pool_options == options
    assert make_plan(plan._replace(run=run).to_json(), {}).run == run


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"model.widht": [8]}, "unknown option model.'widht'; did you mean 'width'?"),
        ({"modle.width": [8]}, "unknown option 'modle'; did you mean 'model'?"),
        ({"model.width": []}, "model.width: the list of choices is empty"),
        ({"model.width": [8, 8]}, "model.width: 8 "),
        ({"model.width": ["wide"]}, "model.width must be int, got 'wide'"),
        ({"model.width": [[8]]}, "model.width: a choice must be"),
        ({"model.width": 8}, "model.width must be a list of choices, or a range such as {low"),
        ({"model.width": {}}, "model.width must be a list of choices, or a range such as {low"),
        ({"train.lr": {"low": 1e-2, "high": 1e-4}}, "train.lr: low must be below high, got 0.01"),
        ({"train.lr": {"low": 0.0, "high": 1.0, "log": True}}, "train.lr.log must be true or fal"),
        ({"train.lr": {"low": 1e-4}}, "train.lr.high must be a number, got None"),
        (
            {"train.lr": {"low": 1e-4, "high": 1.0, "step": 1}},
            "a range has low, high and log, not 'step'",
        ),
        ({"train.lr": {"min": [1e-4]}}, "range as {low = "),
        ({"model.pool": {"low": 1, "high": 2}}, "model.pool must be str, got 1"),
        ({"train.select": ["loss", "metric"]}, "train.select"),
        ({"seed": [1, 2]}, "seed cannot be searched over"),
        ({"split.folds": [3, 10]}, "split.folds cannot be searched over"),
        ({}, "empty"),
    ],
)
def test_what_is_wrong_with_a_space_is_named(table, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        read_space(table, BASE)


def test_values_that_nobody_tried_are_named():
    tried = [{"model.width": 8, "train.lr": 1e-3}, {"model.width": 16, "train.lr": 1e-3}]
    assert untried_values(SIX, tried) == ["model.width 12", "train.lr 0.01"]
    assert untried_values({"train.lr": Range(1e-3, 1.0)}, tried) == ["train.lr above 0.001"]


# What is tried


def test_as_many_different_combinations_are_tried_as_asked_or_as_there_are(tmp_path):
    four = drain(tmp_path, 4)
    assert len(four) == len({str(choice) for choice in choices(four)}) == 4
    more = drain(tmp_path, 100)
    assert len({str(choice) for choice in choices(four + more)}) == 6
    assert drain(tmp_path, 100) == []


def test_the_best_by_validation_is_found_and_nothing_else_of_a_run_is_read(tmp_path):
    drain(tmp_path)
    best = Search(BASE, SIX, tmp_path).best()
    assert best.choice == {"model.width": 16, "train.lr": 1e-3}
    assert best.value == pytest.approx(1 + 1 / 16 + 1e-3)
    assert (best.complete, best.folds) == (True, 3)


def test_where_the_metric_picks_the_epoch_it_is_what_is_compared(tmp_path):
    base = apply_choice(BASE, {"train.select": "metric"})
    drain(tmp_path, base=base)
    search = Search(base, SIX, tmp_path)
    assert (search.metric, search.higher_is_better) == ("accuracy", True)
    assert search.best().choice["model.width"] == 16
    assert search.best().value == pytest.approx(0.16)


def test_one_seed_chooses_the_same_each_time_and_another_seed_not(tmp_path):
    space = {"train.lr": Range(1e-4, 1e-2, log=True), "model.width": Range(8, 64)}
    first, again, other = (
        choices(drain(tmp_path / name, 14, space=space, seed=seed))
        for name, seed in {"first": 1, "again": 1, "other": 2}.items()
    )
    assert first == again != other


def test_a_search_that_was_interrupted_chooses_what_it_would_have_chosen(tmp_path):
    whole = drain(tmp_path / "whole")
    calls = []

    def interrupted(specs):
        calls.append(specs)
        if len(calls) == 8:  # the second fold of the third trial
            raise KeyboardInterrupt
        return wide_is_good(specs)

    with pytest.raises(KeyboardInterrupt):
        drain(tmp_path / "stopped", do=interrupted)
    rest = drain(tmp_path / "stopped")
    search = Search(BASE, SIX, tmp_path / "stopped")
    assert choices(search.tried()) == choices(whole)
    assert choices(rest) == choices(whole)[2:]
    assert search.running() == 0
    assert not list((tmp_path / "stopped/drivers").iterdir())


def test_what_was_interrupted_is_found_again_after_another_search_in_the_folder(tmp_path):
    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drain(tmp_path, do=interrupted)
    assert len(drain(tmp_path, 2, space={"model.width": (8, 12)})) == 2
    assert len(drain(tmp_path)) == 6
    assert Search(BASE, SIX, tmp_path).running() == 0


def test_processes_share_a_search_and_none_tries_one_too_many(tmp_path):
    space = {"model.width": Range(8, 64), "train.lr": (1e-3, 1e-2)}
    both = [Search(BASE, space, tmp_path).run(9, wide_is_good) for _ in range(2)]
    turns = [trial for pair in zip_longest(*both) for trial in pair if trial is not None]
    assert len(turns) == len(Search(BASE, space, tmp_path).tried()) == 9
    assert len({str(choice) for choice in choices(turns)}) == 9


def test_a_living_process_keeps_its_trial(tmp_path):
    search = Search(BASE, SIX, tmp_path)
    seen = []

    def look_elsewhere(specs):
        if not seen:
            seen.extend(drain(tmp_path, 2))
            assert Search(BASE, SIX, tmp_path).running() == 1
        return wide_is_good(specs)

    mine = list(search.run(2, look_elsewhere))
    assert len(mine) == len(seen) == 1
    assert mine[0].choice != seen[0].choice


def test_a_trial_whose_process_died_before_it_put_its_name_down_is_not_waited_for(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(optuna_study, "_STALE", 1.0)
    search = Search(BASE, SIX, tmp_path)
    search.study.ask()
    assert len(drain(tmp_path)) == 6
    assert search.running() == 0


def test_a_process_whose_trial_was_taken_for_lost_goes_on_with_another(tmp_path):
    search, taken = Search(BASE, SIX, tmp_path), []

    def take(specs):
        if not taken:
            taken.extend(search.study.get_trials(states=(TrialState.RUNNING,)))
            search.study.tell(taken[0].number, state=TrialState.FAIL)
        return wide_is_good(specs)

    tried = list(search.run(6, take))
    assert len(tried) == len({str(choice) for choice in choices(tried)}) == 6
    assert taken[0].number not in {trial.number for trial in tried}


def test_a_study_keeps_the_name_it_had_before_later_options(tmp_path):
    assert Search(BASE, SIX, tmp_path).study.study_name == "MUTAG gtpool-v 8be3ed3c"  # of 0.1.0


def test_what_differs_in_space_or_settings_is_another_study(tmp_path):
    drain(tmp_path, 2)
    assert len(drain(tmp_path, 2, space={"model.width": (8, 12)})) == 2
    assert len(drain(tmp_path, 2, base=apply_choice(BASE, {"model.dropout": 0.1}))) == 2
    assert len(Search(BASE, SIX, tmp_path).tried()) == 2


# Giving up


def test_what_is_worse_than_the_median_is_pruned_by_its_mean_so_far(tmp_path):
    space = {"train.lr": Range(1e-4, 1.0)}
    tried = drain(tmp_path, 20, space=space)
    pruned = [trial for trial in tried if not trial.complete]
    assert pruned
    assert {trial.folds for trial in pruned} == {2}
    assert all(trial.complete for trial in tried[:5])
    middle = sorted(trial.value for trial in tried if trial.complete)[2]
    assert Search(BASE, space, tmp_path).best().value <= middle
    assert all(trial.complete for trial in drain(tmp_path / "all", 20, space=space, prune=False))


def test_folds_that_run_at_once_are_judged_together(tmp_path):
    sizes = []

    def counted(specs):
        sizes.append(len(specs))
        return wide_is_good(specs)

    drain(tmp_path, 2, do=counted, rung=2)
    assert sizes == [2, 1, 2, 1]


def test_seeds_of_a_fold_are_averaged(tmp_path):
    def by_seed(specs):
        return [row(float(spec.seed)) for spec in specs]

    search = Search(BASE, SIX, tmp_path, seeds=3)
    (tried,) = search.run(1, by_seed)
    assert (tried.value, tried.folds) == (43.0, 3)


def test_runs_that_fail_end_their_trial_with_the_reason(tmp_path):
    def wide_fails(specs):
        return [
            row(None, error="the loss is not finite") if spec.model.width == 16 else row(1.0)
            for spec in specs
        ]

    tried = drain(tmp_path, do=wide_fails)
    failed = [trial for trial in tried if trial.error]
    assert {trial.choice["model.width"] for trial in failed} == {16}
    assert {trial.error for trial in failed} == {"the loss is not finite"}
    search = Search(BASE, SIX, tmp_path)
    assert search.best().choice["model.width"] != 16
    assert "(4 on all folds, 0 pruned, 2 given up)" in coverage(search.tried(), SIX)[0]


def test_values_that_do_not_go_together_end_their_trial_not_the_search(tmp_path):
    space = {"model.width": (8, 12), "model.pool_options.heads": (1, 8)}
    tried = drain(tmp_path, space=space)
    assert len(tried) == 4
    (odd,) = [trial for trial in tried if trial.error]
    assert odd.choice == {"model.width": 12, "model.pool_options.heads": 8}
    assert "heads" in odd.error


# Where it is kept


def test_a_line_that_a_loss_of_power_cut_is_taken_off_the_journal(tmp_path):
    drain(tmp_path, 3)
    path = tmp_path / optuna_study.JOURNAL
    path.write_bytes(path.read_bytes() + b'{"op_code":4,"wor')
    assert len(drain(tmp_path)) == 3
    assert len(Search(BASE, SIX, tmp_path).tried()) == 6


def test_a_journal_that_is_none_is_named(tmp_path):
    (tmp_path / optuna_study.JOURNAL).write_text("hello\nworld\n")
    with pytest.raises(ValueError, match=r"search\.journal cannot be opened"):
        Search(BASE, SIX, tmp_path)


def test_a_database_takes_the_place_of_the_journal(tmp_path):
    url = f"sqlite:///{tmp_path}/search.db"
    list(Search(BASE, SIX, tmp_path, storage=url).run(4, wide_is_good))
    again = Search(BASE, SIX, tmp_path, storage=url)
    assert len(list(again.run(6, wide_is_good))) == 2
    assert again.best().choice == {"model.width": 16, "train.lr": 1e-3}
    assert not (tmp_path / optuna_study.JOURNAL).exists()
    again.study._storage.remove_session()
    again.study._storage._backend.engine.dispose()


@pytest.mark.parametrize("url", ["nonsense", "nosuch://host/db", "sqlite:////no/such/place/a.db"])
def test_a_database_that_cannot_be_opened_is_named(tmp_path, url):
    with pytest.raises(ValueError, match=f"storage '{url}' cannot be opened: "):
        Search(BASE, SIX, tmp_path, storage=url)


# What people see


def test_progress_says_what_came_of_a_trial_and_how_long_the_rest_takes(tmp_path):
    now, out = [0.0], StringIO()
    console = Console(file=out, width=200)
    search = Search(BASE, SIX, tmp_path)
    with SearchProgress(6, 3, search.metric, console=console, clock=lambda: now[0]) as watch:
        for tried in search.run(6, wide_is_good):
            now[0] += 10
            watch.tried(tried, search.tried(), search.best())
    first, *_, last = out.getvalue().splitlines()
    assert re.fullmatch(
        r"trial 0: validation loss 1\.\d{4}, mean of 3 folds "
        r"\(1 of 6 trials, best 1\.\d{4}, about 50 s left\)",
        first,
    )
    assert last.endswith("(6 of 6 trials, best 1.0635)")


def test_long_trials_say_how_long_the_rest_takes_outside_a_terminal():
    now, out = [0.0], StringIO()
    runs = expand_folds(BASE)
    console = Console(file=out, width=200)
    with SearchProgress(4, len(runs), "loss", console=console, clock=lambda: now[0]) as watch:
        for run in runs[:2]:
            now[0] += 20
            watch.epoch(run, SimpleNamespace(number=1))
            now[0] += 20
            watch.finished({})
        now[0] += 20
        watch.epoch(runs[2], SimpleNamespace(number=5))
    first, second = out.getvalue().splitlines()
    assert first == f"fold 2, epoch 1 of {BASE.train.epochs} (0 of 4 trials, about 11 min left)"
    assert second == f"fold 3, epoch 5 of {BASE.train.epochs} (0 of 4 trials, about 8 min left)"


def test_a_split_without_folds_is_tried_by_seeds():
    out = StringIO()
    random = replace(BASE, split=replace(BASE.split, rule="random"))
    clock = iter(range(0, 1000, 40))
    console = Console(file=out, width=200)
    with SearchProgress(1, 1, "loss", console=console, clock=lambda: next(clock)) as watch:
        watch.epoch(random, SimpleNamespace(number=1))
        tried = TrialResult(0, complete=True, value=0.5, folds=1, choice={})
        watch.tried(tried, [tried], tried)
    assert out.getvalue().splitlines() == [
        f"seed {BASE.seed}, epoch 1 of {BASE.train.epochs} (0 of 1 trial)",
        "trial 0: validation loss 0.5000 (1 of 1 trial, best 0.5000)",
    ]


def test_importance_needs_some_trials_and_tells_what_matters(tmp_path):
    space = {"model.width": (8, 128), "train.lr": (1e-3, 1.1e-3), "model.dropout": (0.1, 0.2, 0.3)}
    search = Search(BASE, space, tmp_path)
    list(search.run(3, wide_is_good))
    assert search.importance() is None
    list(search.run(12, wide_is_good, prune=False))
    shares = search.importance()
    assert sum(shares.values()) == pytest.approx(1)
    drawn = draw_importance(shares, "PED-ANOVA")
    assert all(f">{text}</text>" in drawn for text in (*space, "PED-ANOVA"))
    assert drawn == draw_importance(shares, "PED-ANOVA")


def test_the_command_ends_with_settings_that_train_and_says_what_it_left_out(tmp_path, gtpool):
    space, out = tmp_path / "space.toml", tmp_path / "out"
    space.write_text(TINY)
    command = ("search", "MUTAG", "--folds", 3, "--epochs", 2, "--trials", 5)
    command = (*command, "--space", space, "--output-dir", out)
    code, said, heard = gtpool(*command)
    assert code == 0
    assert heard.count("\n") == 5
    assert "(5 of 5 trials, best 0." in heard
    assert f"best:       {out}/best.json (for gtpool train --config)" in said
    assert "tried: 5 of 12 combinations (5 on all folds, 0 pruned)" in said
    assert "not tried at all: " in said
    assert "Pooled validation: one choice for all folds has seen test labels" in said
    assert "(PED-ANOVA, 5 trials on all folds, rough below 50)" in said
    assert (out / "importance.svg").read_text().startswith("<svg")
    rows = Store(out).rows()
    assert len(rows) == 15
    for tested in rows:  # whatever the test parts gave is nowhere to be read
        assert f"{100 * tested.test:.2f}" not in said + heard
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    assert gtpool(*command)[2] == "5 of 5 trials are done already\n"
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()} == before

    code, said, _ = gtpool("train", "--config", out / "best.json", "--output-dir", out / "best")
    assert code == 0
    assert "gtpool search chose the options on these folds" in said
    assert "gtpool search chose the options" in (out / "best" / "report.html").read_text()
    settings = json.loads((out / "best.json").read_text())
    assert json.loads((out / "best/config.json").read_text()) == settings
    losses = {tested.key: tested.valid_loss for tested in rows}
    assert all(losses[tested.key] == tested.valid_loss for tested in Store(out / "best").rows())


def test_a_fifth_of_own_data_tests_the_best_options_and_no_trial_reads_it(tmp_path, gtpool):
    space, table, out = tmp_path / "space.toml", tmp_path / "mine.csv", tmp_path / "out"
    space.write_text('"model.width" = [8, 4]')
    rows = [f"{'C' * (at + 1)}O,{'odd' if at % 2 else 'even'}" for at in range(40)]
    table.write_text("\n".join(("smiles,y", *rows)))
    command = ("search", table, "--folds", 3, "--epochs", 1, "--trials", 2, "--space", space)
    code, said, heard = gtpool(*command, "--output-dir", out)
    assert code == 0, heard
    by_use = {"exclude": [], "test": []}
    for row in Store(out).rows():
        by_use[row.spec.split.hold_out].append(row)
    assert [len(some) for some in by_use.values()] == [6, 3]
    loaded = load_data(by_use["test"][0].spec.data)
    splits = [choose_split(row.spec.split, loaded) for row in by_use["test"]]
    (held,) = {tuple(split.test.tolist()) for split in splits}
    for row in by_use["exclude"]:
        assert choose_split(row.spec.split, loaded).uncovered.tolist() == list(held)
    found = json.loads((out / "held_out.json").read_text())
    assert found["graphs"] == len(held) == 8
    single = [row.test for row in by_use["test"]]
    assert found["single"]["mean"] == pytest.approx(sum(single) / 3)
    assert f"held out:   accuracy, %: {100 * found['value']:.2f} by the networks of all" in said
    assert "8 graphs that no trial has read" in said
    settings = json.loads((out / "best.json").read_text())
    assert (settings["split"]["hold_out"], settings["searched"]) == ("none", True)
    assert not make_plan(settings, {"data": {"source": "MUTAG"}}).searched
    code, said, _ = gtpool(*command, "--no-hold-out", "--output-dir", tmp_path / "whole")
    assert (code, "held out:" in said) == (0, False)
    assert all(row.spec.split.hold_out == "none" for row in Store(tmp_path / "whole").rows())


def test_a_table_is_searched_with_the_data_options_of_train(tmp_path, gtpool):
    space, table, out = tmp_path / "space.toml", tmp_path / "mine.csv", tmp_path / "out"
    space.write_text('"model.width" = [8]')
    parts = ("train", "train", "train", "valid", "test")
    rows = [f"{'C' * (at + 1)}O,{at}.5,{at % 2},{parts[at % 5]}" for at in range(20)]
    table.write_text("\n".join(("mol,size,odd,part", *rows)))
    options = ("--smiles-column", "mol", "--target-columns", "size", "--task", "regression")
    command = ("search", table, *options, "--split-column", "part", "--epochs", 1)
    code, _, heard = gtpool(*command, "--trials", 1, "--space", space, "--output-dir", out)
    assert code == 0, heard
    spec = json.loads((out / "best.json").read_text())
    assert spec["data"]["target_columns"] == ["size"]
    (row,) = Store(out).rows()
    assert (row.metric, row.spec.split.rule) == ("rmse", "column")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('"model.widht" = [8]', "unknown option model.'widht'; did you mean 'width'?"),
        ('"train.lr" = [-1.0]', "train.lr = -1.0"),
        ('"model.pool" = ["gtpol"]', "model.pool = 'gtpol'"),
    ],
)
def test_a_space_that_is_wrong_is_one_line(tmp_path, gtpool, text, complaint):
    path = tmp_path / "space.toml"
    path.write_text(text)
    words = ("search", "MUTAG", "--space", path, "--output-dir", tmp_path / "out")
    code, _, heard = gtpool(*words)
    assert code == 2
    assert heard.startswith("gtpool: ")
    assert heard.count("\n") == 1
    assert complaint in heard
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_without_optuna_the_extra_is_named():
    program = """
import sys
sys.modules["optuna"] = None
from gtpool.cli import main
for words in (["search"], ["study", "tune"]):
    sys.argv = ["gtpool", *words, "MUTAG"]
    try:
        main()
    except SystemExit as end:
        print(end.code)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2\n2\n"
    for command, line in zip(("search", "tune"), done.stderr.splitlines(), strict=True):
        assert line.startswith(f"gtpool: `gtpool {command}` requires optuna")
        assert "'.[search]'" in line


# Real processes, really killed


def start(folder, *words):
    """Begin a search of all twelve combinations in a process group of its own."""
    (folder.parent / "space.toml").write_text(TINY)
    command = [sys.executable, "-c", MAIN, "search", "MUTAG", "--folds", "3", "--epochs", "2"]
    command += ["--recipe", "paper"]
    command += ["--trials", "12", "--space", folder.parent / "space.toml", "--output-dir", folder]
    return subprocess.Popen(
        [*command, *words], start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )


def finished(folder):
    return {path.name: path.stat().st_mtime_ns for path in Path(folder, "runs").glob("*.json")}


def study(folder):
    base = json.loads((folder / "best.json").read_text())
    base = {name: part for name, part in base.items() if name in BASE.to_json()}
    first = {"width": 128, "ratio": 0.5}
    plain = {**base, "model": {**base["model"], **first}, "train": {**base["train"], "lr": 5e-4}}
    return Search(RunSpec.from_json(plain), read_space(tomllib.loads(TINY), BASE), folder)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    process = start(folder)
    assert process.communicate()[0]
    assert process.returncode == 0
    return [trial._replace(number=0) for trial in study(folder).tried()]


@pytest.mark.slow
def test_after_kill_9_the_search_is_what_it_would_have_been(tmp_path, uninterrupted):
    folder = tmp_path / "out"
    process = start(folder, "--jobs", "2")
    wait_for(lambda: len(finished(folder)) >= 8, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = finished(folder)
    process = start(folder)
    assert process.communicate()[0]
    assert process.returncode == 0
    search = study(folder)
    assert [trial._replace(number=0) for trial in search.tried()] == uninterrupted
    assert search.running() == 0
    after = finished(folder)
    assert {name: after[name] for name in before} == before


@pytest.mark.slow
def test_two_processes_share_a_search_and_what_one_loses_the_other_takes(tmp_path):
    folder = tmp_path / "out"
    both = [start(folder, "--trials", "7"), start(folder, "--trials", "7", "--seed", "1")]
    wait_for(lambda: len(finished(folder)) >= 9, both[0])
    both[1].kill()
    heard = [process.communicate()[1].decode() for process in both]
    assert both[0].returncode == 0
    search = study(folder)
    tried = search.tried()
    assert len(tried) == len({str(choice) for choice in choices(tried)}) == 7
    assert search.running() == 0
    numbers = re.findall(r"^trial (\d+): ", "".join(heard), re.MULTILINE)
    assert set(map(int, numbers)) <= {trial.number for trial in tried}


@pytest.mark.slow
def test_ctrl_c_ends_with_one_line_and_the_same_command_goes_on(tmp_path, uninterrupted):
    folder = tmp_path / "out"
    process = start(folder)
    wait_for(lambda: len(finished(folder)) >= 4, process)
    os.killpg(process.pid, signal.SIGINT)
    heard = process.communicate(timeout=300)[1].decode().splitlines()
    assert process.returncode == 130
    assert heard[-1].startswith("gtpool: interrupted")
    assert all(line.startswith("trial ") for line in heard[:-1])
    process = start(folder)
    assert process.communicate()[0]
    assert [trial._replace(number=0) for trial in study(folder).tried()] == uninterrupted
