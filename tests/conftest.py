import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

import pytest
import torch

from gtpool.cli import main

DATA = os.environ.get("GTPOOL_DATA")

# Without a GPU Triton's kernels are tested in its interpreter, which must be chosen before import.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Started in the background by a shell, the tests would ignore Ctrl-C, and so all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Two test processes on two cores: more threads each would wait for one another.
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Keep what the tests make out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GTPOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def data_dir():
    if not DATA:
        pytest.skip("GTPOOL_DATA does not name a folder with the datasets")
    return Path(DATA)


@pytest.fixture(scope="module")
def no_data_folder():
    """Hide the datasets of this machine, and with them the fixed folds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GTPOOL_DATA", raising=False)
        yield


@pytest.fixture(scope="module")
def unwritten_is_nan():
    """Fill what torch.empty and its kin return with NaN: an entry left unwritten shows."""

    def poisoned(make):
        def made(*args, **kwargs):
            new = make(*args, **kwargs)
            if new.is_floating_point():
                return new.fill_(torch.nan)
            return new if new.dtype == torch.bool else new.fill_(torch.iinfo(new.dtype).max)

        return made

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
            patch.setattr(owner, name, poisoned(getattr(owner, name)))
        yield


@pytest.fixture
def inductor():
    """Name torch.compile's default back-end, with several threads and an empty cache."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("there is no C++ compiler, which inductor needs")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # inductor writes other code for one thread
    torch.compiler.reset()
    yield "inductor"
    torch.compiler.reset()
    torch.set_num_threads(threads)


@pytest.fixture
def gtpool(monkeypatch, capsys):
    """Run the command line in this process: exit code, standard output and standard error."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["gtpool", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def shown_warnings(monkeypatch):
    """Print warnings to standard error as Python does outside of pytest."""

    def show(message, category, filename, lineno, *_):
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))

    monkeypatch.setattr(warnings, "showwarning", show)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


@pytest.fixture(scope="module")
def browser():
    """Start Chromium once for all tests of a module."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium here (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()
