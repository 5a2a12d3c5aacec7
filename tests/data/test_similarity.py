"""Similarity to the training molecules, compared with rdkit's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdkit import Chem
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
from rdkit.DataStructs import BulkTanimotoSimilarity

from gtpool.data import similarity
from gtpool.data.molecule import b3db_smiles
from gtpool.data.similarity import (
    check_fingerprints,
    find_neighbours,
    nearest_similarity,
    training_fingerprints,
)

SMILES = b3db_smiles()[::40]


def rdkit_fingerprints(smiles):
    generator = GetMorganGenerator(radius=2, fpSize=2048)
    return [generator.GetFingerprint(Chem.MolFromSmiles(text)) for text in smiles]


@pytest.mark.parametrize("cells", [1, 500, 1 << 21])
def test_the_nearest_is_that_of_rdkit(cells, monkeypatch):
    monkeypatch.setattr(similarity, "_CELLS", cells)
    train, new = SMILES[:100], SMILES[100:150]
    others = rdkit_fingerprints(train)
    wanted = [max(BulkTanimotoSimilarity(one, others)) for one in rdkit_fingerprints(new)]
    found = [one.similarity for one in find_neighbours(new, training_fingerprints(train))]
    assert found == pytest.approx(wanted, abs=1e-6)


def test_a_training_molecule_is_found_in_any_writing():
    reference = training_fingerprints(["OC(=O)c1ccccc1", "CCO"])
    (found,) = find_neighbours(["c1ccccc1C(=O)O"], reference)
    assert found.similarity == 1
    assert not found.note
    assert not found.is_far


def test_salts_and_distant_molecules_are_noted():
    reference = training_fingerprints(["CCO", "CCCO", "c1ccccc1"])
    salt, ring, far = find_neighbours(["CCO.Cl", "C1.CCO1", "FC(F)(F)S"], reference)
    assert salt.note.startswith("2 fragments (salt or mixture)")
    assert (salt.fragments, ring.fragments) == (2, 1)
    assert far.is_far
    assert far.note == f"unlike the training molecules (similarity {far.similarity:.2f})"


def test_what_rdkit_cannot_read_is_no_training_molecule_and_has_a_remark():
    reference = training_fingerprints(["CCO", "C1CC(", "CCO", "CO"])
    assert len(reference) == 2
    wrong, sound = find_neighbours(["C1CC(", "CO"], reference)
    assert (wrong.similarity, wrong.note) == (0, "rdkit cannot read the SMILES")
    assert sound.similarity == 1


def test_of_many_training_molecules_evenly_spaced_ones_are_stored(monkeypatch):
    monkeypatch.setattr(similarity, "MAX_REFERENCES", 10)
    found = training_fingerprints(SMILES[:100])
    assert np.array_equal(found, training_fingerprints(SMILES[:100:10]))


@given(st.lists(st.binary(min_size=256, max_size=256), min_size=2, max_size=12))
def test_similarities_are_shares_and_highest_for_itself(rows):
    bits = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), 256)
    found = nearest_similarity(bits, bits)
    some = bits.any(1)
    assert (found[some] == 1).all()
    assert (found[~some] == 0).all()
    alone = nearest_similarity(bits, bits[:1])
    assert ((alone >= 0) & (alone <= found)).all()


@pytest.mark.parametrize(
    "bits",
    [np.zeros((2, 8), np.uint8), np.zeros((0, 256), np.uint8), np.zeros((1, 256), np.int8)],
)
def test_other_fingerprints_are_refused(bits):
    with pytest.raises(
        ValueError, match=r"mine: fingerprints .* must be uint8, \[molecules, 256\]"
    ):
        check_fingerprints(bits, "mine")
