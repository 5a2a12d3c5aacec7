"""Output of the report on the studies: a self-contained HTML page, Markdown, LaTeX and CSV."""

import csv
import json
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gtpool.report.page import inline_svg, load_template
from gtpool.report.result_tables import TextTable
from gtpool.reproduce.study_content import Report
from gtpool.reproduce.study_parts import ReportSection, ReportTable, TableCell
from gtpool.reproduce.study_results import CellResult, published_by
from gtpool.study.result import RunResult
from gtpool.study.summarize import EPOCH_RULES, reported_score

_COLUMNS = (
    *("study", "line", "dataset", "metric", "mean", "std", "std_over", "runs", "wanted", "failed"),
    *("published", "published_std", "published_by", "difference"),
    *("by_valid_loss", "by_valid_metric", "by_last_epoch", "by_test_optimistic"),  # as RULES
    *("with_best", "valid", "parameters", "seconds", "devices", "commits", "beside_the_set"),
)
_FIT = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{"  # shrinks, never enlarges
_PAGE_LINES = 60  # maximum rows of a table on a page
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "–": "--",
    "…": r"\dots{}",
    "×": r"$\times$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "Θ": r"$\Theta$",
    "†": r"$\dagger$",
    "◐": r"$\circ$",
    "○": r"$\cdot$",
    "✗": r"$\times$",
    "“": "``",
    "”": "''",
}


def markdown(report: Report) -> str:
    """Return the report as Markdown, without plots."""
    lines = [f"# {report.title}", ""]
    for part in report.parts:
        lines += [f"## {part.title}", ""]
        for text in part.words:
            lines += [text, ""]
        lines += [f"- {what}: {value}" for what, value in part.facts.items()]
        lines += [""] if part.facts else []
        for sheet in part.sheets:
            lines += [sheet.caption, ""] if sheet.caption else []
            lines += [_text_table(sheet).markdown(_text_columns(sheet)), ""]
    return "\n".join(lines)


def latex(report: Report) -> str:
    """Return every table that fits a page as LaTeX, for inclusion in a document."""
    lines = ["% Needs the packages booktabs and graphicx."]
    for part in report.parts:
        for number, sheet in enumerate(part.sheets):
            if len(sheet.lines) > _PAGE_LINES:
                name = f"{part.name}-{number + 1}"
                lines += ["", f"% Left out, longer than a page: tab:{name}. The CSV has it."]
            else:
                lines += ["", *_latex_table(part, sheet, number)]
    return "\n".join(lines) + "\n"


def csv_text(report: Report) -> str:
    """Return CSV with one row per cell, with all numbers in per cent."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    table.writerows(_csv_values(report, result) for result in report.results)
    return text.getvalue()


def _text_table(sheet: ReportTable) -> TextTable:
    return TextTable(sheet.heads, tuple(tuple(map(_cell_text, line)) for line in sheet.lines))


def _text_columns(sheet: ReportTable) -> set[int]:
    """Return the columns without numbers."""
    columns = enumerate(zip(*sheet.lines, strict=True))
    return {at for at, cells in columns if all(cell.value is None for cell in cells)}


def _cell_text(entry: TableCell) -> str:
    text = f"**{entry.text}**" if entry.best else entry.text
    return f"{text} ({'; '.join(entry.notes)})" if entry.notes else text


def _latex_table(part: ReportSection, sheet: ReportTable, number: int) -> list[str]:
    caption = " ".join(filter(None, (f"{part.title}.", sheet.caption, *part.words)))
    share = f"p{{{0.9 / len(sheet.heads):.2f}\\textwidth}}"
    columns = share * len(sheet.heads) if sheet.prose else "l" + "r" * (len(sheet.heads) - 1)
    cell, opening, end = (_wrapped, "", "") if sheet.prose else (_stacked, _FIT, "}")
    return [
        r"\begin{table*}",
        rf"\caption{{{_escape(caption)}}}",
        rf"\label{{tab:{part.name}-{number + 1}}}",
        r"\centering",
        rf"{opening}\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(_escape, sheet.heads)) + r" \\",
        r"\midrule",
        *(" & ".join(map(cell, line)) + r" \\" for line in sheet.lines),
        r"\bottomrule",
        rf"\end{{tabular}}{end}",
        r"\end{table*}",
    ]


def _stacked(entry: TableCell) -> str:
    """Return the text of a cell with its smaller lines below."""
    text = rf"\textbf{{{_escape(entry.text)}}}" if entry.best else _escape(entry.text)
    if not entry.notes:
        return text
    lines = r"\\".join((text, *_small(entry)))
    return rf"\shortstack[r]{{{lines}}}"


def _wrapped(entry: TableCell) -> str:
    return r"\newline ".join((_escape(entry.text), *_small(entry)))


def _small(entry: TableCell) -> Iterable[str]:
    return (rf"{{\scriptsize {_escape(note)}}}" for note in entry.notes)


def _escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _csv_values(report: Report, result: CellResult) -> tuple[object, ...]:
    figure, place = result.figure, result.place
    told, compared = place.published, report.compared.get(result.study)
    worse = None if compared is None else compared.is_told_from_best(result)
    rules = (_percent(result.rules[rule].mean) for rule in EPOCH_RULES)
    return (
        result.study,
        place.line,
        place.dataset,
        figure.metric,
        _percent(figure.mean),
        _percent(figure.std),
        figure.spread if figure.std is not None else "",
        figure.n,
        len(result.keys),
        result.failed,
        told.mean if told else "",
        told.std if told else "",
        published_by(place),
        "" if result.difference is None else f"{result.difference:.4f}",
        *rules,
        "" if worse is None else "no" if worse else "yes",
        "" if result.valid_percent is None else f"{result.valid_percent:.4f}",
        " to ".join(map(str, dict.fromkeys((*result.parameters[:1], *result.parameters[-1:])))),
        "" if result.seconds is None else f"{result.seconds:.2f}",
        result.listed("device"),
        result.listed("commit"),
        result.beside,
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.4f}"


def html(report: Report) -> str:
    """Return the HTML page; equal reports give equal text."""
    page = load_template(Path(__file__).with_name("study.html.j2"))
    parts = [_with_drawings(part) for part in report.parts]
    return page.render(title=report.title, parts=parts, rows=_runs_json(report))


def _with_drawings(part: ReportSection) -> ReportSection:
    """Return a part with its plots adapted to the page."""
    pictures = (
        picture._replace(svg=inline_svg(picture.svg, picture.caption, f"{part.name}{at}-"))
        for at, picture in enumerate(part.pictures)
    )
    return part._replace(pictures=tuple(pictures))


def _runs_json(report: Report) -> Markup:
    """Return the runs of each cell as JSON, which a script shows on request."""
    names: dict[str | None, int] = {}
    rows: dict[str, list[Any]] = {}
    cells: dict[str, list[str]] = {}
    for result in report.results:
        cells[result.name] = [row.key for row in result.rows]
        for row in result.rows:
            if row.key not in rows:
                rows[row.key] = _run_values(row, names)
    text = json.dumps(
        {"names": list(names), "cells": cells, "rows": rows},
        separators=(",", ":"),
        ensure_ascii=False,
    )
    # "</script" ends a script element, even inside a string.
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704


def _run_values(row: RunResult, names: dict[str | None, int]) -> list[Any]:
    """Return the listed fields of a run; devices and commits as indices."""
    spec = row.spec
    test, loss = reported_score(row), row.valid_loss
    return [
        spec.seed,
        spec.split.fold + 1,
        None if test is None else round(100 * test, 2),
        row.epoch,
        None if loss is None else round(loss, 4),
        row.seconds,
        names.setdefault(row.device, len(names)),
        names.setdefault(row.commit, len(names)),
        row.error,
    ]
