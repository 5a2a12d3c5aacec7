"""A function mapped over an iterator by worker processes."""

import time

import pytest

from gtpool.study.ordered_map import ordered_map


def large(number):
    """Return what takes a while to send."""
    return bytes([number]) * 30_000_000


@pytest.mark.slow
def test_a_worker_that_ends_while_it_sends_a_result_keeps_nobody_waiting():
    for pause in (0.0, 0.003, 0.01):
        results = ordered_map(large, range(100), 2)
        assert next(results)[0] == 0
        time.sleep(pause)
        results.close()


@pytest.mark.slow
def test_results_come_in_order():
    assert list(ordered_map(abs, range(-9, 0), 2)) == list(range(9, 0, -1))
