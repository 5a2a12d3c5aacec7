"""A search for options, by validation alone: Optuna asks, runs answer, a journal remembers."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from statistics import fmean
from time import sleep
from typing import NamedTuple, cast

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import NopPruner
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from gtpool.data.formats.reader import Loaded
from gtpool.model import method_name
from gtpool.model.classifier import Classifier
from gtpool.spec import RunSpec
from gtpool.study.inputs import expand_folds, load_data, shape_of, source_digest
from gtpool.study.journal import driver_lock, fail_lost_trials, open_study
from gtpool.study.result import RunResult
from gtpool.study.sampler import (
    ResumableTPESampler,
    combine_seeds,
    median_pruner,
    should_prune,
    suggest,
)
from gtpool.study.space import Choice, Space, apply_choice, count_untried, draw_untried
from gtpool.train.metric import METRICS

EVALUATOR = "PED-ANOVA"
"""How the importance of an option is told; Optuna's own way, which needs no scikit-learn."""
_POLL_SECONDS = 0.5  # seconds between two looks whether somebody is alive
_MIN_TRIALS = 4  # trials run to the end, below which importance says nothing
_NAME_DEFAULTS: dict[str, dict[str, object]] = {
    "model": {"jump": False, "readout_options": {}},
    "train": {"precision": "float32"},
}
"""Options that are no part of a run's key at these values, but of the name of a search."""

RunFunction = Callable[[Sequence[RunSpec]], list[RunResult]]
"""Does runs and gives their rows in order, such as a ``partial`` of ``run_many``."""


class TrialResult(NamedTuple):
    """A combination, and what validation says of it."""

    number: int
    """Optuna's number of the trial."""
    complete: bool
    """Whether all folds were run; else it was pruned, or given up for ``error``."""
    value: float | None
    """Mean over the folds that were run; None where there is none."""
    folds: int
    choice: Choice
    error: str | None = None


class Search:
    """A search that can be stopped, gone on with, and shared by several processes.

    The same base, space and data are the same study, whoever opens it. What is compared is the mean
    over folds of the validation loss, or of the validation metric where ``train.select`` says so.

    Args:
        base: The run whose options are searched for; its fold does not matter.
        space: What to choose from.
        folder: Where the journal lies, and who is at work.
        seeds: Runs of each fold, from the seed of ``base`` on.
        storage: The URL of a database in place of the journal.
        data_dir: Where to look first for a dataset known by name.
        loaded: The graphs, if they are loaded already.
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
        metric, by_loss = METRICS[schema.task], base.train.select == "loss"
        self.metric = "loss" if by_loss else metric.name
        self.higher_is_better = not by_loss and metric.higher_is_better
        folds = self._folds(base)
        self._pruner = median_pruner(len(folds))
        spec = folds[0][0].key_parts  # without later options, so that stored searches go on
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
        """Try combinations until there are as many in the study, and yield each when it is over.

        Trials of processes that died are begun again; their finished runs are in the store of
        ``do``. One process alone chooses the same combinations each time, stopped or not.

        Args:
            trials: How many different combinations, those of other processes included.
            do: Does runs.
            seed: Of the choice.
            rung: Folds that are run at once, between two looks whether to go on.
            prune: Whether to stop what is worse, after as many folds, than the median of others.
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
                with suppress(UpdateFinishedTrialError):  # taken for lost by another process
                    trial = self.study.ask()
                    for name, held in self.space.items():
                        suggest(trial, name, held)
                    if not self._is_void(trial, trials, seed):
                        tried = self._try(trial, do, rung)
                if tried is not None:
                    yield tried

    def tried(self) -> list[TrialResult]:
        """List what is over, by number."""
        over = (TrialState.COMPLETE, TrialState.PRUNED)
        return [_trial_result(trial) for trial in self.study.get_trials(states=over)]

    def running(self) -> int:
        """Count what is on its way, here or elsewhere."""
        return len(self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))

    def best(self) -> TrialResult | None:
        """Give the best of what was run on all folds, the first of equals."""
        sign = -1 if self.higher_is_better else 1
        complete = [tried for tried in self.tried() if tried.complete]
        return min(complete, key=lambda tried: sign * cast("float", tried.value), default=None)

    def importance(self) -> dict[str, float] | None:
        """Say how much each option decides who is among the best; None before enough is known."""
        if sum(tried.complete for tried in self.tried()) < _MIN_TRIALS:
            return None
        return optuna.importance.get_param_importances(
            self.study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )

    def _is_over(self, trials: int) -> bool:
        """Say whether nothing is left to begin."""
        counted = self._counted()
        waiting = any(trial.state == TrialState.WAITING for trial in counted)
        left = count_untried(self.space, self._choices(counted))
        return not waiting and (len(counted) >= trials or left == 0)

    def _counted(self) -> list[FrozenTrial]:
        """List the trials that are over, on their way, or wait to be begun again."""
        found = self.study.get_trials(deepcopy=False)
        return [trial for trial in found if trial.state != TrialState.FAIL]

    def _choices(self, trials: Sequence[FrozenTrial]) -> list[Choice]:
        """List the combinations of trials, but of one that is just being drawn elsewhere."""
        return [trial.params for trial in trials if trial.params.keys() == self.space.keys()]

    def _is_void(self, trial: Trial, trials: int, seed: int) -> bool:
        """Give up a trial that is one too many, or the same as another; then draw one that is not.

        Two processes may ask at the same moment: the lower number counts.
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
        """Run fold after fold, as long as there is hope."""
        try:
            folds = self._folds(apply_choice(self.base, trial.params))
        except ValueError as error:  # values that are sound alone, and not together
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
        """List the runs of each fold; what no network can be made of raises."""
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
    """Give all that the search may know of runs: what validation says, or why it says nothing."""
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
