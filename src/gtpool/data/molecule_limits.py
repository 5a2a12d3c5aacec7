"""Limits on molecules, which keep rdkit's time and memory bounded."""

from typing import TYPE_CHECKING

# rdkit is imported by the functions that need it: other data load without it.
if TYPE_CHECKING:
    from rdkit.Chem import Mol

MAX_SMILES = 5_000
"""Maximum length of a SMILES."""

MAX_ATOMS = 2_000
"""Maximum number of atoms. The largest molecule of B3DB and OGB's four sets has 222."""

MAX_RINGS = 100
"""Maximum number of independent rings (bonds - atoms + fragments); 48 in the same datasets."""

MAX_FRAGMENTS_TIMES_ATOMS = 40_000
"""Maximum of fragments x atoms; 726 in the same datasets.

To order equal fragments with stereochemistry rdkit takes about 3 ns x fragments x atoms x atoms:
0.25 s at this limit and MAX_ATOMS, 3 s for 400 times ``F[C@H](Cl)C``.
"""

MAX_NEIGHBOURS = 16
"""Maximum degree of an atom in a molecule whose cycles have to be counted."""

MAX_CYCLES = 5_000
"""Maximum number of cycles that rdkit may search for the smallest rings, by an upper bound.

Each ring can double the number. A cyclodextrin of 8 sugars has 264, the most in the same datasets;
one of 20 has a million, for which rdkit takes 17 s and 1 GB.
"""


def is_surely_small(smiles: str) -> bool:
    """Whether the text alone shows that a molecule exceeds no limit, as for nearly all molecules.

    An atom takes a character, a fragment more a dot, and a ring two digits. Rings below the
    logarithm of ``MAX_CYCLES`` cannot form more cycles. A CXSMILES extension may add bonds.
    """
    dots, digits = smiles.count("."), sum(map(smiles.count, "0123456789"))
    return (
        len(smiles) <= MAX_ATOMS
        and (dots + 1) * len(smiles) <= MAX_FRAGMENTS_TIMES_ATOMS
        and 2 ** (digits // 2) <= MAX_CYCLES
        and "|" not in smiles
    )


def exceeded_limit(molecule: "Mol") -> str | None:
    """Return a description of the limit that a molecule exceeds, or None.

    Args:
        molecule: Parsed without sanitising, which is fast for every SMILES.
    """
    from rdkit import Chem  # noqa: PLC0415

    atoms = molecule.GetNumAtoms()
    if atoms > MAX_ATOMS:
        return f"more than {MAX_ATOMS} atoms"
    fragments = len(Chem.GetMolFrags(molecule))
    if fragments * atoms > MAX_FRAGMENTS_TIMES_ATOMS:
        return f"fragments x atoms is more than {MAX_FRAGMENTS_TIMES_ATOMS}"
    rings = molecule.GetNumBonds() - atoms + fragments
    if rings > MAX_RINGS:
        return f"more than {MAX_RINGS} rings"
    # A graph with r independent rings has fewer than 2 ** r cycles.
    return None if 2**rings <= MAX_CYCLES else _excess_of_cycles(molecule)


def _excess_of_cycles(molecule: "Mol") -> str | None:
    """Check the cycles by rdkit's ring families, which it finds without listing cycles."""
    from rdkit import Chem  # noqa: PLC0415

    if max(atom.GetDegree() for atom in molecule.GetAtoms()) > MAX_NEIGHBOURS:
        return f"more than {MAX_NEIGHBOURS} neighbours of an atom"
    copy = Chem.Mol(molecule)
    Chem.FindRingFamilies(copy)
    found = copy.GetRingInfo()
    families = zip(found.AtomRingFamilies(), found.BondRingFamilies(), strict=True)
    if sum(2 ** (len(bonds) - len(atoms) + 1) for atoms, bonds in families) > MAX_CYCLES:
        return f"its rings form more than {MAX_CYCLES} cycles"
    return None
