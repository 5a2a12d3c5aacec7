"""The paper's speed and scalability tables, and target speed-ups. No torch."""

from typing import NamedTuple

OURS = "GTPool-V"
EAGER, CAPTURED = f"{OURS} (eager)", f"{OURS} (captured)"
BASELINES = ("SAGPool_h", "TopKPool", "ASAP", "GMT")
REFERENCE = BASELINES[0]
"""Reference network of the comparisons."""
SPEED_DATASETS = ("PROTEINS", "IMDB-BINARY", "ogbg-molbbbp")
SIZINGS = ("similar parameters", "equal width")
SCALED_BASELINES = ("SAGPool_h", "ASAP", "GMT")
NODES = (500, 1000, 1200)
DENSITIES = (0.2, 0.4, 0.6, 0.8)
CAP_GB = 11.0
"""Memory of the paper's GPU."""

_SPEED = """
PROTEINS     SAGPool_h  26.62  31.82 1
PROTEINS     TopKPool   21.84  24.81 1.25
PROTEINS     ASAP      188.65 114.71 0.19
PROTEINS     GMT       105.46 126.44 0.25
PROTEINS     GTPool-V   24.11  20.54 1.31
IMDB-BINARY  SAGPool_h  20.85  20.95 1
IMDB-BINARY  TopKPool   26.32  25.84 0.80
IMDB-BINARY  ASAP      152.18  68.08 0.19
IMDB-BINARY  GMT        66.32  82.61 0.28
IMDB-BINARY  GTPool-V   28.37  16.56 0.93
ogbg-molbbbp SAGPool_h  13.94  16.86 1
ogbg-molbbbp TopKPool    9.66  14.36 1.28
ogbg-molbbbp ASAP      130.78  78.22 0.15
ogbg-molbbbp GMT        43.71 158.24 0.15
ogbg-molbbbp GTPool-V   23.84  14.98 0.79
"""
_SCALABILITY = """
500  SAGPool_h  19.63  23.29  28.50  34.50
500  ASAP      217.51 249.49      -      -
500  GMT        25.27  29.02  34.12  37.66
500  GTPool-V   30.31  31.74  33.22  34.21
1000 SAGPool_h  34.49  53.48  73.26  92.76
1000 ASAP           -      -      -      -
1000 GMT        42.30  63.72  90.87 115.31
1000 GTPool-V   41.92  47.07  52.16  57.08
1200 SAGPool_h  48.23  71.54      -      -
1200 ASAP           -      -      -      -
1200 GMT        49.47  86.18 124.05      -
1200 GTPool-V   48.03  57.10  63.57      -
"""


class Speed(NamedTuple):
    """A row of the paper's speed table, on an RTX 2080 Ti."""

    forward_ms: float
    backward_ms: float
    speedup: float


def models(device: str) -> tuple[str, ...]:
    """Return the networks of the speed table on a device, "cpu" or "cuda"."""
    return (*BASELINES, *_ours(device))


def scaled_models(device: str) -> tuple[str, ...]:
    """Return the networks of the scalability table on a device."""
    return (*SCALED_BASELINES, *_ours(device))


def paper_name(model: str) -> str:
    """Return the paper's name of a network; all variants of ours have the same name."""
    return OURS if model.startswith(OURS) else model


def speed_target(device: str, dataset: str, sizing: str) -> float | None:
    """Return the target speed-up over SAGPool_h; None if there is none."""
    if dataset not in SPEED_DATASETS:
        return None
    proteins = dataset == "PROTEINS"
    if device == "cuda":
        return (10.0 if proteins else 8.0) if sizing == SIZINGS[1] else None
    return 0.5 if sizing == SIZINGS[1] else (1.3 if proteins else 1.0)


def _ours(device: str) -> tuple[str, ...]:
    return (EAGER, CAPTURED) if device == "cuda" else (OURS,)


def _speed() -> dict[tuple[str, str], Speed]:
    lines = map(str.split, _SPEED.strip().splitlines())
    return {(name, model): Speed(*map(float, cells)) for name, model, *cells in lines}


def _scalability() -> dict[tuple[int, str, float], float | None]:
    return {
        (int(nodes), model, density): None if cell == "-" else float(cell)
        for nodes, model, *cells in map(str.split, _SCALABILITY.strip().splitlines())
        for density, cell in zip(DENSITIES, cells, strict=True)
    }


SPEED = _speed()
"""By dataset and network."""
SCALABILITY = _scalability()
"""Milliseconds by nodes, network and density; None: out of memory, on a card of 11 GB."""
