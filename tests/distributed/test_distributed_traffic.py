"""What `trigraph.distributed.traffic` counts in one process is what ranks have."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mpi4py")

WORKER = Path(__file__).parent / "distributed_traffic_worker.py"
MPIEXEC = Path(sys.executable).parent / "mpiexec"


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_have_what_is_counted(ranks):
    command = [str(MPIEXEC), "-n", str(ranks), sys.executable, str(WORKER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"7 graphs, {ranks} ranks"


def test_what_is_no_such_graph():
    from trigraph import Segments
    from trigraph.distributed import traffic

    with pytest.raises(TypeError, match="traffic: graph is a Segments; expected a CSC or an EdgeGraph"):
        traffic(Segments(np.array([0]), 1), None, 2)
