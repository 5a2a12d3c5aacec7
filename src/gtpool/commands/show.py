"""`gtpool list`, `gtpool compare` and `gtpool demo`: names, nodes that samplers keep, recipes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gtpool.spec import ModelSpec
from gtpool.study.plan import Plan, make_plan

_TITLE = "GTPool-V by both recipes, and a flat GIN by the recipe best, on MUTAG (188 molecules)."
METHODS = {
    "best": ("best", "gtpool-v"),
    "paper": ("paper", "gtpool-v"),
    "flat GIN": ("best", "gin"),
}
"""Recipe and method of each line of the demo."""
REDUCED: dict[str, dict[str, Any]] = {
    "model": {"width": 32},
    "train": {"patience": None, "lr": 2e-3},
}
"""Differences from the recipes, so that the demo takes about a minute on two cores."""


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


def demo(
    output_dir: Annotated[Path, typer.Option(help="Output folder.")] = Path("out"),
    folds: Annotated[int, typer.Option(min=3, help="Number of folds.")] = 10,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each run.")] = 60,
    jobs: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 2,
) -> None:
    """Cross-validate GTPool-V by both recipes and a flat GIN on MUTAG; write an HTML page.

    The flat GIN has the encodings of the recipe best, and no pooling. The
    networks are small and training is short. An interrupted command resumes when
    repeated.
    """
    plans = {name: _plan(*method, folds, epochs) for name, method in METHODS.items()}
    notes = (_TITLE, _reduction(plans["best"]))
    typer.echo("\n".join(notes))

    from gtpool.report.results import compare_methods
    from gtpool.study.cross_validate import RunConfig

    page = output_dir / "demo.html"
    table = compare_methods(plans, RunConfig(output_dir / "demo", jobs=jobs), page, notes)
    typer.echo(f"\n{table.terminal()}")
    typer.echo(f"± standard deviation over folds; page: {page}")


def _plan(recipe: str, method: str, folds: int, epochs: int) -> Plan:
    model = {"pool": method, **REDUCED["model"]}
    train = REDUCED["train"] | {"epochs": epochs}
    settings = {"data": {"source": "MUTAG"}, "split": {"folds": folds}}
    return make_plan({**settings, "model": model, "train": train}, {}, recipe)


def _reduction(plan: Plan) -> str:
    """Describe the differences from the recipes."""
    model, train = plan.run.model, plan.run.train
    return (
        f"Reduced settings: width {model.width} instead of {ModelSpec().width}, {train.epochs} "
        f"epochs without early stopping, learning rate {train.lr:g}, one seed. The results are "
        "not comparable with the paper."
    )
