"""The hierarchical classifier: encode, then (conv, pool, read out) x levels, then a head."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from gtpool.graph import (
    Graphs,
    Level,
    check_batch,
    check_count,
    check_edges,
    check_features,
    check_share,
)
from gtpool.model.parts import CONVS, NORMS, Block, CategoryEncoder, check_codes, head
from gtpool.model.readout import READOUTS
from gtpool.ops.sample import check_choice, check_ratio
from gtpool.ops.segment import level_of
from gtpool.pool import POOLS
from gtpool.spec import Combine, ModelSpec, ShapeSpec


class Classifier(nn.Module):
    r"""A network from a batch of graphs to one row of logits a graph.

    .. math:: h_g = \sum_l Readout(Pool_l(Conv_l(X_l, A_l)))  \quad (17)

    A flat method is one level without a pool. For regression ``shift`` and ``scale``, set from the
    training part, bring the outputs into the units of the targets.

    Args:
        spec: The choices; an unknown one is an error that lists what there is.
        shape: What the data fixes: widths, categories, outputs.

    Differs from the paper:
        the head (D, D/2, outputs, with dropout) is GMT's; the text gives none.

    Example:
        >>> model = Classifier(ModelSpec(width=16), ShapeSpec(outputs=2, node_width=7))
        >>> model(torch.randn(5, 7), torch.tensor([[0, 1, 2], [1, 2, 3]])).shape
        torch.Size([1, 2])
    """

    def __init__(self, spec: ModelSpec, shape: ShapeSpec) -> None:
        super().__init__()
        _check_spec(spec)
        _check_shape(shape)
        self.spec, self.shape = spec, shape
        width = spec.width
        categories = shape.node_categories
        self.encoder = CategoryEncoder(categories, width) if categories else nn.Identity()
        entry = width if categories else shape.node_width
        self.levels = nn.ModuleList()
        for level in range(spec.levels):
            blocks = nn.ModuleList(
                Block(
                    spec.conv,
                    spec.norm,
                    spec.residual,
                    width if level or index else entry,
                    width,
                    shape,
                )
                for index in range(spec.convs_per_level)
            )
            self.levels.append(blocks)
        self.pools = nn.ModuleList()
        if spec.pool != "none":
            factory = POOLS[spec.pool]
            for _ in range(spec.levels):
                self.pools.append(factory(width, spec.ratio, **spec.pool_options))
        self.readout, times = READOUTS[spec.readout]
        reads = (spec.levels if self.pools else 1) + (spec.read_input and len(self.pools) > 0)
        self.head = head(
            width * times * (reads if spec.combine == "cat" else 1),
            width,
            shape.outputs,
            spec.dropout,
        )
        self.shift: Tensor
        self.scale: Tensor
        self.register_buffer("shift", torch.zeros(shape.outputs))
        self.register_buffer("scale", torch.ones(shape.outputs))
        _explain_level_0_only(self)

    @property
    def ratios(self) -> tuple[float, ...]:
        """What to plan a batch for: the ratio of each pooling step."""
        return (self.spec.ratio,) * len(self.pools)

    @property
    def uses_edge_features(self) -> bool:
        """Whether ``edge_attr`` makes a difference: bonds that are read, or weights."""
        weighted = self.spec.conv == "gcn" and self.shape.edge_weighted
        return weighted or self.spec.conv == "ogb-gcn"

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        """Give the logits of graphs that nobody has checked yet, [G, outputs].

        Args:
            x: Node features [N, D], or codes [N, F]; for coded nodes also what ``encoder`` gave.
            edge_index: Source and target of each edge, [2, E].
            edge_attr: Edge features, [E, ...].
            batch: Graph of each node, sorted, [N]; without it the nodes are one graph.
        """
        coded = self.shape.node_categories
        if coded and not x.is_floating_point():
            check_codes("x", x, coded)
        else:
            check_features("x", x, self.spec.width if coded else self.shape.node_width)
        if batch is not None:
            check_batch(batch, x.size(0))
        check_edges(edge_index, edge_attr, batch, x.size(0))
        self._check_edge_features(edge_attr)
        batch = edge_index.new_zeros(x.size(0)) if batch is None else batch
        return self._run(x, edge_index, edge_attr, [level_of(batch)])

    def classify(self, graphs: Graphs) -> Tensor:
        """Give the logits of a planned batch, which was checked when it was made, [G, outputs]."""
        return self._run(graphs.x, graphs.edge_index, graphs.edge_attr, graphs.levels)

    def _check_edge_features(self, edge_attr: Tensor | None) -> None:
        """Refuse edge features that the convolution cannot use; if it uses none, they are free."""
        columns = self.shape.edge_width
        if not self.uses_edge_features:
            return
        if self.spec.conv == "ogb-gcn":
            check_codes("edge_attr", edge_attr, self.shape.edge_categories)
        elif edge_attr is None or edge_attr.shape[1:] != (columns,):
            raise ValueError(
                f"edge_attr must be of shape [edges, {columns}], the weight of each edge first: "
                "the model was made for weighted edges"
            )

    def _run(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, plan: Sequence[Level]
    ) -> Tensor:
        level = plan[0]
        graphs = level.sizes.numel()
        if not x.is_floating_point() or not self.shape.node_categories:
            x = self.encoder(x)
        reads: list[Tensor] = []
        for index, blocks in enumerate(self.levels):
            for block in blocks:  # pyright: ignore[reportGeneralTypeIssues]
                x = block(x, edge_index, edge_attr)
            if not self.pools:
                continue
            if self.spec.read_input and index == 0:
                reads.append(self.readout(x, level.batch, graphs))
            x, edge_index, edge_attr, batch, *_ = self.pools[index](
                x, edge_index, edge_attr, level=level
            )
            level = plan[index + 1] if index + 1 < len(plan) else level_of(batch)
            reads.append(self.readout(x, level.batch, graphs))
        if not self.pools:
            reads.append(self.readout(x, level.batch, graphs))
        h = torch.cat(reads, 1) if self.spec.combine == "cat" else torch.stack(reads).sum(0)
        return self.head(h) * self.scale + self.shift


def _check_spec(spec: ModelSpec) -> None:
    check_choice("pool", spec.pool, ("none", *POOLS))
    check_choice("conv", spec.conv, CONVS)
    check_choice("readout", spec.readout, READOUTS)
    check_choice("norm", spec.norm, NORMS)
    check_choice("combine", spec.combine, get_args(Combine))
    check_ratio(spec.ratio)
    check_share("dropout", spec.dropout)
    for name in ("width", "levels", "convs_per_level"):
        check_count(name, getattr(spec, name))
    step = 4 if spec.conv == "gat" else 2
    if spec.width % step:
        what = "four heads" if spec.conv == "gat" else "head"
        raise ValueError(f"width must be a multiple of {step} for the {what}, got {spec.width}")
    if spec.pool != "none":
        _check_options(spec.pool, POOLS[spec.pool], spec.pool_options)
    elif spec.pool_options or spec.read_input:
        which = "pool_options" if spec.pool_options else "read_input"
        raise ValueError(f"{which} is for models that pool, and pool is 'none'")


def _check_options(pool: str, factory: Callable[..., nn.Module], options: dict[str, Any]) -> None:
    """Refuse an option that the pooler does not have."""
    parameters = inspect.signature(factory).parameters.values()
    known = [part.name for part in parameters if part.kind is part.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise ValueError(f"{pool} has no option {name!r}; it has {', '.join(known)}")


def _check_shape(shape: ShapeSpec) -> None:
    check_count("outputs", shape.outputs)
    if bool(shape.node_width) == bool(shape.node_categories):
        raise ValueError("nodes have either node_width columns of floats or node_categories")
    for name in ("node_categories", "edge_categories"):
        for count in getattr(shape, name):
            check_count(f"each of {name}", count)
    if shape.node_width:
        check_count("node_width", shape.node_width)


def _explain_level_0_only(model: Classifier) -> None:
    """Tell PyG's Explainer that its edge mask fits the input graph, not the pooled ones."""
    for blocks in list(model.levels)[1 if model.pools else len(model.levels) :]:
        for part in blocks.modules():
            if isinstance(part, MessagePassing):
                part.explain = False
