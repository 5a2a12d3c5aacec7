"""`gtpool list`: names of methods and layers; `gtpool compare`: nodes that samplers keep."""

from pathlib import Path
from typing import Annotated

import typer


def list_names() -> None:
    """List methods, poolers, convolutions, readouts, features and samplers."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from gtpool.data.features import FEATURES
    from gtpool.data.sources import load
    from gtpool.model import METHODS
    from gtpool.model.classifier import Classifier
    from gtpool.model.conv import CONVS
    from gtpool.model.readout import READOUTS
    from gtpool.ops.sample import SAMPLERS
    from gtpool.pool import POOLS
    from gtpool.spec import ModelSpec
    from gtpool.study.inputs import shape_of

    shape = shape_of(load("MUTAG"))
    table = Table(title="methods (--pool), parameters at width 128 on MUTAG", box=None)
    for heading in ("method", "kind", "parameters", "auxiliary loss", "paper"):
        table.add_column(heading, justify="right" if heading == "parameters" else "left")
    for name, method in METHODS.items():
        with torch.device("meta"):
            model = Classifier(ModelSpec(**method.model), shape)
        count = sum(part.numel() for part in model.parameters())
        loss = "yes" if method.auxiliary else ""
        table.add_row(name, method.kind, f"{count:,}", loss, method.paper)
    Console().print(table)
    names = {
        "poolers (--pool)": ["none", *POOLS],
        "convolutions (--conv)": CONVS,
        "readouts (--readout)": READOUTS,
        "features (--features)": FEATURES,
        "samplers": SAMPLERS,
    }
    for what, known in names.items():
        typer.echo(f"{what + ':':<23}{', '.join(known)}")


def compare(
    output_dir: Annotated[Path, typer.Option(help="Output folder.")] = Path("out"),
    graph: Annotated[int, typer.Option(min=0, max=187, help="Index of a molecule of MUTAG.")] = 0,
    ratio: Annotated[float, typer.Option(help="Fraction of atoms to keep.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Seed of the weights.")] = 0,
) -> None:
    """Pool one molecule of MUTAG and show the atoms that RWS, RWSV and top-k keep."""
    import torch
    from rich.console import Console
    from rich.table import Table
    from torch_geometric.nn import GCNConv

    from gtpool.data.formats.tu import MUTAG_ATOMS
    from gtpool.data.sources import load
    from gtpool.explain import compare_samplers
    from gtpool.pool.gtpool import GTPool
    from gtpool.report.plot import draw_kept, with_background
    from gtpool.report.result_tables import TextTable
    from gtpool.study.store import write_atomic

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

    picture = output_dir / f"mutag-{graph}-kept.svg"
    titles = {"topk": "top-k", "rws": "RWS", "rwsv": "RWSV"}
    heads = ("joined pairs, isolated atoms", *titles.values())
    cells = {
        connect: [compared.edges[name][connect] for name in titles]
        for connect in compared.edges["topk"]
    }
    lines = (
        (connect, *(f"{part.pairs}, {100 * part.isolated:.0f} %" for part in parts))
        for connect, parts in cells.items()
    )
    typer.echo(TextTable(heads, tuple(lines)).terminal())
    panels = {titles[name]: kept for name, kept in compared.kept.items()}
    svg = draw_kept(edge_index.T.tolist(), atoms, panels)
    write_atomic(picture, with_background(svg).encode())
    typer.echo(f"picture: {picture}")
