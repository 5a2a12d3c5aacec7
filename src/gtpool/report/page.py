"""Self-contained HTML page about finished runs."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from gtpool.model import READS_EDGES
from gtpool.report.plot import INK
from gtpool.report.result_tables import TextTable, methods_table, rules_table, runs_table
from gtpool.spec import RunSpec
from gtpool.study.recipe import has_bonds
from gtpool.study.result import RunResult
from gtpool.study.store import write_atomic
from gtpool.study.summarize import (
    MetricSummary,
    ScoreGrid,
    has_folds,
    metric_name,
    metric_title,
    run_label,
    split_name,
    summarize,
    summarize_grid,
)

_LISTED, _LONGEST = 1000, 200  # maximum listed rows that were left out, characters of SMILES


class MethodSection(NamedTuple):
    """A method: its runs and their drawings."""

    name: str
    rows: Sequence[RunResult]
    pictures: Mapping[str, str]
    """SVG elements by caption."""
    tasks: TextTable | None = None
    """Metrics of each task, if there are several."""
    scores: TextTable | None = None
    """All metrics of the runs, or of the ensembles."""
    ensembles: ScoreGrid | None = None
    """Test metric of each ensemble of runs; None for single runs."""


def write_report(
    path: Path,
    title: str,
    sections: Sequence[MethodSection],
    notes: Sequence[str] = (),
    left_out: Sequence[tuple[int, str, str]] = (),
) -> None:
    """Write the page, atomically; equal runs give equal bytes.

    Args:
        path: The HTML file.
        title: Title of the page.
        sections: One for each method; several methods also get a comparison table.
        notes: Remarks on how the figures were computed.
        left_out: Rows of the user's table that could not be used: line, SMILES and reason.
    """
    page = load_template(Path(__file__).with_name("page.html.j2"))
    several = {section.name: section.rows for section in sections}
    cells = {section.name: section_cell(section) for section in sections}
    text = page.render(
        title=title,
        notes=notes,
        methods=methods_table(several, cells) if len(sections) > 1 else None,
        sections=[_section_values(section, number) for number, section in enumerate(sections)],
        left_out=[(line, smiles[:_LONGEST], why) for line, smiles, why in left_out[:_LISTED]],
        left_out_count=len(left_out),
    )
    write_atomic(path, text.encode())


def _section_values(section: MethodSection, number: int) -> dict[str, Any]:
    """Return the values of a section for the page."""
    cell, done = section_cell(section), [row for row in section.rows if row.done]
    return {
        "name": section.name,
        "cell": cell,
        "single": None if cell.members == 1 else summarize(section.rows),
        "metric": metric_title(cell.metric),
        "facts": _facts(section.rows, done),
        "runs": runs_table(section.rows, section.ensembles),
        "tasks": section.tasks,
        "scores": section.scores,
        "rules": rules_table(section.rows) if done else None,
        "failed": [_failure(row) for row in section.rows if row.status == "failed"],
        "pictures": [
            (caption, inline_svg(svg, caption, f"s{number}p{place}-"))
            for place, (caption, svg) in enumerate(section.pictures.items())
        ],
        "splits": [_split(row) for row in done],
        "settings": json.dumps(section.rows[0].spec_json, indent=2, ensure_ascii=False),
    }


def section_cell(section: MethodSection) -> MetricSummary:
    """Return mean and deviation of the test metric: of ensembles if there are any, else of runs."""
    scores = section.ensembles
    if scores is None:
        return summarize(section.rows)
    members = len({row.spec.seed for row in section.rows}) // len(scores.seeds)
    return summarize_grid(scores, members=members)


def _facts(rows: Sequence[RunResult], done: Sequence[RunResult]) -> dict[str, str]:
    """Return a description of the data, split, network and software of the runs."""
    spec = rows[0].spec
    train = spec.train
    facts = {"data": spec.data.source, "network": describe_network(spec)}
    patience = train.patience
    chosen_by = train.select if train.metric is None else metric_name(train.metric)
    stop = "" if patience is None else f" (fewer once {patience} have not lowered the loss)"
    facts["training"] = (
        f"{train.epochs} epochs{stop}, batches of {train.batch_size}, "
        f"learning rate {train.lr:g}, epoch chosen by validation {chosen_by}"
    )
    if not done:
        return facts
    facts["split"] = _listed(split_name(row.split.rule) for row in done)
    facts["parameters"] = f"{done[0].parameters:,}"
    facts["time"] = f"{sum(row.seconds for row in done):.1f} s, all runs together"
    facts["device"] = _listed(row.device for row in done)
    facts["versions"] = _listed(
        ", ".join(f"{name} {number}" for name, number in row.versions.items()) for row in done
    )
    facts["commit"] = _listed(row.commit or "not known" for row in done)
    facts["finished"] = max(row.finished for row in done)
    return facts


def describe_network(spec: RunSpec) -> str:
    """Return a one-line description of a run's network."""
    model = spec.model
    sees = "with" if model.conv in READS_EDGES else "without"
    bonds = f" ({sees} bonds)" if has_bonds(spec.data.source) else ""
    layers = f"{model.levels * model.convs_per_level} × {model.conv}{bonds}"
    added = {"feed-forward": model.ffn, "virtual node": model.virtual_node}
    layers = ", ".join([layers, *(name for name, used in added.items() if used)])
    options = ", ".join(f"{name} {value}" for name, value in model.pool_options.items())
    pool = model.pool + (f" ({options})" if options else "")
    pooled = "no pooling" if pool == "none" else f"{pool} at ratio {model.ratio:g}"
    return f"{layers}, {pooled}, read-out {model.readout}, width {model.width}"


def _listed(values: Any) -> str:  # noqa: ANN401
    """Return the distinct values, joined."""
    return "; ".join(dict.fromkeys(map(str, values)))


def _failure(row: RunResult) -> tuple[str, str]:
    return run_label(row.spec), row.error or "no reason"


def _split(row: RunResult) -> tuple[str, ...]:
    spec, split = row.spec, row.split
    sizes = map(str, (split.train, split.valid, split.test))
    fold = str(spec.split.fold + 1) if has_folds(spec.split.rule) else "–"
    return fold, str(spec.seed), *sizes, split.digest, f"{row.epoch} of {row.epochs_run}"


def inline_svg(svg: str, caption: str, prefix: str) -> Markup:
    """Return a drawing for a page: text in the colour of the page, ids unique in the page."""
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{prefix}", svg.replace(INK, "currentColor"))
    svg = re.sub(r'^<svg ([^>]*?)width="[^"]*"', r"<svg \1", svg, count=1)
    svg = re.sub(r'^<svg ([^>]*?)height="[^"]*"', r"<svg \1", svg, count=1)
    label = Markup("<svg role='img' aria-label='{}' ").format(caption)
    return label + Markup(svg.removeprefix("<svg "))  # noqa: S704 - drawn by us, text escaped


def load_template(file: Path) -> Template:
    """Return a template that escapes its values and raises an error for a missing one."""
    return Environment(
        loader=FileSystemLoader(file.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(file.name)
