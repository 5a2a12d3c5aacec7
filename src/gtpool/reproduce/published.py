"""Published values of the paper's tables as data. No torch."""

from typing import NamedTuple

DATASETS = (
    "MUTAG",
    "ENZYMES",
    "PROTEINS",
    "PTC_MR",
    "Synthie",
    "IMDB-BINARY",
    "IMDB-MULTI",
    "ogbg-molhiv",
    "ogbg-moltox21",
    "ogbg-moltoxcast",
    "ogbg-molbbbp",
)
"""The columns of table 1."""
STUDIED = ("PROTEINS", "IMDB-BINARY", "ogbg-molbbbp")
"""The columns of tables 2 and 3, and the curves of the figure."""
AUTHORS_RAN = ("ENZYMES", "PTC_MR", "Synthie")
"""Datasets on which the authors ran the baselines; other baseline values are from GMT's paper."""

_ACCURACY = """
gcn        69.50±1.78 43.52±1.12 73.24±0.73 55.72±1.64 58.61±1.62 73.26±0.46 50.39±0.41
gin        81.39±1.53 40.19±0.84 71.46±1.66 56.39±1.25 59.20±0.73 72.78±0.86 48.13±1.36
set2set    69.89±1.94 42.92±2.05 73.27±0.85 54.52±1.69 46.12±2.71 73.10±0.48 50.15±0.58
sortpool   71.94±3.55 36.17±2.58 73.17±0.88 52.62±2.11 50.18±1.77 72.12±1.12 48.18±0.63
diffpool   79.22±1.02 51.27±2.89 73.03±1.00 55.26±3.84 62.75±0.74 73.14±0.70 51.31±0.72
sagpool_g  76.78±2.12 36.30±2.51 72.02±1.08 54.38±1.96 51.17±1.71 72.16±0.88 49.47±0.56
sagpool_h  73.67±4.28 34.12±1.75 71.56±1.49 53.82±2.44 51.75±0.66 72.55±1.28 50.23±0.44
topkpool   67.61±3.36 29.77±2.74 70.48±1.01 55.59±2.43 50.64±0.47 71.74±0.95 48.59±0.72
mincutpool 79.17±1.64 25.33±1.47 74.72±0.48 54.68±2.45 52.61±1.44 72.65±0.75 51.04±0.70
structpool 79.50±1.75 55.60±1.94 75.16±0.86 55.72±1.41 55.67±0.92 72.06±0.64 50.23±0.53
asap       77.83±1.49 20.10±1.13 73.92±0.63 55.68±1.45 47.93±1.36 72.81±0.50 50.78±0.75
haarpool   66.11±1.50 -          -          -          -          73.29±0.34 49.98±0.57
gmt        83.44±1.33 37.38±1.52 75.09±0.59 55.41±1.30 52.65±0.09 73.48±0.76 50.66±0.82
gtpool     87.64±0.34 61.09±0.85 75.42±0.09 61.17±0.18 67.50±0.61 74.04±0.33 50.89±0.22
gtpool-v   88.15±0.45 61.31±0.81 75.68±0.06 60.91±0.09 68.08±0.75 74.23±0.44 51.49±0.18
"""
_ROC_AUC = """
gcn        76.81±1.01 75.04±0.80 60.63±0.51 65.47±1.83
gin        75.95±1.35 73.27±0.84 60.83±0.46 67.65±3.00
set2set    73.42±2.34 73.42±0.67 59.76±0.65 64.43±2.16
sortpool   71.82±1.63 69.54±0.75 58.69±1.71 65.98±1.70
diffpool   75.64±1.86 74.88±0.81 62.28±0.56 68.25±0.96
sagpool_g  74.56±1.69 71.10±1.06 59.88±0.79 65.16±1.93
sagpool_h  71.44±1.67 69.81±1.75 58.91±0.80 63.94±2.59
topkpool   72.27±0.91 69.39±2.02 58.42±0.91 65.19±2.30
mincutpool 75.37±2.05 75.11±0.69 62.48±1.33 65.97±1.13
structpool 75.85±1.81 75.43±0.79 62.17±0.61 67.01±2.65
asap       72.86±1.40 72.24±1.66 58.09±1.62 63.50±2.47
haarpool   -          -          -          66.11±0.82
gmt        77.56±1.25 77.30±0.59 65.44±0.58 68.31±1.62
gtpool     77.94±0.46 77.32±0.12 65.34±0.87 70.15±0.29
gtpool-v   78.36±0.35 77.45±0.56 65.18±1.12 70.68±0.33
"""

_SAMPLERS = """
sagpool_h      71.56±1.49 72.55±1.28 63.94±2.59
sagpool_h-rws  72.07±2.46 73.01±0.69 65.76±0.52
sagpool_h-rwsv 73.51±1.06 73.22±0.36 66.51±1.29
topkpool       70.48±1.01 71.74±0.95 65.19±2.30
topkpool-rws   71.42±1.55 72.66±0.81 65.40±0.87
topkpool-rwsv  72.04±1.44 73.35±0.67 66.24±1.75
asap           73.92±0.63 72.81±0.50 63.50±2.47
asap-rws       74.17±1.12 73.79±0.71 64.22±1.65
asap-rwsv      74.06±0.68 73.60±0.70 64.78±1.04
"""
_ABLATIONS = """
gtpool-v         75.68±0.06 74.23±0.44 70.68±0.33
no-local-score   73.03±0.70 73.38±0.28 69.47±0.56
no-global-score  75.40±0.27 73.58±0.29 70.33±0.44
gtpool-topk      73.70±1.44 73.20±0.42 67.15±0.69
"""
_SEP_G = """
sepg 85.56±1.09 - 76.42±0.39 - - 74.12±0.56 51.53±0.65
"""
_STATISTICS = """
MUTAG             188 17.93  19.79   2
ENZYMES           600 32.63 124.20   6
PROTEINS         1173 39.06  72.82   2
PTC_MR            344 14.30  14.69   2
Synthie           400 20.85  32.74   4
IMDB-BINARY      1000 19.77  96.53   2
IMDB-MULTI       1500 13.00  65.94   3
ogbg-molhiv     41127 25.51  27.52   2
ogbg-moltox21    7831 18.57  19.30  12
ogbg-moltoxcast  8576 18.78  19.30 617
ogbg-molbbbp     2039 24.06  26.00   2
"""


class Published(NamedTuple):
    """A published value, in per cent."""

    mean: float
    std: float


def _read(text: str, datasets: tuple[str, ...]) -> dict[str, dict[str, Published | None]]:
    """Return published values parsed from rows of a name and values; a dash means missing."""
    return {
        name: {
            dataset: None if cell == "-" else Published(*map(float, cell.split("±")))
            for dataset, cell in zip(datasets, cells, strict=True)
        }
        for name, *cells in map(str.split, text.strip().splitlines())
    }


class Statistics(NamedTuple):
    """A row of the paper's table of datasets."""

    graphs: int
    nodes: float
    edges: float
    classes: int


_roc_auc = _read(_ROC_AUC, DATASETS[7:])
TABLE_1: dict[str, dict[str, Published | None]] = {
    name: {**cells, **_roc_auc[name]} for name, cells in _read(_ACCURACY, DATASETS[:7]).items()
}
"""Accuracy (ROC-AUC for the last four datasets) by method and dataset; None: over 10 days."""
TABLE_2 = _read(_SAMPLERS, STUDIED)
"""Other poolers with top-k, RWS and RWSV."""
TABLE_3 = _read(_ABLATIONS, STUDIED)
"""GTPool-V without one of its parts."""
SEP_G = _read(_SEP_G, DATASETS[:7])
"""Accuracy of SEP-G in its own paper, on the same folds; read in later papers that repeat it."""
TABLE_6 = {
    name: Statistics(int(graphs), float(nodes), float(edges), int(classes))
    for name, graphs, nodes, edges, classes in map(str.split, _STATISTICS.strip().splitlines())
}
"""The paper's table of datasets."""
