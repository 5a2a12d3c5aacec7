from functools import partial

import pytest
import torch
from both_forms import train_both_forms
from torch import nn
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

from gtpool.model.classifier import _head
from gtpool.model.conv import (
    COARSE_CONVS,
    CONVS,
    GCN,
    NORMS,
    CoarseGCN,
    ConvBlock,
    OgbGCN,
)
from gtpool.model.encoder import CategoryEncoder, check_codes
from gtpool.ops.dropout import drop_by_key, set_keys
from gtpool.ops.packed import PackedGraph
from gtpool.spec import ModelSpec, ShapeSpec

FLOATS = ShapeSpec(outputs=2, node_width=5)
CODED = ShapeSpec(outputs=2, node_categories=(4, 3), edge_categories=(3, 2))
spec = partial(ModelSpec, width=8)
RING = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])


def on(edges, nodes, edge_attr=None):
    """Put edges between the nodes of one graph."""
    return PackedGraph.of(edges, torch.zeros(nodes, dtype=torch.long), edge_attr)


def test_encoder_sums_one_embedding_a_column():
    encoder = CategoryEncoder((3, 2, 4), 6).double()
    codes = torch.tensor([[0, 1, 3], [2, 0, 0], [2, 1, 2]])
    tables = encoder.table.weight.split((3, 2, 4))
    expected = [
        sum(tables[column][code] for column, code in enumerate(row)) for row in codes.tolist()
    ]
    torch.testing.assert_close(encoder(codes), torch.stack(expected))


def test_encoder_starts_each_column_by_its_own_size():
    torch.manual_seed(0)
    small, large = CategoryEncoder((2, 1000), 8).table.weight.split((2, 1000))
    assert small.abs().max() > 0.5
    assert large.abs().max() < (6 / 1008) ** 0.5 + 1e-6


def _naive_ogb(conv: OgbGCN, x, edge_index, edge_attr):
    """OGB's formula, node by node and edge by edge."""
    h = [conv.linear.weight @ row + conv.linear.bias for row in x]
    edges = list(zip(*edge_index.tolist(), strict=True))
    deg = [1 + sum(source == node for source, _ in edges) for node in range(len(h))]
    tables = conv.bonds.table.weight.split(conv.bonds.sizes)
    out = []
    for node in range(len(h)):
        total = torch.relu(h[node] + conv.root) / deg[node]
        for (source, target), codes in zip(edges, edge_attr.tolist(), strict=True):
            if target == node:
                bond = sum(table[code] for table, code in zip(tables, codes, strict=True))
                total = total + torch.relu(h[source] + bond) / (deg[source] * deg[node]) ** 0.5
        out.append(total)
    return torch.stack(out)


def test_ogb_gcn_follows_its_formula_in_outputs_and_gradients():
    torch.manual_seed(1)
    conv = OgbGCN(5, 6, CODED).double()
    nn.init.normal_(conv.root)
    x = torch.randn(4, 5, dtype=torch.double, requires_grad=True)
    edge_attr = torch.tensor([[0, 1], [0, 1], [2, 0], [2, 0], [1, 1], [1, 1]])
    weight = torch.randn(4, 6, dtype=torch.double)
    asked = [x, *conv.parameters()]
    got, expected = conv(x, on(RING, 4, edge_attr)), _naive_ogb(conv, x, RING, edge_attr)
    torch.testing.assert_close(got, expected)
    ours = torch.autograd.grad((got * weight).sum(), asked)
    theirs = torch.autograd.grad((expected * weight).sum(), asked)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert all(part.abs().sum() > 0 for part in ours)


def test_ogb_gcn_sees_the_bonds():
    conv = OgbGCN(5, 6, CODED)
    x, bonds = torch.randn(3, 5), torch.zeros(6, 2, dtype=torch.long)
    assert not torch.equal(conv(x, on(RING, 3, bonds)), conv(x, on(RING, 3, bonds + 1)))


def test_ogb_gcn_needs_coded_bonds():
    with pytest.raises(ValueError, match=r"coded bonds; choose conv 'gcn'"):
        OgbGCN(5, 6, FLOATS)


def test_gcn_takes_the_first_edge_feature_as_weight():
    shape = ShapeSpec(outputs=2, node_width=5, edge_width=2, edge_weighted=True)
    conv = CONVS["gcn"](5, 4, shape).double()
    x = torch.randn(3, 5, dtype=torch.double)
    weight = torch.rand(6, dtype=torch.double) + 0.5
    dense = torch.eye(3, dtype=torch.double)
    dense[RING[1], RING[0]] = weight
    scale = dense.sum(1).rsqrt()
    expected = (scale[:, None] * dense * scale) @ (x @ conv.conv.lin.weight.T) + conv.conv.bias
    features = torch.stack([weight, torch.randn(6, dtype=torch.double)], 1)
    torch.testing.assert_close(conv(x, on(RING, 3, features)), expected)
    with pytest.raises(ValueError, match="weighted edges"):
        conv(x, on(RING, 3))


def test_clusters_are_convolved_by_their_weights_and_the_identity():
    torch.manual_seed(0)
    conv = CoarseGCN(5, 4).double()
    dense = torch.rand(3, 3).double()
    dense = dense + dense.T  # with loops, for what is inside a cluster
    x = torch.randn(3, 5).double()
    source, target = torch.cartesian_prod(torch.arange(3), torch.arange(3)).T
    tilde = dense + torch.eye(3)
    scale = tilde.sum(0).rsqrt()
    expected = (scale[:, None] * tilde * scale) @ x @ conv.conv.lin.weight.T + conv.conv.bias
    weight = dense[source, target].unsqueeze(1)
    edges = torch.stack([source, target])
    torch.testing.assert_close(conv(x, on(edges, 3, weight)), expected)
    matrices = dense.unsqueeze(0)  # three a graph, all joined: the same by a matrix product
    torch.testing.assert_close(conv(x, on(edges, 3).merged(matrices)), expected)
    one_way = torch.rand(2 * 9, 1).double()
    two = torch.cat([edges, edges + 3], 1), torch.randn(6, 5).double()
    pair = PackedGraph.of(two[0], torch.tensor([0, 0, 0, 1, 1, 1]), one_way)
    product = conv(two[1], pair.merged(one_way.view(2, 3, 3)))
    torch.testing.assert_close(product, conv(two[1], pair))


def test_clusters_without_an_edge_keep_their_features():
    conv = CoarseGCN(5, 4)
    x, nothing = torch.randn(3, 5), torch.empty(2, 0, dtype=torch.long)
    expected = conv.conv.lin(x) + conv.conv.bias
    torch.testing.assert_close(conv(x, on(nothing, 3, torch.empty(0, 1))), expected)
    assert "gin" not in COARSE_CONVS


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("conv", CONVS)
def test_block_gives_the_width_for_ring_edgeless_and_one_node(conv, norm):
    block = ConvBlock(spec(conv=conv, norm=norm, residual=True), CODED, 5).eval()
    nothing = torch.empty(2, 0, dtype=torch.long)
    for nodes, edges in ((3, RING), (3, nothing), (1, nothing)):
        bonds = torch.zeros(edges.size(1), 2, dtype=torch.long)
        out = block(torch.randn(nodes, 5), on(edges, nodes, bonds))
        assert out.shape == (nodes, 8)
        assert out.isfinite().all()


def test_residual_adds_the_input_where_widths_agree():
    plain, added = (ConvBlock(spec(residual=residual), FLOATS, 8) for residual in (False, True))
    added.load_state_dict(plain.state_dict())
    x = torch.randn(3, 8)
    torch.testing.assert_close(added(x, on(RING, 3)), plain(x, on(RING, 3)) + x)
    assert not ConvBlock(spec(residual=True), FLOATS, 5).residual


def test_a_feed_forward_network_has_a_residual_and_a_norm():
    block = ConvBlock(spec(norm="layer", ffn=True, residual=True), FLOATS, 8)
    plain = ConvBlock(spec(norm="layer", residual=True), FLOATS, 8)
    plain.load_state_dict({k: v for k, v in block.state_dict().items() if "ffn" not in k})
    x = torch.randn(3, 8)
    h = plain(x, on(RING, 3))
    first, second = (part for part in block.ffn.network if isinstance(part, nn.Linear))
    assert first.out_features == 16
    wanted = block.ffn.norm(h + second(first(h).relu()))
    torch.testing.assert_close(block(x, on(RING, 3)), wanted)


def test_dropout_of_a_block_is_before_its_residual_and_in_training_alone():
    x, key = torch.randn(3, 8), torch.tensor([5])
    block = ConvBlock(spec(block_dropout=0.5, residual=True), FLOATS, 8)
    plain = ConvBlock(spec(), FLOATS, 8)
    plain.load_state_dict(block.state_dict())
    set_keys(block, key)
    wanted = drop_by_key(plain(x, on(RING, 3)), 0.5, block.dropout.key) + x
    torch.testing.assert_close(block(x, on(RING, 3)), wanted)
    torch.testing.assert_close(block.eval()(x, on(RING, 3)), plain(x, on(RING, 3)) + x)


def test_gine_trains_on_the_edge_labels_of_a_tu_set_in_both_forms():
    eager, captured = train_both_forms(conv="gine", norm="batch", residual=True, convs_per_level=2)
    assert eager == pytest.approx(captured, rel=1e-3)
    assert eager[1] < eager[0]


@pytest.mark.parametrize(
    ("codes", "says"),
    [
        (None, "int64 codes of categories in 2 columns"),
        (torch.zeros(3, 2), "int64"),
        (torch.zeros(3, 1, dtype=torch.long), "2 columns"),
        (
            torch.tensor([[0, 0], [0, 3]]),
            r"x\[1, 1\] is 3, but the codes of that column are 0 to 2",
        ),
        (torch.tensor([[-1, 0]]), r"x\[0, 0\] is -1"),
    ],
)
def test_codes_that_are_none(codes, says):
    with pytest.raises(ValueError, match=says):
        check_codes("x", codes, (4, 3))


def test_head_drops_units_in_training_alone():
    torch.manual_seed(0)
    network, x = _head(12, 8, 3, 0.5), torch.randn(2, 12)
    assert [part.out_features for part in network if isinstance(part, nn.Linear)] == [8, 4, 3]
    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))


@pytest.mark.parametrize("widths", [(3, 8), (8, 3), (5, 5)])
def test_gcn_is_pyg_s_in_outputs_and_gradients(widths):
    conv = GCN(*widths, FLOATS).double()
    edges = torch.cat([RING, torch.tensor([[0, 1, 1, 3], [0, 1, 1, 2]])], 1)
    x = torch.randn(5, widths[0], dtype=torch.double, requires_grad=True)
    leaves = (x, *conv.parameters())
    ours, theirs = conv(x, on(edges, 5)), conv.conv(x, edges)
    torch.testing.assert_close(ours, theirs)
    sent = torch.randn(ours.shape, dtype=torch.double)
    torch.testing.assert_close(
        torch.autograd.grad(ours, leaves, sent), torch.autograd.grad(theirs, leaves, sent)
    )


@pytest.mark.parametrize(
    "conv", [GCN(5, 5, FLOATS), CONVS["gin"](5, 4, FLOATS), CONVS["gat"](5, 8, FLOATS)]
)
def test_a_mask_of_an_explainer_scales_what_edges_carry_as_in_pyg(conv):
    conv, x = conv.eval(), torch.randn(4, 5)
    edges = torch.cat([RING, torch.tensor([[0, 1], [0, 3]])], 1)  # with a loop, one node apart
    mask = torch.randn(8)
    set_masks(conv, mask, edges)
    close = torch.testing.assert_close
    close(conv(x, on(edges, 4)), conv.conv(x, edges))
    clear_masks(conv)
    close(conv(x, on(edges, 4)), conv.conv(x, edges))


def test_a_mask_changes_the_result_and_leaves_when_it_is_cleared():
    conv, x = GCN(5, 5, FLOATS), torch.randn(3, 5)
    plain = conv(x, on(RING, 3))
    set_masks(conv, torch.full((6,), -20.0), RING, apply_sigmoid=True)
    masked = conv(x, on(RING, 3))
    clear_masks(conv)
    assert not torch.allclose(plain, masked)
    assert torch.equal(plain, conv(x, on(RING, 3)))


def test_gcn_in_half_precision_and_under_autocast_is_pyg_s():
    close = partial(torch.testing.assert_close, rtol=0.02, atol=0.02)
    conv, x = GCN(5, 5, FLOATS), torch.randn(3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        close(conv(x, on(RING, 3)).float(), conv.conv(x, RING).float())
    conv = conv.bfloat16()
    close(conv(x.bfloat16(), on(RING, 3)), conv.conv(x.bfloat16(), RING))


@pytest.mark.parametrize("coded", [True, False])
def test_gine_sends_neighbours_through_the_relu_of_node_and_edge(coded):
    shape = ShapeSpec(outputs=2, node_width=4, **_edges(coded))
    conv = CONVS["gine"](4, 8, shape).double().eval()
    x = torch.randn(3, 4, dtype=torch.double)
    edge_index = torch.tensor([[0, 1, 2, 0], [1, 0, 0, 2]])
    edge_attr = torch.tensor([[0], [1], [2], [1]]) if coded else torch.eye(4)[:, :3].byte()
    edge = conv.edges(edge_attr if coded else edge_attr.double())
    summed = x.clone()
    for number, (source, target) in enumerate(edge_index.T.tolist()):
        summed[target] += (x[source] + edge[number]).relu()
    assert torch.allclose(conv(x, on(edge_index, 3, edge_attr)), conv.conv.nn(summed))


def test_gine_without_edge_features_says_what_to_choose():
    with pytest.raises(ValueError, match="conv 'gine' needs edge features; choose conv 'gin'"):
        CONVS["gine"](4, 8, ShapeSpec(outputs=2, node_width=4))


def _edges(coded):
    return {"edge_categories": (3,)} if coded else {"edge_width": 3}


@pytest.mark.parametrize("conv", ["gcn", "gin"])
def test_sums_over_neighbours_have_second_gradients_and_forward_ones(conv):
    layer = CONVS[conv](3, 4, FLOATS).double().eval()
    x = torch.randn(3, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: layer(x, on(RING, 3)), (x,))
    assert torch.autograd.gradcheck(lambda x: layer(x, on(RING, 3)), (x,), check_forward_ad=True)
    inner = torch.func.grad(lambda x: layer(x, on(RING, 3)).square().sum())(x.detach())
    (outer,) = torch.autograd.grad(layer(x, on(RING, 3)).square().sum(), x)
    torch.testing.assert_close(inner, outer)


@pytest.mark.parametrize("weighted", [True, False])
def test_a_mask_of_zeros_has_a_gradient(weighted):
    shape = ShapeSpec(outputs=2, node_width=5, edge_width=2, edge_weighted=weighted)
    conv = CONVS["gcn" if weighted else "gine"](5, 4, shape).eval()
    mask = torch.zeros(6, requires_grad=True)
    set_masks(conv, mask, RING, apply_sigmoid=False)
    graph = on(RING, 3, torch.rand(6, 2) + 0.5)
    (grad,) = torch.autograd.grad(conv(torch.rand(3, 5) + 1, graph).sum(), mask)
    assert grad.abs().min() > 0


def test_attention_of_a_gat_is_told_to_who_listens():
    conv, heard = CONVS["gat"](5, 8, FLOATS), []
    x, plain = torch.randn(3, 5), None
    plain = conv(x, on(RING, 3))
    hook = conv.conv.register_message_forward_hook(lambda *given: heard.append(given))
    torch.testing.assert_close(conv(x, on(RING, 3)), plain)
    hook.remove()
    assert len(heard) == 1
