import pytest
import torch
from contract import drawn, ragged
from hypothesis import given
from torch_geometric.nn import GCNConv

from gtpool.ops import bag
from gtpool.ops.bag import gcn_propagate_cpu, sum_embeddings


def identity_conv(width):
    conv = GCNConv(width, width, bias=False).double()
    torch.nn.init.eye_(conv.lin.weight)
    return conv


@drawn
@given(ragged())
def test_smooth_is_pyg_s_in_outputs_and_gradients(graphs):
    x = graphs.x.requires_grad_()
    ours, theirs = (
        gcn_propagate_cpu(x, graphs.edge_index),
        identity_conv(x.size(1))(x, graphs.edge_index),
    )
    torch.testing.assert_close(ours, theirs)
    sent = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        torch.autograd.grad(ours, x, sent), torch.autograd.grad(theirs, x, sent)
    )


@pytest.mark.parametrize("short", [0, 2**16])
def test_edges_in_any_order_give_the_same(short, monkeypatch):
    monkeypatch.setattr(bag, "_SHORT", short)
    edges = torch.tensor([[3, 0, 1, 2, 0, 4], [1, 1, 2, 0, 4, 0]])
    x = torch.randn(5, 3, dtype=torch.double, requires_grad=True)
    wanted = identity_conv(3)(x, edges)
    for order in (torch.arange(6), edges[0].argsort(), edges[1].argsort()):
        found = gcn_propagate_cpu(x, edges[:, order])
        torch.testing.assert_close(found, wanted)
        grads = (
            torch.autograd.grad(out.sin().sum(), x, retain_graph=True) for out in (found, wanted)
        )
        torch.testing.assert_close(*grads)


def test_look_up_adds_rows_and_its_gradient_comes_back_to_them():
    table = torch.randn(6, 3, dtype=torch.double, requires_grad=True)
    codes = torch.tensor([[5, 0, 0], [2, 1, 5]])
    torch.testing.assert_close(sum_embeddings(table, codes), table[codes].sum(1))
    assert torch.autograd.gradcheck(lambda table: sum_embeddings(table, codes), (table,))


def test_sums_are_the_same_from_run_to_run():
    x = torch.randn(50, 7, requires_grad=True)
    edges = torch.randint(50, (2, 400))
    runs = [torch.autograd.grad(gcn_propagate_cpu(x, edges).sin().sum(), x)[0] for _ in range(2)]
    assert torch.equal(*runs)
