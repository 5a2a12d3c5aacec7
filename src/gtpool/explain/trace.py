"""Recording the pooling steps of a model."""

import copy
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from gtpool.graph import GraphLayout, NodeDrop, PackedBatch
from gtpool.model.classifier import Classifier
from gtpool.ops.packed import PackedGraph
from gtpool.ops.sample import Order
from gtpool.pool.gtpool import GTPool

_Model = TypeVar("_Model", bound=nn.Module)

MAX_ATTENTION_ENTRIES = 2**20
"""Maximum number of attention weights in memory at a time."""


class DropPooler(Protocol):
    """A pooler that drops nodes."""

    ratio: float

    def __call__(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, *, level: GraphLayout
    ) -> NodeDrop:
        """Pool a batch of graphs."""
        ...


class PoolingStep(NamedTuple):
    """Input and output of one pooling step."""

    pool: DropPooler
    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None
    level: GraphLayout
    out: NodeDrop

    @property
    def sampler(self) -> str:
        """The sampler, a key of ``SAMPLERS``; MID always uses top-k."""
        return cast("str", getattr(self.pool, "sampler", "topk"))


class NodeScores(NamedTuple):
    """Score of every node before a step, [N], and for GTPool its two parts, [N] each."""

    score: Tensor
    global_score: Tensor | None = None
    local_score: Tensor | None = None


def frozen_copy(model: _Model) -> _Model:
    """Return a copy in evaluation mode without gradients; hooks on it do not affect the model."""
    return copy.deepcopy(model).eval().requires_grad_(requires_grad=False)


@torch.no_grad()
def trace_pooling(model: Classifier, graphs: PackedBatch) -> tuple[Tensor, list[PoolingStep]]:
    """Return the logits of a model, [G, outputs], and its steps that drop nodes."""
    steps: list[PoolingStep] = []
    if not model.ratios:
        given = (graphs.x, graphs.edge_index, graphs.edge_attr, graphs.batch)
        return model(*given, graph_features=graphs.graph_features), steps

    def note(pool: Any, x: Tensor, graph: Any) -> None:  # noqa: ANN401 - a dropping pooler's
        given = (x, graph.edge_index, graph.edge_attr)
        steps.append(PoolingStep(pool, *given, graph.level, pool(*given, level=graph.level)))

    return model.classify(graphs, note), steps


@torch.no_grad()
def score_nodes(step: PoolingStep) -> NodeScores:
    """Return the score of every node of a step, including dropped ones."""
    if isinstance(step.pool, GTPool):
        return NodeScores(*step.pool.scores(step.x, step.edge_index, step.level.batch))
    every = copy.copy(step.pool)  # shares the weights
    every.ratio = 1.0  # keeps all nodes, so the output has the scores of all
    return NodeScores(every(step.x, step.edge_index, step.edge_attr, level=step.level).score)


def sample_by(step: PoolingStep, sampler: str, score: Tensor) -> Tensor:
    """Return the sorted indices of the nodes that a sampler keeps, given the scores of a step, [K].

    For the model's own sampler these are the nodes that the step kept: some poolers sample by the
    score before its activation.
    """
    if sampler == step.sampler:
        return step.out.perm
    order = cast("Order", getattr(step.pool, "order", "index"))
    score = score / getattr(step.pool, "temperature", 1.0)
    graph = PackedGraph(step.edge_index, step.edge_attr, step.level)
    return graph.keep(score, step.pool.ratio, sampler=sampler, order=order)


@torch.no_grad()
def attention_mass(step: PoolingStep) -> Tensor | None:
    """Return the share of the kept nodes' attention on each node of one graph, [N].

    This is the attention matrix, summed over kept rows and heads and divided by its total, computed
    in blocks of rows. None for a pooler without attention.
    """
    pool = step.pool
    if not isinstance(pool, GTPool):
        return None
    q, k = (part(step.x).unflatten(1, (pool.heads, -1)) for part in (pool.query, pool.key))
    mass = k.new_zeros(k.size(0))
    for rows in step.out.perm.split(max(1, MAX_ATTENTION_ENTRIES // k[..., 0].numel())):
        logits = torch.einsum("khc,nhc->khn", q.index_select(0, rows), k) * k.size(-1) ** -0.5
        mass += logits.softmax(-1).sum((0, 1))
    return mass / mass.sum()
