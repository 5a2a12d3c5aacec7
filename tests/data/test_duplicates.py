import pytest
import torch

from gtpool.data.duplicates import contradictions, describe_copies, merge_groups, number_groups
from gtpool.data.formats.table import read_table
from gtpool.data.molecule import read_molecules


def test_groups_that_share_a_graph_become_one():
    one, other = torch.tensor([0, 1, 2, 3, 0, 4]), torch.tensor([3, 3, 0, 1, 2, 2])
    assert merge_groups(one, other).tolist() == [0, 0, 1, 2, 0, 0]
    chain = torch.arange(50) // 2
    assert merge_groups(chain, (torch.arange(50) + 1) // 2).unique().tolist() == [0]


@pytest.mark.parametrize("order", ["canonical", "given"])
def test_copies_are_found_however_they_are_written(order):
    written = ["OCC", "CCO", "C(C)[OH:1]", "c1ccccc1", "C1=CC=CC=C1", "C[C@H](N)O", "C[C@@H](N)O"]
    numbers = number_groups(read_molecules(written, atom_order=order).canonical)
    assert numbers.tolist() == [0, 0, 0, 1, 1, 2, 3]


def test_what_contradicts_depends_on_the_task():
    molecules = ["C", "C", "CC", "CC", "CO"]
    assert contradictions(molecules, torch.tensor([0, 1, 2, 2, 1]), "classes") == [[0, 1]]
    bits = torch.tensor([[0, 1], [torch.nan, 1], [1, 0], [0, 0], [1, torch.nan]])
    assert contradictions(molecules, bits, "binary") == [[2, 3]]
    numbers = torch.tensor([[1.0], [1.2], [5.0], [1.0], [9.0]])  # standard deviation 3.2
    assert contradictions(molecules, numbers, "regression") == [[2, 3]]
    none = torch.full((5, 1), torch.nan)
    assert contradictions(molecules, none, "regression") == []


def test_notes_count_and_name_lines():
    y = torch.tensor([0, 1] * 7)
    lines = range(2, 16)
    notes = describe_copies([f"{'C' * (n // 2 + 1)}" for n in range(14)], y, "classes", lines=lines)
    assert notes[0].startswith("7 of 14 rows repeat a molecule of an earlier row; copies stay")
    assert "contradicting targets: 7 (C in lines 2, 3; CC in lines 4, 5; " in notes[1]
    assert "; and 2 more)" in notes[1]
    assert describe_copies(["C", "CC"], y[:2], "classes", lines=[2, 3]) == []
    apart = describe_copies(["C", "C"], y[:2] * 0, "classes", lines=[2, 3], apart=True)
    assert len(apart) == 1
    assert "test metric is too high" in apart[0]


def test_rows_that_contradict_each_other_are_dropped_on_request(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("smiles,y\nOCC,a\nCCC,b\nC1CC,a\nCCO,b\nCN,a\nNC,a\n")
    kept = read_table(path)
    assert kept.lines == (2, 3, 5, 6, 7)
    dropped = read_table(path, contradictions="drop")
    assert dropped.lines == (3, 6, 7)
    assert dropped.dataset.y.tolist() == [1, 0, 0]
    assert dropped.molecules == ("CCC", "CN", "CN")
    assert [(row.line, row.reason) for row in dropped.skipped] == [
        (2, "contradicting targets of one molecule in lines 2, 5"),
        (4, "not a valid SMILES"),
        (5, "contradicting targets of one molecule in lines 2, 5"),
    ]
    path.write_text("smiles,y\nOCC,a\nCCO,b\n")
    with pytest.raises(ValueError, match="2 of 2 rows cannot be used: line 2: contradicting"):
        read_table(path, contradictions="drop")
