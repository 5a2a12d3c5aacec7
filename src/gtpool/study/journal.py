"""Optuna storage of a search, and detection of processes that died."""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import optuna
from filelock import FileLock, Timeout
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

JOURNAL = "search.journal"
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
