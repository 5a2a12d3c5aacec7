"""The documentation site: it builds without a warning, and needs nobody when it is read."""

import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import gtpool

pytest.importorskip("mkdocstrings", reason="mkdocs and mkdocstrings are not installed")

ROOT = Path(__file__).parents[2]
FORMULAS = runpy.run_path(str(ROOT / "docs/formulas.py"))


class Loads(HTMLParser):
    """The addresses that a page loads by itself, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag in {"script", "link", "img", "iframe", "source"}:
            self.addresses += [values[name] for name in ("src", "href") if name in values]
        self.words += re.findall(r"url\([^)]*\)", values.get("style") or "")

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site):
    pages = {page: Loads(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert len(pages) > 15
    for page, read in pages.items():
        for address in read.addresses:
            assert not re.match(r"\w+:|//", address), f"{page.name} loads {address}"
            start = site if address.startswith("/") else page.parent
            assert (start / address.lstrip("/").partition("?")[0]).exists()
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*['\"]?(https?:|//)", style.read_text()), style.name


@pytest.mark.slow
def test_the_reference_names_all_that_is_public_and_its_formulas_are_plain(site):
    pages = [site / "api.html", *sorted((site / "api").glob("*.html"))]
    said = "".join("".join(Loads(page.read_text(encoding="utf-8")).words) for page in pages)
    assert [name for name in gtpool.__all__ if not re.search(rf"\b{name}\b", said)] == []
    assert "S_g = σ(𝒜 V Θ_g)" in said
    assert ".. math" not in said
    assert not re.search(r"\\[a-z]+\{", said)
    assert ">>> pool = GTPool(16, ratio=0.5)" in said


@pytest.mark.slow
def test_the_switch_between_light_and_dark_finds_what_it_looks_for(site):
    wanted = re.findall(r"getElementById\('([\w-]+)'\)", (site / "js/darkmode.js").read_text())
    page = (site / "index.html").read_text(encoding="utf-8")
    assert len(wanted) >= 3
    assert [name for name in wanted if f'id="{name}"' not in page] == []


@pytest.mark.slow
def test_what_lies_outside_of_docs_is_there_too(site):
    assert "Add a pooler" in (site / "contributing.html").read_text(encoding="utf-8")
    assert "Keep a Changelog" in (site / "changelog.html").read_text(encoding="utf-8")
    assert 'href="source/examples/own_csv.py.html"' in (site / "training.html").read_text()
    assert 'href="extend/pooler.html"' in (site / "contributing.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("tex", "plain"),
    [
        (r"A' = A_{idx, idx}", "A' = A[idx, idx]"),
        (r"\frac{I_C}{\sqrt{C}}", "I_C / √C"),
        (r"\lceil \mu n \rceil \ne k", "⌈μ n⌉ ≠ k"),
        (r"\tilde{D}^{-1/2} X^\top", "D\u0303^(-1/2) Xᵀ"),
    ],
)
def test_formulas_read_as_text(tex, plain):
    assert FORMULAS["plain"](tex) == plain


@pytest.mark.parametrize("tex", [r"\oint x", r"\underbrace{x}", "{x", r"\frac{a}"])
def test_a_formula_that_cannot_be_written_so_stops_the_build(tex):
    with pytest.raises(ValueError, match="does not know"):
        FORMULAS["plain"](tex)
