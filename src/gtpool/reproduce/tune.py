"""Tuning of networks by the paper's protocol on validation parts: `gtpool study tune`."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import join
from typing import Any, NamedTuple, cast

from gtpool.data.registry import DATASETS, dataset_info
from gtpool.model import METHODS, method_name
from gtpool.model.conv import CONVS
from gtpool.ops.sample import check_choice
from gtpool.report.search_report import SearchProgress
from gtpool.reproduce.candidates import (
    Options,
    config_runs,
    is_buildable,
    sample_configs,
    search_space,
)
from gtpool.study.halving import Budget, Candidate, Rung, SuccessiveHalving
from gtpool.study.optuna_study import JOURNAL
from gtpool.study.run import run_many
from gtpool.study.search import RunFunction
from gtpool.study.store import Store, write_atomic
from gtpool.train.metric import METRICS


class TuningResult(NamedTuple):
    """The tuned options."""

    per_fold: tuple[Options, ...]
    """The choice of each fold, by its own validation part."""
    pooled: Options
    """The choice by the mean over folds."""
    rounds: tuple[int, ...]
    """Epochs of each round; the last is that of the protocol."""


def tune(
    dataset: str,
    model: Mapping[str, Any],
    do: RunFunction,
    folder: Path,
    *,
    space: Mapping[str, Sequence[Any]] | None = None,
    budget: Budget = Budget(),  # noqa: B008 - a value that does not change
    seed: int = 0,
    on_rung: Callable[[Rung], object] = lambda _: None,
) -> TuningResult:
    """Return the best options of a network on a dataset by validation results only.

    Args:
        dataset: A name of the registry.
        model: Options of the untuned network that differ from the defaults of ``ModelSpec``.
        do: Function that executes the runs.
        folder: Folder of the journal.
        space: The choices of each option; by default those of ``search_space``.
        budget: Budget of the search.
        seed: Seed of the sampled configurations.
        on_rung: Called with each round before it begins.
    """
    if budget.configs < 1:
        raise ValueError(f"configs must be at least 1, got {budget.configs}")
    choices = space or search_space(dataset, model)
    configs = sample_configs(choices, budget.configs, seed, partial(is_buildable, dataset, model))
    if not configs:
        raise ValueError("no choices of this space go together in a network")
    candidates = [Candidate(options, config_runs(dataset, model, options)) for options in configs]
    by_loss = candidates[0].runs[0].train.select == "loss"
    metric = METRICS["classes" if DATASETS[dataset].tasks is None else "binary"]
    halving = SuccessiveHalving(
        f"{dataset} {method_name(candidates[0].runs[0].model.to_json())}",
        candidates,
        choices,
        folder,
        budget=budget,
        metric="loss" if by_loss else metric.name,
        higher_is_better=not by_loss and metric.higher_is_better,
    )
    for rung in halving.run(do):
        on_rung(rung)
    per_fold, pooled = halving.best()
    return TuningResult(tuple(configs[place] for place in per_fold), configs[pooled], halving.rungs)


def tune_dataset(
    dataset: str,
    method: str,
    folder: Path,
    *,
    budget: tuple[int, tuple[int, ...], float],
    convs: tuple[str, ...],
    running: tuple[int, int | None, str, Path | None],
) -> list[str]:
    """Tune a method on a dataset, write the choices, and return report lines.

    Args:
        dataset: A name of the registry.
        method: A key of ``METHODS``.
        folder: Folder of runs, choices and log.
        budget: Initial configurations, epochs of the short rounds, and share that is promoted.
        convs: The convolutions to try; a method that is a convolution keeps its own.
        running: Jobs, runs side by side, device, and folder of the data.
    """
    dataset_info(dataset)
    if method not in METHODS:
        raise ValueError(f"no method {method!r}; there are {', '.join(METHODS)}")
    model, (jobs, together, device, data_dir) = METHODS[method].model, running
    space = search_space(dataset, model)
    for conv in convs:
        check_choice("conv", conv, CONVS)
    if "model.conv" in space:  # its own first, so that it is always sampled
        own = space["model.conv"][0]
        space["model.conv"] = tuple(sorted(convs, key=lambda conv: conv != own))
    chosen = folder / "tuned.json"
    _read_choices(chosen)  # fails early if the file is unreadable
    with SearchProgress() as watch:
        do = partial(
            run_many,
            store=Store(folder),
            jobs=jobs,
            together=together,
            device=device,
            data_dir=data_dir,
            watch=watch,
        )
        tuned = tune(
            dataset, model, do, folder, space=space, budget=Budget(*budget), on_rung=watch.rung
        )
    choice = {"rounds": tuned.rounds, "per_fold": tuned.per_fold, "pooled": tuned.pooled}
    known = _read_choices(chosen)  # again: another process may have written meanwhile
    known.setdefault(method, {})[dataset] = choice
    write_atomic(chosen, (json.dumps(known, indent=1) + "\n").encode())
    run = ("gtpool", "study", "run", "tuned", "--choices", chosen, "--output-dir", folder)
    return [
        *describe_choice(dataset, model, tuned),
        f"choices:         {chosen}",
        f"log:             {folder / JOURNAL}",
        f"to run them:     {join(map(str, run))}",
    ]


def describe_choice(dataset: str, model: Mapping[str, Any], tuned: TuningResult) -> list[str]:
    """Return lines with the chosen options that differ from the defaults, without metrics."""
    plain = config_runs(dataset, model, {})
    changed = [
        f"{name} {value}"
        for name, value in tuned.pooled.items()
        if config_runs(dataset, model, {name: value}) != plain
    ]
    count = len({json.dumps(options, sort_keys=True) for options in tuned.per_fold})
    return [
        f"pooled choice:   {', '.join(changed) or 'the defaults'}",
        f"folds chose:     {count} network{'s' * (count > 1)} in {len(tuned.per_fold)} folds",
    ]


def _read_choices(path: Path) -> dict[str, dict[str, Any]]:
    """Return the stored choices of other methods and datasets."""
    if not path.exists():
        return {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}; move or delete it") from error
    if not isinstance(known, dict):
        raise ValueError(f"{path} has no choices of `gtpool study tune`; move or delete it")
    return cast("dict[str, dict[str, Any]]", known)
