"""Test of a search on graphs that none of its trials has read."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import from_numpy

from gtpool.data.formats.reader import Loaded
from gtpool.spec import RunSpec
from gtpool.study.heldout import read_held_out
from gtpool.study.inputs import expand_folds
from gtpool.study.result import RunResult
from gtpool.study.summarize import MetricSummary, format_metric, metric_title, summarize
from gtpool.train.metric import metric_of


class OuterTest(NamedTuple):
    """Test metric of the chosen options on the graphs that were held out."""

    graphs: int
    value: float
    """Of the mean prediction of the networks of all folds."""
    single: MetricSummary
    """Of single networks."""

    @property
    def text(self) -> str:
        """The figures in words."""
        metric = self.single.metric
        value = format_metric(self.value, metric)
        return (
            f"{metric_title(metric)}: {value} by the networks of all folds together, "
            f"{self.single.text} alone ({self.single.evidence}); {self.graphs} graphs that no "
            "trial has read"
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"graphs": self.graphs, "value": self.value, "single": self.single._asdict()}


def outer_test(
    spec: RunSpec,
    seeds: int,
    do: Callable[[Sequence[RunSpec]], list[RunResult]],
    artifact: Callable[[str], Path],
    loaded: Loaded,
    data_dir: Path | None = None,
) -> OuterTest | None:
    """Train with the chosen options on all folds, and test on the graphs that were held out.

    Args:
        spec: The run with the chosen options.
        seeds: Number of seeds per fold.
        do: Returns the results of runs, and keeps their artifacts.
        artifact: Maps the key of a run to its artifact file.
        loaded: The data.
        data_dir: Folder searched first for a dataset known by name.

    Returns:
        None if all runs failed.
    """
    tested = replace(spec, split=replace(spec.split, hold_out="test"))
    runs = do(expand_folds(tested, seeds=seeds, data_dir=data_dir, loaded=loaded))
    task = loaded.dataset.schema.task
    parts = read_held_out(runs, artifact, task)
    if not parts:
        return None
    output = from_numpy(np.mean([part.output for part in parts], 0))
    metric = metric_of(task, spec.train.metric)
    value = metric.of_outputs(output, from_numpy(parts[0].y))
    return OuterTest(len(parts[0].graph), value, summarize(runs))
