"""Graphs made on the spot, the same for the same seed: for tests, benches and studies."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gtpool.data.dataset import GraphDataset
from gtpool.data.schema import Recipe, Schema
from gtpool.ops.segment import offsets, spread

BEADS = 4
LINKS = 3
SMALLEST_RING, LARGEST_RING = 16, 32


def erdos_renyi(
    num_graphs: int, num_nodes: int, density: float, seed: int = 0, *, channels: int = 32
) -> GraphDataset:
    """Join each pair of nodes with probability ``density``: the paper's study of scale.

    Features are noise and the two classes alternate: there is nothing to learn here.

    Args:
        num_graphs: How many graphs.
        num_nodes: Nodes of each.
        density: Share of the pairs of nodes that are joined, both directions listed.
        seed: Same seed, same graphs.
        channels: Columns of normal noise.

    Example:
        >>> data = erdos_renyi(2, 500, 0.2)
        >>> data.x.shape, bool(0.19 < data.edge_index.size(1) / (2 * 500 * 499) < 0.21)
        (torch.Size([1000, 32]), True)
    """
    if not 0 <= density <= 1:
        raise ValueError(f"density must be a share from 0 to 1, got {density}")
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
    """Rings with two red and two blue beads: do neighbouring beads alternate in colour?

    Graphs 2i and 2i + 1 are rings of one size, the beads in four equal distances of at least
    ``length``: red, red, blue, blue around the first ("paired"), red, blue, red, blue around the
    second ("alternating"). Nodes are numbered at random; x says plain, red or blue.

    As long as no node sees two beads, that is within a radius below ``length / 2``, both rings hold
    the same neighbourhoods, each equally often. So whatever is computed from neighbourhoods of that
    radius, as by a stack of so many convolutions, and then from the bag of them, by any read-out,
    has the same result for both: chance. That includes attention over the nodes without positions,
    which sees the same bag. What tells them apart must see from bead to bead: more convolutions, or
    a coarsening that brings beads closer.

    Args:
        num_graphs: How many graphs, an even number.
        seed: Same seed, same graphs.
        length: Least distance of two beads; the largest is twice that.

    Example:
        >>> data = long_range(4, length=8)
        >>> data.sizes.tolist()[0] == data.sizes.tolist()[1], data.y.tolist()
        (True, [0, 1, 0, 1])
    """
    if num_graphs % 2 or length < 1:
        raise ValueError(f"graphs come in pairs, so not {num_graphs}; length is at least 1")
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
    """Rings with a tail: the ring scores high and says nothing, the tail's end holds the class.

    The first column of x is the score to sample by: 1 on the ring, 0 on the tail. The others say
    whether a node is plain, red or blue. The ring of 16 to 32 nodes is plain, so are the first
    three of the tail; the rest of the tail, half as many nodes as the ring, is all red or all blue,
    which is the class.

    Top-k at a ratio of 0.5 or less keeps ring nodes alone, and those are more than three steps away
    from any colour: three convolutions before the pooling change nothing. A wheel gives
    the coloured nodes, which are numbered one after another, 14 % of its turn, more than the step
    between two points at a ratio of 0.25 or more, so a point falls among them in every graph,
    whether the wheel is laid by number or by score.

    It compares samplers for given scores: a scorer that learns could turn the first column round.

    Args:
        num_graphs: How many graphs; classes alternate.
        seed: Same seed, same graphs.

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
    # The tail is numbered in one piece, somewhere among the ring.
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
    """List each edge and its way back, one after the other, int32 [2, 2E]."""
    return torch.stack([edge_index, edge_index.flip(0)], 2).flatten(1).int()


def _places(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Give the graph of each node and its place in that graph, [N] each."""
    batch = torch.arange(sizes.numel()).repeat_interleave(sizes)
    return batch, torch.arange(batch.numel()) - spread(offsets(sizes)[:-1], batch)


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
    """Join each place of a graph to a partner's place, and give the places their node numbers."""
    first = offsets(sizes)[:-1].repeat_interleave(sizes)
    numbered = torch.empty_like(x).index_copy_(0, number + first, x)
    edge_index = _both_ways(torch.stack([number, number[partner + first]]))
    schema = Schema(name, "classes", targets, Recipe("given"))
    return GraphDataset(numbered, edge_index, None, sizes, 2 * sizes, y, schema)
