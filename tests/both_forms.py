"""Train a network in both of its forms, to compare them."""

from typing import Any

import torch

from gtpool.data.dataset import GraphDataset
from gtpool.data.sources import load
from gtpool.data.split import stratified_folds
from gtpool.model.classifier import Classifier
from gtpool.spec import ModelSpec, TrainSpec
from gtpool.study.inputs import shape_of
from gtpool.train.fit import fit
from gtpool.train.fit_many import fit_many


def train_both_forms(
    data: GraphDataset | None = None, **choices: Any
) -> tuple[list[float], list[float]]:
    """Give the training loss of two epochs: of eager training, then of the captured form.

    The captured form runs here as plain PyTorch on batches of fixed capacity; a GPU captures it as
    a CUDA graph.

    Args:
        data: The graphs; by default MUTAG.
        choices: Fields of ``ModelSpec``, such as ``pool="yourpool"``.
    """
    data = load("MUTAG") if data is None else data
    split = stratified_folds(data.y, 10, 0)[0]
    spec = TrainSpec(epochs=2, warmup=0, lr=0.01, batch_size=64)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Classifier(ModelSpec(width=8, levels=2, **choices), shape_of(data)))
    eager = [epoch.train_loss for epoch in fit(models[0], data, split, spec, seed=1)]
    runs = fit_many(models[1:], data, [split], [spec], seeds=[1])
    return eager, [epochs[0].train_loss for epochs in runs]
