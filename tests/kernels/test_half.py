"""Half precision in the CUDA kernels, run as gpu-host: what may be half, and what must be float32.

How far results are from the right ones is what `trigraph verify` tells (`verification/half.py`).
"""

import ml_dtypes
import numpy as np
import pytest
from table_calls import OPS, call, draw, raises

from trigraph.panels import FUNCTIONS
from trigraph.table import OPERATORS

HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
WITH_HALF = [pytest.param(op, id=op.name) for op in OPS if any(a.half for a in op.arguments)]


def stored(op, dtype, **more):
    """Arguments with what may be half in `dtype`, the rest in float32; scores are those of these embeddings."""
    names = {a.name for a in op.arguments if a.half}
    values = draw(op, np.float32, **more)
    values = {n: v.astype(dtype) if n in names else v for n, v in values.items()}
    back = [a.name for a in op.arguments if a.given_back]
    if back:
        fwd = OPERATORS[f"{op.definition.name}_fwd"]
        found = FUNCTIONS[fwd.name](**{n: values[n] for n in fwd.parameters}, panel="gpu-host")
        values |= {n: getattr(found, n) for n in back}
    return values


@pytest.mark.parametrize("op", WITH_HALF)
def test_what_is_not_half_is_float32(op):
    values = stored(op, HALVES[0])
    first = op.binding_order[0].name
    for a in op.given(values):
        if a.name == first:
            continue
        for dtype in (np.float64, np.float16 if not a.half else np.float32):
            if a.half:
                text = f"{op.name}: {a.name} has dtype {np.dtype(dtype)}; expected float16, the dtype of {first}"
            elif dtype == np.float16:
                text = f"{op.name}: {a.name} has dtype <f2; expected native float32 or float64"
            else:
                text = f"{op.name}: {a.name} has dtype float64; expected float32, since {first} has float16"
            wrong = values | {a.name: values[a.name].astype(dtype)}
            raises(TypeError, text, call, op, wrong, panel="gpu-host")


@pytest.mark.parametrize("op", WITH_HALF)
def test_outputs_of_the_callers(op):
    values = stored(op, HALVES[0])
    expected = call(op, values, panel="gpu-host")
    out = {name: np.zeros_like(value) for name, value in expected.items()}
    got = call(op, values, panel="gpu-host", out=out)
    for name, value in expected.items():
        assert got[name] is out[name]
        assert got[name].tobytes() == value.tobytes()
        wrong = np.zeros(value.shape, np.float64)
        with pytest.raises(TypeError, match=rf"out\['{name}'\] has dtype float64; expected {value.dtype}"):
            call(op, values, panel="gpu-host", out={name: wrong})
