"""Molecules from SMILES, with OGB's categorical codes of atoms and bonds.

Hu et al.: "Open Graph Benchmark", 2020. Meng et al.: "A curated diverse molecular database of
blood-brain barrier permeability with chemical descriptors", 2021 (B3DB).
"""

import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.schema import Recipe, Schema, Task
from gtpool.spec import AtomOrder

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


_Value = int | str | bool
_Columns = list[tuple[Callable[[Any], _Value], dict[_Value, int], int]]
_Row = TypeVar("_Row")

FEATURIZER = "ogb-9-3/1"
"""Name and version of the codes."""

_OTHER = "other"
ATOM_FIELDS: dict[str, tuple[_Value, ...]] = {
    "atomic_number": (*range(1, 119), _OTHER),
    "chirality": (
        "CHI_UNSPECIFIED",
        "CHI_TETRAHEDRAL_CW",
        "CHI_TETRAHEDRAL_CCW",
        "CHI_OTHER",
        _OTHER,
    ),
    "degree": (*range(11), _OTHER),
    "formal_charge": (*range(-5, 6), _OTHER),
    "hydrogens": (*range(9), _OTHER),
    "radical_electrons": (*range(5), _OTHER),
    "hybridization": ("SP", "SP2", "SP3", "SP3D", "SP3D2", _OTHER),
    "aromatic": (False, True),
    "in_ring": (False, True),
}
"""Columns of ``x``, each with the values that its codes 0, 1, 2 … stand for."""

BOND_FIELDS: dict[str, tuple[_Value, ...]] = {
    "type": ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", _OTHER),
    "stereo": (
        "STEREONONE",
        "STEREOZ",
        "STEREOE",
        "STEREOCIS",
        "STEREOTRANS",
        "STEREOANY",
    ),
    "conjugated": (False, True),
}
"""The same for ``edge_attr``; a stereo type without an OGB code becomes STEREOANY."""

ATOM_SIZES = tuple(map(len, ATOM_FIELDS.values()))
BOND_SIZES = tuple(map(len, BOND_FIELDS.values()))

_ATOM_GETTERS = (
    "GetAtomicNum",
    "GetChiralTag",
    "GetTotalDegree",
    "GetFormalCharge",
    "GetTotalNumHs",
    "GetNumRadicalElectrons",
    "GetHybridization",
    "GetIsAromatic",
    "IsInRing",
)
_OUTPUT_ORDER = "_smilesAtomOutputOrder"
_BOND_GETTERS = ("GetBondType", "GetStereo", "GetIsConjugated")

_B3DB = Path(__file__).parent / "embedded" / "B3DB" / "B3DB.tsv.gz"


class Failure(NamedTuple):
    """A SMILES that could not be read."""

    position: int
    """Index in the input."""
    reason: str


class Molecules(NamedTuple):
    """The molecules that could be read, packed as in ``GraphDataset``."""

    x: Tensor
    """Codes of the atoms by ``ATOM_FIELDS``, uint8 [N, 9]."""
    edge_index: Tensor
    """Bonds, each in both directions, with atom indices inside the molecule, int32 [2, E]."""
    edge_attr: Tensor
    """Codes of the bonds by ``BOND_FIELDS``, uint8 [E, 3]."""
    sizes: Tensor
    """Atoms of each molecule, [G]."""
    edge_counts: Tensor
    """Bonds of each molecule, both directions, [G]."""
    failed: tuple[Failure, ...]
    """SMILES that could not be read, in order."""
    atom_order: AtomOrder
    """How the atoms are numbered."""
    canonical: tuple[str, ...]
    """Canonical SMILES of each molecule, without atom maps; copies of a molecule have the same."""

    def select_rows(self, rows: Sequence[_Row]) -> list[_Row]:
        """Return the rows of the molecules that could be read, given one row per SMILES."""
        failed = {failure.position for failure in self.failed}
        return [row for position, row in enumerate(rows) if position not in failed]

    def to_dataset(
        self, y: Tensor, name: str, task: Task, targets: tuple[str, ...]
    ) -> GraphDataset:
        """Return a dataset of the molecules that could be read, with one row of ``y`` each."""
        schema = Schema(name, task, targets, Recipe("molecule", atom_order=self.atom_order))
        return GraphDataset(
            self.x, self.edge_index, self.edge_attr, self.sizes, self.edge_counts, y, schema
        )


def read_molecules(smiles: Iterable[str], *, atom_order: AtomOrder = "canonical") -> Molecules:
    """Return SMILES as graphs with OGB's codes.

    Args:
        smiles: One molecule each. Those that rdkit cannot read, that have no atoms or exceed
            a limit of ``gtpool.data.molecule`` are left out and listed in ``failed``.
        atom_order: "canonical" reads rdkit's canonical SMILES of the molecule, so that equivalent
            SMILES give equal tensors; "given" keeps the atom order of the SMILES, as
            ``ogb.utils.mol.smiles2graph`` does.

    Example:
        >>> molecules = read_molecules(["CO", "C1CC", "[Na+]"])
        >>> molecules.sizes.tolist(), molecules.edge_index.tolist()
        ([2, 1], [[0, 1], [1, 0]])
        >>> molecules.failed
        (Failure(position=1, reason='not a valid SMILES'),)
    """
    from rdkit.Chem import Mol  # noqa: PLC0415
    from rdkit.rdBase import BlockLogs  # noqa: PLC0415

    atom_columns, bond_columns = _columns()
    x, edges, edge_attr, sizes, edge_counts = ([] for _ in range(5))
    failed: list[Failure] = []
    canonical: list[str] = []
    with BlockLogs():
        for position, text in enumerate(smiles):
            molecule = _parse(text)
            if isinstance(molecule, str):
                failed.append(Failure(position, molecule))
                continue
            renumbered = _canonical(Mol(molecule), text)
            if atom_order == "canonical":
                molecule = renumbered.molecule
            canonical.append(renumbered.smiles)
            count, bonds = molecule.GetNumAtoms(), molecule.GetNumBonds()
            for atom in map(molecule.GetAtomWithIdx, range(count)):  # faster than GetAtoms()
                x += [codes.get(get(atom), other) for get, codes, other in atom_columns]
            for bond in map(molecule.GetBondWithIdx, range(bonds)):
                ends = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
                edges += (*ends, *ends[::-1])
                edge_attr += 2 * [codes.get(get(bond), other) for get, codes, other in bond_columns]
            sizes.append(count)
            edge_counts.append(2 * bonds)
    return Molecules(
        torch.tensor(x, dtype=torch.uint8).view(-1, len(ATOM_FIELDS)),
        torch.tensor(edges, dtype=torch.int32).view(-1, 2).T.contiguous(),
        torch.tensor(edge_attr, dtype=torch.uint8).view(-1, len(BOND_FIELDS)),
        torch.tensor(sizes, dtype=torch.long),
        torch.tensor(edge_counts, dtype=torch.long),
        tuple(failed),
        atom_order,
        tuple(canonical),
    )


def atom_numbers(smiles: str, atom_order: AtomOrder) -> list[int]:
    """Return, for each node that ``read_molecules`` makes, the index of its atom in the SMILES.

    Example:
        >>> read_molecules(["OCC"]).x[:, 0].add(1).tolist(), atom_numbers("OCC", "canonical")
        ([6, 6, 8], [2, 1, 0])
    """
    from rdkit.rdBase import BlockLogs  # noqa: PLC0415

    with BlockLogs():
        molecule = _parse(smiles)
        if isinstance(molecule, str):
            raise ValueError(f"{smiles[:60]!r}: {molecule}")
        if atom_order == "given":
            return list(range(molecule.GetNumAtoms()))
        return _canonical(molecule, smiles).order


def canonical_molecule(smiles: str) -> "Mol":
    """Return rdkit's molecule, read from its canonical SMILES; a ValueError says what is wrong.

    Example:
        >>> [atom.GetSymbol() for atom in canonical_molecule("OCC").GetAtoms()]
        ['C', 'C', 'O']
    """
    from rdkit.rdBase import BlockLogs  # noqa: PLC0415

    with BlockLogs():
        molecule = _parse(smiles)
        if isinstance(molecule, str):
            raise ValueError(f"{smiles[:60]!r}: {molecule}")
        return _canonical(molecule, smiles)[0]


def scaffolds(smiles: Sequence[str]) -> list[str]:
    """Return the Bemis–Murcko scaffold of each molecule, with chirality; "" without rings.

    Example:
        >>> scaffolds(["Cc1ccccc1O", "CCO"])
        ['c1ccccc1', '']
    """
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles  # noqa: PLC0415
    from rdkit.rdBase import BlockLogs  # noqa: PLC0415

    found: list[str] = []
    with BlockLogs():
        for position, text in enumerate(smiles):
            molecule = _parse(text)
            if isinstance(molecule, str):
                raise ValueError(f"molecule {position} has no scaffold: {molecule} ({text[:80]!r})")
            found.append(MurckoScaffoldSmiles(mol=molecule, includeChirality=True))
    return found


def load_b3db(atom_order: AtomOrder = "canonical") -> GraphDataset:
    """Load B3DB, blood-brain barrier permeability of molecules, from this package.

    rdkit 2026.9.1 rejects two of its 7,807 SMILES, both BBB- (positions 5043 and 7737: a carbon
    cation with four bonds). They are left out, so 7,805 molecules remain, in file order.

    Example:
        >>> data = load_b3db()
        >>> len(data), data.schema.targets, data.y.bincount().tolist()
        (7805, ('BBB-', 'BBB+'), [2849, 4956])
    """
    rows = _b3db_rows()
    targets = ("BBB-", "BBB+")
    molecules = read_molecules([smiles for smiles, _ in rows], atom_order=atom_order)
    y = torch.tensor([targets.index(label) for _, label in molecules.select_rows(rows)])
    return molecules.to_dataset(y, "B3DB", "classes", targets)


def b3db_smiles() -> list[str]:
    """Return the SMILES of each molecule of ``load_b3db``."""
    every = [smiles for smiles, _ in _b3db_rows()]
    return read_molecules(every).select_rows(every)


def _b3db_rows() -> list[list[str]]:
    with gzip.open(_B3DB, "rt", encoding="utf-8") as file:
        return [line.split() for line in file][1:]


def _parse(smiles: str) -> "Mol | str":
    """Return rdkit's molecule, or the reason why it cannot be read."""
    from rdkit import Chem  # noqa: PLC0415

    if not smiles.strip():
        return "the SMILES is empty"
    if len(smiles) > MAX_SMILES:
        return f"longer than {MAX_SMILES} characters"
    unchecked = None
    if smiles.isascii():  # rdkit would read other text up to the first non-ASCII character
        unchecked = cast("Mol | None", Chem.MolFromSmiles(smiles, sanitize=False))
    if unchecked is None:
        return "not a valid SMILES"
    if too_much := exceeded_limit(unchecked):
        return too_much
    molecule = cast("Mol | None", Chem.MolFromSmiles(smiles))
    if molecule is None:
        return _refusal(unchecked)
    return molecule if molecule.GetNumAtoms() else "the molecule has no atoms"


class _Canonical(NamedTuple):
    molecule: "Mol"
    order: list[int]
    """The former index of each atom."""
    smiles: str


def _canonical(molecule: "Mol", smiles: str) -> _Canonical:
    """Return a molecule read from its canonical SMILES.

    Renumbering atoms is not enough: rdkit's chirality tags, which are among the codes, follow the
    order in which a SMILES lists the neighbours of an atom. Molecules with a CXSMILES extension,
    which the canonical SMILES would lose, are renumbered.
    """
    from rdkit import Chem  # noqa: PLC0415

    if ":" in smiles:
        for atom in molecule.GetAtoms():
            atom.SetAtomMapNum(0)  # reaction labels would change the order
    canonical = Chem.MolToSmiles(molecule)
    order = [int(number) for number in molecule.GetProp(_OUTPUT_ORDER).strip("[],").split(",")]
    again = None if "|" in smiles else cast("Mol | None", Chem.MolFromSmiles(canonical))
    if again is None or again.GetNumAtoms() != molecule.GetNumAtoms():
        again = Chem.RenumberAtoms(molecule, order)
    return _Canonical(again, order, canonical)


def _refusal(unchecked: "Mol") -> str:
    """Return why rdkit rejects a molecule that it can parse without sanitising."""
    from rdkit import Chem  # noqa: PLC0415

    try:
        problems = Chem.DetectChemistryProblems(unchecked)
    except RuntimeError:  # raised for some invalid molecules, such as [CH99999]
        problems = ()
    return " ".join(problems[0].Message().split()) if problems else "refused by rdkit"


@cache
def _columns() -> tuple[_Columns, _Columns]:
    """Return getter, codes by value, and the code for other values, of each atom and bond field."""
    from rdkit.Chem import (  # noqa: PLC0415
        Atom,
        Bond,
        BondStereo,
        BondType,
        ChiralType,
        HybridizationType,
    )

    kinds = (ChiralType, HybridizationType, BondType, BondStereo)
    members = {name: member for kind in kinds for name, member in kind.names.items()}

    def columns(
        of: type, getters: Sequence[str], fields: Mapping[str, tuple[_Value, ...]]
    ) -> _Columns:
        return [
            (
                getattr(of, getter),
                {members.get(value, value): code for code, value in enumerate(values)},
                len(values) - 1,
            )
            for getter, values in zip(getters, fields.values(), strict=True)
        ]

    return columns(Atom, _ATOM_GETTERS, ATOM_FIELDS), columns(Bond, _BOND_GETTERS, BOND_FIELDS)


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
