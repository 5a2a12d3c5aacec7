"""Cross-validate two methods on a table of molecules of your own, and compare them.

    python examples/own_csv.py mine.csv

The table needs a column of SMILES, named so, and one column of classes.
"""

import sys
import tempfile
from pathlib import Path

import gtpool
from gtpool.report.result_tables import methods_table


def compare(table: Path, folder: Path, epochs: int = 30) -> str:
    """Run both methods on three folds; runs that are in the folder are not done again."""
    rows = {}
    for method in ("gtpool-v", "gin"):
        options = {
            "split": {"folds": 3},
            "model": {"pool": method, "width": 32},
            "train": {"epochs": epochs, "warmup": 5, "lr": 2e-3},
        }
        rows[method] = gtpool.cross_validate(table, options, folder=folder).runs
    return methods_table(rows).terminal()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(compare(Path(sys.argv[1]), Path(scratch)))
