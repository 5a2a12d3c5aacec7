"""`gtpool demo`: compare the recipes and a flat network on MUTAG."""

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
