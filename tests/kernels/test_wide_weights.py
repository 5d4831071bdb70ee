"""Tests of DimeNet++ kernels with weights larger than one tile, which `trigraph verify` does not cover."""

import numpy as np
import pytest

from trigraph.backends import FUNCTIONS
from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.table import DEFINITIONS
from trigraph.verification import cases, tolerances
from trigraph.verification.accuracy import compute_field_error
from trigraph.verification.judged import JudgedCase, list_main_operators

DEFINITION = next(d for d in DEFINITIONS if d.name == "agg_edge_to_edge")
NODES = 7


@pytest.mark.parametrize(("dtype", "index"), [("float32", np.int32), ("float64", np.int64)])
def test_wide_weights(dtype, index):
    src, dst = (a.astype(index) for a in np.nonzero(~np.eye(NODES, dtype=bool)))
    names = ("n_mid", "num_radial", "num_spherical", "n_emb")
    sizes = dict(zip(names, (20, 13, 5, 70), strict=True)) | {"num_nodes": NODES, "num_edges": len(src)}
    graph = {"graph": EdgeGraph(src, dst, NODES)}
    case = cases.assemble_case(DEFINITION, graph, sizes, {"exclude": "edge"}, dtype, np.random.default_rng(0))
    judged = JudgedCase(case)
    tolerance = tolerances.accuracy_tolerance(True, judged.terms, case.equal_terms)
    for op in list_main_operators(DEFINITION):
        result = FUNCTIONS[op.name](**case.arguments(op), backend="gpu-host")
        for field, array in zip(op.fields, (result,) if op.single else result, strict=True):
            error = compute_field_error(array, field, judged.result(op)[field.name], case.dtype)
            assert error <= tolerance, f"{op.name}: {field.name}"
