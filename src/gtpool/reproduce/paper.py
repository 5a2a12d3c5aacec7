"""Every table and figure of the paper as data: the runs and the published number. No torch.

It also has studies beyond the paper: further ablations, features, two synthetic tasks, and the
difficulty of MUTAG.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from gtpool.data.registry import DATASETS as SOURCES
from gtpool.model import METHODS
from gtpool.reproduce.candidates import config_runs
from gtpool.reproduce.panel import CANDIDATES, PANEL, candidate_runs, chosen_runs, is_chosen
from gtpool.reproduce.published import (
    DATASETS,
    SEP_G,
    STUDIED,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    Published,
)
from gtpool.spec import RunSpec, SplitSpec, did_you_mean
from gtpool.study.recipe import ENCODE, recipe

_Options = Mapping[str, Any]


class StudyCell(NamedTuple):
    """One cell of a table."""

    line: str
    dataset: str
    specs: tuple[RunSpec, ...]
    """The runs of the first seed, one per fold."""
    published: Published | None = None
    beside: str = ""
    """What was used beside the training and validation parts of the dataset; empty if nothing."""

    def runs(self, seeds: int) -> list[RunSpec]:
        """Return the runs of the first seeds, seed after seed."""
        return [replace(spec, seed=spec.seed + at) for at in range(seeds) for spec in self.specs]


class Study(NamedTuple):
    """A table or a curve: one row per method or value, one column per dataset."""

    title: str
    note: str
    """Remarks for the reader."""
    seeds: int
    """Number of seeds."""
    cells: tuple[StudyCell, ...]
    axis: str | None = None
    """Parameter of a curve, whose values are the rows."""
    apart: Mapping[str, tuple[str, ...]] = {}
    """Rows that must not stand beside the others: caption of their own table, and the rows."""

    @property
    def together(self) -> tuple[str, ...]:
        """The rows that are comparable, in order: all but those of ``apart``."""
        others = {line for lines in self.apart.values() for line in lines}
        return tuple(line for line in self.lines if line not in others)

    @property
    def lines(self) -> tuple[str, ...]:
        """The rows, in order."""
        return tuple(dict.fromkeys(cell.line for cell in self.cells))

    @property
    def datasets(self) -> tuple[str, ...]:
        """The columns, in order."""
        return tuple(dict.fromkeys(cell.dataset for cell in self.cells))

    def only(self, *, dataset: str | None = None, line: str | None = None) -> tuple[StudyCell, ...]:
        """Return the cells of one dataset or row; raise a ValueError for an unknown name."""
        for what, name, known in (("dataset", dataset, self.datasets), ("line", line, self.lines)):
            if name is not None and name not in known:
                hint, listed = did_you_mean(name, known), ", ".join(map(repr, known))
                raise ValueError(f"no {what} {name!r} in this study{hint} (it has {listed})")
        return tuple(
            cell
            for cell in self.cells
            if dataset in (None, cell.dataset) and line in (None, cell.line)
        )


def find_studies(names: Iterable[str], choices: Path | None = None) -> dict[str, Study]:
    """Return studies by name; all of them if no name is given.

    Args:
        names: Keys of ``STUDIES``.
        choices: The ``tuned.json`` of a search; its networks replace those of the study "tuned".
    """
    wanted = tuple(names) or tuple(STUDIES)
    for name in wanted:
        if name not in STUDIES:
            hint, listed = did_you_mean(name, STUDIES), ", ".join(STUDIES)
            raise ValueError(f"no study {name!r}{hint} (there are {listed})")
    studies = STUDIES if choices is None else STUDIES | {"tuned": _read_tuned(choices)}
    return {name: studies[name] for name in wanted}


def _method_cells(
    methods: Sequence[str],
    datasets: Sequence[str],
    published: Mapping[str, Mapping[str, Published | None]],
) -> tuple[StudyCell, ...]:
    """Return a study of methods by datasets."""
    return tuple(
        StudyCell(
            name,
            dataset,
            recipe(dataset, METHODS[name].model),
            published.get(name, {}).get(dataset),
        )
        for name in methods
        for dataset in datasets
    )


def _variant_cells(
    arms: Mapping[str, _Options],
    datasets: Sequence[str],
    published: Mapping[str, Mapping[str, Published | None]] | None = None,
) -> tuple[StudyCell, ...]:
    """Return a study of GTPool-V's variants by datasets: options of model, data or training."""
    return tuple(
        StudyCell(
            name,
            dataset,
            recipe(
                dataset,
                {"pool": "gtpool-v", **arm.get("model", {})},
                data=arm.get("data"),
                train=arm.get("train"),
            ),
            (published or {}).get(name, {}).get(dataset),
        )
        for name, arm in arms.items()
        for dataset in datasets
    )


def _read_tuned(path: Path) -> Study:
    """Return the study "tuned", read from a file."""
    try:
        cells = _tuned_cells(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the choices in {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        said = error if isinstance(error, ValueError) else repr(error)
        raise ValueError(f"{path} is not a tuned.json of `gtpool study tune`: {said}") from error
    note = f"The choices of {path}."
    return STUDIES["tuned"]._replace(note=note, cells=cells, apart=_pooled(cells))


def _tuned_cells(text: str) -> tuple[StudyCell, ...]:
    """Return the study of tuned networks: one network per fold, and one for all folds."""
    cells: list[StudyCell] = []
    for method, datasets in json.loads(text).items():
        model = METHODS[method].model
        for dataset, choice in datasets.items():
            published = TABLE_1.get(method, {}).get(dataset)
            folds, pooled = choice["per_fold"], config_runs(dataset, model, choice["pooled"])
            if len(folds) != len(pooled):
                raise ValueError(
                    f"per_fold of {method} on {dataset} has {len(folds)} choices for "
                    f"{len(pooled)} folds"
                )
            chosen = (config_runs(dataset, model, options) for options in folds)
            runs = tuple(several[fold] for fold, several in enumerate(chosen))
            cells += [
                StudyCell(method, dataset, runs, published),
                StudyCell(f"{method}{_POOLED_LINE}", dataset, pooled, published),
            ]
    return tuple(sorted(cells, key=lambda cell: cell.line.endswith(_POOLED_LINE)))


def _pooled(cells: Iterable[StudyCell]) -> dict[str, tuple[str, ...]]:
    """Return the rows of one network for all folds as a table of their own."""
    lines = dict.fromkeys(cell.line for cell in cells if cell.line.endswith(_POOLED_LINE))
    return {_POOLED: tuple(lines)}


def _pool(**options: Any) -> _Options:  # noqa: ANN401 - values of pool_options
    return {"model": {"pool_options": options}}


_POOLED_LINE = ", pooled validation"
_POOLED = (
    "One network for all folds, chosen by the mean over their validation parts. These are the test "
    "parts of other folds, so the choice has seen every test label once."
)
_UNCHANGED: _Options = {}
_TOPK = {"model": METHODS["gtpool-topk"].model}

_GIN_SUM = {"conv": "gin", "readout": "sum"}

WHEELED = ("maxcutpool", "reppool", "kmis")
"""Poolers beyond the paper's second table that a wheel can choose for."""
BEYOND = (
    "graphtrans",
    "maxcutpool",
    "reppool",
    "dmon",
    "kmis",
    "edgepool",
    "sepg",
    "graclus",
    "ndp",
)
"""Methods beyond the paper's first table."""

HYPOTHESES: dict[str, dict[str, Any]] = {
    "gtpool-v": {},
    "gtpool-topk": {"model": METHODS["gtpool-topk"].model},
    "score order": {"model": {"pool_options": {"order": "score"}}},
    "ratio 0.8": {"model": {"ratio": 0.8}},
    "ratio 1.0": {"model": {"ratio": 1.0}},
    "3 convs a level": {"model": {"convs_per_level": 3}},
    "read_input": {"model": {"read_input": True}},
    "sum": {"model": {"readout": "sum"}},
    "patience 200": {"train": {"patience": 200}},
    "gin": {"model": {"conv": "gin"}},
    "gin, sum": {"model": _GIN_SUM},
    "gin, sum, read_input": {"model": {**_GIN_SUM, "read_input": True}},
    "gin, sum, read_input, score order": {
        "model": {
            **_GIN_SUM,
            "read_input": True,
            "pool_options": {"order": "score"},
        }
    },
    "gin, sum, read_input, 3 convs": {
        "model": {**_GIN_SUM, "read_input": True, "convs_per_level": 3}
    },
    "gine (bonds), sum, read_input": {
        "model": {"conv": "gine", "readout": "sum", "read_input": True}
    },
    "flat gcn": {"model": METHODS["gcn"].model},
    "flat gin": {"model": METHODS["gin"].model},
    "flat gine (bonds)": {"model": {**METHODS["gin"].model, "conv": "gine"}},
    "flat gin, mean": {"model": {**METHODS["gin"].model, "readout": "mean"}},
    "flat gcn, sum": {"model": {**METHODS["gcn"].model, "readout": "sum"}},
}
"""Difficulty of MUTAG: changes of GTPool-V for each row of that study."""

_ENCODED = {"data": {"encode": ENCODE}}
_FOUR_LEVELS: _Options = {
    "model": {"levels": 4, "convs_per_level": 2, "width": 32, "norm": "batch", "residual": True},
    "train": {"epochs": 80, "warmup": 8, "lr": 2e-3, "patience": None},
}


def _four_levels(data: _Options | None = None, **model: Any) -> _Options:  # noqa: ANN401
    return {**_FOUR_LEVELS, "data": data, "model": {**_FOUR_LEVELS["model"], **model}}


_FIXED = tuple(method for method in CANDIDATES if not is_chosen(method))
_SMALL = (*(name for name in DATASETS if SOURCES[name].family == "TU"), "ogbg-molbbbp")
ENCODED = ", rwse"
"""End of a line of the paper's recipe with encodings."""
DESCRIBED = ", descriptors"
"""End of a line whose networks also read descriptors of molecules."""
_RIVALS = ("gcn", "gin", "gmt", "mincutpool", "sagpool_h")


def _best_cells() -> tuple[StudyCell, ...]:
    """Lay out the recipe "best" beside the paper's network, without and with encodings."""
    arms = {"paper": _UNCHANGED, f"paper{ENCODED}": _ENCODED}
    named = {"best": "gtpool-v", **{method: method for method in _RIVALS}}
    published = {"best": TABLE_1["gtpool-v"], "paper": TABLE_1["gtpool-v"]}
    return (
        *_variant_cells(arms, DATASETS, published),
        *(
            StudyCell(
                line,
                dataset,
                chosen_runs(method, dataset),
                published.get(line, {}).get(dataset),
                _beside(method),
            )
            for line, method in named.items()
            for dataset in DATASETS
        ),
        *(
            StudyCell(
                f"{line}{DESCRIBED}",
                dataset,
                chosen_runs(method, dataset, descriptors=True),
                published.get(line, {}).get(dataset),
                _beside(method),
            )
            for line, method in named.items()
            for dataset in DATASETS
            if SOURCES[dataset].family == "OGB"
        ),
    )


def _repeated_cells() -> tuple[StudyCell, ...]:
    """Lay out the recipe "best" and its rivals on five stratified 5-fold cross-validations."""
    named = {"best": "gtpool-v", **{method: method for method in _RIVALS}}
    return tuple(
        StudyCell(
            line,
            dataset,
            tuple(
                replace(run, split=SplitSpec(rule="stratified", folds=5, fold=fold, seed=repeat))
                for run in chosen_runs(method, dataset)[:1]
                for repeat in range(5)
                for fold in range(5)
            ),
            beside=_beside(method),
        )
        for line, method in named.items()
        for dataset in DATASETS
        if SOURCES[dataset].family == "TU"
    )


def _beside(method: str) -> str:
    """Return what else chose the network of a method."""
    return "validation parts of other sets" if is_chosen(method) else ""


def _panel_cells() -> tuple[StudyCell, ...]:
    """Lay out the candidates of the panel."""
    return tuple(
        StudyCell(f"{method}: {label}", dataset, candidate_runs(method, label, dataset))
        for method, labels in CANDIDATES.items()
        for label in labels
        for dataset in PANEL
    )


_TUNED = _tuned_cells(files("gtpool.reproduce").joinpath("tuned.json").read_text(encoding="utf-8"))

STUDIES: dict[str, Study] = {
    "table1": Study(
        "The paper's recipe: table 1, all methods on all datasets",
        "All methods are untuned. Accuracy of the TU sets, ROC-AUC of the OGB sets. Below the "
        "paper's methods: a network that is blind to edges, and MID, a rival of RWS.",
        10,
        _method_cells((*TABLE_1, "mlp", "mid-sagpool", "mid-topkpool"), DATASETS, TABLE_1),
    ),
    "table2": Study(
        "Table 2: RWS and RWSV in other poolers",
        "The same scores, another choice of nodes. Below the paper's poolers: others with scores.",
        10,
        _method_cells(
            (*TABLE_2, *(f"{pool}{by}" for pool in WHEELED for by in ("", "-rws", "-rwsv"))),
            STUDIED,
            TABLE_2,
        ),
    ),
    "table3": Study(
        "Table 3: GTPool-V without its parts",
        "Without the local score λ is 1, without the global one 0.",
        10,
        _variant_cells(
            {
                "gtpool-v": _UNCHANGED,
                "no-local-score": _pool(lam=1.0),
                "no-global-score": _pool(lam=0.0),
                "gtpool-topk": _TOPK,
            },
            STUDIED,
            TABLE_3,
        ),
    ),
    "poolers": Study(
        "Poolers beyond the paper",
        "The protocol of table 1. The published figures of SEP-G are those of its own paper.",
        3,
        (
            *_method_cells(BEYOND, _SMALL, SEP_G),
            *(
                StudyCell(
                    f"{name}{ENCODED}",
                    dataset,
                    recipe(dataset, METHODS[name].model, data=_ENCODED["data"]),
                )
                for name in BEYOND
                for dataset in _SMALL
            ),
        ),
        apart={"With encodings.": tuple(f"{name}{ENCODED}" for name in BEYOND)},
    ),
    "ablation": Study(
        "What the paper did not ask",
        "GTPool-V with one thing changed. As printed no gradient reaches the weights of the score; "
        "a gate lets them learn. The wheel lies in the order of the nodes' numbers; score order "
        "does not depend on it.",
        3,
        _variant_cells(
            {
                "gtpool-v": _UNCHANGED,
                "gate": _pool(gate="tanh"),
                "gate, Θ frozen": _pool(gate="tanh", learn_score=False),
                "score order": _pool(order="score"),
                "score order, gate": _pool(order="score", gate="tanh"),
                "random points": _pool(points="random"),
                "temperature 0.1": _pool(temperature=0.1),
                "temperature 0.01": _pool(temperature=0.01),
                "4 heads": _pool(heads=4),
                "4 heads, W_O": _pool(heads=4, out_proj=True),
            },
            STUDIED,
        ),
    ),
    "features": Study(
        "What nodes are given",
        "GMT's features, z-scored on the training part, as they are, or those of the “fair "
        "comparison”. Synthie and the IMDB sets do not have what some of them change.",
        3,
        _variant_cells(
            {
                "gmt, z-scored": _UNCHANGED,
                "gmt, raw": {"data": {"standardize": False}},
                "fair, z-scored": {"data": {"features": "fair"}},
                "fair, raw": {"data": {"features": "fair", "standardize": False}},
            },
            ("ENZYMES", "PROTEINS", "Synthie", "IMDB-BINARY"),
        ),
    ),
    "tasks": Study(
        "Two tasks made for the purpose",
        "long-range: neighbourhoods do not tell the classes apart. low-scores: what tells the "
        "class stands where a given score is low.",
        3,
        _method_cells(
            ("gtpool-v", "gtpool", "gtpool-topk", "sagpool_h", "sagpool_h-rwsv", "gcn", "gin"),
            ("long-range", "low-scores"),
            {},
        ),
    ),
    "long-range": Study(
        "What solves the task long-range",
        "Networks of four levels with two GCNs each, width 32, batch norm and residual "
        "connections; 80 epochs, the lowest validation loss counts.",
        1,
        _variant_cells(
            {
                "kmis": _four_levels(pool="kmis"),
                "gtpool-v, rwse": _four_levels({"encode": ENCODE}),
            },
            ("long-range",),
        ),
    ),
    "tuned": Study(
        "Tuned on validation parts",
        "Each fold has the network that its own validation part chose among 24. Budgets differ: "
        "docs/studies.md has them.",
        10,
        _TUNED,
        apart=_pooled(_TUNED),
    ),
    "best": Study(
        "The same budget for all: the recipe best",
        "All methods have the same encodings, training, four candidates and ensembles. The network "
        "of a dataset is the one that validation chose on the other datasets of the panel. The "
        f"panel of {', '.join(_FIXED)} is not complete: their network was set, not chosen.",
        10,
        _best_cells(),
        apart={
            "Of another budget: GTPool-V by the letter of the paper, also with encodings.": (
                "paper",
                f"paper{ENCODED}",
            ),
            "Of another budget: with descriptors of molecules and less dropout.": tuple(
                f"{line}{DESCRIBED}" for line in ("best", *_RIVALS)
            ),
        },
    ),
    "repeated": Study(
        "The same budget for all, on repeated cross-validation",
        "The networks of the recipe best on five stratified 5-fold cross-validations of each "
        "dataset, one seed: 25 test parts.",
        1,
        _repeated_cells(),
    ),
    "panel": Study(
        "Candidates of the recipe best",
        "Validation metrics choose; the test figures shown here were not used.",
        1,
        _panel_cells(),
    ),
    "ratio": Study(
        "Figure (a): share of nodes that stay",
        "GTPool-V. The paper prints curves without numbers.",
        3,
        _variant_cells(
            {f"{ratio}": {"model": {"ratio": ratio}} for ratio in (0.25, 0.5, 0.75)}, STUDIED
        ),
        "μ",
    ),
    "levels": Study(
        "Figure (b): pooling steps",
        "GTPool-V.",
        3,
        _variant_cells(
            {f"{levels}": {"model": {"levels": levels}} for levels in (1, 2, 3, 4)}, STUDIED
        ),
        "levels",
    ),
    "lambda": Study(
        "Figure (c): weight of the global score",
        "GTPool-V; λ = 0.4 is the default.",
        3,
        _variant_cells(
            {
                f"{tenth / 10}": _UNCHANGED if tenth == 4 else _pool(lam=tenth / 10)
                for tenth in range(11)
            },
            STUDIED,
        ),
        "λ",
    ),
    "mutag": Study(
        "Why MUTAG is hard",
        "One hypothesis at a time, on the ten fixed folds of 18 test graphs each.",
        10,
        _variant_cells(
            HYPOTHESES,
            ("MUTAG",),
            {"gtpool-v": {"MUTAG": TABLE_1["gtpool-v"]["MUTAG"]}},
        ),
    ),
}
"""Studies by name."""
