"""The main job from end to end: train, look, stop, go on, predict."""

import csv
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from threading import Thread

import pytest
import torch
from torch_geometric.data import Data
from waiting import wait_for

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.jsonl import write_jsonl
from gtpool.data.locate import EMBEDDED
from gtpool.data.sources import load
from gtpool.model.bundle import load_bundle
from gtpool.study.store import Store

MAIN = "from gtpool.cli import main; main()"
TINY = ("--folds", "3", "--width", "16", "--epochs", "2")
B3DB = gzip.decompress((EMBEDDED / "B3DB/B3DB.tsv.gz").read_bytes()).decode().splitlines()[1:]
MOLECULES = [line.split("\t") for line in B3DB[:30] + B3DB[-30:]]
pytestmark = pytest.mark.usefixtures("no_data_folder")


def test_a_memory_that_is_full_is_one_sentence(gtpool, tmp_path):
    edges = torch.tensor([[0, 1], [1, 0]])
    codes = [Data(torch.tensor([[0], [10**13]]), edges, y=torch.tensor([y])) for y in (0, 1) * 9]
    GraphDataset.from_pyg(codes).save(tmp_path / "mine")
    code, _, err = gtpool("train", tmp_path / "mine", *TINY, "--output-dir", tmp_path / "out")
    assert code == 1
    assert "memory" in err
    assert err.count("\n") == 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train on MUTAG in another process, which is what users do."""
    folder = tmp_path_factory.mktemp("trained") / "out"
    command = [sys.executable, "-c", MAIN, "train", "MUTAG", *TINY, "--output-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def rows_of(folder: Path) -> list[dict]:
    return sorted(Store(folder).rows(), key=lambda row: row.spec.split.fold)


def write_csv(path: Path, rows, header="smiles,bbb") -> Path:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_predictions_agree_with_the_rows_of_the_runs(trained):
    folder, _ = trained
    said = table(folder / "predictions.csv")
    data = load("MUTAG")
    assert Counter(int(line["graph"]) for line in said) == Counter(range(188))  # each once
    for line in said:
        assert line["true"] == data.schema.targets[int(data.y[int(line["graph"])])]
        shares = {name: float(line[f"p_{name}"]) for name in data.schema.targets}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert shares[line["prediction"]] == max(shares.values())
    rows = rows_of(folder)
    assert len(rows) == 3
    for row in rows:
        own = [line for line in said if int(line["fold"]) == row.spec.split.fold + 1]
        assert len(own) == row.split.test
        assert fmean(line["true"] == line["prediction"] for line in own) == row.test


def test_output_says_the_mean_its_spread_and_where_things_are(trained):
    folder, out = trained
    rows = rows_of(folder)
    mean = 100 * fmean(row.test for row in rows)
    assert f"accuracy, %: {mean:.2f} ± " in out
    assert "(3 runs, ± standard deviation over folds)" in out
    said = table(folder / "predictions.csv")
    largest = Counter(line["true"] for line in said).most_common(1)[0][0]
    shares = [fmean(line["true"] == largest for line in said if line["fold"] == n) for n in "123"]
    assert f"baseline: {100 * fmean(shares):.2f}\n" in out
    assert "(ensemble of 3 models: seed 42, 3 folds)" in out
    names = {"report.html", "model", "predictions.csv"}
    names |= {"curves.svg", "confusion.svg", "reliability.svg"}
    assert {Path(at).name for at in re.findall(r": +(\S+out/\S+)", out)} == names
    assert names | {"runs", "config.json"} == {path.name for path in folder.iterdir()}
    page = (folder / "report.html").read_text()
    assert f"Majority-class baseline: {100 * fmean(shares):.2f}." in page
    for number in (*(row.test for row in rows), fmean(row.test for row in rows)):
        assert f"{100 * number:.2f}" in page
    assert all(row.split.digest in page for row in rows)


def test_the_model_of_the_lowest_validation_loss_is_saved_where_asked_for(
    trained, gtpool, tmp_path
):
    folder = tmp_path / "best"
    shutil.copytree(trained[0] / "runs", folder / "runs")
    code, out, err = gtpool("train", "MUTAG", *TINY, "--handover", "best", "--output-dir", folder)
    assert (code, "3 of 3 runs are done already" in err) == (0, True)
    assert "the run with the lowest validation loss" in out
    best = min(rows_of(folder), key=lambda row: row.valid_loss)
    bundle = load_bundle(folder / "model")
    assert bundle.about["run"] == best.spec_json
    assert bundle.about["metrics"]["test"] == best.test
    code, out, err = gtpool("predict", folder / "model", "MUTAG", "-o", tmp_path / "new/said.csv")
    assert (code, err) == (0, "")
    assert out == f"188 of 188 predicted: {tmp_path}/new/said.csv\n"
    said = table(tmp_path / "new/said.csv")
    fold = str(best.spec.split.fold + 1)
    for line in table(folder / "predictions.csv"):
        if line["fold"] == fold:
            again = said[int(line["graph"])]
            assert again["prediction"] == line["prediction"]
            assert float(again["p_1"]) == pytest.approx(float(line["p_1"]), abs=1e-4)


@pytest.mark.parametrize("output", ["-", "/dev/stdout"])
def test_predictions_on_standard_output_are_all_that_is_there(trained, gtpool, output):
    code, out, err = gtpool("predict", trained[0] / "model", "MUTAG", "-o", output)
    assert (code, "188 of 188 predicted" in err) == (0, True)
    lines = list(csv.DictReader(out.splitlines()))
    assert [line["graph"] for line in lines] == [str(graph) for graph in range(188)]


def test_predict_writes_into_a_fifo_and_refuses_a_directory(trained, gtpool, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    code, _, err = gtpool("predict", trained[0] / "model", "MUTAG", "-o", fifo)
    assert code == 0, err
    assert os.read(reader, 100).startswith(b"graph,id,prediction")
    os.close(reader)
    assert fifo.is_fifo()
    code, _, err = gtpool("predict", trained[0] / "model", "MUTAG", "-o", tmp_path)
    assert (code, "directory" in err) == (2, True)


def test_evaluate_counts_right_and_wrong(trained, gtpool):
    folder, _ = trained
    code, out, err = gtpool("evaluate", folder / "model", "MUTAG")
    assert code == 0
    assert "trained on" in err
    first, *lines = out.splitlines()
    table_start = next(n for n, line in enumerate(lines) if line.startswith("true"))
    counts = [[int(cell) for cell in line.split()[1:]] for line in lines[table_start + 1 :]]
    assert sum(map(sum, counts)) == 188
    right = 100 * (counts[0][0] + counts[1][1]) / 188
    assert first == f"accuracy, %: {right:.2f} (188 graphs)"


def test_the_same_command_again_repeats_nothing(trained, gtpool):
    folder, first = trained
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, out, err = gtpool("train", "MUTAG", *TINY, "--output-dir", folder)
    assert (code, out) == (0, first)
    assert err == "3 of 3 runs are done already\n"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_written_settings_repeat_the_runs_and_options_go_before_them(trained, gtpool, tmp_path):
    folder, _ = trained
    config = folder / "config.json"
    code, _, _ = gtpool("train", "--config", config, "--output-dir", tmp_path / "a")
    assert code == 0
    for one, two in zip(rows_of(folder), rows_of(tmp_path / "a"), strict=True):
        assert (one.key, one.test, one.curves) == (two.key, two.test, two.curves)
    settings = tmp_path / "settings.toml"
    settings.write_text(
        '[data]\nsource = "MUTAG"\n[split]\nfolds = 3\n[model]\nwidth = 8\n[train]\nepochs = 9\n'
    )
    words = ("--config", settings, "--epochs", "1", "--output-dir", tmp_path / "b")
    assert gtpool("train", *words)[0] == 0
    (epochs,) = {row.epochs_run for row in rows_of(tmp_path / "b")}
    assert (epochs, rows_of(tmp_path / "b")[0].spec.model.width) == (1, 8)


# Ten folds, so that a busy machine does not finish them before the test has stopped it.
LONG = ("--folds", "10", "--width", "8", "--epochs", "10")


def start(folder: Path, *more: str) -> subprocess.Popen:
    words = ["train", "MUTAG", *LONG, *more]
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *words, "--output-dir", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_what_cannot_go_on_does_not_promise_it_when_it_is_stopped(trained, gtpool, tmp_path):
    pipe = tmp_path / "new.jsonl"
    os.mkfifo(pipe)  # which keeps the command reading

    def interrupt():
        with pipe.open("w"):  # which waits until the command reads
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    Thread(target=interrupt, daemon=True).start()
    code, _, err = gtpool("predict", trained[0] / "model", pipe, "-o", tmp_path / "said.csv")
    assert (code, err) == (130, "gtpool: interrupted\n")
    assert not (tmp_path / "said.csv").exists()


def test_stopped_by_ctrl_c_and_started_again(gtpool, tmp_path):
    folder = tmp_path / "out"
    job = start(folder)
    wait_for(lambda: list(folder.glob("runs/*.json")), job)
    os.killpg(job.pid, signal.SIGINT)  # what a terminal does
    out, err = job.communicate(timeout=300)
    assert job.returncode == 130
    last = err.splitlines()[-1]
    assert last.startswith("gtpool: interrupted; ")
    assert "resume" in last
    assert "Traceback" not in err
    assert out.startswith("MUTAG: 188 graphs; classification, 2 classes: -1 (63), 1 (125); enc")
    assert {path.name for path in folder.iterdir()} == {"config.json", "runs"}
    assert [path for path in folder.rglob("*") if path.suffix == ".tmp"] == []
    done = {path: path.read_bytes() for path in folder.glob("runs/*.json")}
    assert 1 <= len(done) < 10

    code, _, err = gtpool("train", "MUTAG", *LONG, "--output-dir", folder)
    assert code == 0
    assert f"{len(done)} of 10 runs are done already" in err
    assert all(path.read_bytes() == content for path, content in done.items())
    assert len(rows_of(folder)) == 10
    assert (folder / "report.html").exists()


def running(group):
    """List the processes of a group that have not ended, where there is a /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
def test_stopped_by_sigterm_it_says_so_and_its_workers_end(tmp_path):
    folder = tmp_path / "out"
    job = start(folder, "--jobs", "2")
    wait_for(lambda: list(folder.glob("runs/*.json")), job)
    job.terminate()  # the driver alone, as a scheduler does
    _, err = job.communicate(timeout=300)
    assert job.returncode == 143
    assert "SIGTERM" in err.splitlines()[-1]
    assert "resume" in err.splitlines()[-1]
    assert "Traceback" not in err
    wait_for(lambda: not running(job.pid))
    assert [path for path in folder.rglob("*") if path.suffix == ".tmp"] == []


def test_a_table_of_molecules_with_one_that_cannot_be_read(gtpool, tmp_path):
    rows = [*MOLECULES[:10], ["C1CC(", "BBB+"], *MOLECULES[10:]]
    path = write_csv(tmp_path / "mine.csv", [(*row, "x") for row in rows], "smiles,bbb,note")
    folder = tmp_path / "out"
    words = ("--target-columns", "bbb", "--output-dir", folder)
    code, out, err = gtpool("train", path, *TINY, *words)
    assert code == 0
    assert "gtpool: line 12 " in err
    assert "stratified" in (folder / "report.html").read_text()
    said = table(folder / "predictions.csv")
    assert len(said) == 60
    lines = path.read_text().splitlines()
    for line in said:
        smiles, bbb, _ = lines[int(line["line"]) - 1].split(",")
        assert (line["smiles"], line["true"]) == (smiles, bbb)

    new = write_csv(tmp_path / "new.csv", [[MOLECULES[0][0]], ["no SMILES"], ["CCO"]], "smiles")
    code, out, err = gtpool("predict", folder / "model", new, "-o", tmp_path / "said.csv")
    assert (code, out) == (0, f"2 of 3 predicted: {tmp_path}/said.csv\n")
    assert "1 not predicted: " in err
    first, second, third = table(tmp_path / "said.csv")
    assert first["prediction"] in {"BBB-", "BBB+"}
    assert (second["prediction"], second["p_BBB-"], bool(second["reason"])) == ("", "", True)
    assert float(third["p_BBB-"]) + float(third["p_BBB+"]) == pytest.approx(1, abs=1e-5)
    code, out, err = gtpool("evaluate", folder / "model", path)
    assert (code, "60 graphs" in out) == (0, True)
    assert "line 12: " in err
    write_csv(new, [(MOLECULES[0][0], "BBB+"), ("C1CC(", "BBB+"), ("CCO", "")], "smiles,other")
    code, out, err = gtpool("evaluate", folder / "model", new)
    assert {"'other'", "'bbb'"} <= set(out.splitlines()[0].split())
    assert "2 rows skipped, e.g. line 3: " in err


def test_rows_left_out_are_listed_in_a_file_and_on_the_page(gtpool, tmp_path):
    bad = [(f"<b>no{number}", "BBB+") for number in range(7)]
    path = write_csv(tmp_path / "mine.csv", [*MOLECULES, *bad])
    words = ("train", path, *TINY, "--pool", "gin", "--output-dir", tmp_path / "out")
    code, out, err = gtpool(*words)
    assert (code, "skipped: 7" in out.splitlines()[0]) == (0, True)
    assert "2 more lines" in err
    listed = table(tmp_path / "out/left_out.csv")
    assert [line["line"] for line in listed] == [str(number) for number in range(62, 69)]
    assert [line["smiles"] for line in listed] == [smiles for smiles, _ in bad]
    assert all(line["reason"] for line in listed)
    page = (tmp_path / "out/report.html").read_text()
    assert "&lt;b&gt;no6" in page
    assert "<b>no" not in page
    write_csv(path, MOLECULES)
    assert gtpool(*words)[0] == 0
    assert not (tmp_path / "out/left_out.csv").exists()


def test_decimals_are_regressed_and_the_command_says_what_it_took(gtpool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "mine.csv", [(s, len(s) / 8) for s, _ in MOLECULES], "smiles,size")
    words = ("--width", "8", "--epochs", "1", "--pool", "gin")
    code, out, _ = gtpool("train", "mine.csv", *words)
    assert code == 0
    sizes = [len(smiles) / 8 for smiles, _ in MOLECULES]
    said = f"size ({min(sizes):.4g} to {max(sizes):.4g}, mean {fmean(sizes):.4g})"
    assert out.startswith(f"mine.csv: 60 molecules; regression, 1 target: {said}; encodings: rwse")
    assert "5 runs" in out
    folder = tmp_path / "gtpool-runs/mine-gin"
    page = (folder / "report.html").read_text()
    assert said in page
    card = (folder / "model/README.md").read_text()
    assert "- target: size\n" in card
    assert "(5 runs, ± standard deviation over folds)" in card


def test_the_card_has_the_target_and_the_cross_validated_figure(gtpool, tmp_path):
    path = write_csv(tmp_path / "mine.csv", MOLECULES)
    code, out, _ = gtpool("train", path, *TINY, "--pool", "gin", "--output-dir", tmp_path / "out")
    assert code == 0
    wanted = "60 molecules; classification, target 'bbb', 2 classes: BBB+ (3), BBB- (57)"
    assert wanted in out.splitlines()[0]
    card = (tmp_path / "out/model/README.md").read_text()
    mean = fmean(row.test for row in rows_of(tmp_path / "out"))
    (line,) = re.findall(r"- accuracy, cross-validated: (.*)", card)
    assert float(line.split()[0]) == pytest.approx(mean, abs=1e-4)
    assert line.endswith("(3 runs, ± standard deviation over folds)")
    assert "- target: bbb\n" in card
    assert "- ensemble: 3 networks" in card
    assert "on the test part" not in card


def test_targets_of_one_file_have_folders_of_their_own(gtpool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [(s, b, len(s), n % 2) for n, (s, b) in enumerate(MOLECULES)]
    write_csv(tmp_path / "mine.csv", rows, "smiles,bbb,size/nm,odd")
    words = ("train", "mine.csv", "--folds", "3", "--width", "8", "--epochs", "1", "--pool", "gin")
    assert gtpool(*words, "--target-columns", "bbb")[0] == 0
    assert gtpool(*words, "--target-columns", "odd")[0] == 0
    number = ("--target-columns", "size/nm", "--task", "regression", "--split-type", "folds")
    assert gtpool(*words, *number)[0] == 0
    names = ["mine-bbb-gin", "mine-odd-gin", "mine-size_nm-regression-gin"]
    assert sorted(path.name for path in (tmp_path / "gtpool-runs").iterdir()) == names

    folder = tmp_path / "gtpool-runs/mine-bbb-gin"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, out, err = gtpool(*words, "--target-columns", "odd", "--output-dir", folder)
    assert (code, out) == (2, "")
    assert "target_columns is bbb there and odd here" in err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_same_file_by_another_path_is_the_same_data(gtpool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "mine.csv", MOLECULES)
    words = (*TINY, "--pool", "gin", "--output-dir", "out")
    assert gtpool("train", "mine.csv", *words)[0] == 0
    with pytest.warns(UserWarning, match="other settings"):
        assert gtpool("train", tmp_path / "mine.csv", *words)[0] == 0


def test_results_of_earlier_settings_do_not_stay(gtpool, tmp_path):
    path = write_csv(tmp_path / "mine.csv", [(s, len(s) / 8) for s, _ in MOLECULES])
    folder, words = tmp_path / "out", ("--pool", "gin", "--width", "8", "--epochs", "1")
    assert gtpool("train", path, *words, "--output-dir", folder)[0] == 0
    assert {"scatter.svg", "model", "predictions.csv"} <= {at.name for at in folder.iterdir()}
    (folder / "notes.txt").write_text("mine")
    write_csv(path, MOLECULES)  # the values of the file are classes now
    words = (*words[:-1], "60", "--folds", "3")
    with pytest.warns(UserWarning, match="other settings"):
        assert gtpool("train", path, *words, "--output-dir", folder)[0] == 0
    assert {at.name for at in folder.iterdir()} == {
        *("runs", "config.json", "report.html", "model", "predictions.csv"),
        *("curves.svg", "confusion.svg", "reliability.svg", "notes.txt", "trees"),
    }
    with pytest.warns(UserWarning, match="other settings"):
        code, _, _ = gtpool("train", path, *words, "--lr", "1e30", "--output-dir", folder)
    assert code == 1
    assert {at.name for at in folder.iterdir()} == {
        "runs",
        "trees",
        "config.json",
        "report.html",
        "notes.txt",
    }


@pytest.mark.parametrize(("value", "hint"), [("id{}", False), ("{}", True)])
def test_a_column_of_distinct_values_looks_like_an_identifier(gtpool, tmp_path, value, hint):
    rows = [(smiles, value.format(n)) for n, (smiles, _) in enumerate(MOLECULES[:20])]
    path = write_csv(tmp_path / "mine.csv", rows, "smiles,key")
    code, out, err = gtpool("train", path, *TINY, "--output-dir", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "column 'key' looks like an identifier" in err
    assert ("--task regression" in err) == hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("value", "hint"), [("id{}", False), (None, True)])
def test_json_lines_of_distinct_labels_are_told_what_they_can_do(gtpool, tmp_path, value, hint):
    lines = [
        {"nodes": 2, "edges": [[0, 1]], "label": value.format(n) if value else n} for n in range(20)
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    code, _, err = gtpool("train", path, *TINY, "--output-dir", tmp_path / "out")
    assert code == 2
    assert '"label" looks like an identifier: 20 ' in err
    assert "--target-columns" not in err
    assert ("--task regression" in err) == hint


def test_advice_fits_the_split(gtpool, tmp_path):
    path = write_csv(tmp_path / "mine.csv", MOLECULES)
    words = ("train", path, "--width", "8", "--epochs", "1", "--pool", "gin", "--split-type")
    said = {
        "scaffold": "the figure rests on one split, by scaffold\n",
        "random": "the figure rests on one split; --split-type folds cross-validates\n",
    }
    for rule, advice in said.items():
        code, out, err = gtpool(*words, rule, "--output-dir", tmp_path / rule)
        assert (code, advice in out) == (0, True)
        assert "(1 of 1 run, " in err
        assert "fold 1" not in out + err
        assert re.search(rf"^{rule} +\d", out, re.MULTILINE)
        page = (tmp_path / rule / "report.html").read_text()
        assert "<th>fold" not in page.partition("<details")[0]


def test_help_says_what_a_table_gets(gtpool, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    help_text = " ".join(gtpool("train", "--help")[1].split())
    assert "Molecules use bonds" in help_text
    assert "--recipe" in help_text


def test_a_column_of_mostly_distinct_values_is_told(gtpool, tmp_path):
    rows = [(smiles, n // 2 * 2 if n < 6 else n) for n, (smiles, _) in enumerate(MOLECULES[:20])]
    path = write_csv(tmp_path / "mine.csv", rows)
    words = ("train", path, "--folds", "3", "--width", "8", "--epochs", "1", "--pool", "gin")
    with pytest.warns(UserWarning, match="identifier: 17 "):
        gtpool(*words, "--output-dir", tmp_path / "out")


@pytest.mark.usefixtures("shown_warnings")
def test_a_warning_is_said_once_and_rows_that_repeat_are_counted(gtpool, tmp_path):
    rows = [(smiles, number < 2) for number, (smiles, _) in enumerate(MOLECULES[:10])]
    write_csv(tmp_path / "rare.csv", [*rows, rows[-1]])
    words = ("train", tmp_path / "rare.csv", *TINY, "--output-dir", tmp_path / "out")
    code, _, err = gtpool(*words)
    assert code == 0
    assert err.count("copies together: 1 of 3 test folds have none of a class or label") == 1
    assert "gtpool: 1 of 11 rows repeat a molecule of an earlier row; copies stay in one" in err


def test_contradicting_targets_are_named_and_can_be_dropped(gtpool, tmp_path):
    rows = [(smiles, number < 15) for number, (smiles, _) in enumerate(MOLECULES[:30])]
    path = write_csv(tmp_path / "mine.csv", [*rows, (rows[0][0], "False")])
    words = ("train", path, *TINY, "--pool", "gin", "--output-dir")
    code, out, err = gtpool(*words, tmp_path / "kept")
    assert code == 0
    assert "in lines 2, 32); all rows are kept" in err
    assert {row.split.rule[:35] for row in rows_of(tmp_path / "kept")} == {
        "stratified folds, copies together, s"[:35]
    }
    assert "contradicting targets: 1" in (tmp_path / "kept/report.html").read_text()
    code, out, err = gtpool(*words, tmp_path / "dropped", "--contradictions", "drop")
    assert code == 0
    assert "29 molecules" in out
    assert "line 32 skipped: contradicting targets of one molecule in lines 2, 32" in err
    gone = table(tmp_path / "dropped/left_out.csv")
    assert [line["line"] for line in gone] == ["2", "32"]


def test_a_changed_file_is_trained_on_anew(gtpool, tmp_path):
    path = write_csv(tmp_path / "mine.csv", MOLECULES)
    folder = tmp_path / "out"
    gtpool("train", path, *TINY, "--output-dir", folder)
    before = [row.finished for row in rows_of(folder)], rows_of(folder)[0].source_digest
    write_csv(path, MOLECULES[5:])
    _, _, err = gtpool("train", path, *TINY, "--output-dir", folder)
    assert "done already" not in err
    assert rows_of(folder)[0].source_digest != before[1]
    assert len(table(folder / "predictions.csv")) == 55


def test_tasks_with_missing_labels_get_a_roc_curve(gtpool, tmp_path):
    rows = [(s, int(b == "BBB+"), "" if n % 3 else n % 2) for n, (s, b) in enumerate(MOLECULES)]
    path = write_csv(tmp_path / "tasks.csv", rows, "smiles,a,b")
    words = ("--target-columns", "a, b", "--width", "16", "--epochs", "2", "--split-type", "random")
    code, out, _ = gtpool("train", path, *words, "--seeds", "2", "--output-dir", tmp_path / "out")
    assert code == 0
    assert "test ROC-AUC, %: " in out
    assert "(2 runs, ± standard deviation over seeds)" in out
    assert re.search(r"random split, seed \d+: 48 train, 6 validation, 6 test\n", out)
    assert "baseline" not in out
    assert {"roc.svg", "curves.svg"} <= {path.name for path in (tmp_path / "out").iterdir()}
    said = table(tmp_path / "out/predictions.csv")
    assert Counter(line["seed"] for line in said) == {"42": 6, "43": 6}
    assert {line["true_b"] for line in said} <= {"", "0", "1"}
    known = sum(line["true_b"] != "" for line in said if line["seed"] == "42")
    page = (tmp_path / "out/report.html").read_text()
    assert re.search(rf"<td>b</td>(<td>[^<]+</td>)+<td>{known}</td>", page)
    code, out, _ = gtpool("evaluate", tmp_path / "out/model", path)
    labels = sum(row[2] != "" for row in rows)
    assert re.search(rf"^b +[0-9.].* {labels}$", out, re.MULTILINE)
    code, _, err = gtpool("train", path, *words, "--folds", "3", "--output-dir", tmp_path / "out")
    assert (code, "--split-type folds" in err) == (2, True)


def test_numbers_are_cross_validated_on_random_folds(gtpool, tmp_path):
    path = write_csv(tmp_path / "sizes.csv", [(s, len(s) / 7) for s, _ in MOLECULES])
    words = ("--task", "regression", "--split-type", "folds", *TINY, "--pool", "gin")
    code, out, _ = gtpool("train", path, *words, "--output-dir", tmp_path / "out")
    assert (code, "(3 runs, ± standard deviation over folds)" in out) == (0, True)
    assert "train, " not in out  # sizes are told of a split without folds
    said = table(tmp_path / "out/predictions.csv")
    assert sorted(int(line["line"]) for line in said) == list(range(2, 62))  # each tested once


def test_other_settings_in_the_same_folder_are_told(gtpool, tmp_path):
    path = write_csv(tmp_path / "mine.csv", MOLECULES)
    words = ("train", path, "--pool", "gin", "--folds", "3", "--epochs", "1")
    words += ("--output-dir", tmp_path / "out")
    assert gtpool(*words, "--width", "8")[0] == 0
    assert gtpool(*words, "--width", "8")[0] == 0  # a warning would be an error here
    with pytest.warns(UserWarning, match=r"out holds results of other settings, .* replace"):
        assert gtpool(*words, "--width", "16")[0] == 0


def test_numbers_are_regressed_and_a_split_column_is_followed(gtpool, tmp_path):
    parts = ["train"] * 40 + ["valid"] * 10 + ["test"] * 10
    rows = [(s, len(s) / 7, part) for (s, _), part in zip(MOLECULES, parts, strict=True)]
    path = write_csv(tmp_path / "sizes.csv", rows, "smiles,size,part")
    words = ("--target-columns", "size", "--split-column", "part", "--task", "regression")
    words += ("--width", "16", "--epochs", "2", "--pool", "gin", "--output-dir", tmp_path / "out")
    code, out, _ = gtpool("train", path, *words)
    assert code == 0
    assert "test RMSE: " in out
    assert "(1 run)" in out
    said = table(tmp_path / "out/predictions.csv")
    assert [int(line["line"]) for line in said] == list(range(52, 62))
    errors = [(float(line["true_size"]) - float(line["prediction_size"])) ** 2 for line in said]
    assert fmean(errors) ** 0.5 == pytest.approx(rows_of(tmp_path / "out")[0].test, rel=1e-4)
    assert (tmp_path / "out/scatter.svg").exists()


@pytest.mark.parametrize("kind", ["folder", "lines"])
def test_graphs_of_ones_own_in_other_formats(gtpool, tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = EMBEDDED / "MUTAG"
    if kind == "lines":
        source = tmp_path / "mine.jsonl"
        write_jsonl(load("MUTAG"), source)
    code, _, _ = gtpool("train", source, *TINY, "--pool", "gtpool-topk")
    assert code == 0
    folder = tmp_path / "gtpool-runs" / f"{'MUTAG' if kind == 'folder' else 'mine'}-gtpool-topk"
    assert len(table(folder / "predictions.csv")) == 188
    code, out, _ = gtpool("predict", folder / "model", source, "-o", "said.csv")
    assert (code, out) == (0, "188 of 188 predicted: said.csv\n")


def test_runs_that_fail_are_missing_and_the_command_says_so(gtpool, tmp_path):
    folder = tmp_path / "out"
    words = ("--folds", "3", "--width", "16", "--epochs", "60", "--lr", "1e30")
    code, out, err = gtpool("train", "MUTAG", *words, "--output-dir", folder)
    assert code == 1
    assert "missing (0 runs, 3 missing)" in out
    assert "gtpool: 3 runs failed: " in err.splitlines()[-1]
    assert "learning rate" in err
    assert {path.name for path in folder.iterdir()} == {"runs", "config.json", "report.html"}
    assert "0 runs, 3 missing" in (folder / "report.html").read_text()


def test_demo_compares_recipes_and_goes_on(gtpool, tmp_path):
    words = ("demo", "--folds", "3", "--epochs", "1", "--jobs", "1", "--output-dir", tmp_path)
    code, out, err = gtpool(*words)
    assert code == 0
    assert "width 32 instead of 128" in out
    lines = [line.split() for line in out.splitlines()]
    means = {line[0]: line[-3] for line in lines if line and line[0] in {"best", "paper", "flat"}}
    assert len(means) == 3
    page = (tmp_path / "demo.html").read_text()
    assert all(mean in page for mean in means.values())
    assert page.count("<svg") == 9  # curves, confusion and reliability of each
    code, again, err = gtpool(*words)
    assert (code, again) == (0, out)
    assert err == "9 of 9 runs are done already\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["train"], "no dataset"),
        (["train", "MUTAGG"], "no dataset 'MUTAGG'; did you mean MUTAG?"),
        (["train", "nowhere/mine.csv"], "nowhere/mine.csv"),
        (["train", "notes.txt"], "notes.txt has no known format"),
        (["train", "empty"], "empty holds no graphs"),
        (["train", "two.csv"], "say which columns hold the targets"),
        (
            ["train", "two.csv", "--target-columns", "bb"],
            "for target_columns (--target-columns); did",
        ),
        (["train", "two.csv", "--smiles-column", "smile"], "no column 'smile' for smiles_column"),
        (["train", "MUTAG", "--smiles-column", "x"], "smiles_column"),
        (["train", "MUTAG", "--pool", "gtpol"], "'gtpol'; did you mean gtpool"),
        (["train", "MUTAG", "--features", "gtm"], "gtm"),
        (["train", "MUTAG", "--width", "15"], "width must be a multiple of 2"),
        (["train", "MUTAG", "--width", "1000000000"], "weights of a network of width"),
        (["train", "MUTAG", "--ratio", "1.5"], "in (0, 1], got 1.5"),
        (["train", "MUTAG", "--ratio", "half"], "--ratio must be a number, got 'half'"),
        (["train", "MUTAG", "--epochs", "0"], "train.epochs must be"),
        (["train", "MUTAG", "--folds", "2"], "at least 3 folds"),
        (["train", "MUTAG", "--split-type", "scaffold"], "table of SMILES"),
        (["train", "MUTAG", "--split-type", "fixed"], "gtpool data get MUTAG"),
        (["train", "MUTAG", "--config", "none.toml"], "none.toml"),
        (["train", "MUTAG", "--config", "typo.toml"], "unknown option model.'widht'; did you mean"),
        (["train", "MUTAG", "--output-dir", "notes.txt/x", *TINY], "notes.txt/x"),
        (["train", "MUTAG", "--data-dir", "nowhere"], "nowhere, which is not a folder"),
        (["predict", "empty", "MUTAG", "-o", "a.csv"], "empty is not a model"),
        (["predict", "nowhere", "MUTAG", "-o", "a.csv"], "nowhere is not a model"),
        (["predict", "MODEL", "two.csv", "-o", "a.csv"], "two.csv"),
        (["predict", "MODEL", "MUTAG", "-o", "notes.txt/a.csv"], "notes.txt"),
        (["predict", "MODEL", "two.csv", "-o", "./two.csv"], "two.csv is also the input"),
        (["explain", "MODEL", "two.csv", "-o", "two.csv"], "two.csv is also the input"),
        (["evaluate", "MODEL", "nowhere.csv"], "nowhere.csv"),
        (["evaluate", "empty", "MUTAG"], "empty is not a model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said_in_one_line(
    trained, gtpool, tmp_path, monkeypatch, words, complaint
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "typo.toml").write_text("[model]\nwidht = 3\n")
    write_csv(tmp_path / "two.csv", [("CCO", "yes", "1"), ("CC", "no", "0")], "smiles,bbb,n")
    words = [str(trained[0] / "model") if word == "MODEL" else word for word in words]
    before = sorted(tmp_path.rglob("*"))
    code, out, err = gtpool(*words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("gtpool: ")
    assert complaint in line
    assert sorted(tmp_path.rglob("*")) == before


def test_help_imports_no_torch():
    code = (
        f"import sys; sys.argv = ['gtpool', 'train', '--help']; sys.modules['torch'] = None; {MAIN}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_runs_on_folds_that_are_gone_are_not_taken_for_others(gtpool, tmp_path):
    folds = tmp_path / "data/splits/10fold_idx/MUTAG"
    folds.mkdir(parents=True)
    for k in range(10):
        test = [graph for graph in range(188) if graph % 10 == k]
        train = [graph for graph in range(188) if graph % 10 != k]
        for part, graphs in {"test": test, "train": train}.items():
            (folds / f"{part}_idx-{k + 1}.txt").write_text("\n".join(map(str, graphs)))
    words = ("train", "MUTAG", "--width", "8", "--epochs", "1", "--output-dir", tmp_path / "out")
    code, _, _ = gtpool(*words, "--data-dir", tmp_path / "data")
    assert code == 0
    assert "fixed folds of MUTAG, 10 folds" in (tmp_path / "out/report.html").read_text()
    code, _, err = gtpool(*words)  # where the fixed folds are not to be had
    assert (code, "done already" in err) == (0, False)
    assert "stratified folds, seed 0, 10 folds" in (tmp_path / "out/report.html").read_text()
    for part in ("test", "train"):
        for k in range(10):
            (folds / f"{part}_idx-{k + 1}.txt").rename(folds / f"{part}-{k}")
        for k in range(10):
            (folds / f"{part}-{k}").rename(folds / f"{part}_idx-{10 - k}.txt")
    code, _, err = gtpool(*words, "--data-dir", tmp_path / "data")
    assert code == 2
    assert "fixed folds of MUTAG" in err.splitlines()[-1]


def test_settings_hold_the_whole_plan(trained):
    settings = json.loads((trained[0] / "config.json").read_text())
    own = {"recipe", "seeds", "ensemble", "bag", "handover"}
    assert set(settings) == own | {"data", "split", "model", "train", "seed"}
    assert settings["train"]["epochs"] == 2
    assert settings["model"]["pool"] == "gtpool-v"


@pytest.mark.slow
def test_the_example_runs(tmp_path):
    path = write_csv(tmp_path / "mine.csv", MOLECULES)
    example = Path(__file__).parents[2] / "examples/own_csv.py"
    done = subprocess.run(
        [sys.executable, example, path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    heading, first, second = done.stdout.splitlines()
    assert (heading.split()[0], first.split()[0], second.split()[0]) == (
        "method",
        "gtpool-v",
        "gin",
    )
