"""Successive halving on the engine of the search: many combinations, ever longer trainings.

All combinations train for a few epochs; the better share goes on to longer trainings, the last of
which is whole. Each fold chooses by its own validation part. The choice by the mean over folds is
made beside it and is another thing: in the fixed folds the validation part of one fold is the test
part of the one before, so that a mean over folds has seen every test label.

Optuna's own ``SuccessiveHalvingPruner`` judges a trial when it reports, by those that reported
before. Here a rung is judged once all its runs are done, so that the order does not matter.
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
from gtpool.study.journal import driver_lock, fail_lost_trials, open_journal, open_study
from gtpool.study.sampler import CANDIDATE, ResumableTPESampler, TopFractionPruner
from gtpool.study.search import RunFunction, validation_scores
from gtpool.study.store import check_writable

_Values = dict[tuple[int, int], tuple[float, str | None]]
"""What validation says of a combination on a fold, or why it says nothing."""


class Budget(NamedTuple):
    """How much is tried."""

    configs: int = 48
    """Combinations that start, the defaults among them."""
    epochs: tuple[int, ...] = (40, 120)
    """Length of each short training; the whole one follows."""
    keep: float = 1 / 3
    """Share that goes on from each of them."""
    seeds: int = 2
    """Of the whole training, from that of the run on."""


class Rung(NamedTuple):
    """A length of training that begins."""

    number: int
    """From 1."""
    total: int
    epochs: int


class Candidate(NamedTuple):
    """A combination and its whole runs, one a fold."""

    choice: Mapping[str, Any]
    runs: Sequence[RunSpec]


class SuccessiveHalving:
    """A choice for each fold and one for all, which can be stopped and gone on with.

    Each choice is an Optuna study, all in one journal. The same arguments are the same studies.

    Args:
        name: Of the studies, such as dataset and method.
        candidates: What to choose from; the first of equals is preferred.
        space: The choices of each option.
        folder: Where the journal lies, and who is at work.
        budget: How much to try; ``configs`` is not looked at.
        metric: What is compared: "loss" or the name of a metric.
        higher_is_better: Whether more of it is better.
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
            raise ValueError(f"a round keeps a share above 0 and up to 1, got {budget.keep}")
        whole = candidates[0].runs[0].train.epochs
        self.rungs = (*budget.epochs, whole)
        if list(self.rungs) != sorted(set(self.rungs)):
            raise ValueError(
                f"each short round has fewer epochs than the next, the last fewer epochs than the "
                f"protocol ({whole}), got {', '.join(map(str, budget.epochs))}"
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
        """Do rung after rung, and yield each before it begins.

        Trials of a process that died are begun again; their finished runs are in the store of
        ``do``. So are those of which a run failed, when this is called again.
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
        """Give the place of the candidate that each fold chose, and of the one for all folds."""
        found: list[int] = []
        for study, folds in zip(self._studies, self._folds, strict=True):
            whole = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if not whole:
                where = f"fold {folds[0] + 1}" if len(folds) == 1 else "some fold"
                raise ValueError(
                    f"all runs on {where} of {self.name} failed; nothing is chosen (the same "
                    "command tries them again)"
                )
            found.append(
                min(
                    (self._sign * (trial.value or 0.0), _candidate_index(trial)) for trial in whole
                )[1]
            )
        return found[:-1], found[-1]

    def _begin(self, study: Study, driver: str) -> dict[int, Trial]:
        """Ask for the trials that are not over, by the place of their candidate."""
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
                f"another process is at work on {self.name} in {self.folder}; wait for it, or name "
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
        """Do the runs of a rung at once, and give what validation says of each pair."""
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
        """Report a rung, and give the trials that go on; a failed run ends its trial."""
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
    """Give the same run of fewer epochs, of which a tenth warms up, as in the protocol."""
    if epochs == spec.train.epochs:
        return spec
    return replace(spec, train=replace(spec.train, epochs=epochs, warmup=epochs // 10))
