"""Waiting for other processes and threads. The limit bounds failures alone: machines are busy."""

import time


def wait_for(condition, process=None, limit=300.0) -> None:
    """Wait until a condition holds; a process that ends before, and the limit, are failures."""
    end = time.monotonic() + limit
    while not condition():
        assert process is None or process.poll() is None, "the process ended too soon"
        assert time.monotonic() < end, f"nothing came in {limit:.0f} seconds"
        time.sleep(0.02)
