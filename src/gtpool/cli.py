"""The command line: parse, call one function, print. Heavy imports wait inside the commands."""

from pathlib import Path
from typing import Annotated

import typer

from gtpool import __version__

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command line; an error of the user's is one line, not a trace."""
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

    from gtpool.data.tu import MUTAG_ATOMS, load_mutag
    from gtpool.explain import compare_samplers
    from gtpool.pool.gtpool import GTPool
    from gtpool.report.plot import draw_kept

    torch.manual_seed(seed)
    molecule = load_mutag()[graph]
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
