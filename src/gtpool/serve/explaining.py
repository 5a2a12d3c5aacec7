"""The work of ``/explain``: on a model of its own, and for no longer than somebody waits."""

import math
from copy import deepcopy
from time import monotonic
from typing import Any, cast

from gtpool.data.dataset import GraphDataset
from gtpool.data.molecule import atom_numbers
from gtpool.data.schema import Schema
from gtpool.explain import explain, name_nodes
from gtpool.model.classifier import Classifier
from gtpool.report.explanation import draw_survivors


class Explaining:
    """Explains one graph at a time; one thread at a time may use it.

    Args:
        model: Copied, so that what is hooked onto it is met by no prediction.
        schema: What it was trained on.
        epochs: Steps in which the importance of nodes is learned.
    """

    def __init__(self, model: Classifier, schema: Schema, *, epochs: int) -> None:
        self._model, self._schema, self._epochs = deepcopy(model).cpu(), schema, epochs

    def explain(self, data: GraphDataset, smiles: str | None, deadline: float) -> dict[str, Any]:
        """Give ``explanation`` and ``pictures`` as JSON knows them.

        Args:
            data: One graph.
            smiles: Of a molecule.
            deadline: When to stop, by ``monotonic``: a TimeoutError.
        """

        def look_at_the_clock(*_: object) -> None:
            if monotonic() > deadline:
                raise TimeoutError

        order = self._schema.recipe.atom_order
        numbers = None if smiles is None else atom_numbers(smiles, order)
        hook = self._model.head.register_forward_pre_hook(look_at_the_clock)
        try:
            found = explain(
                self._model, data, epochs=self._epochs, task=self._schema.task, numbers=numbers
            )
        finally:
            hook.remove()
        names = name_nodes(data, numbers=numbers)
        pictures = draw_survivors(found, names, smiles=smiles)
        return {"explanation": _finite(found.to_json()), "pictures": pictures}


def _finite(value: Any) -> Any:  # noqa: ANN401
    """Put None in the place of numbers that JSON does not know."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
