"""Tests of operators on a device: unwritten memory, offsets, streams, threads, captures, extreme values, large arrays.

Half precision, NaN and `out` are checked by `trigraph verify`.
"""

import numpy as np
import pytest

import trigraph
from trigraph.backends import FUNCTIONS, explain_unavailable
from trigraph.benchmarks.qualify.stages.checks import (
    LARGE,
    find_fields_from_unwritten_memory,
    find_fields_of_unaligned_arrays,
    find_fields_of_wrong_replays,
    find_inaccurate_fields,
    find_wrong_calls,
    find_wrong_calls_in_threads,
    list_calls_with_results,
)
from trigraph.table import OPERATORS

every_operator = pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)


@every_operator
def test_results_do_not_depend_on_unwritten_memory(target, op):
    assert find_fields_from_unwritten_memory(target, op) == ""


@every_operator
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_unaligned_arrays_give_equal_results(target, op, dtype):
    assert find_fields_of_unaligned_arrays(target, op, dtype) == ""


@every_operator
def test_captured_call_replays_with_other_inputs(target, op):
    assert find_fields_of_wrong_replays(target, op) == ""


def test_calls_on_two_streams_equal_single_calls(target):
    calls = list_calls_with_results(target)
    assert find_wrong_calls(target, calls, target.make_stream(), target.make_stream()) == set()


def test_calls_in_two_threads_equal_single_calls(target):
    assert find_wrong_calls_in_threads(target) == set()


@every_operator
def test_tiny_and_large_numbers_stay_accurate(target, op):
    """Results for tiny and large numbers are within the tolerance or, if ill-conditioned, as good as gpu-host's."""
    if explain_unavailable("gpu-host"):
        pytest.skip(f"gpu-host is {explain_unavailable('gpu-host')}")
    assert find_inaccurate_fields(target, op) == []


@pytest.fixture
def skip_without_memory(target):
    """Return a function that skips the test if too few bytes are free; release memory after the test."""

    def skip_unless_free(nbytes):
        if nbytes > (free := target.measure_free_bytes()):
            pytest.skip(f"{nbytes / 2**30:.0f} GiB are needed, {free / 2**30:.0f} are free")

    yield skip_unless_free
    target.measure_free_bytes()


def test_weighted_sum_handles_arrays_beyond_int32(target, skip_without_memory):
    """Arrays may contain more than 2^31 elements, and graphs more than 2^24 edges."""
    xp, nodes = target.xp, target.shrink_in_rehearsal(2**24, 2**5) + 3
    dim = target.shrink_in_rehearsal(LARGE, 2**12) // (nodes - 3) + 1
    skip_without_memory(16 * nodes * dim)
    x = xp.empty((nodes, dim), np.float32)
    x[...] = xp.arange(nodes, dtype=np.float32)[:, None]
    weight = xp.full(nodes, 2, np.float32)
    for index in (np.int32, np.int64):
        offsets, sources = xp.arange(nodes + 1, dtype=index), xp.arange(nodes, dtype=index)[::-1].copy()
        graph = trigraph.CSC(offsets, sources, nodes)
        out = trigraph.agg_weighted_n2n_fwd(x, weight, graph, backend=target.backend).output_embedding
        assert (out == 2 * x[::-1][:, :1]).all()
        grads = trigraph.agg_weighted_n2n_bwd(out, x, weight, graph, backend=target.backend, wrt=("embedding",))
        assert (grads.embedding == 4 * x[:, :1]).all()
        del out, grads


def test_gno_kernel_handles_arrays_beyond_int32(target, skip_without_memory):
    xp, edges, width = target.xp, target.shrink_in_rehearsal(LARGE, 2**12) // 1024 + 5, 32
    skip_without_memory(8 * edges * width**2)
    coords = xp.empty((edges, 3), np.float32)
    coords[...] = xp.linspace(-1, 1, edges, dtype=np.float32)[:, None]
    params = target.move_to_device(
        np.random.default_rng(0).standard_normal(8 * (4 + width**2) + width**2).astype(np.float32)
    )
    kernel = trigraph.gno_kernel_fwd(coords, params, f_in=width, f_out=width, backend=target.backend)
    tail, weights = (target.copy_to_host(a).astype(np.float64) for a in (coords[-64:], params))
    expected = FUNCTIONS["gno_kernel_fwd"](tail, weights, width, width, backend="pyref")
    assert abs(target.copy_to_host(kernel[-64:]) - expected).max() <= 512 * 2.0**-23 * abs(expected).max()
