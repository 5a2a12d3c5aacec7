"""The job of a search: try combinations, and write what they showed."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gtpool.commands.crossval import Running, plan_runs
from gtpool.commands.plan import Plan, make_plan
from gtpool.data.formats.reader import Loaded
from gtpool.report.plot import standalone
from gtpool.report.searching import (
    POOLED,
    SearchProgress,
    coverage,
    draw_importance,
    rests_on,
    trials_table,
)
from gtpool.spec import FOLDED
from gtpool.study.run import TOGETHER, run_many
from gtpool.study.search import EVALUATOR, Search
from gtpool.study.space import PAPER, Space, chosen, count, ends, read_space
from gtpool.study.store import Store, write_whole
from gtpool.study.unit import choose_device


class Wanted(NamedTuple):
    """How to search."""

    trials: int
    seed: int = 0
    rung: int | None = None
    """Folds between two looks at pruning; None for as many as run at once."""
    prune: bool = True
    storage: str | None = None
    folds_given: bool = False
    """Whether the user asked for a number of folds, which not all splits have."""


def search_options(
    plan: Plan, table: Mapping[str, Any] | None, how: Running, wanted: Wanted
) -> list[str]:
    """Search for the options that validate best, write them, and say what was found.

    Args:
        plan: The runs of a trial, but for what is searched.
        table: What to choose from, as a file says it; None is the paper's space.
        how: Where and how to run.
        wanted: How to search.
    """
    runs, loaded = plan_runs(plan, how)
    folded = runs[0].split.rule in FOLDED
    if wanted.folds_given and not folded:
        raise ValueError(
            f"--folds is for split types that have folds, {', '.join(FOLDED)}; this one is "
            f"{runs[0].split.rule}"
        )
    space = PAPER if table is None else read_space(table, plan.run)
    _check_values(plan, space, how, loaded)
    search = Search(
        plan.run,
        space,
        how.folder,
        seeds=plan.seeds,
        storage=wanted.storage,
        data_dir=how.data_dir,
        loaded=loaded,
    )
    trials = min(wanted.trials, count(space) or wanted.trials)
    with SearchProgress(trials, len(runs), search.metric, done=len(search.tried())) as watch:
        do = partial(
            run_many,
            store=Store(how.folder),
            jobs=how.jobs,
            together=how.together,
            executor=how.executor,
            data_dir=how.data_dir,
            device=how.device,
            deterministic=how.deterministic,
            watch=watch,
            loaded=loaded,
        )
        rung = wanted.rung or _at_once(how)
        for tried in search.run(trials, do, seed=wanted.seed, rung=rung, prune=wanted.prune):
            watch.tried(tried, search.tried(), search.best())
    lines = _write(search, plan, how.folder)
    return [*lines, POOLED] if folded else lines


def _check_values(plan: Plan, space: Space, how: Running, loaded: Loaded) -> None:
    """See for each value of a space whether a run could start with it."""
    for name, held in space.items():
        for value in ends(held):
            changed = chosen(plan.run, {name: value}).to_json()
            try:
                plan_runs(make_plan({**changed, "seeds": plan.seeds}, {}), how, loaded)
            except ValueError as error:
                raise ValueError(f"the space has {name} = {value!r}, but {error}") from error


def _at_once(how: Running) -> int:
    """Say how many folds run at once."""
    if how.executor is not None:
        return TOGETHER
    on_gpu = how.jobs == 1 and choose_device(how.device).type == "cuda"
    return max(how.jobs, how.together or (TOGETHER if on_gpu else 1))


def _write(search: Search, plan: Plan, folder: Path) -> list[str]:
    """Write the best settings and the drawing, and say in lines what was found."""
    trials, best, shares = search.tried(), search.best(), search.importance()
    if best is None:
        return ["no combination was run on all folds", *coverage(trials, search.space)]
    path = folder / "best.json"
    settings = plan._replace(run=chosen(plan.run, best.choice)).to_json()
    write_whole(path, (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode())
    complete = [tried for tried in trials if tried.complete]
    complete.sort(key=lambda tried: tried.value or 0.0, reverse=search.higher_is_better)
    lines = [trials_table(complete, search.space, search.metric).terminal(), ""]
    lines.append(f"best:       {path} (for gtpool train --config)")
    if shares is not None:
        drawn, title = folder / "importance.svg", f"{EVALUATOR}, {rests_on(len(complete))}"
        write_whole(drawn, standalone(draw_importance(shares, title)).encode())
        lines.append(f"importance: {drawn} ({title})")
    lines += coverage(trials, search.space)
    if search.running():
        lines.append(f"{search.running()} more on their way elsewhere: who ends last writes all")
    return lines
