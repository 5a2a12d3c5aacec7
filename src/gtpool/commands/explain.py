"""`gtpool explain`: why a saved model says what it says."""

from pathlib import Path
from typing import Annotated

import typer

from gtpool.commands.options import DataDir, Device, check_output
from gtpool.commands.predict import Data, Model, SmilesColumn
from gtpool.report.table import printable


def explain(
    model: Model,
    data: Data,
    graph: Annotated[
        int | None,
        typer.Option(help="One graph, numbered from 0; of a CSV or .jsonl file the line."),
    ] = None,
    graphs: Annotated[
        int, typer.Option(min=1, help="How many, evenly spread, if none is named.")
    ] = 3,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML page to write.")] = Path(
        "explanation.html"
    ),
    target: Annotated[
        str | None, typer.Option(help="The class or task to explain. (what the model says)")
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=1, help="Steps of the search for important nodes.")
    ] = 100,
    seed: Annotated[int, typer.Option(help="Of that search.")] = 0,
    smiles_column: SmilesColumn = None,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Show which nodes each level kept, where they look, and which nodes the answer rests on.

    Without --graph, also how diverse the kept nodes of all graphs are, by sampler.
    """
    from gtpool.explain import explain_source
    from gtpool.model.bundle import load_bundle
    from gtpool.report.diversity import diversity_table, judge_diversity
    from gtpool.report.explanation import write_explanation

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
    note = (
        f"A network with pool {spec.pool}, width {spec.width}, trained on {trained}; importance by "
        f"GNNExplainer, {epochs} steps, seed {seed}."
    )
    write_explanation(output, f"What the model says of {data}, and why", found, [note])
    if found.diversity is not None:
        typer.echo(diversity_table(found.diversity).terminal())
        typer.echo("\n".join(judge_diversity(found.diversity)))
    typer.echo(printable(f"{len(found.graphs)} of {data} explained: {output}"))
