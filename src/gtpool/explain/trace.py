"""The pooling steps of a model, written down while it runs."""

import copy
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from gtpool.graph import GraphLayout, Graphs, NodeDrop
from gtpool.model.classifier import Classifier
from gtpool.ops.sample import SAMPLERS, Order, settle
from gtpool.pool.gtpool import GTPool

MAX_ATTENTION_ENTRIES = 2**20
"""Entries of the attention matrix held at one time."""


class DropPooler(Protocol):
    """A pooler that drops nodes."""

    ratio: float

    def __call__(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, *, level: GraphLayout
    ) -> NodeDrop:
        """Pool a batch of graphs."""
        ...


class PoolingStep(NamedTuple):
    """One pooling step: what the pooler was given and what it gave."""

    pool: DropPooler
    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None
    level: GraphLayout
    out: NodeDrop

    @property
    def sampler(self) -> str:
        """What chooses the nodes, a key of ``SAMPLERS``; MID knows top-k only."""
        return cast("str", getattr(self.pool, "sampler", "topk"))


class NodeScores(NamedTuple):
    """The score of every node before a step, [N] each; GTPool's is made of two parts."""

    score: Tensor
    global_score: Tensor | None = None
    local_score: Tensor | None = None


def frozen_copy(model: Classifier) -> Classifier:
    """Give a copy that does not train: what is hooked onto it does not touch the original."""
    return copy.deepcopy(model).eval().requires_grad_(requires_grad=False)


@torch.no_grad()
def trace_pooling(model: Classifier, graphs: Graphs) -> tuple[Tensor, list[PoolingStep]]:
    """Run a model; give its logits, [G, outputs], and the steps that dropped nodes."""
    steps: list[PoolingStep] = []
    if not model.ratios:
        return model(graphs.x, graphs.edge_index, graphs.edge_attr, graphs.batch), steps

    def note(pool: Any, x: Tensor, graph: Any) -> None:  # noqa: ANN401 - a dropping pooler's
        given = (x, graph.edge_index, graph.edge_attr)
        steps.append(PoolingStep(pool, *given, graph.level, pool(*given, level=graph.level)))

    return model.classify(graphs, note), steps


@torch.no_grad()
def score_nodes(step: PoolingStep) -> NodeScores:
    """Score every node of a step, the dropped ones too."""
    if isinstance(step.pool, GTPool):
        return NodeScores(*step.pool.scores(step.x, step.edge_index, step.level.batch))
    every = copy.copy(step.pool)  # shares the weights
    every.ratio = 1.0  # a pooler that keeps all nodes tells the scores of all
    return NodeScores(every(step.x, step.edge_index, step.edge_attr, level=step.level).score)


def sample_by(step: PoolingStep, sampler: str, score: Tensor) -> Tensor:
    """Say whom a sampler keeps on the scores of a step, ascending, [K].

    The model's own sampler keeps what it did keep: some poolers rank by top-k what they had before
    an activation made the score of it.
    """
    if sampler == step.sampler:
        return step.out.perm
    order = cast("Order", getattr(step.pool, "order", "index"))
    sample, level = SAMPLERS[sampler], step.level
    score = score / getattr(step.pool, "temperature", 1.0)
    return sample(settle(score), level.batch, step.pool.ratio, order=order, sizes=level.sizes)


@torch.no_grad()
def attention_mass(step: PoolingStep) -> Tensor | None:
    """Say which share of the kept nodes' attention falls on each node of one graph, [N].

    That is the sum over the kept rows of the attention matrix and over heads, divided by its total;
    a few rows are held at a time. None where the pooler does not attend.
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
