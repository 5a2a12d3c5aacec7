"""Splits of tables: groups, times, scaffolds and copies."""

import re
from dataclasses import replace

import pytest

from gtpool.data.duplicates import number_groups
from gtpool.data.molecule import scaffolds
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study.inputs import expand_folds, load_data
from gtpool.study.run_one import run_one
from gtpool.study.split_rules import choose_split

RINGS = ["c1ccccc1", "C1CC1", "C1CCC1", "C1CCCC1", "C1CCNCC1", "c1ccncc1", "c1ccsc1"]


@pytest.fixture
def table(tmp_path):
    """48 molecules of 8 scaffolds, one of them none; each of the first ten is written twice."""
    smiles = [f"{'C' * (n // 8 + 1)}{['', *RINGS][n % 8]}O" for n in range(48)]
    copies = [f"O{one[:-1]}" if one.strip("CO") == "" else f"C{one[1:]}" for one in smiles[:10]]
    rows = [
        f"{one},{n % 3 % 2},{n % 5},{n / 7:.2f},s{n * 7 % 58 // 2},{1990 + n % 13}"
        for n, one in enumerate([*smiles, *copies])
    ]
    path = tmp_path / "a.csv"
    path.write_text("smiles,y,bit,value,series,year\n" + "\n".join(rows) + "\n")
    return DataSpec(source=str(path), target_columns=("y",))


def parts(split):
    return [set(part.tolist()) for part in (split.train, split.valid, split.test)]


def separated(split, keys):
    named = [{keys[at] for at in part} for part in parts(split)]
    return (named[0] & named[1]) | (named[0] & named[2]) | (named[1] & named[2])


@pytest.mark.parametrize("target", ["y", "value"])
@pytest.mark.parametrize("rule", ["auto", "folds", "groups", "scaffold-folds", "random", "time"])
def test_copies_are_never_on_two_sides(table, target, rule):
    data = replace(table, target_columns=(target,))
    column = {"groups": {"group_column": "series"}, "time": {"time_column": "year"}}.get(rule, {})
    loaded = load_data(replace(data, **column))
    runs = expand_folds(
        RunSpec(data=loaded.spec, split=SplitSpec(rule=rule, folds=4)), loaded=loaded
    )
    assert len(runs) == (1 if rule in {"random", "time"} else 4)
    tested, held = [], []
    for run in runs:
        assert run.split.copies == "together"
        split = choose_split(run.split, loaded)
        assert "copies together" in split.rule
        assert not separated(split, loaded.molecules)
        bagged = choose_split(replace(run.split, bag=1), loaded)
        assert not separated(bagged, loaded.molecules)
        inner = choose_split(replace(run.split, hold_out="exclude"), loaded)
        outer = choose_split(replace(run.split, hold_out="test"), loaded)
        assert inner.uncovered.tolist() == outer.test.tolist()
        assert set(inner.train.tolist()) < set(outer.train.tolist())
        assert not separated(outer, loaded.molecules)
        held.append(outer.test.tolist())
        half = choose_split(replace(run.split, share=0.5), loaded)
        assert set(half.train.tolist()) < set(split.train.tolist())
        left = set(split.train.tolist()) - set(half.train.tolist())
        kept, gone = ({loaded.molecules[at] for at in part} for part in (half.train, left))
        assert not kept & gone
        tested += split.test.tolist()
    assert held == held[:1] * len(runs)
    if len(runs) > 1:
        assert sorted(tested) == list(range(58))
    apart = [choose_split(replace(run.split, copies="apart"), loaded) for run in runs]
    found = any(separated(split, loaded.molecules) for split in apart)
    assert found == (rule != "scaffold-folds")


def test_a_table_without_copies_has_the_keys_and_splits_of_before(table, tmp_path):
    lines = (tmp_path / "a.csv").read_text().splitlines()[:49]
    (tmp_path / "b.csv").write_text("\n".join(lines) + "\n")
    data = replace(table, source=str(tmp_path / "b.csv"))
    (run, *_) = expand_folds(RunSpec(data=data))
    assert run.split == SplitSpec(rule="stratified")
    assert "copies" not in run.split.key_parts
    assert choose_split(run.split, load_data(data)).rule == "stratified folds, seed 0, fold 1 of 10"


def test_a_column_selects_its_rule_and_keeps_its_groups(table):
    loaded = load_data(replace(table, group_column="series"))
    for fold in range(3):
        split = choose_split(SplitSpec(folds=3, fold=fold), loaded)
        assert not separated(split, loaded.group_values)
        rule = "group folds of column 'series', copies together"
        assert split.rule == f"{rule}, seed 0, fold {fold + 1} of 3"
    loaded = load_data(replace(table, time_column="year"))
    split = choose_split(SplitSpec(copies="apart"), loaded)
    years = [[int(loaded.time_values[at]) for at in part] for part in parts(split)]
    assert max(years[0]) < min(years[1]) <= max(years[1]) < min(years[2])
    assert split.rule == "time split of column 'year'"


def test_blank_groups_are_rows_of_their_own(table, tmp_path):
    text = (tmp_path / "a.csv").read_text()
    (tmp_path / "b.csv").write_text(re.sub(r",s1?\d,", ",,", text))
    data = replace(table, source=str(tmp_path / "b.csv"), group_column="series")
    loaded = load_data(data)
    splits = [choose_split(SplitSpec(folds=5, fold=k), loaded) for k in range(5)]
    blank = {at for at, value in enumerate(loaded.group_values) if not value}
    assert len([split for split in splits if blank & set(split.test.tolist())]) > 1


def test_scaffold_folds_keep_scaffolds_and_are_balanced(table):
    loaded = load_data(table)
    found = scaffolds(loaded.smiles)
    assert int(number_groups(found).max()) == 7
    splits = [
        choose_split(SplitSpec(rule="scaffold-folds", folds=4, fold=k), loaded) for k in range(4)
    ]
    assert not any(separated(split, found) for split in splits)
    assert all(12 <= split.test.numel() <= 17 for split in splits)


@pytest.mark.parametrize(
    ("given", "split", "message"),
    [
        ({}, {"rule": "groups"}, "requires group_column"),
        ({}, {"rule": "time"}, "requires time_column"),
        ({"group_column": "series", "time_column": "year"}, {}, "several split rules"),
        ({"group_column": "y"}, {}, "'y' is chosen twice"),
        ({"time_column": "series"}, {}, "line 2 of the time column holds 's0'"),
        ({"group_column": "serie"}, {}, r"--group-column\); did you mean 'series'"),
        ({"group_column": "bit"}, {"folds": 6}, "6 folds need at least 6 groups, got 5"),
    ],
)
def test_what_cannot_be_split_says_why(table, given, split, message):
    data = replace(table, **given)
    split = {"folds": 3, "copies": "apart", **split}
    with pytest.raises(ValueError, match=message):
        choose_split(SplitSpec(**split), load_data(data))


def test_options_of_tables_are_refused_elsewhere():
    for option in ({"group_column": "a"}, {"time_column": "a"}, {"contradictions": "drop"}):
        with pytest.raises(ValueError, match="applies only to a table, not to MUTAG"):
            load_data(DataSpec(source="MUTAG", **option))
    with pytest.raises(ValueError, match="by the split of a table of SMILES"):
        choose_split(SplitSpec(copies="together"), load_data(DataSpec(source="MUTAG")))


@pytest.mark.usefixtures("table")
def test_a_run_trains_on_group_folds_of_several_tasks(tmp_path):
    text = (tmp_path / "a.csv").read_text().replace(",2,", ",,").replace(",3,", ",0,")
    (tmp_path / "b.csv").write_text(text.replace(",4,", ",1,"))
    data = DataSpec(
        source=str(tmp_path / "b.csv"), target_columns=("y", "bit"), group_column="series"
    )
    small = ModelSpec(pool="none", conv="gin", width=8, levels=1)
    split = SplitSpec(rule="groups", folds=3)
    row = run_one(RunSpec(data=data, split=split, model=small, train=TrainSpec(epochs=1)))
    assert (row.status, row.metric) == ("done", "roc_auc")
    assert row.split.train + row.split.valid + row.split.test == 58
