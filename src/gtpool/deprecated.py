"""Deprecated aliases of public names, kept for one version."""

from collections.abc import Callable, Mapping
from typing import Any
from warnings import warn


def old_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module ``__getattr__`` that resolves old names with a DeprecationWarning.

    Args:
        module: The ``__name__`` of the module.
        names: New name of each old name.
    """

    def find(name: str) -> Any:  # noqa: ANN401 - any object of the module
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(
            f"{module}.{name} is now {names[name]}; the old name will be removed in gtpool 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(__import__(module, fromlist=[names[name]]), names[name])

    return find
