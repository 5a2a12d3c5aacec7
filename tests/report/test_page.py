import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from html_page import Page

from gtpool.report.page import MethodSection, describe_network, write_report
from gtpool.report.plot import (
    _mean_and_range,
    draw_confusion,
    draw_curves,
    draw_roc,
    draw_scatter,
    with_background,
)
from gtpool.report.result_tables import TextTable
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec
from gtpool.study.heldout import HeldOut, confusion, roc_curves, write_held_out
from gtpool.study.result import RunResult
from gtpool.train.metric import roc_auc

HOSTILE = "<script>alert('&')</script>"


def row(fold, *, seed=42, source="MUTAG", status="done", pool="gtpool", length=5):
    spec = RunSpec(
        data=DataSpec(source=source),
        split=SplitSpec(rule="stratified", folds=3, fold=fold),
        model=ModelSpec(pool=pool),
        seed=seed,
    )
    falling = [1 / (epoch + 1) for epoch in range(length)]
    rising = [0.5 + 0.1 * epoch / length for epoch in range(length)]
    said = {
        "key": spec.key,
        "spec": spec.to_json(),
        "status": status,
        "error": None if status == "done" else f"the loss is nan {HOSTILE}",
        "metric": "accuracy",
        "test": 0.7 + 0.01 * fold if status == "done" else None,
        "valid_loss": 0.5,
        "valid_metric": 0.6,
        "epoch": 3,
        "epochs_run": length,
        "other_rules": dict.fromkeys(("valid_loss", "valid_metric", "last", "best_test"), 0.7),
        "curves": {
            "train_loss": falling,
            "valid_loss": falling,
            "valid_metric": [None, *rising[1:]],
            "test_metric": rising,
        },
        "split": {
            "rule": f"stratified folds, seed 0, fold {fold + 1} of 3",
            "digest": f"abc{fold}",
            "train": 60,
            "valid": 64,
            "test": 64,
        },
        "parameters": 1234,
        "seconds": 1.5,
        "device": "cpu",
        "versions": {"gtpool": "0.1.0", "torch": "2"},
        "commit": None,
        "finished": "2026-11-15T10:00:00+00:00",
    }
    return RunResult.from_json(said)


def section(name="GTPool", **more):
    rows = [row(0, **more), row(1, length=9, **more), row(2, status="failed", **more)]
    pictures = {
        "Curves.": draw_curves(rows[:2]),
        "Counts.": draw_confusion(np.array([[3, 1], [0, 4]]), [HOSTILE, "a $x_1$ class"]),
    }
    return MethodSection(name, rows, pictures)


@pytest.fixture
def page(tmp_path):
    def write(*sections, title="A title", notes=("A note.",)) -> Path:
        write_report(tmp_path / "new" / "page.html", title, sections, notes)
        return tmp_path / "new" / "page.html"

    return write


def test_page_is_sound_and_needs_nothing_beside_itself(page):
    text = page(section(), section("other", pool="gtpool-v")).read_text()
    read = Page(text)
    assert len(read.ids) == len(set(read.ids)) > 10
    assert [at for at in read.addresses if not at.strip("'\"").startswith(("#", "data:"))] == []
    assert "script" not in read.tags
    assert not re.search(r"@import|url\(\s*['\"]?http", text)
    inside = {at.strip("'\"")[1:] for at in read.addresses if at.strip("'\"").startswith("#")}
    assert inside <= set(read.ids)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_page_says_the_numbers_and_what_is_missing(page):
    said = " ".join(Page(page(section()).read_text()).text)
    assert "70.50 ± 0.71" in said
    assert "2 runs, ± standard deviation over folds, 1 missing" in said
    assert "seed 42, fold 3 : the loss is nan" in said.replace("fold 3:", "fold 3 :")
    assert "–" in said
    for fact in ("stratified folds, seed 0, 3 folds", "abc0", "abc1", "gtpool 0.1.0", "not known"):
        assert fact in said
    assert "abc2" not in said  # of the run that failed


def test_page_of_several_tasks_has_a_table_by_task(page):
    tasks = TextTable(("task", "ROC-AUC, %", "labels"), (("NR-AR", "71.00", "12"),))
    said = Page(page(section()._replace(tasks=tasks)).read_text()).text
    place = said.index("NR-AR")
    assert said[place : place + 3] == ["NR-AR", "71.00", "12"]


def test_methods_are_set_side_by_side_if_there_are_several(page):
    one = Page(page(section()).read_text())
    two = Page(page(section(), section("other", pool="gtpool-v")).read_text())
    assert "seconds a run" not in one.text
    assert "seconds a run" in two.text
    assert two.tags.count("h2") == 2


def test_names_of_strangers_are_text_and_no_code(page):
    hostile = section(HOSTILE, source=HOSTILE)
    read = Page(page(hostile, section(), title=HOSTILE, notes=[HOSTILE]).read_text())
    assert "script" not in read.tags
    assert sum(HOSTILE in part for part in read.text) >= 5


def test_rows_left_out_are_text_and_the_first_thousand_are_listed(tmp_path):
    rows = [(line, f"{HOSTILE}{line}" + "C" * 500, "not valid") for line in range(1500)]
    write_report(tmp_path / "page.html", "A title", [section()], left_out=rows)
    text = (tmp_path / "page.html").read_text()
    read = Page(text)
    assert "script" not in read.tags
    assert sum(HOSTILE in part for part in read.text) - 1 == 1000  # one is in a picture
    assert "left_out.csv" in text
    assert "C" * 201 not in text


def test_the_same_runs_give_the_same_bytes(page):
    assert page(section()).read_bytes() == page(section()).read_bytes()


def test_page_of_runs_that_all_failed(page):
    rows = [row(fold, status="failed") for fold in range(3)]
    said = " ".join(Page(page(MethodSection("all", rows, {})).read_text()).text)
    assert "missing" in said
    assert "0 runs, 3 missing" in said


def test_drawings_are_svg_whose_words_are_words():
    false, true = np.array([0, 0.5, 1]), np.array([0, 0.9, 1])
    drawings = {
        draw_curves([row(0)]): "validation",
        draw_confusion(np.eye(2, dtype=int), ["no", "yes"]): "predicted",
        draw_roc([(false, true)]): "share of positives found",
        draw_roc([]): "share of positives found",
        draw_scatter(np.array([1.0, 2.0]), np.array([1.5, 2.5])): "predicted",
    }
    for svg, word in drawings.items():
        root = ET.fromstring(with_background(svg))  # noqa: S314
        assert root.tag.endswith("svg")
        assert word in {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
        assert "date" not in svg


def test_curves_end_where_fewer_than_half_of_the_runs_go_on():
    low, mean, high = _mean_and_range([[1.0, 2.0], [3.0, None], [8.0, 4.0, 5.0]])
    assert (low.tolist(), high.tolist()) == ([1, 2], [8, 4])
    assert mean.tolist() == [4, 3]  # of those that are known
    assert len(_mean_and_range([[1.0], [1.0, 2.0], [1.0, 2.0, 3.0, 4.0]])[1]) == 2
    assert len(_mean_and_range([[1.0], [1.0, 2.0]])[1]) == 2


def test_confusion_counts_true_against_predicted():
    output = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    part = HeldOut(42, 0, np.arange(3), output, np.array([0, 1, 1]))
    assert confusion([part, part], 2).tolist() == [[2, 0], [2, 2]]


def test_area_under_our_curves_is_the_metric_with_ties_and_missing_labels():
    import torch  # noqa: PLC0415 - the metric's

    random = np.random.default_rng(0)
    score = random.integers(0, 6, (50, 3)) / 6
    y = random.integers(0, 2, (50, 3)).astype(float)
    y[random.random(y.shape) < 0.2] = np.nan
    y[:, 2] = 1  # one class only: no curve
    curves = roc_curves([HeldOut(42, 0, np.arange(50), score, y)])
    assert len(curves) == 2
    areas = [np.trapezoid(true, false) for false, true in curves]
    assert np.mean(areas) == pytest.approx(roc_auc(torch.tensor(score), torch.tensor(y)))
    assert all(curve[0] == 0 and curve[-1] == 1 for pair in curves for curve in pair)


def test_predictions_of_tasks_leave_missing_labels_blank(tmp_path):
    output, y = np.array([[0.25, 0.5], [1, 0]]), np.array([[1, np.nan], [0, 1]])
    parts = [HeldOut(42, 0, np.array([3, 1]), output, y)]
    path = tmp_path / "said.csv"
    write_held_out(path, parts, "binary", ["a", "b"], {"line": [2, 3, 4, 9]})
    assert path.read_text() == (
        "seed,fold,graph,line,true_a,p_a,true_b,p_b\n"
        "42,1,3,9,1,0.25,,0.5\n"
        "42,1,1,3,0,1,1,0\n"
    )  # fmt: skip
    write_held_out(path, parts, "regression", ["a", "b"], {})
    assert path.read_text().startswith("seed,fold,graph,true_a,prediction_a,true_b,")


def test_predictions_of_classes_are_no_formulas(tmp_path):
    output, y = np.array([[0.25, 0.75], [1, 0]]), np.array([0, 1])
    parts = [HeldOut(42, 0, np.array([0, 1]), output, y)]
    path = tmp_path / "said.csv"
    write_held_out(path, parts, "classes", ["=1+1", "-1"], {"smiles": ["@x", "C"]})
    lines = path.read_text().splitlines()
    assert lines[1] == "42,1,0,'@x,'=1+1,-1,0.250000,0.750000"


@pytest.fixture
def browse(tmp_path):
    """Open a file in a real browser without network: its DOM, and the addresses it asked for."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium here (apt-get install chromium)")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]

    def open_page(path: Path, *more: str) -> tuple[str, set[str]]:
        log = tmp_path / "net.json"
        command = [chromium, *flags, f"--user-data-dir={tmp_path / 'profile'}"]
        command += [f"--log-net-log={log}", "--host-resolver-rules=MAP * ~NOTFOUND", *more]
        done = subprocess.run(
            [*command, path.as_uri()], check=True, capture_output=True, text=True, timeout=300
        )
        asked = set(re.findall(r'"url":"([a-z]+://[^"/]*)', log.read_text()))
        own = re.compile(r"https?://[\w.]*\.(google|googleapis|gvt1)\.com")  # the browser's
        return done.stdout, {address for address in asked if not own.fullmatch(address)}

    return open_page


@pytest.mark.slow
def test_page_opens_in_a_browser_without_asking_anyone(page, browse, tmp_path):
    path = page(section(), section("other", pool="gtpool-v"))
    dom, asked = browse(path, "--dump-dom")
    assert {address for address in asked if not address.startswith("file:")} == set()
    assert "70.50 ± 0.71" in dom
    assert dom.count("<svg") == 4
    for width in (390, 1200):
        picture = tmp_path / f"{width}.png"
        browse(path, f"--window-size={width},1500", f"--screenshot={picture}")
        assert picture.stat().st_size > 20_000


@pytest.mark.slow
def test_the_browser_test_would_notice_a_request(browse, tmp_path):
    path = tmp_path / "other.html"
    path.write_text("<img src='http://elsewhere.test/x.png'>")
    _, asked = browse(path, "--dump-dom")
    assert "http://elsewhere.test" in asked


def test_the_line_of_a_network_names_what_its_blocks_have():
    model = ModelSpec(conv="dmpnn", pool="none", levels=2, ffn=True, virtual_node=True)
    line = describe_network(RunSpec(data=DataSpec(source="B3DB"), model=model))
    assert line.startswith("2 × dmpnn (with bonds), feed-forward, virtual node, no pooling")
