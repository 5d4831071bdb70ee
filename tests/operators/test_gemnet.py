"""GemNet-OC's operators are linear in each factor: exactly so where every sum is exact, whatever its order."""

import numpy as np
import pytest
from table_calls import CPU_PANELS

import trigraph
from trigraph import Segments
from trigraph.table import OPERATORS

SIZES = {"num_radial": 4, "num_spherical": 5, "interm": 3, "emb_in": 2, "emb_out": 6}
DEFINITIONS = sorted({op.definition.name for op in OPERATORS.values() if op.family == "gemnet"})
WITH_TRIPLETS = [name for name in DEFINITIONS if OPERATORS[f"{name}_fwd"].graph is not None]


def integers(rng, shape, dtype):
    """Small enough for every sum of products to be a whole number the dtype holds."""
    return rng.integers(-3, 4, shape).astype(dtype)


def arguments(name, order, dtype=np.float64, seed=0, edges=13, triplets=300, atoms=6, inputs=40):
    """Arguments of an operator of the family, whole numbers: unsorted triplets, edges and atoms that have none."""
    rng = np.random.default_rng(seed)
    index = rng.permutation(np.r_[rng.integers(1, edges, triplets - 280), np.full(280, 2)])
    graphs = {
        "triplets": Segments(index, edges),
        "atoms": Segments(rng.integers(1, atoms, edges), atoms),
        "idx_in": Segments(rng.integers(1, inputs, triplets), inputs),
    }
    sizes = {**SIZES, "num_edges": edges, "num_triplets": triplets, "num_inputs": inputs, "num_outputs": atoms}
    op = OPERATORS[f"{name}_{order}"]
    values = {}
    for a in op.arguments:
        values[a.name] = integers(rng, [eval(dim, {}, sizes) for dim in a.dims], dtype)
    return values, {n: g for n, g in graphs.items() if n in op.parameters}


def fields(op, result):
    return {op.fields[0].name: result} if op.single else result._asdict()


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("order", ["fwd", "bwd", "bwd2"])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_linear_in_each_argument(name, order, panel):
    """f(2x) = 2 f(x) and f(x+y) = f(x) + f(y) in each argument, for every field that depends on it.

    A field named after an argument does not depend on it. The cotangents of bwd2 are one argument, as it is linear in
    all of them together; it is linear in an input where that input's own cotangent is zero.
    """
    op = OPERATORS[f"{name}_{order}"]
    values, graphs = arguments(name, order)
    others, _ = arguments(name, order, seed=1)
    cotangents = {n for n in values if n.startswith("gg_")}
    for moved in [cotangents, *({n} for n in values if n not in cotangents)]:
        if not moved:
            continue

        def f(change, moved=moved):
            given = {n: change(x, others[n]) if n in moved else x for n, x in values.items()}
            given |= {f"gg_{n}": None for n in moved if f"gg_{n}" in given}
            return fields(op, getattr(trigraph, op.name)(**given, **graphs, panel=panel))

        x, y, twice, both = (f(c) for c in (lambda x, y: x, lambda x, y: y, lambda x, y: 2 * x, np.add))
        for field in x:
            if moved == {field}:
                assert np.array_equal(y[field], x[field])
                continue
            assert order == "bwd2" or np.any(x[field])
            assert np.array_equal(twice[field], 2 * x[field]), (moved, field)
            assert np.array_equal(both[field], x[field] + y[field]), (moved, field)


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("order", ["fwd", "bwd", "bwd2"])
@pytest.mark.parametrize("name", WITH_TRIPLETS)
def test_what_no_triplet_uses(name, order, panel):
    """An edge, atom or row of m without triplets: its results are zero, and a NaN in its arguments reaches nothing."""
    op = OPERATORS[f"{name}_{order}"]
    values, graphs = arguments(name, order)
    used = {"num_edges": np.isin(np.arange(13), graphs["triplets"].index)}
    if len(graphs) > 1:
        atoms = graphs["atoms"].index[graphs["triplets"].index]
        used |= {
            "num_outputs": np.isin(np.arange(6), atoms),
            "num_inputs": np.isin(np.arange(40), graphs["idx_in"].index),
        }
    expected = fields(op, getattr(trigraph, op.name)(**values, **graphs, panel=panel))
    for a in op.arguments:
        if a.dims[0] in used:
            values[a.name][~used[a.dims[0]]] = np.nan
    got = fields(op, getattr(trigraph, op.name)(**values, **graphs, panel=panel))
    for field in op.fields:
        assert np.array_equal(got[field.name], expected[field.name]), field.name
        if field.dims[0] in used:
            assert not np.any(got[field.name][~used[field.dims[0]]]), field.name


@pytest.mark.parametrize("panel", CPU_PANELS)
def test_an_edges_row_is_reshaped_not_transposed(panel):
    """What checkpoints depend on: the product's row has the order (S, interm), its place is (interm, S)."""
    weight = np.arange(10.0).reshape(1, 5, 2)  # num_radial, S, interm
    got = trigraph.basis_embedding_spherical_fwd(np.ones((1, 1)), weight, panel=panel)
    assert np.array_equal(got, np.arange(10.0).reshape(1, 2, 5))
    back = trigraph.basis_embedding_spherical_bwd(got, np.ones((1, 1)), weight, wrt="weight", panel=panel)
    assert np.array_equal(back.weight, weight)
