"""Checks for test_distributed.py: results on divided graphs are bitwise identical to those of one process."""

import contextlib
import hashlib
import tempfile
from dataclasses import replace

import cupy_stand_in
import numpy as np
import pytest
from mpi4py import MPI

import trigraph
from trigraph import CSC, Segments, distributed
from trigraph.distributed.block_tables import CSCTableFormat, EdgeTableFormat, GraphlessFormat, SegmentTableFormat
from trigraph.distributed.functions import find_divided_symbol_and_axis
from trigraph.table import DEFINITIONS, OPERATORS
from trigraph.verification.cases import build_case, list_variants
from trigraph.verification.judged import list_all_operators
from trigraph.verification.subjects import convert_result_to_mapping

COMM = MPI.COMM_WORLD
PARTITION_CLASSES = (CSCTableFormat, EdgeTableFormat, GraphlessFormat, SegmentTableFormat)
# Tolerances of global sums of terms of order one: above rounding errors, but below one missing term.
SUM_TOLERANCE = {"float32": 1e-3, "float64": 1e-11}
ONE_CHUNK = 100_000  # blocks per chunk, so that every global sum has only one chunk


@contextlib.contextmanager
def override_chunk_size(number):
    """Set the number of blocks per chunk of global sums."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in PARTITION_CLASSES:
            patch.setattr(kind, "chunk", number)
        yield


def draw_owners(number, ownership, comm):
    """Return random owners (none of them the last of three or more ranks), or None for the default owners."""
    if ownership == "blocks":
        return None
    return np.random.default_rng(number).integers(0, comm.size - (comm.size > 2), number)


def yield_edge_pieces(comm, *columns):
    """Yield this rank's edges in three pieces, the last of which is empty; higher ranks have more edges."""
    ends = [len(columns[0]) * rank**2 // comm.size**2 for rank in (comm.rank, comm.rank + 1)]
    for begin, end in ((ends[0], sum(ends) // 2), (sum(ends) // 2, ends[1]), (ends[1], ends[1])):
        yield tuple(column[begin:end] for column in columns)


def partition_from_pieces(values, comm, columns):
    """Partition a graph of which each rank passes some edges (2 or 3 columns) or triplets."""
    if "graph" not in values:
        triplets, atoms, idx_in = (values.get(n) for n in ("triplets", "atoms", "idx_in"))
        number = (triplets if atoms is None else atoms).num_segments
        ends = (triplets.index,) if idx_in is None else (triplets.index, idx_in.index)
        counted = number if idx_in is None else (idx_in.num_segments, number)
        of_edges = None if atoms is None else (piece for (piece,) in yield_edge_pieces(comm, atoms.index))
        owner = draw_owners(number, "scattered", comm)
        pieces = yield_edge_pieces(comm, *ends)
        return distributed.partition_pieces(Segments, pieces, comm, counted, owner, atoms=of_edges)
    graph = values["graph"]
    if isinstance(graph, CSC):
        order, counted = np.argsort(graph.edge_ids), (graph.num_src_nodes, graph.num_dst_nodes)
        ends = graph.indices[order], graph.prepare().destinations[order]
    else:
        ends, counted = (graph.src, graph.dst, graph.reverse_edge)[:columns], graph.num_nodes
    owner = [draw_owners(n, "scattered", comm) for n in np.ravel(counted)[::-1]]
    return distributed.partition_pieces(type(graph), yield_edge_pieces(comm, *ends), comm, counted, *owner)


def partition_case_graph(case, ownership, comm=COMM):
    """Return the partition of a case, and the names of the graph arguments replaced by it."""
    values = case.values
    if ownership in (2, 3):
        names = [n for n in ("graph", "triplets", "atoms", "idx_in") if n in values]
        return partition_from_pieces(values, comm, ownership), names
    if "graph" in values:
        graph = values["graph"]
        ends = (graph.num_dst_nodes, graph.num_src_nodes) if isinstance(graph, CSC) else (graph.num_nodes,)
        return distributed.partition(graph, comm, *(draw_owners(n, ownership, comm) for n in ends)), ["graph"]
    if "triplets" in values:
        triplets, atoms, idx_in = (values.get(n) for n in ("triplets", "atoms", "idx_in"))
        assert isinstance(triplets, Segments)
        number = (triplets if atoms is None else atoms).num_segments
        of_inputs = None if idx_in is None else draw_owners(idx_in.num_segments, ownership, comm)
        owner = draw_owners(number, ownership, comm)
        part = distributed.partition(triplets, comm, owner, of_inputs, atoms=atoms, idx_in=idx_in)
        return part, ["triplets", *(n for n in ("atoms", "idx_in") if n in values)]
    number = case.sizes["num_edges"]
    graph = CSC(np.arange(number + 1), np.zeros(number, np.int64), 1)
    return distributed.partition(graph, comm, draw_owners(number, ownership, comm)), []


class OneProcessComparison:
    """Compares operators on all ranks with one process; `on_device` copies the ranks' arrays to a device.

    Results must be bitwise identical, except global sums over several chunks and global sums on a device.
    """

    def __init__(self, case, ownership, comm=COMM, backend=None, on_device=lambda array: array):
        self.case, self.backend, self.on_device = case, backend, on_device
        self.part, self.graphs = partition_case_graph(case, ownership, comm)
        self.exact = backend is None and CSCTableFormat.chunk == ONE_CHUNK
        self.digest = hashlib.sha256()

    def check_operator(self, op, alone=True):
        """Compare all fields of an operator and, if `alone` is true, also each field requested alone."""
        arguments = self.case.arguments(op)
        given_back = [a.name for a in op.arguments if a.given_back]
        if given_back:
            self.compare_call(op, arguments)
            fwd = OPERATORS[f"{op.definition.name}_fwd"]
            result = getattr(trigraph, fwd.name)(**self.case.arguments(fwd))
            arguments |= {n: getattr(result, n) for n in given_back}
        self.compare_call(op, arguments)
        for field in self.case.list_returned_fields(op) if op.accepts_wrt and alone else ():
            self.compare_call(op, arguments | {"wrt": field.name})

    def select_own_arguments(self, op, arguments):
        """Return this rank's rows of the arguments."""
        arrays = {a.name: find_divided_symbol_and_axis(a) for a in op.arguments if arguments[a.name] is not None}
        local = {n: self.part.take(arguments[n], *rows) if rows else arguments[n] for n, rows in arrays.items()}
        own = arguments | {n: self.on_device(array) for n, array in local.items()}
        return own | (dict.fromkeys(self.graphs) | {self.graphs[0] if self.graphs else "partition": self.part})

    def compare_call(self, op, arguments):
        """Compare a distributed call with the same call in one process."""
        expected = map_fields_to_arrays(op, getattr(trigraph, op.name)(**arguments, backend=self.backend))
        results = map_fields_to_arrays(op, getattr(distributed, op.name)(**self.select_own_arguments(op, arguments)))
        assert results.keys() == expected.keys(), op.name
        for field in op.fields:
            if field.name in results:
                where = op.name, field.name, self.case.name
                self.compare_field(field, results[field.name], expected[field.name], where)

    def compare_field(self, field, local, whole, where):
        rows = find_divided_symbol_and_axis(field)
        array = self.part.collect(local, *rows) if rows else np.ascontiguousarray(cupy_stand_in.asnumpy(local))
        assert (array.dtype, array.shape) == (whole.dtype, whole.shape), where
        self.digest.update(array.tobytes())
        if rows or self.exact:
            assert array.tobytes() == np.ascontiguousarray(whole).tobytes(), where
        elif np.isfinite(whole).all():
            error = np.abs(array - whole).max(initial=0) / max(np.abs(whole).max(initial=0), 1)
            assert error <= SUM_TOLERANCE[str(array.dtype)], (*where, error)


def map_fields_to_arrays(op, result):
    """Return the arrays of a result by field name."""
    return {name: array for name, array in convert_result_to_mapping(op, result).items() if array is not None}


def compare_and_digest_cases(dtype, ownership, comm, alone):
    """Compare every operator, for the first `alone` cases also each field alone; yield a digest of each case."""
    for definition in DEFINITIONS:
        chosen = [v for v in list_variants(definition, ()) if v.kind.differenced or v.name in ("no edges", "no nodes")]
        for number, variant in enumerate(chosen):
            comparison = OneProcessComparison(build_case(definition, variant, dtype, 0), ownership, comm)
            for op in list_all_operators(definition):
                comparison.check_operator(op, number < alone)
            yield comparison.digest.hexdigest()


def equals_one_process_in_one_chunk():
    """With default owners and one chunk, results are bitwise identical to those of one process."""
    with override_chunk_size(ONE_CHUNK):
        assert all(compare_and_digest_cases("float32", "blocks", COMM, alone=2))


def equals_one_rank_in_chunks():
    """With scattered owners and several chunks, results are bitwise identical for any number of ranks."""
    with override_chunk_size(2):
        ranks, one = (
            list(compare_and_digest_cases("float64", "scattered", comm, alone=1)) for comm in (COMM, MPI.COMM_SELF)
        )
        assert ranks == one


def equals_one_process_from_graph_pieces():
    """If each rank passes pieces of the graphs (CSC: in random order), results are bitwise those of one process."""
    rng, names = np.random.default_rng(1), ("regular", "second sizes", "periodic", "no nodes")
    with override_chunk_size(ONE_CHUNK):
        for definition in (d for d in DEFINITIONS if d.graph):
            every = [v for v in list_variants(definition, ()) if v.name in names]
            # Graphs depend on the setting only for "bilinear"; for other graphs, test one variant of each name.
            for variant in every if definition.graph == "bilinear" else {v.name: v for v in every}.values():
                case = build_case(definition, variant, "float64", 0)
                if definition.graph == "csc":
                    graph = case.values["graph"]
                    order, numbers = rng.permutation(graph.num_positions), (graph.num_src_nodes, graph.num_dst_nodes)
                    ends = graph.indices[order], graph.prepare().destinations[order]
                    case = replace(case, values=case.values | {"graph": CSC.from_coo(*ends, *numbers)})
                for columns in (2, 3) if definition.graph == "edges" and variant.name == "regular" else (3,):
                    comparison = OneProcessComparison(case, columns)
                    for op in list_all_operators(definition):
                        comparison.compare_call(op, case.arguments(op))


def owners_are_balanced_and_halos_minimal():
    """Bisection gives all ranks similar numbers of nodes; a rank receives only the rows that its edges read."""
    positions, rank = np.random.default_rng(0).uniform(0, 5, (40, 3)), COMM.rank
    number = np.bincount(distributed.owners.bisection(positions, COMM.size), minlength=COMM.size)
    assert 0 < number.min() <= number.max() <= 1.2 * 40 / COMM.size + 1
    src, dst = np.random.default_rng(1).integers(0, (40, 20), (300, 2)).T
    part = distributed.partition_pieces(CSC, yield_edge_pieces(COMM, src, dst), COMM, (40, 20))
    read = np.unique(src[distributed.owners.blocks(20, COMM.size)[dst] == rank])
    foreign = distributed.owners.blocks(40, COMM.size)[read] != rank
    assert part.output_layout.halos["num_src_nodes"].num_received_rows == foreign.sum()
    with pytest.warns(DeprecationWarning, match=r"use (Halo|Partition)\."):
        old = part.outputs.halos["num_src_nodes"].received, part.rows, part.everything, part.nothing
    assert old == (foreign.sum(), part.get_row_partition, part.full_layout, part.empty_subgraph)
    rows, mine = np.arange(300.0), np.concatenate([ids for (ids,) in yield_edge_pieces(COMM, np.arange(300))])
    assert part.distribute(rows[mine], mine, "num_edges").tobytes() == part.take(rows, "num_edges").tobytes()


DEVICE_OPERATORS = [
    "gno_kernel_bwd",
    "agg_edge_to_edge_bwd2",
    "mha_gat_n2n_bwd",
    "agg_weighted_n2n_fwd",
    "interaction_bilinear_bwd",
]


def equals_one_process_on_device():
    """Results are bitwise identical for device arrays (CuPy's stand-in), which are exchanged through the host."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        cupy_stand_in.install_cupy(patch, folder)
        for op in map(OPERATORS.get, DEVICE_OPERATORS):
            variant = next(v for v in list_variants(op.definition, ()) if v.kind.differenced)
            case = build_case(op.definition, variant, "float32", 0)
            comparison = OneProcessComparison(case, "scattered", backend="gpu-host", on_device=cupy_stand_in.asarray)
            # The op "max" also returns positions.
            arguments = case.arguments(op) | ({"op": "max"} if op.family == "weighted" else {})
            comparison.compare_call(op, arguments)
