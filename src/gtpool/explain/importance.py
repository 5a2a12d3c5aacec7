"""Node importance by PyG's GNNExplainer, and predictions for subgraphs.

Ying, Bourgeois, You, Zitnik, Leskovec: "GNNExplainer: Generating Explanations for Graph Neural
Networks", arXiv 1903.03894.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric.explain import Explainer, GNNExplainer

from gtpool.data.schema import Task
from gtpool.graph import PackedBatch
from gtpool.model.classifier import Classifier
from gtpool.model.predictor import Predictor, member_features, members_of
from gtpool.ops.average import average_outputs, probabilities
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
