from functools import partial

import pytest
from contract import EXCEPTIONS, LAWS, law_compile

from gtpool import POOLS, GTPool

CASES = {
    **POOLS,
    "gtpool-v in score order": partial(GTPool, order="score"),
    "gtpool-v gated": partial(GTPool, gate="tanh"),
    "gtpool-v gated, four heads, projected": partial(GTPool, heads=4, out_proj=True, gate="tanh"),
    "gtpool-v gated, local only": partial(GTPool, lam=0.0, gate="tanh"),
    "gtpool-v gated, global only": partial(GTPool, lam=1.0, gate="tanh"),
    "gtpool with top-k": partial(GTPool, sampler="topk"),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", CASES)
def test_law(name, law):
    if law in EXCEPTIONS.get(name, {}):
        with pytest.raises(AssertionError):
            LAWS[law](CASES[name])
    else:
        LAWS[law](CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*POOLS, "gtpool-v gated, four heads, projected"])
def test_inductor_gives_what_eager_gives(name):
    law_compile(CASES[name], backend="inductor")


def test_exceptions_name_poolers_and_laws_that_exist():
    assert set(EXCEPTIONS) <= set(CASES)
    assert {law for declared in EXCEPTIONS.values() for law in declared} <= set(LAWS)
