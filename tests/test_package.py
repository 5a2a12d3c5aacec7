import subprocess
import sys
import venv
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent


def test_what_is_pinned_installs_on_the_first_python_3_11():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower() for line in lines if "==" in line}
    here = [found.metadata for found in distributions() if found.name.lower() in pinned]
    assert len(here) > 50
    refused = [
        f"{found['Name']} {found['Version']} wants Python {found['Requires-Python']}"
        for found in here
        if not SpecifierSet(found["Requires-Python"] or "").contains("3.11.0")
    ]
    assert not refused


@pytest.mark.slow
def test_wheel_imports_from_a_fresh_environment_and_brings_its_data(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("gtpool-*.whl")

    # The fresh environment gets our wheel and nothing else of this project; the heavy
    # dependencies, which are not under test, are lent from the running one by a path file.
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=True)
    python = fresh / "bin/python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], check=True
    )
    (site,) = fresh.glob("lib/python*/site-packages")
    (borrowed,) = {path for path in sys.path if path.endswith("site-packages")}
    (site / "borrowed.pth").write_text(borrowed)

    program = (
        "import gtpool, pathlib; from gtpool.data.sources import load;"
        "print(gtpool.GTPool(8), len(load('MUTAG')), len(load('B3DB')),"
        "pathlib.Path(gtpool.__file__).parent)"
    )
    done = subprocess.run(
        [python, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert " 188 7805 " in done.stdout
    assert str(fresh) in done.stdout
    compare = [fresh / "bin/gtpool", "compare", "--output-dir", tmp_path / "out"]
    subprocess.run(compare, check=True, capture_output=True, cwd=tmp_path)
    assert (tmp_path / "out/mutag-0-kept.svg").exists()


def test_graphs_that_are_no_molecules_need_neither_rdkit_nor_scikit_learn():
    code = (
        "import sys; sys.modules['rdkit'] = sys.modules['sklearn'] = None; import gtpool; "
        "gtpool.GraphClassifier(); gtpool.GraphRegressor(); assert len(gtpool.load('MUTAG')) == 188"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
