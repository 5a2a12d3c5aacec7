import csv
import gzip
import hashlib
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gtpool.data import molecule
from gtpool.data.molecule import (
    ATOM_FIELDS,
    ATOM_SIZES,
    BOND_FIELDS,
    BOND_SIZES,
    atom_numbers,
    load_b3db,
    read_molecules,
    scaffolds,
)

FIXTURE = Path(__file__).parents[1] / "fixtures" / "ogb_smiles2graph.json.gz"
GOLDEN = json.loads(gzip.decompress(FIXTURE.read_bytes()))
SMILES = [row["smiles"] for row in GOLDEN]
UNREADABLE = ["", "  ", "C1CC", "c1cccc1", "CN(C)(C)C", "ethanol", "[Xx]", "C(", "é", "C\0C"]
READABLE = ["C", "[Na+]", "[Na+].[Cl-]", "c1ccncc1", "F/C=C/F", "C[C@H](N)C(=O)O", "CCO"]


def graph(row):
    """Give OGB's node features, edges and edge features as tensors."""
    shapes = {"node_feat": (-1, 9), "edge_index": (2, -1), "edge_feat": (-1, 3)}
    return [
        torch.from_numpy(np.asarray(row[key], np.int64).reshape(shape))
        for key, shape in shapes.items()
    ]


def assert_equal_to_ogb(rows):
    ours = read_molecules([row["smiles"] for row in rows], atom_order="given")
    assert not ours.failed
    x, edge_index, edge_attr = zip(*map(graph, rows), strict=True)
    assert ours.sizes.tolist() == [part.size(0) for part in x]
    assert ours.edge_counts.tolist() == [part.size(0) for part in edge_attr]
    for kind, (mine, theirs) in {
        "atoms": (ours.x, torch.cat(x)),
        "bonds": (ours.edge_attr, torch.cat(edge_attr)),
        "edges": (ours.edge_index, torch.cat(edge_index, 1)),
    }.items():
        assert torch.equal(mine.long(), theirs), kind


def test_codes_equal_ogb_as_recorded():
    assert len(GOLDEN) > 400
    assert_equal_to_ogb(GOLDEN)


def test_the_recorded_molecules_reach_the_last_code_of_every_open_vocabulary():
    ours = read_molecules(SMILES)
    last = dict(zip(ATOM_FIELDS, ours.x.amax(0).tolist(), strict=True))
    assert last == dict(zip(ATOM_FIELDS, [size - 1 for size in ATOM_SIZES], strict=True)) | {
        "radical_electrons": 4
    }
    assert ours.edge_attr.amax(0).tolist() == [size - 1 for size in BOND_SIZES]


def test_codes_equal_ogb_itself():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ogb = pytest.importorskip("ogb.utils", reason="ogb is no dependency; the recording stands")
    assert_equal_to_ogb([{"smiles": text} | ogb.smiles2graph(text) for text in SMILES])
    assert list(ATOM_SIZES) == ogb.features.get_atom_feature_dims()
    assert list(BOND_SIZES) == ogb.features.get_bond_feature_dims()


def test_codes_equal_those_that_ogb_distributes_for_molbbbp(data_dir):
    folder = data_dir / "OGB" / "ogbg_molbbbp"

    def numbers(name):
        text = gzip.decompress((folder / "raw" / f"{name}.csv.gz").read_bytes()).decode()
        return torch.tensor([[int(cell) for cell in row] for row in csv.reader(text.splitlines())])

    mapping = gzip.decompress((folder / "mapping" / "mol.csv.gz").read_bytes()).decode()
    ours = read_molecules(
        [row["smiles"] for row in csv.DictReader(mapping.splitlines())], atom_order="given"
    )
    assert not ours.failed
    assert torch.equal(ours.sizes[:, None], numbers("num-node-list"))
    # The files list each bond once, smiles2graph in both directions, one after the other.
    assert torch.equal(ours.edge_counts[:, None], 2 * numbers("num-edge-list"))
    atoms = (ours.x == numbers("node-feat")).all(1)
    bonds = (ours.edge_attr[::2] == numbers("edge-feat")).all(1)
    bonds &= (numbers("edge") == ours.edge_index[:, ::2].T).all(1)
    assert (atoms.numel(), bonds.numel()) == (49_068, 52_921)
    # Between rdkit's version of OGB (2019) and 2026.9.1 no atom and no bond differs.
    assert atoms.double().mean() >= 0.999, f"{int((~atoms).sum())} atoms differ"
    assert bonds.double().mean() >= 0.999, f"{int((~bonds).sum())} bonds differ"


def test_sizes_of_the_vocabularies():
    assert ATOM_SIZES == (119, 5, 12, 12, 10, 6, 6, 2, 2)
    assert BOND_SIZES == (5, 6, 2)


def test_a_stereo_that_ogb_cannot_code_is_stereo_any():
    atropisomer = "Cc1cccc(I)c1-c1c(C)cccc1Br |wU:7.7|"
    stereo = read_molecules([atropisomer]).edge_attr[:, list(BOND_FIELDS).index("stereo")]
    assert stereo.max() == BOND_FIELDS["stereo"].index("STEREOANY")


def test_molecules_without_bonds_are_kept():
    ours = read_molecules(["[Na+]", "C", "[Na+].[Cl-]"])
    assert ours.sizes.tolist() == [1, 1, 2]
    assert ours.edge_counts.tolist() == [0, 0, 0]
    assert ours.edge_index.shape == (2, 0)
    assert ours.edge_attr.shape == (0, 3)
    data = ours.to_dataset(torch.tensor([0, 1, 0]), "salts", "classes", ("a", "b"))
    assert data.take([2, 1]).x.shape == (3, 9)


def test_no_molecule_at_all_gives_empty_tensors():
    ours = read_molecules(["C1CC"])
    assert (ours.x.shape, ours.edge_index.shape, ours.sizes.shape) == ((0, 9), (2, 0), (0,))


@pytest.mark.parametrize(
    ("smiles", "reason"),
    [
        ("", "the SMILES is empty"),
        ("C1CC", "not a valid SMILES"),
        ("ethanol", "not a valid SMILES"),
        ("CN(C)(C)C", "Explicit valence for atom # 1 N, 4, is greater than permitted"),
        ("c1cccc1", "Can't kekulize mol. Unkekulized atoms: 0 1 2 3 4"),
        ("|foo|", "not a valid SMILES"),
        ("C" * 5001, "longer than 5000 characters"),
    ],
)
def test_failures_carry_a_reason(smiles, reason):
    assert read_molecules([smiles]).failed == ((0, reason),)


def test_a_smiles_of_the_longest_length_is_read():
    assert read_molecules(["[CH2]" * (molecule.MAX_SMILES // 5)]).sizes.tolist() == [1000]


def necklace(rings: int) -> str:
    """Six-membered rings linked through opposite atoms into one large ring, as cyclodextrins."""
    return f"C1{'C%10CCC(CC%10)' * rings}C1"


C60 = (
    "c12c3c4c5c1c1c6c7c2c2c8c3c3c9c4c4c%10c5c5c1c1c6c6c%11c7c2c2c7c8c3c3c8c9c4c4c9c%10c5c5c1c1c6c6c"
    "%11c2c2c7c3c3c8c4c4c9c5c1c1c6c2c3c41"
)


@pytest.mark.parametrize(
    ("smiles", "reason"),
    [
        ("C" * 2001, "more than 2000 atoms"),
        ("*1**1" * 101, "more than 100 rings"),
        (".".join(["F[C@H](Cl)C"] * 400), "fragments"),  # 3 s of rdkit for the canonical order
        (".".join(["O"] * 201), "fragments"),
        (necklace(16), "cycles"),  # 65,552 of them: 0.9 s and 70 MB of rdkit
        (necklace(40) + "." + necklace(8), "cycles"),  # more than 32 bits can count
        ("*" + "(*)" * 16 + "*1**1" * 13, "neighbours"),
    ],
)
def test_a_molecule_too_dense_for_rdkit_is_refused(smiles, reason):
    (failure,) = read_molecules([smiles]).failed
    assert reason in failure.reason


def test_large_and_dense_molecules_of_chemists_are_read():
    peptide = "N[C@@H](Cc1c[nH]c2ccccc12)C(=O)" * 40 + "O"
    read = read_molecules(["C" * 2000, necklace(10), C60, peptide])
    assert read.sizes.tolist() == [2000, 62, 60, 561]


def test_rdkit_is_silent_inside_the_call_and_talks_again_after_it():
    program = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from gtpool.data.molecule import read_molecules, scaffolds\n"
        "import sys\n"
        "assert 'rdkit' not in sys.modules, 'rdkit is imported before it is needed'\n"
        "read_molecules(['C1CC', 'c1cccc1']); scaffolds(['CCO'])\n"
        "from rdkit import Chem\n"
        "print('now', file=sys.stderr, flush=True); Chem.MolFromSmiles('C1CC')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    before, after = done.stderr.split("now\n")
    assert before == ""
    assert "C1CC" in after


@given(st.lists(st.sampled_from(READABLE + UNREADABLE), min_size=1, max_size=8))
def test_a_list_gives_what_its_molecules_give_one_by_one(smiles):
    ours = read_molecules(smiles)
    assert [failure.position for failure in ours.failed] == [
        position for position, text in enumerate(smiles) if text in UNREADABLE
    ]
    kept = ours.select_rows(smiles)
    assert kept == [text for text in smiles if text in READABLE]
    alone = [read_molecules([text]) for text in kept]
    assert ours.sizes.tolist() == [int(part.sizes) for part in alone]
    assert ours.edge_counts.tolist() == [int(part.edge_counts) for part in alone]
    if alone:
        assert torch.equal(ours.x, torch.cat([part.x for part in alone]))
        assert torch.equal(ours.edge_index, torch.cat([part.edge_index for part in alone], 1))
        assert torch.equal(ours.edge_attr, torch.cat([part.edge_attr for part in alone]))


@given(st.lists(st.text("CNOSclno[]()=#123+-@/\\%. |:*", max_size=12) | st.text(max_size=5)))
def test_any_text_is_read_or_named(smiles):
    ours = read_molecules(smiles)
    assert len(ours.sizes) + len(ours.failed) == len(smiles)
    assert all(failure.reason for failure in ours.failed)
    assert (ours.sizes > 0).all()
    assert (ours.x < torch.tensor(ATOM_SIZES)).all()
    assert (ours.edge_attr < torch.tensor(BOND_SIZES)).all()
    there, back = ours.edge_index[:, ::2], ours.edge_index[:, 1::2]
    assert torch.equal(there, back.flip(0))
    assert torch.equal(ours.edge_attr[::2], ours.edge_attr[1::2])


def test_scaffolds_keep_chirality_and_are_empty_without_a_ring():
    left, right, flat, chain = scaffolds(
        ["C[C@H]1CCO[C@@H]1c1ccccc1", "C[C@@H]1CCO[C@H]1c1ccccc1", "CC1CCOC1c1ccccc1", "CCO"]
    )
    assert len({left, right, flat}) == 3
    assert flat == "c1ccc(C2CCCO2)cc1"
    assert chain == ""


def test_scaffolds_refuse_what_is_no_molecule():
    with pytest.raises(ValueError, match=r"molecule 1 .* not a valid SMILES \('C1CC'\)"):
        scaffolds(["CCO", "C1CC"])


@pytest.mark.slow
def test_b3db_is_the_published_table_less_two_molecules():
    data = load_b3db()
    assert (data.schema.name, data.schema.task) == ("B3DB", "classes")
    assert data.schema.targets == ("BBB-", "BBB+")
    assert data.schema.recipe.kind == "molecule"
    packed = molecule._B3DB.read_bytes()
    assert hashlib.sha256(packed).hexdigest() in (molecule._B3DB.parent / "SOURCE.txt").read_text()
    rows = [line.split("\t") for line in gzip.decompress(packed).decode().splitlines()]
    assert rows.pop(0) == ["smiles", "bbb"]
    assert len(rows) == 7807
    lost = [rows.pop(position) for position in (7737, 5043)]
    assert len(read_molecules([smiles for smiles, _ in lost]).failed) == 2
    labels = [label for _, label in rows]
    assert [data.schema.targets[code] for code in data.y.tolist()] == labels
    for position in (0, 5042, 5043, 7804):  # also those beside the gaps
        alone = read_molecules([rows[position][0]])
        assert torch.equal(data.take([position]).x, alone.x.long())


@pytest.mark.parametrize("smiles", ["[CH99999]", "Cé"])
def test_what_rdkit_chokes_on_is_refused(smiles):
    read = read_molecules(["CCO", smiles])
    assert [failure.position for failure in read.failed] == [1]


def writings(smiles: str, count: int = 9) -> list[str]:
    """Other ways to write a molecule, by rdkit's own random order."""
    from rdkit import Chem  # noqa: PLC0415

    read = Chem.MolFromSmiles(smiles)
    return Chem.MolToRandomSmilesVect(read, count, randomSeed=1)


CHIRAL = "C[C@H](N)C(=O)N[C@@H](CC1=CNC2=CC=CC=C21)C(=O)O"


def test_every_way_to_write_a_molecule_gives_the_same_tensors():
    for smiles in [CHIRAL, "F/C=C/c1ccc(O)cc1", "[Na+].[Cl-].OCC", *load_smiles(60)]:
        one = read_molecules([smiles])
        for other in writings(smiles):
            again = read_molecules([other])
            assert torch.equal(one.x, again.x), (smiles, other)
            assert torch.equal(one.edge_index, again.edge_index), (smiles, other)
            assert torch.equal(one.edge_attr, again.edge_attr), (smiles, other)


def load_smiles(count: int) -> list[str]:
    with gzip.open(molecule._B3DB, "rt", encoding="utf-8") as file:
        rows = [line.split()[0] for line in file][1:]
    return rows[:: len(rows) // count]


def test_numbers_of_a_reaction_do_not_change_the_order():
    plain, mapped = read_molecules(["CCO"]), read_molecules(["[OH:1][CH2:3][CH3:2]"])
    assert torch.equal(plain.x, mapped.x)


def test_canonical_atoms_are_those_of_the_smiles_by_their_numbers():
    for smiles in [*SMILES[:100], *(text for text in SMILES if "|" in text)]:
        given = read_molecules([smiles], atom_order="given")
        ours, numbers = read_molecules([smiles]), atom_numbers(smiles, "canonical")
        chirality = list(ATOM_FIELDS).index("chirality")  # a tag that follows the writing
        same = given.x[numbers] == ours.x
        assert same[:, [column for column in range(9) if column != chirality]].all(), smiles
        bonds = {tuple(pair) for pair in given.edge_index.T.tolist()}
        assert {(numbers[a], numbers[b]) for a, b in ours.edge_index.T.tolist()} == bonds
        assert atom_numbers(smiles, "given") == list(range(len(numbers)))
