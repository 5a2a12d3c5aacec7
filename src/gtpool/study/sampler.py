"""Sampler and pruners of a search, based on TPE and the median pruner of Optuna."""

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
"""User attribute of a trial that holds the index of its candidate in successive halving."""
_STARTUP_TRIALS = 5  # complete trials before any is pruned
_WARMUP_FOLDS = 2  # folds before pruning, or a third of all folds if that is more


class ResumableTPESampler(BaseSampler):
    """TPE sampler whose draws do not depend on interruptions.

    Args:
        seed: Seed of all draws.
        driver: Name of the process, recorded with each of its trials.
    """

    def __init__(self, seed: int, driver: str) -> None:
        self._seed, self._driver = seed, driver
        self._tpe = TPESampler(seed=seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Seed the draws of a trial by the number of earlier trials that did not fail."""
        # Optuna samples before it returns the trial, and the process may be killed meanwhile.
        storage, place = study._storage, trial._trial_id  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        storage.set_trial_user_attr(place, "driver", self._driver)
        others = study.get_trials(deepcopy=False)
        place = sum(t.number < trial.number and t.state != TrialState.FAIL for t in others)
        self._tpe = TPESampler(seed=combine_seeds(self._seed, place))
        self._tpe.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Delegate to TPE."""
        return self._tpe.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Delegate to TPE."""
        return self._tpe.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # noqa: ANN401 - Optuna's own return type
        """Delegate to TPE."""
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)


def suggest(trial: Trial, name: str, held: tuple[Value, ...] | Range) -> None:
    """Sample the value of an option."""
    if not isinstance(held, Range):
        trial.suggest_categorical(name, held)
    elif isinstance(held.low, int) and isinstance(held.high, int):
        trial.suggest_int(name, held.low, held.high, log=held.log)
    else:
        trial.suggest_float(name, held.low, held.high, log=held.log)


def median_pruner(folds: int) -> MedianPruner:
    """Return the pruner of trials that are worse than the median after as many folds."""
    return MedianPruner(_STARTUP_TRIALS, n_warmup_steps=max(_WARMUP_FOLDS, folds // 3))


class TopFractionPruner(BasePruner):
    """Keeps the best fraction of the trials that reported a step, at least one.

    Args:
        share: Fraction to keep, rounded up; ties go to the first.
    """

    def __init__(self, share: float) -> None:
        self._share = share

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether a trial is not among the best at its last reported step."""
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
    """Return whether to prune a trial by its current mean.

    Optuna's pruner uses the best value that a trial ever reported, but early means may be good only
    because the first folds are easy.

    Args:
        study: The study with the pruner.
        trial: The trial.
        values: One value per finished fold.
    """
    now = copy(study.get_trials(deepcopy=False)[trial.number])
    now.intermediate_values = {len(values): fmean(values)}
    return study.pruner.prune(study, now)


def combine_seeds(seed: int, place: int) -> int:
    """Derive a seed from two numbers."""
    return int(SeedSequence((seed, place)).generate_state(1)[0])
