"""What a finished cross-validation leaves behind: model, pictures, predictions, page."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from gtpool.commands.plan import Plan
from gtpool.data.schema import Schema
from gtpool.model.bundle import save_bundle
from gtpool.model.classifier import Classifier
from gtpool.report.cells import Row, best, rule_of, shown, titled
from gtpool.report.heldout import HeldOut, confusion, read_held_out, roc_curves, write_held_out
from gtpool.report.plot import draw_confusion, draw_curves, draw_roc, draw_scatter, standalone
from gtpool.report.site import Section, write_report
from gtpool.spec import RunSpec
from gtpool.study.inputs import Loaded, choose_split, load_data, shape_of
from gtpool.study.store import Store, write_whole


def write_settings(folder: Path, plan: Plan) -> None:
    """Write ``config.json``, with which the same runs can be asked for again."""
    path, text = folder / "config.json", json.dumps(plan.to_json(), indent=2, ensure_ascii=False)
    content = f"{text}\n".encode()
    if path.exists() and path.read_bytes() != content:
        warnings.warn(
            f"{folder} holds results of other settings, which these replace (its runs stay); "
            "to keep both, name another --output-dir",
            stacklevel=2,
        )
    write_whole(path, content)


def write_results(
    folder: Path,
    title: str,
    rows: Sequence[Row],
    loaded: Loaded,
    data_dir: Path | None,
    guess: float | None,
) -> dict[str, Path]:
    """Write all that people look at or use later, and say where it lies.

    Args:
        folder: Where; its store holds the runs.
        title: What was done, in words.
        rows: The runs of one method on one dataset.
        loaded: That dataset.
        data_dir: Where to look first for a dataset known by name.
        guess: Accuracy of saying the largest class to all, if there are classes.
    """
    store, schema = Store(folder), loaded.dataset.schema
    files, notes = {"page": folder / "report.html"}, []
    section = method_section(title, rows, store, schema)
    chosen = best(rows)
    if chosen is not None:
        files |= {"model": folder / "model", "predictions": folder / "predictions.csv"}
        _save_model(files["model"], chosen, store, data_dir)
        notes = [_choice(chosen)]
        if guess is not None:
            notes.append(f"The largest class said to all graphs would have {100 * guess:.2f}.")
        parts = read_held_out(rows, store.artifact, schema.task)
        columns = {"line": loaded.lines, "smiles": loaded.smiles}
        names = {name: column for name, column in columns.items() if column is not None}
        write_held_out(files["predictions"], parts, schema.task, schema.targets, names)
        for name, caption in _CAPTIONS.items():
            if caption in section.pictures:
                files[name] = folder / f"{name}.svg"
                write_whole(files[name], standalone(section.pictures[caption]).encode())
    write_report(files["page"], title, [section], notes)
    return files


def method_section(name: str, rows: Sequence[Row], store: Store, schema: Schema) -> Section:
    """Draw the runs of a method for a page.

    Args:
        name: Its heading.
        rows: The runs; those that failed are in no picture.
        store: Where their test predictions lie.
        schema: What the predictions mean.
    """
    parts = read_held_out(rows, store.artifact, schema.task)
    pictures = _draw(rows, parts, schema) if parts else {}
    return Section(name, rows, {_CAPTIONS[which]: svg for which, svg in pictures.items()})


_CAPTIONS = {
    "curves": "Mean over the runs and range from lowest to highest, by epoch, "
    "as long as half of the runs go on.",
    "confusion": "Test graphs of all runs, by true and predicted class.",
    "roc": "ROC curve of each run and task on its test part, and their mean.",
    "scatter": "Test graphs of all runs: predicted against true values.",
}


def _draw(rows: Sequence[Row], parts: Sequence[HeldOut], schema: Schema) -> dict[str, str]:
    """Draw the curves and what fits the task, by the names of the files."""
    pictures = {"curves": draw_curves([row for row in rows if row["status"] == "done"])}
    if schema.task == "classes":
        counts = confusion(parts, schema.num_outputs)
        return pictures | {"confusion": draw_confusion(counts, schema.targets)}
    if schema.task == "binary":
        return pictures | {"roc": draw_roc(roc_curves(parts))}
    true = np.concatenate([part.y.ravel() for part in parts])
    said = np.concatenate([part.output.ravel() for part in parts])
    known = ~np.isnan(true)
    return pictures | {"scatter": draw_scatter(true[known], said[known])}


def _choice(row: Row) -> str:
    spec, metric = row["spec"], row["metric"]
    return (
        f"The saved model is that of seed {spec['seed']}, fold {spec['split']['fold'] + 1}, the "
        f"run of the lowest validation loss ({row['valid_loss']:.4f}); on its own test part it has "
        f"{shown(row['test'], metric)} ({titled(metric)})."
    )


def _save_model(folder: Path, row: Row, store: Store, data_dir: Path | None) -> None:
    """Save the network of a run with all that it takes to use it on other graphs."""
    spec = RunSpec.from_json(row["spec"])
    loaded = load_data(spec.data, data_dir)
    split = choose_split(spec.split, loaded, data_dir)
    if split.digest != row["split"]["digest"]:
        raise ValueError(
            f"{store.folder} holds runs on other graphs than {rule_of(row)} has now; have its "
            "files changed? Choose another --output-dir"
        )
    data = loaded.dataset.standardized(split.train) if spec.data.standardize else loaded.dataset
    tensors = load_file(store.artifact(row["key"]))
    prefix = "weights."
    weights = {
        name.removeprefix(prefix): part for name, part in tensors.items() if name.startswith(prefix)
    }
    model = Classifier(spec.model, shape_of(data))
    model.load_state_dict(weights)
    about: dict[str, Any] = {
        "schema": data.schema.to_json(),
        "metrics": {
            "metric": row["metric"],
            "test": row["test"],
            "valid_metric": row["valid_metric"],
            "valid_loss": row["valid_loss"],
        },
        "versions": row["versions"],
        "run": row["spec"],
        "source_digest": row.get("source_digest"),
    }
    save_bundle(folder, model, about)
