"""How far tuning has come."""

from io import StringIO

from rich.console import Console

from gtpool.report.rounds import Rounds
from gtpool.study.recipe import recipe


def test_rounds_are_told_apart_and_no_test_figure_is_shown():
    now = [0.0]
    text = StringIO()
    watch = Rounds(Console(file=text, width=200), lambda: now[0])
    specs = [*recipe("MUTAG", {"width": 8}), *recipe("MUTAG", {"width": 16})]
    watch.begin(specs, [])
    for number in range(20):
        now[0] += 3.0
        failed = number == 1
        watch.finished(
            {"status": "failed" if failed else "done", "error": "nan", "test": 0.875, "key": ""}
        )
    watch.begin(specs[:10], [{}] * 4)
    said = text.getvalue()
    assert "round 1: 2 networks, 500 epochs: 20 runs\n" in said
    assert "round 1: 2 of 20 runs; one failed: nan\n" in said
    assert "round 1: 4 of 20 runs, about 48 s left in this round\n" in said
    assert "round 1: 20 of 20 runs\n" in said
    assert "round 2: 1 network, 500 epochs: 10 runs, 4 of them done before\n" in said
    assert "87" not in said
