"""Program run by each rank in test_distributed.py: a sum over a graph generated in pieces, with limited memory.

Arguments: the number of edges, and the number of bytes that a rank may allocate after a first small call.
"""

import resource
import sys

import numpy as np
from mpi4py import MPI

from trigraph import CSC, distributed

COMM = MPI.COMM_WORLD
DEGREE, PIECES = 20, 8


def yield_ring_edge_pieces(nodes):
    """Yield the edges into this rank's nodes in pieces; each node receives from the next DEGREE nodes on a ring."""
    cuts = np.arange(COMM.size * PIECES + 1) * nodes // (COMM.size * PIECES)
    for piece in range(COMM.rank * PIECES, (COMM.rank + 1) * PIECES):
        dst = np.repeat(np.arange(cuts[piece], cuts[piece + 1]), DEGREE)
        yield (dst + 1 + np.arange(dst.size) % DEGREE) % nodes, dst


def sum_ring_messages(edges):
    """Return the sum of all messages, which are 1, over all ranks; it equals the number of edges."""
    nodes = edges // DEGREE
    part = distributed.partition_pieces(CSC, yield_ring_edge_pieces(nodes), COMM, nodes)
    embedding = np.ones((part.owned["num_src_nodes"].size, 1), np.float32)
    weights = np.ones(part.owned["num_edges"].size, np.float32)
    return COMM.allreduce(float(distributed.agg_weighted_n2n_fwd(embedding, weights, part)[0].sum(dtype=np.float64)))


def measure_address_space():
    """Return the size of this process's address space in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main():
    edges, limit = map(int, sys.argv[1:])
    sum_ring_messages(1000)  # loads libraries and allocates MPI's buffers
    resource.setrlimit(resource.RLIMIT_AS, (measure_address_space() + limit,) * 2)
    total = sum_ring_messages(edges)
    if COMM.rank == 0:
        print(f"{total:.0f} edges")


if __name__ == "__main__":
    main()
