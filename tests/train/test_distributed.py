"""Two real processes, started by torchrun, against one: run by torchrun, this file is a process."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from waiting import wait_for

from gtpool.data.dataset import GraphDataset
from gtpool.data.schema import Schema
from gtpool.data.sources import load
from gtpool.data.split import Split
from gtpool.model.classifier import Classifier
from gtpool.spec import ModelSpec, TrainSpec
from gtpool.study.inputs import shape_of
from gtpool.study.run_one import run_one
from gtpool.study.store import Store
from gtpool.train.distributed import SINGLE_PROCESS, Group, init_group, synchronized_layers
from gtpool.train.fit import fit, seeded

PROCESSES = 2
TORCHRUN = [Path(sys.executable).with_name("torchrun"), f"--nproc-per-node={PROCESSES}"]
CURVES = ("train_loss", "valid_loss", "valid_metric", "test_metric")
SMALL = ModelSpec(width=8, levels=2)
GIN = replace(SMALL, pool="none", conv="gin", readout="sum")
NOISY = replace(SMALL, pool_options={"dropout": 0.3, "heads": 2, "gate": "tanh"})
RECIPE = TrainSpec(epochs=4, warmup=1, batch_size=15, lr=5e-3, patience=None)


class Case:
    """A training: its network, the task, how many graphs train, the recipe, how near is equal."""

    def __init__(
        self, model=SMALL, task="classes", train=32, dtype=torch.double, near=1e-9, **recipe
    ):
        self.spec, self.task, self.train, self.dtype = model, task, train, dtype
        self.near, self.recipe = near, replace(RECIPE, **recipe)

    def run(self, group=SINGLE_PROCESS):
        """Train, and give the epochs and a digest of the weights."""
        torch.set_num_threads(1)
        data = labelled(load("MUTAG"), self.task)
        data = replace(data, x=data.x.to(self.dtype))
        parts = torch.arange(self.train + 30).split([self.train, 17, 13])
        with seeded(5, torch.device("cpu")):
            model = self.network(data).to(self.dtype)
        epochs = fit(
            model, data, Split(*parts, "by hand", len(data)), self.recipe, seed=7, group=group
        )
        seen = [[getattr(epoch, name) for name in CURVES] for epoch in epochs]
        weights = [part.double().sum().item() for part in model.state_dict().values()]
        return {"epochs": seen, "weights": weights}

    def network(self, data):
        return Classifier(self.spec, shape_of(data))


class Unused(Case):
    """A network with a part that it does not use."""

    def network(self, data):
        model = super().network(data)
        model.spare = nn.Linear(2, 3)
        return model


def labelled(data: GraphDataset, task: str) -> GraphDataset:
    """Give MUTAG other targets: three with gaps, which follow from the sizes of the graphs."""
    if task == "classes":
        return data
    sizes, edges = data.sizes.double(), data.edge_counts.double()
    y = torch.stack([sizes, edges, data.y.double() + sizes / 9], 1)
    if task == "binary":
        y = (y > y.median(0).values).double()
    number = torch.arange(len(data))
    gaps = torch.stack([number % 3 == 0, number % 4 > 0, number < 5], 1)
    names = ("a", "b", "c")
    schema = Schema("MUTAG", task, names, data.schema.recipe)
    return replace(data, y=y.masked_fill(gaps, torch.nan), schema=schema)


CASES = {
    "GTPool-V": Case(NOISY, epochs=8),
    "GTPool-V in float32": Case(NOISY, dtype=torch.float32, near=1e-4, epochs=8),
    "random points": Case(replace(SMALL, pool_options={"points": "random"})),
    "dropscore": Case(replace(SMALL, pool="mid")),
    "auxiliary loss": Case(replace(SMALL, pool="diffpool")),
    # A bias before a batch norm has a gradient of zero but for rounding, which Adam magnifies.
    "batch norm": Case(GIN, near=1e-6),
    "blocks": Case(
        replace(SMALL, conv="dmpnn", block_dropout=0.2, ffn=True, virtual_node=True, norm="batch"),
        near=1e-5,
    ),
    "class weights": Case(class_weights=True),
    "missing labels": Case(task="binary", class_weights=True, select="metric"),
    "missing targets": Case(task="regression"),
    "a batch of one graph": Case(train=6, batch_size=1),
    "a batch of one graph, normed": Case(GIN, train=6, batch_size=1, near=1e-6),
    "an early end": Case(patience=0, lr=0.3, epochs=30),
}
REFUSED = {
    "unused": Unused(),
    "draws": Case(replace(SMALL, pool="asap", pool_options={"dropout": 0.5})),
}


def main(folder):
    """Run all cases in one of the processes, and write down what it saw."""
    group, seen = init_group(), {}
    for name, case in (CASES | REFUSED).items():
        try:
            seen[name] = case.run(group)
        except ValueError as error:
            seen[name] = str(error)
    seen["norm"] = norm_errors(group)
    Path(folder, f"{group.rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


def norm_errors(group):
    """Say how far batch norm over shares of rows is from that over all, forwards and backwards."""
    torch.manual_seed(3)
    ours, theirs = (nn.BatchNorm1d(4, dtype=torch.double) for _ in range(2))
    x, weight = torch.randn(2, 11, 4, dtype=torch.double)
    own = group.share(torch.arange(11))
    mine, whole = x[own].requires_grad_(), x.requires_grad_()
    for _ in range(3):
        with synchronized_layers(ours, group, counts=True):
            (ours(mine).square() * weight[own]).sum().backward()
        (theirs(whole).square() * weight).sum().backward()
    grads = [group.sum(part.grad) for part in ours.parameters()]
    pairs = [
        (mine.grad, whole.grad[own]),
        *zip(grads, (part.grad for part in theirs.parameters()), strict=True),
        *zip(ours.buffers(), theirs.buffers(), strict=True),
    ]
    return [(left - right).abs().max().item() for left, right in pairs]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each process saw of all cases."""
    folder = tmp_path_factory.mktemp("parallel")
    done = torchrun(__file__, folder)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(PROCESSES)]


def torchrun(*words):
    return subprocess.run(
        [*TORCHRUN, *words], capture_output=True, text=True, env=environment(), check=False
    )


def environment():
    plain = {name: value for name, value in os.environ.items() if name != "GTPOOL_DATA"}
    paths = os.pathsep.join(filter(None, sys.path))
    return {**plain, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


# Two processes are as one


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_curve_of_two_processes_is_that_of_one_with_the_same_batches(seen, name):
    alone, case = CASES[name].run(), CASES[name]
    mine = seen[0][name]
    assert len(mine["epochs"]) == len(alone["epochs"])
    for epoch, expected in zip(mine["epochs"], alone["epochs"], strict=True):
        assert epoch == pytest.approx(expected, rel=case.near, abs=case.near)
    assert mine == seen[1][name]  # to the last bit, or they would part


@pytest.mark.slow
def test_an_early_end_is_decided_alike(seen):
    assert len(seen[0]["an early end"]["epochs"]) < 30


@pytest.mark.slow
def test_batch_norm_is_over_the_rows_of_all_processes(seen):
    assert all(max(mine["norm"]) < 1e-12 for mine in seen)


@pytest.mark.slow
def test_a_parameter_that_is_not_used_is_an_error_that_names_it(seen):
    for mine in seen:
        assert mine["unused"].startswith("the loss does not depend on spare.weight, spare.bias")


@pytest.mark.slow
def test_random_numbers_that_differ_between_processes_are_an_error(seen):
    assert all("random numbers" in mine["draws"] for mine in seen)


def test_shares_are_next_to_one_another_and_differ_by_one_graph_at_most():
    graphs = torch.arange(11)
    parts = [Group(rank, 4).share(graphs) for rank in range(4)]
    assert torch.cat(parts).equal(graphs)
    assert [part.numel() for part in parts] == [3, 3, 3, 2]
    assert [Group(rank, 4).share(graphs[:2]).numel() for rank in range(4)] == [1, 1, 0, 0]


# The command


def check_rows(folder):
    """Compare each row with what one process gives."""
    for row in Store(folder).rows():
        alone = run_one(row.spec)
        assert (row.key, row.status, row.processes) == (alone.key, "done", PROCESSES)
        assert alone.processes is None
        for name in CURVES:
            assert row.curves[name] == pytest.approx(alone.curves[name], abs=1e-4)


def write_table(path):
    """Write molecules with two labels, some of them missing."""
    lines = ["smiles,a,b"]
    for n in range(48):
        a, b = "" if n % 5 == 0 else n % 2, "" if n % 3 == 0 else int(n % 12 > 5)
        lines.append(f"{'C' * (1 + n // 2)}{'O' * (n % 2)},{a},{b}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.slow
def test_torchrun_trains_a_table_with_missing_labels_as_one_process_does(tmp_path, monkeypatch):
    monkeypatch.delenv("GTPOOL_DATA", raising=False)
    table, out = write_table(tmp_path / "a.csv"), tmp_path / "out"
    options = ["--target-columns=a,b", "--split-type=random", "--width=8", "--epochs=3"]
    command = Path(sys.executable).with_name("gtpool")
    done = torchrun(command, "train", table, *options, "--batch-size=11", f"--output-dir={out}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\ntest ") == 1  # one of the two speaks
    assert (out / "report.html").exists()
    assert (out / "model").is_dir()
    assert len(Store(out).rows()) == 1
    check_rows(out)


@pytest.mark.slow
def test_what_is_wrong_is_said_once_and_ends_all(tmp_path):
    out = f"--output-dir={tmp_path / 'out'}"
    done = torchrun("-m", "gtpool", "train", "MUTAG", "--pool=gtpol", out)
    assert done.returncode != 0
    assert done.stderr.count("did you mean gtpool?") == 1
    assert not (tmp_path / "out").exists()


def test_options_that_are_not_for_several_processes_are_refused(gtpool, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun does
    code, _, err = gtpool("train", "MUTAG", "--jobs=2", f"--output-dir={tmp_path / 'out'}")
    assert code == 2
    assert "--jobs" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_a_process_that_is_killed_ends_all_and_leaves_no_half_of_a_run(tmp_path, monkeypatch):
    monkeypatch.delenv("GTPOOL_DATA", raising=False)
    words = ["-m", "gtpool", "train", "MUTAG", "--width=8", "--epochs=15", "--batch-size=31"]
    words.append("--recipe=paper")
    agent = subprocess.Popen(
        [*TORCHRUN, *words, f"--output-dir={tmp_path}"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    wait_for(lambda: Store(tmp_path).rows(), agent)
    crew = {rank_of(pid): pid for pid in children(agent.pid)}
    os.kill(crew["1"], signal.SIGKILL)
    said = agent.communicate(timeout=300)[1]
    assert agent.returncode != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in crew.values())
    assert 1 <= len(Store(tmp_path).rows()) < 10, said
    check_rows(tmp_path)
    assert not (tmp_path / "report.html").exists()
    assert not list((tmp_path / "runs").glob(".*"))


def children(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid:
            found.append(int(stat.parent.name))
    return found


def rank_of(pid):
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.partition("=")[::2] for pair in pairs).get("RANK")


if __name__ == "__main__":
    main(sys.argv[1])
