"""The page of poolers: facts of each, and pictures with a panel of each."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import networkx as nx
import pytest
import torch

from gtpool.pool import POOLS

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import pooler_tables  # noqa: E402 - from the folder above


def test_every_pooler_has_facts_and_only_poolers_have():
    missing = sorted(set(POOLS) - set(pooler_tables.FACTS))
    assert not missing, f"add a line of Facts for {missing} to FACTS in docs/pooler_tables.py"
    assert set(pooler_tables.FACTS) <= set(POOLS)


def test_a_pooler_without_facts_is_named_with_what_to_add():
    with pytest.raises(ValueError, match=r"no facts of 'new': add FACTS\['new'\] = Facts\(learns"):
        pooler_tables.facts("new")


@pytest.mark.parametrize(
    "pool", [name for name, said in pooler_tables.FACTS.items() if said.connected[:3] == "yes"]
)
def test_a_connected_graph_stays_connected_where_the_table_says_so(pool):
    path = torch.stack([torch.arange(19), torch.arange(1, 20)])
    both = torch.cat([path, path.flip(0)], 1)
    torch.manual_seed(0)
    out = pooler_tables.make(pool, 8, 0.5, 4)(torch.randn(20, 8), both)
    graph = nx.Graph(out.edge_index.T.tolist())
    graph.add_nodes_from(range(len(out.x)))
    assert nx.is_connected(graph)


@pytest.mark.parametrize("name", ["molecule", "protein"])
def test_a_picture_has_a_panel_for_each_pooler(name):
    root = ET.parse(DOCS / f"pooled-{name}.svg").getroot()  # noqa: S314 - our own
    texts = [part.text for part in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[1:] == list(POOLS)
    assert root[0].tag.endswith("title")
