"""The job of `gtpool study tune`: search one dataset, and write what was chosen and why."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from gtpool.data.registry import look_up
from gtpool.model import METHODS
from gtpool.report.rounds import Rounds
from gtpool.study.run import run_many
from gtpool.study.store import Store, write_whole
from gtpool.study.tune import Budget, Tuned, configured, space_of, tune


def tune_dataset(
    dataset: str,
    method: str,
    folder: Path,
    *,
    budget: tuple[int, tuple[int, ...], float],
    convs: tuple[str, ...],
    running: tuple[int, int | None, str, Path | None],
) -> list[str]:
    """Tune a method on a dataset, write the choices, and say in lines what was chosen.

    Args:
        dataset: A name of the registry.
        method: A key of ``METHODS``.
        folder: Where runs, choices and log go.
        budget: Networks that start, epochs of the short rounds, share that goes on.
        convs: The convolutions to try; a method that is one keeps its own.
        running: Jobs, runs side by side, device, and where to look first for the data.
    """
    look_up(dataset)
    if method not in METHODS:
        raise ValueError(f"no method {method!r}; there are {', '.join(METHODS)}")
    model, (jobs, together, device, data_dir) = METHODS[method].model, running
    space = space_of(dataset, model)
    if "model.conv" in space:
        space["model.conv"] = convs
    do = partial(
        run_many,
        store=Store(folder),
        jobs=jobs,
        together=together,
        device=device,
        data_dir=data_dir,
        watch=Rounds(),
    )
    tuned = tune(dataset, model, do, space=space, budget=Budget(*budget))
    chosen = folder / "tuned.json"
    choice = {"rounds": list(budget[1]), "per_fold": tuned.per_fold, "pooled": tuned.pooled}
    write_whole(chosen, (json.dumps({method: {dataset: choice}}, indent=1) + "\n").encode())
    head = {"dataset": dataset, "method": method, "configs": tuned.configs}
    lines = [json.dumps(head), *(json.dumps(one) for one in tuned.log)]
    write_whole(folder / "log.jsonl", ("\n".join(lines) + "\n").encode())
    return [
        *tell(dataset, model, tuned),
        f"choices and log: {chosen}",
        f"to run them:     gtpool study run tuned --choices {quote(str(chosen))}",
    ]


def tell(dataset: str, model: Mapping[str, Any], tuned: Tuned) -> list[str]:
    """Say in lines what was chosen, as far as it differs from the defaults; no figure."""
    plain = configured(dataset, model, {})
    changed = [
        f"{name} {value}"
        for name, value in tuned.pooled.items()
        if configured(dataset, model, {name: value}) != plain
    ]
    count = len({json.dumps(options, sort_keys=True) for options in tuned.per_fold})
    return [
        f"pooled choice:   {', '.join(changed) or 'the defaults'}",
        f"folds chose:     {count} network{'s' * (count > 1)} in {len(tuned.per_fold)} folds",
    ]
