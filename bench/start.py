"""Time `gtpool --help` beside a Python that does nothing, each a new process."""

import subprocess
import sys
from pathlib import Path

from gtpool.bench.timing import measure, print_table, record


def main() -> None:
    """Measure, print a table, append the rows to results/bench/start.jsonl."""
    program = Path(sys.executable).parent / "gtpool"
    taken = measure(
        {
            "python -c pass": lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
            "gtpool --help": lambda: subprocess.run(
                [program, "--help"], check=True, stdout=subprocess.DEVNULL
            ),
        },
        seconds=3.0,
    )
    rows: list[dict[str, object]] = [
        {"command": name, "ms": round(1e3 * seconds, 1)} for name, seconds in taken.items()
    ]
    print_table(["command", "ms"], [list(row.values()) for row in rows])
    record("start", rows)


if __name__ == "__main__":
    main()
