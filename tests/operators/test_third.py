"""Tests of third derivatives: the judge's agree with finite differences, and the backends' agree with the judge's."""

import numpy as np
import pytest
from table_calls import assert_accurate, assert_same_bits, compute_fields, draw_operator_arguments

from trigraph.backends import BACKENDS
from trigraph.backends.choice import is_bwd3_native
from trigraph.fortran import judge
from trigraph.graphs import EdgeGraph
from trigraph.table import DEFINITIONS, OPERATORS, THIRD
from trigraph.verification import cases, tolerances
from trigraph.verification.judged import compute_with_judge
from trigraph.verification.variants import list_variants

THIRD_OPERATORS = [pytest.param(THIRD[f"{spec.name}_bwd3"], id=spec.name) for spec in DEFINITIONS]
NATIVE_BACKENDS = [  # third derivatives, and backends that implement them
    pytest.param(op, backend, id=f"{op.definition.name}-{backend}")
    for op in THIRD.values()
    for backend, (_, arrays) in BACKENDS.items()
    if arrays == "numpy" and is_bwd3_native(backend, op.name)
]
STEP = 2.0**-32
GROWTH = 2.0**7  # largest growth of scales per derivative order; saturated attention multiplies weights by 2^6


def list_third_order_arguments(op, dtype):
    """Return (arguments of bwd3, whether they avoid kinks) for each of `verify`'s third-order cases."""
    third = [v for v in list_variants(op.definition) if v.kind.third]
    return [(cases.build_case(op.definition, v, dtype, 0).arguments(op), v.distribution != "integers") for v in third]


def shift_along_cotangents(op, values, step):
    """Return arguments of bwd or bwd2 as pairs (high, low), shifted by `step` times the cotangents ggg_."""
    pairs = {
        a.name: judge.make_exact_pair(values[a.name], step, values.get(f"ggg_{a.name}"))
        for a in op.select_present_arguments(values)
    }
    return {n: pairs.get(n, values.get(n)) for n in op.signature_names if n != "wrt"}


@pytest.mark.parametrize("op", THIRD_OPERATORS)
def test_judge_third_derivatives_equal_differences(op):
    """Central differences agree up to errors of second order in the step and rounding errors of 2^-105 of the scale."""
    for values, smooth in list_third_order_arguments(op, "float64"):
        if max(abs(t).max(initial=0) for n, t in values.items() if n.startswith("ggg_") and t is not None) > GROWTH:
            continue  # a step along large cotangents is not small
        third = compute_with_judge(op, values)
        for lower, prefix in ((OPERATORS[f"{op.definition.name}_{o}"], p) for o, p in (("bwd", "gg_"), ("bwd2", ""))):
            plus, minus = (
                compute_with_judge(lower, shift_along_cotangents(lower, values, step)) for step in (STEP, -STEP)
            )
            assert {prefix + n for n in plus} <= third.keys()
            for name in plus if smooth else ():
                hi, lo, scale = third[prefix + name]
                difference = (plus[name] - minus[name]) / (2 * STEP)
                floor = tolerances.eps("real128") * (plus[name][2] + minus[name][2]) / (2 * STEP)
                error = abs((difference[0] - hi) + (difference[1] - lo))
                assert np.all(error <= (GROWTH * STEP) ** 2 * scale + floor), prefix + name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", THIRD_OPERATORS)
def test_backends_agree_with_the_judge(op, dtype):
    for values, _ in list_third_order_arguments(op, dtype):
        judged = compute_with_judge(op, values)
        assert_accurate(op, values, compute_fields(op, values, backend="pyref"), False, judged)
        rounded = dict.fromkeys(f.name for f in op.fields)
        rounded |= {name: hi.astype(dtype) for name, (hi, _, _) in judged.items()}
        assert_same_bits(compute_fields(op, values, backend="fortran-reference"), rounded)


def test_error_names_supporting_backends():
    op = THIRD["mha_gat_n2n_bwd3"]
    with pytest.raises(ValueError, match=r"'gpu-host' .*; expected one of fortran, fortran-reference, pyref, or"):
        compute_fields(op, draw_operator_arguments(op), backend="gpu-host")


@pytest.mark.parametrize("choice", ["min", "max"])
def test_first_of_equal_messages_is_selected(choice):
    """If all messages are zero, the first one is selected, even though their directional derivatives differ."""
    op = THIRD["agg_weighted_n2n_bwd3"]
    values = draw_operator_arguments(op, setting={"op": choice})
    values["embedding"] = np.zeros_like(values["embedding"])
    for backend, chunked in (("pyref", False), ("fortran", True)):
        assert_accurate(op, values, compute_fields(op, values, backend=backend), chunked=chunked)


@pytest.mark.parametrize(("op", "backend"), NATIVE_BACKENDS)
def test_separate_fields_and_omitted_cotangents_give_equal_bits(op, backend):
    """A field is bitwise the same if it is requested alone; a cotangent of None is treated as zero."""
    values, _ = list_third_order_arguments(op, "float32")[0]
    for name, expected in compute_fields(op, values, backend=backend).items():
        if expected is not None:
            out = np.full_like(expected, np.nan)
            got = compute_fields(op, values, backend=backend, wrt=name, out=out)
            assert got[name] is out
            assert_same_bits(got, dict.fromkeys(got) | {name: expected})
    for a in (a for a in op.select_present_arguments(values) if a.nullable and not a.optional):
        zero, none = ({**values, a.name: value} for value in (np.zeros_like(values[a.name]), None))
        assert_same_bits(compute_fields(op, none, backend=backend), compute_fields(op, zero, backend=backend))


@pytest.mark.parametrize("backend", ["fortran", "gpu-host"])
@pytest.mark.parametrize("name", ["gno_kernel", "gno_message"])
def test_nan_direction_spreads_as_in_judge(name, backend):
    """NaN in a direction affects the same elements as in the judge's results."""
    op = THIRD[f"{name}_bwd3"]
    for direction in ("gg_coords", "ggg_coords"):
        values = draw_operator_arguments(op) | {
            f"ggg_{a.name}": None for a in op.arguments if a.name.startswith("grad_")
        }
        values[direction][2] = np.nan
        expected = {field: np.isnan(hi) for field, (hi, _, _) in compute_with_judge(op, values).items()}
        got = compute_fields(op, values, backend=backend)
        assert all(np.array_equal(np.isnan(got[field]), marks) for field, marks in expected.items())


@pytest.mark.parametrize("large", [(), ("embedding",), ("grad_out",), ("gg_vec", "ggg_vec")], ids="-".join)
def test_dominant_excluded_edges_do_not_reduce_accuracy(large):
    """Excluded edges are subtracted from sums over all edges, unless too much precision would be lost."""
    op = THIRD["agg_edge_to_edge_bwd3"]
    joined = np.zeros((100, 100), int)
    joined[:16, :16] = 1 - np.eye(16, dtype=int)
    joined[16, 17:57] = joined[17:57, 16] = 1  # more edges than fit in a chunk
    graph = EdgeGraph(*np.nonzero(joined), 100)
    values = draw_operator_arguments(
        op, graph=graph, setting={"exclude": "edge"}, num_spherical=3, num_radial=2, n_emb=3, n_mid=2
    )
    for name in large:
        values[name][[17, 100]] *= 2.0 ** (34 / len(large))
    assert_accurate(op, values, compute_fields(op, values, backend="fortran"), chunked=True)


@pytest.mark.parametrize("backend", ["pyref", "fortran"])
@pytest.mark.parametrize("op", THIRD_OPERATORS)
def test_unequal_cotangents_keep_elementwise_accuracy(op, backend):
    """The error of each element depends only on its own terms, however large other elements are."""
    for largest in (8, 120, 900):
        rng, values = np.random.default_rng(0), draw_operator_arguments(op)
        for name in (n for n, a in values.items() if n.startswith("ggg_") and a is not None):
            values[name] = np.ldexp(values[name], rng.integers(-largest, largest, values[name].shape))
        assert_accurate(op, values, compute_fields(op, values, backend=backend), backend == "fortran")
