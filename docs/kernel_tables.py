"""Tables of the captured step and of products in Triton, from results/bench/*.jsonl."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from gtpool.bench.bench_tables import Row, evidence, newest_rows

RESULTS = Path(__file__).parent.parent / "results" / "bench"
BEFORE = "68b4cc6"
"""Commit of the rows before kernels were fused."""
CASES = (("paper", "float32"), ("best", "float32"), ("gcn", "float32"), ("paper", "tf32"))
"""Recipe and precision."""
RUNS = (1, 5, 30)


def steps(folder: Path = RESULTS) -> str:
    """Give the time of a captured step by runs side by side, one line a recipe and precision."""
    found = _rows(folder)[1]
    heads = ("recipe", "precision", "1 run, ms", "5 runs, ms", "30 runs, ms", "5 runs to 1")
    heads += ("1 run, to paper", "30 runs, to paper")
    lines: list[list[str]] = []
    for case in CASES:
        one, five, thirty = (found[*case, runs]["step_ms"] for runs in RUNS)
        usual = [found[*CASES[0], runs]["step_ms"] for runs in (1, 30)]
        ratios = (five / one, one / usual[0], thirty / usual[1])
        times = (f"{one:.3f}", f"{five:.3f}", f"{thirty:.3f}")
        lines.append([*case, *times, *(f"{ratio:.2f}" for ratio in ratios)])
    return f"{_table(heads, lines, 2)}\n\n{evidence(list(found.values()))}"


def before_and_after(folder: Path = RESULTS) -> str:
    """Give the captured step before and after kernels were fused."""
    before, after = _rows(folder)
    heads = ("recipe", "precision", "runs", "ms before", "ms after", "times as fast")
    heads += ("kernels before", "kernels after")
    lines: list[list[str]] = []
    for place, row in after.items():
        ms, taken, faster, kernels = row["step_ms"], "–", "–", "–"
        if place in before:
            old = before[place]["step_ms"]
            taken, faster, kernels = f"{old:.3f}", f"{old / ms:.2f}", before[place]["kernels"]
        cells = (*place, taken, f"{ms:.3f}", faster, kernels, row["kernels"])
        lines.append([*map(str, cells)])
    both = [*before.values(), *after.values()]
    return f"{_table(heads, lines, 2)}\n\n{evidence(both)}"


def parts(folder: Path = RESULTS) -> str:
    """Give the busy milliseconds of each kind of kernel before and after, in float32."""
    tables = _rows(folder, "parts")
    places = [(recipe, "float32", runs) for runs in (1, 30) for recipe in ("paper", "best")]
    heads = ["kind of kernel"]
    columns: list[dict[str, float]] = []
    for recipe, precision, runs in places:
        for when, rows in zip(("before", "after"), tables, strict=True):
            if (row := rows.get((recipe, precision, runs))) is None:
                continue
            heads.append(f"{recipe}, {runs} run{'s' * (runs > 1)}, {when}")
            columns.append({**row["parts"], "all": row["kernels_ms"]})
    lines = [
        [kind, *(f"{column[kind]:.3f}" for column in columns)] for kind in next(iter(columns), ())
    ]
    return _table(heads, lines, 1)


def products(folder: Path = RESULTS) -> str:
    """Give the rate of matrix products by cuBLAS in float32 and by Triton in TF32x3."""
    heads = ("product", "runs × rows × inputs × outputs", "cuBLAS, Tflop/s", "Triton, Tflop/s")
    heads += ("error of cuBLAS", "error of Triton")
    found: dict[tuple[str, str], list[Row]] = {}
    rows = _read(folder, "products")
    for row in rows:
        found.setdefault((row["product"], row["shape"]), []).append(row)
    lines: list[list[str]] = []
    for (product, shape), tried in found.items():
        (usual,) = (row for row in tried if row["by"] == "torch")
        ours = min((row for row in tried if row is not usual), key=lambda row: row["ms"])
        lines.append([product, shape.replace("x", "×"), str(usual["tera"]), str(ours["tera"])])
        lines[-1] += [f"{row['error']:.1e}" for row in (usual, ours)]
    return f"{_table(heads, lines, 2)}\n\n{evidence(rows)}"


def _rows(folder: Path, key: str = "step_ms") -> tuple[dict[tuple[str, str, int], Row], ...]:
    """Return the rows with a key before and after, by recipe, precision and runs, in order."""
    rows = [row for row in _read(folder, "kernels") if key in row]
    parts = ([row for row in rows if (row["commit"] == BEFORE) == early] for early in (True, False))
    tables = [newest_rows(part, "recipe", "precision", "runs") for part in parts]
    order = [(*case, runs) for case in CASES for runs in RUNS]
    return tuple({place: part[place] for place in order if place in part} for part in tables)


def _read(folder: Path, name: str) -> list[Row]:
    path = folder / f"{name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]], words: int) -> str:
    """Return a Markdown table whose first columns are words."""
    rule = ["---" if place < words else "--:" for place in range(len(heads))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *lines))
