"""EdgePool against PyG's rule, written out edge by edge, and against PyG's layer."""

import pytest
import torch
from contract import CHANNELS, Graphs, drawn, pack, ragged, ring, sample_batch
from hypothesis import assume, given
from partition_laws import PARTITION_LAWS, same_as_twin
from torch_geometric.nn import EdgePooling

from gtpool.ops.sample import round_scores
from gtpool.pool.edgepool import EdgePool


def sizeless(in_channels, size, **options):
    """Make the layer, which has no size."""
    del size
    return EdgePool(in_channels, **options)


def weightable(in_channels, size, *, weighted=False):
    return sizeless(in_channels, size, weighted=weighted)


@pytest.mark.parametrize("law", PARTITION_LAWS)
def test_law(law):
    PARTITION_LAWS[law](weightable)


def scores(pool: EdgePool, graphs: Graphs) -> list[torch.Tensor]:
    """Give the score of each edge: a softmax over the edges that enter its target."""
    edges = graphs.edge_index.T.tolist()
    found = []
    for source, target in edges:
        entering = [graphs.x[s] @ pool.score.weight[0] for s, t in edges if t == target]
        share = (graphs.x[source] @ pool.score.weight[0]).exp() / torch.stack(entering).exp().sum()
        found.append(0.5 + share)
    return found


def naive(pool: EdgePool, graphs: Graphs) -> torch.Tensor:
    """Contract edge by edge."""
    edges, score = graphs.edge_index.T.tolist(), scores(pool, graphs)
    rounded = [float(round_scores(value)) for value in score]
    free = {node: graphs.x[node] for node in range(len(graphs.x))}
    pooled = {}
    for edge in sorted(range(len(edges)), key=lambda e: (-rounded[e], e)):
        source, target = edges[edge]
        if source != target and source in free and target in free:
            pooled[min(source, target)] = score[edge] * (free.pop(source) + free.pop(target))
    pooled |= free
    return torch.stack([pooled[node] for node in sorted(pooled)])


@drawn
@given(ragged())
def test_it_gives_what_the_sequential_rule_gives(graphs):
    torch.manual_seed(0)
    pool = EdgePool(CHANNELS).double()
    graphs.x.requires_grad_()
    assume((graphs.edge_index[0] != graphs.edge_index[1]).any())
    same_as_twin(pool, graphs, naive(pool, graphs))


def test_it_gives_what_pyg_gives_without_the_parts_that_cancel():
    pool, graphs = EdgePool(CHANNELS).double(), sample_batch()
    theirs = EdgePooling(CHANNELS).double()
    with torch.no_grad():
        theirs.lin.weight[:, :CHANNELS] = pool.score.weight
    x, edges, batch, info = theirs(graphs.x, graphs.edge_index, graphs.batch)
    out = pool(*graphs)
    assert len(x) == len(out.x)
    torch.testing.assert_close(out.x[out.assign], x[info.cluster])
    between = edges[:, edges[0] != edges[1]]
    assert between.size(1) == out.edge_index.size(1)
    assert batch.bincount().tolist() == out.batch.bincount().tolist()


def test_the_paths_of_two_nodes_become_one_and_lone_nodes_stay_as_they_are():
    pool = EdgePool(1).double()
    x = torch.tensor([[1.0], [2.0], [5.0]], dtype=torch.double)
    out = pool(x, torch.tensor([[0, 1, 2], [1, 0, 2]]))
    assert out.x.flatten().tolist() == [1.5 * 3.0, 5.0]
    assert out.assign.tolist() == [0, 0, 1]
    assert out.edge_index.size(1) == 0


def test_a_ring_of_equal_nodes_depends_on_the_order_of_its_edges():
    ones = pack([(6, ring(6))], seed=0)
    pool, x = EdgePool(CHANNELS).double(), torch.ones_like(ones.x)
    other = torch.tensor([(0, 1), (3, 4), *ring(6)]).T
    counts = [len(pool(x, edges).x) for edges in (ones.edge_index, other)]
    assert counts[0] == 3
    assert "numbering" in EdgePool.__doc__
