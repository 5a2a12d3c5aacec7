"""What to call the nodes of a graph when a person is to look at it."""

from collections.abc import Sequence

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.tu import MUTAG_ATOMS
from gtpool.data.molecule import ATOM_FIELDS


def name_nodes(
    data: GraphDataset, index: int = 0, numbers: Sequence[int] | None = None
) -> list[str]:
    """Give the element of each atom, else the label of each node, else its number.

    Args:
        data: The graphs, whose schema tells how their features were made.
        index: Which graph, from 0.
        numbers: The number of each node, by which the names are sorted; by default the node's own.

    Example:
        >>> from gtpool.data.formats.memory import read_graphs
        >>> name_nodes(read_graphs(["CCO"]))
        ['C', 'C', 'O']
    """
    x, recipe = data.take([index]).x, data.schema.recipe
    if numbers is not None:
        x = x[sorted(range(len(numbers)), key=numbers.__getitem__)]
    if recipe.kind == "molecule":
        return [_element(code) for code in x[:, 0].tolist()]
    if not recipe.labels:
        return [str(node) for node in range(x.size(0))]
    columns = x[:, recipe.attributes : recipe.attributes + len(recipe.labels)]
    parts = columns.split([len(part) for part in recipe.label_sets], 1)
    labels = [
        [words[column] for column in part.argmax(1).tolist()]
        for words, part in zip(recipe.label_sets, parts, strict=True)
    ]
    if data.schema.name == "MUTAG" and max(labels[0]) < len(MUTAG_ATOMS):
        return [MUTAG_ATOMS[label] for label in labels[0]]
    return [",".join(map(str, several)) for several in zip(*labels, strict=True)]


def _element(code: int) -> str:
    from rdkit.Chem import GetPeriodicTable  # noqa: PLC0415 - other graphs do without

    number = ATOM_FIELDS["atomic_number"][code]
    return GetPeriodicTable().GetElementSymbol(number) if isinstance(number, int) else "?"
