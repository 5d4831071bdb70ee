"""The case generator: what its cases contain, margins from kinks, and the accuracy rule itself."""

import math
import re

import numpy as np
import pytest

from trigraph import pyref
from trigraph.checks import bind_sizes, shape_of
from trigraph.table import DEFINITIONS
from trigraph.verification import cases, structures, tolerances
from trigraph.verification.accuracy import form_problem, scaled_error
from trigraph.verification.graphs import GRAPHS
from trigraph.verification.judged import operators_of
from trigraph.verification.real import build_real, real_inputs

REAL = [
    pytest.param(definition, real, id=f"{definition.name}-{real.name}")
    for definition in DEFINITIONS
    for real in real_inputs(definition.family)
]
BY_NAME = {d.name: d for d in DEFINITIONS}


def build(name, variant_name, dtype="float64", seed=0):
    definition = BY_NAME[name]
    variant = next(v for v in cases.variants(definition) if v.name == variant_name)  # with its first setting
    return cases.build(definition, variant, dtype, seed)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_arguments_fit_the_table_and_follow_from_the_seed(definition):
    for variant in cases.variants(definition):
        single, one, same, other = (
            cases.build(definition, variant, dtype, seed)
            for dtype, seed in (("float32", 0), ("float64", 0), ("float64", 0), ("float64", 1))
        )
        check_form(single)
        check_form(one)
        assert dict(one.sizes) == dict(single.sizes)
        assert one.inputs == other.inputs
        for name in (a.name for a in one.inputs):
            assert np.array_equal(one.values[name], same.values[name])
            assert not one.values[name].size or not np.array_equal(one.values[name], other.values[name])
        if variant.name != "integers":
            bad = cases.kink_violations(definition, one.values, one.directions, one.largest_step)
            assert not any(rows.any() for rows in bad.values())


def check_form(case):
    for op in operators_of(case.definition):
        arguments = case.arguments(op)
        assert tuple(arguments) == op.parameters
        sizes = bind_sizes(op, arguments, {a.name: arguments[a.name].shape for a in op.given(arguments)})
        assert {**case.sizes, **sizes} == dict(case.sizes)
        for array in op.given(arguments):
            value = arguments[array.name]
            assert value.shape == shape_of(array, case.sizes)
            assert value.dtype == case.dtype
            assert not value.flags.writeable
    for name, direction in case.directions.items():
        assert direction.shape == {**case.values, **case.grads}[name].shape


def test_a_graph_has_everything_that_is_awkward():
    graph = build("gno_message", "regular").values["graph"]
    destinations = graph.prepare().destinations
    in_degrees, out_degrees = np.diff(graph.offsets), np.bincount(graph.indices, minlength=graph.num_src_nodes)
    assert graph.num_src_nodes != graph.num_dst_nodes
    assert 0 in in_degrees[:-1]
    assert in_degrees[-1] == 0
    assert 0 in out_degrees[:-1]
    assert out_degrees[-1] == 0
    assert (destinations == graph.indices).any()
    pairs = np.stack([graph.indices, destinations])
    assert np.unique(pairs, axis=1).shape[1] < pairs.shape[1]
    assert np.array_equal(graph.edge_ids, np.arange(graph.num_positions))
    assert (np.diff(graph.indices)[destinations[1:] == destinations[:-1]] < 0).any()  # sources are in no order


def test_both_index_dtypes_and_empty_graphs_occur():
    graphs = [cases.build(BY_NAME["gno_message"], v, "float64", 0).values["graph"] for v in GRAPHS["csc"].variants]
    assert {str(g.offsets.dtype) for g in graphs} == {"int32", "int64"}
    assert [g.num_positions for g in graphs].count(0) == 2
    assert any(g.num_positions == 0 and g.num_edges > 0 and g.num_dst_nodes > 0 for g in graphs)
    assert any(g.num_dst_nodes == g.num_src_nodes == g.num_edges == 0 for g in graphs)
    assert any(g.num_positions == 1 for g in graphs)


def test_kinks_that_cannot_be_avoided_are_an_error(monkeypatch):
    monkeypatch.setattr(pyref, "gno_kernel_kinks", lambda coords, **_: np.sin(1e9 * coords))
    monkeypatch.setattr(cases, "MAX_ROUNDS", 5)
    with pytest.raises(RuntimeError, match="no inputs clear of kinks after 5 rounds"):
        build("gno_kernel", "regular")


def test_kinks_that_are_nan_are_violations(monkeypatch):
    case = build("gno_kernel", "regular")
    monkeypatch.setattr(pyref, "gno_kernel_kinks", lambda coords, **_: np.full(coords.shape, np.nan))
    (bad,) = cases.kink_violations(case.definition, case.values, case.directions, case.largest_step).values()
    assert bad.all()


@pytest.mark.parametrize(("definition", "real"), REAL)
def test_real_input_keeps_clear_of_kinks_and_says_so(definition, real):
    for patch in (True, False):
        case = build_real(real, definition, "float64", 0, patch)
        bad = cases.kink_violations(definition, case.values, case.directions, case.largest_step)
        assert not any(rows.any() for rows in bad.values())
        remark = real.remark(patch)
        notes = case.note.removeprefix(remark).removeprefix("; " if remark else "")
        assert case.note.startswith(remark)
        # Only kinks leave out edges that the input itself, or the patch of it, has.
        left_out = [int(n) for n in re.findall(r"(\d+) of \d+ edges left out: within 2 steps of \S+ of a kink", notes)]
        assert len(left_out) == notes.count("left out") == len(definition.kinks)
        assert bool(notes) == bool(definition.kinks)
        assert sum(left_out) < case.sizes["num_edges"] / 4


def test_the_whole_mesh_has_most_of_its_edges():
    (airfoil,) = real_inputs("gno")
    case = build_real(airfoil, BY_NAME["gno_message"], "float64", 0, patch=False)
    assert airfoil.remark(True) == airfoil.remark(False) == ""
    assert case.sizes["num_positions"] > 1400
    assert "of 1808 edges left out" in case.note


@pytest.mark.parametrize("structure", structures.shipped(), ids=lambda s: s.name)
def test_a_structure_says_what_a_patch_of_it_leaves_out(structure):
    (real,) = (r for r in real_inputs("dimenet") if r.name == structure.name)
    total = len(structure.src)
    for patch, budget in ((True, structures.PATCH), (False, structures.WHOLE)):
        some = structure.within(budget)
        edges, triplets = len(some.src), np.bincount(some.dst, minlength=len(some.positions))[some.src].sum()
        assert 0 < triplets <= budget
        left_out = f"{edges} of {total} edges, those of at most {budget} triplets around the middle"
        assert structure.remark(patch) == ("" if edges == total else left_out)
        assert (edges == total) == (np.bincount(structure.dst)[structure.src].sum() <= budget)
        if edges < total:  # as many as fit, or nearly: the next edge brings two neighbourhoods of triplets
            assert triplets > 0.8 * budget
        assert build_real(real, BY_NAME["agg_edge_to_edge"], "float64", 0, patch).sizes["num_edges"] == edges


def triple(values, scale=None):
    values = np.asarray(values, float)
    return np.stack([values, np.zeros_like(values), abs(values) if scale is None else np.asarray(scale, float)])


def test_the_rule_counts_epsilons_of_the_scale():
    for dtype in ("float32", "float64"):
        eps = np.finfo(dtype).eps
        assert tolerances.eps(dtype) == eps
        got = np.array([1, 1 + 3 * eps], dtype)
        assert scaled_error(got, triple([1, 1]), dtype) == pytest.approx(3)
        assert scaled_error(got, triple([1, 1], [1, 100]), dtype) == pytest.approx(0.03)
    lo = np.array([[1.0], [1e-17], [1.0]])  # what float64 cannot hold counts
    assert scaled_error(np.array([1.0]), lo, "float64") == pytest.approx(1e-17 / 2**-52)


@pytest.mark.parametrize("where", ["got", "hi", "lo", "scale"])
def test_a_nan_anywhere_is_no_agreement(where):
    got, reference = np.ones(5), triple(np.ones(5))
    target = {"got": got, "hi": reference[0], "lo": reference[1], "scale": reference[2]}[where]
    target[2] = np.nan
    assert math.isnan(scaled_error(got, reference, "float64"))


def test_infinities_and_zero_scales():
    assert not scaled_error(np.array([np.inf]), triple([1.0]), "float64") <= 1e300
    assert not scaled_error(np.array([1.0]), triple([np.inf]), "float64") <= 1e300
    assert not scaled_error(np.array([np.inf]), triple([np.inf]), "float64") <= 1e300
    assert scaled_error(np.array([1e-300]), triple([0.0]), "float64") > 1e7
    assert scaled_error(np.array([0.0]), triple([0.0]), "float64") == 0
    assert scaled_error(np.zeros((0, 3)), triple(np.zeros((0, 3))), "float64") == 0


def test_form_is_exact():
    field, sizes = operators_of(BY_NAME["gno_kernel"])[0].fields[0], {"num_edges": 4, "f_in": 2, "f_out": 3}
    good = np.zeros((4, 6), np.float32)
    assert form_problem(good, field, sizes, "float32") == ""
    for bad in (good.astype(np.float64), good.T, good[:3], good[None], good.astype(">f4"), good.tolist(), None, 0.0):
        assert form_problem(bad, field, sizes, "float32")


def test_saturated_attention_is_saturated():
    """Products of deviations that vanish have an error of second order; a slope of 1e-40 has digits in float32, too."""
    definition = BY_NAME["mha_gat_n2n"]
    case = build("mha_gat_n2n", "saturated", "float32")
    post = pyref.mha_gat_n2n_fwd(**case.arguments(operators_of(definition)[0])).softmax_scores[1]
    assert (post < 1e-6).sum() > (post > 1e-6).sum() > 2 * case.sizes["num_heads"]
