"""Checks for test_distributed.py: errors are raised on all ranks and can be caught; unusual inputs work."""

import numpy as np
from mpi4py import MPI

import trigraph
from trigraph import CSC, EdgeGraph, Segments, distributed

COMM = MPI.COMM_WORLD
LAST = COMM.rank == COMM.size - 1
RNG = np.random.default_rng(0)  # generates the same numbers on all ranks
GRAPH = CSC.from_coo(RNG.integers(0, 60, 500), RNG.integers(0, 60, 500), 60, 60)
ROWS = RNG.normal(size=(60, 4))
SHARED_PARTITION = distributed.partition(GRAPH, COMM, RNG.integers(0, COMM.size, 60))
OWN_ROWS = SHARED_PARTITION.take(ROWS, "num_src_nodes")


def assert_error_on_all_ranks(text, function, *arguments, **keywords):
    """Assert that a call raises an error with a text, or with one text on the last rank and another on other ranks."""
    expected = text if isinstance(text, str) else text[not LAST]
    try:
        function(*arguments, **keywords)
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        raised = f"{type(error).__name__}: {error}"
        assert expected in raised, raised
    else:
        raise AssertionError(f"expected {expected}")


def aggregate_over_edges(features=OWN_ROWS, part=SHARED_PARTITION, op="sum"):
    return distributed.agg_weighted_n2n_fwd(features, None, part, op).output_embedding


def compute_radial_basis_gradients(dist, wrt, part):
    grads = [np.ones((dist.size, n)) for n in (3, 6)]
    return distributed.radial_basis_bwd(*grads, dist, np.ones(3), 2, wrt=wrt, partition=part)


def refuses_wrong_arguments():
    """Arguments that are invalid on one rank, or differ between ranks, raise errors on all ranks."""
    graph, last = CSC(np.array([0, 2, 3, 5]), np.array([0, 1, 2, 0, 2])), COMM.size - 1
    part = distributed.partition(graph, COMM)
    rows = part.take(np.ones((3, 4), np.float32), "num_src_nodes")
    ends = np.array([1, 0]), np.array([0, 1])
    own, edges = len(rows), part.owned["num_edges"].size

    def aggregate_rows(rows=rows, op="sum"):
        return distributed.agg_weighted_n2n_fwd(rows, None, part, op)

    def compute_gno_kernel(params):
        return distributed.gno_kernel_fwd(np.ones((edges, 1), np.float32), params, 1, 1, partition=part)

    def partition_edges(kind, *ends):
        return distributed.partition_pieces(kind, [ends], COMM, 2)

    text = f"agg_weighted_n2n_fwd: embedding has shape (9, 4) on rank {last}; expected {own} along axis 0"
    text_on_others = f"RuntimeError: rank {last}: ValueError: agg_weighted_n2n_fwd: embedding has shape"
    assert_error_on_all_ranks((text, text_on_others), aggregate_rows, np.ones((9, 4), np.float32) if LAST else rows)
    text = f"partition: owner[2] is {COMM.size}; expected 0 <= owner < the number of ranks = {COMM.size}"
    assert_error_on_all_ranks(text, distributed.partition, graph, COMM, np.array([0, 0, COMM.size]))
    text = "TypeError: agg_weighted_n2n_fwd: graph is a CSC; expected a trigraph.distributed.Partition"
    assert_error_on_all_ranks(text, distributed.agg_weighted_n2n_fwd, rows, None, graph, "sum")
    text = "TypeError: agg_edge_to_edge_fwd: the partition is for another kind of graph"
    assert_error_on_all_ranks(text, distributed.agg_edge_to_edge_fwd, *[np.ones((1, 3))] * 4, part, 1, 1)
    text = "src of piece 0 decreases; expected edges sorted by source"
    assert_error_on_all_ranks(text, partition_edges, EdgeGraph, *(ends if LAST else ends[::-1]))
    for array in (*part.owned.values(), *part.owners, part.table):
        assert not array.flags.writeable  # cached layouts depend on these arrays
    text = "ValueError: partition_pieces: pieces[0].dst[0] is 7; expected 0 <= pieces[0].dst < num_nodes = 2"
    assert_error_on_all_ranks(text, partition_edges, CSC, np.array([0]), np.array([7 * LAST]))
    if COMM.size == 1:
        return
    text = "src decreases from one rank to the next"
    assert_error_on_all_ranks(text, partition_edges, EdgeGraph, np.array([int(not LAST)]), np.array([int(LAST)]))
    text = f"ValueError: agg_weighted_n2n_fwd: op is 'sum' on rank 0 and 'mean' on rank {last}"
    assert_error_on_all_ranks(text, aggregate_rows, op="mean" if LAST else "sum")
    text = "embedding is of float32 with rows of shape (4,) on rank 0 and of float64 with"
    assert_error_on_all_ranks(text, aggregate_rows, rows.astype(np.float64) if LAST else rows)
    text = f"and of float32 with rows of shape (5,) on rank {last}"
    assert_error_on_all_ranks(text, aggregate_rows, np.ones((own, 5), np.float32) if LAST else rows)
    params = np.ones(4, np.float32)
    text = "ValueError: gno_kernel_fwd: the operator is gno_kernel_fwd on rank 0 and agg_weighted_n2n_fwd"
    assert_error_on_all_ranks(text, lambda: aggregate_rows() if LAST else compute_gno_kernel(params))
    text = "ValueError: gno_kernel_fwd: the digest of the numbers in params, a parameter, is"
    assert_error_on_all_ranks(text, compute_gno_kernel, params + LAST)
    other = CSC(graph.offsets, graph.indices[::-1].copy()) if LAST else graph
    assert_error_on_all_ranks("ValueError: partition: graph is", distributed.partition, other, COMM)
    owner = np.array([0, 0, 1]) if LAST else np.array([1, 0, 0])
    assert_error_on_all_ranks("ValueError: partition: owner is", distributed.partition, graph, COMM, owner)


def can_compute_after_errors():
    """After an error in a call, no exchange is pending, and all ranks can make further calls."""
    whole = trigraph.agg_weighted_n2n_fwd(ROWS, None, GRAPH, "sum").output_embedding
    basis = distributed.partition(CSC(np.arange(61), np.arange(60)), COMM)
    for _ in range(20):
        assert_error_on_all_ranks("bogus", aggregate_over_edges, op="bogus")
        assert_error_on_all_ranks("expected", aggregate_over_edges, OWN_ROWS[:, :0])
        dist = np.full(basis.owned["num_edges"].size, 0.5)
        dist[: LAST and 1] = -1  # causes an error on the last rank only
        for wrt in (None, "dist"):
            texts = "dist[0] is -1", f"rank {COMM.size - 1}: ValueError: radial_basis_bwd: dist[0]"
            assert_error_on_all_ranks(texts, compute_radial_basis_gradients, dist, wrt, basis)
        assert SHARED_PARTITION.collect(aggregate_over_edges(), "num_dst_nodes").tobytes() == whole.tobytes()


def empty_graphs_have_zero_gradients():
    """If a graph has no destinations or outputs, the gradients of sources and inputs are zero."""
    x, weights = np.ones((4, 2)), np.ones(4)
    part = distributed.partition(CSC(np.zeros(1, np.int64), np.zeros(0, np.int64), 4), COMM)
    grads = distributed.mha_gat_n2n_bwd(x[:0], part.take(x, "num_src_nodes"), x[:0], weights, part, 1)
    assert (part.collect(grads.src_embedding, "num_src_nodes") == 0).all()
    assert grads.attention_weights.shape == (4,)
    assert (grads.attention_weights == 0).all()
    no_indices = np.zeros(0, np.int64)
    part = distributed.partition(Segments(no_indices, 0), COMM, idx_in=Segments(no_indices, 3))
    m = part.take(np.ones((3, 2)), "num_inputs")
    empty = [np.ones(shape) for shape in ((0, 5), (0, 3, 2), (0, 2))]
    grads = distributed.interaction_bilinear_bwd(*empty, m, np.ones((5, 6)), part)
    assert (grads.weight == 0).all()
    assert (grads.m == 0).all()


def validates_graph_pieces():
    """A reverse_edge of -1 means that there is no reverse edge; an invalid one raises an error on all ranks."""
    ends = np.array([0, 1]), np.array([1, 0])
    arrays = [np.eye(3)[:2], np.ones((2, 2)), np.ones((2, 1)), np.ones((3, 1))]

    def partition_with_reverse_edges(reverse):
        piece = (*ends, np.array(reverse)) if COMM.rank == 0 else tuple(np.zeros(0, np.int64) for _ in range(3))
        return distributed.partition_pieces(EdgeGraph, [piece], COMM, 2)

    for reverse in ([-1, -1], [1, 0]):
        part = partition_with_reverse_edges(reverse)
        own = [part.take(a, "num_edges") for a in arrays[:3]]
        out = distributed.agg_edge_to_edge_fwd(*own, arrays[3], part, 2, 1, "edge")
        assert (part.collect(out, "num_edges") == 0).all() == (reverse[0] == 1)
    assert_error_on_all_ranks("reverse_edge", partition_with_reverse_edges, [0, 77])
    assert_error_on_all_ranks(
        "has 3 arrays; expected 2", distributed.partition_pieces, CSC, [(*ends, ends[0])], COMM, 2
    )

    def partition_triplets(edge, num_nodes=2, atoms=None, **more):
        own_pieces = [(np.array(edge if LAST else [0]),)]
        return distributed.partition_pieces(Segments, own_pieces, COMM, num_nodes, atoms=atoms, **more)

    assert_error_on_all_ranks("edge[1] is 2; expected 0 <= edge < num_edges = 2", partition_triplets, [0, 2])
    of_atoms = [np.array([1, 0, 1, 1, 0])]
    assert_error_on_all_ranks("expected 0 <= edge < num_edges", partition_triplets, [0, 5 * COMM.size], atoms=of_atoms)
    assert_error_on_all_ranks(
        "pieces[0].atoms[0] is 2; expected", partition_triplets, [0], atoms=[np.array([2 * LAST])]
    )
    assert_error_on_all_ranks("expected (num_inputs, num_outputs)", partition_triplets, [0], source_owner=[0, 0])
    if COMM.size > 1:
        one = np.array([0])
        assert_error_on_all_ranks(
            "atoms is None on rank 0 and given", partition_triplets, [0], atoms=[one] if LAST else None
        )
        pieces, numbers = ([(one, one)], (2, 2)) if LAST else ([(one,)], 2)
        assert_error_on_all_ranks(
            "num_nodes is num_outputs on", distributed.partition_pieces, Segments, pieces, COMM, numbers
        )

    def yield_piece_then_raise():
        yield ends
        if LAST:
            raise FileNotFoundError("edges.npz")

    assert_error_on_all_ranks("edges.npz", distributed.partition_pieces, CSC, yield_piece_then_raise(), COMM, 2)


def distribute_and_collect_refuse_wrong_rows():
    """Invalid arguments of `distribute`, `collect` and operators raise errors on all ranks."""
    ids = np.arange(60)[COMM.rank :: COMM.size][::-1]
    rows = ROWS[ids]
    for kind in (np.int32, np.uint64):
        assert SHARED_PARTITION.distribute(rows, ids.astype(kind), "num_src_nodes").tobytes() == OWN_ROWS.tobytes()
    for wrong, text in (
        ((rows[1:], ids[1:]), "is given 0 times"),
        ((rows, np.where(LAST and ids == ids[0], ids[-1], ids)), "is given"),
        ((rows, ids + 60 * LAST), "expected 0 <= ids < num_src_nodes = 60"),
        ((rows[1:] if LAST else rows, ids), "an integer for each row"),
        ((rows, ids / 2 if LAST else ids), "an integer for each row"),
        ((rows.astype(np.float32) if LAST and COMM.rank else rows, ids), "is of float64"),
    ):
        if COMM.size > 1 or "float64" not in text:
            assert_error_on_all_ranks(text, SHARED_PARTITION.distribute, *wrong, "num_src_nodes")
    collect = SHARED_PARTITION.collect
    assert_error_on_all_ranks("the rows of num_src_nodes that the rank owns", collect, OWN_ROWS[1:], "num_src_nodes")
    if COMM.size > 1:
        assert_error_on_all_ranks(
            "collect: array is of", collect, OWN_ROWS.astype("f") if LAST else OWN_ROWS, "num_src_nodes"
        )
        other = distributed.partition(GRAPH, COMM)
        own_or_other = (other.take(ROWS, "num_src_nodes"), other) if LAST else ()
        assert_error_on_all_ranks("the partition is number", aggregate_over_edges, *own_or_other)


def accepts_equal_arguments_of_any_type():
    """Ranks may pass equal arguments of different types; `wrt` may be any iterable of names."""
    weights = np.ones(8)
    heads = np.int64(1) if LAST else 1
    arguments = OWN_ROWS, OWN_ROWS, OWN_ROWS, weights, SHARED_PARTITION
    names = {"src_embedding", "dst_embedding", "attention_weights"}
    distributed.mha_gat_n2n_bwd(*arguments, heads, wrt=names)
    assert_error_on_all_ranks("wrt is a int", distributed.mha_gat_n2n_bwd, *arguments, 1, wrt=5)


def partitions_share_communicator():
    """All partitions share one duplicate of the communicator, because MPI allows only about 2000."""
    first, second = (distributed.partition(CSC(np.array([0, 1]), np.array([0])), COMM).comm for _ in range(2))
    assert first == second != COMM
