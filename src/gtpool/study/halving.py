"""Successive halving: many combinations train briefly, the best of them longer.

All combinations train for a few epochs. The best fraction continues with longer training, up to the
full number of epochs. Each fold selects by its own validation part. A second selection, by the mean
over folds, has seen every test label: in the fixed folds, the validation part of a fold is the test
part of the fold before.

Optuna's ``SuccessiveHalvingPruner`` judges a trial when it reports, against earlier reports. Here a
rung is judged when all its runs are done, so the order does not matter.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from gtpool.spec import RunSpec
from gtpool.study.optuna_study import (
    CANDIDATE,
    ResumableTPESampler,
    TopFractionPruner,
    driver_lock,
    fail_lost_trials,
    open_journal,
    open_study,
)
from gtpool.study.search import RunFunction, validation_scores
from gtpool.study.store import check_writable

_Values = dict[tuple[int, int], tuple[float, str | None]]
"""Validation score, or error, of each candidate and fold."""


class Budget(NamedTuple):
    """Budget of a successive halving."""

    configs: int = 48
    """Number of combinations, including the defaults."""
    epochs: tuple[int, ...] = (40, 120)
    """Epochs of each short rung; full training follows."""
    keep: float = 1 / 3
    """Fraction that each short rung keeps."""
    seeds: int = 2
    """Number of seeds of the full training, starting at that of the run."""


class Rung(NamedTuple):
    """A rung that starts."""

    number: int
    """From 1."""
    total: int
    epochs: int


class Candidate(NamedTuple):
    """A combination and its full runs, one per fold."""

    choice: Mapping[str, Any]
    runs: Sequence[RunSpec]


class SuccessiveHalving:
    """Selects a candidate for each fold and one for all folds; resumable.

    Each selection is an Optuna study in one journal. Equal arguments give the same studies.

    Args:
        name: Prefix of the study names, such as dataset and method.
        candidates: The candidates; ties go to the first.
        space: The choices of each option.
        folder: Folder of the journal and of the locks of running processes.
        budget: The budget; ``configs`` is ignored.
        metric: "loss" or the name of a metric.
        higher_is_better: Whether higher values of the metric are better.
    """

    def __init__(
        self,
        name: str,
        candidates: Sequence[Candidate],
        space: Mapping[str, Sequence[Any]],
        folder: Path,
        *,
        budget: Budget,
        metric: str = "loss",
        higher_is_better: bool = False,
    ) -> None:
        if not 0 < budget.keep <= 1:
            raise ValueError(f"keep must be above 0 and at most 1, got {budget.keep}")
        whole = candidates[0].runs[0].train.epochs
        self.rungs = (*budget.epochs, whole)
        if list(self.rungs) != sorted(set(self.rungs)):
            raise ValueError(
                f"epochs of the rounds must increase and stay below the {whole} of the protocol, "
                f"got {', '.join(map(str, budget.epochs))}"
            )
        self.name, self.folder, self.metric, self.budget = name, folder, metric, budget
        self.candidates, self._sign = candidates, -1 if higher_is_better else 1
        self._distributions: dict[str, BaseDistribution] = {
            option: CategoricalDistribution(tuple(values)) for option, values in space.items()
        }
        check_writable(folder)
        folds = range(len(candidates[0].runs))
        self._folds = [*([fold] for fold in folds), list(folds)]
        told = {"space": space, "rungs": self.rungs, "keep": budget.keep, "seeds": budget.seeds}
        keys = [[run.key for run in candidate.runs] for candidate in candidates]
        digest = sha256(json.dumps([told, keys], sort_keys=True).encode()).hexdigest()[:8]
        storage = open_journal(folder)
        self._studies = [
            open_study(f"{name}, {what} {digest}", storage, maximize=higher_is_better, told=told)
            for what in (*(f"fold {fold + 1}" for fold in folds), "pooled")
        ]

    def run(self, do: RunFunction) -> Iterator[Rung]:
        """Run rung after rung and yield each before it starts.

        Trials of a dead process are repeated; their finished runs are in the store of ``do``.
        Trials with a failed run are repeated on the next call.
        """
        with driver_lock(self.folder) as me:
            going = [self._begin(study, me) for study in self._studies]
            for number, epochs in enumerate(self.rungs, 1):
                pairs = {
                    (place, fold)
                    for folds, trials in zip(self._folds, going, strict=True)
                    for place in trials
                    for fold in folds
                }
                if pairs:
                    yield Rung(number, len(self.rungs), epochs)
                    values = self._train(sorted(pairs), epochs, do)
                    for at, study in enumerate(self._studies):
                        going[at] = self._judge(study, going[at], self._folds[at], values, epochs)

    def best(self) -> tuple[list[int], int]:
        """Return the index of the candidate that each fold selected, and of that for all folds."""
        found: list[int] = []
        for study, folds in zip(self._studies, self._folds, strict=True):
            whole = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if not whole:
                where = f"fold {folds[0] + 1}" if len(folds) == 1 else "some fold"
                raise ValueError(
                    f"all runs on {where} of {self.name} failed; repeat the command to retry them"
                )
            found.append(
                min(
                    (self._sign * (trial.value or 0.0), _candidate_index(trial)) for trial in whole
                )[1]
            )
        return found[:-1], found[-1]

    def _begin(self, study: Study, driver: str) -> dict[int, Trial]:
        """Return the unfinished trials by the index of their candidate."""
        study.sampler, study.pruner = (
            ResumableTPESampler(0, driver),
            TopFractionPruner(self.budget.keep),
        )
        fail_lost_trials(study, self.folder)
        there = [
            trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.FAIL
        ]
        if any(trial.state == TrialState.RUNNING for trial in there):
            raise ValueError(
                f"another process is running {self.name} in {self.folder}; wait for it, or choose "
                "another --output-dir"
            )
        known = {_candidate_index(trial) for trial in there}
        study.add_trials(
            create_trial(
                state=TrialState.WAITING,
                params=dict(candidate.choice),
                distributions=self._distributions,
                user_attrs={CANDIDATE: place},
            )
            for place, candidate in enumerate(self.candidates)
            if place not in known
        )
        waiting = len(study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))
        asked = [study.ask() for _ in range(waiting)]
        return {trial.user_attrs[CANDIDATE]: trial for trial in asked}

    def _train(self, pairs: Sequence[tuple[int, int]], epochs: int, do: RunFunction) -> _Values:
        """Do the runs of a rung and return the validation score of each pair."""
        seeds = range(self.budget.seeds if epochs == self.rungs[-1] else 1)
        specs = [self.candidates[place].runs[fold] for place, fold in pairs]
        runs = [
            _shortened(replace(spec, seed=spec.seed + at), epochs) for spec in specs for at in seeds
        ]
        said = iter(validation_scores(do(runs), self.metric))
        found: _Values = {}
        for pair in pairs:
            several = [next(said) for _ in seeds]
            error = next((error for _, error in several if error is not None), None)
            found[pair] = fmean(value for value, _ in several), error
        return found

    def _judge(
        self,
        study: Study,
        trials: Mapping[int, Trial],
        folds: Sequence[int],
        values: _Values,
        epochs: int,
    ) -> dict[int, Trial]:
        """Report a rung and return the trials that continue; a failed run fails its trial."""
        sound: dict[int, Trial] = {}
        for place, trial in trials.items():
            said = [values[place, fold] for fold in folds]
            error = next((error for _, error in said if error is not None), None)
            if error is None:
                trial.report(fmean(value for value, _ in said), epochs)
                sound[place] = trial
            else:
                trial.set_user_attr("error", error)
                study.tell(trial, state=TrialState.FAIL)
        going: dict[int, Trial] = {}
        for place, trial in sound.items():
            if epochs == self.rungs[-1]:
                study.tell(trial, fmean(values[place, fold][0] for fold in folds))
            elif trial.should_prune():
                study.tell(trial, state=TrialState.PRUNED)
            else:
                going[place] = trial
        return going


def _candidate_index(trial: FrozenTrial) -> int:
    return trial.user_attrs[CANDIDATE]


def _shortened(spec: RunSpec, epochs: int) -> RunSpec:
    """Return the run with fewer epochs, of which a tenth is warm-up."""
    if epochs == spec.train.epochs:
        return spec
    return replace(spec, train=replace(spec.train, epochs=epochs, warmup=epochs // 10))
