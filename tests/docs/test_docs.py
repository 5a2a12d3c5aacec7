import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAPER_MAP = (ROOT / "docs/paper_map.md").read_text()
SYMBOLS = sorted(set(re.findall(r"`((?:gtpool|torch_geometric)\.[\w.]+)`", PAPER_MAP)))


def resolve(symbol: str) -> object:
    parts = symbol.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            value = getattr(value, name)
        return value
    raise AssertionError(f"no module of {symbol} can be imported")


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_paper_map_names_symbols_that_exist(symbol):
    assert resolve(symbol) is not None


def test_paper_map_has_every_equation_table_and_figure():
    numbers = {int(n) for n in re.findall(r"\((\d+)\)", PAPER_MAP)}
    assert numbers >= set(range(1, 18))
    assert set(re.findall(r"\| table (\d)", PAPER_MAP)) == set("123456")
    assert set(re.findall(r"\| figure (\d)", PAPER_MAP)) == set("1234")


@pytest.mark.slow
def test_tables_are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    stale = runpy.run_path(str(ROOT / "docs/tables.py"))["stale"](write=False)
    assert stale == [], "`make performance` brings these pages up to date"


def test_architecture_names_every_module():
    text = (ROOT / "docs/architecture.md").read_text()
    modules = (ROOT / "src/gtpool").rglob("*.py")
    names = {path.name for path in modules if path.name != "__init__.py"}
    assert {name for name in names if name not in text} == set()


DOCS = sorted(ROOT.glob("docs/**/*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", *(str(path.relative_to(ROOT)) for path in DOCS)]


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    path = ROOT / page
    links = re.findall(r"\]\((?!http)([^)#]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def paragraphs(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    parts = re.split(r"\n\s*\n|\n- |\n\d+\. ", text)
    return [part for part in parts if not part.lstrip().startswith(("|", "#", "<!--"))]


@pytest.mark.parametrize("page", PAGES)
def test_paragraphs_are_short(page):
    assert [part for part in paragraphs(page) if len(part.split()) > 80] == []


@pytest.mark.parametrize("page", PAGES)
def test_pages_open_with_at_most_three_sentences(page):
    opening = re.sub(r"`[^`]*`", "code", paragraphs(page)[0])
    assert len(re.findall(r"[.!?](?=\s|$)", opening)) <= 3


def test_the_readme_is_read_in_a_few_minutes():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1200


def test_a_change_has_one_line_of_at_most_twenty_words():
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("  ")] == []
    assert [line for line in lines if line.startswith("- ") and len(line.split()) > 21] == []
