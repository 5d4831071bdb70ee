"""Random small calls of every operator, generated from the operator table alone."""

import re

import numpy as np
import pytest

from trigraph.backends import BACKENDS, FUNCTIONS
from trigraph.checks import find_symbol_sizes
from trigraph.table import NAMED, OPERATORS, SYMBOLS, evaluate_expression
from trigraph.verification import cases, graphs, tolerances
from trigraph.verification.accuracy import compute_field_error
from trigraph.verification.judged import compute_with_judge

OPS = tuple(OPERATORS.values())
OPS_WITH_BWD3 = tuple(NAMED.values())  # includes bwd3, which OPS omits
ALL = [pytest.param(op, id=op.name) for op in OPS]
CPU_BACKENDS = tuple(name for name, (_, kind) in BACKENDS.items() if kind == "numpy")
SIZES = {"num_edges": 8, "num_src_nodes": 6, "num_dst_nodes": 5, "num_positions": 11, "f_in": 3, "f_out": 4}


# Graph name -> function (sizes, index dtype, random generator) that returns graph objects by argument name.
GRAPHS = {name: kind.draw_graphs for name, kind in graphs.GRAPHS.items()}


def draw_operator_arguments(
    op, dtype=np.float64, index=np.int64, graph=None, seed=1, setting=None, data="any", **sizes
):
    """Return arguments of `op` by name, in signature order; `sizes` and `graph` replace the defaults.

    If an operator has several graph objects, `graph` maps their names to them.

    The default seed spreads the edges evenly over the nodes; with other seeds, a few nodes may have most edges.

    `data` selects the distribution of numbers, as in `trigraph.verification.cases.draw_operator_arguments`.

    Optional arguments are included unless `setting` maps them to None. Results of fwd that bwd requires are computed.
    """
    rng, spec = np.random.default_rng(seed), op.definition
    chosen = {s: sizes.get(s, SIZES.get(s, SYMBOLS[s].typical[0])) for s in spec.symbols}
    graph = GRAPHS[spec.graph](chosen, index, rng) if graph is None else graph
    graphs = graph if isinstance(graph, dict) else {"graph": graph}
    setting = {a.name: a.choices[-1] for a in op.attributes if a.choices} | (setting or {})
    case = cases.draw_case_on_graphs(spec, graphs, chosen, setting, np.dtype(dtype).name, rng, data=data)
    values = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in case.arguments(op).items()}
    if any(a.given_back for a in op.arguments):
        fwd = OPERATORS[f"{spec.name}_fwd"]
        result = FUNCTIONS[fwd.name](**case.arguments(fwd), backend="fortran-reference")
        values |= {a.name: getattr(result, a.name) for a in op.arguments if a.given_back}
    return values


def select_graph_arguments(op, values):
    """Return the graph objects among the arguments of `op`."""
    return {a.name: values[a.name] for a in op.graph_kind.arguments} if op.graph_kind else {}


def map_fields_to_arrays(op, result):
    """Map the result fields of `op` to their arrays, without the fields that the choices exclude."""
    if op.returns_array:
        return {op.fields[0].name: result}
    return {f.name: v for f, v in zip(op.fields, result, strict=True) if v is not None or not f.when}


def compute_fields(op, values, **keywords):
    """Call the public function of `op`; return its result as a mapping from field to array."""
    return map_fields_to_arrays(op, FUNCTIONS[op.name](**values, **keywords))


def assert_accurate(op, values, got, chunked, expected=None):
    """Assert that the errors relative to the judge's results (`expected`) are within the tolerance."""
    sizes = find_symbol_sizes(op, values)
    tolerance = tolerances.accuracy_tolerance(chunked, evaluate_expression(op.definition.terms, sizes))
    expected = expected or compute_with_judge(op, values)
    for field in op.list_returned_fields(values, sizes):
        dtype = str(values[op.definition.inputs[0].name].dtype)
        error = compute_field_error(got[field.name], field, expected[field.name], dtype)
        assert error <= (0 if field.index else tolerance), field.name


def assert_same_bits(got, expected):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:
            assert got[name] is None
            continue
        assert type(got[name]) is np.ndarray
        assert got[name].dtype == value.dtype
        assert got[name].shape == value.shape
        assert got[name].tobytes() == value.tobytes(), name


def assert_raises(kind, text, function, *args, **kwargs):
    """Assert that a call raises exactly `kind`, and that `text` equals its message (a pattern must match all of it)."""
    with pytest.raises(kind) as caught:
        function(*args, **kwargs)
    assert caught.type is kind
    if isinstance(text, re.Pattern):
        assert text.fullmatch(str(caught.value)), str(caught.value)
    else:
        assert str(caught.value) == text
