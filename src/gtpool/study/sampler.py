"""How a search draws, and when it gives up: Optuna's TPE and median pruner, bent a little."""

from collections.abc import Sequence
from copy import copy
from math import ceil
from statistics import fmean
from typing import Any

from numpy.random import SeedSequence
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, MedianPruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from gtpool.study.space import Range, Value

CANDIDATE = "place"
"""The mark of a trial that says which combination it tries, where they are numbered beforehand."""
_STARTUP_TRIALS = 5  # trials run to the end before any is pruned
_WARMUP_FOLDS = 2  # folds that every trial is granted, and a third of them if that is more


class ResumableTPESampler(BaseSampler):
    """TPE that draws the same after an interruption as without, and else in another process.

    Args:
        seed: Of all draws.
        driver: The name of the process, put down with each trial as soon as there is one.
    """

    def __init__(self, seed: int, driver: str) -> None:
        self._seed, self._driver = seed, driver
        self._tpe = TPESampler(seed=seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Seed the draws of a trial by how many count before it; those that failed do not."""
        # Optuna draws before it hands out the trial, and a process may be killed while it draws.
        storage, place = study._storage, trial._trial_id  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        storage.set_trial_user_attr(place, "driver", self._driver)
        others = study.get_trials(deepcopy=False)
        place = sum(t.number < trial.number and t.state != TrialState.FAIL for t in others)
        self._tpe = TPESampler(seed=combine_seeds(self._seed, place))
        self._tpe.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """As TPE does."""
        return self._tpe.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """As TPE does."""
        return self._tpe.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # noqa: ANN401 - Optuna's own return type
        """As TPE does."""
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)


def suggest(trial: Trial, name: str, held: tuple[Value, ...] | Range) -> None:
    """Draw the value of an option."""
    if not isinstance(held, Range):
        trial.suggest_categorical(name, held)
    elif isinstance(held.low, int) and isinstance(held.high, int):
        trial.suggest_int(name, held.low, held.high, log=held.log)
    else:
        trial.suggest_float(name, held.low, held.high, log=held.log)


def median_pruner(folds: int) -> MedianPruner:
    """Give what stops a trial that is worse than the median of others after as many folds."""
    return MedianPruner(_STARTUP_TRIALS, n_warmup_steps=max(_WARMUP_FOLDS, folds // 3))


class TopFractionPruner(BasePruner):
    """Let the best share of the trials that have reported a step go on, at least one.

    Args:
        share: How many of them, rounded up; the first of equals go before others.
    """

    def __init__(self, share: float) -> None:
        self._share = share

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Say whether a trial is not among the best at the step that it reported last."""
        step = trial.last_step
        sign = -1 if study.direction == StudyDirection.MAXIMIZE else 1
        ranked = sorted(
            (sign * other.intermediate_values[step], other.user_attrs.get(CANDIDATE, other.number))
            for other in study.get_trials(deepcopy=False)
            if other.state != TrialState.FAIL and step in other.intermediate_values
        )
        kept = ranked[: max(1, ceil(self._share * len(ranked)))]
        return step is not None and trial.user_attrs.get(CANDIDATE, trial.number) not in {
            place for _, place in kept
        }


def should_prune(study: Study, trial: Trial, values: Sequence[float]) -> bool:
    """Ask the pruner about the mean so far alone.

    It judges by the best value that a trial ever reported, and the mean of the first folds may be
    good for all, since folds differ in how hard they are.

    Args:
        study: Whose pruner.
        trial: The trial.
        values: One a fold that was run.
    """
    now = copy(study.get_trials(deepcopy=False)[trial.number])
    now.intermediate_values = {len(values): fmean(values)}
    return study.pruner.prune(study, now)


def combine_seeds(seed: int, place: int) -> int:
    """Make one seed of two numbers."""
    return int(SeedSequence((seed, place)).generate_state(1)[0])
