"""`gtpool reproduce` and `gtpool report`: repeat committed results, and compare with the paper."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gtpool.commands.options import DataDir, Device, Jobs, Together
from gtpool.commands.study import EVIDENCE, FOLDER, Choices, Known, evidence, existing

if TYPE_CHECKING:
    from gtpool.reproduce.study_parts import ReportSection


_BENCH = Path("results/bench")
_PREDICTIONS = Path("results/predictions")
_TIMED = ("speed", "scalability")

app = typer.Typer(no_args_is_help=True)


@app.callback()
def top() -> None:
    """Repeat results of the studies and compare with the committed ones."""


@app.command()
def cell(
    study: Annotated[str, typer.Argument(help="Study, see `gtpool study list`.")],
    dataset: Annotated[str, typer.Argument(help="Dataset: a column of the study.")],
    line: Annotated[str, typer.Argument(help="Method or variant: a row of the study.")],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to repeat.")] = 1,
    known: Known = None,
    output_dir: Annotated[Path, typer.Option(help="Store of repeated runs, for resuming.")] = Path(
        "gtpool-runs/reproduce"
    ),
    jobs: Jobs = 1,
    together: Together = None,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Repeat the runs of one cell of a table and compare with the committed rows.

    The last line is "equal" if all test metrics are equal to the last digit, as
    they are on the same device and commit. Otherwise it has the difference, and
    whether it lies within the spread of seeds: twice the deviation of the
    committed seeds, times the square root of 2 / SEEDS. The exit code is 1 if
    it lies outside or a run failed.
    """
    from gtpool.report.progress import Progress
    from gtpool.reproduce.repeat_cell import compare_with_stored, find_cell
    from gtpool.reproduce.status import read_rows
    from gtpool.study.run import run_many
    from gtpool.study.store import Store

    stored = read_rows(evidence(known))
    found, all_seeds = find_cell(study, dataset, line, seeds, stored)
    with Progress() as watch:
        rows = run_many(
            found.runs(seeds),
            Store(output_dir),
            jobs=jobs,
            together=together,
            data_dir=data_dir,
            device=device,
            watch=watch,
        )
    failed = [row.error for row in rows if not row.done]
    if failed:
        typer.secho(f"gtpool: {len(failed)} runs failed: {failed[0]}", err=True, fg="red")
        raise typer.Exit(1)
    lines = compare_with_stored(found, rows, stored, max(seeds, all_seeds))
    typer.echo("\n".join(lines))
    if "outside" in lines[-1]:
        raise typer.Exit(1)


def report(
    rows: Annotated[
        list[Path] | None,
        typer.Argument(
            help=f"Files, folders and stores of results. (default: {EVIDENCE} and {FOLDER})",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "-o",
            "--output",
            help="File to write: .html, .md, .tex or .csv; repeatable. (default: out/report.html)",
        ),
    ] = None,
    choices: Choices = None,
    bench: Annotated[
        Path | None, typer.Option(help=f"Folder of results of `gtpool bench`. (default: {_BENCH})")
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help="Folder of test predictions of `gtpool study collect`, for ensembles. "
            f"(default: {_PREDICTIONS})"
        ),
    ] = None,
) -> None:
    """Compare finished runs with the paper: tables, ranks, tests, curves, claims, missing runs."""
    from gtpool.atomic import rename_target
    from gtpool.reproduce import study_text
    from gtpool.reproduce.paper import find_studies
    from gtpool.reproduce.status import read_rows
    from gtpool.reproduce.study_content import make_report
    from gtpool.study.predictions import read_predictions
    from gtpool.study.store import check_writable, suggest_subfolder, write_atomic

    writers = {
        ".html": study_text.html,
        ".md": study_text.markdown,
        ".tex": study_text.latex,
        ".csv": study_text.csv_text,
    }
    outputs, sources = output or [Path("out/report.html")], rows or existing(EVIDENCE, FOLDER)
    for path in outputs:
        if path.suffix not in writers:
            raise ValueError(f"{path} must end in {', '.join(writers)}")
    _check_folders(bench, predictions)
    studies, known = find_studies((), choices), read_rows(sources)
    if not known:
        where = ", ".join(map(str, sources)) or f"{EVIDENCE} and {FOLDER}"
        hint = suggest_subfolder(sources) or "; start with `gtpool study run`"
        raise ValueError(f"no results found in {where}{hint}")
    for path in outputs:
        target = rename_target(path)
        if target is not None:
            check_writable(target.parent)
    made = make_report(
        known,
        studies,
        predictions=read_predictions(predictions or _PREDICTIONS),
        more=_timings(bench or _BENCH),
    )
    for path in outputs:
        write_atomic(path, writers[path.suffix](made).encode())
        typer.echo(f"report: {path}")


def _check_folders(bench: Path | None, predictions: Path | None) -> None:
    """Raise a ValueError if a named folder lacks its files."""
    if bench is not None and not any((bench / f"{name}.jsonl").exists() for name in _TIMED):
        raise ValueError(
            f"--bench {bench} has no {' or '.join(f'{name}.jsonl' for name in _TIMED)} of "
            "`gtpool bench`"
        )
    if predictions is not None and not list(predictions.glob("*.npz")):
        raise ValueError(f"--predictions {predictions} has no .npz file of `gtpool study collect`")


def _timings(folder: Path) -> "Iterable[ReportSection]":
    """Yield the speed and scalability tables that were measured."""
    from gtpool.bench.bench_tables import BENCH_TABLES, evidence
    from gtpool.reproduce.study_parts import ReportSection, ReportTable, measured_cell

    for name in _TIMED:
        path = folder / f"{name}.jsonl"
        if not path.exists():
            continue
        found = BENCH_TABLES[name](list(_timed(path)), full=True)
        sheets = tuple(
            ReportTable(
                f"{sheet.title}; {evidence(sheet.rows).partition('; ')[2]}",
                sheet.headings,
                tuple(tuple(map(measured_cell, line)) for line in sheet.lines),
            )
            for sheet in found
        )
        note = "Published values were measured on an RTX 2080 Ti with 11 GB."
        yield ReportSection(name, name.capitalize(), (note,), {}, sheets)


def _timed(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            yield json.loads(line)
        except ValueError:
            raise ValueError(
                f"{path}, line {number}: not a row of `gtpool bench`; remove the line"
            ) from None
