"""A rank of test_distributed.py that meets an error, or whose arguments differ: ``distributed_failures.py CASE``."""

import os
import signal
import sys
import threading

import numpy as np
from mpi4py import MPI

from trigraph import CSC, EdgeGraph, distributed

COMM = MPI.COMM_WORLD
LAST = COMM.rank == COMM.size - 1
GRAPH = CSC(np.array([0, 2, 3, 5]), np.array([0, 1, 2, 0, 2]))
ROWS = np.ones((3, 4), np.float32)


def call(part, rows=ROWS, **changed):
    return distributed.agg_weighted_n2n_fwd(part.take(rows, "num_src_nodes"), None, part, **{"op": "sum", **changed})


def killed(part):
    if LAST:
        os.kill(os.getpid(), signal.SIGKILL)
    call(part)


def terminated(part):
    if LAST:
        os.kill(os.getpid(), signal.SIGTERM)
    call(part)


def interrupted(part):
    if LAST:
        os.kill(os.getpid(), signal.SIGINT)
    call(part)


def interrupted_twice(part):
    """As by Ctrl-C, which a terminal and mpiexec both pass on."""
    if LAST:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        os.kill(os.getpid(), signal.SIGINT)
    call(part)


def exits(part):
    if LAST:
        sys.exit("nothing to do")
    call(part)


def raises(part):
    if LAST:
        raise KeyError("nobody catches this")
    call(part)


def too_many_rows(part):
    rows = part.take(ROWS, "num_src_nodes")
    distributed.agg_weighted_n2n_fwd(np.ones((9, 4), np.float32) if LAST else rows, None, part, "sum")


def wrong_out(part):
    rows = part.owned["num_dst_nodes"].size
    call(part, out={"output_embedding": np.empty((rows + LAST, 4), np.float32)})


def other_attribute(part):
    call(part, op="mean" if LAST else "sum")


def other_dtype(part):
    call(part, ROWS.astype(np.float64) if LAST else ROWS)


def other_width(part):
    call(part, np.ones((3, 5), np.float32) if LAST else ROWS)


def other_operator(part):
    if LAST:
        distributed.agg_weighted_n2n_fwd(part.take(ROWS, "num_src_nodes"), None, part, "sum")
    else:
        rows, params = np.ones((part.owned["num_edges"].size, 1), np.float32), np.ones(5, np.float32)
        distributed.gno_kernel_fwd(rows, params, 1, 1, partition=part)


def other_parameters(part):
    rows, params = np.ones((part.owned["num_edges"].size, 1), np.float32), np.ones(4, np.float32)
    distributed.gno_kernel_fwd(rows, params + LAST, 1, 1, partition=part)


def other_graph(_):
    distributed.partition(CSC(GRAPH.offsets, GRAPH.indices[::-1].copy()) if LAST else GRAPH, COMM)


def other_owner(_):
    distributed.partition(GRAPH, COMM, np.array([0, 0, 1]) if LAST else np.array([1, 0, 0]))


def no_such_rank(_):
    distributed.partition(GRAPH, COMM, np.array([0, 0, COMM.size]))


def no_partition(part):
    distributed.agg_weighted_n2n_fwd(ROWS, None, GRAPH, "sum")


def wrong_kind(part):
    distributed.agg_edge_to_edge_fwd(*(np.ones((1, 3)) for _ in range(4)), part, 1, 1)


def falling_source(_):
    ends = np.array([1, 0]), np.array([0, 1])
    distributed.partition_pieces(EdgeGraph, [ends if LAST else (ends[1], ends[0])], COMM, 2)


def falls_between_ranks(_):
    ends = (np.array([0]), np.array([1])) if LAST else (np.array([1]), np.array([0]))
    distributed.partition_pieces(EdgeGraph, [ends], COMM, 2)


def out_of_range(_):
    distributed.partition_pieces(CSC, [(np.array([0]), np.array([7 if LAST else 0]))], COMM, 2)


def unknown_symbol(part):
    part.take(ROWS, "num_nodes")


if __name__ == "__main__":
    globals()[sys.argv[1]](None if sys.argv[1].startswith("other_g") else distributed.partition(GRAPH, COMM))
    COMM.Barrier()
