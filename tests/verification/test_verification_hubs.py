"""The hubs of `trigraph verify`: every sum has as many terms as it says, and chains of partial sums are found."""

import numpy as np
import pytest

from trigraph.table import DEFINITIONS, OPERATORS, SYMBOLS
from trigraph.verification import tolerances
from trigraph.verification.accuracy import check_accuracy
from trigraph.verification.cases import build, hubs
from trigraph.verification.judged import Judged, every_operator_of
from trigraph.verification.run import HUB, LONGEST_HUB
from trigraph.verification.subjects import panel

BY_NAME = {d.name: d for d in DEFINITIONS}


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_every_sum_has_as_many_terms(definition):
    degree = 100
    for data in ("positive", "constant"):
        for variant in hubs(definition, degree, data):
            case = build(definition, variant, "float32", 0)
            assert case.equal_terms == (data == "constant")
            graph = case.values.get("graph")
            if definition.graph == "csc":
                assert np.diff(graph.offsets).max() == np.bincount(graph.indices).max() == degree
                assert np.bincount(graph.edge_ids).max() == degree
            elif definition.graph == "edges":
                assert np.bincount(graph.src).max() == np.bincount(graph.dst).max() == degree
            elif definition.graph is not None:
                given = [case.values.get(name) for name in ("triplets", "atoms", "idx_in")]
                assert all(np.bincount(s.index).max() == degree for s in given if s is not None)
            assert any(n >= degree for n in case.sizes.values())
            for op in every_operator_of(definition):
                for a in case.given(op):
                    array = case.arguments(op)[a.name]
                    assert (array > 0).all()
                    rows = SYMBOLS.get(a.dims[0])
                    if data == "constant" and rows and not rows.minimum:
                        assert (array == array[:1]).all()


def naive(features, kernel, graph, f_in, f_out):
    """Partial sums of 32 edges, added one by one: within 8 eps up to a thousand edges, and not beyond."""
    terms = np.einsum("pfo,pf->po", kernel[graph.edge_ids].reshape(-1, f_in, f_out), features[graph.indices])
    out = np.zeros((graph.num_dst_nodes, f_out), kernel.dtype)
    for i in range(2):  # the hub and one more
        start, stop = graph.offsets[i], graph.offsets[i + 1]
        for first in range(start, stop, 32):
            out[i] += np.add.reduce(terms[first : min(first + 32, stop)], axis=0, dtype=kernel.dtype)
    out[2:] = terms[graph.offsets[2] :]
    return out


def test_partial_sums_added_one_by_one_are_caught(monkeypatch):
    from trigraph.verification import subjects

    definition, op = BY_NAME["gno_aggregate"], OPERATORS["gno_aggregate_fwd"]
    monkeypatch.setitem(subjects.FUNCTIONS, op.name, lambda panel, **arguments: naive(**arguments))

    def errors(degree):
        (variant,) = hubs(definition, degree, "constant")
        return [
            c.passed for c in check_accuracy(panel("fortran"), Judged(build(definition, variant, "float32", 0)), op)
        ]

    assert all(errors(500))
    assert not all(errors(10_000))


def test_the_bound_of_equal_terms_is_half_their_number():
    assert tolerances.accuracy(True, 10**6, True) == tolerances.accuracy(True, 10**6) == 8
    assert tolerances.accuracy(False, 10**6) == 8 + 1000
    assert tolerances.accuracy(False, 10**6, True) == 8 + 500_000
    # 100,000 ones and a third in float32: each addition rounds the same way.
    third = np.full(100_000, 1 + 1 / 3, np.float32)
    error = abs(float(np.add.accumulate(third)[-1]) / (float(third[0]) * 100_000) - 1) / tolerances.eps("float32")
    assert tolerances.accuracy(False, 100_000) < error < tolerances.accuracy(False, 100_000, True)


@pytest.mark.parametrize("degree", [HUB, LONGEST_HUB])
@pytest.mark.parametrize("chunk", [128, 256])
def test_partial_sums_wait_at_every_level(degree, chunk):
    """A tree that adds chunks pairwise keeps one sum for each one among the binary digits of their number."""
    whole = (degree - 1) // chunk
    assert whole > 1
    assert whole & (whole + 1) == 0
