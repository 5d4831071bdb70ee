"""A rank of test_distributed.py: how many threads it has once a partition is made, and who may say otherwise."""

import os

import numpy as np
import torch
from mpi4py import MPI

import trigraph
import trigraph.distributed.torch
from trigraph.distributed import owners, partition, processors

COMM = MPI.COMM_WORLD
GRAPH = trigraph.CSC(np.array([0, 1]), np.array([0]))
SHARE = max(len(os.sched_getaffinity(0)) // COMM.size, 1)
OF_TORCH = min(torch.get_num_threads(), SHARE)


def numbers():
    """Return the threads of both, once another communicator has a partition: what it finds is found anew."""
    partition(GRAPH, COMM.Dup(), owners.blocks(1, COMM.size))
    return trigraph.get_num_threads(), torch.get_num_threads()


assert trigraph.get_num_threads() == len(os.sched_getaffinity(0))
assert numbers() == (SHARE, OF_TORCH) == numbers()

# The user's numbers stay.
torch.set_num_threads(5)
assert numbers() == (SHARE, 5)
trigraph.set_num_threads(6)
assert numbers() == (6, 5)

# A machine of eight processors: both ranks may use all, each has half for itself, some are of both.
found = []
processors.tell(found.append)
for mine in (range(8), range(4 * COMM.rank, 4 * COMM.rank + 4), range(2 * COMM.rank, 2 * COMM.rank + 6), range(1)):
    processors._shares.clear()
    processors.available_processors = lambda mine=mine: set(mine)
    numbers()
assert found == [SHARE, 4, 4, 3, 1], found
print("right")
