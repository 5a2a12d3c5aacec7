"""Cross-validation of a network on a dataset."""

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

from gtpool.data.duplicates import count_copies, describe_copies
from gtpool.data.formats import FORMATS, recognise
from gtpool.data.formats.reader import Skipped
from gtpool.data.parallel import watched_by
from gtpool.data.targets import check_varied
from gtpool.model import METHODS
from gtpool.pool import POOLS
from gtpool.spec import RunSpec
from gtpool.study.blend import BesideTrees, check_blend, fit_beside, validation_parts
from gtpool.study.calibrate import Calibrated, calibrate_parts, check_calibration
from gtpool.study.executor import Executor, Watcher
from gtpool.study.final_model import FinalModel, load_final
from gtpool.study.heldout import HeldOut, missing_labels, read_held_out
from gtpool.study.inputs import Loaded, expand_folds, load_data
from gtpool.study.learning_curve import LearningCurve, curve_specs, learning_curve_of
from gtpool.study.plan import Handover, Plan, check_plan, make_plan
from gtpool.study.recipe import is_table
from gtpool.study.result import RunResult
from gtpool.study.run import run_many
from gtpool.study.scores import all_scores, average_members, ensemble_scores
from gtpool.study.split_rules import choose_split
from gtpool.study.start import new_network, with_start
from gtpool.study.store import Store
from gtpool.study.summarize import MetricSummary, ScoreGrid, summarize, summarize_grid
from gtpool.train.metric import metric_of

OnStart = Callable[[Loaded, Sequence[RunSpec]], object]
"""Called with the data and the runs before the first run."""


class RunConfig(NamedTuple):
    """Where and how to run; results on one type of device do not depend on it."""

    folder: Path
    data_dir: Path | None = None
    jobs: int = 1
    device: str = "auto"
    deterministic: bool = False
    together: int | None = None
    executor: Executor | None = None

    def run(
        self,
        specs: Sequence[RunSpec],
        *,
        keep: bool,
        watch: Watcher | None,
        loaded: Loaded | None = None,
    ) -> list[RunResult]:
        """Return the results of all runs; only those missing in the folder are done.

        Args:
            specs: The runs.
            keep: Store the weights and test logits of each run.
            watch: Receives progress events.
            loaded: Data that is already loaded.
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


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossValidation:
    """Result of a cross-validation."""

    plan: Plan
    """The requested runs."""
    runs: list[RunResult]
    """Result of each run, sorted by seed and fold."""
    loaded: Loaded
    """The dataset with its source."""
    predictions: list[HeldOut]
    """Test predictions of each finished run, ensemble or blend, sorted by seed and fold."""
    chosen: FinalModel | None
    """The model to use on other graphs, as ``plan.handover`` says; None if all runs failed."""
    trees: BesideTrees | None = None
    """Boosted trees on the same folds, and their blend with the networks; None if not asked for."""
    curve: LearningCurve | None = None
    """Scores on smaller training parts; None if not asked for, or if all runs of a size failed."""
    calibrated: Calibrated | None = None
    """Calibration of the model, and its evidence; None if all runs failed."""

    @cached_property
    def cell(self) -> MetricSummary:
        """Mean and standard deviation of the test metric: of runs, or of what predicts as one."""
        scores = self.ensembles
        if scores is None:
            return self.single
        return summarize_grid(scores, members=self.plan.ensemble)

    @cached_property
    def single(self) -> MetricSummary:
        """Mean, standard deviation and number of runs of the test metric of single runs."""
        return summarize(self.runs)

    @cached_property
    def ensembles(self) -> ScoreGrid | None:
        """Test metric of each ensemble or blend, by first seed and fold; None for single runs.

        A single run counts as calibrated if temperature or threshold can change its metric.
        """
        plan, task = self.plan, self.loaded.dataset.schema.task
        metric = metric_of(task, plan.run.train.metric)
        by_rank = metric.by_order or metric.decides
        changed = (plan.calibrate and not by_rank) or (plan.threshold and metric.decides)
        if plan.ensemble == 1 and not plan.blend and not changed:
            return None
        scores = ensemble_scores(self.runs, self.predictions, plan, task)
        kind = "blend" if plan.blend else "ensemble" if plan.ensemble > 1 else "calibrated"
        return scores._replace(kind=kind)

    @cached_property
    def scores(self) -> dict[str, MetricSummary]:
        """Mean and deviation of every metric of the task by name, of runs or of ensembles."""
        task = self.loaded.dataset.schema.task
        return all_scores(self.predictions, task, self.plan.ensemble)

    @property
    def metric(self) -> str:
        """Name of the test metric: that of the plan, else "accuracy", "roc_auc" or "rmse"."""
        return self.cell.metric

    @property
    def mean(self) -> float | None:
        """Mean of the test metric over seeds and folds; None if all runs failed."""
        return self.cell.mean

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds, or over folds for one seed; None for one run."""
        return self.cell.std

    @cached_property
    def majority(self) -> float | None:
        """Test accuracy of predicting the majority class; None without classes."""
        data = self.loaded.dataset
        if data.schema.task != "classes" or not self.predictions:
            return None
        largest = data.y.bincount().argmax().item()
        return fmean(float((part.y == largest).mean()) for part in self.predictions)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Rows of a table that were skipped."""
        return self.loaded.skipped

    @property
    def repeated(self) -> int:
        """Number of rows of a table that repeat the molecule of an earlier row."""
        return count_copies(self.loaded.molecules or ())

    @cached_property
    def label_notes(self) -> list[str]:
        """Notes on classes and labels that some test parts do not have."""
        schema = self.loaded.dataset.schema
        return missing_labels(self.predictions, schema.task, schema.targets)

    @property
    def copy_notes(self) -> list[str]:
        """Notes about copies of molecules in a table, and about their contradicting targets."""
        loaded, split = self.loaded, self.runs[0].spec.split
        if loaded.molecules is None or loaded.lines is None:
            return []
        data, apart = loaded.dataset, split.copies == "apart" or split.rule == "column"
        task = data.schema.task
        return describe_copies(loaded.molecules, data.y, task, lines=loaded.lines, apart=apart)


def cross_validate(
    data: str | Path,
    spec: str | Mapping[str, Any] | RunSpec = "gtpool-v",
    *,
    recipe: str = "best",
    seeds: int | None = None,
    ensemble: int | None = None,
    bag: bool | None = None,
    handover: Handover | None = None,
    blend: bool | None = None,
    threshold: str | None = None,
    calibrate: bool | None = None,
    boosting: bool = False,
    learning_curve: bool | None = None,
    folder: Path | str | None = None,
    data_dir: Path | None = None,
    jobs: int = 1,
    device: str = "auto",
    deterministic: bool = False,
    together: int | None = None,
    executor: Executor | None = None,
    start: Path | str | None = None,
    freeze_encoder: bool | None = None,
    watch: Watcher | None = None,
    on_start: OnStart | None = None,
) -> CrossValidation:
    """Train and test a network on every fold of a dataset, for one seed or several.

    ``gtpool train`` calls this function. ``gtpool.report.results.write_results`` writes the output
    files of the command: page, model, predictions and plots.

    Args:
        data: A name of ``DATASETS``, or the path of a table, folder or JSON lines file.
        spec: Name of a method or pooler, or options as in a settings file of ``gtpool train
            --config``; the recipe supplies the rest. A ``RunSpec`` is used as it is, except for its
            data source and fold.
        recipe: "best", or "paper" for the letter of the paper.
        seeds: Number of seeds, starting at that of the spec. By default that of the options, or 1.
            With ``ensemble``, the number of ensembles.
        ensemble: Number of members with consecutive seeds that predict as one: the test metric is
            that of their mean probability or value. By default that of the options, or 1.
        bag: Let members also differ in the graphs that train and validate, drawn anew from both.
            The test part stays; this is another protocol.
        handover: "folds" (default) makes the models of all folds one ensemble, which becomes
            ``chosen``; "best" takes the fold with the lowest validation loss.
        blend: Let boosted trees on descriptors of molecules predict together with the networks;
            needs scikit-learn and a source with SMILES.
        threshold: Metric, such as "mcc", for which out-of-fold predictions choose the probability
            from which on the second of two classes, or a binary task, is predicted.
        calibrate: Divide logits by a temperature that out-of-fold predictions choose.
        boosting: Also measure such trees alone on the same folds, if scikit-learn is installed and
            the source is a table of SMILES.
        learning_curve: Repeat the runs on a quarter and a half of each training part, as ``curve``.
        folder: Store of finished runs, so that repeating the call does only missing runs. By
            default nothing is stored.
        data_dir: Folder searched first for a dataset known by name.
        jobs: Number of worker processes.
        device: "auto" (a GPU if available), "cpu", "cuda" or "cuda:N".
        deterministic: Use deterministic algorithms of torch only.
        together: Maximum number of runs that train as one ensemble. By default 100 on a GPU and 1
            on a CPU.
        executor: Does the runs instead of this machine, such as
            ``gtpool.study.ray_executor.RayExecutor``.
        start: Folder of a trained model to start from: its options and weights, with a new head.
        freeze_encoder: Train the head alone; requires ``start``.
        watch: Receives progress events, such as ``gtpool.report.progress.Progress``.
        on_start: Called with the data and the runs before the first run, after both are checked.

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
    given: dict[str, Any] = {"seeds": seeds, "ensemble": ensemble, "bag": bag}
    given |= {"handover": handover, "blend": blend, "learning_curve": learning_curve}
    given |= {"threshold": threshold, "calibrate": calibrate}
    training = {"start": None if start is None else str(start), "freeze_encoder": freeze_encoder}
    plan = _plan(data, spec, given, training, recipe)
    with watched_by(watch):
        specs, loaded = plan_runs(plan, data_dir)
    if on_start is not None:
        on_start(loaded, specs)
    with _run_folder(folder) as place:
        how = RunConfig(place, data_dir, jobs, device, deterministic, together, executor)
        runs = how.run(specs, keep=True, watch=watch, loaded=loaded)
        store, task = Store(place), loaded.dataset.schema.task
        parts, curve = read_held_out(runs, store.artifact, task), None
        if plan.learning_curve:
            fewer = how.run(curve_specs(specs), keep=True, watch=watch, loaded=loaded)
            curve = learning_curve_of([*runs, *fewer], plan, task, store.artifact)
        chosen, trees = load_final(runs, plan, loaded, store, data_dir), None
        if chosen is not None and (plan.blend or (boosting and is_table(plan.run.data.source))):
            trees = fit_beside(runs, chosen.runs, parts, plan, loaded, store, data_dir)
        blended = None if trees is None else trees.predictions
        predictions, found = average_members(parts, plan) if blended is None else blended, None
        if chosen is not None:

            def validation() -> Sequence[HeldOut]:
                if trees is not None and trees.blend is not None:
                    return trees.validation
                held = validation_parts(runs, loaded, store, data_dir)
                return held if plan.bag else average_members(held, plan)

            task, seed = loaded.dataset.schema.task, chosen.run.spec.seed
            found = calibrate_parts(predictions, plan, task, seed, validation)
        return CrossValidation(
            plan=plan,
            runs=runs,
            loaded=loaded,
            predictions=predictions if found is None else found.parts,
            chosen=chosen,
            trees=trees,
            curve=curve,
            calibrated=found,
        )


def plan_runs(
    plan: Plan, data_dir: Path | None = None, loaded: Loaded | None = None
) -> tuple[list[RunSpec], Loaded]:
    """Return the runs of a plan and their data; raise if data, split or network are invalid.

    Args:
        plan: The requested runs.
        data_dir: Folder searched first for a dataset known by name.
        loaded: Data that is already loaded.
    """
    model, known = plan.run.model, dict.fromkeys(["none", *METHODS, *POOLS])
    if model.pool not in known:
        near = get_close_matches(model.pool, known, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"unknown pooler or method {model.pool!r}; {hint}known: {', '.join(known)}"
        )
    loaded = load_data(plan.run.data, data_dir, loaded)
    _check_classes(loaded, plan.run.data.source)
    schema = loaded.dataset.schema
    check_varied(loaded.dataset.y, schema.task, schema.targets)
    metric_of(loaded.dataset.schema.task, plan.run.train.metric)
    new_network(plan.run, loaded.dataset)
    specs = expand_folds(
        plan.run,
        seeds=plan.seeds * plan.ensemble,
        bag=plan.bag,
        data_dir=data_dir,
        loaded=loaded,
    )
    choose_split(specs[0].split, loaded, data_dir)
    check_blend(plan, loaded, data_dir)
    check_calibration(plan, loaded.dataset.schema)
    return specs, loaded


def _plan(
    data: str | Path,
    spec: str | Mapping[str, Any] | RunSpec,
    given: Mapping[str, Any],
    training: Mapping[str, Any],
    recipe: str,
) -> Plan:
    """Return the plan of a spec; options that are None are those of the spec."""
    if isinstance(spec, RunSpec):
        train = {name: value for name, value in training.items() if value is not None}
        run = replace(
            spec,
            data=replace(spec.data, source=str(data)),
            train=replace(spec.train, **train),
        )
        options: dict[str, Any] = {"seeds": 1}
        options |= {name: value for name, value in given.items() if value is not None}
        return check_plan(Plan(with_start(run), **options))
    settings = {"model": {"pool": spec}} if isinstance(spec, str) else spec
    options = {"": given, "data": {"source": str(data)}, "train": training}
    return make_plan(settings, options, recipe)


def _check_classes(loaded: Loaded, source: str) -> None:
    """Raise if each graph has its own class; warn if there are classes for more than half."""
    schema, graphs = loaded.dataset.schema, len(loaded.dataset)
    kinds = schema.num_outputs
    if loaded.name is not None or schema.task != "classes" or kinds < 3 or 2 * kinds <= graphs:
        return
    form = recognise(Path(source))
    what, remedy = "the label", "set the class of each graph"
    if loaded.targets:
        what = f"column {loaded.targets[0]!r}"
        remedy = "choose another column with target_columns (--target-columns)"
    elif form is FORMATS["jsonl"]:
        what, remedy = '"label"', 'set "label" to the class of each graph'
    numbers = all(name.removeprefix("-").isdecimal() for name in schema.targets)
    if numbers and form is not None and "task" in form.options:
        remedy += " or use --task regression"
    message = (
        f"{what} looks like an identifier: {kinds} distinct values in {graphs} "
        f"{'rows' if loaded.targets else 'graphs'}; {remedy}"
    )
    if kinds == graphs:
        raise ValueError(message)
    warnings.warn(message, stacklevel=2)


@contextmanager
def _run_folder(folder: Path | str | None) -> Generator[Path]:
    """Yield the folder, or a temporary one if there is none."""
    if folder is not None:
        yield Path(folder)
        return
    with TemporaryDirectory(prefix="gtpool-") as scratch:
        yield Path(scratch)
