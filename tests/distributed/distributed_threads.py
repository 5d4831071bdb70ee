"""Checks of test_distributed.py: how many threads a rank has once a partition is made, and who may say otherwise."""

import os

import numpy as np
import pytest
from mpi4py import MPI

import trigraph
from trigraph.distributed import partition, processors

COMM = MPI.COMM_WORLD
GRAPH = trigraph.CSC(np.array([0, 1]), np.array([0]))


def divide():
    """Make a partition on a new communicator, for which a rank's share of the processors is found anew."""
    partition(GRAPH, COMM.Dup())


def as_started():
    """Without OMP_NUM_THREADS all processors, and a share of them from the first partition on; `set_num_threads`."""
    number = len(os.sched_getaffinity(0))
    assert trigraph.get_num_threads() == number
    divide()
    assert trigraph.get_num_threads() == max(number // COMM.size, 1)
    trigraph.set_num_threads(6)
    divide()
    assert trigraph.get_num_threads() == 6


def of_machines():
    """All ranks may use all processors, each has its own, neighbours have one in common; there is only one."""
    told, rank = [], COMM.rank
    with pytest.MonkeyPatch.context() as patch:
        for cpus in (range(8), range(4 * rank, 4 * rank + 4), range(6 * rank, 6 * rank + 7), range(1)):
            patch.setattr(processors, "_shares", [])
            patch.setattr(processors, "_listeners", [told.append])
            patch.setattr(processors, "available_processors", lambda cpus=cpus: set(cpus))
            divide()
    with_neighbours = 1 + (rank > 0) + (rank < COMM.size - 1)
    assert told == [8 // COMM.size, 4, 7 // with_neighbours, 1], told


def of_torch():
    """A share of the four that torch has begun with, unless the environment or the user has chosen a number."""
    import torch

    from trigraph.distributed import torch as divided

    def after(number, chosen=None):
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("OMP_NUM_THREADS")
            patch.setattr(processors, "_shares", [])
            patch.setattr(processors, "available_processors", lambda: set(range(4 * COMM.size - 1)))
            patch.setattr(divided, "_threads", 4)
            if chosen:
                patch.setenv(chosen, "4")
            torch.set_num_threads(number)
            divide()
            divide()
            return torch.get_num_threads()

    threads = after(4), after(5), after(4, "OMP_NUM_THREADS"), after(4, "MKL_NUM_THREADS")
    torch.set_num_threads(1)
    assert threads == (3, 5, 4, 4), threads
