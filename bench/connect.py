"""Count the edges that are left after each pooling step, by ``connect``, on molecules.

Networks have the paper's settings (three levels, ratio 0.5) and are not trained: seeds 0 to 4,
width 32, ``ogb-gcn`` for coded bonds, else ``gcn``.
"""

import os
from statistics import fmean
from typing import get_args

import torch

from gtpool.bench.timing import print_table, record
from gtpool.data.sources import load
from gtpool.explain import connectivity
from gtpool.model.classifier import Classifier
from gtpool.spec import Connect, ModelSpec
from gtpool.study.inputs import shape_of

SETS = ("MUTAG", "ogbg-molbbbp") if "GTPOOL_DATA" in os.environ else ("MUTAG",)
POOLS = ("gtpool-v", "sagpool")
CONNECTS: tuple[Connect, ...] = get_args(Connect)
SEEDS = range(5)


def main() -> None:
    """Count, print a table, append the rows to results/bench/connect.jsonl."""
    rows = [_count(name, pool, by) for name in SETS for pool in POOLS for by in CONNECTS]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    record("connect", rows)


def _count(name: str, pool: str, connect: Connect) -> dict[str, object]:
    data = load(name)
    shape = shape_of(data)
    conv = "ogb-gcn" if shape.edge_categories else "gcn"
    runs = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        spec = ModelSpec(pool=pool, conv=conv, connect=connect, width=32)
        runs.append(connectivity(Classifier(spec, shape), data))
    levels = list(zip(*runs, strict=True))[1:]
    isolated = {
        f"isolated_{step}": round(fmean(100 * level.isolated for level in found), 1)
        for step, found in enumerate(levels, 1)
    }
    pairs = {
        f"pairs_{step}": round(fmean(level.pairs for level in found) / len(data), 1)
        for step, found in enumerate(levels, 1)
    }
    inputs = round(runs[0][0].pairs / len(data), 1)
    place = {"dataset": name, "pool": pool, "connect": connect, "seeds": len(SEEDS)}
    return {**place, "pairs_0": inputs, **pairs, **isolated}


if __name__ == "__main__":
    main()
