"""A graph that does not fit the memory of one process runs on two, each with no more memory than the one had."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py")

WORKER = Path(__file__).parent / "distributed_memory_worker.py"
MPIEXEC = Path(sys.executable).parent / "mpiexec"
EDGES, LIMIT = 500_000, 150_000_000  # bytes of each rank: one needs more than 180 million, two less than 100 each


def ran(ranks, limit):
    command = [str(MPIEXEC), "-n", str(ranks), sys.executable, str(WORKER), str(EDGES), str(limit)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_two_ranks_take_what_one_cannot():
    alone = ran(1, LIMIT)
    assert alone.returncode != 0
    assert "MemoryError" in alone.stderr
    for done in (ran(2, LIMIT), ran(1, 2 * LIMIT)):  # the limit it was, and nothing else
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == f"{EDGES} edges"
