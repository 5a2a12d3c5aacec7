"""A convolution, a pooler and a read-out of one's own: one class and one line each.

What CONTRIBUTING shows is done here with toys, which train eagerly and in fixed shapes.
"""

import pytest
import torch
from torch import nn

from gtpool.data.sources import load
from gtpool.data.split import stratified_folds
from gtpool.model.classifier import Classifier
from gtpool.model.conv import CONVS
from gtpool.model.ensemble import ModelEnsemble, why_not_captured, why_spec_not_captured
from gtpool.model.readout import READOUTS
from gtpool.nn import Linear
from gtpool.ops.runs import linear, per_run
from gtpool.ops.static_merge import merge
from gtpool.pool import POOLS
from gtpool.pool.layer import Dropped, DropPool, Merged, MergePool
from gtpool.spec import ModelSpec, ShapeSpec, TrainSpec
from gtpool.study.inputs import shape_of
from gtpool.train.fit import fit
from gtpool.train.fit_many import fit_many

SHAPE = ShapeSpec(outputs=2, node_width=7, mean_nodes=18, common_nodes=20)


class SumConv(nn.Module):
    """A node and its neighbours, mapped."""

    def __init__(self, in_channels, out_channels, shape):
        super().__init__()
        del shape
        self.linear = Linear(in_channels, out_channels)

    def forward(self, x, graph):
        return self.linear(graph.gin_sum(x)).tanh()


class NormPool(DropPool):
    """The nodes with the largest mapped features stay."""

    def __init__(self, in_channels, ratio=0.5):
        super().__init__()
        self.in_channels, self.ratio = in_channels, ratio
        self.weight = nn.Parameter(torch.randn(in_channels, in_channels) / in_channels**0.5)

    def select(self, x, graph, attn=None):
        score = linear(x if attn is None else attn, self.weight).square().sum(1)
        kept = graph.keep(score, self.ratio, sampler="topk", order="index")
        return Dropped(graph.take(x * score.sigmoid().unsqueeze(1), kept), kept, score)


class HalfPool(MergePool):
    """Two clusters a graph, by a softmax of mapped features."""

    def __init__(self, in_channels, clusters, *, weighted=False):
        super().__init__()
        self.in_channels, self.weighted = in_channels, weighted
        self.assign = Linear(in_channels, clusters)

    def merge(self, x, graph):
        share = self.assign(x).softmax(1)
        graphs = graph.adjacent(share.dtype, weighted=self.weighted)
        pooled, coarse, _ = merge(graphs, share, x)
        return Merged(pooled, coarse, share, None)


class SoftRead(nn.Module):
    """A mean weighted by attention."""

    def __init__(self, in_channels):
        super().__init__()
        self.out_channels = in_channels
        self.ask = nn.Parameter(torch.randn(in_channels))

    def forward(self, x, graph):
        share = graph.rows.softmax(per_run(torch.mul, x, self.ask).sum(1))
        return graph.rows.total(x * share.unsqueeze(1))


@pytest.fixture
def toys(monkeypatch):
    monkeypatch.setitem(CONVS, "toy", SumConv)
    monkeypatch.setitem(POOLS, "toy", NormPool)
    monkeypatch.setitem(POOLS, "merging", HalfPool)
    monkeypatch.setitem(READOUTS, "toy", lambda channels, *_: SoftRead(channels))


PARTS = [{"conv": "toy"}, {"pool": "toy"}, {"pool": "merging"}, {"readout": "toy"}]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.usefixtures("toys")
def test_a_toy_trains_eagerly_and_in_fixed_shapes_to_the_same_losses(part):
    data = load("MUTAG")
    split = stratified_folds(data.y, 10, 0)[0]
    spec = TrainSpec(epochs=2, warmup=0, lr=0.01, batch_size=64)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Classifier(ModelSpec(width=8, levels=2, **part), shape_of(data)))
    eager = [epoch.train_loss for epoch in fit(models[0], data, split, spec, seed=1)]
    runs = fit_many(models[1:], data, [split], [spec], seeds=[1])
    fixed = [epochs[0].train_loss for epochs in runs]
    assert eager == pytest.approx(fixed, rel=1e-4)
    assert eager[1] < eager[0]


NO_FORM = {"asap"}
"""Poolers that train eagerly on a GPU, and say why."""


@pytest.mark.parametrize("pool", POOLS)
def test_every_pooler_has_a_captured_form_or_says_why_not(pool):
    reason = why_spec_not_captured(ModelSpec(width=8, pool=pool), SHAPE)
    assert (reason is not None) == (pool in NO_FORM)
    if reason is not None:
        assert f"pool {pool!r} has no static form: " in reason
        with pytest.raises(ValueError, match="has no static form"):
            ModelEnsemble([Classifier(ModelSpec(width=8, pool=pool), SHAPE)], 10)


@pytest.mark.parametrize("name", [*CONVS, *READOUTS])
def test_every_convolution_and_read_out_has_a_captured_form(name):
    shape = ShapeSpec(outputs=2, node_width=7, edge_categories=(3,), mean_nodes=18, common_nodes=20)
    options = {"conv": name} if name in CONVS else {"readout": name}
    assert why_not_captured(Classifier(ModelSpec(width=8, **options), shape)) is None
