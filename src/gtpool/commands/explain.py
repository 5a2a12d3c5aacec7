"""`gtpool explain`: explain predictions of a saved model."""

from pathlib import Path
from typing import Annotated

import typer

from gtpool.commands.options import DataDir, Device, check_output
from gtpool.commands.predict import Data, Model, SmilesColumn
from gtpool.report.result_tables import printable


def explain(
    model: Model,
    data: Data,
    graph: Annotated[
        int | None,
        typer.Option(
            help="Graph to explain: its index from 0, or its line in a CSV or .jsonl file."
        ),
    ] = None,
    graphs: Annotated[
        int, typer.Option(min=1, help="Number of graphs, evenly spaced, if --graph is not given.")
    ] = 3,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML page to write.")] = Path(
        "explanation.html"
    ),
    target: Annotated[
        str | None, typer.Option(help="Class or task to explain. (default: the predicted class)")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Optimization steps of GNNExplainer.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of GNNExplainer.")] = 0,
    smiles_column: SmilesColumn = None,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Show which nodes each pooling layer keeps, their attention and their importance.

    Without --graph, also compare the diversity of the kept nodes between samplers.
    """
    from gtpool.explain import explain_source
    from gtpool.model.bundle import load_bundle
    from gtpool.model.predictor import members_of
    from gtpool.report.explanation import (
        BLEND_NOTE,
        CALIBRATION_NOTE,
        ENSEMBLE_NOTE,
        connectivity_table,
        diversity_table,
        judge_diversity,
        write_explanation,
    )

    check_output(output, data)
    bundle = load_bundle(model)
    found = explain_source(
        bundle,
        data,
        graph=graph,
        graphs=graphs,
        target=target,
        epochs=epochs,
        seed=seed,
        data_dir=data_dir,
        smiles_column=smiles_column,
        device=device,
    )
    spec, trained = bundle.model.spec, bundle.part("schema").get("name", "graphs")
    members = len(members_of(bundle.model))
    what = "Network" if members == 1 else f"Ensemble of {members} networks"
    note = (
        f"{what} with pool {spec.pool}, width {spec.width}, trained on {trained}. Importance by "
        f"GNNExplainer, {epochs} steps, seed {seed}."
    )
    notes = [note, ENSEMBLE_NOTE] if members > 1 else [note]
    unlike = {BLEND_NOTE: bundle.blend is not None, CALIBRATION_NOTE: bundle.calibration.changes}
    for note in (note for note, applies in unlike.items() if applies):
        notes.append(note)
        typer.echo(note)
    write_explanation(output, f"Explanations of predictions on {data}", found, notes)
    if found.diversity is not None:
        typer.echo(diversity_table(found.diversity).terminal())
        typer.echo("\n".join(judge_diversity(found.diversity)))
        typer.echo(connectivity_table(found.connectivity).terminal())
    count = len(found.graphs)
    typer.echo(printable(f"{count} graph{'s' if count != 1 else ''} of {data} explained: {output}"))
