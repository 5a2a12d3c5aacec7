"""The tables of docs/scale.md and docs/serving.md, from results/bench/*.jsonl."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from figures import EVIDENCE

Row = dict[str, Any]
FAILURES = {
    "nothing": "nothing",
    "die": "1 % of the nodes die",
    "die_each_minute": "1 % of the nodes die every minute, back after five",
    "kill_units": "1 % of the nodes kill every unit after 1 s",
    "driver_dies": "the driver dies at half time, back after 30 s",
    "slow_driver": "nothing; the driver makes all keys at each look",
}


def predict() -> str:
    """Give `gtpool predict` on long tables, one line a length."""
    rows = _newest("predict", "molecules", "processes")
    return _table(
        (
            "molecules",
            "a CPU second",
            "seconds",
            "RDKit alone",
            "reading alone",
            "peak, MB",
            "load",
        ),
        (
            [
                f"{row['molecules']:,}",
                f"{row['per_cpu_second']:,}",
                row["seconds"],
                f"{row['rdkit_per_cpu_second']:,}",
                f"{row['read_per_cpu_second']:,}",
                f"{row['peak_mb']:,}",
                row["load"],
            ]
            for row in rows
        ),
    )


def mapped() -> str:
    """Give the training on a dataset larger than memory beside one that fits."""
    keys = ("data_mb", "own_mb", "graphs_a_second", "graphs_a_cpu_second", "faults", "load")
    heads = ("data, MB", "process, MB", "graphs/s", "a CPU second", "major faults", "load")
    return _table(
        ("page cache", "limit, MB", *heads),
        (
            [
                "holds the file" if row["limit_mb"] is None else "limited",
                row["limit_mb"] or "–",
                *(f"{row[key]:,}" for key in keys),
            ]
            for row in _newest("mapped", "case")
        ),
    )


def exponents() -> str:
    """Give how time and memory grow, one line a step."""
    found: dict[tuple[str, ...], dict[int, Row]] = {}
    for row in _newest("exponents", "device", "axis", "step", "size"):
        found.setdefault((row["device"], row["axis"], row["step"]), {})[row["size"]] = row
    sizes = sorted({size for rows in found.values() for size in rows})
    heads = ("device", "of", "step", *(f"{size:,}" for size in sizes), "exponents")
    lines: list[list[object]] = []
    for case, rows in found.items():
        last = rows[max(rows)]
        cells = (_time_memory(rows.get(size)) for size in sizes)
        fitted = (_known(last[f"{of}_exponent"]) for of in ("time", "memory"))
        lines.append([*case, *cells, " / ".join(fitted)])
    return _table(heads, lines)


def store() -> str:
    """Give what the driver and the store of a study take."""
    units = _newest("scale", "part", "executor", "rows")
    lines: list[list[object]] = []
    for row in units:
        if row["part"] == "store":
            lines += [
                [f"store a row beside {row['rows']:,}, read one, ms", row["put_ms"], row["get_ms"]],
                [f"read all {row['rows']:,} rows, s, MB", row["all_s"], row["all_mb"]],
            ]
        elif "driver_ms_a_unit" in row:
            name = f"driver with {row['executor']}, ms of its core a unit; units/s of two workers"
            lines.append([name, row["driver_ms_a_unit"], row["units_a_second"]])
    return _table(("what", "first", "second"), lines)


def failures() -> str:
    """Give the simulated studies on nodes that fail."""
    heads = ("what fails", "nodes lost", "begun again", "node hours lost", "99 %, s", "all, s")
    return _table(
        (*heads, "failed at first", "in the end", "stored twice", "lost"),
        (
            [
                FAILURES[row["failure"]],
                *(round(row[key]) for key in ("nodes_lost", "begun_again")),
                round(row["node_s_lost"] / 3600, 1),
                *(f"{row[key]:,.0f}" for key in ("most_s", "makespan_s")),
                *(
                    round(row[key])
                    for key in ("failed_at_first", "failed_in_the_end", "stored_twice", "lost")
                ),
            ]
            for row in _newest("simulate", "failure")
        ),
    )


def serve() -> str:
    """Give `gtpool serve` under load."""
    keys = ("per_second", "cpu_ms", "p50_ms", "p99_ms", "pass_graphs", "load")
    heads = ("requests/s", "CPU ms each", "p50, ms", "p99, ms", "graphs a pass", "load")
    return _table(
        ("batching", "clients", "beside", *heads),
        (
            [
                row["batching"],
                row["clients"],
                row["beside"] or "–",
                *(_known(row.get(key)) for key in keys),
            ]
            for row in _newest("serve", "batching", "clients", "beside")
            if "network" in row  # older rows are of another network
        ),
    )


def _newest(name: str, *keys: str) -> list[Row]:
    """Return the newest row of each case."""
    text = (EVIDENCE / f"bench/{name}.jsonl").read_text(encoding="utf-8")
    rows = map(json.loads, text.splitlines())
    return [*{tuple(row.get(key) for key in keys): row for row in rows}.values()]


def _time_memory(row: Row | None) -> str:
    return "–" if row is None else f"{row['seconds']:.2f} s, {row['mb']:.0f} MB"


def _known(value: object) -> str:
    return "–" if value is None else str(value)


def _table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    rows = [[*heads], ["---"] * len(heads), *([*map(str, line)] for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
