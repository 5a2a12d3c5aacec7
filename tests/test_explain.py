import pytest
import torch
from contract import CHANNELS, close, pack, ring

from gtpool import GTPool
from gtpool.explain import compare_samplers
from gtpool.ops.sample import SAMPLERS


@pytest.mark.parametrize("order", ["index", "score"])
@pytest.mark.parametrize("ratio", [0.5, 0.3, 4])
def test_each_sampler_keeps_what_a_layer_with_it_keeps(ratio, order):
    graph = pack([(13, [*ring(13), (0, 5), (5, 0)])], seed=0)
    torch.manual_seed(0)
    pool = GTPool(CHANNELS, ratio, order=order).double()
    compared = compare_samplers(pool, graph.x, graph.edge_index)
    assert list(compared.kept) == list(SAMPLERS)
    for sampler, kept in compared.kept.items():
        twin = GTPool(CHANNELS, ratio, order=order, sampler=sampler).double()
        twin.load_state_dict(pool.state_dict())
        out = twin(graph.x, graph.edge_index)
        assert kept == out.perm.tolist()
        close(compared.share[kept], out.score.detach())
    assert len({tuple(kept) for kept in compared.kept.values()}) > 1


def test_comparison_shows_the_scores_without_gradients():
    graph = pack([(7, ring(7))], seed=1)
    pool = GTPool(CHANNELS, gate="tanh").double()
    compared = compare_samplers(pool, graph.x, graph.edge_index)
    for shown, scored in zip(compared.scores, pool.scores(graph.x, graph.edge_index), strict=True):
        close(shown, scored.detach())
        assert not shown.requires_grad
    close(compared.share, compared.scores.score.softmax(0))
    highest = compared.scores.score.topk(4).indices.sort().values
    assert compared.kept["topk"] == highest.tolist()
