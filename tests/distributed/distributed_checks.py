"""Program run by each rank in test_distributed.py; its arguments name checks (``errors.refuses_wrong_arguments``).

Rank 0 prints the name and duration of each check that passes on all ranks; an error ends all ranks.
"""

import importlib
import sys
import time

from mpi4py import MPI

for name in sys.argv[1:]:
    module, check = name.split(".")
    start = time.perf_counter()
    getattr(importlib.import_module(f"distributed_{module}"), check)()
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        print(name, f"{time.perf_counter() - start:.2f}", flush=True)
