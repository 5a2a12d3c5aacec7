"""Methods that predict molecules, for the panel of molecule sets: ours and those of others."""

import csv
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gtpool.data.delimited import format_csv
from gtpool.data.graph_features import describe_molecules
from gtpool.data.locate import cache_dir
from gtpool.data.merge import merge_tables
from gtpool.data.split import Split
from gtpool.model.bundle import load_bundle
from gtpool.predict import predict_source
from gtpool.report.results import write_results
from gtpool.reproduce.molecules import SETS, MoleculeTable, load_set, write_rows
from gtpool.study.cross_validate import cross_validate
from gtpool.study.store import write_atomic

Vector = NDArray[np.double]
CHEMPROP = "2.3.1"
"""Version of chemprop that the environment gets."""
TREES = 500
BASE_SETS = ("ogbg-moltox21", "ogbg-moltoxcast")
"""Sets that the base model of fine-tuning is trained on."""
BASE = {
    "data": {"target_columns": ["*"], "molecule_features": []},
    "split": {"rule": "random"},
    "train": {"epochs": 30, "warmup": 3},
}
"""Options of the base model; the recipe supplies the rest."""


class Job(NamedTuple):
    """Molecules to learn from, and molecules to predict."""

    table: MoleculeTable
    split: Split
    seed: int
    folder: Path
    """For files of the methods of a place, which share it."""

    @property
    def known(self) -> list[int]:
        """Indices of training and validation part."""
        return sorted([*self.split.train.tolist(), *self.split.valid.tolist()])

    @property
    def asked(self) -> list[int]:
        """Indices of the test part."""
        return self.split.test.tolist()

    @property
    def parts(self) -> list[str]:
        """Name of the part of each molecule: train, val or test."""
        names = dict.fromkeys(self.split.train.tolist(), "train")
        names |= dict.fromkeys(self.split.valid.tolist(), "val")
        return [names.get(row, "test") for row in range(len(self.table.y))]


class Answer(NamedTuple):
    """Predictions of a method, and what they cost."""

    output: Vector
    """Probability of class 1, or value, of each molecule of the test part."""
    cpu_seconds: float
    """CPU time of the fit, with features and with child processes."""
    versions: dict[str, str]
    """Versions of the packages that matter."""


Method = Callable[[Job], Answer]


def gtpool(job: Job, settings: Mapping[str, Any]) -> Answer:
    """Train as ``gtpool train`` does on training and validation part, and predict the test part.

    Networks that an earlier method of the place trained are not trained again; their CPU time
    counts.

    Args:
        job: The molecules.
        settings: As in a settings file; the recipe supplies the rest.
    """
    known, asked, runs = (job.folder / name for name in ("known.csv", "asked.csv", "runs"))
    cost = job.folder / "cpu_seconds"
    write_rows(known, job.table, job.known)
    write_rows(asked, job.table, job.asked)
    start = time.process_time()
    done = cross_validate(known, {"seed": 42 + job.seed, **settings}, device="cpu", folder=runs)
    spent = time.process_time() - start + (float(cost.read_text()) if cost.exists() else 0.0)
    cost.write_text(str(spent))
    bundle = load_bundle(write_results(job.folder / "results", done)["model"])
    rows = predict_source(bundle, asked, device="cpu").rows
    missing = [row.reason for row in rows if row.reason is not None]
    if missing:
        raise ValueError(f"{len(missing)} molecules of {asked} have no prediction: {missing[0]}")
    pairs = ((row.probabilities, row.value) for row in rows)
    output = np.array([shares[-1:] or value for shares, value in pairs], np.double).ravel()
    return Answer(output, spent, _versions("gtpool", "torch", "rdkit"))


def network(job: Job, settings: Mapping[str, Any]) -> Answer:
    """Train one network on the training part, as candidates for the default do.

    Args:
        job: The molecules.
        settings: As in a settings file; the recipe supplies the rest.
    """
    path = job.folder / "table.csv"
    write_rows(path, job.table, range(len(job.table.y)), job.parts)
    data = {"target_columns": ["y"], "split_column": "split", **settings.get("data", {})}
    options = {**settings, "seed": 42 + job.seed, "data": data, "split": {"rule": "column"}}
    start = time.process_time()
    done = cross_validate(path, options, device="cpu")
    spent = time.process_time() - start
    (found,) = done.predictions
    return Answer(found.output[:, -1], spent, _versions("gtpool", "torch", "rdkit"))


def fine_tuned(job: Job, settings: Mapping[str, Any]) -> Answer:
    """Train as ``network`` does, but start from the base model."""
    training = {**settings.get("train", {}), "start": str(base_model())}
    return network(job, {**settings, "train": training})


def base_model() -> Path:
    """Return a network trained on sets of OGB without the panel's molecules; it is trained once."""
    folder = cache_dir() / "molecules-base"
    model = folder / "results" / "model"
    if model.exists():
        return model
    folder.mkdir(parents=True, exist_ok=True)
    panel, table = folder / "panel.csv", folder / "base.csv"
    smiles = [[text] for name in SETS for text in load_set(name).smiles]
    write_atomic(panel, format_csv([["smiles"], *smiles]).encode())
    merged = merge_tables(BASE_SETS, exclude=[str(panel)])
    write_atomic(table, format_csv([merged.header, *merged.rows]).encode())
    done = cross_validate(table, BASE, device="cpu", folder=folder / "runs")
    return write_results(folder / "results", done)["model"]


def trees(job: Job, make: Callable[[int], Any], features: Sequence[str]) -> Answer:
    """Fit a model of scikit-learn on descriptors of training and validation part.

    Args:
        job: The molecules.
        make: Returns the model for a seed.
        features: Keys of ``MOLECULE_FEATURES``.
    """
    start = time.process_time()
    y = np.array(job.table.y)
    x = describe_molecules([job.table.smiles[row] for row in job.known], features)
    model = make(job.seed).fit(x, y[job.known])
    spent = time.process_time() - start
    x = describe_molecules([job.table.smiles[row] for row in job.asked], features)
    known = job.table.task == "regression"
    output = model.predict(x) if known else model.predict_proba(x)[:, 1]
    return Answer(output, spent, _versions("scikit-learn", "rdkit"))


def boosting(job: Job, features: Sequence[str]) -> Answer:
    """Fit scikit-learn's histogram gradient boosting with its default options."""
    from sklearn.ensemble import (  # noqa: PLC0415
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )

    regression = job.table.task == "regression"
    kind = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    return trees(job, lambda seed: kind(random_state=seed), features)


def forest(job: Job, features: Sequence[str]) -> Answer:
    """Fit scikit-learn's random forest of 500 trees."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor  # noqa: PLC0415

    kind = RandomForestRegressor if job.table.task == "regression" else RandomForestClassifier
    return trees(job, lambda seed: kind(TREES, random_state=seed), features)


def chemprop(job: Job) -> Answer:
    """Train chemprop with its default options in an environment of its own."""
    program = chemprop_folder() / "bin" / "chemprop"
    table, asked, model = (job.folder / name for name in ("table.csv", "asked.csv", "model"))
    write_rows(table, job.table, range(len(job.table.y)), job.parts)
    write_rows(asked, job.table, job.asked)
    kind = {"binary": "classification", "regression": "regression"}[job.table.task]
    columns = ("--smiles-columns", "smiles", "--target-columns", "y", "--splits-column", "split")
    seeds = ("--pytorch-seed", str(job.seed), "--data-seed", str(job.seed))
    device = ("--accelerator", "cpu", "--num-workers", "0")
    before = _child_seconds()
    words = [program, "train", "--data-path", table, "--task-type", kind, *columns, *seeds]
    _run([*words, *device, "--output-dir", model])
    spent = _child_seconds() - before
    predictions = job.folder / "predictions.csv"
    words = [program, "predict", "--test-path", asked, "--model-paths", model, *columns[:2]]
    _run([*words, *device, "--preds-path", predictions])
    with predictions.open(encoding="utf-8", newline="") as file:
        output = [float(row["y"]) for row in csv.DictReader(file)]
    return Answer(np.array(output), spent, {"chemprop": CHEMPROP})


def chemprop_folder() -> Path:
    """Return the virtual environment of chemprop in the user's cache; it is made once."""
    folder = cache_dir() / f"chemprop-{CHEMPROP}"
    if (folder / "done").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    # Our own torch first: chemprop would take another build.
    _run([*pip, f"torch=={version('torch').partition('+')[0]}"])
    _run([*pip, f"chemprop=={CHEMPROP}"])
    (folder / "done").touch()
    return folder


def _run(words: Sequence[object]) -> None:
    """Run a program; raise an OSError with the end of what it printed if it fails."""
    done = subprocess.run(  # noqa: S603 - programs that this module installs
        [str(word) for word in words], check=False, capture_output=True, text=True
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        command = " ".join(str(word) for word in words[:4])
        raise OSError(f"{command} … failed with status {done.returncode}: {' '.join(said)}")


def _child_seconds() -> float:
    found = os.times()
    return found.children_user + found.children_system


def _versions(*names: str) -> dict[str, str]:
    return {name: version(name) for name in names} | {"python": sys.version.split()[0]}


_BOTH = ("morgan", "rdkit2d")
METHODS: dict[str, Method] = {
    "gtpool": partial(gtpool, settings={}),
    "gtpool --blend": partial(gtpool, settings={"blend": True}),
    "random forest, Morgan": partial(forest, features=("morgan",)),
    "random forest, RDKit 2D": partial(forest, features=("rdkit2d",)),
    "boosting, Morgan": partial(boosting, features=("morgan",)),
    "boosting, RDKit 2D": partial(boosting, features=("rdkit2d",)),
    "boosting, Morgan + RDKit 2D": partial(boosting, features=_BOTH),
    "chemprop": chemprop,
}
"""Methods that are compared."""


def _candidate(
    features: Sequence[str],
    *,
    model: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    fit: Callable[[Job, Mapping[str, Any]], Answer] = network,
) -> Method:
    """Return a network with descriptors, and with options that differ from the others' below."""
    settings = {
        "data": {"molecule_features": list(features)},
        "model": {"dropout": 0.1, **(model or {})},
        "train": {"epochs": 50, "batch_size": 32, **(train or {})},
    }
    return lambda job: fit(job, settings)


CANDIDATES: dict[str, Method] = {
    "no descriptors": _candidate(()),
    "RDKit 2D": _candidate(("rdkit2d",)),
    "RDKit 2D + Morgan": _candidate(("rdkit2d", "morgan")),
    "RDKit 2D + Morgan, no dropout": _candidate(("rdkit2d", "morgan"), model={"dropout": 0.0}),
    "RDKit 2D + Morgan, dropout 0.5": _candidate(("rdkit2d", "morgan"), model={"dropout": 0.5}),
    "RDKit 2D + Morgan, batch 128": _candidate(("rdkit2d", "morgan"), train={"batch_size": 128}),
    "RDKit 2D + Morgan, 100 epochs": _candidate(("rdkit2d", "morgan"), train={"epochs": 100}),
    "RDKit 2D + Morgan, GINE": _candidate(("rdkit2d", "morgan"), model={"conv": "gine"}),
    "fine-tuned": _candidate((), fit=fine_tuned),
    "fine-tuned, frozen encoder": _candidate((), train={"freeze_encoder": True}, fit=fine_tuned),
    "RDKit 2D + Morgan, fine-tuned": _candidate(("rdkit2d", "morgan"), fit=fine_tuned),
}
"""Single networks that compete to be the default, on the choosing half."""
