"""A check of test_distributed.py with a stand-in for CuPy: arrays on a device, whose rows go through the host."""

import tempfile

import cupy_stand_in
import distributed_operators as operators
import numpy as np
import pytest
from cupy_stand_in import asarray

from trigraph import distributed
from trigraph.distributed.functions import entity_of
from trigraph.panels import FUNCTIONS
from trigraph.table import OPERATORS
from trigraph.verification.cases import build, variants

NAMES = [
    "gno_kernel_bwd",
    "agg_edge_to_edge_bwd2",
    "mha_gat_n2n_bwd",
    "agg_weighted_n2n_fwd",
    "interaction_bilinear_bwd",
]


def check(op):
    case = build(op.definition, next(v for v in variants(op.definition, ()) if v.kind.differenced), "float32", 0)
    part, graphs = operators.divided(case, "scattered")
    given = case.arguments(op)
    if op.family == "weighted":
        given["op"] = "max"  # which returns positions
    expected = FUNCTIONS[op.name](**given, panel="gpu-host")
    divisions = {a.name: entity_of(a) for a in op.arguments}
    mine = {n: part.take(v, *divisions[n]) if divisions.get(n) and v is not None else v for n, v in given.items()}
    arrays = {a.name for a in op.arguments}
    mine = {n: asarray(v) if n in arrays and v is not None else v for n, v in mine.items()}
    mine |= {n: part if n == graphs[0] else None for n in graphs}
    mine |= {} if graphs else {"partition": part}
    found = getattr(distributed, op.name)(**mine)
    arrays = {f.name: found if op.single else getattr(found, f.name) for f in op.fields}
    operators.into(op, mine, {n: array for n, array in arrays.items() if array is not None})
    for field in op.fields:
        whole, local = (x if op.single else getattr(x, field.name) for x in (expected, found))
        assert (whole is None) == (local is None), field.name
        if whole is not None:
            rows = entity_of(field)
            if rows:
                assert part.collect(local, *rows).tobytes() == whole.tobytes(), (op.name, field.name)
            else:  # a sum over what the blocks read, without nodes that none reads: in another order on a device
                error = np.abs(local.get() - whole).max() / np.abs(whole).max()
                assert error <= operators.SUMS["float32"], (op.name, field.name, error)


def stand_in():
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        cupy_stand_in.install(patch, folder)
        for name in NAMES:
            check(OPERATORS[name])
