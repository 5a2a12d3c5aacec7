"""Options that several commands have."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gtpool.spec import SplitRule

if TYPE_CHECKING:
    from gtpool.study.executor import Executor

Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="auto: a GPU if there is one.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at once, a process each.")]
Together = Annotated[
    int | None,
    typer.Option(min=1, help="Runs side by side in one program. (100 on a GPU, else 1)"),
]
SplitType = Annotated[
    SplitRule | None,
    typer.Option(
        help="How graphs are divided. (auto: the set's own rule)", rich_help_panel="Training"
    ),
]


def _data(text: str) -> Any:  # noqa: ANN401 - typer's own return type
    return typer.Option(help=text, rich_help_panel="Data")


DataDir = Annotated[Path | None, _data("Where to look first; laid out as GTPOOL_DATA is.")]
Features = Annotated[
    str | None, _data("What nodes are given: gmt, fair, degree or constant. (gmt)")
]
SmilesColumn = Annotated[str | None, _data("Of a CSV. (the one named so)")]
TargetColumns = Annotated[
    str | None, _data("Of a CSV: what to predict, with commas between. (the only other)")
]
SplitColumn = Annotated[str | None, _data("Of a CSV: says train, valid or test.")]
TaskName = Annotated[
    Literal["classes", "binary", "regression"] | None,
    _data("Of a CSV or .jsonl. (told by the values)"),
]


def _cluster(text: str) -> Any:  # noqa: ANN401
    return typer.Option(help=text, rich_help_panel="Cluster")


ExecutorName = Annotated[Literal["local", "ray"], _cluster("Who does the runs.")]
Address = Annotated[
    str | None, _cluster("Of the Ray cluster: auto or HOST:PORT. (one on this machine alone)")
]
GpusPerUnit = Annotated[
    float | None, _cluster("Share of a GPU that a run gets from Ray, such as 0.1. (0: on a CPU)")
]
UnitLimit = Annotated[
    float | None, _cluster("Seconds after which Ray cancels a run, which has then failed.")
]
Shard = Annotated[
    str | None, _cluster("Do the runs of part i of n alone: i/n, such as 2/8. (all runs)")
]


def names(text: str) -> list[str]:
    """List what an option names, with commas between; spaces do not count."""
    return [name.strip() for name in text.split(",")]


def data_options(
    source: str | None,
    features: str | None,
    smiles_column: str | None,
    target_columns: str | None,
    split_column: str | None,
    task: str | None,
) -> dict[str, Any]:
    """Give the options of ``DataSpec`` that a command line sets; None is what it leaves out."""
    return {
        "source": source,
        "features": features,
        "smiles_column": smiles_column,
        "target_columns": None if target_columns is None else names(target_columns),
        "split_column": split_column,
        "task": task,
    }


def check_output(output: Path, data: str) -> None:
    """Refuse to write over the file that is read, or onto a directory."""
    from gtpool.atomic import rename_target

    rename_target(output)
    if output.exists() and Path(data).exists() and output.samefile(data):
        raise ValueError(f"--output {output} is the file to read; give another name")


def choose_executor(
    name: Literal["local", "ray"],
    address: str | None,
    gpus_per_unit: float | None,
    unit_limit: float | None,
) -> "Executor | None":
    """Make what the options ask for; None is this machine."""
    if name == "ray":
        from gtpool.study.ray_executor import RayExecutor

        return RayExecutor(address, gpus_per_unit=gpus_per_unit or 0.0, unit_limit=unit_limit)
    given = {"address": address, "gpus-per-unit": gpus_per_unit, "unit-limit": unit_limit}
    for option, value in given.items():
        if value is not None:
            raise ValueError(f"--{option} is for --executor ray")
    return None


@contextmanager
def search_extra(what: str) -> Generator[None]:
    """Name the extra where imports of a search find no package of it.

    Args:
        what: What it is needed for, such as "search".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in {"filelock", "optuna", "sqlalchemy"}:
            raise
        raise ValueError(
            f"to {what}, {package} is needed: pip install '.[search]' in a clone"
        ) from error
