"""Validation of model options and data shapes."""

import inspect
from collections.abc import Callable
from typing import Any, get_args

from torch import nn

from gtpool.graph import check_count, check_share
from gtpool.model.conv import COARSE_CONVS, CONVS, NORMS
from gtpool.model.readout import LEARNED_READOUTS, READOUTS
from gtpool.ops.memory import check_memory
from gtpool.ops.sample import check_choice, check_ratio
from gtpool.pool import POOLS, weighs_edges
from gtpool.spec import Combine, Connect, ModelSpec, ShapeSpec


def check_spec(spec: ModelSpec) -> None:
    """Raise a ValueError for an unknown choice or an invalid combination of options."""
    check_choice("pool", spec.pool, ("none", *POOLS))
    check_choice("conv", spec.conv, CONVS)
    check_choice("readout", spec.readout, READOUTS)
    check_choice("norm", spec.norm, NORMS)
    check_choice("combine", spec.combine, get_args(Combine))
    check_ratio(spec.ratio)
    check_share("dropout", spec.dropout)
    check_share("block_dropout", spec.block_dropout)
    for name in ("width", "levels", "convs_per_level"):
        check_count(name, getattr(spec, name))
    if spec.virtual_node and spec.levels * spec.convs_per_level == 1:
        raise ValueError(
            "virtual_node needs at least two convolutions to pass messages from one to the next; "
            "set convs_per_level or levels to 2 or more"
        )
    _check_room(spec)
    step = 4 if spec.conv == "gat" else 2
    if spec.width % step:
        what = "four heads" if spec.conv == "gat" else "head"
        raise ValueError(f"width must be a multiple of {step} for the {what}, got {spec.width}")
    learned = LEARNED_READOUTS.get(spec.readout, nn.Identity)
    _check_options(spec.readout, learned, spec.readout_options)
    if spec.pool != "none":
        _check_options(spec.pool, POOLS[spec.pool], spec.pool_options)
        if weighs_edges(spec.pool) and spec.levels > 1 and spec.conv not in COARSE_CONVS:
            raise ValueError(
                f"after {spec.pool} edges have weights, which conv {spec.conv!r} cannot use; "
                f"choose one of {', '.join(COARSE_CONVS)}"
            )
        _check_connect(spec)
    elif spec.pool_options or spec.read_input or spec.connect != "induced":
        which = "pool_options" if spec.pool_options else "read_input"
        which = which if spec.pool_options or spec.read_input else "connect"
        raise ValueError(f"{which} needs a pooler, but pool is 'none'")


def check_shape(shape: ShapeSpec, spec: ModelSpec) -> None:
    """Raise a ValueError for a shape that is impossible, or that the network cannot take."""
    if spec.connect == "khop:2" and spec.conv == "gcn" and shape.edge_weighted:
        raise ValueError(
            "connect 'khop:2' joins nodes by edges without a weight, and conv 'gcn' weighs the "
            "edges of this data; choose connect 'closest'"
        )
    check_count("outputs", shape.outputs)
    if not shape.node_width and not shape.node_categories:
        raise ValueError("nodes need node_width columns of floats, node_categories or both")
    for name in ("node_categories", "edge_categories"):
        for count in getattr(shape, name):
            check_count(f"each of {name}", count)
    for name in ("node_width", "graph_width"):
        if getattr(shape, name):
            check_count(name, getattr(shape, name))


def _check_connect(spec: ModelSpec) -> None:
    """Raise a ValueError for ``connect`` with a pooler that makes its own edges."""
    check_choice("connect", spec.connect, get_args(Connect))
    able = [name for name in POOLS if "connect" in inspect.signature(POOLS[name]).parameters]
    if spec.connect != "induced" and spec.pool not in able:
        raise ValueError(
            f"connect {spec.connect!r} does not apply to pool {spec.pool!r}, which makes the edges "
            f"between its clusters itself; choose 'induced', or one of {', '.join(able)}"
        )


def _check_room(spec: ModelSpec) -> None:
    """Raise an error, before allocation, if the weights need more memory than is free."""
    block = (4 if spec.conv == "dmpnn" else 1) + 4 * spec.ffn + 4 * spec.virtual_node
    squares = spec.convs_per_level * block + (0 if spec.pool == "none" else 7)  # of width x width
    check_memory(
        4 * spec.levels * squares * spec.width**2,
        f"weights of a network of width {spec.width:,} and {spec.levels:,} levels need about",
        "choose a smaller width or fewer levels",
    )


def _check_options(name: str, factory: Callable[..., nn.Module], options: dict[str, Any]) -> None:
    """Raise a ValueError for an option that the pooler or read-out does not have."""
    parameters = inspect.signature(factory).parameters.values()
    known = [part.name for part in parameters if part.kind is part.KEYWORD_ONLY]
    known = [part for part in known if part not in {"weighted", "connect"}]  # set by the network
    for option in options:
        if option not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ValueError(f"{name} has no option {option!r}; {has}")
