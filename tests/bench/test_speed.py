import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gtpool.bench import networks, scalability
from gtpool.bench.baselines import PyGBaseline
from gtpool.bench.bench_tables import BENCH_TABLES, newest_rows
from gtpool.bench.benches import BENCHES, plan_jobs, run_job
from gtpool.bench.networks import (
    NETWORKS,
    TrainingStep,
    choose_widths,
    count_parameters,
    load_batch,
    prepare_network,
)
from gtpool.bench.paper_speed import (
    BASELINES,
    CAPTURED,
    OURS,
    REFERENCE,
    SCALABILITY,
    SPEED,
    SPEED_DATASETS,
    models,
    speed_target,
)
from gtpool.bench.roofline import count_work
from gtpool.bench.settings import BenchSettings
from gtpool.bench.timing import measure, measure_stages, record
from gtpool.data.sources import load
from gtpool.data.synthetic import erdos_renyi
from gtpool.spec import ModelSpec, ShapeSpec
from gtpool.study.inputs import shape_of

ROOT = Path(__file__).parents[2]
QUICK = BenchSettings.of(torch.device("cpu"), quick=True)
CODED = ShapeSpec(outputs=1, node_categories=(5, 3), mean_nodes=4)


def measure_now(what, settings):
    return [row for job in plan_jobs([what], settings) for row in job.run()]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Measure every bench once: its rows, by name."""
    folder, settings = tmp_path_factory.mktemp("rows"), replace(QUICK, nodes=(20,))
    return {
        what: [row for job in plan_jobs([what], settings) for row in run_job(job, folder)]
        for what in BENCHES
    }


def test_every_candidate_is_called_once_a_round_and_in_turn():
    called = []
    calls = {name: (lambda name=name: called.append(name)) for name in "ab"}
    stages = {name: (call, call) for name, call in calls.items()}
    taken = measure_stages(stages, seconds=0.0, rounds=2)
    assert "".join(called) == "aabb" * 3  # one round warms up
    assert {name: [part.rounds for part in parts] for name, parts in taken.items()} == {
        "a": [2, 2],
        "b": [2, 2],
    }
    assert set(measure(calls, seconds=0.0)) == {"a", "b"}


def test_a_slow_round_is_taken_for_the_measurement():
    called = []
    (taken,) = measure_stages({"a": (lambda: called.append("a"),)}, enough=-1.0)["a"]
    assert (called, taken.rounds, taken.std) == (["a"], 1, 0.0)


def test_rows_are_appended_with_their_circumstances(tmp_path):
    record("thing", [{"ms": 1.0}], tmp_path / "new")
    (given,) = record("thing", [{"ms": 2.0, "device": "elsewhere"}], tmp_path / "new")
    rows = [json.loads(line) for line in (tmp_path / "new/thing.jsonl").read_text().splitlines()]
    assert [row["ms"] for row in rows] == [1.0, 2.0]
    assert rows[1] == given
    assert given["device"] == "elsewhere"
    assert {"date", "commit", "cpu", "gpu", "threads", "torch", "torch_geometric"} <= set(given)


@pytest.mark.parametrize("name", BASELINES)
def test_rivals_answer_for_each_graph_and_learn(name):
    data = load("MUTAG")
    runner = TrainingStep(PyGBaseline(name, shape_of(data), 8), data, torch.arange(6))
    assert runner.model.classify(runner.graphs).shape == (6, 2)
    before = [part.clone() for part in runner.weights]
    runner.step()
    moved = [not torch.equal(*pair) for pair in zip(before, runner.weights, strict=True)]
    assert sum(moved) > len(moved) / 2


@pytest.mark.parametrize("name", BASELINES)
def test_rivals_take_coded_atoms(name):
    batch = torch.tensor([0, 0, 0, 1, 1])
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 0, 4]])
    codes = torch.tensor([[0, 1], [4, 2], [3, 0], [1, 1], [2, 2]])
    assert PyGBaseline(name, CODED, 8)(codes, edges, batch).shape == (2, 1)


def test_an_unknown_rival_lists_the_choices():
    with pytest.raises(ValueError, match="SAGPool_h, TopKPool, ASAP, GMT"):
        PyGBaseline("SAGPool", CODED, 8)


def test_similar_widths_bring_parameters_near_those_of_the_first():
    shape, settings = shape_of(load("MUTAG")), replace(QUICK, width=128)
    widths = choose_widths(shape, settings, similar=True)
    goal = count_parameters(REFERENCE, shape, 128)
    assert widths[REFERENCE] == 128
    for name, width in widths.items():
        assert abs(count_parameters(name, shape, width) - goal) < 0.1 * goal
    assert set(choose_widths(shape, settings, similar=False).values()) == {128}


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_are_counted_as_they_are_made(name):
    shape = shape_of(load("MUTAG"))
    made = sum(part.numel() for part in NETWORKS[name](shape, 12).parameters())
    assert count_parameters(name, shape, 12) == made


def test_speed_has_a_row_a_network_and_sizing(measured):
    rows = measured["speed"]
    assert [(row["sizing"], row["model"]) for row in rows] == [
        (sizing, model)
        for sizing in ("similar parameters", "equal width")
        for model in (*BASELINES, OURS)
    ]
    for row in rows:
        assert min(row["forward_ms"], row["backward_ms"]) > 0
        assert row["total_ms"] == pytest.approx(row["forward_ms"] + row["backward_ms"], abs=0.01)
        first = next(
            other
            for other in rows
            if (other["sizing"], other["model"]) == (row["sizing"], REFERENCE)
        )
        assert row["speedup"] == pytest.approx(first["total_ms"] / row["total_ms"], rel=0.01)


def test_step_times_whole_steps_at_one_width(measured):
    rows = measured["step"]
    assert [row["model"] for row in rows] == [*BASELINES, OURS]
    assert {row["width"] for row in rows} == {QUICK.width}
    assert all(row["step_ms"] > 0 for row in rows)


@pytest.mark.parametrize("what", ["speed", "step", "roofline"])
def test_a_dataset_that_is_not_here_is_missing_and_not_downloaded(what, monkeypatch):
    monkeypatch.delenv("GTPOOL_DATA", raising=False)
    rows = measure_now(what, replace(QUICK, sets=("PROTEINS",)))
    assert rows
    assert all(row["missing"].endswith("gtpool data get PROTEINS") for row in rows)


def test_a_step_that_cannot_be_captured_is_missing_with_the_reason(monkeypatch):
    def refuse(*_):
        raise ValueError("the batch needs more")

    monkeypatch.setattr(networks, "capture_step", refuse)
    found = load_batch("MUTAG", QUICK)
    assert found is not None
    assert prepare_network(models("cuda")[-1], *found, 8) == "the batch needs more"


def test_scalability_measures_each_cell(measured):
    rows = measured["scalability"]
    assert [row["model"] for row in rows] == ["SAGPool_h", "ASAP", "GMT", OURS]
    assert all(row["total_ms"] > 0 and row["peak_mb"] >= 0 for row in rows)
    assert len({row["edges"] for row in rows}) == 1
    assert 0 < rows[0]["edges"] < 20 * 19  # of one graph


def test_a_cell_that_takes_too_long_is_given_up_and_larger_ones_are_not_tried():
    rows = measure_now("scalability", replace(QUICK, limit=0.0))
    assert {row["missing"] for row in rows} == {"over 0 s"}
    assert [row["nodes"] for row in rows if row.get("tried", True)] == [20] * 4
    assert [row["nodes"] for row in rows if not row.get("tried", True)] == [30] * 4


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "out of memory"),
        (RuntimeError("CUDA error: insufficient resources when calling"), "out of memory"),
        (RuntimeError("shapes do not fit\nat line 3"), "failed: shapes do not fit"),
    ],
)
def test_a_cell_that_fails_says_why(error, said, monkeypatch):
    def fail(*_):
        raise error

    sent = []
    monkeypatch.setattr(scalability, "_limit_memory", lambda: None)
    monkeypatch.setattr(scalability.signal, "signal", lambda *_: None)
    monkeypatch.setattr(scalability, "_measure_cpu", fail)
    cell = scalability.ScalabilityCase("GMT", 20, 0.2, None)
    scalability._run_in_child(type("End", (), {"send": sent.append})(), QUICK, cell, 1)
    assert sent == [{"missing": said}]


def test_roofline_counts_the_work_and_looks_at_the_step(measured):
    (row,) = measured["roofline"]
    assert row["floor_ms"] == max(row["compute_ms"], row["memory_ms"]) > 0
    assert row["step_ms"] > row["floor_ms"]
    assert row["kernels"] > 100
    assert len(row["longest"]) == 5


def test_work_of_a_step_by_hand():
    shape = ShapeSpec(outputs=2, node_width=3)
    graphs = erdos_renyi(2, 4, 1.0, channels=3).take([0, 1], (0.5,))  # 8 nodes, 4 kept, 24 edges
    work = count_work(ModelSpec(width=4, levels=1), shape, graphs, 100)
    weights = 2 * 8 * 3 * 4 + 3 * 2 * 8 * 4 * 4 + 2 * 2 * 4 * 4 * 8
    attention = 4 * 4 * (16 + 16) + 5 * 2 * 4 * (2 * 4 + 2 * 4)
    edges = 2 * 2 * (24 + 8) * 4 + 2 * 24 * 4
    head = 3 * 2 * 2 * (8 * 4 + 4 * 2 + 2 * 2)
    assert work.operations == 3 * weights + attention + edges + head + 15 * 100
    values = 8 * (3 + 6 * 4) + 4 * (3 * 4 + 8) + 2 * 4 * 4
    assert work.bytes == 5 * 4 * values + 3 * 2 * 8 * 24 + 10 * 4 * 100


def test_published_figures_are_whole():
    assert set(SPEED) == {(name, model) for name in SPEED_DATASETS for model in (*BASELINES, OURS)}
    assert [SPEED[name, OURS].speedup for name in SPEED_DATASETS] == [1.31, 0.93, 0.79]
    assert len(SCALABILITY) == 48
    assert SCALABILITY[1200, OURS, 0.8] is None
    assert [speed_target("cuda", name, "equal width") for name in SPEED_DATASETS] == [10, 8, 8]
    assert [speed_target("cpu", name, "similar parameters") for name in SPEED_DATASETS] == [
        1.3,
        1.0,
        1.0,
    ]
    assert speed_target("cpu", "MUTAG", "equal width") is None


def test_an_unknown_bench_lists_the_choices():
    with pytest.raises(ValueError, match="speed, step, scalability, roofline"):
        plan_jobs(["sped"], QUICK)


@pytest.mark.parametrize("what", BENCHES)
def test_tables_show_every_row_of_a_run(what, measured):
    rows = measured[what]
    shown = "\n".join("|".join(line) for sheet in BENCH_TABLES[what](rows) for line in sheet.lines)
    heads = " ".join(head for sheet in BENCH_TABLES[what](rows) for head in sheet.headings)
    assert {row["model"] for row in rows if row["model"] not in shown + heads} == set()
    assert "missing" not in shown


def test_the_newest_row_of_a_case_counts():
    rows = [{"date": "2", "case": "a", "ms": 2}, {"date": "1", "case": "a", "ms": 1}]
    assert [row["ms"] for row in newest_rows(rows, "case").values()] == [2]


def make_page(*folder):
    program = [sys.executable, ROOT / "docs/performance.py", *folder]
    return subprocess.run(program, check=True, capture_output=True, encoding="utf-8").stdout


def test_the_page_is_that_of_the_results():
    assert make_page() == (ROOT / "docs/performance-tables.md").read_text(encoding="utf-8")


def test_the_page_shows_what_was_not_measured_as_missing(tmp_path):
    common = {"date": "2026-01-01", "commit": "abc1234", "device": "cuda", "gpu": "Some Card"}
    common |= {"cpu": "x", "threads": 2, "python": "3", "torch": "2", "torch_geometric": "2"}
    row = {"dataset": "PROTEINS", "model": REFERENCE, "width": 128, "parameters": 76000}
    row |= {"step_ms": 11.2, "step_std": 0.1, "total_ms": 11.2, "speedup": 1.0}
    lost = {"dataset": "PROTEINS", "model": CAPTURED, "missing": "missing memory"}
    lines = [json.dumps(common | one) + "\n" for one in (row, lost)]
    (tmp_path / "step.jsonl").write_text("".join(lines))
    cell = {"model": "ASAP", "nodes": 500, "density": 0.8, "cap_gb": 11.0}
    full = common | cell | {"missing": "out of memory"}
    (tmp_path / "scalability.jsonl").write_text(json.dumps(full) + "\n")
    page = make_page(tmp_path)
    whole = "| Some Card | equal width, whole step | PROTEINS |"
    assert f"{whole} 11.2 | – | – | – | – | missing memory | 1.31× |" in page
    assert "| 500 | ASAP | missing | missing | missing | out of memory |" in page
    assert "Some Card; Python 3, torch 2, PyG 2; commit abc1234; 2026-01-01." in page
    assert "Not measured yet." in page
