"""Tests that basis_embedding_fwd, _bwd and _bwd2 call the operator selected by their arguments."""

import numpy as np
import pytest
from expect_error import expect_error
from table_calls import (
    CPU_BACKENDS,
    OPS,
    assert_same_bits,
    compute_fields,
    draw_operator_arguments,
    map_fields_to_arrays,
)

import trigraph
from trigraph.table import ORDERS, OVER_FORMS

OPERATORS = [pytest.param(op, id=op.name) for op in OPS if op.definition.name.startswith("basis_embedding_")]
EMPTY = {"edges": {"num_edges": 0, "num_triplets": 0}, "triplets": {"num_triplets": 0}}


def compute_fields_over_forms(op, values, **keywords):
    """Call the function that selects the operator; return the fields of that operator."""
    chooser = OVER_FORMS[f"basis_embedding_{ORDERS[op.order]}"]
    result = map_fields_to_arrays(chooser, getattr(trigraph, chooser.name)(**values, **keywords))
    assert [*result] == [f.name for f in chooser.fields]
    assert all(result[name] is None for name in {*result} - {f.name for f in op.fields})
    return {f.name: result[f.name] for f in op.fields}


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("op", OPERATORS)
def test_basis_embedding_equals_chosen_operator(op, backend):
    values = draw_operator_arguments(op, np.float32)
    expected = compute_fields(op, values, backend=backend)
    assert_same_bits(compute_fields_over_forms(op, values, backend=backend), expected)
    if op.accepts_wrt:
        out = {"weight": np.empty_like(expected["weight"])}
        got = compute_fields_over_forms(op, values, backend=backend, wrt=["weight"], out=out)
        assert got["weight"] is out["weight"]
        assert_same_bits(got, {name: a if name == "weight" else None for name, a in expected.items()})


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("none", EMPTY)
@pytest.mark.parametrize("op", OPERATORS)
def test_empty_lists_give_empty_or_zero_results(op, none, backend):
    """Without edges or triplets, sums are zero, and arrays with one row per edge or triplet are empty or zero."""
    sizes = {name: 0 for name in EMPTY[none] if name in op.definition.symbols or op.graph_kind}
    values = draw_operator_arguments(op, **sizes)
    got = compute_fields_over_forms(op, values, backend=backend)
    assert_same_bits(got, compute_fields(op, values, backend=backend))
    if none == "edges" or op.graph_kind:
        assert not any(a.any() for a in got.values())


SPHERICAL = {"rad_basis": np.ones((2, 3)), "weight": np.ones((3, 2, 4))}
BWD = {**SPHERICAL, "grad_rad_W1": np.ones((2, 4, 2))}
BAD = [
    ("fwd", {**SPHERICAL, "sph_basis": np.ones((1, 2))}, "TypeError: ...: triplets is None, but sph_basis is given"),
    ("fwd", {**SPHERICAL, "triplets": [0]}, "TypeError: ...: sph_basis is None, but triplets is given; expected both"),
    ("fwd", {**SPHERICAL, "weight": np.ones(3)}, "ValueError: basis_embedding_spherical_fwd: weight has shape (3,)"),
    ("fwd", {**SPHERICAL, "weight": [[1.0]]}, "TypeError: basis_embedding_spherical_fwd: weight is a list; expected"),
    (
        "fwd",
        {**SPHERICAL, "weight": np.ones((4, 2))},
        "ValueError: basis_embedding_radial_fwd: weight has shape (4, 2)",
    ),
    ("bwd", {**BWD, "wrt": ["m"]}, "ValueError: basis_embedding_bwd: wrt ...'m'"),
    ("bwd", {**BWD, "grad_rad_W1": np.ones((2, 4))}, "ValueError: ...spherical_bwd: grad_rad_W1 has shape (2, 4)"),
    ("bwd2", {**BWD, "gg_sph_basis": np.ones(1)}, "ValueError: basis_embedding_bwd2: gg_sph_basis is given, but sph_b"),
]


@pytest.mark.parametrize(("order", "values", "text"), BAD)
def test_basis_embedding_refuses_bad_input(order, values, text):
    if order == "bwd2":
        values = {"gg_rad_basis": values["rad_basis"], "gg_weight": values["weight"], **values}
    with expect_error(text):
        getattr(trigraph, f"basis_embedding_{order}")(**values)
