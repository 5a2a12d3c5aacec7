"""Methods on the panel of molecule sets: one JSON row for each fit, and their ranks."""

import json
import platform
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self, get_args

import numpy as np

from gtpool.report.result_tables import TextTable
from gtpool.reproduce.molecules import (
    SETS,
    Half,
    MoleculeTable,
    SetTask,
    SplitName,
    load_set,
    split_set,
)
from gtpool.reproduce.rivals import CANDIDATES, METHODS, Job, Method, Vector
from gtpool.spec import did_you_mean
from gtpool.study.build_result import commit

FIRST = {"binary": "roc_auc", "regression": "rmse"}
"""Metric that ranks the methods, by task."""
HIGHER = ("roc_auc", "pr_auc")
"""Metrics of which a higher value is better."""
SPLITS: tuple[SplitName, ...] = get_args(SplitName)


class Place(NamedTuple):
    """Where a method is tested."""

    set: str
    split: SplitName
    seed: int

    @property
    def half(self) -> Half:
        """Half of the panel."""
        return SETS[self.set].half


class Fit(NamedTuple):
    """A method that was trained and tested once."""

    method: str
    place: Place
    task: SetTask
    sizes: tuple[int, int, int]
    """Molecules of training, validation and test part."""
    data_digest: str
    split_digest: str
    metrics: dict[str, float]
    cpu_seconds: float
    """CPU time of the fit."""
    device: str
    versions: dict[str, str]
    commit: str | None

    @property
    def score(self) -> float:
        """The metric that ranks methods; higher is better."""
        value = self.metrics[FIRST[self.task]]
        return value if FIRST[self.task] in HIGHER else -value

    def to_json(self) -> dict[str, Any]:
        """Return values that ``from_json`` reads back."""
        return {**self._asdict(), "place": self.place._asdict()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the fit of a JSON row."""
        read: dict[str, Any] = {"place": Place(**value["place"]), "sizes": tuple(value["sizes"])}
        return cls(**(value | read))


def plan_places(
    half: Half | None = None,
    sets: Sequence[str] = (),
    splits: Sequence[SplitName] = SPLITS,
    seeds: int = 1,
) -> list[Place]:
    """Return the places of a half or of some sets, by seed, then set.

    Args:
        half: "choose" or "judge"; None for both.
        sets: Keys of ``SETS``; by default all of the half.
        splits: "random", "scaffold" or both.
        seeds: Number of seeds, from 0; they draw the random split and start the method.
    """
    _check("molecule set", sets, SETS)
    names = [name for name in sets or SETS if half in {None, SETS[name].half}]
    return [Place(name, split, seed) for seed, name, split in product(range(seeds), names, splits)]


def run_methods(
    path: Path,
    places: Sequence[Place],
    methods: Sequence[str] = (),
    tell: Callable[[str], object] = print,
) -> list[Fit]:
    """Fit methods where ``path`` has no row of them yet, and append a row for each.

    Args:
        path: JSON lines file.
        places: From ``plan_places``.
        methods: Keys of ``METHODS`` or ``CANDIDATES``; by default all of ``METHODS``.
        tell: Receives a line about each fit.
    """
    known = METHODS | CANDIDATES
    _check("method", methods, known)
    done = {(fit.method, fit.place) for fit in read_fits(path)}
    path.parent.mkdir(parents=True, exist_ok=True)
    for place in places:
        missing = [name for name in methods or METHODS if (name, place) not in done]
        with tempfile.TemporaryDirectory(prefix="gtpool-") as folder:
            for name in missing:
                table = load_set(place.set)
                fit = fit_method(name, known[name], place, table, Path(folder))
                with path.open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps(fit.to_json())}\n")
                tell(_describe(fit))
    return read_fits(path)


def read_fits(path: Path) -> list[Fit]:
    """Return the rows of a file; none if it does not exist.

    Rows of one place with different molecules or splits raise a ValueError.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    fits = [Fit.from_json(json.loads(line)) for line in lines]
    seen: dict[Place, str] = {}
    for fit in fits:
        digest = f"{fit.data_digest}/{fit.split_digest}"
        if seen.setdefault(fit.place, digest) != digest:
            raise ValueError(
                f"{path} has rows of {fit.place.set}, {fit.place.split} split with different "
                f"molecules ({digest} and {seen[fit.place]}); remove one of them"
            )
    return fits


def fit_method(name: str, method: Method, place: Place, table: MoleculeTable, folder: Path) -> Fit:
    """Train and test a method at a place.

    Args:
        name: Name of the method in the row.
        method: A value of ``METHODS``.
        place: Its set is that of the table.
        table: The molecules.
        folder: For files of the methods of the place.
    """
    split = split_set(table, place.split, place.seed)
    answer = method(Job(table, split, place.seed, folder))
    true = np.array([table.y[row] for row in split.test.tolist()])
    return Fit(
        name,
        place,
        table.task,
        (len(split.train), len(split.valid), len(split.test)),
        table.digest,
        split.digest,
        measure(true, answer.output, table.task),
        round(answer.cpu_seconds, 2),
        platform.machine(),
        answer.versions,
        commit(),
    )


def measure(true: Vector, output: Vector, task: SetTask) -> dict[str, float]:
    """Return scikit-learn's metrics of predictions.

    Args:
        true: Class 0 or 1, or value, of each molecule.
        output: Probability of class 1, or value.
        task: "binary": ROC-AUC, PR-AUC and log loss. "regression": RMSE and MAE.
    """
    from sklearn import metrics  # noqa: PLC0415

    if task == "regression":
        error = output - true
        return {"rmse": float(np.sqrt(np.mean(error**2))), "mae": float(np.abs(error).mean())}
    return {
        "roc_auc": float(metrics.roc_auc_score(true, output)),
        "pr_auc": float(metrics.average_precision_score(true, output)),
        "log_loss": float(metrics.log_loss(true, output, labels=[0, 1])),
    }


def rank_table(fits: Sequence[Fit]) -> TextTable:
    """Return mean ranks and CPU seconds of the methods that have a row at every place."""
    places = {fit.place for fit in fits}
    methods = list(dict.fromkeys(fit.method for fit in fits))
    whole = [
        name for name in methods if {fit.place for fit in fits if fit.method == name} == places
    ]
    ranks = mean_ranks(fits, whole)
    lines = [
        (
            name,
            f"{rank:.2f}",
            f"{fmean(fit.cpu_seconds for fit in fits if fit.method == name):.0f}",
        )
        for name, rank in sorted(ranks.items(), key=lambda pair: pair[1])
    ]
    heads = ("method", f"mean rank on {len(places)} splits", "CPU seconds a fit")
    return TextTable(heads, tuple(lines))


def mean_ranks(fits: Iterable[Fit], methods: Sequence[str]) -> dict[str, float]:
    """Return the mean rank of each method over the places where all of them have a row.

    Equal scores share the mean of their ranks.
    """
    ranks: dict[str, list[float]] = {name: [] for name in methods}
    for scores in complete_places(fits, methods).values():
        for name in methods:
            better = sum(other.score > scores[name].score for other in scores.values())
            equal = sum(other.score == scores[name].score for other in scores.values())
            ranks[name].append(better + (equal + 1) / 2)
    return {name: fmean(found) for name, found in ranks.items() if found}


def complete_places(fits: Iterable[Fit], methods: Sequence[str]) -> dict[Place, dict[str, Fit]]:
    """Return the fits by place and method, of the places where all methods have a row."""
    found: dict[Place, dict[str, Fit]] = {}
    for fit in fits:
        if fit.method in methods:
            found.setdefault(fit.place, {})[fit.method] = fit
    return {place: by for place, by in found.items() if len(by) == len(methods)}


def _describe(fit: Fit) -> str:
    first, (name, split, seed) = FIRST[fit.task], fit.place
    score = f"{first} {fit.metrics[first]:.4f}, {fit.cpu_seconds:.0f} CPU s"
    return f"{name}, {split}, seed {seed}: {fit.method}: {score}"


def _check(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(
                f"unknown {what} {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}"
            )
