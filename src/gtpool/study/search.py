"""Hyperparameter search on validation scores with Optuna; resumable and shared by processes.

The chosen options are tested on graphs that no trial has read.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from statistics import fmean
from time import sleep
from typing import Any, NamedTuple, cast

import numpy as np
import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import NopPruner
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState
from torch import from_numpy

from gtpool.data.formats.reader import Loaded
from gtpool.model import method_name
from gtpool.model.classifier import Classifier
from gtpool.spec import RunSpec
from gtpool.study.heldout import read_held_out
from gtpool.study.inputs import expand_folds, load_data, shape_of, source_digest
from gtpool.study.optuna_study import (
    ResumableTPESampler,
    combine_seeds,
    driver_lock,
    fail_lost_trials,
    median_pruner,
    open_study,
    should_prune,
    suggest,
)
from gtpool.study.result import RunResult
from gtpool.study.space import Choice, Space, apply_choice, count_untried, draw_untried
from gtpool.study.summarize import MetricSummary, format_metric, metric_title, summarize
from gtpool.train.metric import metric_of

EVALUATOR = "PED-ANOVA"
"""Importance evaluator of Optuna that does not need scikit-learn."""
_POLL_SECONDS = 0.5  # between two checks for lost trials
_MIN_TRIALS = 4  # complete trials required for importances
_NAME_DEFAULTS: dict[str, dict[str, object]] = {
    "model": {"jump": False, "readout_options": {}},
    "train": {"precision": "float32"},
}
"""Options that the name of a search includes although the key of a run omits these values."""

RunFunction = Callable[[Sequence[RunSpec]], list[RunResult]]
"""Returns the results of runs in order, such as a ``partial`` of ``run_many``."""


class TrialResult(NamedTuple):
    """Result of a finished trial."""

    number: int
    """Number of the trial in Optuna."""
    complete: bool
    """Whether all folds were run; otherwise the trial was pruned or failed with ``error``."""
    value: float | None
    """Mean validation score over the folds that were run; None if there are none."""
    folds: int
    choice: Choice
    error: str | None = None


class Search:
    """A hyperparameter search that can be resumed and shared by several processes.

    Searches with the same base, space and data share one Optuna study. The objective is the mean
    over folds of the validation loss, or of the validation metric if ``train.select`` is "metric".

    Args:
        base: The run whose options are searched; its fold is ignored.
        space: The search space.
        folder: Folder of the journal and of the locks of running processes.
        seeds: Number of seeds per fold, starting at the seed of ``base``.
        storage: URL of a database that replaces the journal.
        data_dir: Folder searched first for a dataset known by name.
        loaded: Data that is already loaded.
    """

    def __init__(
        self,
        base: RunSpec,
        space: Space,
        folder: Path,
        *,
        seeds: int = 1,
        storage: str | None = None,
        data_dir: Path | None = None,
        loaded: Loaded | None = None,
    ) -> None:
        self.base, self.space, self.folder, self.seeds = base, space, folder, seeds
        self.data_dir = data_dir
        self.loaded = load_data(base.data, data_dir, loaded)
        schema = self.loaded.dataset.schema
        metric = metric_of(schema.task, base.train.metric)
        by_loss = base.train.select == "loss"
        self.metric = "loss" if by_loss else metric.name
        self.higher_is_better = not by_loss and metric.higher_is_better
        folds = self._folds(base)
        self._pruner = median_pruner(len(folds))
        spec = folds[0][
            0
        ].key_parts  # without newer options, so that stored searches can be resumed
        first = {part: {**options, **spec[part]} for part, options in _NAME_DEFAULTS.items()}
        told = {"spec": {**spec, **first}, "seeds": seeds, "space": space}
        text = json.dumps([told, source_digest(base.data.source)], sort_keys=True)
        digest = sha256(text.encode()).hexdigest()[:8]
        name = f"{schema.name} {method_name(base.model.to_json())} {digest}"
        self.study: Study = open_study(
            name, storage or folder, maximize=self.higher_is_better, told=told
        )

    def run(
        self, trials: int, do: RunFunction, *, seed: int = 0, rung: int = 1, prune: bool = True
    ) -> Iterator[TrialResult]:
        """Run trials until the study has ``trials`` of them, and yield each when it ends.

        Trials of dead processes are repeated; their finished runs are in the store of ``do``. A
        single process tries the same combinations whether or not it is interrupted.

        Args:
            trials: Number of distinct combinations, including those of other processes.
            do: Does the runs.
            seed: Seed of the sampler.
            rung: Folds per pruning step.
            prune: Stop a trial that is worse than the median of others after as many folds.
        """
        self.study.pruner = self._pruner if prune else NopPruner()
        with driver_lock(self.folder) as me:
            self.study.sampler = ResumableTPESampler(seed, me)
            while True:
                unclear = fail_lost_trials(self.study, self.folder)
                if self._is_over(trials):
                    if not unclear:
                        return
                    sleep(_POLL_SECONDS)
                    continue
                tried = None
                with suppress(UpdateFinishedTrialError):  # another process has declared it lost
                    trial = self.study.ask()
                    for name, held in self.space.items():
                        suggest(trial, name, held)
                    if not self._fail_if_redundant(trial, trials, seed):
                        tried = self._try(trial, do, rung)
                if tried is not None:
                    yield tried

    def tried(self) -> list[TrialResult]:
        """Return the finished trials, sorted by number."""
        over = (TrialState.COMPLETE, TrialState.PRUNED)
        return [_trial_result(trial) for trial in self.study.get_trials(states=over)]

    def running(self) -> int:
        """Return the number of running trials of all processes."""
        return len(self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))

    def best(self) -> TrialResult | None:
        """Return the best complete trial (first of ties), or None."""
        sign = -1 if self.higher_is_better else 1
        complete = [tried for tried in self.tried() if tried.complete]
        return min(complete, key=lambda tried: sign * cast("float", tried.value), default=None)

    def importance(self) -> dict[str, float] | None:
        """Return the importance of each option; None if too few trials are complete."""
        if sum(tried.complete for tried in self.tried()) < _MIN_TRIALS:
            return None
        return optuna.importance.get_param_importances(
            self.study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )

    def _is_over(self, trials: int) -> bool:
        """Return whether no trial is left to start."""
        counted = self._counted()
        waiting = any(trial.state == TrialState.WAITING for trial in counted)
        left = count_untried(self.space, self._choices(counted))
        return not waiting and (len(counted) >= trials or left == 0)

    def _counted(self) -> list[FrozenTrial]:
        """Return the trials that are finished, running or waiting."""
        found = self.study.get_trials(deepcopy=False)
        return [trial for trial in found if trial.state != TrialState.FAIL]

    def _choices(self, trials: Sequence[FrozenTrial]) -> list[Choice]:
        """Return the combinations of trials, without those that are still being sampled."""
        return [trial.params for trial in trials if trial.params.keys() == self.space.keys()]

    def _fail_if_redundant(self, trial: Trial, trials: int, seed: int) -> bool:
        """Fail a duplicate or surplus trial and return True; enqueue another for a duplicate.

        If two processes draw the same combination, the trial with the lower number is kept.
        """
        before = [other for other in self._counted() if other.number < trial.number]
        repeated = any(other.params == trial.params for other in before)
        if not repeated and len(before) < trials:
            return False
        trial.set_user_attr("void", "repeated" if repeated else "one too many")
        self.study.tell(trial, state=TrialState.FAIL)
        if repeated and len(before) < trials:
            random = Random(combine_seeds(seed, len(before)))  # noqa: S311 - no secret
            other = draw_untried(self.space, self._choices(before), random)
            if other is not None:
                self.study.enqueue_trial(other)
        return True

    def _try(self, trial: Trial, do: RunFunction, rung: int) -> TrialResult:
        """Run fold after fold until the trial is complete or pruned."""
        try:
            folds = self._folds(apply_choice(self.base, trial.params))
        except ValueError as error:  # each value is valid, but not their combination
            return self._end(trial, TrialState.PRUNED, error=str(error))
        values: list[float] = []
        for place in range(0, len(folds), rung):
            some = folds[place : place + rung]
            found = iter(
                validation_scores(do([spec for fold in some for spec in fold]), self.metric)
            )
            for fold in some:
                said = [next(found) for _ in fold]
                errors = [error for _, error in said if error is not None]
                if errors:
                    return self._end(trial, TrialState.PRUNED, error=errors[0])
                values.append(fmean(value for value, _ in said))
                trial.report(fmean(values), len(values))
            if len(values) < len(folds) and should_prune(self.study, trial, values):
                return self._end(trial, TrialState.PRUNED)
        return self._end(trial, TrialState.COMPLETE, fmean(values))

    def _folds(self, spec: RunSpec) -> list[list[RunSpec]]:
        """Return the runs of each fold; raise if the network is invalid."""
        loaded = load_data(spec.data, self.data_dir, self.loaded)
        Classifier(spec.model, shape_of(loaded.dataset))
        by_fold: dict[int, list[RunSpec]] = {}
        for run in expand_folds(spec, seeds=self.seeds, data_dir=self.data_dir, loaded=loaded):
            by_fold.setdefault(run.split.fold, []).append(run)
        return list(by_fold.values())

    def _end(
        self,
        trial: Trial,
        state: TrialState,
        value: float | None = None,
        *,
        error: str | None = None,
    ) -> TrialResult:
        if error is not None:
            trial.set_user_attr("error", error)
        self.study.tell(trial, value, state, skip_if_finished=True)
        now = self.study.trials[trial.number]
        if now.state == TrialState.FAIL:
            raise UpdateFinishedTrialError
        return _trial_result(now)


def validation_scores(rows: Sequence[RunResult], metric: str) -> list[tuple[float, str | None]]:
    """Return the validation score of each run, or the reason why there is none."""
    said: list[tuple[float, str | None]] = []
    for row in rows:
        value = row.valid_loss if metric == "loss" else row.valid_metric
        if row.done and value is not None:
            said.append((value, None))
        else:
            said.append((0.0, row.error or f"a fold has no validation {metric}"))
    return said


def _trial_result(trial: FrozenTrial) -> TrialResult:
    return TrialResult(
        trial.number,
        trial.state == TrialState.COMPLETE,
        trial.value,
        len(trial.intermediate_values),
        trial.params,
        trial.user_attrs.get("error"),
    )


class OuterTest(NamedTuple):
    """Test metric of the chosen options on the graphs that were held out."""

    graphs: int
    value: float
    """Of the mean prediction of the networks of all folds."""
    single: MetricSummary
    """Of single networks."""

    @property
    def text(self) -> str:
        """The figures in words."""
        metric = self.single.metric
        value = format_metric(self.value, metric)
        return (
            f"{metric_title(metric)}: {value} by the networks of all folds together, "
            f"{self.single.text} alone ({self.single.evidence}); {self.graphs} graphs that no "
            "trial has read"
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"graphs": self.graphs, "value": self.value, "single": self.single._asdict()}


def outer_test(
    spec: RunSpec,
    seeds: int,
    do: Callable[[Sequence[RunSpec]], list[RunResult]],
    artifact: Callable[[str], Path],
    loaded: Loaded,
    data_dir: Path | None = None,
) -> OuterTest | None:
    """Train with the chosen options on all folds, and test on the graphs that were held out.

    Args:
        spec: The run with the chosen options.
        seeds: Number of seeds per fold.
        do: Returns the results of runs, and keeps their artifacts.
        artifact: Maps the key of a run to its artifact file.
        loaded: The data.
        data_dir: Folder searched first for a dataset known by name.

    Returns:
        None if all runs failed.
    """
    tested = replace(spec, split=replace(spec.split, hold_out="test"))
    runs = do(expand_folds(tested, seeds=seeds, data_dir=data_dir, loaded=loaded))
    task = loaded.dataset.schema.task
    parts = read_held_out(runs, artifact, task)
    if not parts:
        return None
    output = from_numpy(np.mean([part.output for part in parts], 0))
    metric = metric_of(task, spec.train.metric)
    value = metric.of_outputs(output, from_numpy(parts[0].y))
    return OuterTest(len(parts[0].graph), value, summarize(runs))
