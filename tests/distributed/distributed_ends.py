"""Program run by each rank in test_distributed.py (argument: CASE); the last rank exits while the others wait."""

import os
import re
import signal
import sys
import threading
from pathlib import Path

import numpy as np
from mpi4py import MPI

from trigraph import CSC, distributed

COMM = MPI.COMM_WORLD


def interrupt_self_twice():
    """Send two interrupts, as Ctrl-C does from both a terminal and mpiexec."""
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    os.kill(os.getpid(), signal.SIGINT)


def raise_key_error():
    raise KeyError("nobody catches this")


MAPS = Path("/proc/self/maps")
if MAPS.exists() and COMM.rank == COMM.size - 1:  # MPICH leaves shared memory behind if ranks are killed
    for shared in set(re.findall(r"/dev/shm/mpich_\S+", MAPS.read_text())):
        Path(shared).unlink()
COMM.Barrier()
if COMM.rank == COMM.size - 1:
    {"raises": raise_key_error, "interrupted": interrupt_self_twice}[sys.argv[1]]()
distributed.partition(CSC(np.array([0, 1]), np.array([0])), COMM)
