"""Tests of packed kernel parameters: U | b_u | V | b_v, each block column-major, with f_out as the fast index of V."""

import numpy as np
import pytest
from table_calls import assert_raises

from trigraph import pack_gno_params, unpack_gno_params

D, H, F_IN, F_OUT = 3, 5, 2, 4
F = F_IN * F_OUT


def draw_parameter_blocks(dtype=np.float64):
    rng = np.random.default_rng(0)
    shapes = {"U": (H, D), "b_u": (H,), "V": (F, H), "b_v": (F,)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_packed_blocks_are_column_major(dtype):
    arrays = draw_parameter_blocks(dtype)
    params = pack_gno_params(**arrays)
    assert params.dtype == dtype
    assert params.flags.c_contiguous
    assert params.flags.owndata
    expected = []
    for name in ("U", "V"):  # each matrix by columns, then its bias
        matrix, bias = arrays[name], arrays["b_" + name.lower()]
        expected += [matrix[row, column] for column in range(matrix.shape[1]) for row in range(matrix.shape[0])]
        expected += list(bias)
    assert params.tolist() == [x.item() for x in expected]
    for name, block in unpack_gno_params(params, D, F_IN, F_OUT)._asdict().items():
        assert np.array_equal(block, arrays[name])


def test_unpacked_blocks_are_views():
    params = pack_gno_params(**draw_parameter_blocks())
    back = unpack_gno_params(params, D, F_IN, F_OUT)
    for block in back:
        assert np.shares_memory(block, params)
    back.V[1, 2] = 77
    assert params[H * D + H + 2 * F + 1] == 77


@pytest.mark.parametrize("name", ["U", "b_u", "V", "b_v"])
def test_pack_gno_params_refuses_bad_input(name):
    good = draw_parameter_blocks()
    text = f"pack_gno_params: {name} is a list; expected an ndarray"
    assert_raises(TypeError, text, pack_gno_params, **(good | {name: [1.0]}))
    if name != "U":
        text = f"pack_gno_params: {name} has dtype float32; expected float32 or float64, as for U"
        assert_raises(TypeError, text, pack_gno_params, **(good | {name: good[name].astype(np.float32)}))
        bad = good[name][..., :-1]
        text = f"pack_gno_params: {name} has shape {bad.shape}; expected {good[name].shape}"
        assert_raises(ValueError, text, pack_gno_params, **(good | {name: bad}))
    bad = good[name][None]
    text = f"pack_gno_params: {name} has shape {bad.shape}; expected rank {good[name].ndim}"
    assert_raises(ValueError, text, pack_gno_params, **(good | {name: bad}))


def test_unpack_gno_params_refuses_bad_input():
    params = pack_gno_params(**draw_parameter_blocks())
    text = f"unpack_gno_params: params has shape (1, {params.size}); expected rank 1"
    assert_raises(ValueError, text, unpack_gno_params, params[None], D, F_IN, F_OUT)
    for size in (params.size + 1, params.size - 1, F, 0):
        text = (
            f"unpack_gno_params: params has shape ({size},); expected (hidden*(d+1+f_out*f_in)+f_out*f_in,) with "
            f"a whole hidden >= 1 for d = {D}, f_in = {F_IN}, f_out = {F_OUT}"
        )
        assert_raises(ValueError, text, unpack_gno_params, np.ones(size), D, F_IN, F_OUT)
    text = "unpack_gno_params: d is a str; expected an int"
    assert_raises(TypeError, text, unpack_gno_params, params, "2", F_IN, F_OUT)
    text = "unpack_gno_params: f_in is 0; expected at least 1"
    assert_raises(ValueError, text, unpack_gno_params, params, D, 0, F_OUT)
