"""The service against its own description, by schemathesis."""

import subprocess
import sys
from pathlib import Path

import pytest
from serving import molecules_model, paths_model, serving

pytest.importorskip("schemathesis", reason="needs schemathesis")
PROGRAM = Path(sys.executable).with_name("schemathesis")
# That a body has the right form does not make its text a molecule, or its graph one that fits.
LEFT_OUT = "positive_data_acceptance"


@pytest.mark.slow
@pytest.mark.parametrize(("make", "key"), [(molecules_model, None), (paths_model, "a key of ours")])
def test_no_request_breaks_it_and_every_answer_is_as_described(tmp_path, make, key):
    with serving(make(tmp_path / "model"), key=key) as served:
        words = [PROGRAM, "run", f"{served.url}/openapi.json", "--max-examples", "100"]
        words += ["--checks", "all", "--exclude-checks", LEFT_OUT, "--no-color"]
        words += [] if key is None else ["--header", f"X-API-Key: {key}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        assert "5 selected / 5 total" in done.stdout
        lines = served.http.get("/metrics").text.splitlines()
        counted = [line for line in lines if line.startswith("gtpool_requests_total")]
        assert any('"/predict",status="200"' in line for line in counted)
        assert any('"/explain",status="200"' in line for line in counted)
        assert not any('status="5' in line for line in counted)
