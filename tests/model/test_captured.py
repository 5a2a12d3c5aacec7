"""Every layer has a captured form, or says why not."""

import pytest

from gtpool.model.classifier import Classifier
from gtpool.model.conv import CONVS
from gtpool.model.ensemble import ModelEnsemble, why_not_captured, why_spec_not_captured
from gtpool.model.readout import READOUTS
from gtpool.pool import POOLS
from gtpool.spec import ModelSpec, ShapeSpec

SHAPE = ShapeSpec(outputs=2, node_width=7, mean_nodes=18, common_nodes=20)

NO_FORM = {"asap", "reppool", "kmis", "edgepool"}
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
