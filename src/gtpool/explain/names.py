"""Display names of nodes."""

from collections.abc import Sequence

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.tu import MUTAG_ATOMS
from gtpool.data.molecule import ATOM_FIELDS


def name_nodes(
    data: GraphDataset, index: int = 0, numbers: Sequence[int] | None = None
) -> list[str]:
    """Return the element of each atom, else the label of each node, else its index.

    Args:
        data: The graphs, with the schema of their features.
        index: Index of the graph.
        numbers: Sort key of each node; by default its index.

    Example:
        >>> from gtpool.data.formats.memory import read_graphs
        >>> name_nodes(read_graphs(["CCO"]))
        ['C', 'C', 'O']
    """
    x, recipe = data.take([index]).x, data.schema.recipe
    if numbers is not None:
        x = x[sorted(range(len(numbers)), key=numbers.__getitem__)]
    if recipe.kind == "molecule":
        return [_element(code) for code in x[:, recipe.encoded].long().tolist()]
    if not recipe.labels:
        return [str(node) for node in range(x.size(0))]
    columns = x[:, recipe.continuous : recipe.continuous + len(recipe.labels)]
    parts = columns.split([len(part) for part in recipe.label_sets], 1)
    labels = [
        [words[column] for column in part.argmax(1).tolist()]
        for words, part in zip(recipe.label_sets, parts, strict=True)
    ]
    if data.schema.name == "MUTAG" and max(labels[0]) < len(MUTAG_ATOMS):
        return [MUTAG_ATOMS[label] for label in labels[0]]
    return [",".join(map(str, several)) for several in zip(*labels, strict=True)]


def _element(code: int) -> str:
    from rdkit.Chem import GetPeriodicTable  # noqa: PLC0415 - only for molecules

    number = ATOM_FIELDS["atomic_number"][code]
    return GetPeriodicTable().GetElementSymbol(number) if isinstance(number, int) else "?"
