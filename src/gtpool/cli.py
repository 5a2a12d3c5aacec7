"""The command line: parse, call one function, print. Heavy imports wait inside the commands."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from gtpool import __version__

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
data_app = typer.Typer(no_args_is_help=True)
app.add_typer(data_app, name="data", help="The datasets that are known by name.")

DataDir = Annotated[
    Path | None, typer.Option(help="Where to look first; laid out as GTPOOL_DATA is.")
]


def main() -> None:
    """Run the command line; an error of the user's is one line, not a trace, and so a warning."""
    warnings.formatwarning = lambda message, *_, **__: f"gtpool: {message}\n"
    try:
        app()
    except (ValueError, OSError) as error:
        typer.secho(f"gtpool: {error}", err=True, fg="red")
        raise SystemExit(2) from None


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"gtpool {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Graph pooling and graph classification on PyTorch Geometric."""


@app.command()
def demo(
    output_dir: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out"),
    graph: Annotated[int, typer.Option(min=0, max=187, help="A molecule of MUTAG.")] = 0,
    ratio: Annotated[float, typer.Option(help="Share of atoms to keep.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Seed of the layer's random start.")] = 0,
) -> None:
    """Pool one molecule of MUTAG and show which atoms RWS, RWSV and top-k keep."""
    import torch
    from rich.console import Console
    from rich.table import Table
    from torch_geometric.nn import GCNConv

    from gtpool.data.sources import load
    from gtpool.data.tu import MUTAG_ATOMS
    from gtpool.explain import compare_samplers
    from gtpool.pool.gtpool import GTPool
    from gtpool.report.plot import draw_kept

    torch.manual_seed(seed)
    molecule = load("MUTAG").to_pyg()[graph]
    features, edge_index = molecule["x"], molecule["edge_index"]
    conv, pool = GCNConv(molecule.num_features, 32), GTPool(32, ratio)
    compared = compare_samplers(pool, conv(features, edge_index), edge_index)
    atoms = [MUTAG_ATOMS[kind] for kind in features.argmax(1).tolist()]

    table = Table(
        title=f"MUTAG molecule {graph}: {len(atoms)} atoms, ratio {ratio}, untrained layer"
    )
    for heading in ("node", "atom", "global", "local", "share", *compared.kept):
        table.add_column(heading, justify="right" if heading == "share" else "center")
    columns = (*compared.scores[1:], compared.share)
    for node, atom in enumerate(atoms):
        numbers = (f"{column[node]:.4f}" for column in columns)
        marks = ("●" if node in kept else "·" for kept in compared.kept.values())
        table.add_row(str(node), atom, *numbers, *marks)
    Console().print(table)

    output_dir.mkdir(parents=True, exist_ok=True)
    picture = output_dir / f"mutag-{graph}-kept.svg"
    titles = {"topk": "top-k", "rws": "RWS", "rwsv": "RWSV"}
    panels = {titles[name]: kept for name, kept in compared.kept.items()}
    draw_kept(picture, edge_index.T.tolist(), atoms, panels)
    typer.echo(f"picture: {picture}")


@data_app.command("list")
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


@data_app.command("info")
def describe_dataset(name: str, data_dir: DataDir = None) -> None:
    """Load a dataset and say what is in it."""
    from gtpool.data.locate import locate
    from gtpool.data.registry import look_up
    from gtpool.data.sources import load
    from gtpool.data.summary import describe

    source, origin = look_up(name), locate(name, data_dir).origin
    facts = describe(load(name, data_dir=data_dir), data_dir)
    facts |= {"licence": source.licence, "citation": source.citation}
    facts |= {"published at": source.url, "taken from": origin}
    for what, value in facts.items():
        typer.echo(f"{what + ':':<15}{value}")


@data_app.command("get")
def get_dataset(name: str, data_dir: DataDir = None) -> None:
    """Download a dataset, or all, with its fixed folds; what is here already is left alone."""
    from gtpool.data.locate import download_folds, find_raw, splits_folder
    from gtpool.data.registry import DATASETS, look_up

    for one in DATASETS if name == "all" else (name,):
        source = look_up(one)
        typer.echo(f"{one}: {find_raw(one, data_dir)}")
        if source.folds_sha256 is None:
            continue
        try:
            folds = splits_folder(one, data_dir) or download_folds(one, source)
            typer.echo(f"{one}, fixed folds: {folds}")
        except (OSError, ValueError) as error:
            typer.secho(f"gtpool: no fixed folds of {one}: {error}", err=True, fg="yellow")
