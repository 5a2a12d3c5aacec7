"""Entry point of the `gtpool` command: subcommands, error messages and exit codes."""

import signal
import sys
import warnings
from typing import Annotated, NoReturn

import typer

from gtpool import __version__
from gtpool.commands import cluster, data, reproduce, study
from gtpool.commands.bench import bench
from gtpool.commands.explain import explain
from gtpool.commands.predict import evaluate, predict
from gtpool.commands.reproduce import report
from gtpool.commands.search import search
from gtpool.commands.serve import serve
from gtpool.commands.show import compare, demo, list_names
from gtpool.commands.train import train
from gtpool.report.result_tables import printable

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (train, search, predict, evaluate, explain, serve, demo, compare, bench, report):
    app.command()(command)
app.command("list")(list_names)
app.add_typer(data.app, name="data", help="List, describe and download datasets.")
app.add_typer(cluster.app, name="cluster", help="Batch scripts for clusters.")
app.add_typer(study.app, name="study", help="Reproduce the tables and figures of the paper.")
app.add_typer(reproduce.app, name="reproduce", help="Repeat committed results and compare.")


def main() -> None:
    """Run the command line; user errors and warnings print one line, without a traceback."""
    seen: set[str] = set()  # Python repeats a warning when a library changes the filters

    def one_line(message: Warning | str, *_: object, **__: object) -> str:
        line = f"gtpool: {printable(str(message))}\n"
        new = line not in seen
        seen.add(line)
        return line if new else ""

    warnings.formatwarning = one_line
    # Importing PyG warns with torch 2.15. Worker processes take over `sys.warnoptions` alone.
    warnings.filterwarnings("ignore", "`torch.jit.script", FutureWarning)
    sys.warnoptions.append("ignore:`torch.jit.script:FutureWarning")
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        app()
    except (ValueError, OSError) as error:
        typer.secho(f"gtpool: {printable(str(error))}", err=True, fg="red")
        raise SystemExit(2) from None
    except RecursionError:
        typer.secho("gtpool: a file is nested too deeply", err=True, fg="red")
        raise SystemExit(2) from None
    except (MemoryError, RuntimeError) as error:
        if not _is_memory_full(error):
            raise
        typer.secho(f"gtpool: {_MEMORY}: {_first_line(error)}", err=True, fg="red")
        raise SystemExit(1) from None
    except SystemExit as end:
        if end.code in _ENDED:
            kept = _KEPT if sys.argv[1:2] and sys.argv[1] in _RESUMING else ""
            typer.secho(f"gtpool: {_ENDED[end.code]}{kept}", err=True, fg="yellow")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


_MEMORY = (
    "out of memory; use fewer or smaller graphs, other features, a smaller width or a smaller "
    "batch size"
)


def _is_memory_full(error: Exception) -> bool:
    """Return whether Python, NumPy or torch (a RuntimeError) ran out of memory."""
    signs = ("allocate memory", "not enough memory", "out of memory", "size calculation overflowed")
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in signs)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _stop(*_: object) -> NoReturn:
    """Exit on SIGTERM as on Ctrl-C, with cleanup of workers and temporary files."""
    raise SystemExit(128 + signal.SIGTERM)


_ENDED = {130: "interrupted", 128 + signal.SIGTERM: "stopped by SIGTERM"}
_RESUMING = ("train", "search", "study", "reproduce", "bench", "data")
_KEPT = "; finished work is stored, repeat the command to resume"


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"gtpool {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Graph pooling and graph classification on PyTorch Geometric."""
