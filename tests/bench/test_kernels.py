import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCH = runpy.run_path(str(ROOT / "bench/kernels.py"))
SOURCES = "\n".join(path.read_text() for path in (ROOT / "src/gtpool/ops/kernels").glob("*.py"))
JITTED = re.findall(r"^@triton\.jit\ndef (\w+)\(", SOURCES, re.MULTILINE)
KERNELS = [name for name in JITTED if re.search(rf"^\s+{name}\[", SOURCES, re.MULTILINE)]


def test_every_kernel_of_ours_has_a_kind():
    assert len(KERNELS) > 30
    assert [name for name in KERNELS if BENCH["kind_of"](name) == "other"] == []


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("_backward", "attention, scores"),
        ("_own_scores", "attention, scores"),
        ("_layer_gradients", "norms"),
        ("_gather", "gathering, layouts"),
        ("_mean_max_backward", "read-out"),
        ("_sum", "neighbour sums"),
        ("sum_parts", "bias, activation, dropout"),
        ("_mean_loss", "loss, optimiser"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3", "matrix products"),
        ("void at::native::reduce_kernel<512, 1>", "elementwise, sums, sorts by torch"),
        ("Memset (Device)", "other"),
    ],
)
def test_kinds_of_kernels(kernel, kind):
    assert BENCH["kind_of"](kernel) == kind


def test_parts_add_up():
    found = BENCH["parts"]([("_sum", 1.0), ("_count", 0.5), ("Memset (Device)", 0.25)])
    assert (found["neighbour sums"], found["other"], sum(found.values())) == (1.5, 0.25, 1.75)
