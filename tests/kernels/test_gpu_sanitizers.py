"""Tests of every kernel with the race detector, AddressSanitizer, and three orders of blocks and threads.

These tests are tested, too: for each barrier that is disabled, they must report a race, incorrect results, or results
that depend on the order.

`make test` runs every family in one order, and one family in all orders and with one sanitizer, which depend on the
commit. If this file is run as a script with a family and the path of a library, it tests that library.
"""

import random
import sys
from itertools import product

import pytest
import sanitizers
from host_kernels import find_selection_number

from trigraph.gpu.instances import INSTANCES
from trigraph.gpu.launcher import ORDERS, find_installed_library

FAMILIES = tuple(INSTANCES)
QUICK_FAMILY, QUICK_VARIANT = FAMILIES[find_selection_number() % 5], ("race", "asan")[find_selection_number() // 5 % 2]

# Results must be bitwise identical in every thread order. Sanitizer reports do not depend on the order.
QUICK_ORDERS = [*product(FAMILIES, ORDERS[:1]), *product([QUICK_FAMILY], ORDERS)]

# Barriers for non-finite numbers on tensor cores, which no case of GNO has.
UNREACHED = {("gno_grad_edges_tensor.cuh", 0), ("gno_grad_edges_tensor.cuh", 3), ("gno_message_tensor.cuh", 0)}
BARRIERS = [  # test_neighbor_kernels.py tests the barriers of the neighbour search
    (family, file, number)
    for family in FAMILIES
    for file, number in sanitizers.list_barriers(family)
    if file != "neighbors.cuh" and (file, number) not in UNREACHED
]
QUICK_BARRIERS = [barrier for barrier in BARRIERS if barrier[0] == QUICK_FAMILY]
QUICK_BARRIERS = random.Random(find_selection_number()).sample(QUICK_BARRIERS, 2)


def mark_unselected_slow(values, variant, quick=((QUICK_FAMILY,),)):
    """Return a test's parameters for a build variant; those that are not selected by the commit are marked slow."""
    turns = quick if variant == QUICK_VARIANT else ()
    return [pytest.param(*v, marks=() if v in turns else pytest.mark.slow) for v in values]


@pytest.mark.parametrize(
    ("family", "thread_order"), mark_unselected_slow(product(FAMILIES, ORDERS), QUICK_VARIANT, QUICK_ORDERS)
)
def test_families_are_correct_in_every_thread_order(family, thread_order):
    sanitizers.check_family_results(family, find_installed_library(family), thread_order)


@pytest.mark.parametrize("family", mark_unselected_slow(zip(FAMILIES), "race"))
def test_race_detector_reports_nothing(family):
    sanitizers.check_family_results(family, sanitizers.build_library_with_barrier_switch(family, "race"), "random")


@pytest.mark.parametrize("family", mark_unselected_slow(zip(FAMILIES), "asan"))
def test_address_sanitizer_reports_nothing(family):
    output, report = sanitizers.run_with_address_sanitizer(
        __file__, family, sanitizers.build_library_with_barrier_switch(family, "asan")
    )
    assert output == "all right\n", report


@pytest.mark.parametrize(("family", "file", "number"), mark_unselected_slow(BARRIERS, "race", QUICK_BARRIERS))
def test_no_barrier_is_superfluous(family, file, number):
    report = None
    for variant in ("race", "fast"):
        if report is None:
            report = sanitizers.find_missing_barrier_error(
                family, sanitizers.build_library_with_barrier_switch(family, variant), (file, number)
            )
    assert report is not None


if __name__ == "__main__":
    sanitizers.check_family_results(sys.argv[1], sys.argv[2], "random")
    print("all right")
