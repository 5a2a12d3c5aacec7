"""The report on the studies as Markdown, LaTeX and CSV."""

import csv
from collections.abc import Iterable
from io import StringIO

from gtpool.report.cells import RULES
from gtpool.report.study_cells import Result, published_by
from gtpool.report.study_content import Report
from gtpool.report.study_parts import Entry, Part, Sheet
from gtpool.report.table import Table

_COLUMNS = (
    *("study", "line", "dataset", "metric", "mean", "std", "std_over", "runs", "wanted", "failed"),
    *("published", "published_std", "published_by", "difference"),
    *("by_valid_loss", "by_valid_metric", "by_last_epoch", "by_test_optimistic"),  # as RULES
    *("devices", "commits"),
)
_FIT = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{"  # never larger
_PAGE = 60  # lines of a table that a page holds
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
    """Write everything but the drawings."""
    lines = [f"# {report.title}", ""]
    for part in report.parts:
        lines += [f"## {part.title}", ""]
        for text in part.words:
            lines += [text, ""]
        lines += [f"- {what}: {value}" for what, value in part.facts.items()]
        lines += [""] if part.facts else []
        for sheet in part.sheets:
            lines += [sheet.caption, ""] if sheet.caption else []
            lines += [_plain(sheet).markdown(_text(sheet)), ""]
    return "\n".join(lines)


def latex(report: Report) -> str:
    """Write every table that fits a page, to be put into a document; its caption says the rest."""
    lines = ["% Needs the packages booktabs and graphicx."]
    for part in report.parts:
        for number, sheet in enumerate(part.sheets):
            if len(sheet.lines) > _PAGE:
                name = f"{part.name}-{number + 1}"
                lines += ["", f"% Left out, longer than a page: tab:{name}. The CSV has it."]
            else:
                lines += ["", *_table(part, sheet, number)]
    return "\n".join(lines) + "\n"


def comma_separated(report: Report) -> str:
    """Write one line a cell, with all numbers in per cent."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    table.writerows(map(_values, report.results))
    return text.getvalue()


def _plain(sheet: Sheet) -> Table:
    return Table(sheet.heads, tuple(tuple(map(_joined, line)) for line in sheet.lines))


def _text(sheet: Sheet) -> set[int]:
    """Give the columns without a number."""
    columns = enumerate(zip(*sheet.lines, strict=True))
    return {at for at, cells in columns if all(cell.value is None for cell in cells)}


def _joined(entry: Entry) -> str:
    return f"{entry.text} ({'; '.join(entry.notes)})" if entry.notes else entry.text


def _table(part: Part, sheet: Sheet, number: int) -> list[str]:
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


def _stacked(entry: Entry) -> str:
    """Put the smaller lines of a cell below it."""
    if not entry.notes:
        return _escape(entry.text)
    lines = r"\\".join((_escape(entry.text), *_small(entry)))
    return rf"\shortstack[r]{{{lines}}}"


def _wrapped(entry: Entry) -> str:
    return r"\newline ".join((_escape(entry.text), *_small(entry)))


def _small(entry: Entry) -> Iterable[str]:
    return (rf"{{\scriptsize {_escape(note)}}}" for note in entry.notes)


def _escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _values(result: Result) -> tuple[object, ...]:
    figure, place = result.figure, result.place
    told = place.published
    rules = (_percent(result.rules[rule].mean) for rule in RULES)
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
        _listed(result, "device"),
        _listed(result, "commit"),
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.4f}"


def _listed(result: Result, what: str) -> str:
    return "; ".join(dict.fromkeys(str(row[what]) for row in result.rows))
