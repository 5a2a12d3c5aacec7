"""Time our samplers beside PyG's top-k: many small graphs, and one large graph."""

from functools import partial

import torch
from torch_geometric.nn.pool.select.topk import topk as pyg_topk

from gtpool.bench.timing import measure, print_table, record
from gtpool.ops.sample import rws, rwsv, topk

CASES = {"128 graphs of 40": [40] * 128, "1 graph of 1,000,000": [1_000_000]}
OURS = {
    "topk": topk,
    "rws": rws,
    "rwsv": rwsv,
    "rws, score order": partial(rws, order="score"),
}
RATIO = 0.5
SECONDS = 0.5


def main() -> None:
    """Measure every case, print one table, append its rows to results/bench/sample.jsonl."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for case, counts in CASES.items():
        sizes = torch.tensor(counts)
        batch = torch.arange(sizes.numel()).repeat_interleave(sizes).to(device)
        score = torch.randn(batch.numel(), generator=torch.Generator().manual_seed(0)).to(device)
        candidates = {"PyG topk": partial(pyg_topk, score, RATIO, batch)}
        for name, sampler in OURS.items():
            candidates[name] = partial(sampler, score, batch, RATIO)
            candidates[f"{name}, sizes given"] = partial(sampler, score, batch, RATIO, sizes=sizes)
        taken = measure(candidates, seconds=SECONDS)
        rows += [
            {
                "case": case,
                "sampler": name,
                "ratio": RATIO,
                "ms": round(1e3 * seconds, 4),
                "times_faster_than_pyg_topk": round(taken["PyG topk"] / seconds, 2),
            }
            for name, seconds in taken.items()
        ]
    print_table(
        ["sampler", "case", "ms", "PyG topk / this"],
        [
            [row["sampler"], row["case"], row["ms"], row["times_faster_than_pyg_topk"]]
            for row in rows
        ],
    )
    record("sample", rows)


if __name__ == "__main__":
    main()
