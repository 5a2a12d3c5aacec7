"""How far tuning has come."""

from io import StringIO
from types import SimpleNamespace

from rich.console import Console

from gtpool.report.search_report import SearchProgress
from gtpool.study.halving import Rung
from gtpool.study.recipe import recipe
from gtpool.study.result import RunResult


def ended(status, error=None):
    return RunResult(key="", spec_json={}, status=status, error=error, test=0.875)


def test_rounds_are_told_apart_and_no_test_figure_is_shown():
    now = [0.0]
    text = StringIO()
    watch = SearchProgress(console=Console(file=text, width=200), clock=lambda: now[0])
    watch.rung(Rung(1, 3, 500))
    specs = [*recipe("MUTAG", {"width": 8}), *recipe("MUTAG", {"width": 16})]
    watch.begin(specs, [])
    for number in range(20):
        now[0] += 3.0
        failed = number == 1
        watch.finished(ended("failed" if failed else "done", "nan"))
    watch.rung(Rung(2, 3, 500))
    watch.begin(specs[:10], [ended("done")] * 4)
    said = text.getvalue()
    assert "round 1 of 3: 2 configurations, 500 epochs: 20 runs\n" in said
    assert "round 1 of 3: 2 of 20 runs, about 54 s left in this round; one failed: nan\n" in said
    assert "round 1 of 3: 4 of 20 runs, about 48 s left in this round\n" in said
    assert "round 1 of 3: 20 of 20 runs\n" in said
    assert "round 2 of 3: 1 configuration, 500 epochs: 10 runs, 4 of them done before\n" in said
    assert "87" not in said


def test_an_error_is_told_as_it_is_whatever_brackets_it_has():
    _, text, watch, _ = begun()
    watch.finished(ended("failed", "[gpu 0] is full [/x]"))
    assert "one failed: [gpu 0] is full [/x]\n" in text.getvalue()


def begun():
    """Begin a round of ten runs: the clock, what is written, the watcher, the runs."""
    now, text = [0.0], StringIO()
    watch = SearchProgress(console=Console(file=text, width=200), clock=lambda: now[0])
    watch.rung(Rung(1, 3, 500))
    specs = recipe("MUTAG", {"width": 8})
    watch.begin(specs, [])
    return now, text, watch, specs


def test_a_long_run_says_its_epoch_now_and_then():
    now, text, watch, specs = begun()
    watch.started(specs[0])
    for number in range(1, 101):  # an epoch a second
        now[0] += 1.0
        watch.epoch(specs[0], SimpleNamespace(number=number))
    epochs = [f"round 1 of 3: fold 1, epoch {at} of 500 (0 of 10 runs)" for at in (30, 60, 90)]
    assert text.getvalue().splitlines()[1:] == epochs
    watch.finished(ended("done"))
    assert "round 1 of 3: 1 of 10 runs, about 15 min left in this round\n" in text.getvalue()


def test_a_long_trial_says_its_epoch_where_there_is_no_terminal():
    now, text = [0.0], StringIO()
    console = Console(file=text, width=200)
    with SearchProgress(4, 10, "loss", console=console, clock=lambda: now[0]) as watch:
        specs = recipe("MUTAG", {"width": 8})
        watch.begin(specs[:1], [])
        for number in range(1, 41):
            now[0] += 1.0
            watch.epoch(specs[0], SimpleNamespace(number=number))
        watch.finished(ended("done"))
    assert text.getvalue() == "fold 1, epoch 30 of 500 (0 of 4 trials)\n"


def test_epochs_take_no_line_from_short_runs():
    now, text, watch, specs = begun()
    for spec in specs:
        for number in range(1, 7):
            now[0] += 1.0
            watch.epoch(spec, SimpleNamespace(number=number))
        watch.finished(ended("done"))
    said = text.getvalue()
    assert all(f"round 1 of 3: {count} of 10 runs" in said for count in range(1, 11))
    assert "epoch 6" not in said
