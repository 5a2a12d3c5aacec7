"""Merged tables have one row a molecule, and none of the excluded molecules."""

import csv

import pytest

from gtpool.data.formats.table import read_table
from gtpool.data.merge import merge_tables


@pytest.fixture
def tables(tmp_path):
    contents = {
        "one.csv": "smiles,a,b\nCCO,1,\nC[C@H](N)O,0,1\nC1CC,1,1\nCCN,1,0\n",
        "two.csv": "mol,a\nOCC,0\nc1ccccc1,1\nNCC,\n",
        "again.csv": "smiles,a\nOCC,0\nCCCO,1\n",
        "held.csv": "smiles\nC[C@@H](N)O\nbroken\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def merged(folder, *names, **options):
    return merge_tables([str(folder / name) for name in names], **options)


def test_copies_become_one_row_with_the_tasks_of_all(tables):
    found = merged(tables, "one.csv", "two.csv", smiles_column="mol")
    assert found.header == ["smiles", "one:a", "one:b", "two:a"]
    assert found.rows == [
        ["CCO", "1", "", "0"],
        ["C[C@H](N)O", "0", "1", ""],
        ["CCN", "1", "0", ""],
        ["c1ccccc1", "", "", "1"],
    ]
    assert (found.excluded, found.unreadable, found.contradictions) == (0, 1, 0)


def test_excluded_molecules_go_whatever_their_stereochemistry(tables):
    found = merged(tables, "one.csv", exclude=[str(tables / "held.csv")])
    assert [row[0] for row in found.rows] == ["CCO", "CCN"]
    assert found.excluded == 1
    with pytest.raises(ValueError, match=r"no molecule of .*again\.csv is left"):
        merged(tables, "again.csv", exclude=[str(tables / "again.csv")])


def test_labels_that_contradict_each_other_are_missing(tables):
    text = (tables / "again.csv").read_text()
    (tables / "again.csv").write_text(text + "CCO,1\n")
    found = merged(tables, "again.csv")
    assert found.rows == [["OCC", ""], ["CCCO", "1"]]
    assert found.contradictions == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["one.csv", "one.csv"], "'one:a' occurs twice"),
        (["two.csv"], "no column 'smiles'"),
        (["wrong.csv"], r"wrong\.csv, line 2, column 'a': '0.5' "),
    ],
)
def test_what_cannot_be_merged_is_named(tables, names, message):
    (tables / "wrong.csv").write_text("smiles,a\nC,0.5\n")
    with pytest.raises(ValueError, match=message):
        merged(tables, *names)
    with pytest.raises(ValueError, match="B3DB has no table of binary tasks"):
        merge_tables(["B3DB"])


def test_the_command_writes_a_table_whose_columns_are_all_tasks(gtpool, tables):
    path = tables / "base.csv"
    words = ("--exclude", tables / "held.csv", "--smiles-column", "mol", "-o", path)
    code, out, err = gtpool("data", "merge", tables / "one.csv", tables / "two.csv", *words)
    assert code == 0, err
    assert "3 molecules, 3 tasks" in out
    assert "1 excluded, 1 unreadable" in out
    with path.open(newline="") as file:
        assert len(list(csv.reader(file))) == 4
    table = read_table(path, target_columns=["*"])
    assert table.targets == ("one:a", "one:b", "two:a")
    assert (table.dataset.schema.task, table.dataset.y.isnan().sum().item()) == ("binary", 4)
