"""Property-based tests: every operator agrees with the judge for any graph, sizes and memory layout.

The examples are the same in every run (`derandomize`), so that a new failure is caused by a code change.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_calls import ALL, assert_accurate, assert_same_bits, compute_fields, draw_operator_arguments

from trigraph.testing import strategies

EXAMPLES = 30  # examples per operator; all operators take half a minute on one processor
SETTINGS = settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def draw_any_arguments(draw_, op):
    """Draw arguments of an operator with any dtypes and choices, and at most a few nodes, edges and channels."""
    index, dtype = draw_(strategies.index_dtypes()), draw_(st.sampled_from([np.float32, np.float64]))
    graph = draw_(strategies.graph_arguments(op.definition.graph, index))
    sizes = {}
    for name in op.definition.symbols:
        if op.graph_kind and name in op.graph_kind.sizes:
            continue
        symbol = op.definition.get_limited_symbol(name)
        most = 6 if not symbol.minimum else 5
        sizes[name] = draw_(st.integers(symbol.minimum, min(symbol.maximum or most, most)))
    setting = draw_(st.sampled_from([{}, *op.definition.settings]))
    return draw_operator_arguments(op, dtype, index, graph, seed=draw_(st.integers(0, 99)), setting=setting, **sizes)


def copy_misaligned(a):
    """Return a copy that starts one byte after an aligned address."""
    memory = np.empty(a.nbytes + 1, np.int8)
    moved = np.ndarray(a.shape, a.dtype, buffer=memory[1:].data)
    moved[...] = a
    return moved


def copy_padded(a):
    """Return a copy with gaps between the elements along every axis."""
    view = np.zeros([2 * n for n in a.shape], a.dtype)[tuple(slice(None, None, 2) for _ in a.shape)]
    view[...] = a
    return view


def copy_read_only(a):
    return np.ndarray(a.shape, a.dtype, buffer=a.tobytes())


class ArrayWithoutArithmetic(np.ndarray):
    def __add__(self, other):
        raise AssertionError("arithmetic of a subclass")

    __radd__ = __mul__ = __matmul__ = __rmatmul__ = __add__


LAYOUTS = {
    "C order": lambda a: a,
    "Fortran order": np.asfortranarray,
    "negative strides": lambda a: np.flip(np.flip(a).copy()),
    "padded": copy_padded,
    "misaligned": copy_misaligned,
    "read-only": copy_read_only,
    "subclass": lambda a: a.view(ArrayWithoutArithmetic),
    "one row again and again": lambda a: np.broadcast_to(a[:1], a.shape),
}


# NumPy's matmul may raise this flag for finite numbers; the results are compared anyway.
@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")
@pytest.mark.parametrize("op", ALL)
def test_operators_are_accurate_in_any_memory_layout(op):
    """The fast path and pyref agree with the judge; the results are bitwise identical for any memory layout."""

    @SETTINGS
    @given(st.data())
    def check_any_layout(data):
        values = data.draw(draw_any_arguments(op))
        names = [n for n, v in values.items() if isinstance(v, np.ndarray)]
        layouts = {n: data.draw(st.sampled_from(sorted(LAYOUTS)), label=n) for n in names}
        returned_names = {a.name for a in op.arguments if a.given_back}
        moved = {n: LAYOUTS[layouts[n]](values[n]) for n in names if n not in returned_names}
        plain = values | {n: np.ascontiguousarray(v) for n, v in moved.items()}
        if returned_names:  # pass None, so that the operator recomputes the results of fwd
            plain |= dict.fromkeys(returned_names)
        for backend in ("fortran", "pyref"):
            expected = compute_fields(op, plain, backend=backend)
            assert_accurate(op, plain, expected, chunked=backend == "fortran")
            assert_same_bits(compute_fields(op, plain | moved, backend=backend), expected)

    check_any_layout()
