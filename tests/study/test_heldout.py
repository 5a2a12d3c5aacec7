"""Notes on labels that test parts do not have."""

import numpy as np

from gtpool.study.heldout import HeldOut, missing_labels


def part(fold, y, seed=42):
    y = np.array(y)
    return HeldOut(seed, fold, np.arange(len(y)), np.zeros((len(y), 2)), y)


def test_classes_that_test_parts_lack_are_named_and_counted_once_a_fold():
    parts = [part(0, [0, 1, 1]), part(0, [0, 1, 1], seed=43), part(1, [0, 2]), part(2, [0, 1])]
    notes = missing_labels(parts, "classes", ("no", "yes", "rare"))
    end = "some metrics are undefined there"
    assert notes == [
        f"2 of 3 test parts have no graph of class 'rare': {end}",
        f"1 of 3 test parts have no graph of class 'yes': {end}",
    ]
    assert missing_labels(parts[:1], "classes", ("no", "yes")) == []


def test_targets_with_one_label_in_a_test_part_are_named():
    nan = np.nan
    parts = [part(0, [[0, 1], [1, nan]]), part(1, [[0, 0], [1, 1]])]
    (note,) = missing_labels(parts, "binary", ("a", "b"))
    assert note.startswith("1 of 2 test parts have no two labels of target 'b'")
    assert missing_labels([part(0, [[0.5], [0.5]])], "regression", ("a",)) == []
    wide = [part(0, np.zeros((3, 9)))]
    notes = missing_labels(wide, "binary", [f"t{at}" for at in range(9)])
    assert (len(notes), notes[-1]) == (6, "so it is for 4 more")
