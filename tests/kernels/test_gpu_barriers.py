"""The sanitizer tests put to the test: no kernel can do without any of its barriers, and NaN goes where it has to go.

Each barrier is left out in turn: the race build, wrong results or other bits in another order have to tell. And each
input is spoilt by one NaN in turn: what becomes NaN is the same in every order of threads as in the readable panel.
"""

import importlib
import random

import pytest
import sanitizers

FAMILIES = ("dimenet", "gat", "gemnet", "gno", "weighted")

#: Barriers without which nothing changes, and why.
EQUIVALENT = {
    (
        "gno",
        "products.cuh",
        3,
    ): "a block of product_rows ends after its only sum; those of GemNet-OC go on with the next",
}

BARRIERS = [(family, *barrier) for family in FAMILIES for barrier in sanitizers.barriers(family)]
QUICK = random.Random(4).sample(BARRIERS, 4)

# Of one type of numbers, small, with rows longer than what is summed at once.
CASES = {"dimenet": "complete", "gat": "hub", "gemnet": "usual", "gno": "hub", "weighted": "hub"}


@pytest.mark.parametrize(
    ("family", "file", "number"),
    [pytest.param(*barrier, marks=() if barrier in QUICK else pytest.mark.slow) for barrier in BARRIERS],
)
def test_no_barrier_is_superfluous(family, file, number):
    tests, found = importlib.import_module(f"test_gpu_{family}_sanitizers"), None
    for variant in ("race", "fast"):
        if found is None:
            library = sanitizers.build(family, variant, tests.SUBSET)
            found = sanitizers.left_out(library, family, (file, number), tests.run)
    if (family, file, number) in EQUIVALENT:
        assert found is None, f"{EQUIVALENT[family, file, number]}, and yet: {found}"
    else:
        assert found is not None


@pytest.mark.parametrize("every_row", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_nan_goes_where_it_has_to(family, every_row):
    cases = importlib.import_module(f"trigraph.qualify.cases.{family}")
    sanitizers.check_spoilt(family, lambda: cases.make(CASES[family]), cases.results, every_row)
