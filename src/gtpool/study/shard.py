"""Divide runs among machines that know nothing of each other; no torch."""

from collections.abc import Sequence

from gtpool.spec import RunSpec


def shard(specs: Sequence[RunSpec], part: str) -> list[RunSpec]:
    """Keep the runs of one part; the parts are disjoint, and together they are all runs.

    Where a run belongs is told by its key alone, so that it stays there whatever else is asked for.

    Args:
        specs: The runs.
        part: "i/n", the part from 1 to n and how many there are.

    Example:
        >>> from gtpool.spec import DataSpec, RunSpec
        >>> specs = [RunSpec(data=DataSpec(source="MUTAG"), seed=seed) for seed in range(6)]
        >>> [len(shard(specs, part)) for part in ("1/2", "2/2", "1/1")]
        [3, 3, 6]
    """
    index, parts = read_part(part)
    return [spec for spec in specs if int(spec.key, 16) % parts == index - 1]


def read_part(part: str) -> tuple[int, int]:
    """Read "i/n"."""
    index, _, parts = part.partition("/")
    if not (index.isdecimal() and parts.isdecimal() and 1 <= int(index) <= int(parts)):
        raise ValueError(f"a shard is i/n with i from 1 to n, such as 2/8, got {part!r}")
    return int(index), int(parts)
