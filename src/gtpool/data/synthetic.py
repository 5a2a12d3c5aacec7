"""Generated datasets for tests, benchmarks and studies; a seed always gives the same graphs."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gtpool.data.dataset import GraphDataset
from gtpool.data.schema import Recipe, Schema
from gtpool.ops.segment import gather_by_graph, offsets

BEADS = 4
LINKS = 3
SMALLEST_RING, LARGEST_RING = 16, 32


def erdos_renyi(
    num_graphs: int, num_nodes: int, density: float, seed: int = 0, *, channels: int = 32
) -> GraphDataset:
    """Return Erdős–Rényi graphs, as in the paper's scalability study.

    Features are noise and the two classes alternate, so there is nothing to learn.

    Args:
        num_graphs: Number of graphs.
        num_nodes: Nodes per graph.
        density: Probability of an edge between two nodes; both directions are listed.
        seed: Random seed.
        channels: Number of node features, standard normal noise.

    Example:
        >>> data = erdos_renyi(2, 500, 0.2)
        >>> data.x.shape, bool(0.19 < data.edge_index.size(1) / (2 * 500 * 499) < 0.21)
        (torch.Size([1000, 32]), True)
    """
    if not 0 <= density <= 1:
        raise ValueError(f"density must be from 0 to 1, got {density}")
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.triu_indices(num_nodes, num_nodes, 1, dtype=torch.int)  # [2, P]
    joined = torch.rand(num_graphs, pairs.size(1), generator=generator) < density
    edge_index = _both_ways(pairs[:, joined.nonzero()[:, 1]])
    x = torch.randn(num_graphs * num_nodes, channels, generator=generator)
    sizes = torch.full((num_graphs,), num_nodes)
    name = f"Erdős–Rényi {num_nodes} nodes, density {density}"
    recipe = Recipe("given", attributes=channels)
    return GraphDataset(
        x,
        edge_index,
        None,
        sizes,
        2 * joined.sum(1),
        torch.arange(num_graphs) % 2,
        Schema(name, "classes", ("even", "odd"), recipe),
    )


def long_range(num_graphs: int, seed: int = 0, *, length: int = 16) -> GraphDataset:
    """Return rings with two red and two blue beads, classified by the order of the colours.

    Graphs 2i and 2i + 1 are rings of one size with four equally spaced beads: red, red, blue, blue
    around the first ("paired"), red, blue, red, blue around the second ("alternating"). Node
    indices are random; x is the one-hot colour: plain, red or blue.

    Within a radius below ``length / 2`` no node sees two beads, and both rings have the same
    multiset of neighbourhoods. A network of fewer convolutions with any read-out, or with attention
    without positions, therefore gives both the same output. To tell them apart, a network needs
    more convolutions, or a coarsening that brings beads closer.

    Args:
        num_graphs: Number of graphs, even.
        seed: Random seed.
        length: Minimum distance of two beads; the maximum is twice that.

    Example:
        >>> data = long_range(4, length=8)
        >>> data.sizes.tolist()[0] == data.sizes.tolist()[1], data.y.tolist()
        (True, [0, 1, 0, 1])
    """
    if num_graphs % 2 or length < 1:
        raise ValueError(
            f"num_graphs must be even and length at least 1, got {num_graphs} and {length}"
        )
    generator = torch.Generator().manual_seed(seed)
    gap = torch.randint(length, 2 * length + 1, (num_graphs // 2,), generator=generator)
    gap = gap.repeat_interleave(2)
    y = torch.arange(num_graphs) % 2
    sizes = BEADS * gap
    batch, place = _places(sizes)
    bead = place // gap[batch]
    blue = torch.where(y[batch] == 1, bead % 2, bead // 2)
    colour = torch.where(place % gap[batch] == 0, 1 + blue, 0)
    shuffled = torch.rand(batch.numel(), generator=generator, dtype=torch.double) + batch
    return _rings(
        "long-range",
        ("paired", "alternating"),
        sizes,
        x=one_hot(colour, 3).float(),
        partner=(place + 1) % sizes[batch],
        number=shuffled.argsort() - offsets(sizes)[batch],
        y=y,
    )


def low_scores_matter(num_graphs: int, seed: int = 0) -> GraphDataset:
    """Return rings with a tail whose low-scored end determines the class.

    The first column of x is the score to sample by: 1 on the ring, 0 on the tail. The others are
    the one-hot colour: plain, red or blue. The ring of 16 to 32 nodes and the first three nodes of
    the tail are plain. The rest of the tail, half as many nodes as the ring, is all red or all
    blue, which is the class.

    Top-k at a ratio of 0.5 or less keeps ring nodes only. These are more than three edges away from
    any colour, so three convolutions before the pooling do not help. On a roulette wheel the
    coloured nodes have consecutive indices and 14 % of the circumference, more than the distance of
    two points at a ratio of 0.25 or more. So RWS keeps a coloured node of every graph, whether the
    wheel is ordered by index or by score.

    The dataset compares samplers for given scores; a learned scorer could invert the first column.

    Args:
        num_graphs: Number of graphs; classes alternate.
        seed: Random seed.

    Example:
        >>> data = low_scores_matter(4)
        >>> data.schema.targets, data.num_features
        (('red', 'blue'), 4)
    """
    generator = torch.Generator().manual_seed(seed)
    ring = torch.randint(SMALLEST_RING, LARGEST_RING + 1, (num_graphs,), generator=generator)
    tail = LINKS + ring // 2
    start = (torch.rand(num_graphs, generator=generator) * (ring + 1)).long()  # of the tail
    y = torch.arange(num_graphs) % 2
    sizes = ring + tail
    batch, place = _places(sizes)  # around the ring, then along the tail
    along = place - ring[batch]
    colour = torch.where(along >= LINKS, 1 + y[batch], 0)
    score = (along < 0).float()
    # The tail has consecutive indices, at a random position among those of the ring.
    number = torch.where(
        along < 0, place + tail[batch] * (place >= start[batch]), along + start[batch]
    )
    partner = torch.where(along < 0, (place + 1) % ring[batch], place - 1)
    return _rings(
        "low-scores",
        ("red", "blue"),
        sizes,
        x=torch.cat([score[:, None], one_hot(colour, 3).float()], 1),
        partner=partner,
        number=number,
        y=y,
    )


def _both_ways(edge_index: Tensor) -> Tensor:
    """Return each edge followed by its reverse, int32 [2, 2E]."""
    return torch.stack([edge_index, edge_index.flip(0)], 2).flatten(1).int()


def _places(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the graph of each node and its position in that graph, [N] each."""
    batch = torch.arange(sizes.numel()).repeat_interleave(sizes)
    return batch, torch.arange(batch.numel()) - gather_by_graph(offsets(sizes)[:-1], batch)


def _rings(
    name: str,
    targets: tuple[str, ...],
    sizes: Tensor,
    *,
    x: Tensor,
    partner: Tensor,
    number: Tensor,
    y: Tensor,
) -> GraphDataset:
    """Return graphs with an edge from each position to its partner, and node indices ``number``."""
    first = offsets(sizes)[:-1].repeat_interleave(sizes)
    numbered = torch.empty_like(x).index_copy_(0, number + first, x)
    edge_index = _both_ways(torch.stack([number, number[partner + first]]))
    schema = Schema(name, "classes", targets, Recipe("given"))
    return GraphDataset(numbered, edge_index, None, sizes, 2 * sizes, y, schema)
