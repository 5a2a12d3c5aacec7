"""The pages of docs/extend are followed step by step on one copy of the project, in one process.

A fence with a title is a file to write, a diff with a title an edit of a file, and a line of a
console that begins with $ a command. Lines below a command are printed by it.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/extend").glob("*.md"))
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
RUN = """
import contextlib, io, json, shutil, sys
import pytest
from gtpool.cli import main

def run(words):
    if words[0] == "pytest":
        return int(pytest.main([*words[1:], "-q", "-p", "no:cacheprovider"]))
    sys.argv = words
    try:
        main()
    except SystemExit as end:
        return end.code or 0

done = []
for commands in json.load(sys.stdin):
    for words in commands:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = run(words)
        done.append([code, out.getvalue()])
    shutil.rmtree("out", ignore_errors=True)
print(json.dumps(done))
"""


@pytest.fixture
def copy(tmp_path):
    """Copy what the pages add to or edit."""
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=skip)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_there_is_a_page_for_each_kind_of_extension():
    kinds = ["command", "convolution", "format", "pooler", "readout"]
    assert [page.stem for page in PAGES] == kinds


@pytest.mark.slow
def test_following_the_pages_step_by_step_works(copy):
    consoles, written = [], []
    for page in PAGES:
        commands, files = _follow(page, copy)
        tests = [title for title in files if title.startswith("tests/")]
        assert tests, f"{page.name} ends with a test"
        assert any(words[0] == "pytest" and tests[0] in words for words, _ in commands), page.name
        consoles.append(commands)
        written += files
    _lint(copy, written)
    done = _run(copy, [[words for words, _ in commands] for commands in consoles])
    for (words, shown), (code, printed) in zip(chain(*consoles), done, strict=True):
        assert code == 0, f"{words}\n{printed}"
        assert [line for line in shown if line not in printed.splitlines()] == [], words


def _follow(page, copy):
    """Write and edit the files of a page; give its commands and the files."""
    commands, changed = [], []
    for language, title, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "console":
            commands += _commands(text)
            continue
        changed.append(title)
        if language == "diff":
            _edit(copy / title, text)
        else:
            (copy / title).parent.mkdir(parents=True, exist_ok=True)
            assert not (copy / title).exists(), title
            (copy / title).write_text(text, encoding="utf-8")
    return commands, changed


def _commands(text):
    """Give the words of each command of a console, and the lines that it shows below."""
    found = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((shlex.split(line[2:]), []))
        else:
            found[-1][1].append(line)
    return found


def _edit(path, diff):
    """Apply a diff without line numbers: what it removes or leaves must be there once."""
    lines = diff.splitlines()
    assert all(line[:1] in set(" +-") for line in lines), path
    before = "\n".join(line[1:] for line in lines if not line.startswith("+"))
    after = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{path.name} does not have once:\n{before}"
    path.write_text(text.replace(before, after), encoding="utf-8")


def _lint(folder, files):
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent))
    if ruff is None:
        return
    for check in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [ruff, *check, "--no-cache", *{name for name in files if name.endswith(".py")}],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def _run(folder, consoles):
    """Run commands one after another in a process of their own: exit codes and outputs."""
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"},
        input=json.dumps(consoles),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
