"""Old names of public things, kept for one version."""

from collections.abc import Callable, Mapping
from typing import Any
from warnings import warn


def old_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module that knows things by old names too.

    Args:
        module: The ``__name__`` of the module.
        names: From the old names to the new ones.
    """

    def find(name: str) -> Any:  # noqa: ANN401 - whatever it is
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(
            f"{module}.{name} is now {names[name]}; the old name goes in gtpool 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(__import__(module, fromlist=[names[name]]), names[name])

    return find
