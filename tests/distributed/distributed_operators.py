"""Checks of test_distributed.py: operators on divided graphs have the bits of one process, sums those of one rank."""

import contextlib
import hashlib

import numpy as np
from mpi4py import MPI

import trigraph
from trigraph import CSC, Segments, distributed
from trigraph.distributed.functions import entity_of
from trigraph.distributed.kinds import CSCKind, EdgesKind, RowsKind, SegmentsKind
from trigraph.table import DEFINITIONS, OPERATORS
from trigraph.verification.cases import build, variants
from trigraph.verification.judged import every_operator_of

COMM = MPI.COMM_WORLD
KINDS = (CSCKind, EdgesKind, RowsKind, SegmentsKind)
# Terms of such a sum are of order one: a term that is missing, or there twice, is more, and all roundings are less.
SUMS = {"float32": 1e-3, "float64": 1e-11}
ONE_CHUNK = 100_000  # blocks: sums of one chunk have the bits of one process, too


@contextlib.contextmanager
def chunks(number):
    """Sum so many blocks at a time."""
    before = [kind.chunk for kind in KINDS]
    for kind in KINDS:
        kind.chunk = number
    yield
    for kind, chunk in zip(KINDS, before, strict=True):
        kind.chunk = chunk


def owners(number, how, comm):
    """By default, or scattered so that nobody's rows are neighbours; of three ranks or more the last has nothing."""
    if how == "blocks":
        return None
    return np.random.default_rng(number).integers(0, comm.size - (comm.size > 2), number)


def divided(case, how, comm=COMM):
    """Return the partition of a case, and the graph arguments that it stands for."""
    values = case.values
    if "graph" in values:
        graph = values["graph"]
        ends = (graph.num_dst_nodes, graph.num_src_nodes) if isinstance(graph, CSC) else (graph.num_nodes,)
        return distributed.partition(graph, comm, *(owners(n, how, comm) for n in ends)), ["graph"]
    if "triplets" in values:
        triplets, atoms, idx_in = (values.get(n) for n in ("triplets", "atoms", "idx_in"))
        assert isinstance(triplets, Segments)
        number = (triplets if atoms is None else atoms).num_segments
        of_inputs = None if idx_in is None else owners(idx_in.num_segments, how, comm)
        owner = owners(number, how, comm)
        part = distributed.partition(triplets, comm, owner, of_inputs, atoms=atoms, idx_in=idx_in)
        return part, ["triplets", *(n for n in ("atoms", "idx_in") if n in values)]
    number = case.sizes["num_edges"]
    graph = CSC(np.arange(number + 1), np.zeros(number, np.int64), 1)
    return distributed.partition(graph, comm, owners(number, how, comm)), []


def check(case, op, part, graphs, chunk, found):
    """Compare one operator on all ranks with one process; update the digest `found`."""
    given = case.arguments(op)
    compare(case, op, part, graphs, chunk, found, given)
    known = [a.name for a in op.arguments if a.given_back]
    if known:  # what fwd returned
        fwd = OPERATORS[f"{op.definition.name}_fwd"]
        result = getattr(trigraph, fwd.name)(**{n: v for n, v in given.items() if n in fwd.names})
        compare(case, op, part, graphs, chunk, found, given | {n: getattr(result, n) for n in known})
    if op.selective:  # each field alone
        for field in case.returned(op):
            compare(case, op, part, graphs, chunk, found, given | {"wrt": field.name})


def compare(case, op, part, graphs, chunk, found, given):
    expected = getattr(trigraph, op.name)(**given)
    divisions = {a.name: entity_of(a) for a in op.arguments}
    mine = {n: part.take(v, *divisions[n]) if divisions.get(n) and v is not None else v for n, v in given.items()}
    mine |= {n: part if n == graphs[0] else None for n in graphs}
    mine |= {} if graphs else {"partition": part}
    result = getattr(distributed, op.name)(**mine)
    locals_ = {f.name: result if op.single else getattr(result, f.name) for f in op.fields}
    if chunk == ONE_CHUNK or "wrt" not in given:
        into(op, mine, {n: array for n, array in locals_.items() if array is not None})
    for field in op.fields:
        whole, local = expected if op.single else getattr(expected, field.name), locals_[field.name]
        assert (whole is None) == (local is None), (op.name, field.name)
        if whole is None:
            continue
        where = op.name, field.name, case.name, chunk, given.get("wrt")
        rows = entity_of(field)
        array = part.collect(local, *rows) if rows else np.ascontiguousarray(local)
        assert (array.dtype, array.shape) == (whole.dtype, whole.shape), where
        found.update(array.tobytes())
        if rows or chunk == ONE_CHUNK:
            assert array.tobytes() == np.ascontiguousarray(whole).tobytes(), where
        else:
            error = np.abs(array - whole).max(initial=0) / max(np.abs(whole).max(initial=0), 1)
            assert error <= SUMS[str(array.dtype)] or not np.isfinite(whole).all(), (*where, error)


def into(op, mine, found):
    """Call with arrays of NaN as `out`: they are what is returned, with the same bits."""
    out = {n: array.copy() for n, array in found.items()}
    for array in out.values():
        array[...] = np.nan if array.dtype.kind == "f" else -7
    again = getattr(distributed, op.name)(**mine, out=out)
    for name, array in found.items():
        returned = again if op.single else getattr(again, name)
        assert returned is out[name], (op.name, name)
        both = [a if isinstance(a, np.ndarray) else a.get() for a in (returned, array)]
        assert both[0].tobytes() == both[1].tobytes(), (op.name, name)


def digest(dtype, how, chunk, comm):
    """Compare every operator; return a digest of all fields."""
    found = hashlib.sha256()
    for definition in DEFINITIONS:
        for variant in variants(definition, ()):
            if variant.kind.differenced or variant.name in ("no edges", "no nodes"):
                case = build(definition, variant, dtype, 0)
                part, graphs = divided(case, how, comm)
                for op in every_operator_of(definition):
                    check(case, op, part, graphs, chunk, found)
    return found.hexdigest()


def compared(dtype, how, chunk):
    with chunks(chunk):
        assert digest(dtype, how, chunk, COMM) == digest(dtype, how, chunk, MPI.COMM_SELF)


def blocks():
    compared("float32", "blocks", 3)


def whole():
    compared("float64", "scattered", ONE_CHUNK)


def scattered():
    compared("float64", "scattered", 2)
