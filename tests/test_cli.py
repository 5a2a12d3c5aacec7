import inspect
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gtpool import __version__
from gtpool.cli import app
from gtpool.report.plot import draw_kept

SVG = "{http://www.w3.org/2000/svg}"
KEPT = "#2a6f97"
EDGES = ("induced", "khop:2", "closest")


def circles_of(picture: Path) -> list[tuple[float, float, str]]:
    """List x, y and style of every node's circle; none may be cut off."""
    root = ET.parse(picture).getroot()  # noqa: S314
    panels = [group for group in root.iter(f"{SVG}g") if "PathCollection" in group.get("id", "")]
    assert not any(part.get("clip-path") for panel in panels for part in panel.iter())
    uses = [use for panel in panels for use in panel.iter(f"{SVG}use")]
    return [(float(use.get("x")), float(use.get("y")), use.get("style")) for use in uses]


def rows_of(table: str) -> list[list[str]]:
    lines = (line for line in table.splitlines() if line.startswith("│"))
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_compare_shows_the_molecule_and_draws_it(tmp_path):
    result = CliRunner().invoke(app, ["compare", "--output-dir", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    rows = rows_of(result.output)
    assert [row[0] for row in rows] == [str(node) for node in range(17)]
    assert "".join(row[1] for row in rows) == "C" * 14 + "NOO"
    assert [sum(row[column] == "●" for row in rows) for column in (5, 6, 7)] == [9, 9, 9]
    assert sum(float(row[4]) for row in rows) == pytest.approx(1, abs=1e-3)

    lines = [re.split(r"  +", line.strip()) for line in result.output.splitlines()]
    pairs = {
        line[0]: [int(cell.split(",")[0]) for cell in line[1:]]
        for line in lines
        if line[0] in EDGES
    }
    assert all(one <= other for one, other in zip(pairs["induced"], pairs["khop:2"], strict=True))
    assert all(one <= other for one, other in zip(pairs["induced"], pairs["closest"], strict=True))
    assert sum(pairs["closest"]) > sum(pairs["induced"])

    picture = tmp_path / "new/mutag-0-kept.svg"
    assert f"picture: {picture}" in result.output
    circles = circles_of(picture)
    assert len(circles) == 3 * 17
    filled = [KEPT in style for _, _, style in circles]
    marked = [row[column] == "●" for column in (5, 6, 7) for row in rows]
    assert filled == marked


def test_compare_as_a_program_with_options(tmp_path):
    program = Path(sys.executable).with_name("gtpool")
    options = ("--graph", "5", "--ratio", "0.25", "--seed", "3", "--output-dir", str(tmp_path))
    done = subprocess.run(
        [program, "compare", *options], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = rows_of(done.stdout)
    assert len(rows) == 28
    assert [sum(row[column] == "●" for row in rows) for column in (5, 6, 7)] == [7, 7, 7]
    picture = tmp_path / "mutag-5-kept.svg"
    assert sum(KEPT in style for _, _, style in circles_of(picture)) == 21


def test_same_seed_same_table_and_picture(tmp_path):
    runs = []
    for folder in ("one", "two"):
        result = CliRunner().invoke(app, ["compare", "--output-dir", str(tmp_path / folder)])
        rows = rows_of(result.output)
        runs.append((rows, (tmp_path / folder / "mutag-0-kept.svg").read_bytes()))
    assert runs[0] == runs[1]
    other = CliRunner().invoke(app, ["compare", "--seed", "1", "--output-dir", str(tmp_path)])
    assert rows_of(other.output) != runs[0][0]


def test_bad_ratio_is_one_line_and_exit_code_2(gtpool, tmp_path):
    code, out, err = gtpool("compare", "--ratio", "1.5", "--output-dir", str(tmp_path))
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(
        "gtpool: a float ratio is the share of nodes to keep, in (0, 1], got 1.5"
    )
    assert not list(tmp_path.iterdir())


def test_control_characters_of_a_file_do_not_reach_the_terminal(gtpool, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("smiles,Smiles\x1b]0;x\x07,SMILES\nC,C,C\n")
    path = path.rename(tmp_path / "mine\x1b[2J.csv")
    code, _, err = gtpool("train", str(path), "--epochs", "1")
    assert (code, "mine\\x1b[2J.csv" in err) == (2, True)
    assert "\x1b" not in err


def test_output_that_cannot_be_written_is_one_line(gtpool, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = gtpool("compare", "--output-dir", str(tmp_path / "file/folder"))
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith("gtpool: ")
    assert "file/folder" in line


def test_a_molecule_that_is_not_there_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["compare", "--graph", "188", "--output-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "187" in result.output


def test_version_and_help():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"gtpool {__version__}\n")
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in (
        "train",
        "predict",
        "evaluate",
        "explain",
        "serve",
        "demo",
        "compare",
        "list",
        "data",
    ):
        assert f" {command} " in result.output


def test_help_does_not_break_lines_twice_in_a_terminal_of_80_columns():
    groups = [app, *(group.typer_instance for group in app.registered_groups)]
    commands = [command.callback for group in groups for command in group.registered_commands]
    assert len(commands) > 15
    for command in commands:  # typer joins the lines of the first paragraph, and no others
        for paragraph in inspect.getdoc(command).split("\n\n")[1:]:
            *lines, _ = paragraph.splitlines()
            assert max(map(len, lines), default=0) <= 78, (command.__name__, paragraph)


def test_list_names_what_the_options_take():
    result = CliRunner().invoke(app, ["list"])
    assert result.exit_code == 0
    names = dict(line.split(":") for line in result.output.splitlines() if ":" in line)
    for option, some in {
        "poolers (--pool)": {"none", "gtpool", "gtpool-v"},
        "convolutions (--conv)": {"gcn", "gin", "gat", "ogb-gcn"},
        "readouts (--readout)": {"mean", "max", "sum", "mean-max"},
        "features (--features)": {"gmt", "fair", "degree", "constant"},
        "samplers": {"topk", "rws", "rwsv"},
    }.items():
        assert some <= {name.strip() for name in names[option].split(",")}


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [(1, []), (3, []), (12, [(i, i + 1) for i in range(11)]), (4, [(0, 1), (1, 0), (2, 2)])],
    ids=["one node", "no edges", "path", "two parts"],
)
def test_every_circle_lies_inside_the_picture(tmp_path, nodes, edges):
    picture = tmp_path / "graph.svg"
    picture.write_text(draw_kept(edges, ["C"] * nodes, {"first": [0], "none": []}))
    circles = circles_of(picture)
    assert len(circles) == 2 * nodes
    _, _, width, height = map(float, ET.parse(picture).getroot().get("viewBox").split())  # noqa: S314
    radius = 9
    assert all(radius <= x <= width - radius for x, _, _ in circles)
    assert all(radius <= y <= height - radius for _, y, _ in circles)
