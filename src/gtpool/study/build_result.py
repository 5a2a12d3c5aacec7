"""Build the RunResult of a run: spec, outcome, environment."""

import math
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import torch
import torch_geometric

import gtpool
from gtpool.data.dataset import GraphDataset
from gtpool.data.split import Split
from gtpool.model.classifier import Classifier
from gtpool.spec import RunSpec
from gtpool.study.inputs import source_digest
from gtpool.study.process_pool import ATTEMPTS
from gtpool.study.result import RunResult, SplitSummary
from gtpool.train.epoch import Outcome, TrainingError
from gtpool.train.metric import metric_of

_CURVES = ("train_loss", "valid_loss", "valid_metric", "test_metric")


def new_result(spec: RunSpec) -> RunResult:
    """Return a result that holds the spec only."""
    return RunResult(
        key=spec.key,
        spec_json=spec.to_json(),
        status="done",
        curves={},
        source_digest=source_digest(spec.data.source),
    )


def start_result(data: GraphDataset, split: Split, model: Classifier, spec: RunSpec) -> RunResult:
    """Return a result with all that is known before training."""
    metric = metric_of(data.schema.task, spec.train.metric)
    sizes = (part.numel() for part in (split.train, split.valid, split.test))
    return new_result(spec).updated(
        metric=metric.name,
        higher_is_better=metric.higher_is_better,
        split_json=SplitSummary(split.rule, split.digest, *sizes)._asdict(),
        parameters=sum(part.numel() for part in model.parameters()),
    )


def add_outcome(row: RunResult, outcome: Outcome | TrainingError) -> RunResult:
    """Add the outcome of training; non-finite numbers become None, as JSON lacks them."""
    if isinstance(outcome, TrainingError):
        return row.updated(status="failed", error=str(outcome))
    best, epochs = outcome.best, outcome.epochs
    return row.updated(
        test=_finite(best.test_metric),
        valid_loss=_finite(best.valid_loss),
        valid_metric=_finite(best.valid_metric),
        epoch=best.number,
        epochs_run=len(epochs),
        other_rules={rule: _finite(value) for rule, value in outcome.other_rules.items()},
        curves={
            name: [_finite(round(getattr(epoch, name), 6)) for epoch in epochs] for name in _CURVES
        },
    )


def add_environment(row: RunResult, place: torch.device, seconds: float) -> RunResult:
    """Add time, memory, device and versions, which may differ between runs of one spec."""
    gpu = place.type == "cuda"
    return row.updated(
        seconds=round(seconds, 3),
        peak_rss_mb=_peak_rss_mb(),
        peak_gpu_mb=round(torch.cuda.max_memory_allocated(place) / 1e6, 1) if gpu else None,
        device=torch.cuda.get_device_name(place) if gpu else "cpu",
        versions={
            "gtpool": gtpool.__version__,
            "torch": torch.__version__,
            "torch_geometric": torch_geometric.__version__,
            "python": platform.python_version(),
        },
        commit=commit(),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def lost_result(spec: RunSpec, end: str) -> RunResult:
    """Return the failed result of a run whose worker died on every attempt."""
    why = f"its process died {ATTEMPTS} times, last with {end}; possibly out of memory"
    return failed_result(spec, why)


def failed_result(spec: RunSpec, why: str, seconds: float = 0.0) -> RunResult:
    """Return a failed result that holds only the reason."""
    failed = new_result(spec).updated(status="failed", error=why)
    return add_environment(failed, torch.device("cpu"), seconds)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _peak_rss_mb() -> float | None:
    """Return the peak resident memory of this process; None if the system does not report it."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    sizes = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return round(sizes[0] * 1024 / 1e6, 1) if sizes else None


@cache
def commit() -> str | None:
    """Return the git commit of a checkout, with "-dirty" if modified; None if installed."""
    root = Path(gtpool.__file__).parents[2]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None

    def ask(*words: str) -> str:
        done = subprocess.run(  # noqa: S603 - git, by its full path
            [git, *words], cwd=root, check=True, capture_output=True, text=True, encoding="utf-8"
        )
        return done.stdout.strip()

    try:
        changed = ask("status", "--porcelain", "--", ".", ":!results")
        return ask("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except subprocess.CalledProcessError:  # owned by another user, or without a commit
        return None
