"""The build of the fast path: which one runs, how another is chosen, and that v3 and v4 agree in every bit."""

import os
import sys

import numpy as np
import pytest
from programs import run
from table_calls import OPS, assert_same_bits, call, draw, raises

import trigraph
from trigraph.fortran import levels
from trigraph.table import DEFINITIONS, SYMBOLS

AVAILABLE = levels.available()


@pytest.fixture(autouse=True)
def restore():
    before = trigraph.get_cpu_level()
    yield
    trigraph.set_cpu_level(before)


def in_a_child(code, status=0, **environment):
    return run(sys.executable, "-c", code, env=os.environ | environment, status=status)


def test_the_highest_level_of_the_processor_is_the_default():
    from trigraph.fortran import _reference

    level = _reference.cpu_level()
    assert level in (0, 2, 3, 4)
    everything = tuple(f"v{n}" for n in range(2, level + 1)) if level else ("base",)
    assert AVAILABLE in (everything, everything[level > 2 :])  # wheels alone have v2 where the processor has more
    if levels.ENVIRONMENT not in os.environ:
        code = "import trigraph; print(trigraph.get_cpu_level())"
        assert in_a_child(code).stdout.strip() == AVAILABLE[-1]


@pytest.mark.parametrize("level", AVAILABLE)
def test_a_level_is_chosen_in_python(level):
    trigraph.set_cpu_level(level)
    assert trigraph.get_cpu_level() == level
    assert levels.fast_module().__name__ == f"trigraph.fortran._fast_{level}"
    kernel = trigraph.gno_kernel_fwd(np.ones((3, 2)), np.ones(2 * 3 + 1 * 3), f_in=1, f_out=1)
    assert kernel.shape == (3, 1)


@pytest.mark.parametrize("level", AVAILABLE)
def test_a_level_is_chosen_by_the_environment(level):
    code = "import trigraph; print(trigraph.get_cpu_level())"
    assert in_a_child(code, **{levels.ENVIRONMENT: level}).stdout.strip() == level


def test_levels_that_cannot_run():
    expected = f"set_cpu_level: level is 'v9'; expected one of {', '.join(AVAILABLE)}, which this processor can run"
    raises(ValueError, expected, trigraph.set_cpu_level, "v9")
    raises(TypeError, "set_cpu_level: level is a int; expected a string", trigraph.set_cpu_level, 3)
    code = "import trigraph; trigraph.get_cpu_level()"
    found = in_a_child(code, status=1, **{levels.ENVIRONMENT: "v9"})
    assert f"ValueError: {levels.ENVIRONMENT} is 'v9'; expected one of" in found.stderr


def of_any_size(op, seed):
    """Arguments whose widths fill no vector, and whose rows are of very different size in every second case.

    Widths decide in what order products are made and where chunks begin; very small rows bring the direct sums over
    pairs of edges in.
    """
    rng = np.random.default_rng(seed)
    sizes = {s: int(rng.integers(max(SYMBOLS[s].minimum, 1), SYMBOLS[s].maximum or 40)) for s in op.definition.symbols}
    sizes |= {s: int(rng.integers(1, 500)) for s in op.definition.symbols if not SYMBOLS[s].minimum}
    values = draw(op, (np.float32, np.float64)[seed // 2 % 2], seed=seed, **sizes)
    if seed % 2:
        for a in (a for a in op.given(values) if not (a.given_back or a.index or SYMBOLS.get(a.dims[0]) is None)):
            factors = 10.0 ** rng.uniform(-8, 0, len(values[a.name])).reshape(-1, *[1] * (len(a.dims) - 1))
            values[a.name] = (values[a.name] * factors).astype(values[a.name].dtype)
    return values


@pytest.mark.skipif(not {*levels.EQUAL_BITS} <= {*AVAILABLE}, reason="the processor lacks a level")
@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_equal_bits_on_v3_and_v4(definition):
    """For more sizes than `trigraph verify` has."""
    for op in (o for o in OPS if o.definition is definition):
        for seed in range(8):
            values, found = of_any_size(op, seed), []
            for level in levels.EQUAL_BITS:
                trigraph.set_cpu_level(level)
                found.append(call(op, values))
            assert_same_bits(*found)
