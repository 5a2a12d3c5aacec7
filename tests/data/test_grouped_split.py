from itertools import chain, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpool.data.grouped_split import (
    grouped_bag,
    grouped_folds,
    grouped_split,
    halve_validation,
    hold_out,
    read_times,
    strata_of,
    time_split,
    train_subset,
)
from gtpool.data.split import Split


def separated(split, groups):
    """Groups that are in more than one part."""
    parts = [set(groups[part].tolist()) for part in (split.train, split.valid, split.test)]
    return (parts[0] & parts[1]) | (parts[0] & parts[2]) | (parts[1] & parts[2])


@st.composite
def grouped(draw):
    """Groups of drawn sizes, numbered in any order, and folds that they can fill."""
    folds = draw(st.integers(3, 6))
    sizes = draw(st.lists(st.integers(1, 9), min_size=folds, max_size=30))
    numbers = list(chain(*([number] * size for number, size in enumerate(sizes))))
    return torch.tensor(draw(st.permutations(numbers))), folds


@given(grouped(), st.integers(0, 99))
@settings(deadline=None, max_examples=50)
@pytest.mark.filterwarnings("ignore:.*none of a class or label")
def test_group_folds_cover_every_graph_once_and_separate_no_group(case, seed):
    groups, folds = case
    y = torch.arange(groups.numel()) % 2
    for strata in (None, strata_of(y, "classes")):
        splits = grouped_folds(groups, folds, seed, strata=strata)
        tests = sorted(chain(*(split.test.tolist() for split in splits)))
        assert tests == list(range(groups.numel()))
        assert not any(separated(split, groups) for split in splits)
        assert all(torch.equal(split.valid, splits[k - 1].test) for k, split in enumerate(splits))
        largest = int(groups.bincount().max())
        sizes = [split.test.numel() for split in splits]
        assert strata is not None or max(sizes) - min(sizes) <= largest
        again = grouped_folds(groups, folds, seed, strata=strata)
        assert [split.digest for split in again] == [split.digest for split in splits]


@given(grouped(), st.integers(0, 99), st.booleans())
@settings(deadline=None, max_examples=50)
def test_smaller_training_parts_are_subsets_that_separate_no_group(case, seed, stratified):
    groups, _ = case
    graphs = groups.numel()
    own = torch.arange(graphs, graphs + 2)  # valid and test, of other groups
    every = torch.cat([groups, groups.max() + 1 + torch.arange(2)])
    split = Split(torch.arange(graphs), own[:1], own[1:], "mine", graphs + 2)
    strata = strata_of(torch.arange(graphs + 2) % 3, "classes") if stratified else None
    kept = [
        train_subset(split, share, seed, groups=every, strata=strata)
        for share in (0.25, 0.5, 0.75, 1.0)
    ]
    parts = [set(one.train.tolist()) for one in kept]
    assert all(smaller <= larger for smaller, larger in pairwise(parts))
    assert parts[-1] == set(range(graphs))
    largest = int(groups.bincount().max())
    for one, share in zip(kept, (0.25, 0.5, 0.75, 1.0), strict=True):
        assert abs(one.train.numel() - share * graphs) <= largest
        assert torch.equal(one.valid, split.valid)
        assert torch.equal(one.test, split.test)
        left = torch.ones(graphs, dtype=torch.bool).index_fill(0, one.train, value=False)
        assert not torch.isin(groups[one.train], groups[left.nonzero().flatten()]).any()


def test_a_smaller_training_part_has_its_share_of_every_class():
    y = torch.tensor([0] * 80 + [1] * 16 + [2] * 2 + [0, 1])
    split = Split(torch.arange(98), torch.tensor([98]), torch.tensor([99]), "mine", 100)
    for seed in range(5):
        quarter = train_subset(split, 0.25, seed, strata=strata_of(y, "classes"))
        counts = y[quarter.train].bincount().tolist()
        assert sum(counts) == 24
        assert abs(counts[1] - 4) <= 1
        assert counts[2] == 1
    assert quarter.rule == "mine, 0.25 of train"
    other = train_subset(split, 0.25, 5, strata=strata_of(y, "classes"))
    assert other.digest != quarter.digest


def test_single_graphs_are_dealt_as_evenly_as_by_stratified_folds():
    y = torch.tensor([0] * 83 + [1] * 14 + [2] * 6)
    splits = grouped_folds(torch.arange(103), 5, 1, strata=strata_of(y, "classes"))
    for kind in range(3):
        counts = [int((y[split.test] == kind).sum()) for split in splits]
        assert max(counts) - min(counts) <= 1
    other = grouped_folds(torch.arange(103), 5, 2, strata=strata_of(y, "classes"))
    assert other[0].digest != splits[0].digest
    assert splits[3].rule == "group folds, seed 1, fold 4 of 5"


def test_several_tasks_are_shared_evenly_although_labels_are_missing():
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(400, 3, generator=generator) < torch.tensor([0.5, 0.1, 0.05])).float()
    y[torch.rand(400, 3, generator=generator) < 0.2] = torch.nan
    groups = torch.randint(0, 150, (400,), generator=generator).unique(return_inverse=True)[1]
    splits = grouped_folds(groups, 5, 0, strata=strata_of(y, "binary"))
    for task in range(3):
        counts = [int((y[split.test, task] == 1).sum()) for split in splits]
        assert max(counts) - min(counts) <= 3, counts
    assert strata_of(y, "regression") is None


def test_too_few_groups_are_an_error_that_says_what_to_do():
    with pytest.raises(ValueError, match="5 folds need at least 5 groups, got 2; use fewer folds"):
        grouped_folds(torch.arange(40) % 2, 5)
    with pytest.raises(ValueError, match="at least 3 folds, got 2"):
        grouped_folds(torch.arange(40), 2)
    with pytest.raises(ValueError, match="at least 3 groups or distinct times, got 2"):
        grouped_split(torch.arange(40) % 2)


def test_a_class_that_a_fold_lacks_is_told():
    y = torch.tensor([0] * 20 + [1] * 6)
    groups = torch.tensor([*range(20), *[20, 21] * 3])
    with pytest.warns(UserWarning, match="group folds: 2 of 4 test folds have none of a class"):
        grouped_folds(groups, 4, strata=strata_of(y, "classes"))


@given(grouped(), st.integers(0, 99))
@settings(deadline=None, max_examples=50)
def test_a_random_split_and_its_bags_separate_no_group(case, seed):
    groups, _ = case
    split = grouped_split(groups, seed=seed)
    assert not separated(split, groups)
    assert split.uncovered.numel() == 0
    bagged = grouped_bag(split, seed + 1, groups)
    assert not separated(bagged, groups)
    assert torch.equal(bagged.test, split.test)
    assert bagged.uncovered.numel() == 0
    half = halve_validation(split, seed, groups=groups)
    assert not separated(half, groups)
    assert torch.equal(half.test, split.test)
    assert half.uncovered.numel() == 0
    assert 0 < half.valid.numel() <= split.valid.numel()


def test_half_of_a_validation_fold_keeps_the_shares_of_the_classes():
    y = torch.arange(200) % 4 // 3
    strata = strata_of(y, "classes")
    split = grouped_folds(torch.arange(200), 5, strata=strata)[2]
    half = halve_validation(split, groups=torch.arange(200), strata=strata)
    assert [part.numel() for part in (half.train, half.valid, half.test)] == [140, 20, 40]
    assert y[half.valid].sum() == 5


def test_a_random_split_has_the_asked_fractions():
    split = grouped_split(torch.arange(200) // 2, seed=3)
    assert [part.numel() for part in (split.train, split.valid, split.test)] == [160, 20, 20]


@given(st.lists(st.integers(0, 12), min_size=3, max_size=60))
@settings(deadline=None, max_examples=100)
def test_no_test_graph_is_older_than_a_training_graph(times):
    if len(set(times)) < 3:
        times = [*times, 20, 21, 22]
    split, when = time_split(times), torch.tensor(times)
    assert split.uncovered.numel() == 0
    assert when[split.train].max() < when[split.valid].min()
    assert when[split.valid].max() < when[split.test].min()


def test_a_time_split_cuts_near_the_fractions_and_moves_copies_to_the_newest():
    times = [float(year) for year in range(100)]
    split = time_split(times)
    assert (split.train[-1], split.valid[-1], split.test[-1]) == (79, 89, 99)
    groups = torch.arange(100)
    groups[5] = groups[95] = 5
    together = time_split(times, groups=groups.unique(return_inverse=True)[1])
    assert {5, 95} <= set(together.test.tolist())


def test_times_are_numbers_or_iso_dates():
    assert read_times(["1e3", "-2"], [2, 3]) == [1000.0, -2.0]
    dates = ["2020-01-31", "2020-02", "2020-02-01T12:00:00", "2020-02-01T12:00:00+01:00"]
    first, second, third, fourth = read_times(dates, [2, 3, 4, 5])
    assert (second - first, third - second, third - fourth) == (86400, 43200, 3600)
    with pytest.raises(ValueError, match="line 3 of the time column holds '', which is not a numb"):
        read_times(["2020", ""], [2, 3])
    with pytest.raises(ValueError, match=r"line 9 .* '2020', which is not an ISO date"):
        read_times(["2020-01-01", "2020"], [8, 9])


@pytest.mark.parametrize("seed", range(5))
def test_a_fifth_is_held_out_beside_a_group_of_more_than_half(seed):
    groups = torch.cat([torch.zeros(60, dtype=torch.long), 1 + torch.arange(40)])
    split = grouped_folds(groups, 3)[0]
    held = hold_out(split, seed, groups=groups, test=True).test
    assert 5 <= held.numel() <= 25
    assert 0 not in groups[held]


def test_a_fifth_that_is_a_whole_fold_is_an_error_that_says_what_to_do():
    groups = torch.arange(5).repeat_interleave(4)
    splits = grouped_folds(groups, 5)
    with pytest.raises(ValueError, match=r"no graph is left in a part.*--no-hold-out"):
        [hold_out(split, groups=groups) for split in splits]
