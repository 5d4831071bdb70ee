"""A check of test_distributed.py with a stand-in for CuPy: arrays on a device, whose rows go through the host."""

import tempfile

import cupy_stand_in
import pytest
from distributed_operators import Comparison

from trigraph.table import OPERATORS
from trigraph.verification.cases import build, variants

NAMES = [
    "gno_kernel_bwd",
    "agg_edge_to_edge_bwd2",
    "mha_gat_n2n_bwd",
    "agg_weighted_n2n_fwd",
    "interaction_bilinear_bwd",
]


def stand_in():
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        cupy_stand_in.install(patch, folder)
        for op in map(OPERATORS.get, NAMES):
            variant = next(v for v in variants(op.definition, ()) if v.kind.differenced)
            case = build(op.definition, variant, "float32", 0)
            comparison = Comparison(case, "scattered", panel="gpu-host", on_device=cupy_stand_in.asarray)
            given = case.arguments(op) | ({"op": "max"} if op.family == "weighted" else {})  # max returns positions
            comparison.compare(op, given)
