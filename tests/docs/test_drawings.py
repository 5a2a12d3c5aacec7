"""The pictures in the documentation are what their program draws, and say what is true."""

import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from gtpool.ops.sample import SAMPLERS

DOCS = Path(__file__).parents[2] / "docs"
DRAWINGS = runpy.run_path(str(DOCS / "drawings.py"))
NAMES = ("layer", "wheel", "levels")


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_picture_is_what_the_program_draws(name):
    assert (DOCS / f"{name}.svg").read_text(encoding="utf-8") == DRAWINGS[name]()


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_sound_and_needs_nothing_beside_itself(name):
    text = DRAWINGS[name]()
    root = ET.fromstring(text)  # noqa: S314 - our own
    assert root[0].tag.endswith("title")
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}
    width, height = (float(root.get(side)) for side in ("width", "height"))
    assert root.get("viewBox") == f"0 0 {width:.0f} {height:.0f}"
    for part in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 < float(part.get("x")) < width
        assert 0 < float(part.get("y")) < height


def test_the_worked_example_names_whom_each_sampler_keeps():
    shares = torch.tensor([0.20, 0.20, 0.25, 0.35]).log()
    said = " ".join(ET.fromstring(DRAWINGS["wheel"]()).itertext())  # noqa: S314
    for name, kept in {"rws": "{b, d}", "rwsv": "{b, c}", "topk": "{c, d}"}.items():
        places = SAMPLERS[name](shares, torch.zeros(4, dtype=torch.long), 0.5).tolist()
        assert "{" + ", ".join("abcd"[place] for place in places) + "}" == kept
        assert f"{DRAWINGS['NAMES'][name]} keeps {kept}" in said
