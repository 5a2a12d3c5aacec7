from types import SimpleNamespace

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import Descriptors

from gtpool.data import graph_features
from gtpool.data.graph_features import describe_molecules, descriptor_names, load_descriptors
from gtpool.data.parallel import watched_by
from gtpool.data.schema import FLOAT32_MAX

SALT = "O=C([O-])c1ccccc1.[Na+]"


def column(matrix, name, names=("rdkit2d",)):
    return matrix[:, descriptor_names(names).index(name)]


def test_descriptors_are_rdkits():
    smiles = ["CCO", "c1ccccc1O", SALT]
    found = describe_molecules(smiles, ["rdkit2d"])
    assert found.dtype == np.float32
    for name in ("MolWt", "TPSA", "qed", "fr_phenol"):
        wanted = [getattr(Descriptors, name)(Chem.MolFromSmiles(text)) for text in smiles]
        assert column(found, name) == pytest.approx(wanted)


def test_morgan_bits_are_logarithms_of_counts():
    found = describe_molecules(["CC"], ["morgan"])
    assert found.shape == (1, 2048)
    # The carbon twice; the neighbourhoods of radius 1 have the same bond and count once.
    assert sorted(found[found > 0].tolist()) == pytest.approx([np.log(2), np.log(3)])


def test_columns_follow_the_order_of_the_sets():
    names = ("morgan", "rdkit2d")
    found = describe_molecules(["CCO"], names)
    assert found.shape[1] == len(descriptor_names(names)) == len(set(descriptor_names(names)))
    assert column(found, "MolWt", names) == column(
        describe_molecules(["CCO"], ["rdkit2d"]), "MolWt"
    )


def test_equivalent_smiles_have_equal_descriptors():
    pairs = [
        ("OCC", "CCO"),
        ("c1ccccc1[C@H](F)Cl", "Cl[C@@H](F)c1ccccc1"),
        (SALT, SALT[-5:] + "." + SALT[:-6]),
    ]
    for one, other in pairs:
        both = describe_molecules([one, other], ["rdkit2d", "morgan"])
        np.testing.assert_array_equal(both[0], both[1])


def test_missing_descriptors_are_nan_and_no_number_overflows():
    metal, chain, long = describe_molecules(["[Na+].[Cl-]", "C" * 200, "C" * 900], ["rdkit2d"])
    assert np.isnan(metal).sum() > 0
    assert np.isfinite(metal).sum() > 200  # the others are not lost
    assert np.isfinite(chain).all()
    assert (np.abs(chain) <= np.float32(FLOAT32_MAX)).all()
    assert column(chain[None], "Ipc") == np.float32(FLOAT32_MAX)  # 3e56 by rdkit
    assert np.isnan(long).all()  # would take a minute


def test_no_molecules_and_no_sets_have_shapes():
    assert describe_molecules([], ["morgan"]).shape == (0, 2048)
    assert describe_molecules(["C"], []).shape == load_descriptors(["C"], []).shape == (1, 0)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["rdkit"], "unknown molecule features 'rdkit'; did you mean 'rdkit2d'?"),
        (["morgan", "morgan"], "'morgan' are given twice"),
    ],
)
def test_wrong_names_are_refused(names, told):
    with pytest.raises(ValueError, match="molecule features") as error:
        load_descriptors(["C"], names)
    assert told in str(error.value)


def test_an_unreadable_molecule_is_named():
    with pytest.raises(ValueError, match="'C1CC': not a valid SMILES"):
        describe_molecules(["C", "C1CC"], ["morgan"])


def test_cached_descriptors_are_computed_once(monkeypatch, tmp_path):
    monkeypatch.setenv("GTPOOL_CACHE", str(tmp_path))
    names = ["rdkit2d", "morgan"]
    first = load_descriptors(["CCO", SALT], names)
    np.testing.assert_array_equal(first, describe_molecules(["CCO", SALT], names))
    monkeypatch.setattr(graph_features, "_value", None)  # rdkit2d cannot be computed again
    np.testing.assert_array_equal(load_descriptors(["CCO", SALT], names), first)
    with pytest.raises(TypeError):
        load_descriptors([SALT, "CCO"], names)


def test_a_damaged_or_unwritable_cache_changes_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("GTPOOL_CACHE", str(tmp_path))
    first = load_descriptors(["CCO"], ["rdkit2d"])
    for file in tmp_path.rglob("*.safetensors"):
        file.write_bytes(b"damaged")
    np.testing.assert_array_equal(load_descriptors(["CCO"], ["rdkit2d"]), first)
    (tmp_path / "file").touch()
    monkeypatch.setenv("GTPOOL_CACHE", str(tmp_path / "file"))
    np.testing.assert_array_equal(load_descriptors(["CCO"], ["rdkit2d"]), first)


def test_many_molecules_are_described_by_several_processes_with_progress(monkeypatch):
    monkeypatch.setattr(graph_features, "_MIN_PARALLEL", 4)
    monkeypatch.setattr(graph_features, "_CHUNK", 2)
    monkeypatch.setattr(graph_features, "_SLOW", ("morgan",))
    told: list[tuple[str, int, int]] = []
    watcher = SimpleNamespace(preparing=lambda *progress: told.append(progress))
    smiles = ["CCO", "c1ccccc1", "CC", "CCN", "O"]
    with watched_by(watcher):
        found = load_descriptors(smiles, ["morgan"])
    np.testing.assert_array_equal(found, describe_molecules(smiles, ["morgan"]))
    assert told == [("descriptors of molecules", done, 5) for done in (2, 4, 5)]
