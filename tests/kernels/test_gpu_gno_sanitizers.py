"""Every kernel of the GNO family under the race build, AddressSanitizer and three orders of blocks and threads.

Run as a program with the path of a library, it does the work of one build in a process of its own.
"""

import sys
from functools import partial

import pytest
import sanitizers

from trigraph.qualify.cases import gno, subset
from trigraph.qualify.place import Rehearsal

SUBSET, run = subset("gno"), partial(gno.run, Rehearsal())


@pytest.mark.parametrize("order", sanitizers.ORDERS)
def test_order(order):
    sanitizers.check(sanitizers.installed("gno"), order, SUBSET, run)


def test_race():
    sanitizers.check(sanitizers.build("gno", "race", SUBSET), "random", SUBSET, run)


def test_asan():
    sanitizers.run_program(__file__, sanitizers.build("gno", "asan", SUBSET))


if __name__ == "__main__":
    sanitizers.check(sys.argv[1], "random", SUBSET, run)
    print("all right")
