"""Tests of half precision in gpu-host: dtype checks, `out`, and the rounding of results.

The accuracy is checked by `trigraph verify` (`verification/half.py`).
"""

import ml_dtypes
import numpy as np
import pytest
from host_kernels import build_test_library
from table_calls import OPS, assert_raises, compute_fields, draw_operator_arguments

from trigraph.backends import FUNCTIONS
from trigraph.gpu.launcher import HostLibrary, select_runtime, using_host_library
from trigraph.table import OPERATORS

HALF_DTYPES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
HALF_OPERATORS = [pytest.param(op, id=op.name) for op in OPS if any(a.half for a in op.arguments)]


def draw_half_arguments(op, dtype, **more):
    """Return arguments in `dtype` if they may have half precision, else in float32; compute the results of fwd."""
    names = {a.name for a in op.arguments if a.half}
    values = draw_operator_arguments(op, np.float32, **more)
    values = {n: v.astype(dtype) if n in names else v for n, v in values.items()}
    returned_names = [a.name for a in op.arguments if a.given_back]
    if returned_names:
        fwd = OPERATORS[f"{op.definition.name}_fwd"]
        arguments = values | dict.fromkeys(op.definition.request_names, True)
        result = FUNCTIONS[fwd.name](**{n: arguments[n] for n in fwd.parameter_names}, backend="gpu-host")
        values |= {n: getattr(result, n) for n in returned_names}
    return values


@pytest.mark.parametrize("op", HALF_OPERATORS)
def test_mixed_dtypes_with_half_are_refused(op):
    values = draw_half_arguments(op, HALF_DTYPES[0])
    first = op.size_binding_order[0].name
    for a in op.select_present_arguments(values):
        if a.name == first:
            continue
        for dtype in (np.float64, np.float16 if not a.half else np.float32):
            if a.half:
                text = f"{op.name}: {a.name} has dtype {np.dtype(dtype)}; expected float16, the dtype of {first}"
            elif dtype == np.float16:
                text = f"{op.name}: {a.name} has dtype float16; expected native float32 or float64"
            else:
                text = f"{op.name}: {a.name} has dtype float64; expected float32, since {first} has float16"
            wrong = values | {a.name: values[a.name].astype(dtype)}
            assert_raises(TypeError, text, compute_fields, op, wrong, backend="gpu-host")


@pytest.mark.parametrize("op", HALF_OPERATORS)
def test_half_results_are_written_to_out(op):
    values = draw_half_arguments(op, HALF_DTYPES[0])
    expected = compute_fields(op, values, backend="gpu-host")
    out = {name: np.zeros_like(value) for name, value in expected.items()}
    got = compute_fields(op, values, backend="gpu-host", out=out)
    for name, value in expected.items():
        assert got[name] is out[name]
        assert got[name].tobytes() == value.tobytes()
        wrong = np.zeros(value.shape, np.float64)
        with pytest.raises(TypeError, match=rf"out\['{name}'\] has dtype float64; expected {value.dtype}"):
            compute_fields(op, values, backend="gpu-host", out={name: wrong})


@pytest.mark.parametrize("half_dtype", HALF_DTYPES, ids=lambda kind: kind.name)
def test_rounding_to_half_is_correct(half_dtype):
    """Rounding is correct for half-precision numbers, midpoints between them, their neighbours, and random numbers."""
    with np.errstate(invalid="ignore", over="ignore"):
        every = np.arange(1 << 16, dtype=np.uint16).view(half_dtype)
        bits = every.astype(np.float32).view(np.uint32).astype(np.int64)
        half = 1 << (11 if half_dtype == HALF_DTYPES[0] else 15)
        near = [bits + way * half + step for way in (0, 1, 2) for step in (-1, 0, 1)]
        some = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16)
        small = np.arange(1 << 12, dtype=np.float32) * np.float32(2.0**-26)  # smaller than float16's normal numbers
        values = np.concatenate([*near, some]).astype(np.uint32).view(np.float32)
        values = np.concatenate([values, small, -small])
        expected = values.astype(half_dtype)
    got = np.empty(values.size, half_dtype)
    with using_host_library(HostLibrary(build_test_library("storage"))):
        args = {"values": values, "stored": got, "count": values.size}
        select_runtime(values).launch(
            "storage", "round_to_storage", (half_dtype,), (-(-values.size // 256),), (256,), **args
        )
    nan = np.isnan(values)
    assert np.isnan(got[nan].astype(np.float32)).all()
    assert (got[~nan].view(np.uint16) == expected[~nan].view(np.uint16)).all()
