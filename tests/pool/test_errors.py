"""Bad input gets an error that names the value and says what is wanted."""

import math

import numpy as np
import pytest
import torch

from gtpool import GTPool, SelectRWS, SelectRWSV, unpool

X = torch.arange(20.0).reshape(5, 4) / 10
EDGES = torch.tensor([[0, 1, 2], [1, 2, 3]])
BATCH = torch.tensor([0, 0, 0, 0, 1])


def with_value(row: int, column: int, value: float) -> torch.Tensor:
    x = X.clone()
    x[row, column] = value
    return x


BAD_INPUTS = {
    "x is a vector": (
        {"x": X[0]},
        r"x must be a float tensor of shape \[nodes, 4\], got float32 of shape \[4\]",
    ),
    "x of another width": (
        {"x": X[:, :3]},
        r"got float32 of shape \[5, 3\]; the layer was made with in_channels=4",
    ),
    "x of integers": ({"x": X.long()}, r"x must be a float tensor .* got int64 of shape \[5, 4\]"),
    "x is no tensor": ({"x": np.ones((5, 4))}, r"x must be a float tensor .* got a ndarray"),
    "x is missing": ({"x": None}, r"x must be a float tensor .* got a NoneType"),
    "x has no rows": ({"x": X[:0]}, "x has no rows"),
    "x holds NaN": ({"x": with_value(3, 2, math.nan)}, r"must be finite, but x\[3, 2\] is nan"),
    "x is infinite": ({"x": with_value(1, 0, -math.inf)}, r"must be finite, but x\[1, 0\] is -inf"),
    "x overflows": ({"x": with_value(2, 1, -1e19)}, r"x\[2, 1\] is -1e\+19: .* overflow"),
    "edge_index transposed": (
        {"edge_index": EDGES.T},
        r"edge_index must be an int64 tensor of shape \[2, edges\], got int64 of shape \[3, 2\]",
    ),
    "edge_index of floats": (
        {"edge_index": EDGES.float()},
        r"edge_index must be an int64 tensor .* got float32 of shape \[2, 3\]",
    ),
    "edge_index of int32": ({"edge_index": EDGES.int()}, "edge_index must be an int64 tensor"),
    "edge_index a vector": ({"edge_index": EDGES[0]}, r"got int64 of shape \[3\]"),
    "edge_index a list": ({"edge_index": [[0], [1]]}, "edge_index must be .* got a list"),
    "edge_attr of another length": (
        {"edge_attr": torch.ones(2, 6)},
        r"edge_attr must have one row for each of the 3 edges, got float32 of shape \[2, 6\]",
    ),
    "edge_attr a number": ({"edge_attr": torch.tensor(1.0)}, "one row for each of the 3 edges"),
    "batch not sorted": (
        {"batch": torch.tensor([0, 1, 0, 1, 1])},
        r"batch must be sorted, but batch\[2\] = 0 follows 1",
    ),
    "batch of another length": ({"batch": BATCH[:4]}, "batch has 4 entries for 5 nodes"),
    "batch of floats": (
        {"batch": BATCH.float()},
        r"batch must be an int64 vector, got float32 of shape \[5\]",
    ),
    "batch of int32": ({"batch": BATCH.int()}, "batch must be an int64 vector, got int32"),
    "batch a matrix": ({"batch": BATCH[:, None]}, r"got int64 of shape \[5, 1\]"),
    "batch negative": ({"batch": BATCH - 1}, r"batch must start at 0, but batch\[0\] = -1"),
    "batch without the first graph": (
        {"batch": BATCH + 1},
        r"graph 0 of the batch has no nodes \(batch\[0\] = 1\); number the graphs 0, 1, 2",
    ),
    "batch without a middle graph": (
        {"batch": 2 * BATCH},
        r"graph 1 of the batch has no nodes \(batch\[4\] = 2\)",
    ),
    "edge from a negative node": (
        {"edge_index": EDGES - 1},
        r"edge 0 joins nodes \[-1, 0\], but the batch has nodes 0 to 4",
    ),
    "edge to a node too many": ({"edge_index": EDGES + 2}, r"edge 2 joins nodes \[4, 5\], but"),
    "edge between two graphs": (
        {"edge_index": torch.tensor([[0, 3], [1, 4]]), "batch": BATCH},
        r"edge 1 joins nodes \[3, 4\] of different graphs, 0 and 1",
    ),
    "attn of another width": (
        {"attn": X[:, :3]},
        r"attn must be a float tensor of shape \[nodes, 4\], got float32 of shape \[5, 3\]",
    ),
    "attn with fewer rows": ({"attn": X[:4]}, "attn has 4 rows, but x has 5"),
    "attn holds NaN": ({"attn": with_value(0, 1, math.nan)}, r"attn\[0, 1\] is nan"),
}


@pytest.mark.parametrize(("bad", "message"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_layer_refuses_input(bad, message):
    good = {"x": X, "edge_index": EDGES}
    with pytest.raises(ValueError, match=message):
        GTPool(4)(**good | bad)


def test_scores_refuse_what_the_layer_refuses():
    with pytest.raises(ValueError, match="must be finite"):
        GTPool(4).scores(with_value(0, 0, math.nan), EDGES)


@pytest.mark.parametrize("ratio", [0.0, -0.5, 1.5, math.nan, math.inf])
@pytest.mark.parametrize("make", [GTPool, SelectRWS, SelectRWSV])
def test_float_ratio_outside_its_range(make, ratio):
    with pytest.raises(ValueError, match=rf"share of nodes to keep, in \(0, 1\], got {ratio}"):
        make(4, ratio)


@pytest.mark.parametrize("ratio", [0, -3])
@pytest.mark.parametrize("make", [GTPool, SelectRWS, SelectRWSV])
def test_int_ratio_below_one(make, ratio):
    with pytest.raises(ValueError, match=f"number of nodes to keep, at least 1, got {ratio}"):
        make(4, ratio)


@pytest.mark.parametrize("ratio", [True, "0.5", None])
@pytest.mark.parametrize("make", [GTPool, SelectRWS, SelectRWSV])
def test_ratio_of_another_kind(make, ratio):
    with pytest.raises(ValueError, match=rf"a float in \(0, 1\] or an int >= 1, got {ratio!r}"):
        make(4, ratio)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads must divide in_channels=4, got heads=3"),
        ({"heads": 0}, "heads must be an int of at least 1, got 0"),
        ({"heads": 2.0}, "heads must be an int of at least 1, got 2.0"),
        ({"sampler": "rwz"}, "unknown sampler 'rwz'; choose one of 'topk', 'rws', 'rwsv'"),
        ({"order": "degree"}, "unknown order 'degree'; choose one of 'index', 'score'"),
        ({"gate": "relu"}, "unknown gate 'relu'; choose one of None, 'tanh'"),
        ({"lam": -0.1}, "lam must lie between 0 and 1, got -0.1"),
        ({"lam": 1.1}, "lam must lie between 0 and 1, got 1.1"),
        ({"lam": math.nan}, "lam must lie between 0 and 1, got nan"),
        ({"dropout": 1.5}, "dropout must lie between 0 and 1, got 1.5"),
        ({"dropout": -0.1}, "dropout must lie between 0 and 1, got -0.1"),
        ({"dropout": math.nan}, "dropout must lie between 0 and 1, got nan"),
        ({"ffn_channels": 0}, "ffn_channels must be an int of at least 1, got 0"),
        ({"ffn_channels": -2}, "ffn_channels must be an int of at least 1, got -2"),
        ({"act": "tahn"}, "Could not resolve 'tahn' among choices"),
        ({"act": None}, "act must be the name of an activation or a callable, got None"),
    ],
    ids=str,
)
def test_layer_refuses_options(options, message):
    with pytest.raises(ValueError, match=message):
        GTPool(4, **options)


@pytest.mark.parametrize("channels", [0, -4, 4.0, True])
def test_layer_refuses_a_width(channels):
    with pytest.raises(ValueError, match=f"in_channels must be an int .* got {channels}"):
        GTPool(channels)


def test_unknown_option_is_not_swallowed():
    with pytest.raises(TypeError, match="unexpected keyword argument 'ration'"):
        GTPool(4, ration=0.5)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.tensor([0, 1, 0, 1, 1]), r"batch must be sorted, but batch\[2\] = 0 follows 1"),
        (BATCH[:4], "batch has 4 entries for 5 nodes"),
        (2 * BATCH, "graph 1 of the batch has no nodes"),
    ],
    ids=["not sorted", "length", "gap"],
)
def test_select_refuses_batch(batch, message):
    with pytest.raises(ValueError, match=message):
        SelectRWS(4)(X, batch)


def test_select_refuses_an_unknown_order():
    with pytest.raises(ValueError, match="unknown order 'degree'; choose one of 'index', 'score'"):
        SelectRWSV(4, order="degree")


@pytest.mark.parametrize(
    ("perm", "num_nodes", "message"),
    [
        ([0, 1], 9, "x has 5 rows, but perm names 2 nodes"),
        ([0, 1, 2, 3, 4], 3, "perm names node 3, but num_nodes=3 means nodes 0 to 2"),
        ([0, 1, 2, 3, -1], 9, "perm names node -1, but num_nodes=9 means nodes 0 to 8"),
    ],
    ids=["length", "too large", "negative"],
)
def test_unpool_refuses_a_mismatch(perm, num_nodes, message):
    with pytest.raises(ValueError, match=message):
        unpool(X, torch.tensor(perm), num_nodes)
