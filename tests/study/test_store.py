import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

from gtpool.study.result import RunResult
from gtpool.study.store import Store, collect, locate_rows, read_rows, write_atomic

ROW = {
    "key": "abc",
    "status": "done",
    "spec": {"seed": 42},
    "metric": "accuracy",
    "higher_is_better": True,
    "test": 0.5,
    "valid_loss": 0.7,
    "valid_metric": 0.6,
    "epoch": 2,
    "epochs_run": 2,
    "other_rules": {},
    "split": {"rule": "fixed"},
    "seconds": 1.5,
    "device": "cpu",
    "versions": {},
    "curves": {"train_loss": [1.0, 0.5]},
}


def put(store, row):
    store.put(RunResult.from_json(row))


def said(results):
    return [result.to_json() for result in results]


def test_a_row_comes_back_as_it_was(tmp_path):
    store = Store(tmp_path / "new" / "store")
    assert store.get("abc") is None
    assert store.rows() == []
    put(store, ROW)
    assert store.get("abc").to_json() == ROW
    assert [path.name for path in (store.folder / "runs").iterdir()] == ["abc.json"]
    assert store.artifact("abc") == store.folder / "runs" / "abc.safetensors"


def test_a_second_row_of_a_key_takes_the_place_of_the_first(tmp_path):
    store = Store(tmp_path)
    put(store, {**ROW, "status": "failed"})
    put(store, ROW)
    assert said(store.rows()) == [ROW]


def test_rows_come_by_key(tmp_path):
    store = Store(tmp_path)
    for key in ("c", "a", "b"):
        put(store, {**ROW, "key": key})
    assert [row.key for row in store.rows()] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "",
        lambda _: "[1, 2]",
        lambda _: '{"key": "abc"}',
        lambda text: text.replace("abc", "xyz"),
        lambda text: text.replace("done", "doing"),
        lambda _: '{"key": "abc", "status": "done"}',
        lambda text: text.replace("valid_loss", "loss"),
        lambda text: json.dumps({**json.loads(text), "spec": None}),
        lambda _: "[" * 100_000,
    ],
    ids=[
        "truncated",
        "empty",
        "a list",
        "no status",
        "another key",
        "unknown status",
        "key and status alone",
        "no loss",
        "no spec",
        "deep",
    ],
)
def test_a_damaged_row_is_named_and_does_not_count(tmp_path, damage):
    store = Store(tmp_path)
    put(store, {**ROW, "key": "sound"})
    put(store, ROW)
    path = tmp_path / "runs" / "abc.json"
    path.write_text(damage(path.read_text()))
    with pytest.warns(UserWarning, match=r"runs/abc\.json is damaged"):
        assert store.get("abc") is None
    with pytest.warns(UserWarning, match=r"runs/abc\.json is damaged"):
        assert [row.key for row in store.rows()] == ["sound"]
    put(store, ROW)
    assert store.get("abc").to_json() == ROW


def test_a_file_of_bytes_that_are_no_text_is_damaged(tmp_path):
    put(Store(tmp_path), ROW)
    (tmp_path / "runs" / "abc.json").write_bytes(b"\xff\xfe\x00")
    with pytest.warns(UserWarning, match="damaged"):
        assert Store(tmp_path).get("abc") is None


def test_a_number_that_json_cannot_hold_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        put(Store(tmp_path), {**ROW, "test": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_swept_up_and_a_live_one_is_not(tmp_path):
    store = Store(tmp_path)
    put(store, ROW)
    old, new = (tmp_path / "runs" / f".abc.json.{name}.tmp" for name in ("old", "new"))
    for path in (old, new):
        path.write_text('{"key": "ab')
    page = tmp_path / f".report.html.{'0a' * 16}.tmp"
    page.touch()
    for path in (old, page):
        os.utime(path, (0, 0))
    store.remove_stale_files()
    assert not old.exists()
    assert not page.exists()
    assert new.exists()
    assert said(store.rows()) == [ROW]


def test_importing_the_store_imports_no_torch():
    code = "import sys, gtpool.study.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _put_often(folder, number):
    store = Store(folder)
    for turn in range(60):
        put(store, {**ROW, "test": [number] * 2000, "turn": turn})


@pytest.mark.slow
def test_a_reader_never_sees_half_a_row_while_two_processes_write_it(tmp_path):
    context = get_context("spawn")
    writers = [context.Process(target=_put_often, args=(tmp_path, n)) for n in (1, 2)]
    for writer in writers:
        writer.start()
    store, seen = Store(tmp_path), 0
    while any(writer.is_alive() for writer in writers):
        row = store.get("abc")  # a damaged one would warn, which is an error here
        if row is not None:
            seen += 1
            assert len(set(row.test)) == 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert seen > 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["abc.json"]


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = libc.mount(b"none", bytes(folder), b"tmpfs", 0, b"size=64k") if _is_linux() else -1
    if mounted != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    yield folder
    libc.umount2(bytes(folder), 2)


def _is_linux():
    return sys.platform == "linux"


def test_a_full_disk_is_one_clear_line_and_keeps_what_is_finished(small_disk):
    store = Store(small_disk)
    put(store, ROW)
    with pytest.raises(OSError, match=r"disk/runs cannot be written: No space left") as caught:
        put(store, {**ROW, "key": "big", "test": "x" * 100_000})
    assert "\n" not in str(caught.value)
    assert said(store.rows()) == [ROW]
    assert [path.name for path in (small_disk / "runs").iterdir()] == ["abc.json"]
    put(store, {**ROW, "key": "next"})


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file/runs cannot be written"):
        put(Store(tmp_path / "file"), ROW)


def test_write_whole_replaces_a_file(tmp_path):
    path = tmp_path / "a" / "b.bin"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_ctrl_c_in_the_middle_of_a_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "b.bin"
    write_atomic(path, b"one")
    monkeypatch.setattr(os, "fsync", lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_write_whole_follows_a_symlink_and_keeps_it(tmp_path):
    target, link = tmp_path / "far" / "target.csv", tmp_path / "link.csv"
    target.parent.mkdir()
    link.symlink_to(target)
    for content in (b"new", b"newer"):  # the link dangles at first
        write_atomic(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert list(target.parent.iterdir()) == [target]


def test_write_whole_writes_into_a_fifo(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomic(fifo, b"content")
        assert os.read(reader, 100) == b"content"
    finally:
        os.close(reader)
    assert fifo.is_fifo()
    assert list(tmp_path.iterdir()) == [fifo]


def test_write_whole_writes_into_a_device(tmp_path):
    null = tmp_path / "null"
    try:
        os.mknod(null, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        null.write_bytes(b"")
    except PermissionError:
        pytest.skip("needs root to make a device node")
    link = tmp_path / "link"
    link.symlink_to(null)
    write_atomic(null, b"content")
    write_atomic(link, b"content")
    assert null.is_char_device()
    assert link.is_symlink()


def test_write_whole_refuses_a_directory(tmp_path):
    with pytest.raises(IsADirectoryError, match="directory"):
        write_atomic(tmp_path, b"content")


# collect


def fill(folder, *rows):
    for row in rows:
        put(Store(folder), row)
    return folder


def test_collect_packs_several_stores_by_key(tmp_path):
    one = fill(tmp_path / "one", {**ROW, "key": "c"}, {**ROW, "key": "a"})
    two = fill(tmp_path / "two", {**ROW, "key": "b"})
    out = tmp_path / "results" / "all.jsonl"
    rows = collect([one, two], out)
    assert [row.key for row in rows] == ["a", "b", "c"]
    assert [json.loads(line) for line in out.read_text().splitlines()] == said(rows)
    assert read_rows(out) == rows


def test_collect_writes_the_same_bytes_in_whatever_order_the_stores_come(tmp_path):
    one = fill(tmp_path / "one", {**ROW, "key": "c"}, {**ROW, "key": "a"})
    two = fill(tmp_path / "two", {**ROW, "key": "b"})
    outs = [tmp_path / "1.jsonl", tmp_path / "2.jsonl"]
    collect([one, two], outs[0])
    collect([two, one], outs[1])
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_collect_keeps_the_rows_of_the_file_it_writes(tmp_path):
    out = tmp_path / "all.jsonl"
    old, both = {**ROW, "key": "old"}, {**ROW, "seconds": 1.0}
    collect([fill(tmp_path / "one", old, both)], out)
    two = fill(tmp_path / "two", {**ROW, "seconds": 2.0}, {**ROW, "key": "new"})
    rows = collect([two], out, curves=False)
    new = {name: value for name, value in ROW.items() if name != "curves"} | {"key": "new"}
    assert (
        said(rows) == [both, new, old] == said(read_rows(out))
    )  # those that stay have their curves


def test_collect_leaves_a_row_of_the_file_as_it_is_where_curves_are_not_kept(tmp_path):
    out = tmp_path / "all.jsonl"
    collect([fill(tmp_path / "one", {**ROW, "device": "cpu"})], out, curves=False)
    before = out.read_bytes()
    collect([fill(tmp_path / "two", {**ROW, "device": "NVIDIA H200"})], out, curves=False)
    assert out.read_bytes() == before


def test_collect_tells_of_a_row_that_differs_from_that_of_the_file_it_writes(tmp_path):
    out = tmp_path / "all.jsonl"
    collect([fill(tmp_path / "one", ROW)], out)
    before = out.read_bytes()
    with pytest.raises(ValueError, match=r"all\.jsonl, line 1 and in .*two/runs/abc\.json"):
        collect([fill(tmp_path / "two", {**ROW, "test": 0.6})], out)
    out.write_bytes(b"notes\n" + before)
    with pytest.raises(ValueError, match=r"all\.jsonl, line 1"):
        collect([tmp_path / "one"], out)
    assert out.read_bytes() == b"notes\n" + before


def test_collect_without_rows_names_where_it_looked_and_what_may_be_meant(tmp_path):
    out, empty = tmp_path / "all.jsonl", tmp_path / "a"
    empty.mkdir()
    collect([fill(tmp_path / "runs" / "study", ROW)], out)
    with pytest.raises(ValueError, match=rf"in {empty}, {empty}$"):
        collect([empty, empty], out)
    (tmp_path / "runs" / "bench").mkdir()
    (tmp_path / "runs" / "bench" / "speed.jsonl").write_text("{}")  # rows of something else
    meant = tmp_path / "runs" / "study"
    with pytest.raises(ValueError, match=rf"runs; did you mean {meant}\?"):
        collect([tmp_path / "runs"], out)


def test_collect_into_a_folder_asks_for_a_file(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder; .*rows\.jsonl$"):
        collect([fill(tmp_path / "one", ROW)], tmp_path)


def test_blank_lines_between_rows_are_skipped_and_lines_keep_their_numbers(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n\n{json.dumps({**ROW, 'key': 'x'})}\n \n")
    assert [(row.key, place[-6:]) for row, place in locate_rows(path)] == [
        ("abc", "line 1"),
        ("x", "line 3"),
    ]


def test_collect_adds_to_what_was_collected_before(tmp_path):
    out = tmp_path / "all.jsonl"
    collect([fill(tmp_path / "one", ROW)], out)
    rows = collect([out, fill(tmp_path / "two", {**ROW, "key": "x"})], out)
    assert [row.key for row in rows] == ["abc", "x"]


def test_two_rows_of_a_key_may_differ_in_time_and_machine_alone(tmp_path):
    again = {**ROW, "seconds": 2.0, "peak_rss_mb": 9, "commit": "x", "finished": "later"}
    one = fill(tmp_path / "one", {**ROW, "seconds": 1.0})
    rows = collect([one, fill(tmp_path / "two", again)], tmp_path / "all.jsonl")
    assert said(rows) == [{**ROW, "seconds": 1.0}]


@pytest.mark.parametrize(
    ("name", "value"),
    [("test", 0.6), ("curves", {"train_loss": [1.0]}), ("split", {"digest": "x"})],
)
def test_two_rows_of_a_key_with_different_numbers_are_refused(tmp_path, name, value):
    one, two = fill(tmp_path / "one", ROW), fill(tmp_path / "two", {**ROW, name: value})
    said = rf"in .*/one/runs/abc\.json and in .*/two/runs/abc\.json: {name};"
    with pytest.raises(ValueError, match=said):
        collect([one, two], tmp_path / "all.jsonl")
    assert not (tmp_path / "all.jsonl").exists()


def test_two_rows_in_a_folder_of_files_are_named_by_file_and_line(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({**ROW, "key": "x"}) + "\n" + json.dumps(ROW))
    (tmp_path / "b.jsonl").write_text(json.dumps({**ROW, "test": 0.6}))
    with pytest.raises(ValueError, match=r"/a\.jsonl, line 2 and in .*/b\.jsonl, line 1"):
        collect([tmp_path], tmp_path / "out" / "all.jsonl")


@pytest.mark.parametrize("order", [1, -1])
def test_a_done_row_counts_before_a_failed_one(tmp_path, order):
    failed = {**ROW, "status": "failed", "test": None, "error": "the loss is nan"}
    stores = [fill(tmp_path / "one", failed), fill(tmp_path / "two", ROW)]
    assert said(collect(stores[::order], tmp_path / "all.jsonl")) == [ROW]


def test_rows_of_what_is_not_there_or_not_rows_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_rows(tmp_path / "nowhere")
    path = Path(tmp_path, "bad.jsonl")
    path.write_text(json.dumps(ROW) + "\n{}\n")
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2"):
        read_rows(path)
    path.write_bytes(json.dumps(ROW).encode() + b"\n" + json.dumps(ROW).encode()[:-9])
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2: .*truncated"):
        read_rows(path)
    path.write_bytes(b"\x1f\x8b")  # packed by gzip
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 1"):
        read_rows(path)


def test_a_store_is_read_by_its_runs_whatever_else_lies_in_it(tmp_path):
    store = fill(tmp_path / "store", ROW)
    collect([store], store / "rows.jsonl")
    (store / "log.jsonl").write_text('{"configs": []}\n')
    fill(store, {**ROW, "key": "x"})
    assert [row.key for row in read_rows(store)] == ["abc", "x"]


def test_a_store_and_what_was_collected_of_it_without_curves_go_together(tmp_path):
    store, out = fill(tmp_path / "store", {**ROW, "curves": {"loss": [1.0]}}), tmp_path / "a.jsonl"
    collect([store], out, curves=False)
    for sources in ([store, out], [out, store]):
        (row,) = collect(sources, tmp_path / "all.jsonl")
        assert row.curves == {"loss": [1.0]}


def test_a_row_from_before_an_option_was_added_is_the_same_run(tmp_path):
    old = fill(tmp_path / "old", {**ROW, "spec": {"seed": 42}})
    new = fill(tmp_path / "new", {**ROW, "spec": {"seed": 42, "precision": "float32"}})
    assert len(collect([old, new], tmp_path / "all.jsonl")) == 1
