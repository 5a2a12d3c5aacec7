"""The pages of results: their plan, their figures, and what their overview says of the rows."""

import re
import shlex
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from gtpool.reproduce.paper import STUDIES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import chart  # noqa: E402 - from the folder above

FOLDER = DOCS / "results"
QUESTIONS = sorted(set(FOLDER.glob("*.md")) - {FOLDER / "index.md", FOLDER / "reproduction.md"})
INDEX = (FOLDER / "index.md").read_text(encoding="utf-8")
FINDINGS = re.findall(r"^\d+\. (.+?)(?=^\d+\. |^## )", INDEX, re.MULTILINE | re.DOTALL)
TU = ("MUTAG", "ENZYMES", "PROTEINS", "PTC_MR", "Synthie", "IMDB-BINARY", "IMDB-MULTI")


@pytest.mark.parametrize("page", QUESTIONS, ids=lambda page: page.stem)
def test_a_page_has_question_answer_figure_table_limits_and_command(page):
    title, answer, figure, *rest = page.read_text(encoding="utf-8").split("\n\n")
    assert re.fullmatch(r"# .+\?", title)
    assert len(re.findall(r"[.!?](?=\s|$)", re.sub(r"`[^`]*`", "code", answer))) == 2
    found = re.fullmatch(r"!\[.{20,}\]\((.+\.svg)\)", figure)
    assert found, figure
    assert (FOLDER / found[1]).exists()
    text = "\n\n".join(rest)
    table, limits, command = (
        text.index(part) for part in ("<!-- docs/tables.py: ", "\n## Limits\n", "\n## Repeat it\n")
    )
    assert table < limits < command
    assert "$ gtpool " in text[command:]


@pytest.mark.parametrize("page", QUESTIONS, ids=lambda page: page.stem)
def test_a_page_repeats_a_cell_that_exists(page):
    commands = re.findall(r"^\$ gtpool reproduce cell (.+)$", page.read_text("utf-8"), re.MULTILINE)
    assert commands
    for command in commands:
        study, dataset, line, *_ = shlex.split(command)
        assert STUDIES[study].only(dataset=dataset, line=line)


def test_the_overview_has_at_most_twelve_findings_of_one_sentence_with_a_link():
    assert 1 <= len(FINDINGS) <= 12
    for finding in FINDINGS:
        assert len(re.findall(r"[.!?](?=\s|$)", re.sub(r"\(.*?\)", "", finding).strip())) == 1
        assert re.search(r"\]\([\w./-]+\.md\)", finding)


def test_the_overview_links_every_page():
    assert [page.name for page in QUESTIONS if f"({page.name})" not in INDEX] == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.svg")), ids=lambda path: path.stem)
def test_a_figure_fits_its_size_and_needs_nothing_beside_itself(path):
    text = path.read_text(encoding="utf-8")
    root = ET.fromstring(text)  # noqa: S314 - our own
    assert root[0].tag.endswith("title")
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}
    width, height = (float(root.get(side)) for side in ("width", "height"))
    assert width <= 440
    for part in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 < float(part.get("x")) < width
        assert 0 < float(part.get("y")) < height


def test_a_mark_is_drawn_where_its_value_is_and_one_beyond_the_end_at_the_end():
    rows = [
        chart.Row("a", [chart.Mark(-10.0)]),
        chart.Row("b", [chart.Mark(0.0)]),
        chart.Row("c", [chart.Mark(-30.0)]),
        chart.Row("d", []),
    ]
    svg = chart.dot_plot("title", [chart.Panel("", rows)], "points", ends=(-20.0, 0.0))
    half, end, cut = (float(x) for x in re.findall(r'<circle cx="([\d.]+)"', svg))
    assert half == pytest.approx((cut + end) / 2, abs=0.1)
    assert cut < half < end < chart.WIDTH
    assert svg.count(">missing<") == 1


@pytest.fixture(scope="module")
def results():
    import effects  # noqa: PLC0415 - reads all rows

    return effects


def differences(results, page, **where):
    found = [
        one for one in results.effects(page) if all(getattr(one, k) == v for k, v in where.items())
    ]
    return [one for one in found if one.difference is not None]


def first_specs(cells):
    return [one.place.specs[0] for one in cells]


def percent(results, study, line, dataset):
    return results.find(study, line, dataset).percent


@pytest.mark.slow
def test_the_figures_are_drawn_from_the_rows():
    import result_figures  # noqa: PLC0415 - reads all rows

    assert list(result_figures.stale()) == [], "run `make performance`"


@pytest.mark.slow
def test_a_table_of_methods_has_one_recipe(results):
    for name in results.FAMILIES:
        cells, _ = results.family(name)
        inputs = {(one.data.encode, one.data.molecule_features) for one in first_specs(cells)}
        assert len(inputs) == 1
        assert (inputs.pop()[1] != ()) == (name == "described")
        if len({one.study for one in cells}) > 1:
            for dataset in results.DATASETS:
                here = [one for one in cells if one.place.dataset == dataset]
                assert len({(one.data, one.train) for one in first_specs(here)}) <= 1


@pytest.mark.slow
def test_only_its_own_table_shows_descriptors(results):
    lines = [one.name for page in results.PAGES for one in results.effects(page)]
    assert lines
    assert not [line for line in (*lines, *results.RIVALS) if "descriptors" in line]
    assert not [line for line in STUDIES["best"].together if "descriptors" in line]


@pytest.mark.slow
def test_effects_are_differences_of_the_figures_in_the_tables(results):
    for one in differences(results, "levels", name="levels 1"):
        gap = percent(results, "levels", "1", one.dataset)
        gap -= percent(results, "levels", "3", one.dataset)
        assert one.difference == pytest.approx(gap)
        assert one.low < one.difference < one.high


@pytest.mark.slow
class TestFindings:
    """What the overview says. Where new rows change an answer, change its sentence."""

    def test_1_ours_stay_below_the_figures_of_the_paper(self, results):
        for line in ("gtpool", "gtpool-v"):
            for name in results.DATASETS:
                assert results.find("table1", line, name).difference < 0, name

    def test_2_baselines_agree_on_five_datasets(self, results):
        for name in ("PROTEINS", "PTC_MR", "IMDB-BINARY", "IMDB-MULTI", "ogbg-moltox21"):
            gaps = [
                one.difference
                for one in results.results("table1")
                if one.place.dataset == name
                and one.has_complete_seed
                and one.difference is not None
                and one.place.line not in ("gtpool", "gtpool-v")
            ]
            assert sum(abs(gap) <= 2 for gap in gaps) >= 2 / 3 * len(gaps), name

    def test_3_most_tu_sets_have_no_method_told_from_the_best(self, results):
        made = results.family("paper-recipe")[1].by_dataset
        assert sum(len(made[name].best) == len(made[name].means) for name in TU) > len(TU) / 2

    def test_3_most_poolers_beyond_the_paper_cannot_be_told_from_a_flat_gcn(self, results):
        found = differences(results, "poolers")
        told = [one for one in found if one.verdict in ("higher", "lower")]
        assert len(told) < len(found) / 2

    def test_encodings_lift_every_pooler_on_mutag(self, results):
        for places in results.ENCODED_PAIRS.values():
            without, encoded = (results.find_cell(place, "MUTAG") for place in places)
            if without.has_complete_seed and encoded.has_complete_seed:
                assert encoded.percent > without.percent, places

    def test_4_a_flat_gcn_is_never_told_from_the_best(self, results):
        made = results.family("same-budget")[1].by_dataset
        assert [name for name, one in made.items() if "gcn" not in one.best] == []
        assert not [one for one in results.effects("same-budget") if one.verdict == "higher"]

    def test_5_encodings_lift_a_flat_gcn_on_two_sets(self, results):
        gains = {
            one.dataset: one.difference
            for one in differences(results, "encodings", name="gcn: with encodings, training")
        }
        far = {name for name, gain in gains.items() if gain > 10}
        assert far == {"MUTAG", "Synthie"}
        assert all(gain < 3 for name, gain in gains.items() if name not in far)

    def test_6_raw_attributes_cost_on_enzymes_alone(self, results):
        told = {one.dataset for one in results.effects("features") if one.verdict == "lower"}
        assert told == {"ENZYMES"}

    def test_7_wheels_are_mostly_above_by_no_difference_that_can_be_told(self, results):
        found = differences(results, "wheel")
        assert sum(one.difference > 0 for one in found) > len(found) / 2
        assert {one.verdict for one in found} <= {
            "cannot tell",
            "not tested",
            "equal for practical purposes",
        }

    def test_8_no_part_is_shown_to_be_needed_and_one_level_does_as_well(self, results):
        parts = ("no-local-score", "no-global-score", "gtpool-topk")
        assert not [
            one for one in results.effects("parts") if one.name in parts and one.verdict == "lower"
        ]
        for name in ("levels 1", "ratio 0.75"):
            assert all(one.difference >= 0 for one in differences(results, "levels", name=name))

    def test_9_the_papers_figure_lies_between_the_rules(self, results):
        def lies_between(name):
            cell = results.find("table1", "gtpool-v", name)
            rules = {rule: 100 * one.mean for rule, one in cell.rules.items()}
            told, cheat = cell.place.published.mean, rules.pop("best_test")
            return max(rules.values()) < told < cheat

        assert sum(map(lies_between, TU)) > len(TU) / 2

    def test_10_ensembles_of_five_are_above_their_networks(self, results):
        found = differences(results, "ensembles", name="gtpool-v")
        assert all(one.difference > 0 for one in found)

    def test_11_only_merging_solves_long_range(self, results):
        for line in results.STUDIES["tasks"].lines:
            assert percent(results, "tasks", line, "long-range") < 60
        assert percent(results, "long-range", "kmis", "long-range") > 95

    def test_12_the_default_is_better_than_chemprop_on_every_judged_split(self):
        import molecule_tables  # noqa: PLC0415 - reads all rows

        line = next(x for x in molecule_tables.ranks().splitlines() if x.startswith("| gtpool |"))
        better, of = re.search(r"(\d+) of (\d+)", line).groups()
        assert better == of
