"""The page of the service in a real browser, before a real `gtpool serve`."""

import base64
import csv
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from serving import (
    DRUGS,
    MAIN,
    PATHS,
    HalfSent,
    Served,
    molecules_model,
    paths_model,
    serving,
)

from gtpool.data.delimited import safe_cell
from gtpool.data.locate import EMBEDDED

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
expect = sync_api.expect
expect.set_options(timeout=120_000)  # of a busy machine: nothing waits that long else

PAGE = Path(__file__).parents[2] / "src/gtpool/serve/page.html"
B3DB = gzip.decompress((EMBEDDED / "B3DB/B3DB.tsv.gz").read_bytes()).decode().splitlines()[1:]
ASPIRIN, ETHANOL, BROKEN = "CC(=O)OC1=CC=CC=C1C(=O)O", "CCO", "C1CC("
HOSTILE = "<img src=x onerror=alert(1)>"
KEY = "a key of ours"


def test_the_policy_allows_the_style_and_the_script_of_the_page_alone():
    text = PAGE.read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_page_needs_no_other_file_and_makes_no_element_of_text():
    text = PAGE.read_text()
    assert set(re.findall(r'(?:src|href|action)="([^"]*)"', text)) == {"data:,", "docs"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|@import", text)
    assert "http://" not in text
    assert "https://" not in text


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train on a CSV, which takes seconds."""
    folder = tmp_path_factory.mktemp("trained")
    lines = [line.replace("\t", ",") for line in B3DB[:30] + B3DB[-30:]]
    (folder / "mine.csv").write_text("\n".join(["smiles,bbb", *lines]))
    options = ("--recipe", "paper", "--folds", "3", "--width", "16", "--epochs", "2")
    options = (*options, "--output-dir", folder / "out")
    subprocess.run(
        [sys.executable, "-c", MAIN, "train", folder / "mine.csv", *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
    )
    return folder / "out/model"


@pytest.fixture(scope="module")
def service(trained):
    with serving(trained) as served:
        yield served


@pytest.fixture
def visit(browser):
    """Open the page of a service; in the end nobody else was asked and nothing went wrong."""
    strangers, noise, contexts = [], [], []

    def start(served: Served, **options):
        def pass_on(route):
            own = route.request.url.startswith(served.url + "/")
            if not own:
                strangers.append(route.request.url)
            (route.continue_ if own else route.abort)()

        context = browser.new_context(**options)
        context.set_default_timeout(120_000)  # of a busy machine
        contexts.append(context)
        context.route("**/*", pass_on)
        page = context.new_page()
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("console", lambda message: noise.append(message.text))
        page.goto(served.url)
        return page

    yield start
    for context in contexts:
        context.close()
    assert strangers == []
    # The browser's own line for an answer such as 422.
    assert [line for line in noise if not line.startswith("Failed to load resource:")] == []


def predict(page, *lines):
    expect(page.get_by_role("heading", level=1)).to_contain_text("Predict ")
    page.get_by_label("one a line").fill("\n".join(lines))
    page.get_by_role("button", name="Predict").click()


def upload(page, name: str, text: str | bytes):
    expect(page.get_by_role("heading", level=1)).to_contain_text("Predict ")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a").click()
    content = text if isinstance(text, bytes) else text.encode()
    chooser.value.set_files({"name": name, "mimeType": "", "buffer": content})


def download(page) -> list[dict[str, str]]:
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download CSV").click()
    assert saved.value.suggested_filename == "predictions.csv"
    with Path(saved.value.path()).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def results(page):
    return page.get_by_role("table").first


def rows(page):
    return results(page).locator("tbody tr")


def tasks(page):
    return page.get_by_role("region", name="Predictions by task")


def slider(page):
    return page.get_by_role("slider", name="Level")


@pytest.mark.slow
def test_the_page_says_what_the_model_predicts_and_how_well(service, visit):
    page = visit(service)
    expect(page).to_have_title("Predict bbb: BBB+ or BBB- from SMILES")
    expect(page.get_by_role("heading", level=1)).to_have_text(
        "Predict bbb: BBB+ or BBB- from SMILES"
    )
    test = service.http.get("/model").json()["metrics"]["test"]
    header = page.get_by_role("banner")
    expect(header).to_contain_text(f"{100 * test:.2f} % accuracy on the model's own test part")


@pytest.mark.slow
def test_the_browser_lets_the_page_ask_its_own_server_alone(service, browser):
    page = browser.new_page()
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(service.url)
    fetched = "fetch({!r}).then(() => 'answered', () => 'refused')".format
    assert page.evaluate(fetched("http://elsewhere.test/")) == "refused"
    assert page.evaluate(fetched("healthz")) == "answered"
    assert {url for url in requests if not url.startswith((service.url, "data:"))} == set()
    page.close()


@pytest.mark.slow
def test_type_predict_and_slide_through_the_levels(service, visit):
    page = visit(service)
    predict(page, ASPIRIN, "", f"  {ETHANOL} ")
    expect(page.get_by_role("status")).to_have_text("Predicted 2 of 2 molecules.")
    for line, said in zip(
        rows(page).all(),
        service.ask({"smiles": [ASPIRIN, ETHANOL]}).json()["predictions"],
        strict=True,
    ):
        name = f"{said['id']} {said['note']}".strip()
        shown = [name, said["prediction"], f"{said['probabilities'][said['prediction']]:.3f}"]
        assert line.locator("td").all_inner_texts() == shown

    explained = service.ask({"smiles": ASPIRIN}, "/explain").json()
    levels, pictures = explained["explanation"]["levels"], explained["pictures"]
    assert (len(levels), len(set(pictures))) == (3, 4)
    sizes = [13, *(len(level["kept"]) for level in levels)]
    picture = page.get_by_role("img")
    for level, size in enumerate(sizes):
        slider(page).fill(str(level))
        words = f"level {level} of 3: {size} of 13 atoms"
        expect(slider(page)).to_have_attribute("aria-valuetext", words)
        expect(picture).to_have_attribute("alt", f"{ASPIRIN}, {words}")
        kind, _, svg = picture.get_attribute("src").partition(",")
        assert (kind, unquote(svg)) == ("data:image/svg+xml", pictures[level])
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    fidelity = explained["explanation"]["fidelity"]
    expect(page.get_by_role("main")).to_contain_text(f"with everything {fidelity['p']:.3f}")


@pytest.mark.slow
def test_another_row_shows_another_molecule_at_the_same_level(service, visit):
    page = visit(service)
    predict(page, ASPIRIN, "CCCCCCCC")
    slider(page).fill("2")
    rows(page).nth(1).click()
    expect(page.get_by_role("img")).to_have_attribute("alt", "CCCCCCCC, level 2 of 3: 2 of 8 atoms")
    expect(page.get_by_role("heading", level=2).last).to_have_text("CCCCCCCC")


@pytest.mark.slow
def test_a_csv_goes_in_and_predictions_come_out(service, visit):
    page = visit(service)
    molecules = [line.split("\t")[0] for line in B3DB[100:350]]
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_ALL)  # and CRLF
    table.writerow(["name", "SMILES ", "note"])
    table.writerow(["=1+1", BROKEN, 'a "note",\nin two lines'])
    table.writerows([f"molecule {at}", smiles, ""] for at, smiles in enumerate(molecules))
    upload(page, "mine.csv", b"\xef\xbb\xbf" + text.getvalue().encode())
    expect(page.get_by_role("status")).to_contain_text("Read 251 molecules from mine.csv.")
    expect(page.get_by_role("button", name="Predict")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("Predicted 250 of 251 molecules.")
    expect(rows(page)).to_have_count(200)
    page.get_by_role("button", name="Show more (200 of 251)").click()
    expect(rows(page)).to_have_count(251)

    first, *others = download(page)
    assert (first["row"], first["smiles"], first["prediction"]) == ("1", BROKEN, "")
    assert first["reason"]
    assert [line["smiles"] for line in others] == molecules
    said = service.ask({"smiles": molecules[:100]}).json()["predictions"]
    for line, prediction in zip(others, said, strict=False):
        assert line["prediction"] == prediction["prediction"]
        for name, share in prediction["probabilities"].items():
            assert float(line[f"p_{name}"]) == pytest.approx(share, abs=1e-4)


@pytest.mark.slow
def test_tables_of_other_programs_are_read(service, visit):
    page = visit(service)
    tables = {
        "CCO": "Smiles\nCCO\nCCC",
        "CCN": "id;SMILES\r1;CCN\r2;CCC",
        "CCS": "x\tsmiles\ty\n\tCCS\t\n\t\t\n\tCCC",
    }
    for first, text in tables.items():
        upload(page, "mine.csv", text)
        listed = re.compile(rf"^{first}\s+CCC\s*$")
        expect(page.get_by_label("one a line")).to_have_value(listed)
        expect(page.get_by_role("status")).to_contain_text("Read 2 molecules")


@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_said_in_words(service, visit):
    page = visit(service)
    complaints = {
        "name,structure\na,CCO": "mine.csv has no column named smiles",
        'smiles\n"CCO\nCC': "A quotation mark in the file is never closed.",
        "smiles\n\n": "mine.csv holds nothing to predict.",
        "": "mine.csv has no column named smiles",
    }
    for text, complaint in complaints.items():
        upload(page, "mine.csv", text)
        expect(page.get_by_role("alert")).to_contain_text(complaint)


@pytest.mark.slow
def test_a_file_can_be_dropped(service, visit):
    page = visit(service)
    expect(page.get_by_role("heading", level=1)).to_contain_text(" from SMILES")
    page.evaluate(
        """() => {
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File(["smiles\\nCCO"], "dropped.csv"));
          document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true }));
        }"""
    )
    expect(page.get_by_role("status")).to_contain_text("Read 1 molecule from dropped.csv.")


@pytest.mark.slow
def test_a_bad_smiles_is_said_alone_and_among_others(service, visit):
    page = visit(service)
    predict(page, BROKEN)
    expect(page.get_by_role("alert")).to_contain_text(f"Line 1 ({BROKEN}) was not predicted: ")
    expect(page.get_by_role("status")).to_have_text("Predicted 0 of 1 molecule.")
    predict(page, ETHANOL, "", BROKEN)
    expect(page.get_by_role("alert")).to_contain_text(f"Line 3 ({BROKEN}) was not predicted: ")
    expect(page.get_by_role("status")).to_have_text("Predicted 1 of 2 molecules.")
    expect(rows(page).nth(1)).to_contain_text("Not predicted: ")
    rows(page).nth(1).click()
    expect(page.get_by_role("img")).to_have_count(0)
    predict(page, "")
    expect(page.get_by_role("alert")).to_contain_text("There is nothing to predict.")


@pytest.mark.slow
def test_text_of_strangers_is_text_here_and_in_a_spreadsheet(service, visit):
    page = visit(service)
    lines = [HOSTILE, "=HYPERLINK(1)", "@x", "-C", 'a"b,c']
    predict(page, *lines, ETHANOL)
    expect(rows(page)).to_have_count(6)
    assert [line.locator("td").first.inner_text() for line in rows(page).all()[:5]] == lines
    saved = [line["smiles"] for line in download(page)]
    assert saved == [HOSTILE, "'=HYPERLINK(1)", "'@x", "'-C", 'a"b,c', ETHANOL]


@pytest.mark.slow
def test_cells_are_made_safe_by_the_rule_of_the_command_line(service, visit):
    cells = ["+", "-", "-1.5e3", "+.5", "-2.", "-1E-3", "=1", "+x", "--", "-1-1", "@", "\tx", "\nx"]
    saved = visit(service).evaluate("cells => cells.map(quoted)", cells)
    assert next(csv.reader([",".join(saved)])) == [safe_cell(cell) for cell in cells]


@pytest.mark.slow
def test_everything_can_be_done_by_keyboard(service, visit):
    page = visit(service)
    expect(page.get_by_role("heading", level=1)).to_contain_text("Predict ")
    press = page.keyboard.press
    press("Tab")
    expect(page.get_by_label("SMILES, one a line")).to_be_focused()
    page.keyboard.type(f"{ASPIRIN}\n{ETHANOL}\n{BROKEN}")
    press("Tab")
    expect(page.get_by_role("button", name="Predict")).to_be_focused()
    outline = "getComputedStyle(document.activeElement).outline"
    assert re.search(r"solid 3px|3px solid", page.evaluate(outline))
    press("Enter")
    expect(rows(page)).to_have_count(3)
    for name in ("Choose a CSV file", "Fill in an example", "Download CSV"):
        press("Tab")
        expect(page.get_by_role("button", name=name)).to_be_focused()
    press("Tab")
    expect(page.get_by_role("button", name=ASPIRIN)).to_be_focused()
    press("ArrowDown")
    press("Enter")
    expect(page.get_by_role("heading", name=ETHANOL)).to_be_visible()
    expect(page.get_by_role("button", name=ETHANOL)).to_have_attribute("aria-current", "true")
    expect(slider(page)).to_be_visible()
    press("Tab")
    expect(slider(page)).to_be_focused()
    press("End")
    expect(slider(page)).to_have_attribute("aria-valuetext", "level 3 of 3: 1 of 3 atoms")
    press("Home")
    expect(slider(page)).to_have_attribute("aria-valuetext", "level 0 of 3: 3 of 3 atoms")
    press("Shift+Tab")
    expect(page.get_by_role("button", name=ETHANOL)).to_be_focused()


@pytest.mark.slow
def test_graphs_are_taken_as_json_lines_by_who_has_the_key(tmp_path, visit):
    narrow = ("--max-graphs", "4", "--max-nodes", "20")  # of which the page makes more requests
    with serving(paths_model(tmp_path / "model"), *narrow, key=KEY) as served:
        page = visit(served)
        expect(page.get_by_label("API key")).to_be_focused()
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("The server does not accept this key.")
        page.get_by_label("API key").fill(KEY)
        page.keyboard.press("Enter")
        expect(page).to_have_title("Predict even or odd from a graph")
        expect(page.get_by_label("API key")).to_be_hidden()
        expect(page.get_by_role("alert")).to_have_text("")

        lines = [json.dumps(record) for record in PATHS] + ["{not JSON"]
        upload(page, "mine.jsonl", "\r\n".join(lines))
        page.get_by_role("button", name="Predict").click()
        expect(page.get_by_role("status")).to_have_text("Predicted 10 of 11 graphs.")
        expect(page.get_by_role("alert")).to_contain_text("(line 11) was not predicted: not JSON")
        said = [served.ask({"graphs": [record]}).json()["predictions"][0] for record in PATHS]
        for line, prediction in zip(download(page)[:10], said, strict=True):
            assert (line["id"], line["prediction"]) == (prediction["id"], prediction["prediction"])
        page.get_by_role("button", name="path 9").click()
        expect(slider(page)).to_have_attribute("aria-valuetext", "level 1 of 2: 5 of 9 nodes")
        page.reload()
        expect(page.get_by_label("API key")).to_be_focused()  # it was kept in memory alone


@pytest.mark.slow
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_several_targets_have_a_column_each(tmp_path, visit, task):
    model = molecules_model(tmp_path / "model", task, ("first", "second, quoted"))
    with serving(model) as served:
        page = visit(served)
        predict(page, *DRUGS)
        heads = results(page).get_by_role("columnheader")
        expect(heads).to_have_text(["SMILES", "first", "second, quoted"])
        expect(tasks(page).get_by_role("rowheader")).to_have_text(["first", "second, quoted"])
        expect(page.get_by_role("status")).to_have_text("Predicted 3 of 3 molecules.")
        said = served.ask({"smiles": DRUGS}).json()["predictions"]
        for line, prediction in zip(download(page), said, strict=True):
            for at, name in enumerate(["first", "second, quoted"]):
                value = float(line[f"prediction_{name}"])
                assert value == pytest.approx(prediction["prediction"][at], abs=1e-4)
                if task == "binary":
                    share = float(line[f"p_{name}"])
                    assert share == pytest.approx(prediction["probabilities"][name], abs=1e-4)
        expect(slider(page)).to_have_attribute("aria-valuetext", "level 1 of 2: 7 of 13 atoms")
        words = "the value of first is" if task == "regression" else "the probability of "
        expect(page.get_by_role("main")).to_contain_text(words)


TWELVE = [
    *("NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma"),
    *("SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"),
]
"""The tasks of Tox21."""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_twelve_tasks_are_a_table_of_their_own_at_any_width(tmp_path, visit, task):
    with serving(molecules_model(tmp_path / "model", task, TWELVE)) as served:
        said = served.ask({"smiles": DRUGS}).json()["predictions"]
        for width in (390, 1280, 1600, 1920):
            page = visit(served, viewport={"width": width, "height": 900})
            predict(page, *DRUGS)
            expect(slider(page)).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") == width
            for part in (page.get_by_role("img"), tasks(page)):
                assert part.bounding_box()["width"] > 300
            expect(tasks(page).get_by_role("rowheader")).to_have_text(TWELVE)
        expect(tasks(page).get_by_role("cell")).to_have_text(shown_tasks(said[0]))
        rows(page).nth(1).click()
        expect(tasks(page).get_by_role("cell")).to_have_text(shown_tasks(said[1]))
        page.get_by_label("Task", exact=True).select_option("SR-p53")
        for line, one in zip(rows(page).all(), said, strict=True):
            assert line.locator("td").all_inner_texts() == [one["id"], *shown_tasks(one, 11)]
        expect(page.get_by_role("button", name=DRUGS[1])).to_have_attribute("aria-current", "true")
        assert list(download(page)[0])[2] == "prediction_NR-AR"


def shown_tasks(said, *which) -> list[str]:
    """What the page shows of a molecule's tasks, one after the other."""
    shown = []
    for at in which or range(len(TWELVE)):
        shown.append(f"{said['prediction'][at]:.4g}")
        if said["probabilities"]:
            shown.append(f"{said['probabilities'][TWELVE[at]]:.3f}")
    return shown


@pytest.mark.slow
def test_the_page_takes_the_column_that_the_model_was_trained_on(tmp_path, visit):
    model = molecules_model(tmp_path / "model")
    about = json.loads((model / "config.json").read_text())
    about["about"]["run"] = {"data": {"smiles_column": "mol"}}
    (model / "config.json").write_text(json.dumps(about))
    with serving(model) as served:
        page = visit(served)
        expect(page.get_by_role("main")).to_contain_text("a column named mol or smiles")
        for head, smiles in (("mol", "CCC"), ("SMILES", "CCO"), ("smiles,mol", "CO,CCN")):
            upload(page, "mine.csv", f"{head}\n{smiles}")
            expect(page.get_by_label("one a line")).to_have_value(smiles.split(",")[-1])
        upload(page, "mine.csv", "structure\nCCO")
        expect(page.get_by_role("alert")).to_contain_text("no column named mol or smiles")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (500, "tell whoever runs the server"),
        (503, "wait a little, then press Predict again"),
        (413, "was not predicted: Too much"),
    ],
)
def test_what_the_server_refuses_is_said_in_words(service, visit, status, advice):
    page = visit(service)
    detail = {"detail": "Too much", "where": None}
    page.route("**/predict", lambda route: route.fulfill(status=status, json=detail))
    predict(page, ETHANOL)
    expect(page.get_by_role("alert")).to_contain_text(advice)
    expect(page.get_by_role("alert")).to_contain_text("Too much")


@pytest.mark.slow
def test_a_server_that_is_busy_is_asked_again_and_one_that_is_gone_is_told(trained, visit):
    with serving(trained, "--max-requests", "1") as served:
        page = visit(served)
        other = HalfSent(served, {"smiles": ETHANOL})
        predict(page, ETHANOL)
        expect(page.get_by_role("status")).to_contain_text("The server is busy. Trying again in")
        assert other.finish()[0] == 200
        expect(page.get_by_role("status")).to_have_text("Predicted 1 of 1 molecule.")
        expect(slider(page)).to_be_visible()
    predict(page, ETHANOL)
    expect(page.get_by_role("alert")).to_contain_text("Check that gtpool serve is still running")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_and_enough_contrast(service, visit, scheme):
    page = visit(service, color_scheme=scheme)
    predict(page, ASPIRIN, BROKEN)
    expect(slider(page)).to_be_visible()
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(REPEATED) == []
    assert page.locator("h1").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"
    pairs = page.evaluate(COLOURS)
    assert len(pairs) > 20
    low = [pair for pair in pairs if contrast(*map(luminance, pair["colours"])) < 4.5]
    assert low == []


NAMELESS = """() => [...document.querySelectorAll("input, textarea, button, progress, img")]
  .filter((e) => !(e.labels?.length && e.tagName !== "BUTTON")
    && !(e.ariaLabel || e.alt || e.textContent.trim()) && !e.closest("[hidden]"))
  .map((e) => e.outerHTML)"""
REPEATED = """() => [...document.querySelectorAll("[id]")].map((e) => e.id)
  .filter((id, at, all) => all.indexOf(id) !== at)"""
COLOURS = """() => {
  const style = (e) => getComputedStyle(e);
  const behind = (e) => style(e).backgroundColor === "rgba(0, 0, 0, 0)" && e.parentElement
    ? behind(e.parentElement) : style(e).backgroundColor;
  const speaks = (e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  return [...document.body.querySelectorAll("*")]
    .filter((e) => e.checkVisibility() && speaks(e))
    .map((e) => ({ text: e.textContent, colours: [style(e).color, behind(e)] }));
}"""


def luminance(colour: str) -> float:
    """Give the relative luminance of WCAG 2."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    assert len(parts) == 3  # nothing is half transparent
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 768, 1600])
def test_the_page_is_never_wider_than_the_window(service, visit, width):
    page = visit(service, viewport={"width": width, "height": 700})
    predict(page, "C" * 200, ASPIRIN, "C" * 400 + "(")
    expect(page.get_by_role("alert")).to_contain_text("was not predicted")
    expect(slider(page)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == width
