"""Runs side by side leave the rows of runs one by one."""

import weakref
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from gtpool.data.dataset import GraphDataset
from gtpool.data.sources import load
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study import run_one as run_one_module
from gtpool.study.executor import RunTask
from gtpool.study.inputs import expand_folds
from gtpool.study.run import run_many
from gtpool.study.run_one import group_by_network, run_ensemble
from gtpool.study.store import Store
from gtpool.train import fit_many as fit_many_module

SPEC = RunSpec(
    data=DataSpec(source="MUTAG"),
    split=SplitSpec(rule="stratified", folds=5),
    model=ModelSpec(width=8, levels=1),
    train=TrainSpec(epochs=3, warmup=1, batch_size=64),
    seed=1,
)
SAME = ("key", "spec", "status", "error", "metric", "split", "parameters", "source_digest")
NUMBERS = ("test", "valid_loss", "valid_metric")
pytestmark = pytest.mark.usefixtures("no_data_folder")


def folds(count=3, spec=SPEC):
    return expand_folds(spec)[:count]


def many(specs, path, **options):
    return run_many(specs, Store(path), device="cpu", **options)


def assert_alike(found, wanted):
    """Compare rows in all but what may differ between two runs of one spec."""
    for name in SAME:
        assert getattr(found, name) == getattr(wanted, name), name
    assert (found.epoch, found.epochs_run) == (wanted.epoch, wanted.epochs_run)
    for name in NUMBERS:
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), abs=1e-5)
    assert found.other_rules == pytest.approx(wanted.other_rules, abs=1e-5)
    for name, curve in wanted.curves.items():
        assert found.curves[name] == pytest.approx(curve, abs=1e-5)


class Log:
    """A watcher that writes down what it is told."""

    def __init__(self):
        self.begun, self.epochs, self.rows = [], [], []

    def begin(self, specs, done): ...
    def preparing(self, what, done, total): ...

    def started(self, spec):
        self.begun.append(spec.key)

    def epoch(self, spec, epoch):
        self.epochs.append((spec.key, epoch.number))

    def finished(self, row):
        self.rows.append(row)


def test_runs_side_by_side_leave_the_rows_of_single_runs(tmp_path):
    specs = [*folds(3), replace(folds(1)[0], seed=2)]
    one_by_one = many(specs, tmp_path / "alone", together=1)
    side_by_side = many(specs, tmp_path / "beside", together=3)
    for found, wanted in zip(side_by_side, one_by_one, strict=True):
        assert_alike(found, wanted)
    assert [row.together for row in side_by_side] == [3, 3, 3, 1]
    stored = Store(tmp_path / "beside")
    assert [stored.get(spec.key).test for spec in specs] == [row.test for row in side_by_side]


def test_continuous_features_are_scaled_by_each_run_s_training_part(tmp_path):
    graphs = load("MUTAG").to_pyg()[:60]
    random = torch.Generator().manual_seed(0)
    for graph in graphs:
        graph.x = 20 + 5 * torch.rand(graph.x.shape, generator=random)
        graph.edge_attr = None
    GraphDataset.from_pyg(graphs).save(tmp_path / "data")
    spec = replace(SPEC, data=DataSpec(source=str(tmp_path / "data")))
    specs = folds(3, spec)
    wanted = many(specs, tmp_path / "alone", keep=True)
    found = many(specs, tmp_path / "beside", together=3, keep=True)
    for row, other in zip(found, wanted, strict=True):
        assert_alike(row, other)
        assert row.source_digest
        artifacts = (
            load_file(Store(tmp_path / at).artifact(row.key)) for at in ("alone", "beside")
        )
        torch.testing.assert_close(*artifacts, rtol=1e-4, atol=1e-5)


def test_artifacts_hold_the_weights_and_what_they_say(tmp_path):
    specs = folds(2)
    alone, beside = Store(tmp_path / "alone"), Store(tmp_path / "beside")
    run_many(specs, alone, device="cpu", keep=True)
    run_many(specs, beside, device="cpu", keep=True, together=2)
    for spec in specs:
        found, wanted = (load_file(store.artifact(spec.key)) for store in (beside, alone))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    none = Store(tmp_path / "none")
    run_many(specs, none, device="cpu", together=2)
    assert not any(none.artifact(spec.key).exists() for spec in specs)


def test_what_is_done_is_not_repeated(tmp_path):
    specs = folds(3)
    first = many(specs[1:2], tmp_path)
    log = Log()
    rows = many(specs, tmp_path, together=3, watch=log)
    assert rows[1] == first[0]
    assert log.begun == [specs[0].key, specs[2].key]
    log = Log()
    assert many(specs, tmp_path, together=3, watch=log) == rows
    assert log.begun == []


def test_a_watcher_hears_of_every_run(tmp_path):
    specs, log = folds(3), Log()
    rows = many(specs, tmp_path, together=3, watch=log)
    assert log.begun == [spec.key for spec in specs]
    assert log.rows == rows
    for spec in specs:
        heard = [number for key, number in log.epochs if key == spec.key]
        assert heard == [1, 2, 3]


def test_runs_are_grouped_that_differ_in_fold_seed_and_rates_alone():
    specs = [replace(spec, seed=seed) for seed in (1, 2) for spec in folds(2)]
    wide = [replace(spec, model=ModelSpec(width=16, levels=1)) for spec in folds(2)]
    specs += [replace(spec, train=replace(spec.train, lr=1e-4)) for spec in folds(2)]
    specs += [replace(spec, train=replace(spec.train, weight_decay=0.1)) for spec in folds(2)]
    brief = [replace(spec, train=replace(spec.train, epochs=2)) for spec in folds(2)]
    other = [replace(spec, split=replace(spec.split, seed=7)) for spec in folds(2)]
    raw = [replace(spec, data=replace(spec.data, standardize=False)) for spec in folds(2)]
    groups, alone = group_by_network([*specs, *wide, *brief, *other, *raw], 100, None)
    assert groups == [specs, wide, brief, other, raw]
    assert alone == []


def test_a_group_is_no_larger_than_allowed():
    specs = folds(5)
    assert group_by_network(specs, 2, None) == ([specs[:2], specs[2:4], specs[4:]], [])
    assert group_by_network(specs, 1, None) == ([], specs)


def test_what_has_no_static_form_or_no_kin_goes_alone(tmp_path):
    foreign = [replace(spec, model=ModelSpec(pool="asap", width=8)) for spec in folds(2)]
    single = [replace(SPEC, model=ModelSpec(width=16))]
    assert group_by_network([*foreign, *single], 100, None) == ([], [*foreign, *single])
    specs = [*foreign, *folds(2)]
    rows = many(specs, tmp_path, together=3)
    assert [row.key for row in rows] == [spec.key for spec in specs]
    assert [row.together for row in rows] == [None, None, 2, 2]


@pytest.mark.parametrize(("count", "jobs"), [(3, 2), (0, 1), (-1, 1)])
def test_several_in_one_program_and_several_processes_exclude_each_other(count, jobs, tmp_path):
    with pytest.raises(ValueError, match=f"together={count}, jobs={jobs}"):
        many(folds(2), tmp_path, together=count, jobs=jobs)


def test_a_run_that_fails_leaves_a_failed_row_and_the_others_theirs(tmp_path, monkeypatch):
    specs = folds(3)
    make = run_one_module.new_network

    def network(spec, data):
        model = make(spec, data)
        if spec.key == specs[1].key:
            model.head[0].weight.data.fill_(torch.nan)
        return model

    wanted = many(specs, tmp_path / "alone")
    monkeypatch.setattr(run_one_module, "new_network", network)
    found = many(specs, tmp_path / "beside", together=3, keep=True)
    assert [row.status for row in found] == ["done", "failed", "done"]
    assert "loss at batch 1 of 2 of epoch 1 is nan" in found[1].error
    assert (found[1].test, found[1].split) == (None, wanted[1].split)
    assert not Store(tmp_path / "beside").artifact(specs[1].key).exists()
    for run in (0, 2):
        assert_alike(found[run], wanted[run])
    monkeypatch.setattr(run_one_module, "new_network", make)
    again = many(specs, tmp_path / "beside", together=3)
    assert_alike(again[1], wanted[1])


def test_what_torch_complains_of_fails_all_runs_of_a_group(tmp_path, monkeypatch):
    def complain(*_args, **_options):
        raise RuntimeError("the device is on fire")
        yield

    monkeypatch.setattr(run_one_module, "fit_many", complain)
    rows = many(folds(3), tmp_path, together=3)
    assert [(row.status, row.error) for row in rows] == [("failed", "the device is on fire")] * 3


def test_where_memory_is_short_halves_are_done_one_after_the_other(monkeypatch):
    specs, fit_many, tried, held = folds(3), run_one_module.fit_many, [], []

    def short(models, *args, **options):
        tried.append(len(models))
        assert all(memory() is None for memory in held)
        if len(models) > 1:
            memory = torch.zeros(1)
            held.append(weakref.ref(memory))
            raise torch.OutOfMemoryError("full")
        return (yield from fit_many(models, *args, **options))

    wanted = list(run_ensemble(specs, device="cpu"))
    monkeypatch.setattr(run_one_module, "fit_many", short)
    rows = list(run_ensemble(specs, device="cpu"))
    assert tried == [3, 1, 2, 1, 1]
    assert [row.together for row in rows] == [1, 1, 1]
    for found, other in zip(rows, wanted, strict=True):
        assert_alike(found, other)
    monkeypatch.setattr(run_one_module, "fit_many", lambda *_args, **_options: exhausted())
    assert {row.status for row in run_ensemble(specs, device="cpu")} == {"failed"}


def exhausted():
    raise torch.OutOfMemoryError("full")
    yield


def test_a_test_part_without_both_answers_fails_its_run_alone(tmp_path):
    graphs = load("MUTAG").to_pyg()[:40]
    for number, graph in enumerate(graphs):
        graph.y = torch.tensor([[float(number < 9)]])
        graph.edge_attr = None
    GraphDataset.from_pyg(graphs).save(tmp_path / "data")
    data = DataSpec(source=str(tmp_path / "data"))
    splits = [SplitSpec(rule="random", seed=seed) for seed in range(4)]
    specs = [replace(SPEC, data=data, split=split) for split in splits]
    rows = {row.key: row for row in run_ensemble(specs, device="cpu")}
    assert {row.status for row in rows.values()} == {"done", "failed"}
    for wanted in many(specs, tmp_path / "alone"):
        assert_alike(rows[wanted.key], wanted)
    lost = [spec for spec in specs if rows[spec.key].status == "failed"]
    assert all(row.epochs_run is None for row in run_ensemble(lost, device="cpu"))


def test_a_run_leaves_torch_as_it_was():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    list(run_ensemble(folds(2), device="cpu", deterministic=True))
    assert torch.equal(torch.rand(3), expected)
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_has_ended_is_stored_while_others_go_on(tmp_path):
    short = replace(SPEC, train=replace(SPEC.train, epochs=40, patience=1, lr=0.05))
    specs = folds(5, short)
    wanted = {row.key: row for row in run_ensemble(specs, device="cpu")}
    lengths = [row.epochs_run for row in wanted.values()]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]

    class Stop(Log):
        def finished(self, row):
            super().finished(row)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        many(specs, tmp_path, together=5, watch=Stop())
    (kept,) = Store(tmp_path).rows()
    assert_alike(kept, wanted[kept.key])
    rows = many(specs, tmp_path, together=5)
    for row in rows:
        assert_alike(row, wanted[row.key])


def test_where_memory_is_short_at_the_end_no_run_trains_twice(tmp_path, monkeypatch):
    specs, outcome, asked = folds(3), fit_many_module._Runs._outcome, []
    wanted = many(specs, tmp_path / "plenty", together=3)

    def short(self, run, model):
        asked.append(run)
        if len(asked) == 2:
            raise torch.OutOfMemoryError("full")
        return outcome(self, run, model)

    monkeypatch.setattr(fit_many_module._Runs, "_outcome", short)
    for found, other in zip(many(specs, tmp_path / "short", together=3), wanted, strict=True):
        assert_alike(found, other)


def test_a_run_that_failed_gives_way_to_what_another_process_has_done(tmp_path):
    spec = SPEC
    unit = RunTask(Store(tmp_path), device="cpu")
    done = unit(spec, lambda _: None)
    failed = done.updated(status="failed", error="the memory was full")
    assert unit.stored(spec, failed) == done
    assert Store(tmp_path).get(spec.key) == done
