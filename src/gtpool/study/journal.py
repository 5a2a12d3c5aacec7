"""Where a search is remembered, and what became of the processes that were at it."""

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
_STALE = 10.0  # seconds after which a trial that nobody has put his name to is lost


def open_study(
    name: str, place: str | Path | BaseStorage, *, maximize: bool, told: Mapping[str, Any]
) -> Study:
    """Open a study, or begin it.

    Args:
        name: Its name.
        place: A folder for a journal, the URL of a database, or what ``open_journal`` gave.
        maximize: Whether more is better.
        told: What it is about, kept with it for people to read; ``space`` names its options.
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
    """Put one's name down as at work, by a lock that ends with this process however it ends."""
    name = uuid4().hex
    lock = _lock_path(folder, name)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        yield name
        lock.unlink(missing_ok=True)


def fail_lost_trials(study: Study, folder: Path) -> bool:
    """Fail the trials of processes that died, and let their combinations wait to be tried again.

    Gives whether there is a trial too young to tell. Only processes that put their name down in
    this folder are looked at: others, of a database that is shared by machines, may be alive.
    Of a process that died, the trials of all studies are failed.

    Args:
        study: The study.
        folder: That of the search.
    """
    nameless = [trial for trial in _running(study) if "driver" not in trial.user_attrs]
    for trial in nameless:
        age = datetime.now() - cast("datetime", trial.datetime_start)  # noqa: DTZ005 - as Optuna's
        if age.total_seconds() > _STALE:
            _fail_and_requeue(study, trial)
    for path in _lock_path(folder, "").parent.glob("*.lock"):
        with suppress(Timeout), FileLock(path, timeout=0):  # it is held while its process lives
            for other in _all_studies(study):
                for trial in _running(other):
                    if trial.user_attrs.get("driver") == path.stem:
                        _fail_and_requeue(other, trial)
            path.unlink(missing_ok=True)
    return bool(nameless)


def open_journal(folder: Path) -> BaseStorage:
    """Open the journal of a folder, without the line that a loss of power has left unfinished."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JOURNAL
    lock = FileLock(folder / ".search.lock", poll_interval=0.01)
    with lock:
        content = path.read_bytes() if path.exists() else b""
        path.touch()
        if not content.endswith(b"\n"):  # Optuna would refuse all that follows it
            os.truncate(path, content.rfind(b"\n") + 1)
    # Optuna's own lock outlives a process that is killed with it, for half a minute.
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
    """Open all studies of the journal or database that one lies in."""
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
