"""RWS in PyG's own TopKPooling: the same scores, another choice of nodes.

    python examples/rws_in_topk.py

One line turns PyG's top-k layer into one with the roulette wheel. Both layers score the atoms of
MUTAG alike here, so what differs is how far the kept ones spread over a molecule.
"""

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv, TopKPooling

from gtpool import SelectRWS, load


def main() -> None:
    """Pool every graph by both and print what share of its atoms is kept or next to a kept one."""
    torch.manual_seed(0)
    conv, topk, wheel = GCNConv(7, 16), TopKPooling(16, ratio=0.3), TopKPooling(16, ratio=0.3)
    wheel.select = SelectRWS(16, ratio=0.3)  # the one line
    wheel.select.load_state_dict(topk.select.state_dict())  # the same scores for both

    graphs = load("MUTAG").to_pyg()
    for name, pool in {"top-k": topk, "RWS": wheel}.items():
        count, share = 0, 0.0
        for graph in graphs:
            x = conv(graph.x, graph.edge_index).relu()
            _, _, _, _, kept, _ = pool(x, graph.edge_index)
            count, share = count + len(kept), share + seen(graph.edge_index, kept, len(x))
        print(f"{name}: {count} atoms kept, {share / len(graphs):.1%} kept or next to one")


def seen(edge_index: Tensor, kept: Tensor, nodes: int) -> float:
    """Give the share of nodes that are kept or next to a kept one."""
    source, target = edge_index
    near = torch.cat([kept, target[torch.isin(source, kept)]])
    return len(near.unique()) / nodes


if __name__ == "__main__":
    main()
