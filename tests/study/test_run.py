import json
import math
import os
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch_geometric.data import Data

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.memory import read_graphs
from gtpool.data.molecule import read_molecules
from gtpool.data.sources import load
from gtpool.data.split import random_folds, random_split, scaffold_split, stratified_folds
from gtpool.data.synthetic import long_range
from gtpool.model.classifier import Classifier
from gtpool.spec import DataSpec, ModelSpec, RunSpec, ShapeSpec, SplitSpec, TrainSpec
from gtpool.study.inputs import expand_folds, load_data, shape_of, source_digest
from gtpool.study.result import RunResult
from gtpool.study.run import run_many
from gtpool.study.run_one import choose_device, run_one
from gtpool.study.split_rules import choose_split
from gtpool.study.store import Store

SMALL = ModelSpec(width=8, levels=1)
SPEC = RunSpec(
    data=DataSpec(source="MUTAG"), model=SMALL, train=TrainSpec(epochs=3, warmup=1), seed=1
)
NUMBERS = ("test", "valid_loss", "valid_metric", "epoch", "epochs_run", "other_rules", "curves")
pytestmark = pytest.mark.usefixtures("no_data_folder")


def numbers(row):
    return {name: getattr(row, name) for name in NUMBERS}


def test_codes_out_of_range_are_refused_before_a_network_looks_them_up():
    molecules = read_molecules(["CCO", "CC"]).to_dataset(
        torch.tensor([0, 1]), "mine", "classes", "ab"
    )
    atoms, bonds = molecules.x.clone(), molecules.edge_attr.clone()
    atoms[3, 2], bonds[4, 1] = 12, 6
    with pytest.raises(ValueError, match="mine, graph 1, node feature 2: code 12"):
        shape_of(replace(molecules, x=atoms))
    with pytest.raises(ValueError, match="mine, graph 1, edge feature 1: code 6"):
        shape_of(replace(molecules, edge_attr=bonds))
    edge = torch.tensor([[0], [1]])
    codes = [Data(torch.tensor([[3], [low]]), edge, y=torch.tensor([0])) for low in (0, -1)]
    with pytest.raises(ValueError, match="graph 1, node feature 0: code -1"):
        shape_of(GraphDataset.from_pyg(codes))


def test_codes_of_edges_may_have_no_edge():
    lone = Data(
        torch.ones(1, 1), edge_attr=torch.zeros(0, 2, dtype=torch.long), y=torch.tensor([0])
    )
    assert shape_of(GraphDataset.from_pyg([lone])).edge_categories == (1, 1)


def write_table(path, rows=40, header="smiles,y"):
    """Write chains of carbon, some with an oxygen at the end, which is the class."""
    lines = [f"{'C' * (1 + n % 13)}{'O' * (n % 2)},{n % 2}" for n in range(rows)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


class Log:
    """A watcher that writes down what it is told."""

    def __init__(self):
        self.total, self.done, self.begun, self.epochs, self.rows = 0, [], [], [], []

    def begin(self, specs, done):
        self.total, self.done = len(specs), list(done)

    def started(self, spec):
        self.begun.append(spec.key)

    def epoch(self, spec, epoch):
        self.epochs.append((spec.key, epoch.number))

    def finished(self, row):
        self.rows.append(row)


# The data of a run


def test_data_is_loaded_once_while_its_file_stays_the_same(tmp_path):
    spec = DataSpec(source=str(write_table(tmp_path / "a.csv")))
    first = load_data(spec)
    assert load_data(spec) is first
    assert len(first.dataset) == 40
    write_table(tmp_path / "a.csv", rows=44)
    assert len(load_data(spec).dataset) == 44


def test_a_table_gives_its_smiles_lines_split_and_what_it_leaves_out(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("mol,y,part\nCC,0,train\nnonsense,1,train\nCO,1,test\nCN,0,train\n")
    spec = DataSpec(
        source=str(path), smiles_column="mol", target_columns=("y",), split_column="part"
    )
    loaded = load_data(spec)
    assert loaded.smiles == ("CC", "CO", "CN")
    assert loaded.lines == (2, 4, 5)
    assert loaded.split_values == ("train", "test", "train")
    assert [row.line for row in loaded.skipped] == [3]
    assert loaded.name is None


@pytest.mark.parametrize(
    "option", [{"smiles_column": "s"}, {"target_columns": ("a",)}, {"task": "classes"}]
)
def test_an_option_that_does_not_apply_is_an_error(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        load_data(DataSpec(source="MUTAG", **option))


def test_other_sources_go_through_the_one_door(tmp_path):
    data = long_range(8)
    data.save(tmp_path / "saved")
    assert len(load_data(DataSpec(source=str(tmp_path / "saved"))).dataset) == 8
    with pytest.raises(FileNotFoundError, match=r"no file or folder .*nowhere\.csv"):
        load_data(DataSpec(source=str(tmp_path / "nowhere.csv")))
    with pytest.raises(ValueError, match="did you mean MUTAG"):
        load_data(DataSpec(source="MUTGA"))
    path = write_table(tmp_path / "a.csv")
    with pytest.raises(ValueError, match="features='degree'"):
        load_data(DataSpec(source=str(path), features="degree"))


def test_json_lines_may_say_their_task(tmp_path):
    path = tmp_path / "a.jsonl"
    graph = {"nodes": 2, "edges": [[0, 1]]}
    lines = (json.dumps({**graph, "label": label}) for label in (0, 1, 1))
    path.write_text("\n".join(lines) + "\n")
    loaded = load_data(DataSpec(source=str(path), task="regression"))
    assert loaded.dataset.schema.task == "regression"


def test_the_shape_of_floats_and_codes():
    assert shape_of(load("MUTAG")) == ShapeSpec(
        outputs=2, node_width=7, edge_width=4, mean_nodes=18, common_nodes=16
    )
    molecules = shape_of(read_graphs(["CCO", "c1ccccc1"]))
    assert (molecules.node_width, len(molecules.node_categories)) == (0, 9)
    assert (molecules.edge_width, len(molecules.edge_categories)) == (0, 3)
    codes = [Data(torch.tensor([[0, 2], [3, 1]]), y=torch.tensor([0])) for _ in range(2)]
    assert shape_of(GraphDataset.from_pyg(codes)).node_categories == (4, 3)


# The split of a run


def same(split, other):
    return split.digest == other.digest


def test_auto_is_stratified_for_classes_and_says_that_the_fixed_folds_are_missing():
    loaded = load_data(SPEC.data)
    split = choose_split(SplitSpec(fold=2), loaded)
    assert same(split, stratified_folds(loaded.dataset.y, 10, 0)[2])
    assert "not the fixed folds of the protocol" in split.rule
    assert "gtpool data get MUTAG" in split.rule


@pytest.fixture
def with_folds(tmp_path):
    """A data folder that holds fixed folds of MUTAG."""
    folder = tmp_path / "data" / "splits" / "10fold_idx" / "MUTAG"
    folder.mkdir(parents=True)
    for k, split in enumerate(stratified_folds(load("MUTAG").y, 10, 5), 1):
        for name, part in (("test", split.test), ("train", torch.cat([split.train, split.valid]))):
            (folder / f"{name}_idx-{k}.txt").write_text("\n".join(map(str, part.tolist())) + "\n")
    return tmp_path / "data"


def test_auto_takes_the_fixed_folds_that_are_there(with_folds):
    loaded = load_data(SPEC.data, with_folds)
    split = choose_split(SplitSpec(fold=3), loaded, with_folds)
    assert same(split, stratified_folds(loaded.dataset.y, 10, 5)[3])
    assert split.rule == "fixed folds of MUTAG, fold 4 of 10"
    five = choose_split(SplitSpec(folds=5), loaded, with_folds)
    assert (
        five.rule == "stratified folds, seed 0, fold 1 of 5 (not the fixed folds of the protocol)"
    )


def test_the_fixed_folds_of_the_protocol(data_dir):
    split = choose_split(SplitSpec(), load_data(SPEC.data, data_dir), data_dir)
    assert (split.rule, split.digest) == ("fixed folds of MUTAG, fold 1 of 10", "4f0946bc2903")


def test_auto_takes_ogbs_own_split(data_dir):
    loaded = load_data(DataSpec(source="ogbg-molbbbp"), data_dir)
    for rule in ("auto", "scaffold"):
        split = choose_split(SplitSpec(rule=rule), loaded, data_dir)
        assert split.rule == "scaffold split of ogbg_molbbbp"
        assert (split.train.numel(), split.valid.numel(), split.test.numel()) == (1631, 204, 204)


def test_the_splits_of_tables(tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"{'C' * n}c1ccccc1,{n % 2},{n},{'test' if n < 3 else 'train'}" for n in range(20)]
    path.write_text("smiles,y,z,part\n" + "\n".join(rows) + "\n")
    whole = DataSpec(source=str(path), target_columns=("y",))
    column = load_data(replace(whole, split_column="part"))
    assert choose_split(SplitSpec(), column).test.tolist() == [0, 1, 2]
    plain = load_data(whole)
    assert same(
        choose_split(SplitSpec(folds=5, fold=1, seed=2), plain),
        stratified_folds(plain.dataset.y, 5, 2)[1],
    )
    numbers = load_data(replace(whole, target_columns=("z",), task="regression"))
    assert same(choose_split(SplitSpec(seed=4), numbers), random_folds(20, 10, 4)[0])
    several = load_data(replace(whole, target_columns=("y", "z"), task="regression"))
    assert same(choose_split(SplitSpec(rule="random"), several), random_split(20))


def test_molecules_are_split_by_scaffold_on_request(tmp_path):
    path = tmp_path / "a.csv"
    rings = ["c1ccccc1"] * 16 + ["C1CC1", "C1CC1", "C1CCC1", "C1CCCC1"]
    rows = [f"{ring}{'C' * n},{n % 2}" for n, ring in enumerate(rings)]
    path.write_text("smiles,y\n" + "\n".join(rows) + "\n")
    split = choose_split(SplitSpec(rule="scaffold"), load_data(DataSpec(source=str(path))))
    assert same(split, scaffold_split(rings))


@pytest.mark.parametrize(
    ("split", "error", "message"),
    [
        ({"rule": "fixed"}, OSError, "fixed folds of MUTAG .*`gtpool data get MUTAG`"),
        ({"rule": "fixed", "folds": 5}, ValueError, "folds=5"),
        ({"rule": "scaffold"}, ValueError, "table of SMILES, got MUTAG"),
        ({"rule": "column"}, ValueError, "split_column"),
        ({"fold": 10}, ValueError, "fold must be 0 to 9, got 10"),
        ({"fold": -1}, ValueError, "fold must be 0 to 9, got -1"),
    ],
)
def test_a_split_that_cannot_be_had_is_an_error(split, error, message):
    with pytest.raises(error, match=message):
        choose_split(SplitSpec(**split), load_data(SPEC.data))


def test_a_cross_validation_is_all_folds_by_seeds_with_the_rule_settled(tmp_path, with_folds):
    specs = expand_folds(SPEC, seeds=2)
    assert [(spec.seed, spec.split.fold) for spec in specs] == [
        (seed, fold) for seed in (1, 2) for fold in range(10)
    ]
    assert {spec.split.rule for spec in specs} == {"stratified"}
    fixed = expand_folds(SPEC, data_dir=with_folds)
    assert {spec.split.rule for spec in fixed} == {"fixed"}
    assert not {spec.key for spec in specs} & {spec.key for spec in fixed}
    data = DataSpec(source=str(write_table(tmp_path / "a.csv")), task="regression")
    single = replace(SPEC, data=data, split=SplitSpec(rule="random"))
    assert [spec.seed for spec in expand_folds(single, seeds=3)] == [1, 2, 3]


# One run


def test_a_row_says_what_was_done_and_what_came_of_it():
    row = run_one(SPEC)
    assert row.key == SPEC.key
    assert RunResult.from_json(json.loads(json.dumps(row.to_json()))) == row
    assert row.spec == SPEC
    assert (row.status, row.error, row.metric) == ("done", None, "accuracy")
    assert row.higher_is_better is True
    assert row.epochs_run == 3
    assert set(row.curves) == {"train_loss", "valid_loss", "valid_metric", "test_metric"}
    assert {len(curve) for curve in row.curves.values()} == {3}
    at = row.epoch - 1
    assert row.curves["valid_loss"][at] == min(row.curves["valid_loss"])
    assert row.curves["valid_loss"][at] == round(row.valid_loss, 6)
    assert row.test == row.other_rules["valid_loss"]
    assert row.split.train + row.split.valid + row.split.test == 188
    model = Classifier(SPEC.model, shape_of(load("MUTAG")))
    assert row.parameters == sum(part.numel() for part in model.parameters())
    gpu = torch.cuda.is_available()
    assert row.device == (torch.cuda.get_device_name() if gpu else "cpu")
    assert row.versions["torch"] == torch.__version__
    assert row.seconds > 0
    assert row.peak_rss_mb is None or row.peak_rss_mb > 50


def test_the_same_spec_gives_the_same_numbers_whatever_the_caller_has_drawn():
    torch.manual_seed(1)
    first = run_one(SPEC, device="cpu")
    torch.manual_seed(2)
    assert numbers(run_one(SPEC, device="cpu")) == numbers(first)
    assert numbers(run_one(replace(SPEC, seed=2), device="cpu")) != numbers(first)


def test_a_run_leaves_torch_as_it_was():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        seen = []
        run_one(
            SPEC,
            device="cpu",
            deterministic=True,
            on_epoch=lambda _: seen.append(
                (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
            ),
        )
        assert seen == [(1, True)] * 3
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.rand(3), expected)


def test_the_number_of_threads_does_not_change_the_numbers():
    first = run_one(SPEC, device="cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert numbers(run_one(SPEC, device="cpu")) == numbers(first)
    finally:
        torch.set_num_threads(threads)


def test_the_artifact_holds_the_weights_and_what_they_say_of_the_test_part(tmp_path):
    path = tmp_path / "runs" / "a.safetensors"
    row = run_one(SPEC, device="cpu", artifact=path)
    tensors = load_file(path)
    loaded = load_data(SPEC.data)
    split = choose_split(SPEC.split, loaded)
    assert torch.equal(tensors["test_index"], split.test)
    assert torch.equal(tensors["test_y"], loaded.dataset.y[split.test])
    hits = (tensors["test_logits"].argmax(1) == tensors["test_y"]).double().mean().item()
    assert hits == row.test
    model = Classifier(SPEC.model, shape_of(loaded.dataset))
    weights = {
        name.removeprefix("weights."): part for name, part in tensors.items() if "weights." in name
    }
    model.load_state_dict(weights)
    model.eval()
    again = model.classify(loaded.dataset.take(split.test, model.ratios))
    assert torch.allclose(again, tensors["test_logits"], atol=1e-6)
    assert list(path.parent.iterdir()) == [path]


def test_scaling_leaves_one_hot_labels_alone():
    data = DataSpec(source="MUTAG", features="fair")
    scaled, raw = (
        run_one(replace(SPEC, data=replace(data, standardize=flag))) for flag in (True, False)
    )
    assert scaled.curves == raw.curves
    assert scaled.key != raw.key


def test_attributes_are_scaled_by_the_training_part_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = []
    for n in range(60):
        features = [[1000.0 + 3 * n + i] for i in range(3)]
        graph = {"node_features": features, "edges": [[0, 1], [1, 2]], "label": n % 2}
        lines.append(json.dumps(graph))
    path.write_text("\n".join(lines) + "\n")
    data = DataSpec(source=str(path))
    curves = [
        run_one(replace(SPEC, data=replace(data, standardize=flag))).curves
        for flag in (True, False)
    ]
    assert curves[0] != curves[1]
    assert curves[0]["train_loss"][0] < 1 < curves[1]["train_loss"][0]


def test_a_loss_that_is_not_finite_is_a_failed_row():
    spec = replace(SPEC, train=TrainSpec(epochs=3, warmup=1, lr=1e30, clip=1e30))
    row = run_one(spec, device="cpu")
    assert row.status == "failed"
    assert "epoch" in row.error
    assert "lower the learning rate" in row.error
    assert row.test is None
    assert row.split.train == 151
    json.dumps(row.to_json(), allow_nan=False)


def test_a_test_part_that_cannot_be_measured_is_a_failed_row(tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"{'C' * (n + 1)},{n % 2},{n % 2},{'test' if n > 15 else 'train'}" for n in range(18)]
    path.write_text("smiles,a,b,part\n" + "\n".join(rows).replace("17", "16") + "\n")
    text = path.read_text().replace(",1,1,test", ",0,0,test")
    path.write_text(text)
    data = DataSpec(source=str(path), target_columns=("a", "b"), split_column="part")
    row = run_one(replace(SPEC, data=data))
    assert row.status == "failed"
    assert "test part (2 graphs)" in row.error
    assert "roc_auc" in row.error


def test_what_is_wrong_with_a_spec_raises():
    with pytest.raises(ValueError, match="pool"):
        run_one(replace(SPEC, model=replace(SMALL, pool="sagpol")))
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda"):
        run_one(SPEC, device="tpu5")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="no such GPU"):
        choose_device("cuda")
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")


# Many runs


def test_what_is_done_is_skipped_and_what_failed_is_tried_again(tmp_path):
    store = Store(tmp_path)
    specs = expand_folds(SPEC)[:3]
    first = run_many(specs[:1], store)
    store.put(run_one(specs[1]).updated(status="failed", test=None))
    log = Log()
    rows = run_many(specs, store, watch=log)
    assert rows[0] == first[0]
    assert [row.status for row in rows] == ["done"] * 3
    assert log.total == 3
    assert log.done == first
    assert log.begun == [spec.key for spec in specs[1:]]
    assert log.epochs == [(spec.key, number) for spec in specs[1:] for number in (1, 2, 3)]
    assert log.rows == rows[1:]
    assert {row.key for row in store.rows()} == {spec.key for spec in specs}


@pytest.mark.parametrize("digest", [True, False], ids=["digest", "stored before digests"])
def test_a_damaged_artifact_means_that_its_run_is_done_again(tmp_path, digest):
    store = Store(tmp_path)
    (row,) = run_many([SPEC], store, keep=True)
    if not digest:
        row = row.updated(artifact_digest=None)
        store.put(row)
    assert run_many([SPEC], store, keep=True) == [row]
    path = store.artifact(SPEC.key)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.warns(UserWarning, match=f"{path.name} is damaged"):
        (again,) = run_many([SPEC], store, keep=True)
    assert numbers(again) == numbers(row)
    assert path.read_bytes() == whole


def test_the_artifact_of_another_run_means_that_its_run_is_done_again(tmp_path):
    store, specs = Store(tmp_path), expand_folds(SPEC)[:2]
    run_many(specs, store, keep=True)
    one, two = (store.artifact(spec.key) for spec in specs)
    whole = one.read_bytes()
    one.write_bytes(two.read_bytes())
    log = Log()
    with pytest.warns(UserWarning, match="another run"):
        run_many(specs, store, keep=True, watch=log)
    assert log.begun == [specs[0].key]
    assert one.read_bytes() == whole


def test_a_row_with_key_and_status_alone_is_done_again(tmp_path):
    (tmp_path / "runs").mkdir()
    path = tmp_path / "runs" / f"{SPEC.key}.json"
    path.write_text(json.dumps({"key": SPEC.key, "status": "done", "source_digest": None}))
    with pytest.warns(UserWarning, match="damaged"):
        (row,) = run_many([SPEC], Store(tmp_path))
    assert row.epochs_run == 3


def test_rows_come_in_the_order_of_the_specs_and_a_spec_may_be_asked_for_twice(tmp_path):
    one, two = expand_folds(SPEC)[:2]
    rows = run_many([two, one, two], Store(tmp_path))
    assert [row.key for row in rows] == [two.key, one.key, two.key]
    assert rows[0] == rows[2]


def test_a_changed_file_is_a_new_run(tmp_path):
    path = write_table(tmp_path / "a.csv")
    spec = replace(SPEC, data=DataSpec(source=str(path)))
    store = Store(tmp_path / "store")
    first = run_many([spec], store)[0]
    shutil.copy(path, tmp_path / "b.csv")
    os.utime(path)
    assert run_many([spec], store)[0] == first  # touched, not changed
    write_table(path, rows=44)
    second = run_many([spec], store)[0]
    assert second.split.train + second.split.valid + second.split.test == 44
    assert second.source_digest != first.source_digest
    assert source_digest(str(path)) == second.source_digest
    assert source_digest("MUTAG") is None


def test_weights_are_kept_on_request_also_of_runs_that_were_done_without(tmp_path):
    store = Store(tmp_path)
    run_many([SPEC], store)
    assert not store.artifact(SPEC.key).exists()
    run_many([SPEC], store, keep=True)
    assert store.artifact(SPEC.key).exists()


def test_a_failed_run_is_stored_and_does_not_stop_the_others(tmp_path):
    bad = replace(SPEC, train=TrainSpec(epochs=3, warmup=1, lr=1e30, clip=1e30))
    store = Store(tmp_path)
    rows = run_many([bad, SPEC], store)
    assert [row.status for row in rows] == ["failed", "done"]
    assert store.get(bad.key).status == "failed"


def test_no_runs_and_no_jobs(tmp_path):
    assert run_many([], Store(tmp_path)) == []
    with pytest.raises(ValueError, match="jobs must be at least 1"):
        run_many([SPEC], Store(tmp_path), jobs=0)


def test_numbers_that_are_not_finite_are_null(tmp_path):
    # A validation part without both classes: the loss still chooses, the metric is undefined.
    path = tmp_path / "a.csv"
    part = ["train"] * 14 + ["valid"] * 2 + ["test"] * 4
    rows = [f"{'C' * (n + 1)},{0 if 14 <= n < 16 else n % 2},{n % 2},{part[n]}" for n in range(20)]
    path.write_text("smiles,a,b,part\n" + "\n".join(rows) + "\n")
    data = DataSpec(source=str(path), target_columns=("a",), split_column="part", task="binary")
    row = run_one(replace(SPEC, data=data))
    assert row.status == "done"
    assert row.valid_metric is None
    assert row.curves["valid_metric"] == [None] * 3
    assert math.isfinite(row.test)
