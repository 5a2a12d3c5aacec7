"""What mkdocs does beside its settings: it calls the functions below while it builds.

CONTRIBUTING.md and CHANGELOG.md become pages of the site, and so does every source file that a page
links to.
"""

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
FIGURE = re.compile(r"[\d.,]+ ± [\d.,]+|\(\d+ runs?\)")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for file in list(files.documentation_pages()):
        for link in LINK.findall(file.content_string):
            place = _place(file.src_uri, link)
            page = _page(place)
            if page.startswith("source/") and page not in files.src_uris:
                text = (ROOT / place).read_text(encoding="utf-8")
                shown = f"# {place}\n\n````{place.rpartition('.')[2]}\n{text}\n````\n"
                files.append(File.generated(config, page, content=shown))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    del config, files
    here = page.file.src_uri

    def lead(found: re.Match[str]) -> str:
        return f"]({relpath(_page(_place(here, found[1])), dirname(here) or '.')}"

    return LINK.sub(lead, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep a figure of a table on one line: its deviation, and its number of runs."""
    del page, config, files
    return CELL.sub(
        lambda cell: FIGURE.sub(lambda one: one[0].replace(" ", "\u00a0"), cell[0]), html
    )


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Give the theme the two styles that its switch between light and dark looks for.

    Without highlight.js, which would be loaded from elsewhere, they are not there, and the switch
    stops with an error.
    """
    del page, config
    styles = '<style id="hljs-light"></style><style id="hljs-dark"></style>'
    return output.replace("</head>", f"{styles}</head>", 1)


def _place(src_uri: str, link: str) -> str:
    """Say where in the repository a link leads, from where its page lies there."""
    home = next((name for name, page in PAGES.items() if page == src_uri), f"docs/{src_uri}")
    return normpath(f"{dirname(home)}/{link}".lstrip("/"))


def _page(place: str) -> str:
    """Say where the site has a file of the repository."""
    if place in PAGES:
        return PAGES[place]
    if place.startswith("docs/") and not place.endswith(".py"):
        return place.removeprefix("docs/")
    return "index.md" if place == "README.md" else f"source/{place}.md"
