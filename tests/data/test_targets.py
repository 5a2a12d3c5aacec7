"""Targets from which nothing can be learned."""

import pytest
import torch

from gtpool.data.targets import check_varied

NAN = float("nan")


def test_a_constant_target_is_refused_and_named():
    for values in ([[1.5], [1.5], [NAN]], [[NAN], [2.0]]):
        with pytest.raises(ValueError, match=r"no target has two different values \('logS'\)"):
            check_varied(torch.tensor(values), "regression", ("logS",))
    check_varied(torch.tensor([[1.5], [1.6], [NAN]]), "regression", ("logS",))
    check_varied(torch.tensor([0, 0]), "classes", ("one",))  # refused when the table is read


def test_of_several_targets_the_constant_ones_are_counted():
    y = torch.tensor([[1.0, 0.0, NAN], [1.0, 1.0, NAN], [NAN, 0.0, NAN]])
    with pytest.warns(UserWarning, match="2 of 3 targets have no two .* of them: 'a', 'c'"):
        check_varied(y, "binary", ("a", "b", "c"))
