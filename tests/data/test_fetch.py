import hashlib
import socket
import stat
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gtpool.data.locate import fetch, unpack

BODY = bytes(range(256)) * 2000
DIGEST = hashlib.sha256(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """A server of one file: whole, in parts, breaking off, too slow, or not at all."""

    def do_GET(self):
        self.server.asked.append(self.headers.get("Range"))
        kind = self.path.strip("/")
        if kind == "missing" or (kind == "shaky" and len(self.server.asked) < 3):
            return self.send_error(404 if kind == "missing" else 503)
        if kind == "slow":
            time.sleep(1.5)
        start = 0
        if kind != "whole" and (asked := self.headers.get("Range")):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(BODY):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        if kind != "unsized":
            self.send_header("Content-Length", str(len(BODY) - start))
        self.end_headers()
        stop = len(BODY) // 2 if kind == "breaking" and not start else None
        self.wfile.write(BODY[start:stop])
        return None

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, *_):
        """Say nothing of a client that has gone."""


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        running.url = f"http://127.0.0.1:{running.server_port}"
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_a_whole_file(server, tmp_path, capsys):
    fetch(f"{server.url}/parts", tmp_path / "new" / "file.zip", sha256=DIGEST)
    assert (tmp_path / "new" / "file.zip").read_bytes() == BODY
    assert names(tmp_path) == ["file.zip", "new"]
    told = capsys.readouterr().err.splitlines()
    assert told == [f"downloading {server.url}/parts", "downloaded 0.5 MB"]


def test_a_file_of_unknown_length_without_a_word(server, tmp_path, capsys):
    fetch(f"{server.url}/unsized", tmp_path / "file", sha256=DIGEST, progress=False)
    assert (tmp_path / "file").read_bytes() == BODY
    assert capsys.readouterr() == ("", "")


def test_a_broken_connection_goes_on_where_it_broke(server, tmp_path):
    fetch(f"{server.url}/breaking", tmp_path / "file", sha256=DIGEST, pause=0.01)
    assert (tmp_path / "file").read_bytes() == BODY
    assert server.asked == [None, f"bytes={len(BODY) // 2}-"]


def test_a_later_call_goes_on_where_an_earlier_one_broke(server, tmp_path):
    with pytest.raises(OSError, match=f"broke off after {len(BODY) // 2} of {len(BODY)} bytes"):
        fetch(f"{server.url}/breaking", tmp_path / "file", tries=1)
    assert names(tmp_path) == ["file.part"]
    fetch(f"{server.url}/breaking", tmp_path / "file", sha256=DIGEST)
    assert names(tmp_path) == ["file"]
    assert server.asked == [None, f"bytes={len(BODY) // 2}-"]


def test_a_server_that_sends_no_parts_starts_anew(server, tmp_path):
    (tmp_path / "file.part").write_bytes(b"something else")
    fetch(f"{server.url}/whole", tmp_path / "file", sha256=DIGEST)
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_part_that_is_longer_than_the_file_is_thrown_away(server, tmp_path):
    (tmp_path / "file.part").write_bytes(BODY + b"more")
    fetch(f"{server.url}/parts", tmp_path / "file", sha256=DIGEST, pause=0.01)
    assert server.asked == [f"bytes={len(BODY) + 4}-", None]


def test_a_server_in_trouble_is_asked_again(server, tmp_path):
    fetch(f"{server.url}/shaky", tmp_path / "file", sha256=DIGEST, pause=0.01)
    assert len(server.asked) == 3


def test_a_wrong_digest_leaves_nothing(server, tmp_path):
    with pytest.raises(ValueError, match=f"{DIGEST}, expected 00"):
        fetch(f"{server.url}/parts", tmp_path / "file", sha256="00")
    assert names(tmp_path) == []


def test_a_missing_file_is_asked_for_once(server, tmp_path):
    with pytest.raises(OSError, match=r"404"):
        fetch(f"{server.url}/missing", tmp_path / "file")
    assert names(tmp_path) == []
    assert len(server.asked) == 1


def test_a_silent_server_is_given_up(server, tmp_path):
    with pytest.raises(OSError, match=r"no answer in 0.2 s"):
        fetch(f"{server.url}/slow", tmp_path / "file", timeout=0.2, tries=2, pause=0.01)
    assert names(tmp_path) == []


def test_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/file"
    with pytest.raises(OSError, match=r"Connection refused"):
        fetch(url, tmp_path / "file", pause=0.01)
    assert names(tmp_path) == []


def test_only_the_web_is_read(tmp_path):
    (tmp_path / "secret").write_text("x")
    with pytest.raises(ValueError, match="not an http or https address"):
        fetch((tmp_path / "secret").as_uri(), tmp_path / "file")


def test_two_downloads_at_once(server, tmp_path):
    jobs = [
        threading.Thread(target=fetch, args=(f"{server.url}/breaking", tmp_path / "file"))
        for _ in range(4)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert (tmp_path / "file").read_bytes() == BODY
    assert names(tmp_path) == ["file"]


def pack(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for member, content in members.items():
            packed.writestr(member, content)
    return path


def test_a_folder_around_everything_is_left_out(tmp_path):
    archive = pack(tmp_path / "a.zip", {"TOP/": "", "TOP/a.txt": "1", "TOP/sub/b.txt": "2"})
    unpack(archive, tmp_path / "TU" / "out")
    assert names(tmp_path / "TU" / "out") == ["a.txt", "b.txt", "sub"]
    assert names(tmp_path / "TU") == ["a.txt", "b.txt", "out", "sub"]


def test_several_files_need_no_folder(tmp_path):
    unpack(pack(tmp_path / "a.zip", {"a.txt": "1", "b.txt": "2"}), tmp_path / "out")
    assert names(tmp_path / "out") == ["a.txt", "b.txt"]


def test_a_folder_that_is_there_stays(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    unpack(pack(tmp_path / "a.zip", {"a.txt": "1", "b.txt": "2"}), tmp_path / "out")
    assert names(tmp_path / "out") == ["mine.txt"]


def linked():
    link = zipfile.ZipInfo("TOP/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    return link


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"../out.txt": "x"}, "leads outside"),
        ({"TOP/../../out.txt": "x"}, "leads outside"),
        ({"/etc/out.txt": "x"}, "leads outside"),
        ({"TOP\\..\\..\\out.txt": "x"}, "leads outside"),
        ({"C:/out.txt": "x"}, "leads outside"),
        ({linked(): "/etc/passwd", "TOP/link/x": "x"}, "leads outside"),
        ({"bomb.txt": b"0" * 2_000_000}, "more than the 1000000 allowed"),
    ],
)
def test_a_malicious_archive_leaves_nothing(tmp_path, members, reason):
    archive = pack(tmp_path / "a.zip", members)
    with pytest.raises(ValueError, match=reason):
        unpack(archive, tmp_path / "deep" / "out", limit=1_000_000)
    assert names(tmp_path) == ["a.zip", "deep"]


@pytest.mark.parametrize("keep", [0, 10, -30])
def test_a_damaged_archive_leaves_nothing(tmp_path, keep):
    archive = pack(tmp_path / "a.zip", {"a.txt": "1" * 1000, "b.txt": "2"})
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(ValueError, match="not a sound zip file"):
        unpack(archive, tmp_path / "out")
    assert names(tmp_path) == ["a.zip"]


def test_an_archive_whose_content_was_changed_is_refused(tmp_path):
    archive = pack(tmp_path / "a.zip", {"a.txt": "1" * 1000, "b.txt": "2"})
    content = bytearray(archive.read_bytes())
    content[40] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(ValueError, match="not a sound zip file"):
        unpack(archive, tmp_path / "out")
    assert names(tmp_path) == ["a.zip"]
