"""trigraph.jax: bits of the NumPy functions, derivatives of every kind and order, and what is refused."""

import numpy as np
import pytest

import trigraph
from trigraph import CSC, EdgeGraph, Segments
from trigraph.table import DEFINITIONS, OPERATORS, ORDERS
from trigraph.verification.cases import build, variants

jax = pytest.importorskip("jax", reason="needs JAX: pip install 'trigraph[jax]'")
import jax.numpy as jnp  # noqa: E402

import trigraph.jax as tj  # noqa: E402
from trigraph.jax.plain import PLAIN  # noqa: E402

# `trigraph verify --framework jax` takes all variants; here those that differ in the form of a call.
NAMES = ("regular", "shared rows", "no edges", "images", "saturated", "periodic")
CASES = [(spec, v) for spec in DEFINITIONS for v in {repr(v): v for v in variants(spec) if v.name in NAMES}.values()]
SMALL = [next(c for c in CASES if c[0] is spec) for spec in DEFINITIONS]
SMALL += [c for c in CASES if c[1].name == "regular" and ("ELU" in repr(c[1]) or "mean" in repr(c[1]) or "max" in repr(c[1]))]


@pytest.fixture(autouse=True)
def _x64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def of_case(case, function=None):
    """Return the forward as a function of the present inputs, a dictionary, and these inputs."""
    spec = case.definition
    function = function or getattr(tj, spec.name)
    inputs = {a.name: jnp.asarray(case.values[a.name]) for a in case.inputs}
    others = {n: v for n, v in case.values.items() if n not in inputs}

    def forward(x, graphs=others):
        found = function(**x, **{**others, **graphs})
        fields = [f.name for f in OPERATORS[f"{spec.name}_fwd"].fields]
        found = dict(zip(fields, found if isinstance(found, tuple) else (found,), strict=True))
        return {a.name: found[a.name] for a in spec.outputs}

    return forward, inputs


def numpy_of(case, order):
    op = OPERATORS[f"{case.definition.name}_{ORDERS[order]}"]
    found = getattr(trigraph, op.name)(**case.arguments(op))
    return {op.fields[0].name: found} if op.single else found._asdict()


def equal(got, expected):
    for name, array in got.items():
        assert array.dtype == expected[name].dtype
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize(("spec", "variant"), CASES, ids=lambda p: p.name)
def test_bits_are_those_of_numpy(spec, variant):
    case = build(spec, variant, "float32" if variant.name == "saturated" else "float64", 0)
    forward, x = of_case(case)
    g = {n.removeprefix("grad_"): jnp.asarray(v) for n, v in case.grads.items()}
    gg = {n: jnp.asarray(case.ggs[f"gg_{n}"]) for n in x}

    def pull(g, x):
        return jax.vjp(forward, x)[1](g)[0]

    def all_orders(g, x):
        gradients, pull2 = jax.vjp(pull, g, x)
        along = jax.jvp(forward, (x,), (gg,))[1]
        return forward(x), gradients, pull2(gg), along

    for run in (all_orders, jax.jit(all_orders)):
        outputs, gradients, (of_g, of_x), along = run(g, x)
        equal(outputs, numpy_of(case, 0))
        equal(gradients, numpy_of(case, 1))
        expected = numpy_of(case, 2)
        equal(of_x, expected)
        equal(of_g, {n: expected[f"grad_{n}"] for n in of_g})
        equal(along, {n: expected[f"grad_{n}"] for n in along})


@pytest.mark.parametrize(("spec", "variant"), SMALL, ids=lambda p: p.name)
def test_every_order_and_mode(spec, variant):
    """Derivatives along a line, in forward and reverse mode in any sequence, are those of the plain form."""
    case = build(spec, variant, "float64", 0)
    forward, x = of_case(case)
    kind = OPERATORS[f"{spec.name}_fwd"].graph
    names = [n for n, _ in kind.forward + kind.fast + kind.reverse] if kind else []
    arrays = {n: jnp.asarray(a) for n in names if (a := kind.find(n, case.values)) is not None}
    direction = {n: jnp.asarray(case.directions[n]) for n in x}
    weights = {n.removeprefix("grad_"): jnp.asarray(g) for n, g in case.grads.items()}

    def line(f):
        return lambda t: sum(
            (weights[n] * y).sum() for n, y in f({n: v + t * direction[n] for n, v in x.items()}).items()
        )

    def derivatives(f, sequences):
        modes = {"r": jax.grad, "f": jax.jacfwd}
        for sequence in sequences:
            found = f
            for mode in sequence:
                found = modes[mode](found)
            yield found

    ours, theirs = line(forward), line(lambda x: PLAIN[spec.name](arrays | x, case.sizes, case.values))
    sequences = ("", "r", "f", "rr", "rf", "fr", "ff", "rrr", "frf")
    got = jax.jit(lambda t: [f(t) for f in derivatives(ours, sequences)])(0.0)
    expected = jax.jit(lambda t: [f(t) for f in derivatives(theirs, ("", "f", "ff", "fff"))])(0.0)
    for sequence, value in zip(sequences, got, strict=True):
        right = expected[len(sequence)]
        # Sums of hundreds of terms, whose absolute values exceed the sum by at most a few powers of ten.
        assert abs(value - right) <= 1e-9 * (1 + abs(right)), sequence
