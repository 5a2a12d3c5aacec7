"""Transfer of weights: a classifier takes those of a trained one, except for the head."""

from gtpool.model.classifier import Classifier

_HEAD = ("head.", "graph_features.", "shift", "scale")
"""Weights that belong to the targets."""


def copy_encoder(model: Classifier, trained: Classifier) -> None:
    """Copy all weights and statistics but those of the head.

    Args:
        model: Receives the weights; its spec and shape are those of ``trained``, except for the
            outputs.
        trained: The trained network.

    Example:
        >>> from gtpool.spec import ModelSpec, ShapeSpec
        >>> spec = ModelSpec(width=8)
        >>> new = Classifier(spec, ShapeSpec(outputs=3, node_width=7))
        >>> copy_encoder(new, Classifier(spec, ShapeSpec(outputs=2, node_width=7)))
    """
    learned = {
        name: part for name, part in trained.state_dict().items() if not name.startswith(_HEAD)
    }
    model.load_state_dict(model.state_dict() | learned)


def freeze_encoder(model: Classifier) -> None:
    """Let training change the head alone; all else stays in evaluation mode."""
    model.requires_grad_(requires_grad=False)
    model.head.requires_grad_(requires_grad=True)
    model.frozen = True
    model.train(model.training)


def count_trained(model: Classifier) -> int:
    """Return the number of weights that training changes."""
    return sum(part.numel() for part in model.parameters() if part.requires_grad)
