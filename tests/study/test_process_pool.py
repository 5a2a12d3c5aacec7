import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path
from threading import Timer

import pytest
import torch
from waiting import wait_for

from gtpool.study import store
from gtpool.study.process_pool import ATTEMPTS, run_in_processes

pytestmark = pytest.mark.slow  # each test starts processes that import torch


def square(task, report):
    report(f"at {task}")
    return task**2, os.getpid(), torch.get_num_threads()


def kill_at_13(task, report):
    report(os.getpid())
    if task == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def die_in_mid_sentence(task, report):
    """Dies at the first attempt, while its long report waits for a parent that does not listen."""
    if not Path(task).exists():
        Path(task).touch()
        Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        report(bytes(10**7))
    return "survived"


def write_for_ever(task, report):
    """Reports when all of a file is written but its name, and goes no further."""

    def stall(_):
        report("writing")
        time.sleep(600)

    store.os.fsync = stall
    store.write_atomic(Path(task), b"half")


def hold_on(task, report):
    """Does not end when it is asked to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report(os.getpid())
    time.sleep(task)


def complain(task, report):
    report(task)
    raise ValueError(f"task {task} is wrong")


def test_every_task_is_done_once_in_few_processes_of_one_thread():
    heard = list(run_in_processes(square, range(6), 2))
    results = {said.task: said.value for said in heard if said.kind == "result"}
    assert {task: value[0] for task, value in results.items()} == {n: n**2 for n in range(6)}
    pids = {value[1] for value in results.values()}
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids
    assert {value[2] for value in results.values()} == {1}
    for task in range(6):
        kinds = [(said.kind, said.value) for said in heard if said.task == task][:2]
        assert kinds == [("started", None), ("report", f"at {task}")]


def test_a_task_that_kills_its_workers_is_blamed_and_the_others_are_done():
    heard = list(run_in_processes(kill_at_13, [13, 1, 2], 1))
    assert sum(said == (13, "started", None) for said in heard) == ATTEMPTS
    assert [said for said in heard if said.kind == "died"] == [(13, "died", -signal.SIGKILL)]
    assert {said.value for said in heard if said.kind == "result"} == {1, 2}


def test_a_worker_that_dies_while_it_speaks_is_replaced(tmp_path):
    begun = tmp_path / "a"
    heard = run_in_processes(die_in_mid_sentence, [str(begun)], 1)
    said = [next(heard)]
    wait_for(begun.exists)
    time.sleep(1)  # until the worker is dead
    kinds = [said.kind for said in (*said, *heard)]
    assert kinds == ["started", "started", "result"]


def test_an_exception_is_raised_in_the_parent_with_its_trace():
    with pytest.raises(ValueError, match=r"task \d is wrong") as caught:
        list(run_in_processes(complain, [1, 2], 1))
    assert "in complain" in "".join(caught.value.__notes__)


def test_closing_ends_the_workers():
    with closing(run_in_processes(kill_at_13, [1, 2], 1)) as heard:
        pid = next(said.value for said in heard if said.kind == "report")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_closing_leaves_nothing_half_written(tmp_path):
    with closing(run_in_processes(write_for_ever, [str(tmp_path / "a")], 1)) as heard:
        assert next(said for said in heard if said.kind == "report")
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_closing_ends_a_worker_that_does_not_listen(monkeypatch):
    monkeypatch.setattr("gtpool.study.process_pool._EXIT_SECONDS", 0.1)
    with closing(run_in_processes(hold_on, [600], 1)) as heard:
        pid = next(said.value for said in heard if said.kind == "report")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import os, signal, time
            from gtpool.study.process_pool import run_in_processes

            def work(task, report):
                report(os.getpid())
                time.sleep(60)

            if __name__ == "__main__":
                for said in run_in_processes(work, [1], 1):
                    if said.kind == "report":
                        print(said.value, flush=True)
                        os.kill(os.getpid(), signal.SIGKILL)
        """)
    )
    # A worker has the pipes as well, so that this waits for it.
    done = subprocess.run([sys.executable, script], capture_output=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")


def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            from gtpool.study.process_pool import run_in_processes

            def work(task, report):
                return task

            print(list(run_in_processes(work, [1], 1)))
        """)
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1
    assert 'below `if __name__ == "__main__":`' in done.stderr
