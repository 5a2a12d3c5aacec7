from functools import partial

import pytest
from contract import (
    CLUSTER_LAWS,
    EXCEPTIONS,
    LAWS,
    OWN_TESTS,
    law_numbering,
)

from gtpool import POOLS, GTPool
from gtpool.pool import KINDS

DROPPING = {
    **{name: make for name, make in POOLS.items() if KINDS[name] == "dropping"},
    "gtpool-v in score order": partial(GTPool, order="score"),
    "gtpool-v gated, four heads, projected": partial(GTPool, heads=4, out_proj=True, gate="tanh"),
    "gtpool-v gated, local only": partial(GTPool, lam=0.0, gate="tanh"),
    "gtpool-v gated, global only": partial(GTPool, lam=1.0, gate="tanh"),
    "gtpool with top-k": partial(GTPool, sampler="topk"),
    "gtpool-v gated, linear attention, in score order": partial(
        GTPool, attention="linear", heads=2, gate="tanh", order="score"
    ),
    "gtpool-v with random points": partial(GTPool, points="random", temperature=0.3),
    "gtpool-v gated, random points, linear attention": partial(
        GTPool, points="random", gate="tanh", attention="linear"
    ),
}
COMPILED = {"gtpool-v", "asap", "mincutpool"}
"""One pooler of each kind; ``test_compile.py`` compiles networks around them."""
CLUSTERING = {
    name: make
    for name, make in POOLS.items()
    if KINDS[name] == "clustering" and name not in OWN_TESTS
}
CASES = [
    (name, make, law, check)
    for makes, laws in ((DROPPING, LAWS), (CLUSTERING, CLUSTER_LAWS))
    for name, make in makes.items()
    for law, check in laws.items()
    if law != "compile" or name in COMPILED
]


BY_STRUCTURE = {
    **{
        f"{name}, {sampler}": partial(POOLS[name], order="structure", sampler=sampler)
        for name, sampler in (
            *(("gtpool-v", sampler) for sampler in ("rws", "rwsv", "topk")),
            ("sagpool", "rws"),
            ("topkpool", "rwsv"),
            ("asap", "topk"),
            *(("reppool", sampler) for sampler in ("topk", "rwsv")),
        )
    },
    "maxcutpool, rwsv": partial(
        POOLS["maxcutpool"], order="structure", sampler="rwsv", conv_channels=(8, 8)
    ),
    "gtpool-v gated, two heads": partial(GTPool, order="structure", gate="tanh", heads=2),
    "gtpool-v, linear attention": partial(GTPool, order="structure", attention="linear"),
    "mid": partial(POOLS["mid"], order="structure"),
    "mid, projected": partial(POOLS["mid"], order="structure", scorer="projection"),
}


SEE_FAR = {"maxcutpool"}
"""Poolers whose score tells apart what colour refinement does, by a dozen convolutions."""


@pytest.mark.parametrize(
    ("name", "make", "law", "check"), [pytest.param(*c, id=f"{c[0]}-{c[2]}") for c in CASES]
)
def test_law(name, make, law, check):
    if law in EXCEPTIONS.get(name, {}):
        with pytest.raises(AssertionError):
            check(make)
    else:
        check(make)


@pytest.mark.parametrize("name", BY_STRUCTURE)
def test_nothing_depends_on_the_numbering_under_structure(name):
    law_numbering(BY_STRUCTURE[name])


@pytest.mark.parametrize("name", DROPPING)
def test_a_pooler_whose_result_depends_on_the_numbering_says_so(name):
    pool = DROPPING[name](8, 0.5)
    if getattr(pool, "order", "structure") == "structure" or name in SEE_FAR:
        law_numbering(DROPPING[name])
        return
    with pytest.raises(AssertionError):
        law_numbering(DROPPING[name])
    random = "random points" in name
    assert ("Random points depend on the numbering" if random else '"structure"') in pool.__doc__


def test_exceptions_name_poolers_and_laws_that_exist():
    known = {(name, law) for name, _, law, _ in CASES}
    declared = {(name, law) for name, laws in EXCEPTIONS.items() for law in laws}
    assert declared <= known


def test_every_pooler_has_a_kind_and_laws_or_tests_of_its_own():
    assert POOLS.keys() == KINDS.keys()
    assert set(POOLS) == (set(DROPPING) | set(CLUSTERING) | set(OWN_TESTS)) & set(POOLS)
