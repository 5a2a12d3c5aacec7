"""The checks of a pooler's input by a kernel; in Triton's interpreter without a GPU."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from gtpool.ops.kernels.entry import sizes_if_valid

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH = [0, 0, 1, 2, 2, 2]
EDGES = [[0, 1, 3, 5, 2], [1, 0, 5, 3, 2]]


def attend_no_grad(x=None, edges=EDGES, batch=BATCH, largest=1e30):
    x = torch.ones(6, 3) if x is None else x
    edges = torch.tensor(edges, dtype=torch.long).view(2, -1)
    batch = None if batch is None else torch.tensor(batch).to(DEVICE)
    sizes = sizes_if_valid(x.to(DEVICE), edges.to(DEVICE), batch, largest)
    return None if sizes is None else sizes.tolist()


def test_sound_graphs_are_counted():
    assert attend_no_grad() == [2, 1, 3]
    assert attend_no_grad(batch=None) == [6]
    assert attend_no_grad(edges=[[], []]) == [2, 1, 3]
    assert attend_no_grad(batch=[0] * 6) == [6]
    assert attend_no_grad(batch=list(range(6)), edges=[[4], [4]]) == [1] * 6
    apart = torch.tensor([BATCH, BATCH]).T.to(DEVICE)[:, 0]  # every second entry of the memory
    ends = torch.tensor(EDGES).to(DEVICE)
    assert sizes_if_valid(torch.ones(6, 3).to(DEVICE), ends, apart, 1e30).tolist() == [2, 1, 3]
    many = torch.arange(1000).div(7, rounding_mode="floor")
    found = attend_no_grad(torch.zeros(1000, 2), edges=[[0] * 700, [6] * 700], batch=many.tolist())
    assert found == many.bincount().tolist()


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": [0, 0, 2, 2, 2, 2]},
        {"batch": [1, 1, 1, 2, 2, 2]},
        {"batch": [0, 0, 1, 0, 1, 1]},
        {"batch": [-1, 0, 0, 1, 1, 1]},
        {"batch": [0, 0, 1, 2, 2, -1]},
        {"edges": [[0], [6]]},
        {"edges": [[-1], [0]]},
        {"edges": [[0], [2]]},
        {"edges": [[0], [2**40]], "batch": None},
        {"x": torch.full((6, 3), torch.nan)},
        {"x": torch.full((6, 3), torch.inf)},
        {"x": torch.full((6, 3), -2e30)},
    ],
)
def test_what_is_wrong_is_seen(wrong):
    assert attend_no_grad(**wrong) is None
