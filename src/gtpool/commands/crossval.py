"""The main job: do the runs of a plan, and write what they gave."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from gtpool.commands.plan import Plan
from gtpool.commands.results import (
    method_section,
    write_results,
    write_settings,
)
from gtpool.data.dataset import GraphDataset
from gtpool.data.delimited import ending_of
from gtpool.data.summary import describe_targets
from gtpool.data.table import Skipped
from gtpool.model import METHODS
from gtpool.model.classifier import Classifier
from gtpool.pool import POOLS
from gtpool.report.heldout import read_held_out
from gtpool.report.progress import Progress
from gtpool.report.site import describe_network, write_report
from gtpool.spec import FOLDED, RunSpec
from gtpool.study.executor import Executor
from gtpool.study.inputs import Loaded, choose_split, lay_out, load_data, shape_of
from gtpool.study.run import run_many
from gtpool.study.shard import shard
from gtpool.study.store import Row, Store


class Running(NamedTuple):
    """Where and how to run; nothing of it changes what runs give on one kind of device."""

    folder: Path
    data_dir: Path | None = None
    jobs: int = 1
    device: str = "auto"
    deterministic: bool = False
    together: int | None = None
    executor: Executor | None = None


class Finished(NamedTuple):
    """What a cross-validation gave."""

    rows: list[Row]
    files: dict[str, Path]
    """What was written, by what it is."""
    skipped: tuple[Skipped, ...]
    """Rows of a table that could not be used."""
    repeated: int
    """Rows of a table whose SMILES stands above them already, as it is written."""
    guess: float | None
    """Accuracy on the test parts of saying the largest class to all; None without classes."""


def cross_validate(
    plan: Plan,
    how: Running,
    *,
    folds_given: bool = False,
    tell: Callable[[str], object] | None = None,
) -> Finished:
    """Do the runs of a plan that are not done yet, and write all that they gave.

    Args:
        plan: Which runs.
        how: Where and how.
        folds_given: Whether the user asked for a number of folds, which not all splits have.
        tell: Called before the first run with lines on what the data was taken for and on the
            network.
    """
    specs = plan_runs(plan, how)
    if folds_given and plan.run.split.folds > 1 and len(specs) == plan.seeds:
        raise ValueError(
            f"--folds is for split types that have folds, {', '.join(FOLDED)}; this one is "
            f"{specs[0].split.rule}; say --split-type folds, or train on it repeatedly by --seeds"
        )
    loaded = load_data(plan.run.data, how.data_dir)
    write_settings(how.folder, plan)
    if tell is not None:
        gone = f"; rows left out: {len(loaded.skipped)}" if loaded.skipped else ""
        tell(f"{plan.run.data.source}: {describe_targets(loaded.dataset, loaded.targets)}{gone}")
        tell(f"network: {describe_network(plan.run.to_json())}")
    rows = run_all(specs, how)
    title = f"{plan.method} on {plan.data}"
    guess = _guess(rows, how.folder, loaded.dataset)
    files = write_results(how.folder, title, rows, loaded, how.data_dir, guess)
    repeated = len(loaded.smiles or ()) - len(set(loaded.smiles or ()))
    return Finished(rows, files, loaded.skipped, repeated, guess)


def _guess(rows: Sequence[Row], folder: Path, data: GraphDataset) -> float | None:
    """Judge the largest class as the answer to all graphs, by the mean over runs."""
    if data.schema.task != "classes":
        return None
    largest = data.y.bincount().argmax().item()
    parts = read_held_out(rows, Store(folder).artifact, "classes")
    return fmean(float((part.y == largest).mean()) for part in parts) if parts else None


def run_part(plan: Plan, how: Running, part: str) -> list[Row]:
    """Do the runs of one shard that are not done yet, and leave the rest to others."""
    return run_all(shard(plan_runs(plan, how), part), how)


def plan_runs(plan: Plan, how: Running) -> list[RunSpec]:
    """List the runs of a plan; what is wrong with data, split or network is said here, at once."""
    model, known = plan.run.model, dict.fromkeys(["none", *METHODS, *POOLS])
    if model.pool not in known:
        near = get_close_matches(model.pool, known, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"no pooler or method {model.pool!r}; {hint}known are {', '.join(known)}")
    loaded = load_data(plan.run.data, how.data_dir)
    _check_classes(loaded, plan.run.data.source)
    Classifier(model, shape_of(loaded.dataset))
    specs = lay_out(plan.run, seeds=plan.seeds, data_dir=how.data_dir)
    choose_split(specs[0].split, loaded, how.data_dir)
    return specs


def _check_classes(loaded: Loaded, source: str) -> None:
    """Raise a ValueError if every graph has a class of its own; warn if more than half have."""
    schema, graphs = loaded.dataset.schema, len(loaded.dataset)
    kinds = schema.num_outputs
    if loaded.name is not None or schema.task != "classes" or kinds < 3 or 2 * kinds <= graphs:
        return
    what, remedy = "the label", "give each graph the class that is to be predicted"
    if loaded.targets:
        what, remedy = f"column {loaded.targets[0]!r}", "choose another by --target-columns"
    elif ending_of(Path(source)) == ".jsonl":
        what, remedy = '"label"', 'write the class of each graph into "label"'
    numbers = all(name.removeprefix("-").isdecimal() for name in schema.targets)
    if numbers and what != "the label":  # --task is an option of tables and JSON lines
        remedy += " or predict numbers by --task regression"
    message = (
        f"{what} looks like an identifier: {kinds} different values in {graphs} "
        f"{'rows' if loaded.targets else 'graphs'}; {remedy}"
    )
    if kinds == graphs:
        raise ValueError(message)
    warnings.warn(message, stacklevel=2)


def run_all(specs: Sequence[RunSpec], how: Running) -> list[Row]:
    """Do the runs that are not done, showing how far they are, and give the rows of all."""
    with Progress() as watch:
        return run_many(
            specs,
            Store(how.folder),
            jobs=how.jobs,
            together=how.together,
            executor=how.executor,
            keep=True,
            data_dir=how.data_dir,
            device=how.device,
            deterministic=how.deterministic,
            watch=watch,
        )


def compare_methods(
    plans: Mapping[str, Plan], how: Running, page: Path, notes: Sequence[str]
) -> dict[str, list[Row]]:
    """Do the runs of several methods on one dataset and set them side by side on a page.

    Args:
        plans: The runs of each method, by the name it is to have.
        how: Where and how.
        page: The HTML file to write.
        notes: What a reader must know of how the figures came about.
    """
    specs = {name: plan_runs(plan, how) for name, plan in plans.items()}
    found = run_all([spec for several in specs.values() for spec in several], how)
    by_key = {row["key"]: row for row in found}
    rows = {name: [by_key[spec.key] for spec in several] for name, several in specs.items()}
    first = next(iter(plans.values())).run.data
    schema, store = load_data(first, how.data_dir).dataset.schema, Store(how.folder)
    sections = [method_section(name, several, store, schema) for name, several in rows.items()]
    write_report(page, f"{' · '.join(plans)} on {schema.name}", sections, notes)
    return rows
