"""Report of a hyper-parameter search, without test metrics."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gtpool.data.formats.reader import Loaded
from gtpool.report.plot import INK, KEPT, figure_to_svg, style_axes, svg_figure, with_background
from gtpool.report.progress import EpochLike, format_seconds
from gtpool.report.result_tables import TextTable
from gtpool.spec import FOLD_RULES, RunSpec
from gtpool.study.cross_validate import RunConfig, plan_runs
from gtpool.study.halving import Rung
from gtpool.study.plan import Plan, make_plan
from gtpool.study.result import RunResult
from gtpool.study.run import ENSEMBLE_SIZE
from gtpool.study.run_one import choose_device
from gtpool.study.search import EVALUATOR, OuterTest, Search, TrialResult, outer_test
from gtpool.study.space import (
    PAPER_SPACE,
    Space,
    apply_choice,
    count_combinations,
    count_untried,
    read_space,
    untried_values,
    values_to_check,
)
from gtpool.study.store import Store, write_atomic
from gtpool.study.summarize import format_metric, has_folds

_PAUSE = 0.2  # minimum seconds between two updates of the line
_NOW_AND_THEN = 5.0  # minimum seconds between two lines about the runs of a rung
_QUIET = 30.0  # seconds without output after which an epoch is printed
_ROUGH = 50  # with fewer trials, the best tenth has fewer than five
_LISTED = 5  # best trials in the table
POOLED = (
    "Pooled validation: one choice for all folds has seen test labels, since the validation part "
    "of a fold lies in the test part of the one before. What these settings give on the same folds "
    "is optimistic; `gtpool study tune` chooses for each fold by itself."
)


class SearchConfig(NamedTuple):
    """Options of a search."""

    trials: int
    seed: int = 0
    rung: int | None = None
    """Folds between two pruning decisions; None for the number of parallel folds."""
    prune: bool = True
    storage: str | None = None
    folds_given: bool = False
    """Whether the user set the number of folds."""
    hold_out: bool | None = None
    """Whether a fifth of the graphs is kept from all trials; None for own data with folds."""


def search_options(
    plan: Plan, table: Mapping[str, Any] | None, how: RunConfig, wanted: SearchConfig
) -> list[str]:
    """Search for the options with the best validation result, write them, and print a report.

    Args:
        plan: The runs of a trial, without the searched options.
        table: The search space as read from a file; None for the paper's space.
        how: Options of the run.
        wanted: Options of the search.
    """
    # A trial is judged by single runs; the settings keep the ensemble for `gtpool train`.
    runs, loaded = plan_runs(plan._replace(ensemble=1, bag=False), how.data_dir)
    folded = runs[0].split.rule in FOLD_RULES
    if wanted.folds_given and not folded:
        raise ValueError(
            f"--folds needs a split type with folds ({', '.join(FOLD_RULES)}), got "
            f"{runs[0].split.rule}"
        )
    own, plan = plan, _hold_out(plan, wanted, folded=folded, known=loaded.name is not None)
    space = PAPER_SPACE if table is None else read_space(table, plan.run)
    _check_values(plan, space, how, loaded)
    search = Search(
        plan.run,
        space,
        how.folder,
        seeds=plan.seeds,
        storage=wanted.storage,
        data_dir=how.data_dir,
        loaded=loaded,
    )
    trials = min(wanted.trials, count_combinations(space) or wanted.trials)
    with SearchProgress(trials, len(runs), search.metric, done=len(search.tried())) as watch:
        do = partial(how.run, keep=False, watch=watch, loaded=loaded)
        rung = wanted.rung or _parallel_folds(how)
        for tried in search.run(trials, do, seed=wanted.seed, rung=rung, prune=wanted.prune):
            watch.tried(tried, search.tried(), search.best())
        found = _test_best(search, plan, how, watch)
    lines = _write_best(search, own, how.folder)
    if found is not None:
        path = how.folder / "held_out.json"
        write_atomic(path, (json.dumps(found.to_json(), indent=2) + "\n").encode())
        lines.append(f"held out:   {found.text}: {path}")
    return [*lines, POOLED] if folded else lines


def _hold_out(plan: Plan, wanted: SearchConfig, *, folded: bool, known: bool) -> Plan:
    """Return the plan of the trials: without a fifth of the graphs, if that is held out."""
    if wanted.hold_out and not folded:
        raise ValueError(
            "--hold-out needs a split type with folds; other splits have a test part that no trial "
            "reads"
        )
    by_default = folded and not known
    if not (by_default if wanted.hold_out is None else wanted.hold_out):
        return plan
    return plan._replace(run=replace(plan.run, split=replace(plan.run.split, hold_out="exclude")))


def _test_best(
    search: Search, plan: Plan, how: RunConfig, watch: "SearchProgress"
) -> OuterTest | None:
    """Test the best options on what was held out; None without it, or while trials run."""
    best = search.best()
    if best is None or plan.run.split.hold_out == "none" or search.running():
        return None
    do = partial(how.run, keep=True, watch=watch, loaded=search.loaded)
    spec, artifact = apply_choice(plan.run, best.choice), Store(how.folder).artifact
    return outer_test(spec, plan.seeds, do, artifact, search.loaded, how.data_dir)


class SearchProgress:
    """Progress display of a search, used as a context manager.

    It prints one line per trial. For a search in rungs, which evaluates many trials at once, it
    prints lines for each rung and its finished runs at intervals. In a terminal a status line shows
    the active run and the time left; without a terminal this is printed after a long silence.

    Args:
        total: Number of requested trials.
        runs: Runs of a trial that is not pruned.
        metric: Compared value: "loss" or the name of a metric.
        done: Number of finished trials.
        console: Console to write to; by default standard error.
        clock: Function that returns seconds.
    """

    def __init__(
        self,
        total: int = 0,
        runs: int = 1,
        metric: str = "loss",
        *,
        done: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.total, self.runs, self.metric, self.done = total, runs, metric, done
        self.console = Console(stderr=True) if console is None else console
        self.clock = clock
        self.best: float | None = None
        self._rung: str | None = None
        self._before = done
        self._began = self._drawn = self._said = clock()
        self._made = self._known = 0  # new and stored runs of the trial or rung
        self._live = Live(console=self.console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self.done:
            self._say(f"{self._count()} {'are' if self.total > 1 else 'is'} done already")
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            self._live.update(Text(""), refresh=True)
            self._live.stop()

    def rung(self, rung: Rung) -> None:
        """Record the start of a rung, which evaluates many trials at one number of epochs."""
        self._rung = f"round {rung.number} of {rung.total}"

    def begin(self, specs: Sequence[RunSpec], done: Sequence[RunResult]) -> None:
        """Record runs that exist already; print the size of a rung."""
        self._made += len(done)
        if self._rung is not None:
            self._began, self._made, self._known = self.clock(), len(done), len(done)
            self.runs = len(specs)
            count = len({(spec.model, spec.train) for spec in specs})
            configs = f"{count} configuration{'s' * (count > 1)}"
            known = f", {len(done)} of them done before" if done else ""
            epochs, runs = specs[0].train.epochs, f"{len(specs)} run{'s' * (len(specs) > 1)}"
            self._say(f"{self._rung}: {configs}, {epochs} epochs: {runs}{known}")

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show the progress of a preparation step."""
        self._show(f"{what}: {done} of {total}")

    def started(self, spec: RunSpec) -> None:
        """Record the start of a run."""
        self._show(_run_label(spec))

    def epoch(self, spec: RunSpec, epoch: EpochLike) -> None:
        """Record an epoch."""
        self._show(f"{_run_label(spec)}, epoch {epoch.number} of {spec.train.epochs}")

    def finished(self, row: RunResult) -> None:
        """Record the row of a finished run."""
        self._made += 1
        if self._rung is None:
            return
        if row.status == "failed":
            self._say(f"{self._rung}: {self.summary()}; one failed: {row.error}")
            return
        waited = not self._live.is_started and self.clock() - self._said >= _NOW_AND_THEN
        if waited or self._made == self.runs:
            self._say(f"{self._rung}: {self.summary()}")

    def tried(
        self, trial: TrialResult, done: Sequence[TrialResult], best: TrialResult | None
    ) -> None:
        """Print the result of a trial.

        Args:
            trial: The finished trial.
            done: Finished trials of all processes.
            best: The best trial that ran on all folds.
        """
        self.done, self._made = len(done), 0
        self.best = None if best is None else best.value
        self._say(f"trial {trial.number}: {describe_trial(trial, self.metric)} ({self.summary()})")
        if self._live.is_started:
            self._drawn = self.clock()
            self._live.update(Text(self.summary()), refresh=True)

    def summary(self) -> str:
        """Return the finished trials or runs of a rung, the best value, and the time left."""
        if self._rung is not None:
            over, total, before = float(self._made), self.runs, self._known
            parts = [f"{self._made} of {total} run{'s' * (total > 1)}"]
        else:
            over = self.done + min(0.95, self._made / self.runs)
            total, before = self.total, self._before
            parts = [self._count()]
        if self.best is not None:
            parts.append(f"best {_format_figure(self.best, self.metric)}")
        if over > before and int(over) < total:
            left = (self.clock() - self._began) * (total - over) / (over - before)
            parts.append(f"about {format_seconds(left)} left{' in this round' * bool(self._rung)}")
        return ", ".join(parts)

    def _count(self) -> str:
        return f"{self.done} of {self.total} trial{'s' * (self.total > 1)}"

    def _say(self, line: str) -> None:
        self._said = self.clock()
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _show(self, now: str) -> None:
        if self._live.is_started:
            if self.clock() - self._drawn > _PAUSE:
                self._drawn = self.clock()
                self._live.update(Text(f"{now} ({self.summary()})"), refresh=True)
        elif self.clock() - self._said >= _QUIET:
            rung = "" if self._rung is None else f"{self._rung}: "
            self._say(f"{rung}{now} ({self.summary()})")


def describe_trial(trial: TrialResult, metric: str) -> str:
    """Return the result of a trial as text."""
    folds = "1 fold" if trial.folds == 1 else f"{trial.folds} folds"
    if trial.error is not None:
        return f"given up after {folds}: {trial.error}"
    value = f"validation {metric} {_format_figure(trial.value, metric)}"
    if not trial.complete:
        return f"pruned after {folds}, {value}"
    return f"{value}, mean of {folds}" if trial.folds > 1 else value


def _run_label(spec: RunSpec) -> str:
    """Return the name of a run of a trial."""
    return f"fold {spec.split.fold + 1}" if has_folds(spec.split.rule) else f"seed {spec.seed}"


def trials_table(trials: Sequence[TrialResult], space: Space, metric: str) -> TextTable:
    """Return a table of the best trials that ran on all folds.

    Args:
        trials: Trials from best to worst.
        space: The search space.
        metric: Compared value.
    """
    names = [name.partition(".")[2] for name in space]
    lines = [
        (
            str(trial.number),
            _format_figure(trial.value, metric),
            *(_format_value(trial.choice[name]) for name in space),
        )
        for trial in trials[:_LISTED]
    ]
    return TextTable(("trial", f"validation {metric}", *names), tuple(lines))


def coverage(trials: Sequence[TrialResult], space: Space) -> list[str]:
    """Return which options and values were searched, and which were not."""
    total, choices = count_combinations(space), [trial.choice for trial in trials]
    complete = sum(trial.complete for trial in trials)
    given_up = sum(trial.error is not None for trial in trials)
    parts = [f"{complete} on all folds", f"{len(trials) - complete - given_up} pruned"]
    if given_up:
        parts.append(f"{given_up} given up")
    left = count_untried(space, choices)
    number = len(choices) if total is None or left is None else total - left
    of = "infinitely many" if total is None else total
    return [
        f"tried: {number} of {of} combinations ({', '.join(parts)})",
        f"not tried at all: {'; '.join(untried_values(space, choices)) or 'no single value'}",
    ]


def importance_basis(complete: int) -> str:
    """Return the basis of the importance values as text."""
    rough = f", rough below {_ROUGH}" if complete < _ROUGH else ""
    return f"{complete} trials on all folds{rough}"


def draw_importance(shares: Mapping[str, float], title: str) -> str:
    """Return a bar chart of the importance of each option.

    Args:
        shares: Importance of each option; they sum to 1.
        title: Title of the chart.
    """
    names = sorted(shares, key=lambda name: shares[name])
    with svg_figure((6.4, 1.1 + 0.34 * len(names))) as figure:
        axes = figure.subplots()
        bars = axes.barh(names, [100 * shares[name] for name in names], color=KEPT)
        axes.bar_label(bars, fmt="%.0f %%", padding=3, color=INK, fontsize=8)
        axes.margins(x=0.12)
        axes.set_title(title, color=INK, fontsize=10)
        axes.set_xlabel("importance, %")
        style_axes(axes)
        return figure_to_svg(figure)


def _format_figure(value: float | None, metric: str) -> str:
    return (
        f"{value:.4f}" if value is not None and metric == "loss" else format_metric(value, metric)
    )


def _format_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _check_values(plan: Plan, space: Space, how: RunConfig, loaded: Loaded) -> None:
    """Raise a ValueError for a value of the space with which no run could start."""
    for name, held in space.items():
        for value in values_to_check(held):
            changed = apply_choice(plan.run, {name: value}).to_json()
            try:
                plan_runs(make_plan({**changed, "seeds": plan.seeds}, {}), how.data_dir, loaded)
            except ValueError as error:
                raise ValueError(f"the space has {name} = {value!r}, but {error}") from error


def _parallel_folds(how: RunConfig) -> int:
    """Return the number of folds that run at once."""
    if how.executor is not None:
        return ENSEMBLE_SIZE
    on_gpu = how.jobs == 1 and choose_device(how.device).type == "cuda"
    return max(how.jobs, how.together or (ENSEMBLE_SIZE if on_gpu else 1))


def _write_best(search: Search, plan: Plan, folder: Path) -> list[str]:
    """Write the best settings and the chart, and return the report lines."""
    trials, best, shares = search.tried(), search.best(), search.importance()
    if best is None:
        return ["no combination was run on all folds", *coverage(trials, search.space)]
    path = folder / "best.json"
    settings = plan._replace(run=apply_choice(plan.run, best.choice), searched=True).to_json()
    write_atomic(path, (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode())
    complete = [tried for tried in trials if tried.complete]
    complete.sort(key=lambda tried: tried.value or 0.0, reverse=search.higher_is_better)
    lines = [trials_table(complete, search.space, search.metric).terminal(), ""]
    lines.append(f"best:       {path} (for gtpool train --config)")
    if shares is not None:
        drawn, title = folder / "importance.svg", f"{EVALUATOR}, {importance_basis(len(complete))}"
        write_atomic(drawn, with_background(draw_importance(shares, title)).encode())
        lines.append(f"importance: {drawn} ({title})")
    lines += coverage(trials, search.space)
    if search.running():
        lines.append(f"{search.running()} more run elsewhere; the last writes the result")
    return lines
