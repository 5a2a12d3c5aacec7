"""Features of whole molecules: RDKit's 2D descriptors and Morgan fingerprints.

Rogers and Hahn: "Extended-connectivity fingerprints", 2010.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gtpool.data.schema import FLOAT32_MAX
from gtpool.spec import did_you_mean

# rdkit is imported by the functions that need it: other data load without it.
if TYPE_CHECKING:
    from rdkit.Chem import Mol

Matrix = NDArray[np.float32]

MORGAN_RADIUS = 2
MORGAN_BITS = 2048


def describe_molecules(smiles: Sequence[str], names: Sequence[str]) -> Matrix:
    """Return descriptors of molecules, float32 [G, columns], NaN where rdkit gives none.

    Args:
        smiles: Molecules that ``read_molecules`` can read.
        names: Keys of ``MOLECULE_FEATURES``, in the order of their columns.

    Example:
        >>> describe_molecules(["CCO", "c1ccccc1"], ["rdkit2d", "morgan"]).shape
        (2, 2265)
    """
    from rdkit import Chem  # noqa: PLC0415
    from rdkit.rdBase import BlockLogs  # noqa: PLC0415

    check_molecule_features(names)
    makers = [MOLECULE_FEATURES[name]() for name in names]
    with BlockLogs():
        molecules = [Chem.MolFromSmiles(text) for text in smiles]
        parts = [np.stack([make(one) for one in molecules]) for make in makers] if smiles else []
    found = np.concatenate([np.empty((len(smiles), 0)), *parts], 1)
    # Some descriptors exceed float32, such as Ipc of large molecules.
    return np.clip(found, -FLOAT32_MAX, FLOAT32_MAX).astype(np.float32)


def check_molecule_features(names: Sequence[str]) -> None:
    """Raise a ValueError that names an unknown or repeated name."""
    for number, name in enumerate(names):
        if name not in MOLECULE_FEATURES:
            hint, known = did_you_mean(name, MOLECULE_FEATURES), ", ".join(MOLECULE_FEATURES)
            raise ValueError(f"unknown molecule features {name!r}{hint}; known: {known}")
        if name in names[:number]:
            raise ValueError(f"molecule features {name!r} are given twice")


def _rdkit2d() -> "Callable[[Mol], NDArray[Any]]":
    """Return a function that gives rdkit's 2D descriptors of a molecule."""
    from rdkit.Chem import Descriptors  # noqa: PLC0415

    functions = [function for _, function in Descriptors.descList]

    def describe(molecule: "Mol") -> NDArray[Any]:
        return np.array([_value(function, molecule) for function in functions], np.double)

    return describe


def _value(function: "Callable[[Mol], float]", molecule: "Mol") -> float:
    try:
        return float(function(molecule))
    except (ValueError, RuntimeError, ZeroDivisionError, OverflowError):  # e.g. without parameters
        return float("nan")


def _morgan() -> "Callable[[Mol], NDArray[Any]]":
    """Return a function that gives log(1 + count) of each bit of a Morgan fingerprint."""
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator  # noqa: PLC0415

    generator = GetMorganGenerator(radius=MORGAN_RADIUS, fpSize=MORGAN_BITS)
    return lambda molecule: np.log1p(generator.GetCountFingerprintAsNumPy(molecule).astype(float))


MOLECULE_FEATURES: "dict[str, Callable[[], Callable[[Mol], NDArray[Any]]]]" = {
    "rdkit2d": _rdkit2d,
    "morgan": _morgan,
}
"""Sets of descriptors by name."""
