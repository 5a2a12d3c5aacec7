import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from gtpool.estimator import GraphClassifier
from gtpool.explain import (
    Coverage,
    Diversity,
    Explained,
    Explanation,
    Explanations,
    Fidelity,
    LevelView,
)
from gtpool.report.explanation import (
    diversity_table,
    draw_diversity,
    draw_level,
    draw_survivors,
    judge_diversity,
    write_explanation,
)
from gtpool.report.graph_svg import MOST_DRAWN, Marks, draw_graph

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert('&')</script>"
PATH = [(0, 1), (1, 0), (1, 2), (2, 1)]
FIRST = LevelView(
    nodes=(0, 1, 2),
    score=(0.5, 0.25, -0.125),
    global_score=(0.1, 0.2, 0.3),
    local_score=(0.3, 0.2, 0.1),
    attention=(0.5, 0.3, 0.2),
    kept=(0, 2),
    topk=(0, 1),
    edges=PATH,
    pairs=0,
    isolated=1.0,
)
SECOND = FIRST._replace(
    nodes=(0, 2), score=(0.7, 0.6), attention=(0.4, 0.6), kept=(2,), topk=(0,), edges=[]
)._replace(global_score=(1.0, 2.0), local_score=(3.0, 4.0))
WHY = Explanation(
    target=1,
    logits=(-1.0, 1.0),
    nodes=3,
    edges=PATH,
    levels=(FIRST, SECOND),
    importance=(0.9, 0.2, 0.4),
    fidelity=Fidelity((0,), 0.25, 0.75, 0.88),
)
SPREAD = Diversity(
    10,
    (4, 5, 6),
    {
        "topk": Coverage((2, 2, 3), (0.5, 0.5, 0.75)),
        "rws": Coverage((4, 5, 5), (1.0, 1.0, 0.75)),
        "rwsv": Coverage((4, 4, 5), (1.0, 0.9, 1.0)),
        "random": Coverage((4, 4, 6), (0.5, 1.0, 0.75)),
    },
)


def found(names=("C", "C", "O"), *, smiles="CCO", why=WHY, task="classes", **more):
    told = {"sampler": "rws", "diversity": SPREAD, "targets": ("no", "yes"), **more}
    graph = Explained(7, HOSTILE, "yes", list(names), smiles, why)
    return Explanations(unit="line", task=task, graphs=(graph,), **told)


class Page(HTMLParser):
    """Reads a page: balanced tags, visible text, addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.text, self.addresses, self.tags = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        links = ("href", "src", "xlink:href", "srcset", "action", "data", "poster")
        self.addresses += [value for name, value in attrs if name in links]
        if tag not in {"meta", "link", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in {"meta", "link", "br"}:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += [data.strip()] if data.strip() else []


@pytest.fixture
def page(tmp_path):
    def write(told, title="A title", notes=("A note.",)):
        path = tmp_path / "new" / "page.html"
        write_explanation(path, title, told, notes)
        return path

    return write


def parts(svg, tag):
    return list(ET.fromstring(svg).iter(f"{SVG}{tag}"))  # noqa: S314 - drawn by us


def test_page_is_sound_and_needs_nothing_beside_itself(page):
    text = page(found()).read_text()
    read = Page(text)
    assert [at for at in read.addresses if not at.startswith("data:")] == []
    assert "script" not in read.tags
    assert not re.search(r"@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert read.tags.count("svg") == 4  # bars, two steps, importance


def test_page_says_what_the_model_kept_and_why(page):
    read = Page(page(found()).read_text())
    said = " ".join(read.text)
    assert "yes, probability 0.881" in said
    assert "In the source: yes." in said
    assert "Step 1: RWS keeps 2 of 3 nodes; top-k would keep 1 other (ringed)." in said
    assert "Step 2: RWS keeps 1 of 2 nodes" in said
    assert (
        "The probability of class yes is 0.880. Without the most important node it is 0.250; "
        "with it alone, 0.750. This half bears the answer better" in said
    )
    row = said[said.index("its number from step to step") :]
    assert "2 O -0.1250 0.3000 0.1000 0.2000 0.400 2 2 → 1 → 0" in row
    assert "1 C 0.2500 0.2000 0.2000 0.3000 0.200 0 1" in row
    assert "How step 2 saw the nodes that were left" in said


def test_names_of_strangers_are_text_and_no_code(page):
    hostile = found([HOSTILE] * 3, smiles=None, targets=(HOSTILE, HOSTILE))
    text = page(hostile, HOSTILE, [HOSTILE]).read_text()
    read = Page(text)
    assert "script" not in read.tags
    assert sum(HOSTILE in part for part in read.text) >= 5


def test_the_same_explanations_give_the_same_bytes(page):
    for smiles in ("CCO", None):
        told = found(smiles=smiles)
        assert page(told).read_bytes() == page(told).read_bytes()


@pytest.mark.parametrize(
    ("fidelity", "task", "says"),
    [
        (Fidelity((0,), 0.2, 0.9, 0.8), "classes", "borne out"),
        (Fidelity((0,), 0.9, 0.2, 0.8), "classes", "do not trust"),
        (Fidelity((0,), 0.5, 0.5, 0.8), "classes", "do not trust"),
        (Fidelity((0,), 0.01, 0.05, 0.99), "classes", "Neither"),
        (Fidelity((0,), 0.6, 0.1, 0.2), "binary", "borne out"),
        (Fidelity((0,), 0.1, 0.6, 0.2), "binary", "do not trust"),
        (Fidelity((0,), -9.0, 3.0, 4.0), "regression", "borne out"),
        (Fidelity((0,), 4.5, 9.0, 4.0), "regression", "do not trust"),
    ],
    ids=str,
)
def test_fidelity_is_judged_in_plain_words(page, fidelity, task, says):
    told = found(why=WHY._replace(fidelity=fidelity), task=task)
    assert says in " ".join(Page(page(told).read_text()).text)


def test_page_of_tasks_and_of_numbers_and_of_another_class(page):
    assert "yes: yes, probability 0.731" in page(found(task="binary")).read_text()
    huge = WHY._replace(logits=(1e4, -1e4))
    assert "yes: no, probability 0.000" in page(found(task="binary", why=huge)).read_text()
    assert "yes: 1" in page(found(task="regression")).read_text()
    other = page(found(why=WHY._replace(target=0))).read_text()
    assert "yes, probability 0.881; asked about no, probability 0.119" in other


def test_page_of_a_model_that_drops_no_nodes(page):
    why = WHY._replace(levels=(), fidelity=None, importance=None)
    read = Page(page(found(why=why, sampler=None, diversity=None)).read_text())
    said = " ".join(read.text)
    assert "This model drops no nodes" in said
    assert "svg" not in read.tags
    assert "node name 0 C 1 C 2 O" in said


def test_a_step_is_drawn_with_kept_filled_and_topk_ringed():
    for smiles in (None, "CCO"):
        svg = draw_level(SECOND, PATH, [*"CCO"], smiles=smiles)
        root = ET.fromstring(svg)  # noqa: S314
        assert "1 of 2 nodes kept: 2" in root.get("aria-label")
        assert len(re.findall(r"fill:var\(--kept", svg)) == 1
        assert len(re.findall(r"stroke:var\(--ring", svg)) == 1
        assert 'opacity=".35"' in svg  # node 1 was gone before
        texts = {part.text for part in parts(svg, "text")}
        assert {"0", "1", "2"} <= texts
    assert "--ring" not in draw_level(SECOND._replace(topk=(2,)), PATH, [*"CCO"])


def test_survivors_are_drawn_from_the_whole_graph_on():
    for smiles in (None, "CCO"):
        pictures = draw_survivors(WHY, [*"CCO"], smiles=smiles)
        assert [svg.count("fill:var(--kept") for svg in pictures] == [0, 2, 1]


def test_rdkit_draws_the_molecule_in_the_ink_of_the_page():
    svg = draw_level(FIRST, PATH, [*"CCO"], smiles="CCO")
    assert "class='bond-0 atom-0 atom-1'" in svg
    assert "#000000" not in svg
    assert "currentColor" in svg
    assert "#FF00FF" not in svg
    for wrong in ("CC", "C1CC("):
        with pytest.raises(ValueError, match="molecule of 3 atoms"):
            draw_level(FIRST, PATH, [*"CCO"], smiles=wrong)


def test_a_molecule_that_rdkit_would_draw_for_seconds_is_drawn_as_a_graph():
    smiles = f"C1{'C%10CCC(CC%10)' * 11}C1"  # rdkit counts 2,059 smallest rings
    edges = [(node, node + 1) for node in range(67)]
    svg = draw_graph(edges, ["C"] * 68, Marks(), "a necklace", smiles)
    assert "<title>node 67: C</title>" in svg


def test_any_graph_can_be_drawn_or_says_that_it_is_too_large():
    alone = draw_graph([(0, 0)], ["0"], Marks((0,)), "one")
    assert len(parts(alone, "circle")) == 1
    assert len(parts(draw_graph([], [*"abc"], Marks(), "no edges"), "circle")) == 3
    names = [str(node) for node in range(MOST_DRAWN + 1)]
    large = draw_graph([], names, Marks(), "large")
    assert "251 nodes are too many to draw" in large
    assert parts(large, "circle") == []


def test_long_names_are_shortened_and_told_in_full():
    svg = draw_graph([(0, 1)], ["carbonyl", "<b>"], Marks(), "names")
    assert "car…" in {part.text for part in parts(svg, "text")}
    assert "node 0: carbonyl" in {part.text for part in parts(svg, "title")}


def test_diversity_is_a_table_bars_and_a_verdict():
    table = diversity_table(SPREAD)
    assert [line[0] for line in table.lines] == ["top-k", "RWS", "RWSV", "by lot", "all nodes"]
    assert table.lines[0][1:] == ("2.33 ± 0.58", "58.33 ± 14.43")
    assert table.lines[-1][1:] == ("5.00 ± 1.00", "100")
    svg = draw_diversity(SPREAD)
    widths = [float(part.get("width")) for part in parts(svg, "rect")]
    assert widths[:2] == pytest.approx([230 * 7 / 3 / 10, 230 * 14 / 3 / 10], abs=0.1)
    assert len(widths) == 8
    assert "4.67" in {part.text for part in parts(svg, "text")}
    said = judge_diversity(SPREAD)
    assert said[0].startswith("The paper's claim")
    assert "against top-k: RWS more, RWSV more" in said[1]
    assert "by lot: RWS about as many, RWSV about as many" in said[1]


@pytest.mark.parametrize(
    ("wheels", "outcome"),
    [((5, 6, 7), "holds for"), ((2, 2, 3), "does not hold"), ((1, 1, 1), "does not hold")],
)
def test_the_claim_is_said_to_hold_only_where_it_does(wheels, outcome):
    same = {
        name: Coverage(wheels, tuple(value / 10 for value in wheels)) for name in ("rws", "rwsv")
    }
    low = Coverage((2, 2, 3), (0.2, 0.2, 0.3))
    said = judge_diversity(SPREAD._replace(covers={"topk": low, "random": low, **same}))
    assert outcome in said[0]
    part = {"topk": low, "random": low, **same, "rwsv": low}
    if outcome == "holds for":
        assert "holds in part" in judge_diversity(SPREAD._replace(covers=part))[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A saved model of molecules and a table to explain."""
    folder = tmp_path_factory.mktemp("trained")
    smiles = ["CCO", "CCN", "c1ccccc1", "CC(=O)O", "CCCC", "OCCO"] * 2
    GraphClassifier(width=8, epochs=1).fit(smiles, ["yes", "no"] * 6).save(folder / "model")
    table = folder / "new.csv"
    table.write_text("smiles\nCCO\nC1CC(\nc1ccccc1C(=O)O\n[Na+]\n")
    return SimpleNamespace(model=folder / "model", table=table)


def test_command_explains_a_few_graphs_and_the_diversity_of_all(trained, gtpool, tmp_path):
    out = tmp_path / "new" / "out.html"
    command = ("explain", trained.model, trained.table, "--epochs", 5, "--device", "cpu")
    code, said, err = gtpool(*command, "--graphs", 2, "-o", out)
    assert (code, err) == (0, "")
    assert "score intervals, of 10" in said
    assert "The paper's claim that the wheels keep more diverse nodes than top-k" in said
    assert said.endswith(f"2 graphs of {trained.table} explained: {out}\n")
    read = Page(out.read_text())
    assert [text for text in read.text if re.fullmatch(r"line \d", text)] == ["line 2", "line 4"]
    assert "How diverse are the kept nodes?" in read.text


def test_command_explains_one_graph_alone(trained, gtpool, tmp_path):
    out = tmp_path / "one.html"
    command = ("explain", trained.model, trained.table, "--epochs", 5, "--device", "cpu")
    code, said, err = gtpool(*command, "--graph", 5, "--target", "no", "-o", out)
    assert (code, err) == (0, "")
    assert said == f"1 graph of {trained.table} explained: {out}\n"
    read = Page(out.read_text())
    assert "line 5" in read.text
    assert "[Na+]" in read.text
    assert "How diverse are the kept nodes?" not in read.text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--graph", 3), "cannot be read: not a valid SMILES"),
        (("--graph", 99), "has no graph on line 99"),
        (("--target", "perhaps"), "no target 'perhaps'"),
    ],
    ids=str,
)
def test_an_error_of_the_users_is_one_line(trained, gtpool, tmp_path, options, says):
    out = tmp_path / "no.html"
    code, said, err = gtpool("explain", trained.model, trained.table, *options, "-o", out)
    assert (code, said) == (2, "")
    assert err.startswith("gtpool: ")
    assert says in err
    assert err.count("\n") == 1
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1200, "light")])
def test_page_fits_a_phone_and_a_desk_and_asks_nobody(page, browser, width, scheme):
    path = page(found([*"CCO"]))
    size = {"width": width, "height": 800}
    with browser.new_page(viewport=size, color_scheme=scheme) as view:
        asked, wrong = [], []
        view.on("request", lambda request: asked.append(request.url))
        view.on("console", lambda message: wrong.append(message.text))
        view.goto(path.as_uri())
        assert asked == [path.as_uri()]
        assert wrong == []
        assert view.evaluate("document.documentElement.scrollWidth") == width
        boxes = [part.bounding_box() for part in view.locator("svg").all()]
        assert len(boxes) == 4
        assert all(box["width"] > 200 and box["height"] > 40 for box in boxes)
        view.locator("summary").focus()
        view.keyboard.press("Enter")
        assert view.get_by_role("region", name="Nodes of line 7 at step 2").is_visible()
        ink, paper = view.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).background]"
        )
        assert ink not in paper
