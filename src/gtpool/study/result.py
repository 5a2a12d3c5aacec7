"""RunResult: the frozen, typed result of a run, stored as JSON. No torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, Self, get_args

from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec

Status = Literal["done", "failed"]
Json = dict[str, Any]

_PARTS = {"data": DataSpec, "split": SplitSpec, "model": ModelSpec, "train": TrainSpec}
_OPTIONAL = ("curves", "artifact_digest", "together", "processes")  # not written where None


class SplitSummary(NamedTuple):
    """Split of a run: rule, digest and sizes."""

    rule: str = ""
    """Description of the rule, with the number of the fold."""
    digest: str = ""
    """Equal for equal splits."""
    train: int = 0
    """Number of graphs."""
    valid: int = 0
    test: int = 0


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of a run: its spec, metrics and environment.

    ``from_json`` and ``to_json`` read and write a row of a store or JSON lines. Fields that a row
    lacks are not added to it, and unknown fields are kept.
    """

    key: str
    """Digest of the spec."""
    spec_json: Json = field(repr=False)
    """The spec as stored; an old row may lack newer options."""
    status: Status
    error: str | None = None
    """Reason of a failure."""
    metric: str = ""
    """Name of the metric, such as "accuracy"; empty if the run failed before training."""
    higher_is_better: bool | None = None
    test: float | None = None
    """Test metric at the selected epoch; None if the run failed or it is not finite."""
    valid_loss: float | None = None
    valid_metric: float | None = None
    epoch: int | None = None
    """The selected epoch, from 1."""
    epochs_run: int | None = None
    other_rules: dict[str, float | None] = field(default_factory=dict, repr=False)
    """Test metric at the epoch that each other rule would select."""
    curves: dict[str, list[float | None]] | None = field(default=None, repr=False)
    """Losses and metrics of each epoch; None if they were not stored."""
    split_json: Json = field(default_factory=dict, repr=False)
    """The split as stored."""
    source_digest: str | None = None
    """Digest of the user's files; None for a dataset known by name."""
    parameters: int | None = None
    artifact_digest: str | None = field(default=None, repr=False)
    """Digest of the artifact (weights and test logits), if stored."""
    seconds: float = 0.0
    peak_rss_mb: float | None = field(default=None, repr=False)
    peak_gpu_mb: float | None = field(default=None, repr=False)
    device: str = ""
    """Name of the GPU, or "cpu"."""
    versions: dict[str, str] = field(default_factory=dict, repr=False)
    commit: str | None = None
    finished: str = ""
    """End time, in ISO format."""
    together: int | None = None
    """Number of runs in the ensemble."""
    processes: int | None = None
    """Number of processes under torchrun."""
    more: Json = field(default_factory=dict, repr=False)
    """Unknown fields of the row."""
    absent: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """Fields that this version writes but the row lacks."""

    @property
    def done(self) -> bool:
        """Whether the run finished."""
        return self.status == "done"

    @cached_property
    def spec(self) -> RunSpec:
        """The spec; options newer than the row have the values that applied when it was written.

        Raises a ValueError if the row has an unknown option.
        """
        said = self.spec_json
        if "data" not in said:
            return RunSpec.from_stored(said)  # raises
        parts = {name: said[name] for name in _PARTS if isinstance(said.get(name), dict)}
        rest = {name: value for name, value in said.items() if name not in parts}
        read = {name: _part(name, json.dumps(part)) for name, part in parts.items()}
        return replace(_rest(json.dumps(rest)), **read)

    @cached_property
    def split(self) -> SplitSummary:
        """The split; empty if the run failed before training."""
        said = self.split_json
        return SplitSummary(**{name: said[name] for name in SplitSummary._fields if name in said})

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Return the result that a row holds.

        Args:
            row: Values as in JSON; "key" and "status" are required.

        Example:
            >>> row = {"key": "ab", "spec": {}, "status": "done", "test": 0.5, "later": 1}
            >>> read = RunResult.from_json(row)
            >>> read.test, read.more, read.to_json() == row
            (0.5, {'later': 1}, True)
        """
        if row["status"] not in get_args(Status):
            raise ValueError(f"status must be done or failed, got {row['status']!r}")
        given = {_FIELDS[name]: value for name, value in row.items() if name in _FIELDS}
        absent = _WRITTEN - given.keys()
        given.setdefault("spec_json", {})
        given["metric"] = given.get("metric") or ""
        more = {name: value for name, value in row.items() if name not in _FIELDS}
        return cls(**given, more=more, absent=absent)

    def to_json(self) -> Json:
        """Return the row, which ``from_json`` reads back."""
        row: Json = {}
        for name, part in _FIELDS.items():
            value = getattr(self, part)
            if part not in self.absent and (value is not None or part not in _OPTIONAL):
                row[name] = None if part == "metric" and not value else value
        return row | self.more

    def updated(self, **changes: Any) -> Self:  # noqa: ANN401 - values of the fields
        """Return a copy with some fields changed."""
        return replace(self, **changes, absent=self.absent - changes.keys())


_FIELDS = {
    part.name.removesuffix("_json"): part.name
    for part in fields(RunResult)
    if part.name not in {"more", "absent"}
}
"""Maps names of a row to fields, in the order of writing."""
_WRITTEN = frozenset(_FIELDS.values()) - set(_OPTIONAL)


@lru_cache(maxsize=4096)  # runs of a study share parts
def _part(name: str, text: str) -> Any:  # noqa: ANN401 - one of _PARTS
    return _PARTS[name].from_stored(json.loads(text), f"{name}.")


@lru_cache(maxsize=4096)
def _rest(text: str) -> RunSpec:
    """Return a spec from all but its parts, which keep their defaults."""
    return RunSpec.from_stored({"data": {"source": ""}, **json.loads(text)})
