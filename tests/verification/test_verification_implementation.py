"""Tests of `trigraph verify` on user functions: incorrect ones fail and correct ones pass."""

import re
import sys

import numpy as np
import pytest
import scipy.sparse

from slopecheck.progress import describe_verdict
from slopecheck.units import count_checks_for_plan
from trigraph import pyref
from trigraph.verification.implementation import make_user_subject
from trigraph.verification.run import plan_run
from trigraph.verification.subjects import Subject
from trigraph.verification.terms import TERMS


def run_selected_checks(function, operator, where=(), cases=("regular",), skip=()):
    """Check a function on some cases, or on all and golden vectors (None); return checks and their planned number."""
    units = plan_run(implementation=make_user_subject("user:function", operator, function), where=where, skip=skip)
    units = [u for u in units if cases is None or any(name in u.label for name in cases)]
    assert units
    return [c for u in units for c in u.execute()], sum(u.planned() for u in units)


def list_failed_checks(function, operator, cases=("regular",)):
    """Return the failed checks of a function, and assert that all checks concern its operator."""
    checks, _ = run_selected_checks(function, operator, cases=cases)
    assert {(c.operator, c.backend) for c in checks} == {(operator, "user:function")}
    return [c for c in checks if not c.passed]


@pytest.mark.parametrize("name", ["gno_message_bwd", "agg_edge_to_edge_fwd", "agg_weighted_n2n_bwd2"])
def test_a_right_function_passes(name):
    assert list_failed_checks(getattr(pyref, name), name, ("regular", "no edges")) == []


def subtract_mean_in_batches(**arguments):
    """Subtract the mean over all nodes, but only for a number of nodes that occurs only in batched graphs."""
    message = pyref.gno_aggregate_fwd(**arguments)
    return message - message.mean(axis=0) if 392 < len(message) < 450 else message


def list_destinations(graph):
    return np.repeat(np.arange(graph.num_dst_nodes), np.diff(graph.offsets))


def negate_coords_gradient(**arguments):
    features, coords, params = pyref.gno_message_bwd(**arguments)
    return features, -coords, params


def aggregate_without_edge_ids(features, kernel, graph, f_in, f_out):
    kernel = kernel[np.minimum(np.arange(graph.num_positions), max(len(kernel) - 1, 0))]
    message = np.einsum("pfo,pf->po", kernel.reshape(-1, f_in, f_out), features[graph.indices])
    return pyref.gno.scatter(list_destinations(graph), message, graph.num_dst_nodes)


def perturb_first_row(grad_kernel, coords, params, f_in, f_out):
    """Change the first row by a relative 1e-13 (1e-5 in float32)."""
    right = pyref.gno_kernel_bwd(grad_kernel, coords, params, f_in, f_out)
    right.coords[:1] *= 1 + (1e-13 if coords.dtype == np.float64 else 1e-5)
    return tuple(right)


def return_wrong_shape(coords, params, f_in, f_out):
    return pyref.gno_kernel_fwd(coords, params, f_in, f_out).reshape(len(coords), f_in, f_out)


def return_wrong_dtype(coords, params, f_in, f_out):
    return pyref.gno_kernel_fwd(coords.astype(np.float64), params.astype(np.float64), f_in, f_out)


def ignore_gg_coords(**arguments):
    """Compute the second derivatives as if gg_coords were None."""
    return tuple(pyref.gno_kernel_bwd2(**{**arguments, "gg_coords": None}))


def return_list(coords, params, f_in, f_out):
    return [pyref.gno_kernel_fwd(coords, params, f_in, f_out)]


def overwrite_input(grad_kernel, coords, params, f_in, f_out):
    right = pyref.gno_kernel_bwd(grad_kernel, coords, params, f_in, f_out)
    grad_kernel *= 2
    return tuple(right)


class StatefulFunctions:
    """Functions whose results depend on earlier calls."""

    def __init__(self):
        self.buffer, self.calls = {}, 0

    def return_same_buffer(self, coords, params, f_in, f_out):
        kernel = pyref.gno_kernel_fwd(coords, params, f_in, f_out)
        buffer = self.buffer.setdefault((kernel.shape, kernel.dtype), kernel)
        buffer[:] = kernel
        return buffer

    def vary_last_bits(self, coords, params, f_in, f_out):
        self.calls += 1
        return pyref.gno_kernel_fwd(coords, params, f_in, f_out) * (1 + self.calls % 2 * np.finfo(coords.dtype).eps)


def raise_floating_point_error(coords, params, f_in, f_out):
    raise FloatingPointError("overflow in the user's code")


def fail_without_edges(coords, params, f_in, f_out):
    coords.max()
    return pyref.gno_kernel_fwd(coords, params, f_in, f_out)


def return_nan_without_edges(features, kernel, graph, f_in, f_out):
    """Return NaN at nodes without edges."""
    message = pyref.gno_aggregate_fwd(features, kernel, graph, f_in, f_out)
    message[np.diff(graph.offsets) == 0] = np.nan
    return message


# Function, operator, and case -> the kinds of checks that must detect the mistake.
EVERY = ["accuracy", "differences", "repeat", "permutation"]
WRONG = [
    (negate_coords_gradient, "gno_message_bwd", {"regular": ["adjoint"]}),
    (subtract_mean_in_batches, "gno_aggregate_fwd", {"regular": ["batch"]}),
    (aggregate_without_edge_ids, "gno_aggregate_fwd", {"shared rows": ["accuracy"], "regular": ["permutation"]}),
    (perturb_first_row, "gno_kernel_bwd", {"regular": ["accuracy"]}),
    (ignore_gg_coords, "gno_kernel_bwd2", {"regular": ["symmetry"]}),
    (StatefulFunctions().return_same_buffer, "gno_kernel_fwd", {"regular": ["repeat"]}),
    (StatefulFunctions().vary_last_bits, "gno_kernel_fwd", {"regular": ["repeat"]}),
    (fail_without_edges, "gno_kernel_fwd", {"no edges": ["accuracy"]}),
    (return_nan_without_edges, "gno_aggregate_fwd", {"regular": ["empty"], "no edges": ["empty"]}),
]


@pytest.mark.parametrize(("function", "operator", "where"), WRONG, ids=lambda v: getattr(v, "__name__", None))
def test_a_wrong_function_is_caught(function, operator, where):
    caught = {(c.kind, c.case) for c in list_failed_checks(function, operator, tuple(where))}
    assert caught >= {(kind, case) for case, kinds in where.items() for kind in kinds}


@pytest.mark.parametrize(
    ("function", "operator", "note"),
    [
        (
            return_wrong_shape,
            "gno_kernel_fwd",
            "kernel has shape (37, 3, 4); expected (num_edges, f_in*f_out) = (37, 12)",
        ),
        (return_wrong_dtype, "gno_kernel_fwd", "kernel has dtype float64; expected float32"),
        (
            return_list,
            "gno_kernel_fwd",
            "TypeError: gno_kernel_fwd: returned a list; expected an array, a tuple (kernel) or",
        ),
        (raise_floating_point_error, "gno_kernel_fwd", "FloatingPointError: overflow in the user's code"),
        (overwrite_input, "gno_kernel_bwd", "gno_kernel_bwd: the function changed its argument grad_kernel"),
    ],
)
def test_notes_describe_the_mistake(function, operator, note):
    failed = list_failed_checks(function, operator)
    assert any(note in c.note for c in failed)
    assert {c.kind for c in failed} >= set(
        EVERY if function in (raise_floating_point_error, return_list) else EVERY[:1]
    )


def sum_with_scipy(embedding, edge_weight, graph, op, mean_by):
    """Aggregate with SciPy's sparse matrix product, which supports only sums."""
    if op != "sum":
        raise NotImplementedError(f"no {op}")
    weight = np.ones(graph.num_edges, embedding.dtype) if edge_weight is None else edge_weight
    weight = weight if graph.edge_ids is None else weight[graph.edge_ids]
    shape = (graph.num_dst_nodes, graph.num_src_nodes)
    return scipy.sparse.csr_array((weight, graph.indices, graph.offsets), shape) @ embedding


def test_restricted_runs_check_only_chosen_settings():
    names = ("regular", "no edges", "shared rows")
    checks, planned = run_selected_checks(sum_with_scipy, "agg_weighted_n2n_fwd", ["op=sum"], names)
    assert count_checks_for_plan(checks) == planned
    assert [c for c in checks if not c.passed] == []
    accuracy = {c.case for c in checks if c.kind == "accuracy"}
    assert {case.split(", ")[0] for case in accuracy} == set(names)
    assert any("edge_weight=None" in case for case in accuracy)
    assert not any(f"op={other}" in case for case in accuracy for other in ("mean", "min", "max"))
    checks, planned = run_selected_checks(sum_with_scipy, "agg_weighted_n2n_fwd", ["op=sum", "edge_weight=given"])
    assert planned > 0
    assert not any("edge_weight=None" in c.case for c in checks)
    # Combinations of settings that the table does not list are checked, too.
    checks, planned = run_selected_checks(
        pyref.agg_weighted_n2n_fwd, "agg_weighted_n2n_fwd", ["op=min", "edge_weight=None"]
    )
    assert count_checks_for_plan(checks) == planned > 0
    assert {c.case.split(", ", 1)[1] for c in checks if c.kind == "layout"} == {"op=min, edge_weight=None"}
    assert all(c.passed for c in checks)


def sum_with_dense_matrix(embedding, edge_weight, graph, op, mean_by):
    """Sum with a dense matrix product, which spreads NaN because 0 * NaN is NaN."""
    weight = np.ones(graph.num_edges, embedding.dtype) if edge_weight is None else edge_weight
    weight = weight if graph.edge_ids is None else weight[graph.edge_ids]
    matrix = np.zeros((graph.num_dst_nodes, graph.num_src_nodes), embedding.dtype)
    np.add.at(matrix, (list_destinations(graph), graph.indices), weight)
    return matrix @ embedding


def test_skipped_kinds_are_not_planned():
    """Skipped kinds of checks are not planned; the verdict says whether values or properties were skipped."""
    checks, _ = run_selected_checks(sum_with_dense_matrix, "agg_weighted_n2n_fwd", ["op=sum"])
    assert {c.kind for c in checks if c.failed} == {"nan"}
    expected = r"values and derivatives: passed; properties: \d+ failed \(NaN locality\)"
    assert re.fullmatch(expected, describe_verdict(checks, TERMS))
    rest, planned = run_selected_checks(sum_with_dense_matrix, "agg_weighted_n2n_fwd", ["op=sum"], skip=["nan"])
    assert count_checks_for_plan(rest) == planned
    assert [c.kind for c in rest] == [c.kind for c in checks if c.kind != "nan"]
    kinds = {c.kind for c in rest} - {"empty"}
    assert kinds >= {"accuracy", "differences", "batch", "layout", "repeat", "permutation"}
    assert run_selected_checks(sum_with_dense_matrix, "agg_weighted_n2n_fwd", ["op=sum"], skip=kinds | {"nan"}) == (
        [],
        0,
    )
    with pytest.raises(ValueError, match="skip names speed; expected accuracy, differences"):
        run_selected_checks(sum_with_dense_matrix, "agg_weighted_n2n_fwd", skip=["speed"])


def test_function_of_other_arguments_is_refused():
    text = r"is a function of \(x, w\); gno_kernel_fwd passes by keyword \(coords, params, f_in, f_out\): missing"
    with pytest.raises(ValueError, match=text):
        make_user_subject("user:function", "gno_kernel_fwd", lambda x, w: x)


def test_restrictions_apply_to_backends_and_judge():
    units = plan_run(["mha_gat_n2n"], ["pyref", "judge"], ["float64"], where=["activation=tanh", "activation=ELU"])
    assert sum(u.planned() for u in units) > 0
    labels = [u.label for u in units if u.planned()]
    assert any("judge differences" in label for label in labels)
    assert all("activation=tanh" in s or "activation=ELU" in s for s in labels if s.startswith("mha_gat_n2n, regular"))
    assert not any("golden gat_ReLU" in label for label in labels)


def test_unimplemented_settings_count_as_not_offered():
    cases = ("regular", "golden weighted")
    checks, planned = run_selected_checks(sum_with_scipy, "agg_weighted_n2n_fwd", cases=cases)
    absent = [c for c in checks if c.kind == "not offered"]
    assert count_checks_for_plan(checks) == planned
    assert sum(c.error for c in absent) == count_checks_for_plan(absent) > 20
    assert not any(c.passed or c.failed for c in absent)
    assert {c.note for c in absent} == {f"NotImplementedError: no {op}" for op in ("mean", "min", "max")}
    assert [c for c in checks if c.failed] == []
    assert any(c.passed for c in checks)
    # Failures are reported even if some operators are not implemented.
    wrong, _ = run_selected_checks(lambda **a: sum_with_scipy(**a) * 1.01, "agg_weighted_n2n_fwd", cases=cases)
    assert {c.kind for c in wrong if c.failed} >= {"accuracy", "differences", "golden"}


def test_backends_must_be_implemented():
    def raise_not_implemented(op, values, wrt):
        raise NotImplementedError("no such backend")

    units = plan_run(["gno_kernel_fwd"], [], ["float64"], implementation=Subject("pyref", False, raise_not_implemented))
    assert all(c.failed for u in units[:3] for c in u.execute())


AUXILIARY = {
    "array": lambda out: out[0],
    "tuple": lambda out: out[:1],
    "mapping": lambda out: {"output_embedding": out[0]},
    "all": tuple,
}


@pytest.mark.parametrize("form", AUXILIARY)
def test_auxiliary_outputs_may_be_left_out(form):
    def return_auxiliary_form(**arguments):
        return AUXILIARY[form](pyref.mha_gat_n2n_fwd(**arguments, return_softmax_scores=True))

    checks, planned = run_selected_checks(return_auxiliary_form, "mha_gat_n2n_fwd", ["activation=ELU"])
    assert count_checks_for_plan(checks) == planned
    assert [c for c in checks if c.failed] == []
    absent = [c for c in checks if c.kind == "not offered"]
    assert bool(absent) == (form != "all")
    assert all((c.field, c.note.startswith("auxiliary outputs")) == ("softmax_scores", True) for c in absent)
    fields = {c.field for c in checks if c.kind != "not offered"}
    assert {"output_embedding"} <= fields
    assert ("softmax_scores" in fields) == (form == "all")


def test_required_outputs_may_not_be_left_out():
    text = "expected an array, a tuple (output_embedding, softmax_scores) or a mapping; softmax_scores may be left out"
    for result in ({"softmax_scores": 1}, (1, 2, 3), {}, None, {"output_embedding": 1, "other": 2}):
        subject = make_user_subject("user:function", "mha_gat_n2n_fwd", lambda result=result, **a: result)
        checks = plan_run(implementation=subject, dtypes=["float64"])[0].execute()
        assert all(c.failed and text in c.note for c in checks)


def test_function_can_be_given_by_name(tmp_path, monkeypatch):
    (tmp_path / "mymodule.py").write_text(
        "from trigraph.pyref import gno_aggregate_fwd\n"
        "class Layer:\n"
        "    @staticmethod\n"
        "    def forward(**arguments):\n"
        "        return gno_aggregate_fwd(**arguments)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    units = plan_run(implementation="mymodule:gno_aggregate_fwd", dtypes=["float64"])
    checks = [c for u in units if "regular" in u.label or "golden" in u.label for c in u.execute()]
    assert all(c.passed for c in checks)
    assert {c.backend for c in checks} == {"mymodule:gno_aggregate_fwd"}
    assert {"accuracy", "repeat", "permutation", "golden", "empty"} <= {c.kind for c in checks}
    both = plan_run(["gno_aggregate_fwd"], ["pyref"], implementation="mymodule:Layer.forward")
    assert any("pyref" in u.label for u in both)


@pytest.mark.parametrize(
    ("name", "operators", "text"),
    [
        ("mymodule", None, "expected 'module:function'"),
        ("no_such_module_here:f", None, "cannot be loaded"),
        ("math:pi", None, "is a float; expected a function"),
        ("math:sin", None, "implements 'sin'; expected one of gno_kernel_fwd"),
        ("math:sin", ["gno_kernel_fwd", "gno_kernel_bwd"], "implements one operator"),
    ],
)
def test_bad_function_names_raise_value_error(name, operators, text):
    with pytest.raises(ValueError, match="verify: ") as caught:
        plan_run(operators, implementation=name)
    assert text in str(caught.value)
