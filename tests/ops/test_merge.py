import pytest
import torch
from contract import close, drawn, matrices, pack, ragged, ring
from hypothesis import given
from hypothesis import strategies as st

from gtpool.ops.adjacency import PackedAdjacency, merge
from gtpool.ops.merge import (
    adj_t_matmul,
    at_least_float32,
    coarse_graph,
    edge_weight,
    products,
    sqrt_degree,
    squared_norm,
)
from gtpool.ops.segment import layout_from_batch


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.double)


@drawn
@given(ragged(), st.integers(1, 4))
def test_merge_equals_matrix_products_outputs_and_gradients(graphs, clusters):
    level = layout_from_batch(graphs.batch)
    assign = draw(len(graphs.x), clusters).softmax(1)
    weight = draw(graphs.edge_index.size(1), seed=1)
    asking = [value.requires_grad_() for value in (assign, graphs.x, weight)]

    ours = merge(PackedAdjacency(graphs.edge_index, weight, level), assign, graphs.x)
    dense = [[], [], []]
    for number, fine in enumerate(matrices(graphs.edge_index, weight, graphs.batch)):
        x, s = (value[graphs.batch == number] for value in (graphs.x, assign))
        for parts, part in zip(dense, (s.T @ x, s.T @ fine @ s, s.T @ s), strict=True):
            parts.append(part)
    theirs = [torch.stack(parts) for parts in dense]
    gradients = [
        torch.autograd.grad(sum(part.sin().sum() for part in parts), asking)
        for parts in (ours, theirs)
    ]
    for one, other in zip((*ours, *gradients[0]), (*theirs, *gradients[1]), strict=True):
        close(one, other)


@drawn
@given(ragged())
def test_squares_are_those_of_the_matrix_where_repeated_edges_are_one_entry(graphs):
    weight = draw(graphs.edge_index.size(1)).requires_grad_()
    ours = squared_norm(graphs.edge_index, weight, layout_from_batch(graphs.batch))
    dense = matrices(graphs.edge_index, weight, graphs.batch)
    theirs = torch.stack([matrix.square().sum() for matrix in dense])
    close(ours, theirs)
    if graphs.edge_index.numel():
        close(*(torch.autograd.grad(value.sum(), weight)[0] for value in (ours, theirs)))


def test_products_do_not_see_the_padding():
    graphs = pack([(3, []), (1, []), (7, [])], seed=0)
    level = layout_from_batch(graphs.batch)
    left, right = draw(11, 2), draw(11, 3, seed=1)
    for number, product in enumerate(products(left, right, level)):
        here = graphs.batch == number
        close(product, left[here].T @ right[here])


def test_an_edge_brings_its_source_to_its_target():
    edge_index = torch.tensor([[0, 0, 2], [1, 1, 2]])
    value, weight = torch.tensor([[1.0], [10.0], [100.0]]), torch.tensor([2.0, 3.0, 0.5])
    assert adj_t_matmul(value, edge_index, weight).flatten().tolist() == [0, 5, 50]


def test_coarse_graph_lists_every_pair_of_clusters_with_its_weight():
    adjacency = draw(3, 4, 4)
    edge_index, weight, layout = coarse_graph(adjacency)
    assert weight.shape == (48, 1)
    assert layout.batch.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert layout.sizes.tolist() == [4, 4, 4]
    assert layout.ptr.tolist() == [0, 4, 8, 12]
    assert torch.equal(torch.stack(matrices(edge_index, weight, layout.batch)), adjacency)


def test_a_weight_is_the_first_edge_feature_or_one():
    edge_index, like = torch.tensor(ring(3)).T, torch.zeros(1, dtype=torch.double)
    attr = torch.arange(12).view(6, 2)
    assert edge_weight(edge_index, attr, like, weighted=False).tolist() == [1] * 6
    assert edge_weight(edge_index, attr, like, weighted=True).tolist() == [0, 2, 4, 6, 8, 10]
    assert edge_weight(edge_index, attr[:, 1], like, weighted=True).tolist() == [1, 3, 5, 7, 9, 11]
    assert edge_weight(edge_index, attr, like, weighted=True).dtype == torch.double
    with pytest.raises(ValueError, match="edge_attr"):
        edge_weight(edge_index, None, like, weighted=True)


def test_dividing_by_roots_leaves_zero_and_finite_gradients_without_degree():
    degree = torch.tensor([4.0, 0.0, 1e-38, -1.0], requires_grad=True)
    value = torch.tensor([1.0, 0.0, 1e-38, 1.0], requires_grad=True)
    root = sqrt_degree(degree)
    out = value / root / root
    out.sum().backward()
    assert out.tolist() == pytest.approx([0.25, 0, 1, 0])
    assert degree.grad.isfinite().all()
    assert value.grad.isfinite().all()


def test_widen_leaves_nothing_below_float32():
    kinds = {
        torch.bfloat16: torch.float32,
        torch.float32: torch.float32,
        torch.double: torch.double,
    }
    for dtype, wide in kinds.items():
        assert at_least_float32(torch.ones(1, dtype=dtype)).dtype == wide
