"""From logits to what is told: decisions by a threshold."""

from torch import Tensor


def decide(p: Tensor, task: str, threshold: Tensor | None = None) -> Tensor:
    """Return the predicted class of each graph, [..., G], or 0 and 1 by binary task, [..., G, T].

    Args:
        p: Probabilities, [..., G, K] or [..., G, T].
        task: "classes" or "binary".
        threshold: Probability from which on a binary task is 1, one for each task, or the second of
            two classes is predicted. By default 0.5, and the most probable class.

    Example:
        >>> import torch
        >>> p = torch.tensor([[0.6, 0.4]])
        >>> decide(p, "classes").item(), decide(p, "classes", torch.tensor([0.3])).item()
        (0, 1)
    """
    if task == "classes" and threshold is None:
        return p.argmax(-1)
    least = p.new_tensor([0.5]) if threshold is None else threshold.to(p)
    return (p[..., 1] >= least[0]).long() if task == "classes" else (p >= least).long()
