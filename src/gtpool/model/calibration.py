"""What held-out predictions say about the probabilities of a model, and its JSON.

A temperature, a threshold, and nonconformity scores for conformal sets and intervals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Self, cast, get_type_hints

import torch
from torch import Tensor

from gtpool.ops.calibrate import labels_of, nonconformity, prediction_sets
from gtpool.spec import check_value

_KEYS = {"temperature", "threshold", "metric", "scores", "counts"}
_MOST = 1000  # stored scores of a target
_LARGEST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How to read the outputs of a model; by default as they are.

    There is one value for each binary task or value, and one in all for classes.
    """

    temperature: tuple[float, ...] = ()
    """Logits of the mean prediction are divided by it; empty for none."""
    threshold: tuple[float, ...] = ()
    """Probability from which on a binary task is 1, or the second of two classes is predicted;
    empty for the most probable label."""
    metric: str | None = None
    """The metric that chose the threshold."""
    scores: tuple[tuple[float, ...], ...] = ()
    """Ascending nonconformity scores of held-out graphs: at most 1000 evenly spaced ranks."""
    counts: tuple[int, ...] = ()
    """Number of held-out graphs behind them."""

    @property
    def changes(self) -> bool:
        """Whether predictions differ from those without calibration."""
        return bool(self.temperature or self.threshold)

    @property
    def least(self) -> Tensor | None:
        """The threshold as a tensor, for ``gtpool.ops.calibrate.decide``; None for none."""
        return torch.tensor(self.threshold, dtype=torch.double) if self.threshold else None

    def scale(self, logits: Tensor) -> Tensor:
        """Return the calibrated logits, [..., K].

        Args:
            logits: Logits of the mean prediction of all members, [..., K].
        """
        if not self.temperature:
            return logits
        return logits.double() / logits.new_tensor(self.temperature, dtype=torch.double)

    def limits(self, coverage: float) -> Tensor:
        """Return the largest nonconformity inside a set or interval of each target, [T].

        With n scores it is the ⌈(n + 1) · coverage⌉-th smallest, infinite where n is too small.

        Args:
            coverage: Share of sets or intervals that contain the truth, between 0 and 1.

        Example:
            >>> scores = tuple(step / 10 for step in range(1, 10))
            >>> Calibration(scores=(scores,), counts=(9,)).limits(0.8).item()
            0.8
        """
        check_coverage(coverage)
        if not self.scores:
            raise ValueError(
                "the model has no conformal scores: it was saved by an estimator or an older "
                "gtpool; train it again with `gtpool train`"
            )
        if not self.reaches(coverage):
            most = max(self.counts)
            raise ValueError(
                f"coverage {coverage:g} needs more than the {most} held-out graphs of this model: "
                f"choose at most {math.floor(1e4 * most / (most + 1)) / 1e4:g}"
            )
        pairs = zip(self.scores, self.counts, strict=True)
        found = [_quantile(*pair, coverage) for pair in pairs]
        return torch.tensor(found, dtype=torch.double)

    def covers(self, p: Tensor, y: Tensor, task: str, coverage: float) -> Tensor:
        """Return whether the truth is in its set or interval, [G, T]; NaN where it is missing.

        Args:
            p: Calibrated probabilities, or values, [G, K].
            y: Labels or values, as for ``gtpool.ops.calibrate.nonconformity``.
            task: "classes", "binary" or "regression".
            coverage: As for ``limits``.
        """
        score, limit = nonconformity(p, y, task), self.limits(coverage)
        if task == "regression":
            inside = score <= limit
        else:
            label = labels_of(y, task).clamp(min=0).unsqueeze(-1)
            inside = prediction_sets(p, task, limit).gather(-1, label).squeeze(-1)
        return inside.double().where(~score.isnan(), torch.nan)

    def regions(
        self, p: Tensor, task: str, coverage: float, names: Sequence[str | float]
    ) -> list[tuple[tuple[str | float, ...], ...]]:
        """Return the conformal set, or lowest and highest value, of each target of each graph.

        Args:
            p: Calibrated probabilities, or values, [G, K].
            task: "classes", "binary" or "regression".
            coverage: As for ``limits``.
            names: Name of each label.
        """
        limit = self.limits(coverage)
        if task == "regression":
            ends = torch.stack([p - limit, p + limit], -1).tolist()
            return [tuple(tuple(target) for target in graph) for graph in ends]
        inside = prediction_sets(p, task, limit).tolist()
        return [tuple(tuple(compress(names, target)) for target in graph) for graph in inside]

    def sizes(self, p: Tensor, task: str, coverage: float) -> Tensor:
        """Return the labels in each set, or the width of each interval, [G, T].

        Args:
            p: Calibrated probabilities, or values, [G, K].
            task: "classes", "binary" or "regression".
            coverage: As for ``limits``.
        """
        limit = self.limits(coverage)
        if task == "regression":
            return (2 * limit).expand(len(p), -1)
        return prediction_sets(p, task, limit).sum(-1).double()

    def reaches(self, coverage: float) -> bool:
        """Return whether there are enough scores for a coverage, of some target."""
        pairs = zip(self.scores, self.counts, strict=True)
        return any(math.isfinite(_quantile(*pair, coverage)) for pair in pairs)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values that ``from_json`` reads back."""
        return {name: getattr(self, name) for name in sorted(_KEYS)}

    @classmethod
    def from_json(cls, value: Any, task: str, outputs: int) -> Self:  # noqa: ANN401 - untrusted
        """Return what ``to_json`` wrote, or raise a ValueError that names what is wrong.

        Args:
            value: Parsed JSON, untrusted.
            task: "classes", "binary" or "regression".
            outputs: Number of classes, tasks or values of the model.
        """
        targets = 1 if task == "classes" else outputs
        if not isinstance(value, dict) or set(cast("dict[str, Any]", value)) != _KEYS:
            raise ValueError(f"it must be an object with the keys {', '.join(sorted(_KEYS))}")
        kinds = get_type_hints(cls)
        found = cls(**{name: check_value(kinds[name], value[name], name) for name in _KEYS})
        for name in _KEYS - {"metric"}:
            if len(getattr(found, name)) not in {0, targets}:
                raise ValueError(f"{name} must have {targets} entries, one for each target")
        if task == "regression" and found.changes:
            raise ValueError("values have neither temperature nor threshold")
        if found.threshold and targets == 1 < outputs != 2:
            raise ValueError(f"a threshold needs two classes, not {outputs}")
        if not all(part > 0 for part in found.temperature):
            raise ValueError("a temperature must be above 0")
        if not all(0 <= part <= 1 for part in found.threshold):
            raise ValueError("a threshold must be from 0 to 1")
        _check_scores(found.scores, found.counts)
        return found


def check_coverage(coverage: float) -> None:
    """Raise a ValueError unless a coverage is between 0 and 1."""
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be between 0 and 1, such as 0.9, got {coverage:g}")


def _check_scores(scores: tuple[tuple[float, ...], ...], counts: tuple[int, ...]) -> None:
    """Raise a ValueError unless each target has as many ascending scores as its count says."""
    if len(scores) != len(counts):
        raise ValueError("scores and counts must be of the same targets")
    for at, (part, count) in enumerate(zip(scores, counts, strict=True)):
        if not 0 <= count <= _LARGEST or len(part) != min(count, _MOST):
            raise ValueError(f"counts[{at}] is {count}, but scores[{at}] has {len(part)} numbers")
        if list(part) != sorted(part) or (part and part[0] < 0):
            raise ValueError(f"scores[{at}] must ascend, from 0 or above")


def thinned(scores: Tensor) -> tuple[tuple[float, ...], int]:
    """Return ascending scores, at most 1000 evenly spaced ranks of them, and their number.

    Args:
        scores: Nonconformity scores of a target, [G]; NaN where missing.
    """
    known = scores[~scores.isnan()].double().sort().values
    count = known.numel()
    kept = min(count, _MOST)
    ranks = [-(-(place + 1) * count // kept) for place in range(kept)]
    return tuple(known[[rank - 1 for rank in ranks]].tolist()), count


def _quantile(scores: tuple[float, ...], count: int, coverage: float) -> float:
    """Return the conformal quantile, rounded up to a stored rank; infinite if there is none."""
    rank = math.ceil(round((count + 1) * coverage, 9))
    if rank > count:
        return math.inf
    return scores[-(-rank * len(scores) // count) - 1]
