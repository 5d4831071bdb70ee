"""Strided, reversed, unaligned, read-only and broadcast inputs give the bits of contiguous ones, in every panel."""

import numpy as np
import pytest
from table_calls import CPU_PANELS, assert_same_bits, call, draw
from table_errors import ALL, empty_like


def strided(a):
    return np.repeat(a, 2, axis=-1)[..., ::2]


def reversed_view(a):
    return a[::-1].copy()[::-1]


def unaligned(a):
    moved = empty_like(a.shape, offset=1, dtype=a.dtype)
    moved[...] = a
    assert not moved.flags.aligned
    return moved


def read_only(a):
    a = a.copy()
    a.setflags(write=False)
    return a


class Subclass(np.ndarray):
    def __add__(self, other):
        raise AssertionError("arithmetic of a subclass")

    __radd__ = __mul__ = __matmul__ = __rmatmul__ = __add__


LAYOUTS = {
    "strided": strided,
    "Fortran order": np.asfortranarray,
    "reversed": reversed_view,
    "unaligned": unaligned,
    "read-only": read_only,
    "broadcast": lambda a: np.broadcast_to(a, (2, *a.shape))[1],
    "subclass": lambda a: a.view(Subclass),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("op", ALL)
def test_layouts_give_the_same_bits(op, panel, layout):
    for dtype in (np.float32, np.float64):
        good = draw(op, dtype)
        expected = call(op, good, panel=panel)
        other = {name: LAYOUTS[layout](v) if isinstance(v, np.ndarray) else v for name, v in good.items()}
        assert_same_bits(call(op, other, panel=panel), expected)
        for name, value in good.items():  # inputs are left alone
            assert not isinstance(value, np.ndarray) or np.array_equal(value, other[name])
