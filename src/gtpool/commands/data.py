"""`gtpool data`: the datasets that are known by name."""

import typer

from gtpool.commands.options import DataDir

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_datasets(data_dir: DataDir = None) -> None:
    """Show all datasets, their sizes, and where each would come from now."""
    from rich.console import Console
    from rich.table import Table

    from gtpool.data.locate import locate
    from gtpool.data.registry import DATASETS

    table = Table()
    for heading in ("name", "family", "graphs", "outputs", "mean nodes", "mean edges", "from"):
        table.add_column(heading, justify="left" if heading in {"name", "family"} else "right")
    for name, source in DATASETS.items():
        means = f"{source.mean_nodes:.2f}", f"{source.mean_edges:.2f}"
        origin = locate(name, data_dir).origin
        table.add_row(name, source.family, str(source.graphs), source.outputs, *means, origin)
    Console(width=100).print(table)


@app.command("info")
def describe_dataset(name: str, data_dir: DataDir = None) -> None:
    """Load a dataset and say what is in it."""
    from gtpool.data.locate import locate
    from gtpool.data.registry import look_up
    from gtpool.data.sources import load
    from gtpool.data.summary import describe
    from gtpool.report.table import printable

    source, origin = look_up(name), locate(name, data_dir).origin
    facts = describe(load(name, data_dir=data_dir), data_dir)
    facts |= {"licence": source.licence, "citation": source.citation}
    facts |= {"published at": source.url} if source.url else {}
    facts |= {"taken from": "nowhere: made on the spot" if origin == "made" else origin}
    for what, value in facts.items():
        typer.echo(printable(f"{what + ':':<15}{value}"))


@app.command("get")
def get_dataset(name: str, data_dir: DataDir = None) -> None:
    """Download a dataset, or all, with its fixed folds; what is here already is left alone."""
    from gtpool.data.locate import download_folds, find_raw, splits_folder
    from gtpool.data.registry import DATASETS, look_up

    for one in DATASETS if name == "all" else (name,):
        source = look_up(one)
        if source.family == "synthetic":
            typer.echo(f"{one}: made on the spot, there is nothing to get")
            continue
        typer.echo(f"{one}: {find_raw(one, data_dir)}")
        if source.folds_sha256 is None:
            continue
        try:
            folds = splits_folder(one, data_dir) or download_folds(one, source)
            typer.echo(f"{one}, fixed folds: {folds}")
        except (OSError, ValueError) as error:
            typer.secho(f"gtpool: no fixed folds of {one}: {error}", err=True, fg="yellow")
