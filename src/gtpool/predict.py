"""Prediction and evaluation of a saved model on new graphs."""

from collections.abc import Iterator, Sequence
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gtpool.data.delimited import format_csv, safe_cell
from gtpool.data.formats.reader import InferenceData, InputRow, RowUnit, true_targets
from gtpool.data.graph_features import describe_molecules, descriptor_names
from gtpool.data.inference import check_fit, read_schema
from gtpool.data.schema import Recipe, Schema, Task
from gtpool.data.similarity import Neighbour, check_fingerprints, find_neighbours
from gtpool.data.sources import read_for_inference, smiles_of
from gtpool.model.bundle import Bundle
from gtpool.model.calibration import Calibration
from gtpool.model.predictor import EnsemblePredictor, members_of
from gtpool.ops.average import average_outputs, member_spread, probabilities
from gtpool.ops.calibrate import decide
from gtpool.study.inputs import source_digest
from gtpool.study.run_one import choose_device
from gtpool.study.store import write_atomic
from gtpool.train.fit import predict_members
from gtpool.train.metric import TASK_METRICS, metric_of

OVERFLOW = "its features are so large that the model gives no number"


class Prediction(NamedTuple):
    """The prediction for one row of the input."""

    number: int
    """Line of the file, or index of the graph."""
    id: str
    """The SMILES of a table, the id of JSON lines, else ""."""
    value: str | tuple[float, ...] | None
    """Class name, or one number per task: 0 or 1, or the regression value; None with a reason."""
    probabilities: tuple[float, ...]
    """Probability of each class, or that each binary task is 1; empty for regression."""
    reason: str | None = None
    """Why there is no prediction, or None."""
    record: tuple[str, ...] = ()
    """All cells of a table row, unchanged."""
    spread: tuple[float, ...] = ()
    """Standard deviation (n - 1) over the members of an ensemble, of each probability or value."""
    regions: tuple[tuple[str | float, ...], ...] = ()
    """Conformal set of labels, or lowest and highest value, of each target (one for classes); empty
    if no coverage was asked for."""
    neighbour: Neighbour | None = None
    """Similarity of a molecule to the training molecules, if the model stores these."""


class Decoded(NamedTuple):
    """What a model says of one graph; the fields are those of ``Prediction``."""

    value: str | tuple[float, ...] | None = None
    probabilities: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    regions: tuple[tuple[str | float, ...], ...] = ()


class Predictions(NamedTuple):
    """The predictions for all rows, in the order of the input."""

    unit: RowUnit
    """Whether ``number`` of a row is a line or the index of a graph."""
    task: Task
    targets: tuple[str, ...]
    """Names of the classes or tasks."""
    rows: tuple[Prediction, ...]
    columns: tuple[str, ...] = ()
    """Names of all columns of a table, unchanged; empty for other sources."""
    members: int = 1
    """Number of networks whose mean is the prediction."""
    compared: bool = False
    """Whether rows with a prediction have a ``neighbour``."""
    coverage: float | None = None
    """Stated coverage of the regions; None without regions."""


def predict_source(
    bundle: Bundle,
    source: str | Path,
    *,
    data_dir: Path | None = None,
    smiles_column: str | None = None,
    device: str = "auto",
    coverage: float | None = None,
) -> Predictions:
    """Return a prediction, or a reason why there is none, for every row of a source.

    Features are made by the recipe of the model's training data. A source whose features do not
    match the model is an error.

    Args:
        bundle: A trained model, from ``load_bundle``.
        source: A name of ``DATASETS``, or a path: a table of SMILES, JSON lines, a folder in TU or
            OGB format, or a saved dataset. Labels are ignored.
        data_dir: Where to look first for a dataset known by name.
        smiles_column: SMILES column of a table; by default the one that the model was trained on
            if it exists, else the one called "smiles".
        device: "auto", "cpu" or "cuda".
        coverage: Stated coverage of conformal sets or intervals, such as 0.9; None for none.
    """
    schema, calibration = schema_of(bundle), bundle.calibration
    if coverage is not None:
        calibration.limits(coverage)
    read = read_for_inference(
        source,
        schema,
        data_dir=data_dir,
        smiles_column=smiles_column,
        trained_column=bundle.part("run", "data").get("smiles_column"),
    )
    return predict_read(bundle, read, device, _smiles(bundle, source, read, data_dir), coverage)


def predict_read(
    bundle: Bundle,
    read: InferenceData,
    device: str,
    smiles: Sequence[str] | None,
    coverage: float | None = None,
) -> Predictions:
    """Return the predictions for rows that have been read.

    Args:
        bundle: A trained model, from ``load_bundle``.
        read: The rows and their graphs.
        device: "auto", "cpu" or "cuda".
        smiles: SMILES of the rows without a reason, for a blend and for the similarity to the
            training molecules; None if there are none.
        coverage: Stated coverage of conformal sets or intervals; None for none.
    """
    schema = schema_of(bundle)
    outputs = _outputs(bundle, read, device, smiles)
    if smiles is not None:
        smiles = [text for text, sound in zip(smiles, finite_graphs(outputs), strict=True) if sound]
    outputs, read = _drop_overflowed(outputs, read)
    told = decode_outputs(schema, outputs, bundle.calibration, coverage)
    rows: list[Prediction] = []
    for row in read.rows:
        more = (next(told) if row.reason is None else Decoded())._asdict()
        rows.append(Prediction(row.number, row.id, reason=row.reason, record=row.record, **more))
    members = len(members_of(bundle.model))
    found = Predictions(read.unit, schema.task, schema.targets, tuple(rows), read.columns, members)
    found = found._replace(coverage=coverage)
    return _compare(bundle, found, smiles)


def _predicted(read: InferenceData) -> list[InputRow]:
    return [row for row in read.rows if row.reason is None]


def _compare(bundle: Bundle, found: Predictions, smiles: Sequence[str] | None) -> Predictions:
    """Add the similarity to the training molecules, if model and source have molecules."""
    if bundle.fingerprints is None or smiles is None:
        return found
    told = iter(compare_molecules(bundle, smiles))
    rows = (row._replace(neighbour=next(told)) if row.reason is None else row for row in found.rows)
    return found._replace(rows=tuple(rows), compared=True)


def compare_molecules(bundle: Bundle, smiles: Sequence[str]) -> list[Neighbour]:
    """Return how molecules relate to the training molecules of a model that stores these.

    Args:
        bundle: A trained model, from ``load_bundle``.
        smiles: The molecules.
    """
    if bundle.fingerprints is None:
        return []
    where = str(bundle.folder or "the model")
    return find_neighbours(smiles, check_fingerprints(bundle.fingerprints.numpy(), where))


def evaluate_source(
    bundle: Bundle,
    source: str | Path,
    *,
    data_dir: Path | None = None,
    smiles_column: str | None = None,
    target_columns: Sequence[str] = (),
    device: str = "auto",
    coverage: float | None = None,
) -> dict[str, Any]:
    """Return metrics of the predictions against the labels of a source.

    Args:
        bundle: A trained model, from ``load_bundle``.
        source: As for ``predict_source``, with labels; its classes must be those of the model.
        data_dir: Where to look first for a dataset known by name.
        smiles_column: SMILES column of a table; by default the one that the model was trained on
            if it exists, else the one called "smiles".
        target_columns: Target columns of a table; by default those that the model was trained on.
            If that is one column and it is missing, the only other column is used. Names of the
            model's targets are matched in any order, other names by position.
        device: "auto", "cpu" or "cuda".
        coverage: Stated coverage of conformal sets or intervals to measure; None for none.

    Returns:
        ``metric``, its ``value``, ``higher_is_better``, all ``scores`` by name (None if undefined),
        the number of evaluated ``graphs``, and the rows ``left_out``, each with a reason. For
        classes also ``targets`` and the ``confusion`` matrix, with one row per true class. For
        several tasks also ``tasks``, each with its ``task``, ``value`` (None if undefined), number
        of ``labels`` and ``scores``. For a table also ``compared``: each ``column`` with the
        model's ``target`` (None if its name is unknown). With ``coverage`` also ``covered``, the
        share of the known targets that are in their conformal set or interval.
    """
    schema = schema_of(bundle)
    if coverage is not None:
        bundle.calibration.limits(coverage)
    trained, targets = bundle.part("run", "data"), _trained_targets(bundle, schema)
    read = read_for_inference(
        source,
        schema,
        data_dir=data_dir,
        smiles_column=smiles_column,
        trained_column=trained.get("smiles_column"),
        target_columns=target_columns,
        trained_targets=targets,
    )
    outputs = _outputs(bundle, read, device, _smiles(bundle, source, read, data_dir))
    outputs, read = _drop_overflowed(outputs, read)
    told = [row for row in read.rows if row.reason is None]
    labelled = [place for place, row in enumerate(told) if row.label is not None]
    if not labelled:
        raise ValueError(f"{source} has no graph that has a label and can be predicted")
    y = true_targets([told[place] for place in labelled], schema)
    logits = bundle.calibration.scale(average_outputs(outputs[labelled], schema.task))
    threshold = bundle.calibration.least
    metric = metric_of(schema.task, bundle.part("run", "train").get("metric"))
    known, shares = TASK_METRICS[schema.task], probabilities(logits, schema.task)
    left_out = [(row.number, row.reason) for row in read.rows if row.reason is not None]
    left_out += [(row.number, "no label") for row in told if row.label is None]
    found: dict[str, Any] = {
        "metric": metric.name,
        "value": metric.of_outputs(shares, y, threshold)
        if metric.decides
        else metric.measure(logits, y),
        "scores": {
            name: _defined(other.of_outputs(shares, y, threshold)) for name, other in known.items()
        },
        "higher_is_better": metric.higher_is_better,
        "graphs": len(labelled),
        "left_out": [{read.unit: number, "reason": why} for number, why in sorted(left_out)],
    }
    if coverage is not None:
        inside = bundle.calibration.covers(shares, y, schema.task, coverage)
        found["covered"] = inside.nanmean().item()
    if read.targets:
        pairs = zip(read.targets, targets or [None], strict=True)
        found["compared"] = [{"column": column, "target": target} for column, target in pairs]
    if schema.task == "classes":
        cells = y * schema.num_outputs + decide(shares, schema.task, threshold)
        counts = cells.bincount(minlength=schema.num_outputs**2)
        found["targets"] = list(schema.targets)
        found["confusion"] = counts.view(schema.num_outputs, -1).tolist()
    elif schema.num_outputs > 1:
        by_task = {name: other.by_task(shares, y, threshold) for name, other in known.items()}
        found["tasks"] = [
            {
                "task": name,
                "value": by_task[metric.name][task],
                "labels": int((~y[:, task].isnan()).sum()),
                "scores": {other: values[task] for other, values in by_task.items()},
            }
            for task, name in enumerate(schema.targets)
        ]
    return found


def _defined(value: float) -> float | None:
    """Return a metric, or None for NaN."""
    return None if isnan(value) else value


def _trained_targets(bundle: Bundle, schema: Schema) -> tuple[str, ...]:
    """Return the target columns that a model was trained on; may be empty for classes."""
    wanted = 1 if schema.task == "classes" else schema.num_outputs
    for part in (("data",), ("run", "data")):
        names = bundle.part(*part).get("target_columns") or ()
        if len(names) == wanted:
            return tuple(names)
    return () if schema.task == "classes" else schema.targets


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write ``predictions_text`` to a file, atomically; .tsv and .tab files get tabs."""
    write_atomic(path, predictions_text(predictions, delimiter_of(path)).encode())


def delimiter_of(path: Path) -> str:
    """Return a tab for .tsv and .tab files, else a comma."""
    return "\t" if path.suffix.lower() in {".tsv", ".tab"} else ","


def predictions_text(predictions: Predictions, delimiter: str = ",", *, header: bool = True) -> str:
    """Return predictions as CSV text, one line per row of the input.

    The columns of a table come first, unchanged; for other sources the graph or line and its id.
    Added columns are the line, the prediction (one per task), ``p_NAME`` for the probability of
    each class or task, the spread, the conformal region, and the reason. Only an ensemble has a
    spread, its standard deviation over the members: ``spread`` of the probability of the predicted
    class, or of the probability or value of the only task, and ``spread_NAME`` for each of several
    tasks. A region is ``set``, labels joined by "|", or ``low`` and ``high``; several tasks have
    ``set_NAME`` or ``low_NAME`` and ``high_NAME``. A model that
    stores its training molecules has ``similarity`` to the nearest and ``note``. An added
    column whose name the table already has is called ``gtpool_NAME``. Text in added columns that a
    spreadsheet could run as a formula gets a leading single quote. Without ``header`` the first
    line, which names the columns, is left out.
    """
    targets, unit = predictions.targets, predictions.unit
    single = predictions.task == "classes" or len(targets) == 1
    answers = ["prediction"] if single else [f"prediction_{name}" for name in targets]
    shares = [] if predictions.task == "regression" else [f"p_{name}" for name in targets]
    spreads = ["spread"] if single else [f"spread_{name}" for name in targets]
    spreads = spreads if predictions.members > 1 else []
    given, regions = predictions.columns, _region_columns(predictions)
    near = ["similarity", "note"] if predictions.compared else []
    added = [*answers, *shares, *spreads, *regions, *near]
    ours = [unit, *([] if given else ["id"]), *added, "reason"]
    records: list[list[object]] = [[*given, *_free_names(ours, given)]]
    for row in predictions.rows:
        value = (safe_cell(row.value),) if isinstance(row.value, str) else row.value
        told = value or [""] * len(answers)
        chances = [f"{share:.6f}" for share in row.probabilities] or [""] * len(shares)
        known = [row.number] if given else [row.number, safe_cell(row.id)]
        apart = _spread_cells(row, targets) if spreads else []
        apart = apart or [""] * len(spreads)
        within = _region_cells(row, predictions.task) or [""] * len(regions)
        within += _near_cells(row.neighbour) if near else []
        cells = [*known, *told, *chances, *apart, *within, safe_cell(row.reason or "")]
        records.append([*row.record, *cells])
    return format_csv(records if header else records[1:], delimiter)


def _spread_cells(row: Prediction, targets: Sequence[str]) -> list[str]:
    """Return the spread of the predicted class, or of each task; empty without a prediction."""
    of_class = isinstance(row.value, str)
    told = [row.spread[targets.index(row.value)]] if of_class else row.spread
    return [f"{value:.6g}" for value in told]


def _near_cells(neighbour: Neighbour | None) -> list[str]:
    return ["", ""] if neighbour is None else [f"{neighbour.similarity:.3f}", neighbour.note]


def _region_columns(predictions: Predictions) -> list[str]:
    """Return the names of the columns of conformal regions; none without a coverage."""
    if predictions.coverage is None:
        return []
    task, targets = predictions.task, predictions.targets
    single = task == "classes" or len(targets) == 1
    ends = ("low", "high") if task == "regression" else ("set",)
    return [*ends] if single else [f"{end}_{name}" for name in targets for end in ends]


def _region_cells(row: Prediction, task: Task) -> list[str]:
    """Return the cells of the conformal regions of a row; empty without a prediction."""
    if task == "regression":
        return [f"{end:.6g}" for region in row.regions for end in region]
    return [safe_cell("|".join(map(str, region))) for region in row.regions]


def _free_names(names: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return the names, prefixed with ``gtpool_`` until they differ from the user's columns."""
    taken, free = {name.strip() for name in given}, list[str]()
    for name in names:
        while name in taken:
            name = f"gtpool_{name}"  # noqa: PLW2901
        taken.add(name)
        free.append(name)
    return free


def was_trained_on(bundle: Bundle, source: str) -> bool:
    """Whether a model was trained on a part of a source.

    Sources are the same if they are the same named dataset, or files of equal names and contents.

    Args:
        bundle: A trained model, from ``load_bundle``.
        source: As for ``predict_source``.
    """
    digest = source_digest(source)
    if digest is None or bundle.about.get("source_digest") is None:  # a name, or an older bundle
        return bundle.part("run", "data").get("source") == source
    return digest == bundle.about["source_digest"]


def schema_of(bundle: Bundle) -> Schema:
    """Return the schema of a model's training data; raise a ValueError if it is invalid."""
    where = str(bundle.folder or "the model")
    model = bundle.model
    schema = read_schema(bundle.about.get("schema"), where, model.shape)
    if schema.num_outputs != model.shape.outputs:
        raise ValueError(
            f"{where} names {schema.num_outputs} targets, but its network has "
            f"{model.shape.outputs} outputs"
        )
    if isinstance(model, EnsemblePredictor):
        _check_scaling(model.mean.size(1), schema.recipe, where)
    return schema


def _check_scaling(columns: int, recipe: Recipe, where: str) -> None:
    """Raise a ValueError unless the members standardise the columns that the recipe leaves raw."""
    if columns and (recipe.mean is not None or columns != recipe.continuous):
        raise ValueError(
            f"{where} does not contain a valid model: its members standardise {columns} of "
            f"{recipe.continuous} continuous columns, or its recipe does so, too"
        )


def decode_outputs(
    schema: Schema,
    outputs: Tensor,
    calibration: Calibration | None = None,
    coverage: float | None = None,
) -> Iterator[Decoded]:
    """Yield what the model says of each graph.

    Args:
        schema: Schema of the model.
        outputs: Outputs of each member, [graphs, members, outputs].
        calibration: Temperatures, threshold and conformal scores of the model.
        coverage: Stated coverage of the regions; None for none.
    """
    calibration = calibration or Calibration()
    p = probabilities(calibration.scale(average_outputs(outputs, schema.task)), schema.task)
    shares, regions = p.tolist(), [()] * len(p)
    if coverage is not None:
        names = schema.targets if schema.task == "classes" else (0, 1)
        regions = calibration.regions(p, schema.task, coverage, names)
    several = outputs.size(1) > 1 and len(outputs) > 0
    spreads = member_spread(outputs, schema.task).tolist() if several else [()] * len(shares)
    decided = shares
    if schema.task != "regression":
        decided = decide(p, schema.task, calibration.least).tolist()
    for row, said, spread, region in zip(shares, decided, spreads, regions, strict=True):
        value = schema.targets[said] if schema.task == "classes" else tuple(said)
        known = () if schema.task == "regression" else tuple(row)
        yield Decoded(value, known, tuple(spread), region)


def _drop_overflowed(outputs: Tensor, read: InferenceData) -> tuple[Tensor, InferenceData]:
    """Drop graphs with infinite or NaN outputs, and set the reason of their rows."""
    finite = finite_graphs(outputs)
    answered = iter(finite.tolist())
    rows = [
        row._replace(reason=OVERFLOW) if row.reason is None and not next(answered) else row
        for row in read.rows
    ]
    return outputs[finite], read._replace(rows=rows)


def blend_members(bundle: Bundle, outputs: Tensor, smiles: Sequence[str]) -> Tensor:
    """Return the outputs of each member of a blend; those of another model are unchanged.

    Args:
        bundle: A trained model, from ``load_bundle``.
        outputs: Outputs of each network on some molecules, [graphs, members, outputs].
        smiles: The molecules.
    """
    blend = bundle.blend
    if blend is None:
        return outputs
    where = str(bundle.folder or "the model")
    columns = descriptor_names(blend.features)
    if columns != blend.columns:
        raise ValueError(
            f"{where} was trained on other descriptors than this version of rdkit has "
            f"({len(blend.columns)} and {len(columns)} columns): install the rdkit of its training"
        )
    found = describe_molecules(smiles, blend.features)
    return blend.apply(outputs, found, schema_of(bundle).task)


def finite_graphs(outputs: Tensor) -> Tensor:
    """Return whether all outputs of a graph are finite, of every member, [graphs].

    Args:
        outputs: Outputs of each member, [graphs, members, outputs].
    """
    return outputs.isfinite().flatten(1).all(1)


def _smiles(
    bundle: Bundle, source: str | Path, read: InferenceData, data_dir: Path | None
) -> list[str] | None:
    """Return the SMILES of the readable graphs, if the model uses them and the source has them."""
    rows = _predicted(read)
    if bundle.blend is None and bundle.fingerprints is None:
        return None
    found = smiles_of(source, rows, data_dir) if rows else []
    if found is None and bundle.blend is not None:
        raise ValueError(
            f"{source} has no SMILES, which the boosted trees of this model need: give a table of "
            "SMILES"
        )
    return found


def _outputs(
    bundle: Bundle, read: InferenceData, device: str, smiles: Sequence[str] | None
) -> Tensor:
    """Return the outputs of each member for the readable graphs, [graphs, members, outputs]."""
    if read.data is None:
        return torch.empty(0, len(members_of(bundle.model)), bundle.model.shape.outputs)
    check_fit(read.data, bundle.model.shape, edges=bundle.model.uses_edge_features)
    chosen = choose_device(device)
    model, data = bundle.model.to(chosen), read.data.to(chosen)
    outputs = predict_members(model, data, torch.arange(len(data))).cpu()
    return blend_members(bundle, outputs, smiles or ())
