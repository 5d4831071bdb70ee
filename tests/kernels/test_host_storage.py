"""Numbers of 16 bits: every one is read as NumPy reads it, and values around every one are rounded as NumPy does."""

import numpy as np
import pytest
from host_kernels import library

from trigraph.gpu.launcher import HostLibrary, runtime, using_host_library

ml_dtypes = pytest.importorskip("ml_dtypes")
KINDS = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
ALL = np.arange(1 << 16, dtype=np.uint16)


@pytest.fixture(scope="module", autouse=True)
def kernels():
    with using_host_library(HostLibrary(library("storage"))):
        yield


def convert(kernel, kind, source, target):
    args = (source, target, np.int32(source.size))
    runtime(source).launch("storage", kernel, (kind,), (-(-source.size // 256),), (256,), args)
    return target


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_read(kind):
    got = convert("storage_read", kind, ALL.view(kind), np.empty(ALL.size, np.float32))
    with np.errstate(invalid="ignore"):
        expected = ALL.view(kind).astype(np.float32)
    nan = np.isnan(expected)
    assert np.isnan(got[nan]).all()
    assert (got[~nan].view(np.uint32) == expected[~nan].view(np.uint32)).all()  # also the sign of zero


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_round(kind):
    """The numbers themselves, those half way between two, and the neighbours of both; and any others."""
    with np.errstate(invalid="ignore", over="ignore"):
        bits = ALL.view(kind).astype(np.float32).view(np.uint32).astype(np.int64)
        half = 1 << (11 if kind == KINDS[0] else 15)
        near = [bits + way * half + step for way in (0, 1, 2) for step in (-1, 0, 1)]
        some = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16)
        small = np.arange(1 << 12, dtype=np.float32) * np.float32(2.0**-26)  # below float16's normal numbers
        values = np.concatenate([*near, some]).astype(np.uint32).view(np.float32)
        values = np.concatenate([values, small, -small])
        got = convert("storage_round", kind, values, np.empty(values.size, kind))
        expected = values.astype(kind)
    nan = np.isnan(values)
    assert np.isnan(got[nan].astype(np.float32)).all()
    assert (got[~nan].view(np.uint16) == expected[~nan].view(np.uint16)).all()
