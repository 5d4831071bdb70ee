"""Numbers of 16 bits: values around every one are rounded as NumPy rounds them (`trigraph verify` reads every one)."""

import numpy as np
import pytest
from host_kernels import library

from trigraph.gpu.launcher import HostLibrary, runtime, using_host_library

ml_dtypes = pytest.importorskip("ml_dtypes")
KINDS = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_round(kind):
    """The numbers themselves, those half way between two, and the neighbours of both; and any others."""
    with np.errstate(invalid="ignore", over="ignore"):
        every = np.arange(1 << 16, dtype=np.uint16).view(kind)
        bits = every.astype(np.float32).view(np.uint32).astype(np.int64)
        half = 1 << (11 if kind == KINDS[0] else 15)
        near = [bits + way * half + step for way in (0, 1, 2) for step in (-1, 0, 1)]
        some = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16)
        small = np.arange(1 << 12, dtype=np.float32) * np.float32(2.0**-26)  # below float16's normal numbers
        values = np.concatenate([*near, some]).astype(np.uint32).view(np.float32)
        values = np.concatenate([values, small, -small])
        expected = values.astype(kind)
    got = np.empty(values.size, kind)
    with using_host_library(HostLibrary(library("storage"))):
        args = (values, got, np.int32(values.size))
        runtime(values).launch("storage", "storage_round", (kind,), (-(-values.size // 256),), (256,), args)
    nan = np.isnan(values)
    assert np.isnan(got[nan].astype(np.float32)).all()
    assert (got[~nan].view(np.uint16) == expected[~nan].view(np.uint16)).all()
