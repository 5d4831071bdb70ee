"""Half precision in the CUDA kernels, run as gpu-host: what may be half, what must be float32, how far results are."""

import ml_dtypes
import numpy as np
import pytest
from table_calls import OPS, call, draw

import trigraph
from trigraph import CSC
from trigraph.operators import OPERATORS
from trigraph.panels import FUNCTIONS

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


def wide(values):
    """Return the same numbers in float64."""
    floating = (np.dtype(np.float32), *HALVES)
    return {
        n: v.astype(np.float64) if isinstance(v, np.ndarray) and v.dtype in floating else v for n, v in values.items()
    }


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("op", WITH_HALF)
def test_results_are_rounded_once(op, dtype):
    """Sums are float32's: an error of half an epsilon of the stored type, and some of float32's where terms cancel."""
    eps = 2.0**-10 if dtype == np.float16 else 2.0**-7
    for setting in op.definition.settings:
        choices = {n: v for n, v in setting.items() if v is not None}
        values = stored(op, dtype, setting=choices)
        got, expected = call(op, values, panel="gpu-host"), call(op, wide(values), panel="pyref")
        for field in op.fields:
            mine, right = got[field.name], expected[field.name]
            assert mine.dtype == (dtype if field.half else np.float32), field.name
            error = np.abs(mine.astype(np.float64) - right)
            bound = (eps / 2 if field.half else 0) * np.abs(right) + 256 * 2.0**-23 * np.max(np.abs(right), initial=1)
            assert (error <= bound).all(), (field.name, setting)


@pytest.mark.parametrize("op", WITH_HALF)
def test_only_the_kernels_take_it(op):
    for dtype in HALVES:
        values = stored(op, dtype)
        first = op.binding_order[0].name
        for panel in ("fortran", "fortran-reference", "pyref"):
            came = dtype.name if dtype.kind == "V" else dtype.str
            text = f"{op.name}: {first} has dtype {came}; expected native float32 or float64"
            with pytest.raises(TypeError) as caught:
                call(op, values, panel=panel)
            assert str(caught.value) == text


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
            with pytest.raises(TypeError) as caught:
                call(op, values | {a.name: values[a.name].astype(dtype)}, panel="gpu-host")
            assert str(caught.value) == text


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


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_number_is_read_and_written(dtype):
    """One in-edge has all the attention: its source comes back, subnormal numbers included.

    The scores are zero times the embeddings, so infinities and NaN give NaN.
    """
    every = np.arange(2**16, dtype=np.uint16).view(dtype)[:, None]
    graph, zeros = CSC(np.arange(2**16 + 1), np.arange(2**16)), np.zeros(2, np.float32)
    found = trigraph.mha_gat_n2n_fwd(every, np.zeros_like(every), zeros, graph, 1, panel="gpu-host").output_embedding
    finite = np.isfinite(every.astype(np.float32))
    assert (~finite).sum() > 200
    assert np.isnan(found.astype(np.float32)[~finite]).all()
    assert np.array_equal(found.astype(np.float32)[finite], every.astype(np.float32)[finite])
