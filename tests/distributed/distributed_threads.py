"""Checks for test_distributed.py: the number of threads of a rank, before and after the first partition."""

import os

import numpy as np
import pytest
from mpi4py import MPI

import trigraph
from trigraph.distributed import partition, processors

COMM = MPI.COMM_WORLD
GRAPH = trigraph.CSC(np.array([0, 1]), np.array([0]))


def partition_on_new_communicator():
    """Partition a graph on a new communicator, which recomputes the rank's share of processors."""
    partition(GRAPH, COMM.Dup())


def uses_all_processors_until_partition():
    """A rank uses all processors, and only its share after the first partition, unless set_num_threads was called."""
    number = len(os.sched_getaffinity(0))
    assert trigraph.get_num_threads() == number
    partition_on_new_communicator()
    assert trigraph.get_num_threads() == max(number // COMM.size, 1)
    trigraph.set_num_threads(6)
    partition_on_new_communicator()
    assert trigraph.get_num_threads() == 6


def divides_processors():
    """A rank's share depends on the sets of processors available to the ranks: equal, disjoint, overlapping, or one."""
    reported_shares, rank = [], COMM.rank
    with pytest.MonkeyPatch.context() as patch:
        for cpus in (range(8), range(4 * rank, 4 * rank + 4), range(6 * rank, 6 * rank + 7), range(1)):
            patch.setattr(processors, "_shares", [])
            patch.setattr(processors, "_listeners", [reported_shares.append])
            patch.setattr(processors, "list_available_processors", lambda cpus=cpus: set(cpus))
            partition_on_new_communicator()
    with_neighbours = 1 + (rank > 0) + (rank < COMM.size - 1)
    assert reported_shares == [8 // COMM.size, 4, 7 // with_neighbours, 1], reported_shares


def divides_torch_threads():
    """torch uses a share of its initial number of threads, unless the number was set by the environment or the user."""
    import torch

    from trigraph.distributed import torch as divided

    def count_torch_threads_after_partition(number, chosen=None):
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("OMP_NUM_THREADS")
            patch.setattr(processors, "_shares", [])
            patch.setattr(processors, "list_available_processors", lambda: set(range(4 * COMM.size - 1)))
            patch.setattr(divided, "_threads", 4)
            if chosen:
                patch.setenv(chosen, "4")
            torch.set_num_threads(number)
            partition_on_new_communicator()
            partition_on_new_communicator()
            return torch.get_num_threads()

    threads = (
        count_torch_threads_after_partition(4),
        count_torch_threads_after_partition(5),
        count_torch_threads_after_partition(4, "OMP_NUM_THREADS"),
        count_torch_threads_after_partition(4, "MKL_NUM_THREADS"),
    )
    torch.set_num_threads(1)
    assert threads == (3, 5, 4, 4), threads
