import gzip
import shutil
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from gtpool.data.dataset import GraphDataset
from gtpool.data.locate import (
    EMBEDDED,
    cache_dir,
    download,
    download_folds,
    find_raw,
    locate,
    splits_folder,
)
from gtpool.data.registry import DATASETS, dataset_info
from gtpool.data.sources import load

SLOW = ("ogbg-molhiv", "ogbg-moltoxcast", "B3DB")
WIDTHS = {
    "MUTAG": 7,
    "ENZYMES": 21,
    "PROTEINS": 4,
    "PTC_MR": 18,
    "Synthie": 15,
    "IMDB-BINARY": 136,
    "IMDB-MULTI": 89,
}
MADE = {"long-range": 3, "low-scores": 4}


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A machine without data, with an empty cache and no network."""
    monkeypatch.delenv("GTPOOL_DATA", raising=False)
    monkeypatch.setenv("GTPOOL_CACHE", str(tmp_path / "cache"))
    for proxy in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path


def put(root, name="PTC_MR"):
    """Lay MUTAG's graphs out in a data folder under another name."""
    folder = root / "TU" / name / "raw"
    folder.mkdir(parents=True)
    for path in (EMBEDDED / "MUTAG").glob("MUTAG_*.txt"):
        shutil.copy(path, folder / path.name.replace("MUTAG", name))
    return folder


def entries(folder):
    return sorted(path.name for path in (folder / "graphs").iterdir())


def same(one, other):
    parts = ("x", "edge_index", "edge_attr", "sizes", "edge_counts", "y")
    return one.schema == other.schema and all(
        torch.equal(getattr(one, part), getattr(other, part)) for part in parts
    )


def marked(name):
    return pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])


@pytest.mark.parametrize("name", [marked(name) for name in DATASETS])
def test_the_facts_of_a_dataset_hold(data_dir, name):
    assert_facts(name, load(name, data_dir=data_dir))


def assert_facts(name, data):
    source = DATASETS[name]
    assert len(data) == source.graphs
    assert data.schema.name == name
    assert data.schema.task == ("classes" if source.tasks is None else "binary")
    assert data.schema.num_outputs == (source.classes or source.tasks)
    assert f"{data.sizes.double().mean():.2f}" == f"{source.mean_nodes:.2f}"
    assert f"{data.edge_counts.double().mean() / 2:.2f}" == f"{source.mean_edges:.2f}"
    assert data.num_features == (WIDTHS | MADE).get(name, 9)


def test_the_registry_knows_the_eleven_the_embedded_and_the_synthetic():
    assert [name for name, source in DATASETS.items() if source.family == "TU"] == list(WIDTHS)
    assert sum(source.family == "OGB" for source in DATASETS.values()) == 4
    assert [name for name, source in DATASETS.items() if source.family == "synthetic"] == list(MADE)
    assert len(DATASETS) == 14
    for name, source in DATASETS.items():
        assert (source.classes is None) != (source.tasks is None)
        assert source.url == "" if name in MADE else source.url.startswith("https://")
        assert source.licence
        assert source.citation


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("mutag", "MUTAG"), ("PROTIENS", "PROTEINS"), ("ogbg_molhiv", "ogbg-molhiv")],
)
def test_an_unknown_name_gets_the_nearest(wrong, meant):
    with pytest.raises(ValueError, match=rf"'{wrong}'; did you mean {meant}\? known are MUTAG, E"):
        load(wrong)


def test_a_name_that_is_near_none():
    with pytest.raises(ValueError, match="no dataset 'xyzzy'; known are MUTAG"):
        dataset_info("xyzzy")


def test_the_order_of_look_up(alone, monkeypatch):
    assert locate("PTC_MR") == ("download", None)
    assert locate("MUTAG") == ("embedded", EMBEDDED / "MUTAG")
    cached = put(alone / "cache" / "raw")
    put(alone / "cache" / "raw", "MUTAG")
    assert locate("PTC_MR") == ("cache", cached)
    assert locate("MUTAG").origin == "embedded"
    named = put(alone / "named")
    put(alone / "named", "MUTAG")
    monkeypatch.setenv("GTPOOL_DATA", str(alone / "named"))
    assert locate("PTC_MR") == ("GTPOOL_DATA", named)
    assert locate("MUTAG").origin == "GTPOOL_DATA"
    given = put(alone / "given")
    assert locate("PTC_MR", alone / "given") == ("--data-dir", given)
    assert locate("MUTAG", alone / "given").origin == "GTPOOL_DATA"
    assert find_raw("PTC_MR", alone / "given") == given


@pytest.mark.parametrize("name", MADE)
def test_a_synthetic_set_is_made_on_the_spot_and_always_the_same(name, alone):
    data, again = load(name), load(name)
    assert_facts(name, data)
    assert data.schema == again.schema
    assert torch.equal(data.x, again.x)
    assert torch.equal(data.edge_index, again.edge_index)
    assert locate(name) == ("made", None)
    assert not (alone / "cache").exists()
    with pytest.raises(ValueError, match="no files"):
        find_raw(name)
    with pytest.raises(ValueError, match="features='fair'"):
        load(name, features="fair")


def test_a_data_folder_that_is_not_there(alone, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"--data-dir names .*nowhere, which is not a"):
        load("MUTAG", data_dir=alone / "nowhere")
    monkeypatch.setenv("GTPOOL_DATA", str(alone / "gone"))
    with pytest.raises(FileNotFoundError, match=r"GTPOOL_DATA names .*gone, which is not a folder"):
        load("MUTAG")


def test_the_cache_follows_the_environment(monkeypatch):
    monkeypatch.setenv("GTPOOL_CACHE", "/a/b")
    assert cache_dir() == Path("/a/b")
    monkeypatch.delenv("GTPOOL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/gtpool")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "gtpool"


def test_without_files_and_network_one_line_says_what_to_do(alone):
    with pytest.raises(OSError, match=r"PROTEINS\.zip .*refused") as error:
        load("PROTEINS")
    assert "$GTPOOL_DATA/TU/PROTEINS/raw/PROTEINS_A.txt" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(OSError, match=r"\$GTPOOL_DATA/OGB/ogbg_molhiv/raw/edge.csv.gz"):
        load("ogbg-molhiv")
    assert not list(alone.rglob("*.part"))


def test_a_file_that_is_missing_beside_the_others_is_named(alone):
    (put(alone) / "PTC_MR_graph_labels.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"PTC_MR_graph_labels\.txt is missing"):
        load("PTC_MR", data_dir=alone)


def test_what_was_made_is_used_again_and_nothing_is_written_beside_the_files(alone):
    folder = put(alone / "data")
    before = sorted((path, path.stat().st_mtime_ns) for path in (alone / "data").rglob("*"))
    first = load("PTC_MR", data_dir=alone / "data")
    (entry,) = (alone / "cache" / "graphs").iterdir()
    saved = (entry / "graphs.safetensors").stat().st_ino
    assert same(load("PTC_MR", data_dir=alone / "data"), first)
    assert (entry / "graphs.safetensors").stat().st_ino == saved
    after = sorted((path, path.stat().st_mtime_ns) for path in (alone / "data").rglob("*"))
    assert before == after
    assert folder.is_dir()


def test_each_kind_of_features_has_its_own_entry(alone):
    plain, constant = load("MUTAG"), load("MUTAG", features="constant")
    assert (plain.num_features, constant.num_features) == (7, 1)
    assert (load("MUTAG").num_features, len(entries(alone / "cache"))) == (7, 2)
    with pytest.raises(ValueError, match="unknown features 'gtm'; choose one of gmt"):
        load("MUTAG", features="gtm")


def test_a_changed_file_is_noticed(alone):
    folder = put(alone / "data")
    before = load("PTC_MR", data_dir=alone / "data")
    labels = folder / "PTC_MR_graph_labels.txt"
    labels.write_text(labels.read_text().replace("-1", "0"))
    after = load("PTC_MR", data_dir=alone / "data")
    assert (before.schema.targets, after.schema.targets) == (("-1", "1"), ("0", "1"))
    assert len(entries(alone / "cache")) == 1


@pytest.mark.parametrize("part", ["graphs.safetensors", "schema.json"])
@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda _: b"", None])
def test_a_damaged_entry_is_made_anew(alone, part, damage):
    first = load("MUTAG")
    (entry,) = (alone / "cache" / "graphs").iterdir()
    content = (entry / part).read_bytes()
    (entry / part).unlink()
    if damage is not None:
        (entry / part).write_bytes(damage(content))
    assert same(load("MUTAG"), first)
    assert (entry / part).read_bytes() == content


def test_a_cache_that_cannot_be_written_costs_a_warning(alone, monkeypatch):
    (alone / "file").write_text("not a folder")
    monkeypatch.setenv("GTPOOL_CACHE", str(alone / "file" / "cache"))
    with pytest.warns(UserWarning, match="MUTAG .*GTPOOL_CACHE") as told:
        assert len(load("MUTAG")) == 188
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    assert told[0].filename == __file__


def test_many_at_once(alone):
    with ThreadPoolExecutor(8) as pool:
        loaded = list(pool.map(load, ["MUTAG"] * 40))
    assert all(same(one, loaded[0]) for one in loaded)
    (entry,) = entries(alone / "cache")
    assert same(GraphDataset.load(alone / "cache" / "graphs" / entry), loaded[0])


def test_molecules_have_features_of_their_own(data_dir):
    with pytest.raises(ValueError, match="features='fair'"):
        load("ogbg-molbbbp", data_dir=data_dir, features="fair")


@pytest.fixture
def server(alone):
    """A web server of the folder ``alone / "web"``."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    (alone / "web").mkdir()
    handler = partial(Handler, directory=alone / "web")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def pack(archive, folder, top):
    with zipfile.ZipFile(archive, "w") as packed:
        for path in folder.rglob("*"):
            packed.write(path, f"{top}/{path.relative_to(folder)}")


def test_an_archive_of_tu_is_unpacked_where_it_is_looked_for(alone, server):
    pack(alone / "web" / "PTC_MR.zip", put(alone / "data"), "PTC_MR")
    source = replace(DATASETS["PTC_MR"], url=f"{server}/PTC_MR.zip")
    folder = download("PTC_MR", source)
    assert locate("PTC_MR") == ("cache", folder)
    assert same(load("PTC_MR"), load("PTC_MR", data_dir=alone / "data"))
    assert [path.name for path in folder.parents[1].iterdir()] == ["PTC_MR"]


def test_an_archive_of_ogb_is_unpacked_where_it_is_looked_for(alone, server, data_dir):
    pack(alone / "web" / "bbbp.zip", data_dir / "OGB" / "ogbg_molbbbp", "bbbp")
    download("ogbg-molbbbp", replace(DATASETS["ogbg-molbbbp"], url=f"{server}/bbbp.zip"))
    assert len(load("ogbg-molbbbp")) == 2039
    assert (find_raw("ogbg-molbbbp") / "split" / "scaffold" / "test.csv.gz").exists()


def test_an_archive_that_is_none_leaves_nothing(alone, server):
    (alone / "web" / "PTC_MR.zip").write_text("<html>sorry</html>")
    source = replace(DATASETS["PTC_MR"], url=f"{server}/PTC_MR.zip")
    with pytest.raises(ValueError, match="not a sound zip file"):
        download("PTC_MR", source)
    assert not [path for path in (alone / "cache").rglob("*") if path.is_file()]
    with pytest.raises(OSError, match="404"):
        download("PTC_MR", replace(source, url=f"{server}/gone.zip"))


def test_the_folds_are_downloaded_whole_or_not_at_all(alone, server, data_dir):
    served = alone / "web" / "MUTAG" / "10fold_idx"
    shutil.copytree(data_dir / "splits" / "10fold_idx" / "MUTAG", served)
    assert splits_folder("MUTAG") is None
    folder = download_folds("MUTAG", DATASETS["MUTAG"], server)
    assert splits_folder("MUTAG") == folder
    assert len(list(folder.iterdir())) == 20
    shutil.rmtree(folder)

    (served / "test_idx-10.txt").write_text("0\n")
    with pytest.raises(ValueError, match=r"folds of MUTAG at .* are not those of the GMT protocol"):
        download_folds("MUTAG", DATASETS["MUTAG"], server)
    (served / "test_idx-10.txt").unlink()
    with pytest.raises(OSError, match=r"test_idx-10\.txt"):
        download_folds("MUTAG", DATASETS["MUTAG"], server)
    assert splits_folder("MUTAG") is None
    assert list(folder.parent.iterdir()) == []


def test_all_known_folds_have_their_digest(alone, server, data_dir):
    for name in WIDTHS:
        (alone / "web" / name).mkdir()
        served = alone / "web" / name / "10fold_idx"
        served.symlink_to((data_dir / "splits" / "10fold_idx" / name).resolve())
        assert download_folds(name, DATASETS[name], server).name == name
    with pytest.raises(ValueError, match="B3DB has no fixed folds"):
        download_folds("B3DB", DATASETS["B3DB"], server)


def test_a_folder_of_the_users_in_tu_format(alone):
    mine = alone / "mine"
    shutil.copytree(put(alone, "PTC_MR"), mine)
    data = load(mine)
    assert (data.schema.name, len(data), data.num_features) == ("PTC_MR", 188, 7)
    assert load(str(mine), features="degree").num_features == 5
    assert not (alone / "cache").exists()


def test_a_saved_folder(alone):
    load("MUTAG").save(alone / "saved")
    assert same(load(alone / "saved"), load("MUTAG"))


def test_a_folder_in_ogb_format(data_dir):
    assert len(load(data_dir / "OGB" / "ogbg_molbbbp")) == 2039


def test_a_name_wins_over_a_folder_of_that_name(alone, monkeypatch):
    shutil.copytree(put(alone / "data"), alone / "MUTAG")
    monkeypatch.chdir(alone)
    assert load("MUTAG").schema.name == "MUTAG"
    assert load(Path("MUTAG")).schema.name == "PTC_MR"
    assert load("./MUTAG").schema.name == "PTC_MR"


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz", ".CSV", ".Tsv", ".CSV.GZ"])
def test_a_table_of_smiles(alone, ending):
    between = "\t" if ending.lower() == ".tsv" else ","
    rows = [("smiles", "y"), *[("CCO", "a"), ("c1ccccc1", "b")] * 5]
    text = "".join(f"{between.join(row)}\n" for row in rows).encode()
    path = alone / f"mine{ending}"
    path.write_bytes(gzip.compress(text) if ending.lower().endswith("gz") else text)
    data = load(path)
    assert (len(data), data.schema.targets, data.num_features) == (10, ("a", "b"), 9)
    with pytest.raises(ValueError, match="own features"):
        load(path, features="degree")


def test_rows_that_cannot_be_used_are_counted(alone):
    path = alone / "mine.csv"
    path.write_text("smiles,y\nCCO,a\nC1C,b\nC(,a\nCC,b\n")
    with pytest.warns(UserWarning, match=r"mine\.csv: rows left out: 2, e\.g\. line 3: ") as told:
        assert len(load(path)) == 2
    assert told[0].filename == __file__


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".JSONL", ".Jsonl.GZ"])
def test_graphs_in_json_lines(alone, ending):
    lines = b"".join(
        b'{"nodes": %d, "edges": [[0, 1], [1, 0]], "label": "%s"}\n' % graph
        for graph in [(2, b"small"), (3, b"large")]
    )
    path = alone / f"mine{ending}"
    path.write_bytes(gzip.compress(lines) if ending.lower().endswith("gz") else lines)
    data = load(path)
    assert (data.sizes.tolist(), data.schema.targets) == ([2, 3], ("large", "small"))
    assert load(path, features="constant").num_features == 1


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nowhere/data.csv", "there is no file or folder nowhere/data.csv"),
        ("data.csv", "there is no file or folder data.csv"),
        ("picture.png", r"its name must end in \.csv, \.tsv, \.tab or \.jsonl"),
        ("empty", "holds no graphs: neither NAME_A.txt"),
    ],
)
def test_a_path_that_cannot_be_read(alone, monkeypatch, path, reason):
    monkeypatch.chdir(alone)
    Path("picture.png").write_bytes(b"")
    Path("empty").mkdir()
    with pytest.raises((ValueError, FileNotFoundError), match=reason):
        load(path)
