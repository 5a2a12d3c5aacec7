"""The hierarchical classifier: encoder, then (conv, pool, read-out) per level, then a head."""

from collections.abc import Callable
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from gtpool.graph import Coarsening, PackedBatch, check_batch, check_edges
from gtpool.model import READS_EDGES
from gtpool.model.check import check_shape, check_spec
from gtpool.model.conv import ConvBlock
from gtpool.model.encoder import (
    GraphFeatures,
    check_codes,
    check_graph_features,
    check_nodes,
    make_encoder,
)
from gtpool.model.readout import READOUTS
from gtpool.model.virtual_node import VirtualNode
from gtpool.nn import Linear, Sequential
from gtpool.ops.backend import Backend, Pooler
from gtpool.ops.chains import coarsen_graphs
from gtpool.ops.dropout import Dropout
from gtpool.ops.packed import PackedGraph
from gtpool.ops.runs import per_run
from gtpool.ops.sample import kept_count
from gtpool.ops.segment import layout_from_batch
from gtpool.pool import POOLS, chain_of, kind_of, sized_by, weighs_edges
from gtpool.spec import ModelSpec, ShapeSpec

Note = Callable[[nn.Module, Tensor, Backend], None]
Outputs = tuple[Tensor, Tensor | None]
"""Logits, and the auxiliary loss of each graph or None."""


class Classifier(nn.Module):
    r"""Hierarchical graph network with one row of logits per graph.

    .. math:: h_g = \sum_l Readout(Pool_l(Conv_l(X_l, A_l)))  \quad (17)

    A flat method has one level without a pooler. For regression, ``shift`` and ``scale`` convert
    the outputs to the units of the targets; training sets them from the training part.

    Args:
        spec: Options of the model. An unknown value raises an error that lists the choices.
        shape: Sizes fixed by the data: widths, categories, outputs.

    Differs from the paper:
        the paper does not specify the head; this one (D, D/2, outputs, with dropout) is GMT's.

    Example:
        >>> model = Classifier(ModelSpec(width=16), ShapeSpec(outputs=2, node_width=7))
        >>> model(torch.randn(5, 7), torch.tensor([[0, 1, 2], [1, 2, 3]])).shape
        torch.Size([1, 2])
    """

    def __init__(self, spec: ModelSpec, shape: ShapeSpec) -> None:
        super().__init__()
        check_spec(spec)
        check_shape(shape, spec)
        self.spec, self.shape = spec, shape
        self.frozen = False
        """Whether only the head is trained; see ``gtpool.study.start``."""
        width = spec.width
        self.encoder = make_encoder(shape, width)
        entry = width if shape.node_categories else shape.node_width
        inner = width * spec.convs_per_level if spec.jump else width
        clusters = _count_clusters(spec, shape)
        self.levels, widths = nn.ModuleList(), list[int]()
        for level in range(spec.levels):
            coarse = level > 0 and weighs_edges(spec.pool)
            enter = [inner if level else entry, *[width] * (spec.convs_per_level - 1)]
            blocks = (ConvBlock(spec, shape, channels, coarse=coarse) for channels in enter)
            self.levels.append(nn.ModuleList(blocks))
            widths += enter
        self.virtual_node = VirtualNode(spec, widths) if spec.virtual_node else None
        self.pools = nn.ModuleList(
            _make_pool(spec, shape, inner, level, clusters)
            for level in range(spec.levels if spec.pool != "none" else 0)
        )
        reads = max(1, len(self.pools)) + (spec.read_input and len(self.pools) > 0)
        make_readout = READOUTS[spec.readout]
        self.readouts = nn.ModuleList(make_readout(inner, spec, shape) for _ in range(reads))
        channels = [cast("int", readout.out_channels) for readout in self.readouts]
        columns = shape.graph_width
        self.graph_features = GraphFeatures(columns, spec.dropout) if columns else None
        self.head = _head(
            (sum(channels) if spec.combine == "cat" else channels[0]) + columns,
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
        """Ratio of each node-dropping step; empty if no step drops nodes."""
        drops = kind_of(self.spec.pool) == "dropping"
        return (self.spec.ratio,) * len(self.pools) if drops else ()

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; all but the head of a frozen network never trains."""
        super().train(mode and not self.frozen)
        self.head.train(mode)
        if self.graph_features is not None:
            self.graph_features.train(mode)
        self.training = mode
        return self

    @property
    def coarsening(self) -> Coarsening | None:
        """Coarsening chain that the batches must carry; None if none."""
        return coarsening_of(self.spec)

    @property
    def uses_edge_features(self) -> bool:
        """Whether the network reads ``edge_attr``, as edge features or as weights."""
        if self.spec.conv == "gcn":
            return self.shape.edge_weighted
        there = bool(self.shape.edge_categories or self.shape.edge_width)
        return there and self.spec.conv in READS_EDGES

    @property
    def edge_categories(self) -> tuple[int, ...]:
        """Categories of each column of edge codes; empty if the network reads no edge codes."""
        coded = self.uses_edge_features and self.spec.conv != "gcn"
        return self.shape.edge_categories if coded else ()

    @property
    def reads_edge_numbers(self) -> bool:
        """Whether the network reads edge features as numbers, not as codes."""
        return self.uses_edge_features and not self.edge_categories

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        graph_features: Tensor | None = None,
        encoded: bool = False,
    ) -> Tensor:
        """Return the logits of each graph, [G, outputs], after a check of the inputs.

        Args:
            x: Node features [N, D], codes [N, F], or numbers followed by codes as floats
                [N, D + F], as the shape says.
            edge_index: Source and target of each edge, [2, E].
            edge_attr: Edge features, [E, ...].
            batch: Graph of each node, sorted, [N]; without it the nodes are one graph.
            graph_features: Features of each graph, as read, NaN if missing, [G, F].
            encoded: Whether ``x`` is what ``encoder`` gave. Floats are, where the model has codes
                alone.
        """
        alone = self.shape.node_categories and not self.shape.node_width
        encoded = encoded or bool(alone and x.is_floating_point())
        check_nodes(x, self.shape, self.spec.width, encoded=encoded)
        if batch is not None:
            check_batch(batch, x.size(0))
        check_edges(edge_index, edge_attr, batch, x.size(0))
        self._check_edge_features(edge_attr)
        level = layout_from_batch(edge_index.new_zeros(x.size(0)) if batch is None else batch)
        check_graph_features(graph_features, level.sizes.numel(), self.shape.graph_width)
        plan = self.coarsening
        chain = coarsen_graphs(edge_index, level, plan) if plan else ()
        x = x if encoded else self.encoder(x)
        graph = PackedGraph(edge_index, edge_attr, level, (), chain)
        return self.run(x, graph, features=graph_features)[0]

    def classify(self, graphs: PackedBatch, note: Note | None = None) -> Tensor:
        """Return the logits of a ``PackedBatch``, which is already checked, [G, outputs].

        ``note`` is called before each pooling step with the pooler, its input and the graphs.
        """
        return self.learn(graphs, note)[0]

    def learn(self, graphs: PackedBatch, note: Note | None = None) -> Outputs:
        """Return the logits and the auxiliary loss of each graph, [G], or None."""
        steps, method = self.coarsening or (0, "")
        if [step.method for step in graphs.chain] != [method] * steps:
            raise ValueError(
                f"the model needs a chain of {steps} coarsening steps of method {method!r}, but "
                f"the batch has {len(graphs.chain)}; take batches from "
                f"with_chain(data, {steps}, {method!r})"
            )
        level, *later = graphs.levels
        parts = (graphs.edge_index, graphs.edge_attr, level, tuple(later), graphs.chain)
        x, features = self.encoder(graphs.x), graphs.graph_features
        return self.run(x, PackedGraph(*parts), note, features)

    def _check_edge_features(self, edge_attr: Tensor | None) -> None:
        """Raise a ValueError for edge features that the convolution cannot read."""
        columns = self.shape.edge_width
        if not self.uses_edge_features:
            return
        if self.edge_categories:
            check_codes("edge_attr", edge_attr, self.edge_categories)
        elif edge_attr is None or edge_attr.shape[1:] != (columns,):
            first = ", with the edge weight in column 0" if self.shape.edge_weighted else ""
            raise ValueError(
                f"edge_attr must be of shape [edges, {columns}]{first}: the model needs "
                f"{'edge weights' if first else 'edge features'}"
            )

    def run(
        self,
        x: Tensor,
        graph: Backend,
        note: Note | None = None,
        features: Tensor | None = None,
    ) -> Outputs:
        """Return logits and auxiliary loss on any back-end, for one run or for many.

        Args:
            x: Encoded nodes, [N, D].
            graph: The graphs of the batch.
            note: Called before each pooling step with the pooler, its input and the graphs.
            features: Features of each graph, NaN if missing, [G, F].
        """
        reads: list[Tensor] = []
        losses: list[Tensor] = []
        last = len(self.pools) - 1
        virtual: Tensor | None = None
        for index, blocks in enumerate(self.levels):
            x, virtual = self._convolve(cast("nn.ModuleList", blocks), x, graph, virtual, index)
            if not self.pools:
                continue
            if self.spec.read_input and index == 0:
                reads.append(self.readouts[0](x, graph))
            pool = self.pools[index]
            if note is not None:
                note(pool, x, graph)
            read = self.readouts[len(reads)]
            edges = index < last or getattr(read, "reads_edges", False)
            x, graph, loss = cast("Pooler", pool).pool(x, graph, edges=edges)
            if loss is not None:
                losses.append(loss)
            reads.append(read(x, graph))
        if not self.pools:
            reads.append(self.readouts[0](x, graph))
        h = torch.cat(reads, 1) if self.spec.combine == "cat" else sum(reads[1:], reads[0])
        if self.graph_features is not None:
            h = torch.cat([h, self.graph_features(features)], 1)
        logits = per_run(torch.add, per_run(torch.mul, self.head(h), self.scale), self.shift)
        return logits, torch.stack(losses).sum(0) if losses else None

    def _convolve(
        self, blocks: nn.ModuleList, x: Tensor, graph: Backend, virtual: Tensor | None, level: int
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of a level's last convolution, or of all, concatenated.

        ``virtual`` are the virtual nodes, [G, D], which go on to the next level.
        """
        outputs: list[Tensor] = []
        for number, block in enumerate(blocks, level * len(blocks)):
            if self.virtual_node is not None:
                x, virtual = self.virtual_node(x, graph, virtual, number)
            x = block(x, graph)
            outputs.append(x)
        return torch.cat(outputs, 1) if self.spec.jump else x, virtual


def coarsening_of(spec: ModelSpec) -> Coarsening | None:
    """Return the coarsening chain that a network needs; None if none."""
    return chain_of(spec.pool, spec.levels)


def _count_clusters(spec: ModelSpec, shape: ShapeSpec) -> list[int]:
    """Return the clusters per graph at each level; empty if the count is not fixed."""
    if sized_by(spec.pool) != "clusters":
        return []
    if not shape.mean_nodes:
        raise ValueError(f"pool {spec.pool!r} is sized by the data: set mean_nodes in the shape")
    counts = [shape.mean_nodes]
    for _ in range(spec.levels):
        counts.append(kept_count(counts[-1], spec.ratio))
    return counts[1:]


def _make_pool(
    spec: ModelSpec, shape: ShapeSpec, channels: int, level: int, clusters: list[int]
) -> nn.Module:
    """Return the pooler of a level."""
    make, options, sized = POOLS[spec.pool], dict(spec.pool_options), sized_by(spec.pool)
    size = {
        "ratio": (spec.ratio,),
        "clusters": clusters[level : level + 1],
        "chain": (spec.levels - level,),
        "nothing": (),
    }
    if weighs_edges(spec.pool) and sized != "chain":
        options["weighted"] = level > 0 or (spec.conv == "gcn" and shape.edge_weighted)
    elif spec.connect != "induced":
        options["connect"] = spec.connect
    return make(channels, *size[sized], **options)


def _explain_level_0_only(model: Classifier) -> None:
    """Exclude layers on pooled graphs from the edge mask of PyG's Explainer."""
    if not model.pools:
        return
    read_input = int(model.spec.read_input)
    for part in (*model.levels[1:], *model.pools[1:], *model.readouts[read_input:]):
        for inner in part.modules():
            if isinstance(inner, MessagePassing):
                inner.explain = False


def _head(in_channels: int, width: int, outputs: int, dropout: float) -> Sequential:
    """Return three linear maps, in -> D -> D/2 -> outputs, with ReLU and dropout in between."""
    return Sequential(
        Linear(in_channels, width),
        nn.ReLU(),
        Dropout(dropout),
        Linear(width, width // 2),
        nn.ReLU(),
        Dropout(dropout),
        Linear(width // 2, outputs),
    )
