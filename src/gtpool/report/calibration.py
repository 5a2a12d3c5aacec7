"""What a training says of its probabilities: lines of text, and the reliability diagram."""

from collections.abc import Sequence

import torch
from torch import from_numpy

from gtpool.report.plot import draw_reliability
from gtpool.study.calibrate import Coverage
from gtpool.study.cross_validate import CrossValidation
from gtpool.study.heldout import HeldOut
from gtpool.study.scores import all_scores
from gtpool.study.summarize import format_metric, metric_name
from gtpool.train.classification import BINS, reliability_pairs

_LISTED = 5  # temperatures and thresholds of several tasks


def describe_calibration(result: CrossValidation) -> list[str]:
    """Return lines about temperature, threshold and the coverage of conformal sets.

    Args:
        result: Result of ``cross_validate``.
    """
    found, task = result.calibrated, result.loaded.dataset.schema.task
    if found is None:
        return []
    chosen = found.calibration
    folded = len({part.fold for part in found.parts}) > 1
    how = "each fold measured with that of the others" if folded else "from the validation part"
    lines: list[str] = []
    if chosen.temperature:
        before, after = (all_scores(parts, task) for parts in (found.before, found.parts))
        figures = ", ".join(
            f"{metric_name(name)} {format_metric(before[name].mean, name)} → "
            f"{format_metric(after[name].mean, name)}"
            for name in ("log_loss", "ece")
        )
        lines.append(f"calibrated by temperature {_listed(chosen.temperature)}: {figures} ({how})")
    if chosen.threshold and chosen.metric:
        name, targets = metric_name(chosen.metric), result.loaded.dataset.schema.targets
        of = f" of {targets[1]!r}" if task == "classes" else ""
        lines.append(f"threshold{of} {_listed(chosen.threshold)}, chosen by {name} ({how})")
    if found.coverage:
        kind = "intervals" if task == "regression" else "sets"
        told = ", ".join(_covered(part, task) for part in found.coverage)
        lines.append(f"coverage of conformal {kind}, stated → measured: {told}")
    return lines


def reliability(parts: Sequence[HeldOut]) -> list[tuple[float, float, int]]:
    """Return mean probability, frequency and number of predictions of each bin that has some.

    Of classes these are predicted classes and how often they are right; of binary tasks the label
    1. The bins are those of the expected calibration error.

    Args:
        parts: Test predictions of classes or binary tasks.
    """
    each = [reliability_pairs(from_numpy(part.output), from_numpy(part.y)) for part in parts]
    told, hit, known = (
        torch.cat([found.flatten() for found in some]) for some in zip(*each, strict=True)
    )
    place = (told * BINS).ceil().clamp(1, BINS)
    bins = (known & (place == number) for number in range(1, BINS + 1))
    return [
        (told[inside].mean().item(), hit[inside].mean().item(), int(inside.sum()))
        for inside in bins
        if inside.any()
    ]


def draw_calibration(parts: Sequence[HeldOut], before: Sequence[HeldOut] = ()) -> str:
    """Return the reliability diagram of test predictions as SVG.

    Args:
        parts: Test predictions of all runs.
        before: The same before they were calibrated, if they were.
    """
    if not before:
        return draw_reliability({"predictions": reliability(parts)})
    return draw_reliability({"before": reliability(before), "calibrated": reliability(parts)})


def _covered(part: Coverage, task: str) -> str:
    size = f"width {part.size:.4g}" if task == "regression" else f"{part.size:.2f} labels"
    return f"{100 * part.stated:g} % → {100 * part.measured:.1f} % ({size})"


def _listed(numbers: Sequence[float]) -> str:
    """Return numbers as text, or the range of many."""
    if len(numbers) > _LISTED:
        return f"{min(numbers):.3g} to {max(numbers):.3g}"
    return ", ".join(f"{number:.3g}" for number in numbers)
