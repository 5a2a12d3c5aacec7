"""Options shared by several commands."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gtpool.spec import SplitRule

if TYPE_CHECKING:
    from gtpool.study.executor import Executor

Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="auto uses a GPU if available.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Number of worker processes.")]
Together = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Maximum number of runs trained side by side. (default: 100 on a GPU, else 1)",
    ),
]
SplitType = Annotated[
    SplitRule | None,
    typer.Option(
        help="Split rule. (default: auto, the rule of the dataset)", rich_help_panel="Training"
    ),
]


RecipeName = Annotated[
    Literal["best", "paper"] | None,
    typer.Option(help="Defaults of all options: best, or the letter of the paper. (default: best)"),
]


def _data(text: str) -> Any:  # noqa: ANN401 - typer's own return type
    return typer.Option(help=text, rich_help_panel="Data")


DataDir = Annotated[
    Path | None, _data("Folder searched first for datasets, with the layout of GTPOOL_DATA.")
]
Features = Annotated[
    str | None, _data("Node features: gmt, fair, degree or constant. (default: gmt)")
]
_ENCODE = (
    "Structural encodings of nodes: rwse:K, lappe:K, degree, cycles or cycles:K, separated by "
    "commas; or none."
)
Encode = Annotated[str | None, _data(f"{_ENCODE} (default: of the recipe)")]
EncodeGiven = Annotated[str | None, _data(f"{_ENCODE} (default: none)")]
SmilesColumn = Annotated[str | None, _data("CSV column of SMILES. (default: smiles)")]
TargetColumns = Annotated[
    str | None,
    _data(
        "CSV columns to predict, separated by commas; * for all others. (default: the only other)"
    ),
]
MoleculeFeatures = Annotated[
    str | None,
    _data(
        "Descriptors of whole molecules that the head reads: rdkit2d, morgan, separated by commas; "
        "or none. (default: of the recipe)"
    ),
]
FeatureColumns = Annotated[
    str | None,
    typer.Option(
        "--features-columns",
        "--feature-columns",
        help="CSV columns of numbers that the head reads, separated by commas. (default: none)",
        rich_help_panel="Data",
    ),
]
SplitColumn = Annotated[str | None, _data("CSV column with the values train, valid and test.")]
GroupColumn = Annotated[
    str | None,
    _data("CSV column whose equal cells stay in one part: folds of groups, such as series."),
]
TimeColumn = Annotated[
    str | None,
    _data("CSV column of numbers or ISO dates: train on the oldest rows, test on the newest."),
]
Contradictions = Annotated[
    Literal["keep", "drop"] | None,
    _data("What to do with the rows of a molecule with contradicting targets. (default: keep)"),
]
Copies = Annotated[
    Literal["auto", "together", "apart"] | None,
    typer.Option(
        help="Whether rows of one molecule stay in one part of a split. (default: together)",
        rich_help_panel="Training",
    ),
]
TaskName = Annotated[
    Literal["classes", "binary", "regression"] | None,
    _data("Type of target of a CSV or .jsonl file. (default: inferred from the values)"),
]


def _cluster(text: str) -> Any:  # noqa: ANN401
    return typer.Option(help=text, rich_help_panel="Cluster")


ExecutorName = Annotated[
    Literal["local", "ray"], _cluster("Where runs are done: on this machine or on a Ray cluster.")
]
Address = Annotated[
    str | None,
    _cluster("Address of the Ray cluster: auto or HOST:PORT. (default: a local cluster)"),
]
GpusPerUnit = Annotated[
    float | None,
    _cluster("Fraction of a GPU per run on Ray, such as 0.1. (default: 0, run on a CPU)"),
]
UnitLimit = Annotated[
    float | None, _cluster("Seconds after which a run on Ray is cancelled and recorded as failed.")
]
Shard = Annotated[
    str | None, _cluster("Do only part i of n of the runs: i/n, such as 2/8. (default: all runs)")
]


def split_names(text: str) -> list[str]:
    """Return the names of a comma-separated list."""
    return [name.strip() for name in text.split(",")]


def data_options(
    source: str | None,
    features: str | None,
    smiles_column: str | None,
    target_columns: str | None,
    split_column: str | None,
    task: str | None,
    encode: str | None = None,
    *,
    group_column: str | None = None,
    time_column: str | None = None,
    contradictions: str | None = None,
    molecule_features: str | None = None,
    feature_columns: str | None = None,
) -> dict[str, Any]:
    """Return options of ``DataSpec`` from the command line; None if not given."""
    return {
        "source": source,
        "features": features,
        "smiles_column": smiles_column,
        "target_columns": None if target_columns is None else split_names(target_columns),
        "split_column": split_column,
        "group_column": group_column,
        "time_column": time_column,
        "contradictions": contradictions,
        "task": task,
        "encode": _names_or_none(encode),
        "molecule_features": _names_or_none(molecule_features),
        "feature_columns": _names_or_none(feature_columns),
    }


def _names_or_none(text: str | None) -> list[str] | None:
    """Return the names of a list, none of them for the word "none"; None if not given."""
    return [] if text == "none" else None if text is None else split_names(text)


def metric_options(metric: str | None) -> dict[str, str | None]:
    """Return options of ``TrainSpec`` for ``--metric``, which also chooses the epoch."""
    if metric is None:
        return {"metric": None, "select": None}
    return {"metric": metric.lower().replace("-", "_"), "select": "metric"}


def check_output(output: Path, data: str) -> None:
    """Raise if the output is the input file or a directory."""
    from gtpool.atomic import rename_target

    rename_target(output)
    if output.exists() and Path(data).exists() and output.samefile(data):
        raise ValueError(f"--output {output} is also the input file; choose another file")


def choose_executor(
    name: Literal["local", "ray"],
    address: str | None,
    gpus_per_unit: float | None,
    unit_limit: float | None,
) -> "Executor | None":
    """Return the executor that the options select; None for this machine."""
    if name == "ray":
        from gtpool.study.ray_executor import RayExecutor

        return RayExecutor(address, gpus_per_unit=gpus_per_unit or 0.0, unit_limit=unit_limit)
    given = {"address": address, "gpus-per-unit": gpus_per_unit, "unit-limit": unit_limit}
    for option, value in given.items():
        if value is not None:
            raise ValueError(f"--{option} requires --executor ray")
    return None


@contextmanager
def search_extra(what: str) -> Generator[None]:
    """Turn a failed import of a search package into an error that names the extra.

    Args:
        what: The command, such as "search".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in {"filelock", "optuna", "sqlalchemy"}:
            raise
        raise ValueError(
            f"`gtpool {what}` requires {package}: run pip install '.[search]' in a clone"
        ) from error
