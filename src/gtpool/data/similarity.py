"""Similarity of molecules to those that a model was trained on.

Tanimoto similarity of Morgan fingerprints with radius 2 and 2048 bits: the number of common bits
divided by the number of bits in either.

Rogers and Hahn: "Extended-connectivity fingerprints", 2010.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from gtpool.data.graph_features import MORGAN_BITS, MORGAN_RADIUS

# rdkit is imported by the functions that need it: other data load without it.
if TYPE_CHECKING:
    from rdkit.Chem import Mol

Bits = NDArray[np.uint8]
"""Packed fingerprints, [molecules, MORGAN_BYTES]."""

MORGAN_BYTES = MORGAN_BITS // 8
MAX_REFERENCES = 20_000
"""Largest number of training molecules that a model stores."""
FAR = 0.3
"""A nearest training molecule below this similarity is noted; a convention."""
_CELLS = 1 << 21  # pairs of molecules that are compared at once


class Neighbour(NamedTuple):
    """How a molecule relates to those that a model was trained on."""

    similarity: float
    """Tanimoto similarity to the nearest of them, from 0 to 1."""
    fragments: int
    """Number of molecules and ions that no bond joins; 0 if rdkit cannot read the SMILES."""

    @property
    def is_far(self) -> bool:
        """Whether the nearest training molecule is below ``FAR``."""
        return round(self.similarity, 2) < FAR

    @property
    def note(self) -> str:
        """Remarks on salts, mixtures and molecules far from the training molecules, or ""."""
        if not self.fragments:
            return "rdkit cannot read the SMILES"
        parts = [f"{self.fragments} fragments (salt or mixture)"] if self.fragments > 1 else []
        if self.is_far:
            parts.append(f"unlike the training molecules (similarity {self.similarity:.2f})")
        return "; ".join(parts)


def training_fingerprints(smiles: Sequence[str]) -> Bits:
    """Return fingerprints of training molecules, without copies.

    Of more than ``MAX_REFERENCES`` molecules, evenly spaced ones are taken. Those that rdkit cannot
    read are left out.

    Args:
        smiles: The molecules.

    Example:
        >>> training_fingerprints(["CCO", "c1ccccc1", "CCO"]).shape
        (2, 256)
    """
    distinct = list(dict.fromkeys(smiles))
    wanted = min(len(distinct), MAX_REFERENCES)
    chosen = [distinct[len(distinct) * at // wanted] for at in range(wanted)]
    bits, fragments = _describe(chosen)
    return bits[np.array(fragments, bool)]


def find_neighbours(smiles: Sequence[str], reference: Bits) -> list[Neighbour]:
    """Return the similarity of molecules to the nearest of some others, with remarks.

    Args:
        smiles: The molecules; one that rdkit cannot read has similarity 0 and a remark.
        reference: Fingerprints of the others, at least one.

    Example:
        >>> find_neighbours(["OCC", "C[NH3+].[Cl-]"], training_fingerprints(["CCO", "CO"]))[0]
        Neighbour(similarity=1.0, fragments=1)
    """
    bits, fragments = _describe(smiles)
    nearest = nearest_similarity(bits, reference).tolist()
    return [Neighbour(*pair) for pair in zip(nearest, fragments, strict=True)]


def nearest_similarity(bits: Bits, reference: Bits) -> NDArray[np.float32]:
    """Return the highest Tanimoto similarity of each fingerprint to those of a reference, [n].

    Args:
        bits: Packed fingerprints.
        reference: Packed fingerprints, at least one.
    """
    words, others = (np.ascontiguousarray(part).view(np.uint64) for part in (bits, reference))
    others = np.ascontiguousarray(others.T)
    sizes, other_sizes = (
        np.bitwise_count(part).sum(1, dtype=np.int32) for part in (bits, reference)
    )
    found = np.empty(len(bits), np.float32)
    step = max(1, _CELLS // len(reference))
    for start in range(0, len(bits), step):
        part = slice(start, start + step)
        common = np.zeros((len(words[part]), len(reference)), np.uint16)
        for own, other in zip(words[part].T, others, strict=True):
            common += np.bitwise_count(own[:, None] & other)
        either = np.maximum(sizes[part, None] + other_sizes - common, 1)
        found[part] = np.divide(common, either, dtype=np.float32).max(1)
    return found


def check_fingerprints(bits: NDArray[Any], where: str) -> Bits:
    """Return fingerprints from a file; raise a ValueError unless they have the right shape.

    Args:
        bits: Content of the file.
        where: The model, for the error message.
    """
    if bits.dtype != np.uint8 or bits.ndim != 2 or bits.shape[1] != MORGAN_BYTES or not len(bits):
        raise ValueError(
            f"{where}: fingerprints of the training molecules must be uint8, [molecules, "
            f"{MORGAN_BYTES}], got {bits.dtype}, {list(bits.shape)}"
        )
    return bits


def _describe(smiles: Sequence[str]) -> tuple[Bits, list[int]]:
    """Return packed fingerprints and numbers of fragments; zeros where rdkit cannot read."""
    from rdkit import Chem  # noqa: PLC0415
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator  # noqa: PLC0415
    from rdkit.rdBase import BlockLogs  # noqa: PLC0415

    generator = GetMorganGenerator(radius=MORGAN_RADIUS, fpSize=MORGAN_BITS)
    found = np.zeros((len(smiles), MORGAN_BYTES), np.uint8)
    fragments = [0] * len(smiles)
    with BlockLogs():
        for row, text in enumerate(smiles):
            molecule = cast("Mol | None", Chem.MolFromSmiles(text))
            if molecule is not None:
                found[row] = np.packbits(generator.GetFingerprintAsNumPy(molecule))
                # Without a dot there is one fragment; with one, a ring bond may join the parts.
                fragments[row] = len(Chem.GetMolFrags(molecule)) if "." in text else 1
    return found, fragments
