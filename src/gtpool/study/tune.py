"""Choose a network of the paper's protocol on validation parts alone."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gtpool.data.registry import DATASETS
from gtpool.model import method_name
from gtpool.study.candidates import Options, configured, draw, possible, space_of
from gtpool.study.halving import Budget, Candidate, Halving, Rung
from gtpool.study.search import Do
from gtpool.train.metric import METRICS


class Tuned(NamedTuple):
    """What was chosen."""

    per_fold: tuple[Options, ...]
    """The choice of each fold, by its own validation part."""
    pooled: Options
    """The choice by the mean over folds."""
    rounds: tuple[int, ...]
    """Epochs of each round, the protocol's last."""


def tune(
    dataset: str,
    model: Mapping[str, Any],
    do: Do,
    folder: Path,
    *,
    space: Mapping[str, Sequence[Any]] | None = None,
    budget: Budget = Budget(),  # noqa: B008 - a value that does not change
    seed: int = 0,
    tell: Callable[[Rung], object] = lambda _: None,
) -> Tuned:
    """Search the space of a network on a dataset; no test part is looked at.

    Args:
        dataset: A name of the registry.
        model: The network before it is tuned, as what differs from the defaults of ``ModelSpec``.
        do: Does the runs.
        folder: Where the journal lies.
        space: The choices of each option; by default those of ``space_of``.
        budget: How much to try.
        seed: Of the configurations that are drawn.
        tell: Is told of each round before it begins.
    """
    if budget.configs < 1:
        raise ValueError(f"at least one configuration starts, got {budget.configs}")
    choices = space or space_of(dataset, model)
    configs = draw(choices, budget.configs, seed, partial(possible, dataset, model))
    if not configs:
        raise ValueError("no choices of this space go together in a network")
    candidates = [Candidate(options, configured(dataset, model, options)) for options in configs]
    by_loss = candidates[0].runs[0].train.select == "loss"
    metric = METRICS["classes" if DATASETS[dataset].tasks is None else "binary"]
    halving = Halving(
        f"{dataset} {method_name(candidates[0].runs[0].model.to_json())}",
        candidates,
        choices,
        folder,
        budget=budget,
        metric="loss" if by_loss else metric.name,
        higher_is_better=not by_loss and metric.higher_is_better,
    )
    for rung in halving.run(do):
        tell(rung)
    per_fold, pooled = halving.best()
    return Tuned(tuple(configs[place] for place in per_fold), configs[pooled], halving.rungs)
