import os
import signal
import subprocess
import sys

import pytest

from gtpool.atomic import new_folder, recover_folder

FILES = ("a", "b")
# Killed at the rename that puts a folder into place, which is the second if there was one before.
KILLED = """
import os, signal, sys
from pathlib import Path
from gtpool.atomic import new_folder

def kill(event, args):
    if event == "os.rename" and str(args[0]).endswith("made"):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
with new_folder(Path(sys.argv[1]), ("a", "b"), "a test") as made:
    (made / "a").write_text("new")
    (made / "b").write_text("new")
"""


def write(folder, text):
    with new_folder(folder, FILES, "a test") as made:
        (made / "a").write_text(text)


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def write_and_be_killed(folder):
    end = subprocess.run([sys.executable, "-c", KILLED, folder], check=False).returncode
    assert end == -signal.SIGKILL


@pytest.mark.parametrize("then", ["recover", "write"])
def test_a_kill_between_the_two_renames_is_made_good(tmp_path, then):
    folder = tmp_path / "model"
    write(folder, "old")
    write_and_be_killed(folder)
    assert not folder.exists()
    if then == "recover":
        recover_folder(folder)
        assert {path.name: path.read_text() for path in folder.iterdir()} == {
            "a": "new",
            "b": "new",
        }
    else:
        write(folder, "newest")
        assert content(folder) == {"a": "newest"}
    assert list(tmp_path.iterdir()) == [folder]


def test_what_a_killed_process_has_not_finished_is_swept_and_a_live_one_is_not(tmp_path):
    folder = tmp_path / "model"
    write_and_be_killed(folder)  # there was none before: nobody can tell whether it is whole
    (left,) = tmp_path.iterdir()
    os.utime(left, (0, 0))
    with new_folder(tmp_path / "model", FILES, "a test") as made:
        assert list(tmp_path.iterdir()) == [made.parent]
        os.utime(made.parent, (0, 0))
        recover_folder(folder)
        assert made.exists()
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_of_the_users_with_a_similar_name_is_not_ours(tmp_path):
    names = (".model-backup", ".model-2-abcdefgh", "model-abcdefgh")
    others = [tmp_path / name for name in names]
    for other in others:
        other.mkdir()
        os.utime(other, (0, 0))
    write(tmp_path / "model", "text")
    assert all(other.exists() for other in others)


def test_ctrl_c_between_the_two_renames_leaves_the_old_folder(tmp_path):
    folder = tmp_path / "model"
    write(folder, "old")
    code = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "raise KeyboardInterrupt")
    subprocess.run([sys.executable, "-c", code, folder], check=False, capture_output=True)
    assert (folder / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [folder]


def test_files_have_the_permissions_of_the_umask(tmp_path):
    def write_closed(folder):
        with new_folder(folder, FILES, "a test") as made:
            (made / "a").touch(0o600)  # as safetensors does

    for umask in (0o022, 0o027):
        before = os.umask(umask)
        try:
            write_closed(tmp_path / "model")
        finally:
            os.umask(before)
        assert (tmp_path / "model").stat().st_mode & 0o777 == 0o777 & ~umask
        assert (tmp_path / "model" / "a").stat().st_mode & 0o777 == 0o666 & ~umask
