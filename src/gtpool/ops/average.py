"""The predictions of several members as one: mean probability or value, and its spread."""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def average_outputs(outputs: Tensor, task: str) -> Tensor:
    """Return one row of logits a graph, those of the members' mean prediction, [G, K].

    The softmax (for "binary" the sigmoid) of the result is the mean of the members' probabilities;
    for "regression" the result is the mean of their values. It is computed from logarithms, so that
    it stays finite. A single member's outputs are returned unchanged.

    Args:
        outputs: Outputs of the members, [G, M, K].
        task: "classes", "binary" or "regression".

    Example:
        >>> outputs = torch.tensor([[[0.0, 0.0], [2.0, 0.0]]])
        >>> mean = outputs.double().softmax(2).mean(1)
        >>> torch.allclose(average_outputs(outputs, "classes").softmax(1), mean)
        True
    """
    if outputs.size(1) == 1:
        return outputs[:, 0]
    outputs = outputs.double()
    if task == "regression":
        return outputs.mean(1)
    if task == "classes":
        return outputs.log_softmax(2).logsumexp(1) - math.log(outputs.size(1))
    return logsigmoid(outputs).logsumexp(1) - logsigmoid(-outputs).logsumexp(1)


def blend_outputs(first: Tensor, second: Tensor, weight: float, task: str) -> Tensor:
    """Return the logits of ``weight`` times one prediction plus ``1 - weight`` times another.

    Probabilities are averaged, or the values of a regression, as in ``average_outputs``.

    Args:
        first: Logits or values, [..., K].
        second: The same of the other predictor.
        weight: Weight of the first, from 0 to 1.
        task: "classes", "binary" or "regression".

    Example:
        >>> blend_outputs(torch.tensor([1.0]), torch.tensor([2.0]), 0.25, "regression").tolist()
        [1.75]
    """
    first, second = first.double(), second.double()
    if task == "regression":
        return weight * first + (1 - weight) * second
    one, other = first.new_tensor([weight, 1 - weight]).log()
    if task == "classes":
        return torch.logaddexp(first.log_softmax(-1) + one, second.log_softmax(-1) + other)
    yes, no = (
        torch.logaddexp(logsigmoid(sign * first) + one, logsigmoid(sign * second) + other)
        for sign in (1, -1)
    )
    return yes - no


def probabilities(outputs: Tensor, task: str) -> Tensor:
    """Return the probabilities of logits, or the values of a regression, in float64.

    Args:
        outputs: Logits or values, [..., K].
        task: "classes", "binary" or "regression".
    """
    outputs = outputs.double()
    if task == "regression":
        return outputs
    return outputs.softmax(-1) if task == "classes" else outputs.sigmoid()


def member_spread(outputs: Tensor, task: str) -> Tensor:
    """Return the standard deviation (n - 1) over members of each probability or value, [G, K].

    Args:
        outputs: Outputs of at least two members, [G, M, K].
        task: "classes", "binary" or "regression".

    Example:
        >>> member_spread(torch.tensor([[[1.0], [3.0]]]), "regression").tolist()
        [[1.4142135623730951]]
    """
    return probabilities(outputs, task).std(1)


def standardize(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return ``x`` with its leading columns standardised, computed in float64.

    Args:
        x: Features, [N, D].
        mean: Mean of each leading column, float64 [C].
        std: Standard deviation of the same.
    """
    columns = (x[:, : mean.numel()].double() - mean) / std
    return torch.cat([columns.to(x.dtype), x[:, mean.numel() :]], 1)
