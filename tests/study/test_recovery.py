"""Real processes, really killed."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_for

from gtpool.spec import DataSpec, ModelSpec, RunSpec, TrainSpec
from gtpool.study.inputs import expand_folds
from gtpool.study.run import run_many
from gtpool.study.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_data_folder")]
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")

NUMBERS = ("spec", "test", "valid_loss", "valid_metric", "epoch", "other_rules", "curves", "split")
SPEC = RunSpec(
    data=DataSpec(source="MUTAG"),
    model=ModelSpec(width=8, levels=1),
    train=TrainSpec(epochs=12, warmup=2),
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The ten folds, one after the other in this process."""
    return numbers(run_many(folds(), Store(tmp_path_factory.mktemp("reference"))))


def folds(spec=SPEC):
    return expand_folds(spec)


def numbers(rows):
    return {row.key: {name: getattr(row, name) for name in NUMBERS} for row in rows}


def start(folder, jobs=1):
    """Begin the ten folds in a process group of their own."""
    return subprocess.Popen(
        [sys.executable, __file__, folder, str(jobs)],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def finished(folder):
    """Name, time and content of each row file."""
    return {
        path.name: (path.stat().st_mtime_ns, path.read_bytes())
        for path in Path(folder, "runs").glob("*.json")
    }


def children(pid):
    """List the processes that a process has started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def workers(pid):
    """List those children that do runs: the others keep account of shared resources."""
    lines = ((child, Path(f"/proc/{child}/cmdline").read_bytes()) for child in children(pid))
    return [child for child, line in lines if b"spawn_main" in line]


def gone(pid):
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def check_complete(folder, reference):
    store = Store(folder)
    assert numbers(store.rows()) == reference
    assert {row.status for row in store.rows()} == {"done"}


@needs_proc
def test_after_kill_9_no_finished_fold_is_repeated_and_none_is_lost(tmp_path, reference):
    process = start(tmp_path, jobs=2)
    wait_for(lambda: len(finished(tmp_path)) >= 3, process)
    crew = workers(process.pid)
    assert len(crew) == 2
    process.kill()
    process.communicate()
    wait_for(lambda: all(gone(pid) for pid in crew))  # workers do not outlive their parent
    before = finished(tmp_path)
    assert 3 <= len(before) < 10
    again = start(tmp_path)
    assert again.communicate()[1] == ""
    assert again.returncode == 0
    after = finished(tmp_path)
    assert len(after) == 10
    assert {name: after[name] for name in before} == before
    check_complete(tmp_path, reference)


def test_a_truncated_row_is_named_and_redone_and_nothing_else(tmp_path, reference):
    run_many(folds()[:3], Store(tmp_path))
    before = finished(tmp_path)
    broken = tmp_path / "runs" / sorted(before)[1]
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.warns(UserWarning, match=f"{broken.name} is damaged"):
        run_many(folds(), Store(tmp_path))
    after = finished(tmp_path)
    assert {name for name in before if after[name] != before[name]} == {broken.name}
    check_complete(tmp_path, reference)


def test_two_processes_on_one_store(tmp_path, reference):
    both = [start(tmp_path), start(tmp_path)]
    assert [process.communicate()[1] for process in both] == ["", ""]
    assert [process.returncode for process in both] == [0, 0]
    check_complete(tmp_path, reference)
    assert not list((tmp_path / "runs").glob(".*"))


@needs_proc
def test_ctrl_c_stops_at_once_and_keeps_what_is_finished(tmp_path, reference):
    process = start(tmp_path, jobs=2)
    wait_for(lambda: len(finished(tmp_path)) >= 2, process)
    crew = children(process.pid)
    before = finished(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=300)[1]
    assert process.returncode != 0
    assert said.count("Traceback") == 1  # the parent's, and none of a worker
    assert said.rstrip().endswith("KeyboardInterrupt")
    wait_for(lambda: all(gone(pid) for pid in crew))
    after = finished(tmp_path)
    assert before.items() <= after.items()
    assert len(after) < 10
    rows = Store(tmp_path).rows()
    assert numbers(rows).items() <= reference.items()


class Killer:
    """A watcher that kills all workers at each sign of life."""

    def begin(self, *_):
        pass

    def started(self, _):
        pass

    def epoch(self, *_):
        for pid in workers(os.getpid()):
            os.kill(pid, signal.SIGKILL)

    def finished(self, _):
        pass


@needs_proc
def test_runs_that_no_worker_survives_are_stored_as_failed(tmp_path):
    specs = [replace(spec, train=replace(spec.train, epochs=500)) for spec in folds()[:2]]
    rows = run_many(specs, Store(tmp_path), jobs=2, watch=Killer())
    for row in rows:
        assert row.status == "failed"
        assert "its process died 3 times, last with exit code -9" in row.error
    assert Store(tmp_path).rows() == sorted(rows, key=lambda row: row.key)


if __name__ == "__main__":
    run_many(folds(), Store(sys.argv[1]), jobs=int(sys.argv[2]))
