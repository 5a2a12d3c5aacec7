"""The laws of read-outs with weights, whatever their equations.

A law takes a factory ``make(seed=0, dtype=torch.float64)`` of a module as it is after training,
which reads ``CHANNELS`` features, and fails by an AssertionError.
"""

import copy
import pickle
from collections.abc import Callable

import torch
from contract import (
    Graphs,
    apart,
    close,
    drawn,
    odd_batches,
    pack,
    ragged,
    ring,
    sample_batch,
    shuffled,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gtpool.ops.packed import PackedGraph

Make = Callable[..., nn.Module]
SIZES = [1, 300, 2, 37, 5]


def read(module: nn.Module, graphs: Graphs) -> Tensor:
    return module(graphs.x, PackedGraph.of(graphs.edge_index, graphs.batch))


def rings(dtype: torch.dtype) -> Graphs:
    return pack([(n, ring(n)) for n in SIZES], seed=0, dtype=dtype)


def compare_with_naive(module: nn.Module, graphs: Graphs, naive: Callable) -> None:
    """Compare vectors, and the gradients of a function of them, with equations written out."""
    asking = [graphs.x.requires_grad_(), *module.parameters()]
    ours, theirs = (
        [out, *torch.autograd.grad(out.sin().sum(), asking)]
        for out in (read(module, graphs), naive(module, graphs))
    )
    assert ours[0].shape == (len(graphs.batch.unique()), module.out_channels)
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-9)


def same_alone(module: nn.Module, graphs: Graphs) -> None:
    """Compare the vectors of a batch with those of its graphs one by one."""
    together = read(module, graphs)
    for number, alone in enumerate(apart(graphs)):
        close(together[number], read(module, alone)[0])


def law_batch(make: Make) -> None:
    """A batch gives what its graphs give one by one, also beside much larger ones."""

    @drawn
    @given(ragged())
    def check(graphs: Graphs) -> None:
        same_alone(make(), graphs)

    check()
    for dtype in (torch.float64, torch.float32):
        same_alone(make(dtype=dtype), rings(dtype))


def law_numbering(make: Make) -> None:
    """Other numbers for nodes and edges give the same vectors."""

    @drawn
    @given(ragged(), st.randoms(use_true_random=False))
    def check(graphs: Graphs, random) -> None:
        module, other = make(), shuffled(graphs, random)[1]
        order = random.sample(range(other.edge_index.size(1)), other.edge_index.size(1))
        other = other._replace(edge_index=other.edge_index[:, order])
        close(read(module, graphs), read(module, other))

    check()


def law_gradients(make: Make) -> None:
    """A gradient reaches every parameter."""
    module = make()
    read(module, sample_batch()).sin().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad.abs().max() > 1e-9, name


def law_odd_graphs(make: Make) -> None:
    """Odd graphs, alone and together, give finite vectors and gradients."""
    for name, graphs in odd_batches():
        graphs.x.requires_grad_()
        out = read(make(), graphs)
        out.sum().backward()
        assert out.isfinite().all(), name
        assert graphs.x.grad.isfinite().all(), name


def law_dtypes(make: Make) -> None:
    """Each precision stays and is near the exact vectors, for graphs of very different sizes."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        module, graphs = make(dtype=dtype), rings(dtype)
        graphs.x.requires_grad_()
        out = read(module, graphs)
        out.tanh().sum().backward()
        assert out.dtype == dtype
        for value in (out, graphs.x.grad, *(p.grad for p in module.parameters())):
            assert value.isfinite().all(), dtype
        exact = read(module.double(), graphs._replace(x=graphs.x.detach().double()))
        assert (out - exact).norm() <= 0.1 * exact.norm(), dtype


def law_autocast(make: Make) -> None:
    """Under autocast the vectors are near those of float32."""
    module, graphs = make(dtype=torch.float32), sample_batch(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = read(module, graphs)
    found.float().sum().backward()
    assert all(part.grad.isfinite().all() for part in module.parameters())
    torch.testing.assert_close(found.float(), read(module, graphs), rtol=0.1, atol=0.1)


def law_same_seed(make: Make) -> None:
    """The same seed gives the same vectors and gradients bit for bit."""
    one, other = (results_of(make(dtype=torch.float32), torch.float32) for _ in range(2))
    assert all(map(torch.equal, one, other))


def law_compile(make: Make) -> None:
    """torch.compile gives what eager gives, vectors and gradients."""
    torch.compiler.reset()
    compiled = torch.compile(make(), backend="aot_eager")
    for one, other in zip(results_of(make()), results_of(compiled), strict=True):
        close(one, other)


def results_of(module: nn.Module, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Give the vectors of a batch and the gradients of the parameters."""
    out = read(module, sample_batch(dtype))
    out.sin().sum().backward()
    return [out, *(parameter.grad for parameter in module.parameters())]


def law_copies(make: Make) -> None:
    """state_dict, pickle and deepcopy keep the vectors; reset_parameters draws all anew."""
    module, other, graphs = make(), make(seed=1), sample_batch()
    before = read(module, graphs)
    assert not torch.equal(before, read(other, graphs))
    other.load_state_dict(module.state_dict())
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):  # noqa: S301
        assert torch.equal(before, read(twin, graphs))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(7)
    for twin in (module, other):
        torch.manual_seed(2)
        twin.reset_parameters()
    assert not any((parameter == 7).any() for parameter in module.parameters())
    assert torch.equal(read(module, graphs), read(other, graphs))
    assert not torch.equal(before, read(module, graphs))


READOUT_LAWS = {
    "batch": law_batch,
    "numbering": law_numbering,
    "gradients": law_gradients,
    "odd graphs": law_odd_graphs,
    "dtypes": law_dtypes,
    "autocast": law_autocast,
    "same seed": law_same_seed,
    "compile": law_compile,
    "copies": law_copies,
}
