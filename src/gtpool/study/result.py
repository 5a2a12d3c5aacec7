"""What a run gave, as a value: typed, frozen, written as JSON and read back. No torch."""

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
    """How the graphs of a run were divided."""

    rule: str = ""
    """The rule in words, with the number of the fold."""
    digest: str = ""
    """Equal for equal divisions."""
    train: int = 0
    """Graphs to train on."""
    valid: int = 0
    test: int = 0


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A finished run: its spec, its numbers and their circumstances.

    ``from_json`` and ``to_json`` read and write a row of a store or of JSON lines. A field that a
    row does not have is not added to it, and one that this version does not know is kept.
    """

    key: str
    """The digest of the spec."""
    spec_json: Json = field(repr=False)
    """The spec as the row says it; an old one may lack a later option."""
    status: Status
    error: str | None = None
    """Why a run failed."""
    metric: str = ""
    """Name of the metric, such as "accuracy"; empty where the run was lost before it began."""
    higher_is_better: bool | None = None
    test: float | None = None
    """The metric on the test part at the chosen epoch; None if it failed or is not finite."""
    valid_loss: float | None = None
    valid_metric: float | None = None
    epoch: int | None = None
    """The chosen epoch, from 1."""
    epochs_run: int | None = None
    other_rules: dict[str, float | None] = field(default_factory=dict, repr=False)
    """The test metric, had the epoch been chosen by another rule."""
    curves: dict[str, list[float | None]] | None = field(default=None, repr=False)
    """What each epoch gave; None where it was not kept."""
    split_json: Json = field(default_factory=dict, repr=False)
    """The division of the graphs as the row says it."""
    source_digest: str | None = None
    """Digest of the user's files; None for a dataset known by name."""
    parameters: int | None = None
    artifact_digest: str | None = field(default=None, repr=False)
    """Digest of the file of weights and test logits, if it was kept."""
    seconds: float = 0.0
    peak_rss_mb: float | None = field(default=None, repr=False)
    peak_gpu_mb: float | None = field(default=None, repr=False)
    device: str = ""
    """Name of the GPU, or "cpu"."""
    versions: dict[str, str] = field(default_factory=dict, repr=False)
    commit: str | None = None
    finished: str = ""
    """When, in ISO format."""
    together: int | None = None
    """How many runs trained side by side."""
    processes: int | None = None
    """How many processes did the run together."""
    more: Json = field(default_factory=dict, repr=False)
    """Fields of a row that this version does not know."""
    absent: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """Fields that a row does not have, though this version writes them."""

    @property
    def done(self) -> bool:
        """Whether the run was finished."""
        return self.status == "done"

    @cached_property
    def spec(self) -> RunSpec:
        """The spec; options that came after the row have the values that held when it was written.

        A ValueError where the row names an option that this version does not know.
        """
        said = self.spec_json
        if "data" not in said:
            return RunSpec.from_stored(said)  # which says what is wrong
        parts = {name: said[name] for name in _PARTS if isinstance(said.get(name), dict)}
        rest = {name: value for name, value in said.items() if name not in parts}
        read = {name: _part(name, json.dumps(part)) for name, part in parts.items()}
        return replace(_rest(json.dumps(rest)), **read)

    @cached_property
    def split(self) -> SplitSummary:
        """The division of the graphs; empty where the run was lost before it began."""
        said = self.split_json
        return SplitSummary(**{name: said[name] for name in SplitSummary._fields if name in said})

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Read a row.

        Args:
            row: Plain values; "key" and "status" are needed.

        Example:
            >>> row = {"key": "ab", "spec": {}, "status": "done", "test": 0.5, "later": 1}
            >>> read = RunResult.from_json(row)
            >>> read.test, read.more, read.to_json() == row
            (0.5, {'later': 1}, True)
        """
        if row["status"] not in get_args(Status):
            raise ValueError(f"the status of a run is done or failed, got {row['status']!r}")
        given = {_FIELDS[name]: value for name, value in row.items() if name in _FIELDS}
        absent = _WRITTEN - given.keys()
        given.setdefault("spec_json", {})
        given["metric"] = given.get("metric") or ""
        more = {name: value for name, value in row.items() if name not in _FIELDS}
        return cls(**given, more=more, absent=absent)

    def to_json(self) -> Json:
        """Give the row: plain values that ``from_json`` reads back."""
        row: Json = {}
        for name, part in _FIELDS.items():
            value = getattr(self, part)
            if part not in self.absent and (value is not None or part not in _OPTIONAL):
                row[name] = None if part == "metric" and not value else value
        return row | self.more

    def having(self, **changes: Any) -> Self:  # noqa: ANN401 - values of the fields
        """Give the same result with some fields changed, which it then has."""
        return replace(self, **changes, absent=self.absent - changes.keys())


_FIELDS = {
    part.name.removesuffix("_json"): part.name
    for part in fields(RunResult)
    if part.name not in {"more", "absent"}
}
"""The field of each name of a row, in the order in which they are written."""
_WRITTEN = frozenset(_FIELDS.values()) - set(_OPTIONAL)


@lru_cache(maxsize=4096)  # the runs of a study share their parts, and are many
def _part(name: str, text: str) -> Any:  # noqa: ANN401 - one of _PARTS
    return _PARTS[name].from_stored(json.loads(text), f"{name}.")


@lru_cache(maxsize=4096)
def _rest(text: str) -> RunSpec:
    """Read all of a spec but its parts, which stand in as they are by default."""
    return RunSpec.from_stored({"data": {"source": ""}, **json.loads(text)})
