"""Explanation of one prediction: kept nodes and attention of each level, and node importance.

Importance is that of PyG's GNNExplainer. Ying, Bourgeois, You, Zitnik, Leskovec: "GNNExplainer:
Generating Explanations for Graph Neural Networks", arXiv 1903.03894.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.explain import Explainer, GNNExplainer

from gtpool.data.dataset import GraphDataset
from gtpool.data.schema import TASKS, Task
from gtpool.explain.connectivity import count_edges
from gtpool.explain.trace import (
    PoolingStep,
    attention_mass,
    frozen_copy,
    sample_by,
    score_nodes,
    trace_pooling,
)
from gtpool.graph import PackedBatch
from gtpool.model.classifier import Classifier
from gtpool.model.predictor import Predictor, member_features, member_inputs, members_of
from gtpool.ops.average import average_outputs, member_spread, probabilities
from gtpool.ops.sample import check_choice
from gtpool.ops.segment import induced_edges
from gtpool.train.fit import seeded

LEARNING_RATE, SIZE_PENALTY = 0.1, 0.1
"""Learning rate of the mask, and weight of its size in the loss.

With PyG's defaults, 0.01 and 1, masks hardly change within 100 epochs.
"""
MAX_LOGIT = 10.0
"""Largest logit that the explainer sees: for larger ones the loss has no gradient in float32."""

_MODES = {
    "classes": "multiclass_classification",
    "binary": "binary_classification",
    "regression": "regression",
}


class LevelView(NamedTuple):
    """One pooling step; nodes have their indices in the input graph."""

    nodes: tuple[int, ...]
    """Nodes before the step; scores and attention follow this order."""
    score: tuple[float, ...]
    global_score: tuple[float, ...] | None
    """Global part of GTPool's score; None for other poolers."""
    local_score: tuple[float, ...] | None
    """Local part of GTPool's score; None for other poolers."""
    attention: tuple[float, ...] | None
    """Share of the kept nodes' attention on each node; None for poolers other than GTPool."""
    kept: tuple[int, ...]
    """Nodes that the model keeps."""
    topk: tuple[int, ...]
    """Nodes that top-k would keep for the same scores."""
    edges: list[tuple[int, int]]
    """Edges among ``nodes``."""
    pairs: int
    """Pairs of kept nodes that an edge joins after the step."""
    isolated: float
    """Share of kept nodes that no edge joins to another after the step."""


class Fidelity(NamedTuple):
    """The prediction without the most important nodes, and with only them."""

    nodes: tuple[int, ...]
    """The more important half of the nodes, the most important first."""
    without: float
    """Probability of the target (its value for regression) without these nodes."""
    alone: float
    """The same with only these nodes."""
    p: float
    """The same for the whole graph."""


class Explanation(NamedTuple):
    """Explanation of one graph, as Python values."""

    target: int
    """The explained class or task."""
    logits: tuple[float, ...]
    """Outputs of the model."""
    nodes: int
    edges: list[tuple[int, int]]
    levels: tuple[LevelView, ...]
    """Pooling steps that drop nodes; empty for models without such steps."""
    importance: tuple[float, ...] | None
    """Importance of each node, from 0 to 1."""
    fidelity: Fidelity | None
    """None without importance, and for a graph of one node."""
    member: int | None = None
    """Member of the ensemble whose steps and importance these are; None for a single network."""
    spread: float | None = None
    """Standard deviation over the members of the target's probability or value."""

    def paths(self) -> list[tuple[int, ...]]:
        """Return each node's index in the input and after each step that keeps it."""
        paths: list[tuple[int, ...]] = [(node,) for node in range(self.nodes)]
        for view in self.levels:
            for place, node in enumerate(view.kept):
                paths[node] += (place,)
        return paths

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON values."""
        levels = [view._asdict() for view in self.levels]
        fidelity = None if self.fidelity is None else self.fidelity._asdict()
        return {**self._asdict(), "levels": levels, "fidelity": fidelity}


def explain(
    model: Predictor,
    data: GraphDataset,
    index: int = 0,
    *,
    importance: bool = True,
    epochs: int = 100,
    seed: int = 0,
    target: int | None = None,
    task: Task | None = None,
    numbers: Sequence[int] | None = None,
) -> Explanation:
    """Return an explanation of a prediction; the model and torch's random state do not change.

    Of an ensemble, the steps and the importance are those of one member: the one whose prediction
    for this graph is nearest to the mean. Target, logits and fidelity are those of the ensemble, so
    the fidelity says whether the nodes of that member carry the answer of all.

    Args:
        model: The network or ensemble, on the device of ``data``.
        data: Graphs with the features that the model was trained on.
        index: Index of the graph.
        importance: Compute node importance by PyG's ``GNNExplainer``, and its fidelity.
        epochs: Training steps of the explainer.
        seed: Seed of the explainer.
        target: The class or task to explain. By default the predicted class, the task with the
            highest probability, or the first regression target.
        task: Task of the model; by default that of ``data``.
        numbers: Index of each node in the explanation, such as the position of an atom in its
            SMILES; by default its index in the graph.

    Example:
        >>> from gtpool.data.sources import load
        >>> from gtpool.model.classifier import Classifier
        >>> from gtpool.spec import ModelSpec, ShapeSpec
        >>> model = Classifier(ModelSpec(width=16), ShapeSpec(outputs=2, node_width=7))
        >>> explanation = explain(model, load("MUTAG"), epochs=10)
        >>> [len(view.kept) for view in explanation.levels], len(explanation.importance)
        ([9, 5, 3], 17)
    """
    kind = _task(data, model.shape.outputs, task)
    model, graph = frozen_copy(model), data.take([index])
    numbers = range(graph.x.size(0)) if numbers is None else numbers
    outputs = graph_outputs(model, graph)
    member = nearest_member(outputs, kind)
    network, own = members_of(model)[member], member_inputs(model, graph, member)
    logits, steps = average_outputs(outputs, kind), trace_pooling(network, own)[1]
    said = _target(logits[0], kind, target)
    found = fidelity = None
    if importance:
        weights = node_importance(network, own, said, kind, epochs=epochs, seed=seed)
        p = probability(logits, said, kind)
        fidelity = _fidelity(model, graph, weights, numbers, said, kind, p)
        found = tuple(weight for _, weight in sorted(zip(numbers, weights, strict=True)))
    several = outputs.size(1) > 1
    return Explanation(
        target=said,
        logits=tuple(logits[0].tolist()),
        nodes=graph.x.size(0),
        edges=_pairs(graph.edge_index, numbers),
        levels=_views(steps, numbers),
        importance=found,
        fidelity=fidelity,
        member=member if several else None,
        spread=member_spread(outputs, kind)[0, said].item() if several else None,
    )


def nearest_member(outputs: Tensor, task: Task) -> int:
    """Return the member whose prediction for a graph is nearest to the mean; the first of ties.

    Args:
        outputs: Outputs of each member for one graph, [1, M, K]; distances are Euclidean, between
            probabilities or values.
        task: Task of the model.
    """
    shares = probabilities(outputs, task)
    return int((shares - shares.mean(1, keepdim=True)).norm(dim=2).argmin())


def _fidelity(
    model: Predictor,
    graph: PackedBatch,
    weights: Sequence[float],
    numbers: Sequence[int],
    target: int,
    task: Task,
    p: float,
) -> Fidelity | None:
    """Return the prediction of the model without and with only the more important half."""
    order = sorted(range(len(weights)), key=lambda node: -weights[node])
    half = len(weights) // 2
    if not half:
        return None
    parts = (order[half:], order[:half])
    without, alone = (probability_of_part(model, graph, part, target, task) for part in parts)
    return Fidelity(tuple(numbers[node] for node in order[:half]), without, alone, p)


def _task(data: GraphDataset, outputs: int, task: Task | None) -> Task:
    if task is not None:
        check_choice("task", task, TASKS)
        return task
    if data.schema.num_outputs != outputs:
        raise ValueError(
            f"the task of the model's {outputs} outputs cannot be inferred from "
            f"{data.schema.name}; pass task=, one of {', '.join(TASKS)}"
        )
    return data.schema.task


def _target(logits: Tensor, task: Task, target: int | None) -> int:
    if target is None:
        return 0 if task == "regression" else int(logits.argmax())
    if not 0 <= target < logits.numel():
        raise ValueError(f"target must be 0 to {logits.numel() - 1}, got {target}")
    return target


def _views(steps: Sequence[PoolingStep], numbers: Sequence[int]) -> tuple[LevelView, ...]:
    """Return a view of each step, with sorted node indices of the input graph."""
    views: list[LevelView] = []
    nodes = numbers
    for step in steps:
        scores = score_nodes(step)
        kept, topk = step.out.perm, sample_by(step, "topk", scores.score)
        order = sorted(range(len(nodes)), key=nodes.__getitem__)
        left = [nodes[place] for place in kept.tolist()]
        after = count_edges(step.out.edge_index, len(left))
        view = LevelView(
            nodes=tuple(sorted(nodes)),
            score=tuple(scores.score[order].tolist()),
            global_score=_values(scores.global_score, order),
            local_score=_values(scores.local_score, order),
            attention=_values(attention_mass(step), order),
            kept=tuple(sorted(left)),
            topk=tuple(sorted(nodes[place] for place in topk.tolist())),
            edges=_pairs(step.edge_index, nodes),
            pairs=after.pairs,
            isolated=after.isolated,
        )
        views.append(view)
        nodes = left
    return tuple(views)


def _values(part: Tensor | None, order: list[int]) -> tuple[float, ...] | None:
    return None if part is None else tuple(part[order].tolist())


def _pairs(edge_index: Tensor, nodes: Sequence[int]) -> list[tuple[int, int]]:
    return [(nodes[source], nodes[target]) for source, target in edge_index.T.tolist()]


def node_importance(
    model: Classifier, graph: PackedBatch, target: int, task: Task, *, epochs: int, seed: int
) -> tuple[float, ...]:
    """Return the importance of each node: a mask on its features that preserves the prediction.

    Args:
        model: A frozen network in evaluation mode.
        graph: One graph; categorical features are masked after the encoder, those of the whole
            graph are not.
        target: The class or task to explain.
        task: Task of the model.
        epochs: Training steps of the mask.
        seed: Seed of its initial values.

    Returns:
        A number from 0 (unimportant) to 1 for each node.
    """
    x = model.encoder(graph.x)  # as is, unless it has codes
    given = (x, graph.edge_index, graph.edge_attr)
    with torch.no_grad():
        raw = _ScaledOutput(model, target, task, 1.0, graph.graph_features)(*given)
        size = max(1.0, raw.abs().max().item() / MAX_LOGIT)
    answer = _ScaledOutput(model, target, task, size, graph.graph_features)
    answer.eval()  # or the explainer leaves the model training
    explainer = Explainer(
        answer,
        GNNExplainer(epochs=epochs, lr=LEARNING_RATE, node_feat_size=SIZE_PENALTY),
        explanation_type="phenomenon",
        node_mask_type="object",
        model_config={"mode": _MODES[task], "task_level": "graph", "return_type": "raw"},
    )
    wanted = {
        "classes": torch.tensor([target], device=x.device),
        "binary": (raw > 0).long(),
        "regression": raw / size,
    }
    with torch.enable_grad(), seeded(seed, x.device):
        found = explainer(*given[:2], target=wanted[task], edge_attr=graph.edge_attr)
    return tuple(found.node_mask.flatten().tolist())


@torch.no_grad()
def probability_of_part(
    model: Predictor, graph: PackedBatch, nodes: Sequence[int], target: int, task: Task
) -> float:
    """Return the probability of the target for the subgraph of some nodes."""
    kept = torch.tensor(sorted(nodes), device=graph.x.device)
    edges, edge_attr = induced_edges(graph.edge_index, graph.edge_attr, kept, graph.x.size(0))
    part = graph._replace(x=graph.x[kept], edge_index=edges, edge_attr=edge_attr)
    outputs = graph_outputs(model, part)
    return probability(average_outputs(outputs, task), target, task)


@torch.no_grad()
def graph_outputs(model: Predictor, graph: PackedBatch) -> Tensor:
    """Return the outputs of each member of a model for one graph, [1, M, outputs]."""
    ends, attr, features = graph.edge_index, graph.edge_attr, graph.graph_features
    outputs = [
        network(member_features(model, graph.x, member), ends, attr, graph_features=features)
        for member, network in enumerate(members_of(model))
    ]
    return torch.stack(outputs, 1)


def probability(logits: Tensor, target: int, task: Task) -> float:
    """Return the probability of the target, or its value for regression, for one graph."""
    if task == "regression":
        return logits[0, target].item()
    return probabilities(logits, task)[0, target].item()


class _ScaledOutput(nn.Module):
    """A model with scaled logits of all classes, or with the scaled output of one task."""

    def __init__(
        self, model: Classifier, target: int, task: Task, size: float, features: Tensor | None
    ) -> None:
        super().__init__()
        self.model, self.target, self.task, self.size = model, target, task, size
        self.features = features

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        out = self.model(x, edge_index, edge_attr, graph_features=self.features, encoded=True)
        out = (out - self.model.shift) / self.model.scale / self.size
        return out if self.task == "classes" else out[:, [self.target]]
