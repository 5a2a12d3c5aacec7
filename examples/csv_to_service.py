"""From a CSV to a served model, and one question to it.

    python examples/csv_to_service.py mine.csv CCO

The table has a heading and two columns, SMILES and class. Needs the extra `serve`.
"""

import csv
import json
import re
import subprocess
import sys
import tempfile
from http.client import HTTPConnection
from pathlib import Path

from gtpool import GraphClassifier


def main(table: Path, smiles: str, folder: Path) -> None:
    """Train, save, serve, ask, print the answer, stop."""
    with table.open(newline="") as file:
        molecules, classes = zip(*list(csv.reader(file))[1:], strict=True)
    model = GraphClassifier(width=32, epochs=20, lr=2e-3).fit(list(molecules), list(classes))
    model.save(folder)

    command = ["gtpool", "serve", folder, "--port", "0"]  # 0: any port that is free
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
        try:
            print(ask(server.stdout.readline(), {"smiles": smiles}))
        finally:
            server.terminate()  # it finishes what is in flight


def ask(greeting: str, question: dict[str, str]) -> str:
    """Post a question to the address that the service greets with."""
    connection = HTTPConnection(re.search(r"http://(\S+)", greeting)[1])
    kind = {"Content-Type": "application/json"}
    connection.request("POST", "/predict", json.dumps(question), kind)
    return connection.getresponse().read().decode()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(sys.argv[1]), sys.argv[2], Path(scratch) / "model")
