"""Model cards: the ``README.md`` of a saved model, with metadata for the Hugging Face hub.

Every saved model has a card, and huggingface_hub is only an extra, so its ``ModelCardData`` is not
used. A test reads the card with it.
"""

import html
import json
import math
import re
from pathlib import Path
from typing import Any, cast

from gtpool.model.calibration import Calibration
from gtpool.model.predictor import Predictor, members_of
from gtpool.model.trees import Blend
from gtpool.spec import FOLD_RULES

_Json = dict[str, Any]
_LISTED = 20
_MEANS = "the prediction is their mean probability or value, the spread its deviation over them"


def model_card(
    model: Predictor,
    about: dict[str, Any],
    blend: Blend | None = None,
    calibration: Calibration | None = None,
) -> str:
    """Return the Markdown card of a model, with the hub's metadata in its front matter.

    Args:
        model: The trained network or ensemble.
        about: Metadata of the bundle. ``metrics`` are copied unchanged; ``license`` is an
            identifier of the hub, such as "mit".
        blend: Boosted trees that predict together with the model.
        calibration: Temperatures, threshold and conformal scores.
    """
    lines = ["---", *_metadata(about), "---", "", f"# A gtpool model of {_clean(_name(about))}", ""]
    lines += [*_facts(model, about, blend), *_calibration_lines(calibration)]
    lines += ["", "## Figures", ""]
    lines += [f"- {what}: {value}" for what, value in _figures(about, blend)] or [
        "None were stored."
    ]
    lines += [
        "",
        "## Use",
        "",
        "    gtpool predict THIS_FOLDER DATA -o predictions.csv",
        "    gtpool serve THIS_FOLDER",
        "",
        "`config.json` holds the options of the network, the recipe of the features with its",
        "statistics, and the names of what is predicted; `model.safetensors` holds the weights.",
        *(["`trees.json` holds the boosted trees."] if blend else []),
        "None of them can execute anything." if blend else "Neither can execute anything.",
        "",
    ]
    return "\n".join(lines)


def _metadata(about: _Json) -> list[str]:
    """Return the YAML lines that the hub reads: one key per line, its value as JSON."""
    kind = "regression" if _part(about, "schema").get("task") == "regression" else "classification"
    told: _Json = {
        "library_name": "gtpool",
        "pipeline_tag": "graph-ml",
        "tags": [f"graph-{kind}", "graph-pooling", "pytorch-geometric"],
    }
    if isinstance(about.get("license"), str):
        told["license"] = about["license"]
    metrics = _part(about, "metrics")
    metric, value = metrics.get("metric"), metrics.get("test")
    if isinstance(metric, str) and _is_finite(value):
        result = {
            "task": {"type": "graph-ml", "name": f"graph {kind}"},
            "dataset": {"type": _name(about), "name": _name(about), "split": "test"},
            "metrics": [{"type": metric, "value": value, "name": f"{metric}{_which(about)}"}],
        }
        told["metrics"] = [metric]
        told["model-index"] = [{"name": f"gtpool of {_name(about)}", "results": [result]}]
    return [f"{key}: {_yaml(value)}" for key, value in told.items()]


def _facts(model: Predictor, about: _Json, blend: Blend | None) -> list[str]:
    schema = _part(about, "schema")
    shown = _listed(schema.get("targets"))
    target = _listed(_part(about, "data").get("target_columns"))
    members = members_of(model)
    count = sum(part.numel() for part in members[0].parameters())
    options = ", ".join(f"{name} {value}" for name, value in model.spec.to_json().items())
    columns = model.shape.node_width + len(model.shape.node_categories)
    recipe = _part(schema, "recipe").get("kind", "given")
    return [
        *([f"- target: {target}"] if target else []),
        f"- predicts: {_clean(str(schema.get('task', 'outputs')))}, {shown or model.shape.outputs}",
        *_sizes(about),
        *_training(about),
        f"- features: {_clean(str(recipe))}, {columns} a node",
        *_feature_lines(_part(schema, "recipe")),
        f"- network: {count:,} parameters; {_clean(options)}",
        *([f"- ensemble: {len(members)} networks; {_MEANS}"] if len(members) > 1 else []),
        *([_blend_line(blend)] if blend else []),
        *(
            f"- {_clean(name)}: {_clean(str(number))}"
            for name, number in _part(about, "versions").items()
        ),
    ]


def _blend_line(blend: Blend) -> str:
    """Return a line about the boosted trees of a blend."""
    sets = _clean(" and ".join(blend.features))
    return (
        f"- blend: {blend.weight:.2f} × network + {1 - blend.weight:.2f} × boosted trees on "
        f"{sets}; the weights are of probabilities or values"
    )


def _calibration_lines(calibration: Calibration | None) -> list[str]:
    """Return lines about temperature, threshold and conformal scores, where there are any."""
    if calibration is None:
        return []
    temperature, threshold = (
        _listed([f"{number:.3g}" for number in numbers])
        for numbers in (calibration.temperature, calibration.threshold)
    )
    metric = _clean(calibration.metric or "a metric")
    most = max(calibration.counts, default=0)
    return [
        *([f"- calibration: logits divided by {temperature}"] if temperature else []),
        *([f"- threshold: {threshold}, chosen by {metric}"] if threshold else []),
        *([f"- conformal: scores of {most:,} held-out graphs (`--coverage`)"] if most else []),
    ]


def _listed(names: object) -> str:
    """Return the first names of a list, joined; an empty string if ``names`` is not a list."""
    if not isinstance(names, list | tuple):
        return ""
    cleaned = [_clean(str(name)) for name in cast("list[object]", names)]
    more = f" and {len(cleaned) - _LISTED} more" if cleaned[_LISTED:] else ""
    return ", ".join(cleaned[:_LISTED]) + more


def _sizes(about: _Json) -> list[str]:
    """Return a line with the number of graphs in total and in each part."""
    data = _part(about, "data")
    counts = [data.get(name) for name in ("graphs", "train", "valid", "test")]
    if not all(isinstance(count, int) for count in counts):
        return []
    graphs, train, valid, test = (f"{count:,}" for count in counts)
    about_, which = ("about ", "each member") if "members" in about else ("", "this model")
    parts = f"{about_}{train} train, {valid} validate, {test} test {which}"
    split = data.get("split")
    return [
        f"- data: {graphs} {_unit(about)}; {parts}",
        *([f"- split: {_clean(split)}"] if isinstance(split, str) else []),
    ]


def _unit(about: _Json) -> str:
    kind = _part(_part(about, "schema"), "recipe").get("kind")
    return "molecules" if kind == "molecule" else "graphs"


def _training(about: _Json) -> list[str]:
    """Return lines on the runs that made the model, and on the model that they started from."""
    data, run, lines = _part(about, "data"), _part(about, "run"), list[str]()
    trained, graphs = data.get("trained"), data.get("graphs")
    if isinstance(trained, int) and isinstance(graphs, int):
        line = f"- trained on: {trained:,} of the {graphs:,} {_unit(about)}, {_runs(about)}"
        if trained == graphs:
            line += "; no part of them tests the saved model, the figures are of its folds"
        lines.append(line)
    start = _part(run, "train").get("start")
    if isinstance(start, str):
        frozen = _part(run, "train").get("freeze_encoder") is True
        how = "encoder frozen, head new" if frozen else "head new"
        lines.append(f"- starts from: {_clean(Path(start).name)}, {how}")
    return lines


def _runs(about: _Json) -> str:
    """Return the seeds and folds of the runs that made the model."""
    members = about.get("members")
    if not isinstance(members, list):
        return _which(about).strip(" ()") or "one run"
    rows = [cast("_Json", row) for row in cast("list[Any]", members) if isinstance(row, dict)]
    parts = [f"{len(rows)} networks", _span("seed", [row.get("seed") for row in rows])]
    if _is_folded(about):
        folds = [row.get("fold") for row in rows]
        parts.append(_span("fold", [fold + 1 for fold in folds if isinstance(fold, int)]))
    if any(row.get("bag") for row in rows):
        parts.append("each with training and validation graphs of its own (bags)")
    return ", ".join(part for part in parts if part)


def _span(what: str, values: list[Any]) -> str:
    """Return the numbers in order, such as "folds 1, 2, 4"; empty if they are no integers."""
    found = sorted({value for value in values if isinstance(value, int)})
    if len(found) > _LISTED:
        return f"{what}s {found[0]} to {found[-1]}"
    return f"{what}{'s' * (len(found) > 1)} {', '.join(map(str, found))}" if found else ""


def _feature_lines(recipe: _Json) -> list[str]:
    """Return a line for the encodings and one for each kind of features of whole graphs."""
    names = {
        "encodings": "encode",
        "molecule features": "molecule_features",
        "feature columns": "feature_columns",
    }
    told = {what: _listed(recipe.get(name)) for what, name in names.items()}
    return [f"- {what}: {listed}" for what, listed in told.items() if listed]


def _figures(about: _Json, blend: Blend | None) -> list[tuple[str, str]]:
    """Return the label and the value of each stored metric."""
    metrics = _part(about, "metrics")
    metric = str(metrics.get("metric", "metric"))
    part = "the validation part"
    if "members" in about:
        part = "validation parts, mean over the members"
    alone = ", without the trees" if blend else ""
    words = {
        "test": f"{metric} on the test part{_which(about)}",
        "valid_metric": f"{metric} on the validation part",
        "valid_loss": f"loss on {part}{alone}",
    }
    figures = [
        (_clean(words.get(name, name)), _clean(_number(value)))
        for name, value in metrics.items()
        if name not in {"metric", "cross_validated"}  # the latter is that of all runs
    ]
    others = [
        f"{_clean(name)} {_number(value)}"
        for name, value in _part(about, "scores").items()
        if name != metric and _is_finite(value)
    ]
    listed = [("other metrics, mean over the test parts", ", ".join(others))] if others else []
    return [*_all_runs(about, blend), *listed, *figures]


def _all_runs(about: _Json, blend: Blend | None) -> list[tuple[str, str]]:
    """Return mean and spread over all runs, if there are several; this model is one of them."""
    runs = _part(about, "all_runs")
    count, mean, std = runs.get("n"), runs.get("mean"), runs.get("std")
    if not isinstance(count, int) or count < 2 or not _is_finite(mean):
        return []
    members = runs.get("members", 1)
    what = "runs" if members == 1 else f"ensembles of {members}"
    what = f"blends of {what}" if blend else what
    how = "cross-validated" if _is_folded(about) else "mean"
    spread = f" ± {_number(std)}" if _is_finite(std) else ""
    over = f", ± standard deviation over {runs.get('spread')}" if spread else ""
    over += f", {runs['missing']} missing" if runs.get("missing") else ""
    figure = f"{_number(mean)}{spread} ({count} {what}{over})"
    return [(_clean(f"{runs.get('metric')}, {how}"), _clean(figure))]


def _which(about: _Json) -> str:
    """Return the seed and the fold or split of the run, or an empty string if unknown."""
    run = _part(about, "run")
    split = _part(run, "split")
    fold, folds, seed = split.get("fold"), split.get("folds"), run.get("seed")
    if not isinstance(fold, int) or not isinstance(folds, int):
        return ""
    place = f"fold {fold + 1} of {folds}" if _is_folded(about) else f"one {split['rule']} split"
    if isinstance(about.get("members"), list):
        return f" (ensemble, {place})"
    return f" (seed {seed}, {place})"


def _is_folded(about: _Json) -> bool:
    """Whether the split has folds; a missing rule counts as folds."""
    return _part(_part(about, "run"), "split").get("rule", "auto") in (*FOLD_RULES, "auto")


def _name(about: _Json) -> str:
    return str(_part(about, "schema").get("name") or "graphs")


def _part(table: _Json, name: str) -> _Json:
    """Return a table inside a table; empty if the value is not a table."""
    found = table.get(name)
    return cast("_Json", found) if isinstance(found, dict) else {}


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _number(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "unknown"
    return f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _clean(text: str) -> str:
    """Return untrusted text on one line, with HTML escaped."""
    return html.escape("".join(c if c.isprintable() else " " for c in text), quote=False)


def _yaml(value: Any) -> str:  # noqa: ANN401
    """Return a value as JSON that YAML 1.1 parsers read: one-line strings, floats with a dot."""
    if isinstance(value, dict):
        pairs = cast("_Json", value).items()
        return "{" + ", ".join(f"{_yaml(key)}: {_yaml(part)}" for key, part in pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_yaml(part) for part in cast("list[Any]", value)) + "]"
    if isinstance(value, str):
        printable = "".join(c if c.isprintable() else " " for c in value)
        return json.dumps(printable, ensure_ascii=False)
    return re.sub(r"^(-?\d+)e", r"\1.0e", json.dumps(value))  # YAML 1.1 reads 1e-05 as a string
