import os
import subprocess
import sys

import pytest

from gtpool.data.formats.jsonl import write_jsonl
from gtpool.data.locate import EMBEDDED
from gtpool.data.registry import DATASETS
from gtpool.data.sources import load

MAIN = "from gtpool.cli import main; main()"


@pytest.fixture
def alone(tmp_path, monkeypatch):
    monkeypatch.delenv("GTPOOL_DATA", raising=False)
    monkeypatch.setenv("GTPOOL_CACHE", str(tmp_path / "cache"))
    for proxy in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    return tmp_path


@pytest.mark.parametrize("words", [["--help"], ["data", "--help"], ["data", "list"]])
def test_help_and_list_import_no_torch(words):
    code = f"import sys; sys.argv = ['gtpool', *{words}]; sys.modules['torch'] = None; {MAIN}"
    environment = {key: value for key, value in os.environ.items() if key != "GTPOOL_DATA"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("ogbg-moltoxcast" in done.stdout) == (words == ["data", "list"])


def test_list_says_where_each_comes_from(gtpool, alone):
    (alone / "TU" / "PTC_MR" / "raw").mkdir(parents=True)
    (alone / "cache" / "raw" / "OGB" / "ogbg_molhiv").mkdir(parents=True)
    code, said, _ = gtpool("data", "list", "--data-dir", str(alone))
    assert code == 0
    rows = {
        cells[0]: cells
        for cells in ([cell.strip() for cell in row.split("│")[1:-1]] for row in said.splitlines())
        if cells
    }
    assert list(rows) == list(DATASETS)
    assert rows["MUTAG"] == ["MUTAG", "TU", "188", "2 classes", "17.93", "19.79", "embedded"]
    assert rows["ogbg-moltoxcast"][3:] == ["617 tasks", "18.78", "19.26", "download"]
    assert rows["long-range"][1:] == ["synthetic", "400", "2 classes", "96.18", "96.18", "made"]
    assert (rows["PTC_MR"][-1], rows["ogbg-molhiv"][-1]) == ("--data-dir", "cache")


@pytest.mark.usefixtures("alone")
def test_info_of_an_embedded_set(gtpool):
    code, said, _ = gtpool("data", "info", "MUTAG")
    assert code == 0
    facts = dict(line.split(":", 1) for line in said.splitlines())
    facts = {what: value.strip() for what, value in facts.items()}
    assert facts["graphs"] == "188"
    assert facts["classes"] == "2: -1 (63), 1 (125)"
    assert (facts["mean nodes"], facts["mean edges"]) == ("17.93", "19.79")
    assert facts["features"].startswith("7 per node")
    assert facts["location"] == "embedded"
    assert facts["published at"] == DATASETS["MUTAG"].url
    assert "Debnath" in facts["citation"]
    assert facts["licence"]
    assert facts["split"] == "ten stratified folds, seed 0 (`gtpool data get MUTAG` for fixed)"
    assert len(set(facts["split digests"].split())) == 10


@pytest.mark.usefixtures("alone")
def test_a_synthetic_set_is_described_and_needs_no_download(gtpool):
    code, said, _ = gtpool("data", "info", "low-scores")
    assert code == 0
    facts = dict(line.split(":", 1) for line in said.splitlines())
    assert facts["classes"].strip() == "2: red (200), blue (200)"
    assert facts["features"].strip() == "4 per node (given)"
    assert facts["split"].strip() == "ten stratified folds, seed 0"
    assert facts["location"].strip() == "generated"
    assert "published at" not in facts
    code, said, heard = gtpool("data", "get", "long-range")
    assert (code, said.startswith("long-range: "), heard) == (0, True, "")


@pytest.mark.usefixtures("alone")
def test_info_of_graphs_of_ones_own(gtpool, tmp_path):
    table, lines = tmp_path / "mine.csv", tmp_path / "mine.jsonl"
    table.write_text("mol,size,toxic\nCCO,3.5,yes\nCC,2,no\nC1,9,no\nCCCC,,no\n")
    write_jsonl(load("MUTAG"), lines)
    columns = ("--smiles-column", "mol", "--target-columns")
    code, said, heard = gtpool("data", "info", str(table), *columns, "size", "--task", "regression")
    assert code == 0
    assert "values:        2 to 3.5, mean 2.75, 1 missing (33.3 %)" in said
    assert "split:         5 random folds\n" in said
    assert "1 of 4 rows" in said
    assert heard.startswith("gtpool: line 4 ")
    _, said, _ = gtpool("data", "info", str(table), *columns, "toxic")
    assert "target:        toxic\nclasses:       2: no (2), yes (1)" in said
    bad = "".join(f"C{number},no\n" for number in range(1, 8))
    table.write_text(f"smiles,toxic\nCCO,yes\nCC,no\n{bad}")
    _, said, heard = gtpool("data", "info", str(table))
    assert heard.count("SMILES") == 5
    assert "2 more lines" in heard
    table.write_text("mol,size\nCCO,3.5\n")
    for source in (lines, EMBEDDED / "MUTAG"):
        code, said, _ = gtpool("data", "info", str(source))
        assert code == 0
        assert "classes:       2: -1 (63), 1 (125)" in said
        assert "split:         5 stratified folds" in said
    code, _, heard = gtpool("data", "info", str(table))
    assert code == 2
    assert "--smiles-column" in heard


def test_info_of_sets_with_splits_of_their_own(gtpool, data_dir):
    _, said, _ = gtpool("data", "info", "PROTEINS", "--data-dir", str(data_dir))
    assert "ten fixed folds of the GMT protocol" in said
    assert "1 attributes, 3 one-hot labels" in said
    code, said, _ = gtpool("data", "info", "ogbg-moltox21", "--data-dir", str(data_dir))
    assert code == 0
    assert "tasks:         12: NR-AR, " in said
    assert "missing (17.1 %)" in said
    assert "scaffold, from OGB" in said


def test_get_says_where_everything_is(gtpool, data_dir):
    code, said, _ = gtpool("data", "get", "all", "--data-dir", str(data_dir))
    assert code == 0
    assert said.count("fixed folds: ") == 7
    assert f"PROTEINS: {data_dir / 'TU' / 'PROTEINS' / 'raw'}\n" in said


@pytest.mark.usefixtures("alone")
def test_get_of_an_embedded_set_needs_no_network_but_says_what_is_missing(gtpool):
    code, said, complaint = gtpool("data", "get", "MUTAG")
    assert code == 0
    assert said.startswith("MUTAG: ")
    assert "fixed folds of MUTAG" in complaint


@pytest.mark.usefixtures("shown_warnings")
def test_a_warning_is_one_line_too(gtpool, alone, monkeypatch):
    (alone / "file").write_text("not a folder")
    monkeypatch.setenv("GTPOOL_CACHE", str(alone / "file" / "cache"))
    _, out, err = gtpool("data", "info", "MUTAG")
    assert err.startswith("gtpool: MUTAG ")
    assert err.count("\n") == 1
    assert "graphs:        188" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["info", "PROTEIN"], "gtpool: no dataset 'PROTEIN'; did you mean PROTEINS? known are "),
        (["get", "nothing-like-it"], "gtpool: no dataset 'nothing-like-it'; known are MUTAG, "),
        (["get", "PROTEINS"], "gtpool: PROTEINS is not on this machine, and https://"),
        (["list", "--data-dir", "/no/such"], "gtpool: --data-dir names /no/such, which is not a"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_a_users_error_is_one_line(gtpool, words, complaint):
    code, _, said = gtpool("data", *words)
    lines = [line for line in said.splitlines() if not line.startswith("downloading ")]
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith(complaint)
