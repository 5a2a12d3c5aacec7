"""`gtpool demo`: compare three poolers on MUTAG."""

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
"""Differences from the protocol, so that the demo takes three minutes on two cores."""


def demo(
    output_dir: Annotated[Path, typer.Option(help="Output folder.")] = Path("out"),
    folds: Annotated[int, typer.Option(min=3, help="Number of folds.")] = 10,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each run.")] = 100,
    jobs: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 2,
) -> None:
    """Cross-validate GTPool-V, GTPool and top-k on MUTAG and write an HTML page.

    The network is small and training is short, so the demo takes minutes.
    An interrupted command resumes when repeated.
    """
    plans = {name: _plan(method, folds, epochs) for name, method in METHODS.items()}
    notes = (
        "One network with three node samplers on the 188 molecules of MUTAG.",
        _reduction(plans["GTPool-V"]),
    )
    typer.echo("\n".join(notes))

    from gtpool.report.results import compare_methods
    from gtpool.study.cross_validate import RunConfig

    page = output_dir / "demo.html"
    table = compare_methods(plans, RunConfig(output_dir / "demo", jobs=jobs), page, notes)
    typer.echo(f"\n{table.terminal()}")
    typer.echo(f"± standard deviation over folds; page: {page}")


def _plan(method: str, folds: int, epochs: int) -> Plan:
    model = {"pool": method, **REDUCED["model"]}
    train = REDUCED["train"] | {"epochs": epochs}
    settings = {"data": {"source": "MUTAG"}, "split": {"folds": folds}}
    return make_plan({**settings, "model": model, "train": train}, {})


def _reduction(plan: Plan) -> str:
    """Describe the differences from the protocol."""
    model, train = plan.run.model, plan.run.train
    return (
        f"Reduced settings: width {model.width} instead of {ModelSpec().width}, {train.epochs} "
        f"epochs without early stopping instead of at most {TU.epochs}, learning rate "
        f"{train.lr:g} instead of {TU.lr:g}, one seed instead of ten. The results are not "
        "comparable with the paper."
    )
