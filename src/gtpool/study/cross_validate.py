"""Cross-validation: from a source and a network to tested runs and the best of their models."""

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from safetensors.torch import load_file

from gtpool.data.formats import FORMATS, recognise
from gtpool.data.formats.reader import Skipped
from gtpool.data.schema import Schema
from gtpool.deprecated import old_names
from gtpool.model import METHODS
from gtpool.model.classifier import Classifier
from gtpool.pool import POOLS
from gtpool.spec import RunSpec
from gtpool.study.executor import Executor, Watcher
from gtpool.study.heldout import HeldOut, read_held_out
from gtpool.study.inputs import Loaded, choose_split, expand_folds, load_data, shape_of
from gtpool.study.plan import Plan, check_plan, make_plan
from gtpool.study.result import RunResult
from gtpool.study.run import run_many
from gtpool.study.store import Store
from gtpool.study.summarize import MetricSummary, best_run, split_name, summarize

OnStart = Callable[[Loaded, Sequence[RunSpec]], object]
"""Called before the first run with the data and the runs."""


class RunConfig(NamedTuple):
    """Where and how to run; nothing of it changes what runs give on one kind of device."""

    folder: Path
    data_dir: Path | None = None
    jobs: int = 1
    device: str = "auto"
    deterministic: bool = False
    together: int | None = None
    executor: Executor | None = None

    def do(
        self,
        specs: Sequence[RunSpec],
        *,
        keep: bool,
        watch: Watcher | None,
        loaded: Loaded | None = None,
    ) -> list[RunResult]:
        """Do the runs that the folder does not have, and give the results of all.

        Args:
            specs: The runs.
            keep: Keep the weights and test logits of each run beside its row.
            watch: Who is told of the progress.
            loaded: The data, if it is loaded already.
        """
        return run_many(
            specs,
            Store(self.folder),
            jobs=self.jobs,
            together=self.together,
            executor=self.executor,
            keep=keep,
            data_dir=self.data_dir,
            device=self.device,
            deterministic=self.deterministic,
            watch=watch,
            loaded=loaded,
        )


class BestModel(NamedTuple):
    """The run of the lowest validation loss, and its network."""

    run: RunResult
    model: Classifier
    """On the CPU, in evaluation mode."""
    schema: Schema
    """What the model takes and gives, with the scale of its training part."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossValidation:
    """What a cross-validation gave."""

    plan: Plan
    """What was asked for."""
    runs: list[RunResult]
    """The result of each run, by seed and fold."""
    loaded: Loaded
    """The graphs, and what else their source says of them."""
    predictions: list[HeldOut]
    """The test part of each finished run, by seed and fold."""
    chosen: BestModel | None
    """The run of the lowest validation loss; None where all failed."""

    @cached_property
    def cell(self) -> MetricSummary:
        """The test metric over all runs: mean, spread and what they rest on."""
        return summarize(self.runs)

    @property
    def metric(self) -> str:
        """Name of the test metric: "accuracy", "roc_auc" or "rmse"."""
        return self.cell.metric

    @property
    def mean(self) -> float | None:
        """Mean of the test metric over seeds and folds; None where all runs failed."""
        return self.cell.mean

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds, of one seed over its folds; None of one run."""
        return self.cell.std

    @cached_property
    def majority(self) -> float | None:
        """Accuracy on the test parts of the majority class; None without classes."""
        data = self.loaded.dataset
        if data.schema.task != "classes" or not self.predictions:
            return None
        largest = data.y.bincount().argmax().item()
        return fmean(float((part.y == largest).mean()) for part in self.predictions)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Rows of a table that could not be used."""
        return self.loaded.skipped

    @property
    def repeated(self) -> int:
        """Rows of a table whose SMILES stands above them already, as it is written."""
        smiles = self.loaded.smiles or ()
        return len(smiles) - len(set(smiles))


def cross_validate(
    data: str | Path,
    spec: str | Mapping[str, Any] | RunSpec = "gtpool-v",
    *,
    seeds: int | None = None,
    folder: Path | str | None = None,
    data_dir: Path | None = None,
    jobs: int = 1,
    device: str = "auto",
    deterministic: bool = False,
    together: int | None = None,
    executor: Executor | None = None,
    watch: Watcher | None = None,
    on_start: OnStart | None = None,
) -> CrossValidation:
    """Train and test a network on every fold of a dataset, for one seed or several.

    ``gtpool train`` calls this function. ``gtpool.report.results.write_results`` writes the files
    that the command leaves: page, model, predictions and drawings.

    Args:
        data: A name of ``DATASETS``, or the path of a table, a folder or JSON lines.
        spec: The name of a method or pooler, or options by part as a file for ``gtpool train
            --config`` holds them; the recipe of the dataset completes both. A ``RunSpec`` is taken
            as it is, but for the source of its data and the fold.
        seeds: Runs of each fold, with seeds counted up from that of the spec; by default what the
            options say, else 1.
        folder: Where finished runs are kept: the same call again does the missing runs only. By
            default nothing is kept on disk.
        data_dir: Where to look first for a dataset known by name.
        jobs: How many runs at once, each in a process of its own if more than one.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
        deterministic: Forbid torch the algorithms that are not.
        together: How many runs may train side by side in one program; by default 100 on a GPU and
            one on a CPU.
        executor: Who does the runs in place of this machine, such as
            ``gtpool.study.ray_executor.RayExecutor``.
        watch: Who is told of the progress, such as ``gtpool.report.progress.Progress``.
        on_start: Called before the first run with the data and the runs, once data, split and
            network are checked.

    Example:
        >>> options = {
        ...     "split": {"folds": 3},
        ...     "model": {"pool": "gtpool-v", "width": 8},
        ...     "train": {"epochs": 2},
        ... }
        >>> result = cross_validate("MUTAG", options)
        >>> len(result.runs), result.metric, 0 < result.mean < 1
        (3, 'accuracy', True)
        >>> sum(len(part.graph) for part in result.predictions)
        188
    """
    plan = _plan(data, spec, seeds)
    specs, loaded = plan_runs(plan, data_dir)
    if on_start is not None:
        on_start(loaded, specs)
    with _run_folder(folder) as place:
        how = RunConfig(place, data_dir, jobs, device, deterministic, together, executor)
        runs = how.do(specs, keep=True, watch=watch, loaded=loaded)
        store = Store(place)
        return CrossValidation(
            plan=plan,
            runs=runs,
            loaded=loaded,
            predictions=read_held_out(runs, store.artifact, loaded.dataset.schema.task),
            chosen=_load_best(runs, loaded, store, data_dir),
        )


def plan_runs(
    plan: Plan, data_dir: Path | None = None, loaded: Loaded | None = None
) -> tuple[list[RunSpec], Loaded]:
    """List the runs of a plan, with their data; raise where data, split or network are wrong.

    Args:
        plan: What is asked for.
        data_dir: Where to look first for a dataset known by name.
        loaded: The data, if it is loaded already.
    """
    model, known = plan.run.model, dict.fromkeys(["none", *METHODS, *POOLS])
    if model.pool not in known:
        near = get_close_matches(model.pool, known, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"no pooler or method {model.pool!r}; {hint}known are {', '.join(known)}")
    loaded = load_data(plan.run.data, data_dir, loaded)
    _check_classes(loaded, plan.run.data.source)
    Classifier(model, shape_of(loaded.dataset))
    specs = expand_folds(plan.run, seeds=plan.seeds, data_dir=data_dir, loaded=loaded)
    choose_split(specs[0].split, loaded, data_dir)
    return specs, loaded


def _plan(data: str | Path, spec: str | Mapping[str, Any] | RunSpec, seeds: int | None) -> Plan:
    if isinstance(spec, RunSpec):
        run = replace(spec, data=replace(spec.data, source=str(data)))
        return check_plan(Plan(run, 1 if seeds is None else seeds))
    settings = {"model": {"pool": spec}} if isinstance(spec, str) else spec
    return make_plan(settings, {"": {"seeds": seeds}, "data": {"source": str(data)}})


def _check_classes(loaded: Loaded, source: str) -> None:
    """Raise a ValueError if every graph has a class of its own; warn if more than half have."""
    schema, graphs = loaded.dataset.schema, len(loaded.dataset)
    kinds = schema.num_outputs
    if loaded.name is not None or schema.task != "classes" or kinds < 3 or 2 * kinds <= graphs:
        return
    form = recognise(Path(source))
    what, remedy = "the label", "give each graph the class that is to be predicted"
    if loaded.targets:
        what = f"column {loaded.targets[0]!r}"
        remedy = "choose another by target_columns (--target-columns)"
    elif form is FORMATS["jsonl"]:
        what, remedy = '"label"', 'write the class of each graph into "label"'
    numbers = all(name.removeprefix("-").isdecimal() for name in schema.targets)
    if numbers and form is not None and "task" in form.options:
        remedy += " or predict numbers by --task regression"
    message = (
        f"{what} looks like an identifier: {kinds} different values in {graphs} "
        f"{'rows' if loaded.targets else 'graphs'}; {remedy}"
    )
    if kinds == graphs:
        raise ValueError(message)
    warnings.warn(message, stacklevel=2)


@contextmanager
def _run_folder(folder: Path | str | None) -> Generator[Path]:
    """Give the folder of the runs; without one, a folder that is removed at the end."""
    if folder is not None:
        yield Path(folder)
        return
    with TemporaryDirectory(prefix="gtpool-") as scratch:
        yield Path(scratch)


def _load_best(
    runs: Sequence[RunResult], loaded: Loaded, store: Store, data_dir: Path | None
) -> BestModel | None:
    """Load the network of the lowest validation loss."""
    run = best_run(runs)
    if run is None:
        return None
    spec = run.spec
    split = choose_split(spec.split, loaded, data_dir)
    if split.digest != run.split.digest:
        raise ValueError(
            f"{store.folder} holds runs on other graphs than {split_name(run.split.rule)} has now; "
            "have its files changed? Choose another folder (--output-dir)"
        )
    data = loaded.dataset.standardized(split.train) if spec.data.standardize else loaded.dataset
    prefix = "weights."
    weights = {
        name.removeprefix(prefix): part
        for name, part in load_file(store.artifact(run.key)).items()
        if name.startswith(prefix)
    }
    model = Classifier(spec.model, shape_of(data)).eval()
    model.load_state_dict(weights)
    return BestModel(run, model, data.schema)


__getattr__ = old_names(__name__, {"Chosen": "BestModel"})
