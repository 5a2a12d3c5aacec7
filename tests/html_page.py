"""A parser of HTML pages for tests of reports."""

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Reads a page: balanced tags, visible text, ids, addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.text, self.ids, self.addresses, self.tags = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        links = ("href", "src", "xlink:href", "srcset", "action", "data", "poster")
        self.addresses += [values[name] for name in links if name in values]
        self.addresses += re.findall(r"url\(([^)]*)\)", " ".join(v or "" for v in values.values()))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += [data] if data.strip() else []
