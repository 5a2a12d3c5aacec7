"""Output of a finished cross-validation: model, plots, predictions and page."""

import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from gtpool.data.registry import DATASETS
from gtpool.data.schema import Schema
from gtpool.data.summary import describe_targets
from gtpool.model.bundle import FILES, save_bundle
from gtpool.report.calibration import describe_calibration, draw_calibration
from gtpool.report.page import MethodSection, section_cell, write_report
from gtpool.report.plot import (
    draw_confusion,
    draw_curves,
    draw_learning_curve,
    draw_roc,
    draw_scatter,
    with_background,
)
from gtpool.report.progress import Progress
from gtpool.report.result_tables import TextTable, methods_table, scores_table, tasks_table
from gtpool.spec import FOLD_RULES, DataSpec
from gtpool.study.blend import FEATURES
from gtpool.study.cross_validate import CrossValidation, RunConfig, plan_runs
from gtpool.study.final_model import FinalModel
from gtpool.study.heldout import (
    HeldOut,
    confusion,
    read_held_out,
    roc_curves,
    write_csv,
    write_held_out,
)
from gtpool.study.inputs import load_data
from gtpool.study.plan import Plan
from gtpool.study.result import RunResult
from gtpool.study.scores import (
    all_scores,
    average_members,
    ensemble_scores,
    first_seed,
    scores_by_task,
)
from gtpool.study.store import Store, write_atomic
from gtpool.study.summarize import ScoreGrid, format_metric, metric_title, run_label, split_name

BAG_NOTE = (
    "members differ in their training and validation graphs, drawn anew from both (bagging): this "
    "is not the protocol of the split"
)

SEARCHED_NOTE = (
    "gtpool search chose the options on these folds, and the validation part of a fold lies in the "
    "test part of another: the figure is optimistic"
)


def write_settings(folder: Path, plan: Plan) -> None:
    """Write ``config.json``, which reproduces the runs.

    A folder with results of other data or another target raises an error. A folder with another
    network or training emits a warning.
    """
    path, text = folder / "config.json", json.dumps(plan.to_json(), indent=2, ensure_ascii=False)
    content = f"{text}\n".encode()
    if path.exists() and path.read_bytes() != content:
        _refuse_other_data(folder, path, plan.run.data)
        warnings.warn(
            f"{folder} holds results of other settings, which these replace (its runs stay); "
            "to keep both, name another --output-dir",
            stacklevel=2,
        )
    write_atomic(path, content)


def _refuse_other_data(folder: Path, path: Path, data: DataSpec) -> None:
    """Raise a ValueError if existing settings have other data."""
    try:
        before = DataSpec.from_stored(json.loads(path.read_bytes())["data"])
    except (ValueError, KeyError, TypeError, AttributeError):  # foreign or damaged file
        return
    for name in (field.name for field in fields(data)):
        old, new = getattr(before, name), getattr(data, name)
        if name == "source" and not {old, new} & DATASETS.keys():
            old, new = Path(old).resolve(), Path(new).resolve()
        if old != new:
            raise ValueError(
                f"{folder} holds results of other data: {name} is {_setting_text(old)} there and "
                f"{_setting_text(new)} here; choose another --output-dir"
            )


def _setting_text(value: object) -> str:
    listed = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return "not given" if value is None else listed or "not given"


def write_results(folder: Path | str, result: CrossValidation) -> dict[str, Path]:
    """Write all outputs of a cross-validation, and return their paths.

    Args:
        folder: Target folder; created if missing.
        result: Result of ``cross_validate``.

    Returns:
        Path of each output by name: "page", "model", "predictions", plots such as "curves", and
        "left out" for the rows of a table that could not be used.
    """
    folder, loaded, rows = Path(folder), result.loaded, result.runs
    schema, title = loaded.dataset.schema, f"{result.plan.method} on {result.plan.data}"
    files = {"page": folder / "report.html"}
    notes = [f"Data: {describe_targets(loaded.dataset, loaded.targets)}."]
    found = result.calibrated
    before = found.before if found is not None and found.calibration.temperature else ()
    section = method_section(title, rows, result.predictions, schema, result.ensembles, before)
    lines = [*describe_trees(result), *describe_calibration(result)]
    notes += [f"{line[0].upper()}{line[1:]}." for line in lines]
    if result.curve is not None:
        notes.append(f"Learning curve: {result.curve.verdict}.")
        drawn = {_CAPTIONS["learning_curve"]: draw_learning_curve(result.curve)}
        section = section._replace(pictures={**section.pictures, **drawn})
    if result.plan.bag:
        notes.append(f"{BAG_NOTE.capitalize()}.")
    if chosen_on_test_parts(result):
        notes.append(f"{SEARCHED_NOTE}.")
    notes += [f"{note[0].upper()}{note[1:]}." for note in (*result.label_notes, *result.copy_notes)]
    if result.chosen is not None:
        files |= {"model": folder / "model", "predictions": folder / "predictions.csv"}
        _save_model(files["model"], result.chosen, result)
        notes += [_model_note(result.chosen), *_figure_notes(result)]
        columns = {"line": loaded.lines, "smiles": loaded.smiles}
        names = {name: column for name, column in columns.items() if column is not None}
        write_held_out(files["predictions"], result.predictions, schema.task, schema.targets, names)
        for name, caption in _CAPTIONS.items():
            if caption in section.pictures:
                files[name] = folder / f"{name}.svg"
                write_atomic(files[name], with_background(section.pictures[caption]).encode())
    if loaded.skipped:
        files["left out"] = folder / "left_out.csv"
        write_csv(files["left out"], ("line", "smiles", "reason"), loaded.skipped)
    write_report(files["page"], title, [section], notes, loaded.skipped)
    _remove_stale(folder, files.values())
    return files


def describe_trees(result: CrossValidation) -> list[str]:
    """Return lines about boosted trees on the same folds, and about their blend.

    Args:
        result: Result of ``cross_validate``.
    """
    trees = result.trees
    if trees is None:
        return []
    what = f"gradient boosting on descriptors ({' and '.join(FEATURES)})"
    if trees.alone is None:
        return [f"{what} {trees.reason}"]
    alone = f"{what}: {trees.alone.text} ({trees.alone.evidence})"
    if trees.blend is None or trees.networks is None:
        return [alone]
    weight, folded = trees.blend.weight, len({part.fold for part in result.predictions}) > 1
    how = "each fold tested with that of the others" if folded else "from the validation part"
    return [
        f"blend: {weight:.2f} × networks + {1 - weight:.2f} × gradient boosting (weight: {how})",
        f"networks alone: {trees.networks.text} ({trees.networks.evidence})",
        alone,
    ]


def compare_methods(
    plans: Mapping[str, Plan], how: RunConfig, page: Path, notes: Sequence[str]
) -> TextTable:
    """Run several methods on one dataset, write a page and return the table of methods.

    Args:
        plans: Runs of each method by display name.
        how: Options of the run.
        page: The HTML file to write.
        notes: Remarks on how the figures were computed.
    """
    loaded = load_data(next(iter(plans.values())).run.data, how.data_dir)
    planned = {name: plan_runs(plan, how.data_dir, loaded)[0] for name, plan in plans.items()}
    every = [spec for specs in planned.values() for spec in specs]
    with Progress() as watch:
        found = how.run(every, keep=True, watch=watch, loaded=loaded)
    by_key = {row.key: row for row in found}
    rows = {name: [by_key[spec.key] for spec in specs] for name, specs in planned.items()}
    schema, artifact = loaded.dataset.schema, Store(how.folder).artifact
    sections: list[MethodSection] = []
    for name, several in rows.items():
        plan = plans[name]
        parts = average_members(read_held_out(several, artifact, schema.task), plan)
        scores = None
        if plan.ensemble > 1:
            scores = ensemble_scores(several, parts, plan, schema.task)
        sections.append(method_section(name, several, parts, schema, scores))
    write_report(page, f"{' · '.join(plans)} on {schema.name}", sections, notes)
    return methods_table(rows, {section.name: section_cell(section) for section in sections})


def single_split_note(rows: Sequence[RunResult]) -> str | None:
    """Return a warning if all results use a single split; None if they use several."""
    if len({replace(row.spec.split, bag=0) for row in rows if row.split.digest}) != 1:
        return None
    spec = rows[0].spec
    kinds = {
        "random": "; --split-type folds cross-validates",
        "scaffold": ", the benchmark's own" if spec.data.source in DATASETS else ", by scaffold",
        "column": ", the table's own",
        "time": ", the newest rows tested",
    }
    return f"the figure rests on one split{kinds.get(spec.split.rule, '')}"


def chosen_on_test_parts(result: CrossValidation) -> bool:
    """Return whether a search chose the options by validation parts that are tested here."""
    return result.plan.searched and result.runs[0].spec.split.rule in FOLD_RULES


def _remove_stale(folder: Path, written: Collection[Path]) -> None:
    """Remove outputs of earlier settings that the current ones do not write."""
    names = ("predictions.csv", "left_out.csv", *(f"{name}.svg" for name in _CAPTIONS))
    stale = {folder / name for name in names} - set(written)
    if folder / "model" not in written:
        stale |= {folder / "model" / name for name in FILES}
    for path in stale:
        path.unlink(missing_ok=True)
    with suppress(OSError):  # missing, or not empty
        (folder / "model").rmdir()


def method_section(
    name: str,
    rows: Sequence[RunResult],
    parts: Sequence[HeldOut],
    schema: Schema,
    ensembles: ScoreGrid | None = None,
    before: Sequence[HeldOut] = (),
) -> MethodSection:
    """Return the page section of a method.

    Args:
        name: Heading of the section.
        rows: The runs; failed runs are not plotted.
        parts: Test predictions of the runs, or of the ensembles.
        schema: Schema of the predictions.
        ensembles: Test metric of each ensemble; None for single runs.
        before: Test predictions before calibration, if they were calibrated.
    """
    pictures = _draw(rows, parts, schema, before) if parts else {}
    captioned = {_CAPTIONS[which]: svg for which, svg in pictures.items()}
    several = parts and schema.task != "classes" and schema.num_outputs > 1
    tasks = _task_metrics(parts, schema) if several else None
    scores = scores_table(all_scores(parts, schema.task)) if parts else None
    return MethodSection(name, rows, captioned, tasks, scores, ensembles)


def _task_metrics(parts: Sequence[HeldOut], schema: Schema) -> TextTable:
    """Return the table by task; graphs tested by several runs count as one label."""
    _, first = np.unique(np.concatenate([part.graph for part in parts]), return_index=True)
    y = np.concatenate([part.y for part in parts])[first]
    by_task = scores_by_task(parts, schema.task)
    return tasks_table(schema.targets, (~np.isnan(y)).sum(0).tolist(), by_task)


_CAPTIONS = {
    "curves": "Mean over the runs and range from lowest to highest, by epoch, "
    "up to the last epoch that half of the runs reach.",
    "confusion": "Test graphs of all runs, by true and predicted class.",
    "reliability": "Test graphs of all runs: how often predictions are right, by their "
    "probability in 15 bins; of the predicted class, or of the label 1.",
    "roc": "ROC curve of each run and task on its test part, and their mean.",
    "scatter": "Test graphs of all runs: predicted against true values.",
    "learning_curve": "Test metric by number of training graphs: thin lines are folds or seeds, "
    "bars the standard deviation.",
}


def _draw(
    rows: Sequence[RunResult],
    parts: Sequence[HeldOut],
    schema: Schema,
    before: Sequence[HeldOut] = (),
) -> dict[str, str]:
    """Return the plots of the curves and of the task, by file name."""
    pictures = {"curves": draw_curves([row for row in rows if row.done])}
    if schema.task == "regression":
        true = np.concatenate([part.y.ravel() for part in parts])
        said = np.concatenate([part.output.ravel() for part in parts])
        known = ~np.isnan(true)
        return pictures | {"scatter": draw_scatter(true[known], said[known])}
    if schema.task == "classes":
        counts = confusion(parts, schema.num_outputs)
        pictures["confusion"] = draw_confusion(counts, schema.targets)
    else:
        pictures["roc"] = draw_roc(roc_curves(parts))
    return pictures | {"reliability": draw_calibration(parts, before)}


def _figure_notes(result: CrossValidation) -> list[str]:
    """Return what to know beside the figures."""
    one, positive = single_split_note(result.runs), positive_note(result.loaded.dataset.schema)
    notes = [f"{note[0].upper()}{note[1:]}." for note in (one, positive) if note]
    if result.majority is not None:
        notes.append(f"Majority-class baseline: {100 * result.majority:.2f}.")
    return notes


def positive_note(schema: Schema) -> str | None:
    """Return which of two classes counts as positive; None if there are not two classes."""
    if schema.task != "classes" or schema.num_outputs != 2:
        return None
    return f"F1, PR-AUC and Brier score are those of class {schema.targets[1]!r}"


def describe_final(final: FinalModel) -> str:
    """Say in words which runs made the saved model."""
    if len(final.runs) == 1:
        return f"{run_label(final.run.spec)}, the run with the lowest validation loss"
    seeds = sorted({run.spec.seed for run in final.runs})
    folds = {run.spec.split.fold for run in final.runs}
    trained = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    where = f"{len(folds)} folds"
    if len(folds) == 1:
        where = run_label(final.run.spec).partition(", ")[2] or "one split"
    return f"ensemble of {len(final.runs)} models: {trained}, {where}"


def _model_note(final: FinalModel) -> str:
    row, runs = final.run, final.runs
    loss = "not finite" if final.valid_loss is None else f"{final.valid_loss:.4f}"
    if len(runs) == 1:
        return (
            f"The saved model is that of {run_label(row.spec)}, the run of the lowest validation "
            f"loss ({loss}); on its own test part it has {format_metric(row.test, row.metric)} "
            f"({metric_title(row.metric)})."
        )
    note = f"The saved model is an {describe_final(final)}; mean validation loss {loss}."
    if len({run.spec.split.fold for run in runs}) == 1:
        return note
    return (
        f"{note} Together its members were trained on every part, so its metric on these graphs "
        "would be too high; the figure below is that of the folds."
    )


def _save_model(folder: Path, final: FinalModel, result: CrossValidation) -> None:
    """Save the model with the metadata to predict other graphs."""
    row = final.run
    about: dict[str, Any] = {
        "schema": final.schema.to_json(),
        "metrics": _metrics(final, result),
        "data": {
            "target_columns": result.loaded.targets,
            "graphs": len(result.loaded.dataset),
            "train": row.split.train,
            "valid": row.split.valid,
            "test": row.split.test,
            "trained": len(final.trained),
            "split": split_name(row.split.rule),
        },
        "all_runs": result.cell._asdict(),
        "scores": {name: cell.mean for name, cell in result.scores.items()},
        "versions": row.versions,
        "run": row.spec_json,
        "source_digest": row.source_digest,
    }
    if len(final.runs) > 1:
        about["members"] = [
            {
                "seed": run.spec.seed,
                "fold": run.spec.split.fold,
                "bag": run.spec.split.bag,
                "valid_loss": run.valid_loss,
                "key": run.key,
            }
            for run in final.runs
        ]
    blend = None if result.trees is None else result.trees.blend
    found = None if result.calibrated is None else result.calibrated.calibration
    save_bundle(folder, final.model, about, blend, found, final.fingerprints)


def _metrics(final: FinalModel, result: CrossValidation) -> dict[str, Any]:
    """Return the figures of the saved model; an ensemble of folds has no test part of its own."""
    row = final.run
    found = {"metric": row.metric, "valid_loss": final.valid_loss}
    scores = result.ensembles
    if len(final.runs) == 1 and (scores is None or scores.kind == "ensemble"):
        return {**found, "test": row.test, "valid_metric": row.valid_metric}
    if len({run.spec.split.fold for run in final.runs}) > 1 or scores is None:
        return {**found, "cross_validated": result.mean}
    place = scores.seeds.index(first_seed(row.spec.seed, result.plan))
    return {**found, "test": scores.values[place][scores.folds.index(row.spec.split.fold)]}
