"""Run the code cells of notebooks without Jupyter: ``python run_notebook.py own_csv.ipynb``."""

import json
import sys
from pathlib import Path


def run(notebook: Path) -> None:
    """Execute the code cells one after another; an error names its cell."""
    names = {"__name__": "__main__"}
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec")
            exec(code, names)  # noqa: S102 - our own notebooks


if __name__ == "__main__":
    for path in sys.argv[1:]:
        run(Path(path))
