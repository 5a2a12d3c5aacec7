import csv
import gzip
import io
import json
import os
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpool.data.split import (
    Split,
    column_split,
    fixed_folds,
    ogb_split,
    random_folds,
    random_split,
    scaffold_split,
    stratified_folds,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"
GOLDEN = json.loads((FIXTURES / "stratified.json").read_text())["cases"]
DATA = os.environ.get("GTPOOL_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="GTPOOL_DATA names no folder of datasets")


def parts(split: Split) -> list[list[int]]:
    return [split.train.tolist(), split.valid.tolist(), split.test.tolist()]


def whole(split: Split) -> list[int]:
    return sorted(chain(*parts(split)))


def write_folds(folder: Path, tests: list[list[int]], num_graphs: int) -> None:
    for number, test in enumerate(tests, 1):
        train = [index for index in range(num_graphs) if index not in test]
        (folder / f"test_idx-{number}.txt").write_text("\n".join(map(str, test)) + "\n")
        (folder / f"train_idx-{number}.txt").write_text("\n".join(map(str, train)) + "\n")


def test_a_graph_in_two_parts_is_refused():
    with pytest.raises(ValueError, match="mine: graph 1 is in the split twice"):
        Split(torch.tensor([0, 1]), torch.tensor([1]), torch.tensor([2]), "mine", 3)
    with pytest.raises(ValueError, match="graph 2 is in the split twice"):
        Split(torch.tensor([0]), torch.tensor([1]), torch.tensor([2, 2]), "mine", 3)


@pytest.mark.parametrize("strange", [3, -1])
def test_a_graph_outside_the_dataset_is_refused(strange):
    with pytest.raises(ValueError, match=f"names graph {strange}, but the graphs are 0 to 2"):
        Split(torch.tensor([0, strange]), torch.tensor([1]), torch.tensor([2]), "mine", 3)


def test_an_empty_part_is_refused():
    with pytest.raises(ValueError, match="the test part of 2 graphs is empty"):
        Split(torch.tensor([0]), torch.tensor([1]), torch.tensor([]), "mine", 2)


def test_the_digest_names_the_parts_and_not_the_order_or_the_rule():
    one = Split(torch.tensor([0, 3]), torch.tensor([1]), torch.tensor([2]), "a", 4)
    same = Split(torch.tensor([3, 0]), torch.tensor([1]), torch.tensor([2]), "b", 4)
    moved = Split(torch.tensor([0]), torch.tensor([1, 3]), torch.tensor([2]), "a", 4)
    assert one.digest == same.digest != moved.digest


def test_fixed_folds_validate_on_the_fold_before_and_train_on_the_rest(tmp_path):
    write_folds(tmp_path, [[4, 0], [1, 5], [2, 3]], 7)  # graph 6 is in no test fold
    first, second, third = fixed_folds(tmp_path, 7, folds=3)
    assert parts(first) == [[1, 5, 6], [2, 3], [0, 4]]
    assert parts(second) == [[2, 3, 6], [0, 4], [1, 5]]
    assert parts(third) == [[0, 4, 6], [1, 5], [2, 3]]
    assert first.uncovered.tolist() == []
    assert "fold 2 of 3" in second.rule


def test_graphs_that_a_train_file_leaves_out_are_named(tmp_path):
    write_folds(tmp_path, [[0], [1], [2]], 6)
    (tmp_path / "train_idx-2.txt").write_text("0\n2\n4\n")
    assert fixed_folds(tmp_path, 6, folds=3)[1].uncovered.tolist() == [3, 5]


def test_fold_files_that_do_not_fit_are_refused(tmp_path):
    write_folds(tmp_path, [[0], [1], [2]], 6)
    with pytest.raises(ValueError, match="names graph 5, but the graphs are 0 to 4"):
        fixed_folds(tmp_path, 5, folds=3)
    (tmp_path / "test_idx-3.txt").write_text("2\nx\n")
    with pytest.raises(ValueError, match=r"test_idx-3.txt, line 2: 'x'"):
        fixed_folds(tmp_path, 6, folds=3)
    (tmp_path / "test_idx-3.txt").unlink()
    with pytest.raises(OSError, match=r"test_idx-3.txt"):
        fixed_folds(tmp_path, 6, folds=3)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['folds']}-{case['seed']}")
@pytest.mark.filterwarnings("ignore:the smallest class")
def test_stratified_folds_are_those_that_scikit_learn_gave(case):
    folds = stratified_folds(torch.tensor(case["y"]), case["folds"], case["seed"])
    assert [split.test.tolist() for split in folds] == case["tests"]


@st.composite
def dealt(draw):
    """Labels of which one class at least has a member a fold."""
    folds = draw(st.integers(3, 10))
    y = draw(st.lists(st.integers(-2, 3), max_size=50))
    at = draw(st.integers(0, len(y)))
    return [*y[:at], *[draw(st.integers(-2, 3))] * folds, *y[at:]], folds


@given(dealt(), st.integers(0, 2**32 - 1))
@settings(deadline=None)
@pytest.mark.filterwarnings("ignore:the smallest class")
@pytest.mark.filterwarnings("ignore:The least populated class")
def test_stratified_folds_are_those_of_scikit_learn(case, seed):
    selection = pytest.importorskip("sklearn.model_selection")
    y, folds = case
    splitter = selection.StratifiedKFold(folds, shuffle=True, random_state=seed)
    expected = [test.tolist() for _, test in splitter.split(np.zeros(len(y)), y)]
    ours = stratified_folds(torch.tensor(y), folds, seed)
    assert [split.test.tolist() for split in ours] == expected


@given(dealt(), st.integers(0, 99))
@settings(deadline=None)
@pytest.mark.filterwarnings("ignore:the smallest class")
def test_stratified_folds_cover_and_deal_each_class_evenly(case, seed):
    y, folds = torch.tensor(case[0]), case[1]
    splits = stratified_folds(y, folds, seed)
    assert sorted(chain(*(split.test.tolist() for split in splits))) == list(range(y.numel()))
    for before, split in zip([splits[-1], *splits], splits, strict=False):
        assert whole(split) == list(range(y.numel()))
        assert torch.equal(split.valid, before.test)
    for kind in y.unique():
        counts = [int((y[split.test] == kind).sum()) for split in splits]
        assert max(counts) - min(counts) <= 1
    again = stratified_folds(y, folds, seed)
    assert [split.digest for split in again] == [split.digest for split in splits]


def test_another_seed_deals_otherwise_and_the_rule_names_it():
    y = torch.arange(100) % 2
    one, two = stratified_folds(y, seed=0), stratified_folds(y, seed=1)
    assert one[0].digest != two[0].digest
    assert two[0].rule == "stratified folds, seed 1, fold 1 of 10"


def test_global_random_state_neither_matters_nor_moves():
    y = torch.arange(40) % 2
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    before = (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
    first = [stratified_folds(y)[0].digest, random_split(40).digest]
    after = (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
    assert before == after
    torch.manual_seed(1)
    assert [stratified_folds(y)[0].digest, random_split(40).digest] == first


def test_fewer_graphs_than_folds_is_an_error():
    with pytest.raises(ValueError, match="the largest of 2 classes has 4"):
        stratified_folds(torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]), folds=5)
    with pytest.raises(ValueError, match="at least 3 folds"):
        stratified_folds(torch.tensor([0, 1, 0, 1]), folds=2)
    with pytest.raises(ValueError, match="the largest of 0 classes has 0"):
        stratified_folds(torch.tensor([], dtype=torch.long))


def test_a_class_smaller_than_the_folds_warns():
    with pytest.warns(UserWarning, match=r"fewer graphs \(2\) than there are folds \(5\)"):
        stratified_folds(torch.tensor([0] * 9 + [1] * 2), folds=5)


@given(st.integers(3, 12), st.integers(0, 60), st.integers(0, 99))
def test_random_folds_deal_all_graphs_evenly_and_each_tests_and_validates_once(folds, more, seed):
    count = folds + more
    splits = random_folds(count, folds, seed)
    assert sorted(torch.cat([split.test for split in splits]).tolist()) == list(range(count))
    sizes = [split.test.numel() for split in splits]
    assert max(sizes) - min(sizes) <= 1
    for before, split in zip([splits[-1], *splits], splits, strict=False):
        assert torch.equal(split.valid, before.test)
        parts = torch.cat([split.train, split.valid, split.test])
        assert sorted(parts.tolist()) == list(range(count))
    assert [split.digest for split in random_folds(count, folds, seed)] == [
        split.digest for split in splits
    ]


def test_random_folds_take_as_many_graphs():
    with pytest.raises(ValueError, match=r"5 folds.*got 4"):
        random_folds(4, folds=5)
    with pytest.raises(ValueError, match="at least 3 folds, got 2"):
        random_folds(4, folds=2)


def test_stratified_folds_take_one_column_and_no_more():
    y = torch.tensor([[0.0], [1.0]] * 10)
    assert stratified_folds(y)[0].test.numel() == 2
    for wrong in (y.expand(-1, 2), torch.tensor([[0.0], [torch.nan]] * 10)):
        with pytest.raises(ValueError, match="use random_folds or random_split"):
            stratified_folds(wrong)


def test_ogb_split_reads_the_three_files(tmp_path):
    folder = tmp_path / "split" / "scaffold"
    folder.mkdir(parents=True)
    for name, rows in {"train": "0\n3\n4\n", "valid": "1\n", "test": "2\n"}.items():
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(rows.encode()))
    assert parts(ogb_split(tmp_path)) == [[0, 3, 4], [1], [2]]
    (folder / "valid.csv.gz").write_bytes(gzip.compress(b"3\n"))
    with pytest.raises(ValueError, match="graph 3 is in the split twice"):
        ogb_split(tmp_path)
    (folder / "valid.csv.gz").write_bytes(gzip.compress(b"1\n")[:-9])
    with pytest.raises(ValueError, match=r"valid.csv.gz is damaged"):
        ogb_split(tmp_path)


@given(st.lists(st.integers(1, 4), min_size=40, max_size=60), st.integers(0, 99))
@settings(deadline=None)
def test_scaffolds_stay_together(sizes, seed):
    scaffolds = [str(number) for number, size in enumerate(sizes) for _ in range(size)]
    order = torch.randperm(len(scaffolds), generator=torch.Generator().manual_seed(seed))
    scaffolds = [scaffolds[index] for index in order]
    split = scaffold_split(scaffolds)
    assert whole(split) == list(range(len(scaffolds)))
    train, valid, test = ({scaffolds[index] for index in part} for part in parts(split))
    assert len(train) + len(valid) + len(test) == len(set(scaffolds))
    assert split.train.numel() <= 0.8 * len(scaffolds)


def test_scaffold_groups_go_by_size_then_by_first_index_descending():
    split = scaffold_split([*"abcdefgh", "h", "h"], (0.4, 0.2, 0.4))
    assert parts(split) == [[6, 7, 8, 9], [4, 5], [0, 1, 2, 3]]


def test_one_scaffold_alone_cannot_be_split():
    with pytest.raises(ValueError, match="scaffold split: the train part of 5 graphs is empty"):
        scaffold_split(["c1ccccc1"] * 5)


@given(st.integers(10, 300), st.integers(0, 5))
@settings(deadline=None)
def test_a_random_split_covers_in_the_shares_asked_for(num_graphs, seed):
    split = random_split(num_graphs, (0.7, 0.2, 0.1), seed)
    assert whole(split) == list(range(num_graphs))
    for part, share in zip(parts(split), (0.7, 0.2, 0.1), strict=True):
        assert abs(len(part) - num_graphs * share) <= 1
    assert split.digest == random_split(num_graphs, (0.7, 0.2, 0.1), seed).digest


def test_random_split_refuses_what_cannot_be_split():
    with pytest.raises(
        ValueError, match="random split, seed 0: the valid part of 2 graphs is empty"
    ):
        random_split(2)
    for wrong in ((0.8, 0.1, 0.2), (1.0, 0.0, 0.0)):
        with pytest.raises(ValueError, match="fractions"):
            random_split(10, wrong)


def test_column_split_reads_all_spellings():
    split = column_split(["TRAIN", "Validation", " test", "val", "valid", "train"])
    assert parts(split) == [[0, 5], [1, 3, 4], [2]]


@pytest.mark.parametrize("wrong", ["", "dev", "trainx", "0", None])
def test_column_split_names_the_row_it_cannot_read(wrong):
    with pytest.raises(ValueError, match=f"row 1 .*{wrong!r}"):
        column_split(["train", wrong, "test"])


def test_column_split_without_validation_takes_it_from_train_and_says_so():
    split = column_split(["train"] * 40 + ["test"] * 5)
    assert (split.train.numel(), split.valid.numel()) == (36, 4)
    assert whole(split) == list(range(45))
    assert "tenth of train" in split.rule
    assert split.digest == column_split(["train"] * 40 + ["test"] * 5).digest
    assert parts(column_split(["train", "train", "test"]))[2] == [2]


@pytest.mark.parametrize(
    ("column", "empty"),
    [(["train", "val"], "test"), (["val", "test"], "train"), (["train", "test"], "valid")],
)
def test_column_split_without_a_part_is_an_error(column, empty):
    with pytest.raises(ValueError, match=f"the {empty} part of 2 graphs is empty"):
        column_split(column)


@needs_data
@pytest.mark.parametrize(
    ("name", "num_graphs", "untested"),
    [
        ("MUTAG", 188, 8),
        ("ENZYMES", 600, 0),
        ("PROTEINS", 1113, 3),
        ("PTC_MR", 344, 4),
        ("Synthie", 400, 0),
        ("IMDB-BINARY", 1000, 0),
        ("IMDB-MULTI", 1500, 0),
    ],
)
def test_the_fixed_folds_of_the_protocol(name, num_graphs, untested):
    folds = fixed_folds(Path(DATA) / "splits" / "10fold_idx" / name, num_graphs)
    tested = torch.cat([split.test for split in folds])
    assert tested.unique().numel() == tested.numel() == num_graphs - untested
    never = set(range(num_graphs)) - set(tested.tolist())
    for split in folds:
        assert split.uncovered.numel() == 0
        assert never <= set(split.train.tolist())


@needs_data
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("molbbbp", [1631, 204, 204]),
        ("molhiv", [32901, 4113, 4113]),
        ("moltox21", [6264, 783, 784]),
        ("moltoxcast", [6860, 858, 858]),
    ],
)
def test_the_splits_of_ogb(name, sizes):
    split = ogb_split(Path(DATA) / "OGB" / f"ogbg_{name}")
    assert [len(part) for part in parts(split)] == sizes
    assert split.uncovered.numel() == 0


@needs_data
def test_our_scaffold_split_of_molbbbp_is_the_one_of_ogb():
    molecule = pytest.importorskip("gtpool.data.molecule")
    folder = Path(DATA) / "OGB" / "ogbg_molbbbp"
    text = gzip.decompress((folder / "mapping" / "mol.csv.gz").read_bytes()).decode()
    smiles = [row["smiles"] for row in csv.DictReader(io.StringIO(text))]
    ours, theirs = scaffold_split(molecule.scaffolds(smiles)), ogb_split(folder)
    assert ours.digest == theirs.digest
