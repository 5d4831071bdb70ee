"""The usual patterns of kernels: right and silent with all their barriers, found out without any one of them."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from host_kernels import library

from trigraph.gpu.launcher import HostLibrary, KernelError, runtime, using_host_library

F4, I4, I8 = np.dtype("f4"), np.dtype("i4"), np.dtype("i8")


class Pattern(NamedTuple):
    """Arguments (but for the last, `without`), the results expected of them, and the extents of a launch."""

    make: Callable[[np.random.Generator], tuple[list[object], dict[int, object]]]
    barriers: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    types: tuple[np.dtype, ...] = ()
    shared_mem: int = 0


def integers(rng, *shape):
    """Small integers as float32: their sums and products are exact."""
    return rng.integers(-9, 9, shape).astype(np.float32)


def matrix_product(rng):
    a, b = integers(rng, 19, 19), integers(rng, 19, 19)
    return [a, b, np.zeros((19, 19), F4), np.int32(19)], {2: a @ b}


def double_buffer(rng):
    x = integers(rng, 5, 64).astype(float)
    return [x, np.zeros(64), np.int32(5)], {1: x[:, ::-1].sum(0)}


def scan(rng):
    x = rng.integers(-9, 9, (2, 128)).astype(np.int32)
    return [x], {0: np.cumsum(x, axis=1)}


def segment_sums(index):
    def make(rng):
        x, lengths = integers(rng, 900), rng.multinomial(900, np.ones(11) / 11)
        lengths[[2, 5]] = [0, lengths[2] + lengths[5]]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        sums = [x[a:b].sum() for a, b in pairwise(offsets)]
        return [x, offsets.astype(index), np.zeros(11, F4), index.type(11)], {2: sums}

    return make


def cut_buffer(rng):
    x = integers(rng, 64, 4)
    return [x, np.zeros(256, F4), np.zeros(64)], {1: x.ravel()[::-1], 2: x[::-1, 3]}


def two_roles(rng):
    return [np.zeros(32, F4), np.int32(4)], {0: np.full(32, 6)}


def histogram(rng):
    x = rng.integers(0, 16, 1000).astype(np.int32)
    return [x, np.zeros(16, I4), np.int32(1000)], {1: np.bincount(x, minlength=16)}


def tree_in_global(rng):
    x = integers(rng, 3, 64)
    sums = x.sum(1)
    return [x], {0: np.concatenate([sums[:, None], [tree(row)[1:] for row in x]], axis=1)}


def tree(row):
    row = row.copy()
    for step in (32, 16, 8, 4, 2, 1):
        row[:step] += row[step : 2 * step]
    return row


PATTERNS = {
    "matrix_product": Pattern(matrix_product, 2, (3, 3), (8, 8)),
    "double_buffer": Pattern(double_buffer, 1, (1,), (64,)),
    "scan": Pattern(scan, 3, (2,), (128,)),
    "segment_sums": Pattern(segment_sums(I4), 3, (2,), (128,), (I4,)),
    "segment_sums64": Pattern(segment_sums(I8), 3, (2,), (128,), (I8,)),
    "cut_buffer": Pattern(cut_buffer, 1, (1,), (64,), (), 64 * 8 + 256 * 4),
    "two_roles": Pattern(two_roles, 2, (1,), (64,)),
    "histogram": Pattern(histogram, 2, (2,), (64,)),
    "tree_in_global": Pattern(tree_in_global, 1, (3,), (64,)),
}
REMOVALS = [(name, without) for name, pattern in PATTERNS.items() for without in range(1, pattern.barriers + 1)]


@pytest.fixture(scope="session")
def builds():
    return {variant: HostLibrary(library("patterns", variant)) for variant in ("fast", "race")}


def launch(name, without, seed=0):
    pattern = PATTERNS[name]
    args, expected = pattern.make(np.random.default_rng(seed))
    args.append(np.int32(without))
    kernel = name.removesuffix("64")
    runtime(np.empty(0)).launch(
        "patterns", kernel, pattern.types, pattern.grid, pattern.block, args, pattern.shared_mem
    )
    for place, value in expected.items():
        np.testing.assert_array_equal(args[place], value)


@pytest.mark.parametrize("variant", ["fast", "race"])
@pytest.mark.parametrize("name", PATTERNS)
def test_right_and_silent(builds, variant, order, name):
    for seed in range(3):
        with using_host_library(builds[variant], order, seed):
            launch(name, 0, seed)


@pytest.mark.parametrize(("name", "without"), REMOVALS)
def test_each_barrier_is_missed(builds, order, name, without):
    with using_host_library(builds["race"], order, seed=1), pytest.raises(KernelError, match=r"race: |uninitialised: "):
        launch(name, without)
