"""Small datasets that hypothesis draws, and batches of fixed capacity made of them."""

import gzip
from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch_geometric.data import Data

from gtpool.data.dataset import GraphDataset
from gtpool.data.locate import EMBEDDED
from gtpool.data.molecule import read_molecules

BONDS = (3, 2)
"""Categories of each column of what ``bonded`` gives."""


@st.composite
def graphs(draw, width):
    """One graph: perhaps a single node, without edges, directed, with loops and repeated edges."""
    nodes = draw(st.integers(1, 7))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=12))
    if draw(st.booleans()):
        edges += [(target, source) for source, target in edges]
    ends = torch.tensor(edges, dtype=torch.long).view(-1, 2).T
    random = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    x = torch.randn(nodes, width, dtype=torch.float64, generator=random)
    return Data(x, ends, y=torch.tensor([draw(st.integers(0, 1))]))


@st.composite
def datasets(draw, width=3):
    """A few graphs of two classes, with float64 features."""
    return GraphDataset.from_pyg(draw(st.lists(graphs(width), min_size=2, max_size=6)))


@st.composite
def choices(draw, data, runs):
    """Which graphs each run takes, -1 where a place is empty; no run is without a graph."""
    places = draw(st.integers(1, 5))
    number = st.integers(-1, len(data) - 1)
    rows = draw(st.lists(st.lists(number, min_size=places, max_size=places), min_size=runs))
    index = torch.tensor(rows[:runs])
    index[:, 0] = index[:, 0].clamp(min=0)
    return index


@st.composite
def batches(draw, width=3):
    """A dataset, and which of its graphs one run takes, or each of three."""
    data = draw(datasets(width))
    return data, draw(choices(data, draw(st.sampled_from((1, 3)))))


def bonded(data, seed=0):
    """Give each edge codes of its own, so that none is the same both ways."""
    random = torch.Generator().manual_seed(seed)
    edges = data.edge_index.size(1)
    codes = [torch.randint(count, (edges,), generator=random) for count in BONDS]
    return replace(data, edge_attr=torch.stack(codes, 1).to(torch.uint8))


def molecules(count):
    """Read some molecules of B3DB, from all over it."""
    text = gzip.decompress((EMBEDDED / "B3DB/B3DB.tsv.gz").read_bytes()).decode()
    lines = text.splitlines()[1:]
    rows = [line.split("\t") for line in lines[:: len(lines) // count][:count]]
    y = torch.tensor([label == "BBB+" for _, label in rows]).long()
    read = read_molecules([smiles for smiles, _ in rows])
    return read.to_dataset(y, "molecules", "classes", ("BBB-", "BBB+"))


def wider(capacity, rows):
    """Make room for more rows, graphs and edges than are needed."""
    nodes = tuple(count + rows for count in capacity.nodes)
    return capacity._replace(nodes=nodes, edges=capacity.edges + rows)
