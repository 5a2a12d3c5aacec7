"""Optuna under a search: storage, detection of processes that died, sampler and pruners.

The sampler is based on TPE, the pruners on the median pruner of Optuna.
"""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import datetime
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any, cast
from uuid import uuid4

import optuna
from filelock import FileLock, Timeout
from numpy.random import SeedSequence
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import BasePruner, MedianPruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from gtpool.study.space import Range, Value

JOURNAL = "search.journal"
CANDIDATE = "place"
"""User attribute of a trial that holds the index of its candidate in successive halving."""
_STARTUP_TRIALS = 5  # complete trials before any is pruned
_WARMUP_FOLDS = 2  # folds before pruning, or a third of all folds if that is more
_STALE = 10.0  # seconds after which a running trial without a driver is lost


def open_study(
    name: str, place: str | Path | BaseStorage, *, maximize: bool, told: Mapping[str, Any]
) -> Study:
    """Return a study; create it if it does not exist.

    Args:
        name: Name of the study.
        place: Folder of a journal, URL of a database, or result of ``open_journal``.
        maximize: Whether higher is better.
        told: User attributes that describe the study; ``space`` names its options.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = open_journal(place) if isinstance(place, Path) else place
    try:
        study = optuna.create_study(
            study_name=name,
            storage=storage,
            direction="maximize" if maximize else "minimize",
            load_if_exists=True,
        )
        if not study.user_attrs:
            for key, value in told.items():
                study.set_user_attr(key, value)
    except (SQLAlchemyError, ImportError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"storage {place!r} cannot be opened: {reason}") from error
    return study


@contextmanager
def driver_lock(folder: Path) -> Generator[str]:
    """Hold the lock of a driver process, which the system releases if the process dies."""
    name = uuid4().hex
    lock = _lock_path(folder, name)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        yield name
        lock.unlink(missing_ok=True)


def fail_lost_trials(study: Study, folder: Path) -> bool:
    """Fail the trials of dead processes in all studies and enqueue their combinations again.

    Only processes with a lock in this folder are checked; others may be alive on other machines
    that share the database.

    Args:
        study: The study.
        folder: Folder of the search.

    Returns:
        Whether there are running trials without a recorded driver.
    """
    nameless = [trial for trial in _running(study) if "driver" not in trial.user_attrs]
    for trial in nameless:
        age = datetime.now() - cast("datetime", trial.datetime_start)  # noqa: DTZ005 - as Optuna's
        if age.total_seconds() > _STALE:
            _fail_and_requeue(study, trial)
    for path in _lock_path(folder, "").parent.glob("*.lock"):
        with suppress(Timeout), FileLock(path, timeout=0):  # held while its process is alive
            for other in _all_studies(study):
                for trial in _running(other):
                    if trial.user_attrs.get("driver") == path.stem:
                        _fail_and_requeue(other, trial)
            path.unlink(missing_ok=True)
    return bool(nameless)


def open_journal(folder: Path) -> BaseStorage:
    """Return the journal of a folder, without a last line truncated by a power loss."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JOURNAL
    lock = FileLock(folder / ".search.lock", poll_interval=0.01)
    with lock:
        content = path.read_bytes() if path.exists() else b""
        path.touch()
        if not content.endswith(b"\n"):  # Optuna would reject all later lines
            os.truncate(path, content.rfind(b"\n") + 1)
    # The lock of Optuna itself outlives a killed process by half a minute.
    backend = JournalFileBackend(str(path), cast("Any", lock))
    try:
        return JournalStorage(backend)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} cannot be opened: {error}") from error


def _lock_path(folder: Path, name: str) -> Path:
    return folder / "drivers" / f"{name}.lock"


def _running(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))


def _all_studies(study: Study) -> list[Study]:
    """Return all studies of the same storage."""
    storage = study._storage  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    names = optuna.get_all_study_names(storage)
    return [optuna.load_study(study_name=name, storage=storage) for name in names]


def _fail_and_requeue(study: Study, trial: FrozenTrial) -> None:
    choice = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
    options = study.user_attrs.get("space", {}).keys()
    marks = {name: mark for name, mark in trial.user_attrs.items() if name != "driver"}
    with suppress(ValueError, UpdateFinishedTrialError):  # another process was faster
        study.tell(trial.number, state=TrialState.FAIL)
        if trial.params.keys() == options:
            study.add_trial(
                create_trial(
                    state=TrialState.WAITING,
                    params=trial.params,
                    distributions=trial.distributions,
                    user_attrs=marks,
                )
            )
        elif choice.keys() == options:
            study.enqueue_trial(choice, user_attrs=marks)


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
