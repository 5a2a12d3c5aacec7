"""Names of structural encodings, such as "rwse:16", and their numbers of columns. Stdlib only."""

from collections.abc import Iterable
from typing import NamedTuple

from gtpool.spec import did_you_mean

DEFAULT_CYCLE, LONGEST_CYCLE = 5, 8


class Encoding(NamedTuple):
    """A structural encoding of nodes."""

    kind: str
    """A key of ``ENCODINGS``."""
    size: int
    """The number K of its name; 0 if it has none."""

    @property
    def columns(self) -> int:
        """Number of columns."""
        first = {"rwse": 2, "lappe": 1, "cycles": 3}
        return self.size - first[self.kind] + 1 if self.kind in first else 1


ENCODINGS: dict[str, str] = {
    "rwse": "rwse:K, return probabilities of random walks of 2 to K steps",
    "lappe": "lappe:K, diagonals of projectors on K eigenspaces of the normalised Laplacian",
    "degree": "degree, log1p of the degree",
    "cycles": "cycles or cycles:K, log1p of the cycles of 3 to K nodes through a node",
}
"""Kinds of encodings, with the form of their names."""


def parse_encodings(names: Iterable[str]) -> tuple[Encoding, ...]:
    """Return encodings by name; an unknown, incomplete or repeated one raises a ValueError.

    Example:
        >>> parse_encodings(["rwse:16", "cycles"])
        (Encoding(kind='rwse', size=16), Encoding(kind='cycles', size=5))
        >>> [encoding.columns for encoding in parse_encodings(["rwse:16", "cycles"])]
        [15, 3]
    """
    if isinstance(names, str):
        raise ValueError(f"encode must be a tuple of names, such as ({names!r},)")
    found = tuple(_parse(name) for name in names)
    kinds = [encoding.kind for encoding in found]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise ValueError(f"encoding {kind!r} is given twice; keep one of them")
    return found


def count_columns(names: Iterable[str]) -> int:
    """Return the number of columns of some encodings."""
    return sum(encoding.columns for encoding in parse_encodings(names))


def _parse(name: str) -> Encoding:
    kind, colon, size = name.partition(":")
    if kind not in ENCODINGS:
        known = "; ".join(ENCODINGS.values())
        raise ValueError(
            f"unknown encoding {name!r}{did_you_mean(kind, ENCODINGS)} (known: {known})"
        )
    if kind == "degree" and colon:
        raise ValueError(f"encoding {name!r}: degree takes no number; write degree")
    if kind == "degree" or name == "cycles":
        return Encoding(kind, DEFAULT_CYCLE if kind == "cycles" else 0)
    least, most = (3, LONGEST_CYCLE) if kind == "cycles" else (2, None)
    number = int(size) if size.isascii() and size.isdecimal() and len(size) < 6 else 0
    if number < least or (most is not None and number > most):
        limit = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"encoding {name!r}: K of {kind}:K must be an integer, {limit}")
    return Encoding(kind, number)
