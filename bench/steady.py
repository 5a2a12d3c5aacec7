"""Do the runs of the soak in one process that nobody kills: its memory must come to rest.

The workers of the soak do not live long enough to show it. Needs Linux's /proc.
"""

import os
from statistics import linear_regression

import proc
import torch
from soak import batch_of

from gtpool.bench.timing import print_table, record
from gtpool.study.run_one import run_one

BATCHES, EVERY = 3, 40


def main() -> None:
    """Run, print a table, append a row to results/bench/steady.jsonl."""
    os.environ.pop("GTPOOL_DATA", None)  # the embedded set will do
    torch.set_num_threads(1)
    specs = [spec for batch in range(BATCHES) for spec in batch_of(batch)]
    seen: list[tuple[int, proc.Seen]] = []
    for number, spec in enumerate(specs, 1):
        run_one(spec, device="cpu")
        if number % EVERY == 0:
            seen.append((number, proc.look(os.getpid())))
    sizes = [(number, look.megabytes) for number, look in seen]
    later = sizes[len(sizes) * 2 // 3 :]
    row = {
        "runs": len(specs),
        "mb": {number: round(size, 1) for number, size in sizes[::5]},
        "last_third_mb_a_run": round(linear_regression(*zip(*later, strict=True)).slope, 4),
        "files": sorted({look.files for _, look in seen}),
    }
    print_table(["steady", "value"], row.items())
    record("steady", [row])


if __name__ == "__main__":
    main()
