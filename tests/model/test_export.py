"""A classifier leaves as a program that needs no gtpool, and comes back."""

import pytest
import torch
from drawn import molecules

from gtpool.data.device_dataset import DeviceDataset
from gtpool.data.encodings import with_encodings
from gtpool.data.sources import load
from gtpool.model import METHODS
from gtpool.model.classifier import Classifier
from gtpool.model.export import empty_batch, export_classifier, inputs_of
from gtpool.padded_batch import Capacity
from gtpool.spec import ModelSpec, ShapeSpec
from gtpool.study.inputs import shape_of

SPECS = {
    "the paper's": {"levels": 2},
    "gated, by score": {"pool_options": {"gate": "tanh", "heads": 2, "order": "score"}},
    "gin, top-k": {"conv": "gin", "pool_options": {"sampler": "topk"}, "readout": "max"},
    "sagpool": {"pool": "sagpool"},
    "topkpool by rwsv, gat": {
        "pool": "topkpool",
        "pool_options": {"sampler": "rwsv"},
        "conv": "gat",
    },
    "flat": {"pool": "none", "readout": "sum"},
    "mincutpool": {"pool": "mincutpool"},
    "diffpool": {"pool": "diffpool"},
    "structpool": {"pool": "structpool"},
    **{name: METHODS[name].model for name in ("set2set", "sortpool", "graphtrans")},
    "gmt": {"readout": "gmt"},
}


def network(data, options):
    torch.manual_seed(0)
    return Classifier(ModelSpec(**{"width": 8, "levels": 1, **options}), shape_of(data)).eval()


@pytest.mark.slow
@pytest.mark.parametrize("options", SPECS.values(), ids=SPECS)
def test_a_program_that_was_saved_gives_the_logits_of_any_batch_that_fits(options, tmp_path):
    data = load("MUTAG")
    model = network(data, options)
    stock, index = DeviceDataset.of(data), torch.arange(60).view(3, 1, 20)
    index[2, 0, 12:] = -1
    capacity = stock.capacity(index[:, 0], model.ratios)
    longest = int(data.sizes.max())
    program = export_classifier(model, capacity, longest)
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for part in index:
        there = part[0] >= 0
        logits = loaded(*inputs_of(stock.gather(part, capacity, model.ratios)))
        wanted = model.classify(data.take(part[0][there], model.ratios))
        torch.testing.assert_close(logits[there], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conv", "encode"), [("ogb-gcn", ()), ("gine", ("rwse:4", "cycles")), ("dmpnn", ())]
)
def test_a_program_takes_the_codes_of_bonds(conv, encode):
    data, index = with_encodings(molecules(30), encode), torch.arange(20).view(2, 1, 10)
    options = {"virtual_node": True, "ffn": True, "norm": "batch", "levels": 2}
    model = network(data, {"conv": conv, **options})
    stock = DeviceDataset.of(data, model.shape.node_categories, model.shape.edge_categories)
    capacity = stock.capacity(index[:, 0], model.ratios)
    program = export_classifier(model, capacity, int(data.sizes.max())).module()
    for part in index:
        logits = program(*inputs_of(stock.gather(part, capacity, model.ratios)))
        wanted = model.classify(data.take(part[0], model.ratios))
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-5)


def test_an_export_leaves_the_classifier_as_it_was():
    data = load("MUTAG")
    model = network(data, {}).train()
    before = {name: part.clone() for name, part in model.state_dict().items()}
    program = export_classifier(model, Capacity.rounded(2, [20, 10], 40), 12)
    assert model.training
    for name, part in model.state_dict().items():
        assert torch.equal(part, before[name])
    # Dropout has no part in it, though the classifier was in training.
    inputs = inputs_of(empty_batch(model, Capacity.rounded(2, [20, 10], 40)))
    run = program.module()
    assert torch.equal(run(*inputs), run(*inputs))


def test_a_program_for_codes_takes_a_column_a_category():
    model = Classifier(ModelSpec(width=8), ShapeSpec(outputs=2, node_categories=(4, 3)))
    batch = empty_batch(model, Capacity.rounded(3, [10, 5, 3, 2], 0))
    assert batch.x.shape == (64, 7)
    assert [rows.batch.numel() for rows in batch.levels] == [64] * 4
    assert not batch.present.any()


def test_what_has_no_static_form_is_not_exported():
    shape = ShapeSpec(outputs=2, node_width=3)
    model = Classifier(ModelSpec(width=8, pool="asap"), shape)
    with pytest.raises(ValueError, match="pool 'asap' has no static form"):
        export_classifier(model, Capacity.rounded(2, [10, 5], 20), 8)
