import csv
import gzip
import io
import string

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpool.data import delimited
from gtpool.data.formats.table import Skipped, read_table
from gtpool.data.molecule import read_molecules

GOOD = "smiles,label\nCCO,yes\nc1ccccc1,no\n[Na+].[Cl-],yes\n"


@pytest.fixture
def write(tmp_path):
    def write_file(content, name="mols.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def test_a_column_of_words(write):
    table = read_table(write(GOOD))
    assert table.smiles == ("CCO", "c1ccccc1", "[Na+].[Cl-]")
    assert table.lines == (2, 3, 4)
    assert table.split is None
    assert table.skipped == ()
    data = table.dataset
    assert (data.schema.name, data.schema.task) == ("mols", "classes")
    assert data.schema.targets == ("no", "yes")
    assert data.schema.recipe.kind == "molecule"
    assert data.y.tolist() == [1, 0, 1]
    assert torch.equal(data.x, read_molecules(table.smiles).x)


def test_whole_numbers_are_classes_in_the_order_of_their_values(write):
    table = read_table(write("smiles,y\nC,10\nCC,9\nCCC,-1\nCCCC,9.0\n"))
    assert table.dataset.schema.targets == ("-1", "9", "10")
    assert table.dataset.y.tolist() == [2, 1, 0, 1]


def test_columns_of_zeros_and_ones_may_have_blanks(write):
    table = read_table(
        write("id,SMILES,a,b\n1,C,0,\n2,CC,1,1.0\n3,CCC,,\n"), target_columns=["b", "a"]
    )
    assert (table.dataset.schema.task, table.dataset.schema.targets) == ("binary", ("b", "a"))
    expected = torch.tensor([[torch.nan, 0], [1, 1], [torch.nan, torch.nan]])
    assert torch.equal(table.dataset.y.nan_to_num(-1), expected.nan_to_num(-1))


def test_one_binary_column_keeps_rows_without_a_value(write):
    table = read_table(write("smiles,a\nC,0\nCC,1\nCCC,\n"), task="binary")
    assert table.dataset.y.shape == (3, 1)
    assert table.dataset.y.isnan().flatten().tolist() == [False, False, True]


def test_what_is_written_as_missing_is_missing(write):
    numbers = read_table(write("smiles,y\nC,1.5\nCC,NA\nCCC,nan\nCO,#N/A\n"), task="regression")
    assert numbers.dataset.y.isnan().flatten().tolist() == [False, True, True, True]
    bits = read_table(write("smiles,a,b\nC,1,N/A\nCC,0,NaN\n"), target_columns=("a", "b"))
    assert bits.dataset.y.nan_to_num(-1).tolist() == [[1, -1], [0, -1]]


@pytest.mark.parametrize("word", ["NA", "n/a", "#N/A", "NaN", "<NA>", "null", ""])
def test_a_word_for_missing_is_no_class(write, word):
    table = read_table(write(f"smiles,y\nC,{word}\nCC,EU\nCO,none\n"))
    assert table.dataset.schema.targets == ("EU", "none")
    assert [(row.line, row.reason) for row in table.skipped] == [(2, "no class in 'y'")]


def test_numbers_are_predicted_when_asked_for(write):
    path = write("smiles,t,u\nC,-1.5e1,\nCC,.5,7\n")
    one = read_table(path, target_columns="t", task="regression").dataset
    assert (one.schema.task, one.schema.targets) == ("regression", ("t",))
    assert one.y.tolist() == [[-15.0], [0.5]]
    two = read_table(path, target_columns=["t", "u"], task="regression").dataset
    assert two.y.nan_to_num(-1).tolist() == [[-15.0, -1.0], [0.5, 7.0]]


def test_decimals_are_regressed_without_being_asked(write):
    one = read_table(write("smiles,y\nC,1\nCC,NA\nCCC,2.5\n"))
    assert (one.dataset.schema.task, one.targets) == ("regression", ("y",))
    assert one.dataset.y.nan_to_num(-1).tolist() == [[1.0], [-1.0], [2.5]]
    path = write("smiles,a,b\nC,0,1\nCC,1,1e-3\n")
    two = read_table(path, target_columns=["a", "b"]).dataset
    assert two.schema.task == "regression"


def test_without_targets_no_column_is_read_as_one(write):
    table = read_table(write("smiles,a,b\nC,x,\nC1CC,,\n"), need_targets=False)
    assert table.smiles == ("C",)
    assert table.dataset.y.shape == (1, 0)
    assert table.dataset.schema.targets == ()
    assert table.skipped == (Skipped(3, "C1CC", "not a valid SMILES"),)
    only = read_table(write("smiles\nC\nCC\n", "only.csv"), need_targets=False)
    assert only.lines == (2, 3)


def test_the_split_column_belongs_to_the_rows_that_are_used(write):
    path = write("smiles,y,part\nC,0,train\nC1CC,1,train\nCC,1,test\n")
    table = read_table(path, split_column="part")
    assert table.split == ("train", "test")


def test_rows_that_cannot_be_used_are_listed_by_line(write):
    path = write("smiles,y\n\nC,0\nC1CC,1\nCC,\n\nCCC,1\n,0\n")
    table = read_table(path)
    assert table.lines == (3, 7)
    assert table.skipped == (
        (4, "C1CC", "not a valid SMILES"),
        (5, "CC", "no class in 'y'"),
        (8, "", "the SMILES is empty"),
    )
    with pytest.raises(ValueError, match=r"3 of 5 rows cannot be used: line 4: not a valid SMILES"):
        read_table(path, strict=True)


def test_strict_names_the_first_lines_and_counts_the_rest(write):
    path = write("smiles,y\nC,0\nCC,1\n" + "C1CC,1\n" * 7)
    with pytest.raises(ValueError, match=r"7 of 9 rows .* line 8: .*; and 2 more$"):
        read_table(path, strict=True)


def test_a_file_that_is_whole_passes_strict(write):
    assert len(read_table(write(GOOD), strict=True).dataset) == 3


def test_a_class_that_only_skipped_rows_have_is_no_class(write):
    table = read_table(write("smiles,y\nC,a\nCC,b\nC1CC,c\n"))
    assert table.dataset.schema.targets == ("a", "b")


def test_a_row_over_several_lines_is_named_by_its_first(write):
    table = read_table(
        write('smiles,y,note\nC,0,"one\ntwo"\nC1CC,1,"\n"\nCC,1,\n'), target_columns=["y"]
    )
    assert table.lines == (2, 6)
    assert table.skipped[0].line == 4


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", GOOD.replace(",", "\t")),
        ("a.TAB", GOOD.replace(",", "\t")),
        ("a.csv", GOOD.replace(",", ";")),
        ("a.csv", GOOD.replace("\n", "\r\n")),
        ("a.csv", "\ufeff" + GOOD),
        ("a.csv", GOOD.removesuffix("\n")),
        ("a.csv", GOOD.replace(",", " , ")),
        ("a.csv.gz", gzip.compress(GOOD.encode(), mtime=0)),
        ("a.tsv.gz", gzip.compress(GOOD.replace(",", "\t").encode(), mtime=0)),
    ],
)
def test_forms_of_the_same_table(write, name, content):
    table = read_table(write(content, name))
    assert table.smiles == ("CCO", "c1ccccc1", "[Na+].[Cl-]")
    assert table.dataset.schema.targets == ("no", "yes")
    assert table.dataset.schema.name == "a"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, r"mols\.csv is empty"),
        ("\n\n", {}, r"mols\.csv is empty"),
        ("smiles,y\n", {}, r"mols\.csv has a header, but no row below it"),
        ("smile,y\nC,0\n", {}, r"no column 'smiles' .* did you mean 'smile'\? .* 'smile', 'y'$"),
        (
            "a,b\nC,0\n",
            {},
            r"no column 'smiles' for smiles_column \(--smiles-column\); its columns are 'a', 'b'$",
        ),
        ("smiles,SMILES,y\nC,C,0\n", {}, r"smiles_column \(--smiles-column\), smiles or SMILES"),
        ("mol,y\nC,0\n", {"smiles_column": "mpl"}, r"no column 'mpl' .* did you mean 'mol'\?"),
        ("smiles,Toxic\nC,0\n", {"target_columns": ["toxic"]}, r"did you mean 'Toxic'\?"),
        ("smiles,y\nC,0\n", {"split_column": "part"}, r"no column 'part' for split_column"),
        ("smiles,a,b\nC,0,1\n", {}, r"say which columns hold the targets, .* are 'a', 'b'$"),
        ("smiles\nC\n", {}, r"say which columns hold the targets, .* there are none$"),
        ("smiles,y\nC,0\n", {"target_columns": []}, r"say which columns hold the targets"),
        ("smiles,y,y\nC,0,1\n", {}, r"2 columns are called 'y'"),
        ("smiles,y\nC,0\n", {"target_columns": ["smiles"]}, r"'smiles' is chosen twice"),
        ("smiles,y\nC,0\n", {"target_columns": ["y", "y"]}, r"'y' is chosen twice"),
        (
            "smiles,y\nC,0\n",
            {"target_columns": ["y"], "split_column": "y"},
            r"'y' is chosen twice",
        ),
        ("smiles,y\nC,0\nCC\n", {}, r"line 3: 1 cells, but the header has 2 columns"),
        ("smiles,y\nC,0\nCC,1,2\n", {}, r"line 3: 3 cells, but the header has 2 columns"),
        ('smiles,y\nC,"0\nCC,1\n', {}, r"the row at line 2 cannot be read: unexpected end"),
        ("smiles,y\nC,1\nCC,1\n", {}, r"mols\.csv, column 'y': .* class '1'"),
        ("smiles,y\nC,0\nCC,1\nC1CC,2\nCCC,yes\n", {}, r"line 5: the label is a text.* line 2 is"),
        (
            "smiles,y\nC,0\nCC,0.5\n",
            {"task": "classes"},
            r"line 3, column 'y': '0\.5' .*regression",
        ),
        ("smiles,y\nC,0.5\nCC,>10\n", {}, r"line 3, column 'y': '>10' is not a number"),
        ("smiles,y\nC,12345678901234567890\n", {}, r"line 2, .* class"),
        (
            "smiles,y\nC,1.5\nCC,high\n",
            {"task": "regression"},
            r"line 3, column 'y': 'high' is not a number",
        ),
        ("smiles;y\nC;0,5\nCC;1\n", {}, r"line 2, .* '0,5' .*decimal points"),
        ("smiles;y\nC;1\nCC;-,5\n", {"task": "regression"}, r"'-,5' is not.* a decimal point"),
        ("smiles,y\nC,1.5\nCC,inf\n", {"task": "regression"}, r"line 3, .* 'inf' is not a number"),
        ("smiles,y\nC,1.5\nCC,1e39\n", {"task": "regression"}, r"line 3, .* '1e39' .* float32"),
        ("smiles,y\nC,\nCC,\n", {"task": "regression"}, r"column 'y': blank in all rows"),
        (
            "smiles,a,b\nC,0,1\nCC,1,2\n",
            {"target_columns": ["a", "b"]},
            r"line 3, column 'b': '2' is neither 0 nor 1 nor blank",
        ),
        (
            "smiles,a,b\nC,0,1\nCC,,\n",
            {"target_columns": ["a", "b"]},
            r"column 'a', 'b': .*no task has both",
        ),
        ("smiles,y\nC,0\n", {"task": "ranking"}, r"unknown task 'ranking'; choose one of classes"),
        (
            "smiles,a,b\nC,0,1\n",
            {"target_columns": ["a", "b"], "task": "classes"},
            r"'a', 'b'",
        ),
        ("smiles,y\nC1CC,0\nethanol,1\n", {}, r"2 of 2 rows cannot be used: line 2: not a valid"),
        ("smiles,y\nC,\nCC,\n", {}, r"2 of 2 rows cannot be used: line 2: no class in 'y'"),
        (b"smiles,y\nC,0\nC\0C,1\n", {}, r"is not text: line 3 holds a zero byte"),
        (b"smiles,y\nC,caf\xe9\n", {}, r"UTF-8 .*\(byte 6 of line 2\)"),
        ("smiles,y\nC,0\n".encode("utf-16"), {}, r"UTF-8 .*\(byte 1 of line 1\)"),
        (gzip.compress(GOOD.encode(), mtime=0), {}, r"UTF-8 .*\(byte 2 of line 1\)"),
        ("smiles,y\nC,0\n", {"need_targets": False, "task": "classes"}, r"need_targets"),
    ],
)
def test_bad_input_is_named_with_its_place(write, content, options, message):
    with pytest.raises(ValueError, match=message):
        read_table(write(content), **options)


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(GOOD.encode() * 99, mtime=0)[:-9]])
def test_a_damaged_archive_is_named(write, content):
    with pytest.raises(ValueError, match=r"mols\.csv\.gz is not a whole gzip file"):
        read_table(write(content, "mols.csv.gz"))


def test_another_ending_is_refused(write):
    with pytest.raises(ValueError, match=r"mols\.xlsx: a table ends in \.csv, \.tsv or \.tab"):
        read_table(write(GOOD, "mols.xlsx"))


def test_a_missing_file_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        read_table(tmp_path / "none.csv")


def test_a_line_of_two_gigabytes_is_refused_at_once(write):
    path = write(GOOD)
    with path.open("r+b") as file:
        file.truncate(2**31)  # a hole in the file: no disk is used
    with pytest.raises(ValueError, match=r"line 5: longer than 1,000,000 bytes"):
        read_table(path)


def test_a_line_of_the_longest_length_is_read(write, monkeypatch):
    monkeypatch.setattr(delimited, "MAX_LINE", len("smiles,label\n"))
    assert len(read_table(write(GOOD.replace("[Na+].[Cl-]", "[Na+]"))).dataset) == 3
    with pytest.raises(ValueError, match=r"line 4: longer than 13 bytes"):
        read_table(write(GOOD))


def test_an_open_quote_does_not_fill_the_memory(write):
    with pytest.raises(ValueError, match=r"the row at line 2 cannot be read: field larger than"):
        read_table(write('smiles,y\nC,"' + "0\n" * 100_000))


READABLE = ["C", "CCO", "[Na+].[Cl-]", "F/C=C/F", "c1ccncc1"]
SMILES = st.sampled_from([*READABLE, "C1CC", "c1cccc1", ""])
WORDS = st.text(string.ascii_letters + ' ,;"\n\té', max_size=6).map(lambda word: f"w{word}x")
BITS = st.sampled_from(["0", "1", ""])


def tables(path, header, rows, delimiter):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerows([header, *rows])
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


@settings(max_examples=60)
@given(rows=st.lists(st.tuples(WORDS, SMILES, WORDS | st.just("")), max_size=12), tab=st.booleans())
def test_a_table_that_was_written_is_read_back(tmp_path_factory, rows, tab):
    rows = [("note", "C", "first"), *rows, ("note", "CCO", "second")]
    path = tmp_path_factory.mktemp("table") / ("t.tsv" if tab else "t.csv")
    tables(path, ["note", "smiles", "class"], rows, "\t" if tab else ",")
    table = read_table(path, target_columns=["class"], split_column="note")
    kept = [row for row in rows if row[1] in READABLE and row[2]]
    names = table.dataset.schema.targets
    assert list(names) == sorted({row[2] for row in kept})
    split = table.split or ()
    classes = [names[code] for code in table.dataset.y.tolist()]
    assert list(zip(split, table.smiles, classes, strict=True)) == kept
    # Every row is a graph or listed, each with the line where it begins.
    lines, line = [], 2
    for row in rows:
        lines.append(line)
        line += 1 + sum(cell.count("\n") for cell in row)
    assert sorted([*table.lines, *(row.line for row in table.skipped)]) == lines


@settings(max_examples=60)
@given(st.lists(st.tuples(SMILES, BITS, BITS), max_size=10))
def test_columns_that_were_written_are_read_back(tmp_path_factory, rows):
    rows = [("C", "0", "1"), *rows, ("CC", "1", "")]
    path = tmp_path_factory.mktemp("table") / "t.csv"
    table = read_table(tables(path, ["smiles", "a", "b"], rows, ","), target_columns=["a", "b"])
    kept = [row[1:] for row in rows if row[0] in (*READABLE, "CC")]
    found = table.dataset.y.nan_to_num(-1).int().tolist()
    assert found == [[int(cell or -1) for cell in row] for row in kept]
    assert len(table.skipped) == len(rows) - len(kept)
