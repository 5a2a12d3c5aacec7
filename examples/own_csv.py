"""Cross-validate two methods on a table of molecules of your own, and compare them.

    python examples/own_csv.py mine.csv

The table needs a column of SMILES, named so, and one column of classes.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from gtpool.model import METHODS
from gtpool.report.table import methods_table
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study.inputs import lay_out
from gtpool.study.run import run_many
from gtpool.study.store import Store


def compare(table: Path, store: Store, epochs: int = 30) -> str:
    """Run both methods on three folds; rows that are in the store are not run again."""
    run = RunSpec(
        data=DataSpec(source=str(table)),
        split=SplitSpec(folds=3),
        train=TrainSpec(epochs=epochs, warmup=5, lr=2e-3),
    )
    rows = {}
    for method in ("gtpool-v", "gin"):
        model = ModelSpec.from_json({**METHODS[method].model, "width": 32})
        rows[method] = run_many(lay_out(replace(run, model=model)), store)
    return methods_table(rows).terminal()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(compare(Path(sys.argv[1]), Store(scratch)))
