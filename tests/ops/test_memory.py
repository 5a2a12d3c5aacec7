"""What a step needs, what is free, and the refusal between them."""

import pytest
import torch
from peak_memory import peak_of_large

from gtpool.ops import memory
from gtpool.ops.memory import check_fits, free_memory, memory_needed

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GIGABYTE = 10**9
LARGE = {"nodes": 10**6, "edges": 2 * 10**7, "width": 128, "heads": 4}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Give a machine of which the tests write what it says of its memory."""
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")
    return tmp_path


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def available(machine, size):
    write(
        machine / "proc", meminfo=f"MemTotal: 99 kB\nMemAvailable:  {size // 1024} kB\nSwap: 1 kB"
    )


def test_need_grows_with_nodes_and_edges_never_with_squares():
    one = memory_needed(1000, 9000, 64, 4, attention="exact", training=True)
    assert memory_needed(10_000, 90_000, 64, 4, attention="exact", training=True) == 10 * one
    assert memory_needed(1000, 9001, 64, 4, attention="exact", training=True) > one


@pytest.mark.parametrize("attention", ["exact", "linear"])
def test_a_backward_pass_and_wider_numbers_need_more(attention):
    least = memory_needed(**LARGE, attention=attention, training=False)
    assert memory_needed(**LARGE, attention=attention, training=True) > least
    assert memory_needed(**LARGE, attention=attention, training=False, itemsize=8) > least
    assert memory_needed(**LARGE, attention=attention, training=False, itemsize=2) == least


@pytest.mark.slow
def test_need_is_within_a_factor_of_two_of_the_peak_of_attention_and_its_gradients():
    program = """
from gtpool.pool.gtpool import GTPool
pool = GTPool(64, heads=2)
def step(nodes, edges):
    x = torch.randn(nodes, 64, requires_grad=True)
    pool(x, torch.randint(nodes, (2, edges))).x.sum().backward()
def small():
    step(500, 5_000)
def large():
    step(6_000, 120_000)
"""
    wanted = memory_needed(6_000, 120_000, 64, 2, attention="exact", training=True)
    assert 0.5 < wanted / 2**20 / peak_of_large(program) < 2


def test_a_batch_that_does_not_fit_is_refused_with_both_figures_and_the_way_out(machine):
    available(machine, 2 * GIGABYTE)
    with pytest.raises(
        ValueError, match=r"about 1\d\.\d GB, but 2\.0 GB are free on cpu"
    ) as raised:
        check_fits(**LARGE, attention="exact", training=True, device=CPU)
    assert "fewer graphs" in str(raised.value)
    assert "without gradients" in str(raised.value)


def test_a_batch_that_fits_passes(machine):
    available(machine, 64 * GIGABYTE)
    check_fits(**LARGE, attention="exact", training=True, device=CPU)


def test_a_small_batch_is_never_asked_about(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda _: pytest.fail("asked"))
    check_fits(5_000, 90_000, 128, 1, attention="exact", training=True, device=CPU)


@pytest.mark.parametrize(("nodes", "edges"), [(60_000, 10), (10, 3_000_000)])
def test_many_nodes_or_many_edges_are_asked_about(machine, nodes, edges):
    available(machine, 1)
    with pytest.raises(ValueError, match=r"0\.0 GB are free"):
        check_fits(nodes, edges, 64, 1, attention="linear", training=False, device=CPU)


def test_where_nobody_tells_nothing_is_refused(machine):
    assert machine.exists()
    assert free_memory(CPU) is None
    assert free_memory(torch.device("meta")) is None
    check_fits(**LARGE, attention="exact", training=True, device=CPU)


def test_this_machine_tells():
    if not memory.PROC.exists():
        pytest.skip("Linux alone tells")
    assert 0 < free_memory(CPU) < 2**50


def test_the_limit_of_a_container_counts(machine):
    available(machine, 64 * GIGABYTE)
    write(machine / "proc" / "self", cgroup="0::/box/mine")
    write(machine / "cgroup" / "box", memory__max=5_000, memory__current=3_000)
    write(machine / "cgroup" / "box", memory__stat="anon 7\ninactive_file 400")
    write(machine / "cgroup" / "box" / "mine", memory__max="max", memory__current=10)
    write(machine / "cgroup" / "box" / "mine", memory__stat="inactive_file 5")
    assert free_memory(CPU) == 2_400


def test_the_limit_of_an_older_container_counts(machine):
    available(machine, 64 * GIGABYTE)
    write(machine / "proc" / "self", cgroup="5:cpu:/other\n4:memory:/unseen\n0::/")
    root = machine / "cgroup" / "memory"
    write(root, memory__limit_in_bytes=9_000, memory__usage_in_bytes=8_000)
    write(root, memory__stat="total_inactive_file 100")
    assert free_memory(CPU) == 1_100


@pytest.fixture
def gpu(monkeypatch):
    """Pretend to a GPU of 80 GB: 30 GB free, of ours 10 GB allocated and 15 GB reserved."""
    says = {
        "is_current_stream_capturing": False,
        "current_device": 0,
        "mem_get_info": (30 * GIGABYTE, 80 * GIGABYTE),
        "memory_allocated": 10 * GIGABYTE,
        "memory_reserved": 15 * GIGABYTE,
        "get_per_process_memory_fraction": 1.0,
    }
    for name in tuple(says):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: says[name])
    return says


def test_what_torch_keeps_for_later_is_free_on_a_gpu(gpu):
    assert gpu
    assert free_memory(CUDA) == 35 * GIGABYTE


def test_a_cap_on_the_gpu_counts(gpu):
    gpu["get_per_process_memory_fraction"] = 0.2
    assert free_memory(CUDA) == 6 * GIGABYTE


def test_a_captured_step_is_not_asked_about(gpu):
    gpu.update(is_current_stream_capturing=True, mem_get_info=(0, 80 * GIGABYTE))
    check_fits(**LARGE, attention="exact", training=True, device=CUDA)


@pytest.mark.gpu
def test_asking_a_gpu_does_not_synchronise():
    torch.zeros(1, device=CUDA)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert free_memory(CUDA) > 0
    finally:
        torch.cuda.set_sync_debug_mode("default")
