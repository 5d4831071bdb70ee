"""Tests of the case generator (case contents, distance from kinks, hub nodes) and of the accuracy rule."""

import math
from dataclasses import replace

import numpy as np
import pytest

from trigraph import pyref
from trigraph.checks import evaluate_shape, find_symbol_sizes
from trigraph.table import DEFINITIONS, OPERATORS, SYMBOLS
from trigraph.verification import cases, nonfinite, structures, tolerances
from trigraph.verification.accuracy import check_accuracy, compute_largest_scaled_error, describe_wrong_dtype_or_shape
from trigraph.verification.graphs import GRAPHS
from trigraph.verification.judged import JudgedCase, list_all_operators, list_fwd_bwd_bwd2
from trigraph.verification.nonfinite import REPLACEMENTS
from trigraph.verification.real import build_real_case, list_real_inputs
from trigraph.verification.run import HUB, LONGEST_HUB
from trigraph.verification.settings import parse_restriction, parse_restriction_from_case_name
from trigraph.verification.subjects import make_backend_subject

BY_NAME = {d.name: d for d in DEFINITIONS}


def build_named_case(name, variant_name, dtype="float64", **setting):
    """Return the case of the first variant with this name and setting."""
    variants = [v for v in cases.list_variants(BY_NAME[name]) if v.name == variant_name]
    variant = next(v for v in variants if setting.items() <= v.setting.items())
    return cases.build_case(BY_NAME[name], variant, dtype, 0)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_a_restriction_to_the_settings_of_a_case_keeps_it(definition):
    """A restriction to one case's settings keeps that case, with all its attributes, and hardly any others."""
    op = list_fwd_bwd_bwd2(definition)[0].name
    for variant in cases.list_variants(definition):
        words = [
            f"{name}={value}" for name, (value,) in parse_restriction_from_case_name(variant.label, definition).items()
        ]
        kept = [v for v in cases.list_variants(definition, parse_restriction(words, [op])) if v.name == variant.name]
        assert variant.label in [v.label for v in kept]
        assert len(kept) == 1 or definition.name == "mha_gat_n2n"  # GAT settings may differ only in a number


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_arguments_fit_the_table_and_follow_from_the_seed(definition):
    for variant in cases.list_variants(definition):
        single, one, same, other = (
            cases.build_case(definition, variant, dtype, seed)
            for dtype, seed in (("float32", 0), ("float64", 0), ("float64", 0), ("float64", 1))
        )
        assert_arguments_fit_table(single)
        assert_arguments_fit_table(one)
        assert dict(one.sizes) == dict(single.sizes)
        assert one.inputs == other.inputs
        for name in (a.name for a in one.inputs):
            assert np.array_equal(one.values[name], same.values[name])
            assert not one.values[name].size or not np.array_equal(one.values[name], other.values[name])
        if variant.name != "integers":
            bad = cases.mark_rows_near_kinks(definition, one.values, one.directions, one.largest_step)
            assert not any(rows.any() for rows in bad.values())


def assert_arguments_fit_table(case):
    for op in list_fwd_bwd_bwd2(case.definition):
        arguments = case.arguments(op)
        assert tuple(arguments) == op.parameter_names
        sizes = find_symbol_sizes(op, arguments)
        assert {**case.sizes, **sizes} == dict(case.sizes)
        for array in op.select_present_arguments(arguments):
            value = arguments[array.name]
            assert value.shape == evaluate_shape(array, case.sizes)
            assert value.dtype == case.dtype
            assert not value.flags.writeable
    for name, direction in case.directions.items():
        assert direction.shape == {**case.values, **case.grads, **case.ggs}[name].shape


def test_regular_graph_has_awkward_features():
    graph = build_named_case("gno_message", "regular").values["graph"]
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
    assert (np.diff(graph.indices)[destinations[1:] == destinations[:-1]] < 0).any()  # some row has unsorted sources
    assert build_named_case("gno_aggregate", "skewed").values["graph"].max_in_degree > 512  # longer than two chunks
    assert build_named_case("gno_kernel", "wide").sizes["hidden"] > 64  # wider than one tile


def test_both_index_dtypes_and_empty_graphs_occur():
    graphs = [cases.build_case(BY_NAME["gno_message"], v, "float64", 0).values["graph"] for v in GRAPHS["csc"].variants]
    assert {str(g.offsets.dtype) for g in graphs} == {"int32", "int64"}
    assert [g.num_positions for g in graphs].count(0) == 2
    assert any(g.num_positions == 0 and g.num_edges > 0 and g.num_dst_nodes > 0 for g in graphs)
    assert any(g.num_dst_nodes == g.num_src_nodes == g.num_edges == 0 for g in graphs)
    assert any(g.num_positions == 1 for g in graphs)


def test_kinks_that_are_nan_are_violations(monkeypatch):
    case = build_named_case("gno_kernel", "regular")
    monkeypatch.setattr(pyref, "gno_kernel_kinks", lambda coords, **_: np.full(coords.shape, np.nan))
    (bad,) = cases.mark_rows_near_kinks(case.definition, case.values, case.directions, case.largest_step).values()
    assert bad.all()


LENGTHS = {256, 257, 512}


def compute_row_lengths(index, count):
    return np.bincount(index, minlength=count)


def has_critical_lengths(counts):
    """Return whether every critical row length occurs, and the first or last row is long."""
    return set(counts) >= LENGTHS and max(counts[0], counts[-1]) > 256


def test_boundary_cases_have_all_critical_row_lengths():
    graph = build_named_case("mha_gat_n2n", "boundaries").values["graph"]
    of_sources, of_rows = (
        compute_row_lengths(graph.indices, graph.num_src_nodes),
        compute_row_lengths(graph.edge_ids, 0),
    )
    assert all(map(has_critical_lengths, (np.diff(graph.offsets), of_sources, of_rows)))
    graph = build_named_case("agg_edge_to_edge", "boundaries").values["graph"]
    for ends in (graph.src, graph.dst):
        assert set(compute_row_lengths(ends, graph.num_nodes)) >= LENGTHS
    assert compute_row_lengths(graph.dst, graph.num_nodes)[[0, -1]].tolist() == [257, 512]
    definition = BY_NAME["interaction_bilinear"]
    for variant in (v for v in cases.list_variants(definition) if v.name == "boundaries"):
        values = cases.build_case(definition, variant, "float64", 0).values
        for segments in filter(None, (values[n] for n in ("triplets", "atoms", "idx_in"))):
            assert has_critical_lengths(np.diff(segments.prepare().offsets))


@pytest.mark.parametrize("definition", [d for d in DEFINITIONS if d.settings], ids=lambda d: d.name)
def test_every_setting_has_skewed_and_boundary_cases(definition):
    for name in ("skewed", "boundaries", "regular"):
        settings = [v.setting for v in cases.list_variants(definition) if v.name == name]
        assert all(setting in settings for setting in definition.settings)


@pytest.mark.parametrize("name", ["gno_kernel", "interaction_bilinear"])
def test_small_blocks_split_sums_into_several_blocks(name):
    """With `small_blocks`, sums are split into several blocks, which changes their last bits."""
    (*_, variant) = cases.list_hub_variants(BY_NAME[name], 20_000, "positive")
    case = cases.build_case(BY_NAME[name], variant, "float32", 0)
    op, fast = OPERATORS[f"{name}_bwd"], make_backend_subject("fortran")
    usual = fast.call(op, case.arguments(op), None)
    with fast.small_blocks():
        small = fast.call(op, case.arguments(op), None)
    again = fast.call(op, case.arguments(op), None)
    assert any(usual[f].tobytes() != small[f].tobytes() for f in usual)
    assert all(usual[f].tobytes() == again[f].tobytes() for f in usual)


def test_small_device_blocks_have_256_rows():
    from trigraph.gpu import sums

    assert len(list(sums.iterate_row_blocks(1000, 8))) == 1
    with sums.small_blocks():
        assert list(sums.iterate_row_blocks(1000, 8)) == [(0, 256), (256, 256), (512, 256), (768, 232)]


def test_replaced_elements_are_at_stated_places():
    array = np.zeros((7, 3))
    places = [np.flatnonzero(~np.isfinite(nonfinite._replace_elements(array, s))).tolist() for s in REPLACEMENTS]
    assert places == [[10], [0, 5, 10, 15, 20], [6], [13]]
    assert not np.isnan(pyref.agg_weighted_n2n_fwd(**build_named_case("agg_weighted_n2n", "regular").values)[0]).any()


@pytest.mark.parametrize("structure", structures.load_shipped_structures(), ids=lambda s: s.name)
def test_structure_patch_nearly_uses_the_triplet_budget(structure):
    for budget in (structures.PATCH_TRIPLETS, structures.WHOLE_TRIPLETS):
        some = structure.limit_triplets(budget)
        triplets = np.bincount(some.dst, minlength=len(some.positions))[some.src].sum()
        assert len(some.src) == len(structure.src) or 0.8 * budget < triplets <= budget


def test_whole_airfoil_case_keeps_most_edges():
    (airfoil,) = list_real_inputs("gno")
    assert build_real_case(airfoil, BY_NAME["gno_message"], "float64", 0, patch=False).sizes["num_positions"] > 1400


def test_a_real_input_that_lacks_an_argument_is_named():
    (airfoil,) = list_real_inputs("gno")
    without_params = replace(airfoil, values=lambda *a: {n: v for n, v in airfoil.values(*a).items() if n != "params"})
    with pytest.raises(LookupError, match="gno_message_fwd: the real input 'airfoil' has no params"):
        build_real_case(without_params, BY_NAME["gno_message"], "float64", 0, patch=True)


def make_judge_triple(values, scale=None):
    values = np.asarray(values, float)
    return np.stack([values, np.zeros_like(values), abs(values) if scale is None else np.asarray(scale, float)])


def test_scaled_error_counts_epsilons_of_scale():
    for dtype in ("float32", "float64"):
        eps = np.finfo(dtype).eps
        assert tolerances.eps(dtype) == eps
        got = np.array([1, 1 + 3 * eps], dtype)
        assert compute_largest_scaled_error(got, make_judge_triple([1, 1]), dtype) == pytest.approx(3)
        assert compute_largest_scaled_error(got, make_judge_triple([1, 1], [1, 100]), dtype) == pytest.approx(0.03)
    lo = np.array([[1.0], [1e-17], [1.0]])  # the judge's value is high + low
    assert compute_largest_scaled_error(np.array([1.0]), lo, "float64") == pytest.approx(1e-17 / 2**-52)


@pytest.mark.parametrize("where", ["got", "hi", "lo", "scale"])
def test_nan_anywhere_makes_scaled_error_nan(where):
    got, reference = np.ones(5), make_judge_triple(np.ones(5))
    target = {"got": got, "hi": reference[0], "lo": reference[1], "scale": reference[2]}[where]
    target[2] = np.nan
    assert math.isnan(compute_largest_scaled_error(got, reference, "float64"))


def test_infinities_and_zero_scales_give_large_errors():
    assert not compute_largest_scaled_error(np.array([np.inf]), make_judge_triple([1.0]), "float64") <= 1e300
    assert not compute_largest_scaled_error(np.array([1.0]), make_judge_triple([np.inf]), "float64") <= 1e300
    assert not compute_largest_scaled_error(np.array([np.inf]), make_judge_triple([np.inf]), "float64") <= 1e300
    assert compute_largest_scaled_error(np.array([1e-300]), make_judge_triple([0.0]), "float64") > 1e7
    assert compute_largest_scaled_error(np.array([0.0]), make_judge_triple([0.0]), "float64") == 0
    assert compute_largest_scaled_error(np.zeros((0, 3)), make_judge_triple(np.zeros((0, 3))), "float64") == 0


def test_wrong_shapes_and_dtypes_are_described():
    field, sizes = list_fwd_bwd_bwd2(BY_NAME["gno_kernel"])[0].fields[0], {"num_edges": 4, "f_in": 2, "f_out": 3}
    good = np.zeros((4, 6), np.float32)
    assert describe_wrong_dtype_or_shape(good, field, sizes, "float32") == ""
    for bad in (good.astype(np.float64), good.T, good[:3], good[None], good.astype(">f4"), good.tolist(), None, 0.0):
        assert describe_wrong_dtype_or_shape(bad, field, sizes, "float32")


def test_saturated_attention_is_saturated():
    """In the saturated case, most but not all attention weights are below 1e-6."""
    definition = BY_NAME["mha_gat_n2n"]
    case = build_named_case("mha_gat_n2n", "saturated", "float32")
    alpha = pyref.mha_gat_n2n_fwd(**case.arguments(list_fwd_bwd_bwd2(definition)[0])).softmax_scores[1]
    assert (alpha < 1e-6).sum() > (alpha > 1e-6).sum() > 2 * case.sizes["num_heads"]


# Hubs: every sum has the requested number of terms, and naive summation of partial sums is detected.


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_every_hub_sum_has_the_stated_terms(definition):
    degree = 100
    for data in ("positive", "constant"):
        for variant in cases.list_hub_variants(definition, degree, data):
            case = cases.build_case(definition, variant, "float32", 0)
            assert case.equal_terms == (data == "constant")
            graph = case.values.get("graph")
            if definition.graph == "csc":
                assert np.diff(graph.offsets).max() == np.bincount(graph.indices).max() == degree
                assert np.bincount(graph.edge_ids).max() == degree
            elif definition.graph == "edges":
                assert np.bincount(graph.src).max() == np.bincount(graph.dst).max() == degree
            elif definition.graph is not None:
                segments = [case.values.get(name) for name in ("triplets", "atoms", "idx_in")]
                assert all(np.bincount(s.index).max() == degree for s in segments if s is not None)
            assert any(n >= degree for n in case.sizes.values())
            for op in list_all_operators(definition):
                for a in case.select_present_arguments(op):
                    array = case.arguments(op)[a.name]
                    assert (array > 0).all()
                    rows = SYMBOLS.get(a.dims[0])
                    if data == "constant" and rows and not rows.minimum:
                        assert (array == array[:1]).all()


def sum_naively(features, kernel, graph, f_in, f_out):
    """Add partial sums of 32 edges one by one, which exceeds an error of 8 eps for more than a thousand edges."""
    terms = np.einsum("pfo,pf->po", kernel[graph.edge_ids].reshape(-1, f_in, f_out), features[graph.indices])
    out = np.zeros((graph.num_dst_nodes, f_out), kernel.dtype)
    for i in range(2):  # all later rows have one term each
        start, stop = graph.offsets[i], graph.offsets[i + 1]
        for first in range(start, stop, 32):
            out[i] += np.add.reduce(terms[first : min(first + 32, stop)], axis=0, dtype=kernel.dtype)
    out[2:] = terms[graph.offsets[2] :]
    return out


def test_partial_sums_added_one_by_one_are_caught(monkeypatch):
    from trigraph.verification import subjects

    definition, op = BY_NAME["gno_aggregate"], OPERATORS["gno_aggregate_fwd"]
    monkeypatch.setitem(subjects.FUNCTIONS, op.name, lambda backend, **arguments: sum_naively(**arguments))

    def list_accuracy_outcomes(degree):
        (variant,) = cases.list_hub_variants(definition, degree, "constant")
        judged = JudgedCase(cases.build_case(definition, variant, "float32", 0))
        return [c.passed for c in check_accuracy(make_backend_subject("fortran"), judged, op)]

    assert all(list_accuracy_outcomes(500))
    assert not all(list_accuracy_outcomes(10_000))


def test_the_bound_of_equal_terms_is_half_their_number():
    assert tolerances.accuracy_tolerance(True, 10**6, True) == tolerances.accuracy_tolerance(True, 10**6) == 8
    assert tolerances.accuracy_tolerance(False, 10**6) == 8 + 1000
    assert tolerances.accuracy_tolerance(False, 10**6, True) == 8 + 500_000
    # A float32 sum of 100,000 terms 1 + 1/3, in which long runs of additions round in the same direction.
    third = np.full(100_000, 1 + 1 / 3, np.float32)
    error = abs(float(np.add.accumulate(third)[-1]) / (float(third[0]) * 100_000) - 1) / tolerances.eps("float32")
    assert tolerances.accuracy_tolerance(False, 100_000) < error < tolerances.accuracy_tolerance(False, 100_000, True)


@pytest.mark.parametrize("degree", [HUB, LONGEST_HUB])
@pytest.mark.parametrize("chunk", [128, 256])
def test_hub_degrees_fill_every_summation_level(degree, chunk):
    """Hubs have 2^k - 1 full chunks and a remainder, so that pairwise summation has a pending sum at every level."""
    whole = (degree - 1) // chunk
    assert whole > 1
    assert whole & (whole + 1) == 0
