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
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

JOURNAL = "search.journal"
_STALE = 10.0  # seconds after which a trial that nobody has put his name to is lost


def open_study(name: str, place: str | Path, *, maximize: bool, told: Mapping[str, Any]) -> Study:
    """Open a study, or begin it.

    Args:
        name: Its name.
        place: A folder for a journal, or the URL of a database.
        maximize: Whether more is better.
        told: What it is about, kept with it for people to read.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = place if isinstance(place, str) else _open_journal(place)
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
        where = f"storage {place!r}" if isinstance(place, str) else f"{place / JOURNAL}"
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{where} cannot be opened: {reason}") from error
    return study


@contextmanager
def driving(folder: Path) -> Generator[str]:
    """Put one's name down as at work, by a lock that ends with this process however it ends."""
    name = uuid4().hex
    lock = _lock_of(folder, name)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        yield name
        lock.unlink(missing_ok=True)


def fail_lost_trials(study: Study, folder: Path, options: tuple[str, ...]) -> bool:
    """Fail the trials of processes that died, and let their combinations wait to be tried again.

    Gives whether there is a trial too young to tell. Only processes that put their name down in
    this folder are looked at: others, of a database that is shared by machines, may be alive.

    Args:
        study: The study.
        folder: That of the search.
        options: Those that a whole combination has.
    """
    nameless = [trial for trial in _running(study) if "driver" not in trial.user_attrs]
    for trial in nameless:
        age = datetime.now() - cast("datetime", trial.datetime_start)  # noqa: DTZ005 - as Optuna's
        if age.total_seconds() > _STALE:
            _fail(study, trial, options)
    for path in _lock_of(folder, "").parent.glob("*.lock"):
        with suppress(Timeout), FileLock(path, timeout=0):  # it is held while its process lives
            for trial in _running(study):
                if trial.user_attrs.get("driver") == path.stem:
                    _fail(study, trial, options)
            path.unlink(missing_ok=True)
    return bool(nameless)


def _open_journal(folder: Path) -> BaseStorage:
    """Open the journal, without the line that a loss of power has left unfinished."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JOURNAL
    lock = FileLock(folder / ".search.lock", poll_interval=0.01)
    with lock:
        content = path.read_bytes() if path.exists() else b""
        path.touch()
        if not content.endswith(b"\n"):  # Optuna would refuse all that follows it
            os.truncate(path, content.rfind(b"\n") + 1)
    # Optuna's own lock outlives a process that is killed with it, for half a minute.
    return JournalStorage(JournalFileBackend(str(path), cast("Any", lock)))


def _lock_of(folder: Path, name: str) -> Path:
    return folder / "drivers" / f"{name}.lock"


def _running(study: Study) -> list[optuna.trial.FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))


def _fail(study: Study, trial: optuna.trial.FrozenTrial, options: tuple[str, ...]) -> None:
    choice = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
    with suppress(ValueError, UpdateFinishedTrialError):  # another process was faster
        study.tell(trial.number, state=TrialState.FAIL)
        if choice.keys() == set(options):
            study.enqueue_trial(choice)
