"""Benchmark tables for the terminal and for docs/performance.md. No torch."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from gtpool.bench.paper_speed import (
    CAP_GB,
    DENSITIES,
    EAGER,
    NODES,
    OURS,
    SCALABILITY,
    SIZINGS,
    SPEED,
    SPEED_DATASETS,
    models,
    paper_name,
    scaled_models,
    speed_target,
)

Row = dict[str, Any]
MISSING = "missing"


class BenchTable(NamedTuple):
    """A table and its source rows."""

    title: str
    headings: tuple[str, ...]
    lines: list[list[str]]
    rows: list[Row]


def device_name(row: Row) -> str:
    """Return the machine of a row: the GPU, or the CPU and its threads."""
    if row["device"] == "cuda":
        return row["gpu"]
    threads = "one thread" if row["threads"] == 1 else f"{row['threads']} threads"
    return f"{row['cpu']}, {threads}"


def evidence(rows: Sequence[Row]) -> str:
    """Return machine, versions and date of rows."""
    if not rows:
        return "Not measured yet."
    versions = (
        f"Python {row['python']}, torch {row['torch']}, PyG {row['torch_geometric']}"
        for row in rows
    )
    parts = (
        map(device_name, rows),
        versions,
        (f"commit {row['commit']}" for row in rows),
        (row["date"][:10] for row in rows),
    )
    return "; ".join(", ".join(dict.fromkeys(part)) for part in parts) + "."


def newest_rows(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], Row]:
    """Return the last row of each combination of keys."""
    ordered = sorted(rows, key=lambda row: row["date"])
    return {tuple(row.get(key) for key in keys): row for row in ordered}


def speed_tables(rows: Iterable[Row], *, full: bool = False) -> list[BenchTable]:
    """Return one table per machine and sizing; ``full`` includes missing entries."""
    headings = ("dataset", "network", "width", "parameters", "forward, ms", "backward, ms")
    headings += ("speed-up", "published", "target")
    sheets: list[BenchTable] = []
    for device, machine, mine in _machines(rows, full=full):
        for sizing in SIZINGS:
            found = newest_rows(_where(mine, "sizing", sizing), "dataset", "model")
            cases = [(name, model) for name in SPEED_DATASETS for model in models(device)]
            lines = [
                _speed_line(device, sizing, case, found.get(case))
                for case in (cases if full else found)
            ]
            if lines:
                title = f"{sizing.capitalize()}: {machine}"
                sheets.append(BenchTable(title, headings, lines, list(found.values())))
    return sheets


def step_tables(rows: Iterable[Row], *, full: bool = False) -> list[BenchTable]:
    """Return one table per machine of training steps at equal width."""
    headings = ("dataset", "network", "width", "parameters", "step, ms", "speed-up", "target")
    sheets: list[BenchTable] = []
    for device, machine, mine in _machines(rows, full=full):
        found = newest_rows(mine, "dataset", "model")
        cases = [(name, model) for name in SPEED_DATASETS for model in models(device)]
        lines = [_step_line(device, case, found.get(case)) for case in (cases if full else found)]
        title = f"Training step: {machine}"
        sheets.append(BenchTable(title, headings, lines, list(found.values())))
    return sheets


def scalability_tables(rows: Iterable[Row], *, full: bool = False) -> list[BenchTable]:
    """Return one table per machine and memory cap: nodes and networks by density."""
    sheets: list[BenchTable] = []
    for device, machine, mine in _machines(rows, full=full):
        caps = (None, CAP_GB) if device == "cuda" else (None,)
        for cap in caps:
            some = _where(mine, "cap_gb", cap)
            found = newest_rows(some, "nodes", "model", "density")
            densities = DENSITIES if full else tuple(dict.fromkeys(row["density"] for row in some))
            cases = [(nodes, model) for nodes in NODES for model in scaled_models(device)]
            if not full:
                cases = list(dict.fromkeys((row["nodes"], row["model"]) for row in some))
            lines = [_scale_line(*case, densities, found) for case in cases]
            if lines:
                headings = ("nodes", "network", *(f"{density:.0%}" for density in densities))
                title = f"Scalability: {machine}" + ("" if cap is None else f", {cap:g} GB")
                headings += ("published, ms",)
                sheets.append(BenchTable(title, headings, lines, list(found.values())))
    return sheets


def roofline_tables(rows: Iterable[Row], *, full: bool = False) -> list[BenchTable]:
    """Return one table per machine: the lower bound of a training step, and the other costs."""
    sheets: list[BenchTable] = []
    for device, machine, mine in _machines(rows, full=full):
        found = newest_rows(_where(mine, "dataset", SPEED_DATASETS[0]) if full else mine, "model")
        ours = [(model,) for model in models(device) if paper_name(model) == OURS]
        cases = ours if full else list(found)
        cells = [_roofline_cells(found.get(case)) for case in cases]
        names = _ROOFLINE if device == "cuda" else _ROOFLINE[:-1]
        lines = [[name, *parts] for name, *parts in zip(names, *cells, strict=False)]
        headings = ("", *(str(case[0]) for case in cases))
        sheets.append(BenchTable(f"Roofline: {machine}", headings, lines, list(found.values())))
    return sheets


BENCH_TABLES: dict[str, Callable[..., list[BenchTable]]] = {
    "speed": speed_tables,
    "step": step_tables,
    "scalability": scalability_tables,
    "roofline": roofline_tables,
}
_ROOFLINE = (
    "operations",
    "bytes moved",
    "rate of a matrix product",
    "bandwidth of a copy",
    "operations alone",
    "bytes alone",
    "floor",
    "measured step",
    "step / floor",
    "kernels or operators run",
    "the longest of them",
    "their time in sum",
)


def _machines(rows: Iterable[Row], *, full: bool) -> list[tuple[str, str, list[Row]]]:
    """Return rows by machine; ``full`` includes kinds of devices without rows."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["device"]):
        groups.setdefault((row["device"], device_name(row)), []).append(row)
    if full:
        for device, name in (("cpu", "a CPU"), ("cuda", "a GPU")):
            if all(kind != device for kind, _ in groups):
                groups[device, name] = []
    return [(*key, group) for key, group in groups.items()]


def _where(rows: Iterable[Row], key: str, value: object) -> list[Row]:
    return [row for row in rows if row.get(key) == value]


def _speed_line(device: str, sizing: str, case: tuple[Any, ...], row: Row | None) -> list[str]:
    dataset, model = case
    published = SPEED.get((dataset, paper_name(model)))
    told = "–" if published is None else f"{published.speedup:.2f}×"
    aim = _target(device, dataset, model, sizing)
    if row is None or MISSING in row:
        why = MISSING if row is None else str(row[MISSING])
        return [dataset, model, "–", "–", why, "–", "–", told, aim]
    size = [str(row["width"]), f"{row['parameters']:,}"]
    if "step_ms" in row:
        times = ["–", f"{_mean_std(row, 'step')} (whole step)"]
    else:
        times = [_mean_std(row, "forward"), _mean_std(row, "backward")]
    return [dataset, model, *size, *times, f"{row['speedup']:.2f}×", told, aim]


def _step_line(device: str, case: tuple[Any, ...], row: Row | None) -> list[str]:
    dataset, model = case
    aim = _target(device, dataset, model, SIZINGS[1])
    if row is None or MISSING in row:
        why = MISSING if row is None else str(row[MISSING])
        return [dataset, model, "–", "–", why, "–", aim]
    size = [str(row["width"]), f"{row['parameters']:,}"]
    return [dataset, model, *size, _mean_std(row, "step"), f"{row['speedup']:.2f}×", aim]


def _scale_line(
    nodes: int, model: str, densities: Sequence[float], found: dict[tuple[Any, ...], Row]
) -> list[str]:
    cells = [_scale_cell(found.get((nodes, model, density))) for density in densities]
    places = [(nodes, paper_name(model), density) for density in densities]
    told = [SCALABILITY[place] for place in places if place in SCALABILITY]
    words = " / ".join("OOM" if ms is None else f"{ms:.0f}" for ms in told)
    return [f"{nodes:,}", model, *cells, words or "–"]


def _scale_cell(row: Row | None) -> str:
    if row is None or MISSING in row:
        return MISSING if row is None else str(row[MISSING])
    peak = f", {row['peak_mb']:,.0f} MB" if "peak_mb" in row else ""
    return f"{row['total_ms']:,.1f} ms{peak}"


def _roofline_cells(row: Row | None) -> list[str]:
    if row is None or MISSING in row:
        return [MISSING if row is None else str(row[MISSING])] * len(_ROOFLINE)
    return [
        f"{row['operations'] / 1e9:.2f} G",
        f"{row['bytes'] / 1e6:.1f} MB",
        f"{row['gflops'] / 1e3:.2f} T/s",
        f"{row['gb_per_s']:,.0f} GB/s",
        f"{row['compute_ms']:.3f} ms",
        f"{row['memory_ms']:.3f} ms",
        f"{row['floor_ms']:.3f} ms",
        f"{row['step_ms']:.3f} ± {row['step_std']:.3f} ms",
        f"{row['step_ms'] / row['floor_ms']:.1f}",
        f"{row['kernels']}",
        ", ".join(f"{_kernel_name(name)} {ms:.2f} ms" for name, ms, _ in row["longest"][:3]),
        f"{row['kernels_ms']:.3f} ms",
    ]


def _target(device: str, dataset: str, model: str, sizing: str) -> str:
    if paper_name(model) != OURS or model == EAGER:
        return "–"
    aim = speed_target(device, dataset, sizing)
    return "–" if aim is None else f"{aim:g}×"


def _mean_std(row: Row, stage: str) -> str:
    return f"{row[f'{stage}_ms']:.2f} ± {row[f'{stage}_std']:.2f}"


def _kernel_name(name: str) -> str:
    """Return a readable name of a kernel."""
    return name.removeprefix("void ").split("(")[0].split("<")[0][:48]
