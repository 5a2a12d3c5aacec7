"""`gtpool demo`: three poolers on MUTAG, from the graphs to a page."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gtpool.spec import TU, ModelSpec
from gtpool.study.plan import Plan, make_plan

METHODS = {"GTPool-V": "gtpool-v", "GTPool": "gtpool", "top-k": "gtpool-topk"}
REDUCED: dict[str, dict[str, Any]] = {
    "model": {"width": 32},
    "train": {"patience": None, "lr": 2e-3},
}
"""What differs from the protocol, so that all is done within three minutes on two cores."""


def demo(
    output_dir: Annotated[Path, typer.Option(help="Where the page and the runs go.")] = Path("out"),
    folds: Annotated[int, typer.Option(min=3, help="Parts of the cross-validation.")] = 10,
    epochs: Annotated[int, typer.Option(min=1, help="Of each run.")] = 100,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 2,
) -> None:
    """Cross-validate GTPool-V, GTPool and top-k on MUTAG and show the outcome on a page.

    A small network and a short training, so that it takes minutes; stopped, it goes on.
    """
    plans = {name: _plan(method, folds, epochs) for name, method in METHODS.items()}
    notes = (
        "One network with three ways to choose the nodes that stay, on the 188 molecules of MUTAG.",
        _reduction(plans["GTPool-V"]),
    )
    typer.echo("\n".join(notes))

    from gtpool.report.results import compare_methods
    from gtpool.report.table import methods_table
    from gtpool.study.cross_validate import RunConfig

    page = output_dir / "demo.html"
    rows = compare_methods(plans, RunConfig(output_dir / "demo", jobs=jobs), page, notes)
    typer.echo(f"\n{methods_table(rows).terminal()}")
    typer.echo(f"± standard deviation over folds; page: {page}")


def _plan(method: str, folds: int, epochs: int) -> Plan:
    model = {"pool": method, **REDUCED["model"]}
    train = REDUCED["train"] | {"epochs": epochs}
    settings = {"data": {"source": "MUTAG"}, "split": {"folds": folds}}
    return make_plan({**settings, "model": model, "train": train}, {})


def _reduction(plan: Plan) -> str:
    """Say what was reduced against the protocol."""
    model, train = plan.run.model, plan.run.train
    return (
        f"Reduced to be quick: width {model.width} in place of {ModelSpec().width}, "
        f"{train.epochs} epochs without an early stop in place of at most {TU.epochs}, learning "
        f"rate {train.lr:g} in place of {TU.lr:g}, one seed in place of ten. So these are not "
        "figures of the paper's protocol."
    )
