import io
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from gtpool.report.progress import Progress
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study.result import RunResult


def spec(fold, seed=1, **model):
    return RunSpec(
        data=DataSpec(source="MUTAG"),
        split=SplitSpec(fold=fold),
        model=ModelSpec(**model),
        train=TrainSpec(epochs=100),
        seed=seed,
    )


def row(of, test=0.5, epochs=40, metric="accuracy"):
    done = test is not None
    said = {
        "key": of.key,
        "spec": of.to_json(),
        "status": "done" if done else "failed",
        "error": None if done else "the loss is nan",
        "metric": metric,
        "test": test,
        "epoch": 7,
        "epochs_run": epochs if done else None,
    }
    return RunResult.from_json(said)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def watcher(clock, terminal=False, names=None, width=120, height=25):
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=width, height=height, color_system=None
    )
    return Progress(console, clock, names), file


def drawn(progress):
    """Give the lines of the table as a console of this size shows them."""
    with progress.console.capture() as shown:
        progress.console.print(progress.table())
    return shown.get().splitlines()


def calls(work):
    """Count the calls that some work makes."""
    count = [0]

    def heard(_frame, event, _what):
        count[0] += event in {"call", "c_call"}

    sys.setprofile(heard)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count[0]


def epoch(number):
    return SimpleNamespace(number=number)


def test_outside_a_terminal_there_is_one_plain_line_a_run(clock):
    progress, file = watcher(clock)
    runs = [spec(fold) for fold in range(4)]
    with progress:
        progress.begin(runs, [row(runs[0], 0.25)])
        progress.started(runs[1])
        clock.now = 10.0
        progress.epoch(runs[1], epoch(40))
        progress.finished(row(runs[1], 0.75))
        progress.finished(row(runs[2], None))
    before, done, failed = file.getvalue().splitlines()
    assert before == "1 of 4 runs are done already"
    assert done.startswith("MUTAG, gtpool-v, seed 1, fold 2: accuracy 75.00 at epoch 7 (2 of 4")
    assert done.endswith("runs, mean accuracy 50.00, about 20 s left)")
    assert failed.startswith("MUTAG, gtpool-v, seed 1, fold 3: failed: the loss is nan (3 of 4")
    assert failed.endswith("runs, 1 failed, mean accuracy 50.00, about 5 s left)")


def test_a_done_run_without_a_figure_says_why_it_has_none(clock):
    progress, file = watcher(clock)
    with progress:
        progress.begin([spec(0)], [])
        progress.finished(row(spec(0)).updated(test=None))
    assert "fold 1: failed: its test metric is not a number (1 of 1" in file.getvalue()


def test_a_metric_is_named_as_in_the_outcome(clock):
    progress, file = watcher(clock)
    with progress:
        progress.begin([spec(0)], [])
        progress.finished(row(spec(0), 0.75, metric="roc_auc"))
    assert "ROC-AUC 75.00 at epoch 7 (1 of 1 run, mean ROC-AUC 75.00)" in file.getvalue()


def test_a_split_without_folds_has_seeds_alone(clock):
    run = replace(spec(0), split=SplitSpec(rule="random"))
    progress, file = watcher(clock)
    with progress:
        progress.begin([run], [])
        progress.finished(row(run, 0.75))
        progress.begin([run], [row(run, 0.75)])
    done, before = file.getvalue().splitlines()
    assert done == (
        "MUTAG, gtpool-v, seed 1: accuracy 75.00 at epoch 7 (1 of 1 run, mean accuracy 75.00)"
    )
    assert before == "1 of 1 run is done already"
    for width, head in ((120, "seed ┃  test ┃"), (40, "seed ┃  runs ┃")):
        progress, _ = watcher(clock, terminal=True, width=width)
        progress.begin([run], [])
        assert any(head in line for line in drawn(progress))


def test_the_time_left_counts_epochs_and_the_usual_length_of_a_run(clock):
    progress, _ = watcher(clock)
    runs = [spec(fold) for fold in range(4)]
    progress.begin(runs, [])
    progress.started(runs[0])
    clock.now = 30.0
    progress.epoch(runs[0], epoch(1))  # the first epoch is slow, and says little
    assert progress.seconds_left() is None
    assert "left" not in progress.summary()
    clock.now = 34.0
    progress.epoch(runs[0], epoch(5))  # 1 s an epoch, 395 to come if none stops early
    assert progress.seconds_left() == pytest.approx(395)
    assert "at most 7 min left, less if runs stop early" in progress.summary()
    clock.now = 40.0
    progress.finished(row(runs[0], epochs=11))  # it stopped early: a run is 40 s
    assert progress.seconds_left() == pytest.approx(120)
    assert "about 2 min left" in progress.summary()


def test_the_time_left_of_runs_side_by_side_is_shared(clock):
    progress, _ = watcher(clock)
    runs = [spec(fold) for fold in range(4)]
    progress.begin(runs, [])
    for number in range(1, 12):
        clock.now += 2.0
        for run in runs:
            progress.epoch(run, epoch(number))
    assert progress.seconds_left() == pytest.approx(2 * 89)


def test_the_first_of_runs_side_by_side_to_end_is_not_the_length_of_all(clock):
    progress, _ = watcher(clock)
    runs = [spec(fold) for fold in range(4)]
    progress.begin(runs, [])
    for number in range(1, 61):
        clock.now += 2.0
        for run in runs:
            progress.epoch(run, epoch(number))
    progress.finished(row(runs[0], epochs=60))
    assert 30 < progress.seconds_left() < 60  # half the patience, 25 epochs of 2 s, or so


def test_runs_from_before_say_how_long_a_run_is(clock):
    progress, _ = watcher(clock)
    runs = [spec(fold) for fold in range(4)]
    progress.begin(runs, [row(run, epochs=20) for run in runs[:2]])
    for number in range(1, 6):
        clock.now += 1.0
        progress.epoch(runs[2], epoch(number))
    assert progress.seconds_left() == pytest.approx(35)
    assert "about 35 s left" in progress.summary()


def test_runs_that_cannot_stop_early_are_estimated_by_all_their_epochs(clock):
    run = replace(spec(0), train=TrainSpec(epochs=100, patience=None))
    progress, _ = watcher(clock)
    progress.begin([run], [])
    for number in range(1, 11):
        clock.now += 1.0
        progress.epoch(run, epoch(number))
    assert "about 90 s left" in progress.summary()


def test_runs_from_before_took_no_time(clock):
    progress, _ = watcher(clock)
    runs = [spec(fold) for fold in range(4)]
    progress.begin(runs, [row(run) for run in runs[:2]])
    clock.now = 10.0
    progress.finished(row(runs[2]))
    assert progress.seconds_left() == pytest.approx(10)


def test_means_of_different_methods_are_not_mixed(clock):
    progress, _ = watcher(clock)
    runs = [spec(0), spec(0, pool="gtpool")]
    progress.begin(runs, [row(run) for run in runs])
    assert progress.summary() == "2 of 2 runs"


def test_in_a_terminal_there_is_a_table_of_folds_by_seeds(clock):
    progress, file = watcher(clock, terminal=True)
    runs = [spec(fold, seed) for seed in (1, 2) for fold in range(3)]
    with progress:
        progress.begin(runs, [])
        for run, test in zip(runs, (0.5, 0.7, None), strict=False):
            progress.started(run)
            progress.finished(row(run, test))
        progress.started(runs[3])
        clock.now = 5.0
        progress.epoch(runs[3], epoch(12))
        drawn = file.getvalue()
    last = drawn[drawn.rindex("seed") :]
    assert "│ MUTAG │ gtpool-v │    1 │ 50.00 │ 70.00 │ failed │ 60.00 │" in last
    assert "│ MUTAG │ gtpool-v │    2 │   e12 │     · │      · │       │" in last
    assert "3 of 6 runs, 1 failed, mean accuracy 60.00" in last


def drawn_before_quick_epochs(progress, file):
    """Begin a run, let epochs go by, and say how much had been written before them."""
    progress.begin([spec(0)], [])
    progress.started(spec(0))
    before = len(file.getvalue())
    for number in range(1, 50):
        progress.epoch(spec(0), epoch(number))
    return before


def test_the_table_is_left_in_peace_between_quick_epochs(clock):
    progress, file = watcher(clock, terminal=True)
    with progress:
        before = drawn_before_quick_epochs(progress, file)
        assert len(file.getvalue()) == before


def test_a_slow_terminal_is_not_drawn_on_at_every_epoch(clock):
    progress, file = watcher(clock, terminal=True)

    class Slow(io.StringIO):
        def write(self, text):
            clock.now += 1.0
            return file.write(text)

    progress.console.file = Slow()
    with progress:
        before = drawn_before_quick_epochs(progress, file)
        assert len(file.getvalue()) == before
        clock.now += 1.0
        progress.epoch(spec(0), epoch(50))
        assert "e50" in file.getvalue()[before:]


def test_a_study_that_is_higher_than_the_terminal_shows_what_goes_on_and_the_summary(clock):
    progress, file = watcher(clock, terminal=True, width=100, height=24)
    runs = [spec(fold, seed) for seed in range(1, 201) for fold in range(10)]
    with progress:
        progress.begin(runs, [row(run) for run in runs[:900]])
        for run in runs[909:899:-1]:
            progress.finished(row(run))
        for run in (runs[1995], runs[1501]):
            progress.started(run)
        clock.now = 1000.0
        progress.epoch(runs[1501], epoch(20))
    screen = drawn(progress)
    seeds = [line.split("│")[3].strip() for line in screen if "MUTAG" in line]
    assert seeds == ["200", "151", *(str(seed) for seed in range(91, 76, -1))]
    assert len(screen) <= 24
    said = " ".join(" ".join(screen).split())
    assert "910 of 2000 runs, mean accuracy 50.00, about 28.8 h left; 17 of 200 lines shown" in said
    left = file.getvalue().rsplit("mean ┃", 1)[1]  # what stays on the screen
    assert left.count("MUTAG") == 17
    assert "about 28.8 h left" in " ".join(left.split())


@pytest.mark.parametrize("width", [60, 80, 100])
def test_folds_are_counted_where_their_columns_have_no_room(clock, width):
    progress, _ = watcher(clock, terminal=True, width=width)
    runs = [spec(fold, seed) for seed in (1, 2, 3) for fold in range(10)]
    progress.begin(runs, [])
    for run in runs[:7]:
        progress.finished(row(run))
    progress.finished(row(runs[10], None))
    for run, number in ((runs[7], 12), (runs[11], 3), (runs[12], 40)):
        progress.epoch(run, epoch(number))
    _, head, _, *lines = drawn(progress)
    columns = [part.split() for part in head.split("┃")[1:-1]]
    assert columns == [["data"], ["model"], ["seed"], ["folds"], ["epoch"], ["mean"]]
    assert [[part.strip() for part in line.split("│")[3:-1]] for line in lines[:3]] == [
        ["1", "7/10", "e12", "50.00"],
        ["2", "1/10, 1 failed", "e3-e40", ""],
        ["3", "0/10", "", ""],
    ]


def test_long_names_are_cut_before_figures_are(clock):
    run = spec(0)
    name = "a method with a very long name " * 4
    progress, _ = watcher(clock, terminal=True, names={run.key: name}, width=60)
    progress.begin([run], [row(run)])
    _, _, _, line, *_ = drawn(progress)
    assert "…" in line
    assert "50.00" in line


def test_drawing_costs_what_is_shown_and_not_what_there_is(clock):
    counts = []
    for seeds in (40, 400):
        progress, _ = watcher(clock, terminal=True, width=100, height=24)
        runs = [spec(fold, seed) for seed in range(100, 100 + seeds) for fold in range(5)]
        progress.begin(runs, [row(run) for run in runs[:-20]])
        progress.epoch(runs[-1], epoch(7))
        drawn(progress)
        counts.append(calls(lambda: drawn(progress)))  # noqa: B023 - called at once
    few, many = counts
    assert many < 1.1 * few


def test_methods_that_differ_in_an_option_have_lines_of_their_own(clock):
    progress, _ = watcher(clock)
    progress.begin([spec(0), spec(0, ratio=0.25), spec(0, ratio=1), spec(0, ratio=1.0)], [])
    assert progress.table().row_count == 4


def test_runs_that_have_a_name_are_called_by_it(clock):
    few = spec(0, ratio=0.25)
    for terminal in (False, True):
        progress, file = watcher(clock, terminal, {few.key: "ratio 0.25"})
        with progress:
            progress.begin([few, spec(0)], [])
            progress.finished(row(few))
            progress.finished(row(spec(0)))
        assert "ratio 0.25" in file.getvalue()
        assert "gtpool-v" in file.getvalue()


def test_an_error_is_not_held_back(clock):
    progress, _ = watcher(clock, terminal=True)
    with pytest.raises(KeyboardInterrupt), progress:
        raise KeyboardInterrupt


def test_importing_it_imports_no_torch():
    code = "import sys, gtpool.report.progress; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
