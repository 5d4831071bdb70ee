"""Operators on a graph that is divided among MPI ranks, with results bitwise identical to a single process.

``trigraph.distributed.X(...)`` takes a `Partition` instead of a graph, and arrays of the rows that the rank owns.
"""

import signal as _signal
import sys as _sys
import time as _time
import traceback as _traceback
from types import TracebackType as _TracebackType

try:
    from mpi4py import MPI as _MPI
except ImportError as _error:
    raise ImportError("trigraph.distributed needs mpi4py: pip install 'trigraph[mpi]'") from _error

from trigraph.distributed import owners
from trigraph.distributed.divide import partition, partition_pieces
from trigraph.distributed.exchange import Halo
from trigraph.distributed.functions import FUNCTIONS
from trigraph.distributed.partition import Partition

globals().update(FUNCTIONS)
__all__ = ["Halo", "Partition", "owners", "partition", "partition_pieces", *sorted(FUNCTIONS)]


def _abort_all_ranks(kind: type[BaseException], error: BaseException, trace: _TracebackType | None) -> None:
    """Print an uncaught exception with its rank and end all ranks, which would otherwise wait for this one."""
    try:
        _sys.stderr.write(f"rank {_MPI.COMM_WORLD.rank}:\n" + "".join(_traceback.format_exception(kind, error, trace)))
        _sys.stderr.flush()
        _time.sleep(0.5)  # let mpiexec forward the text, which would be lost when the ranks end
    finally:  # the terminal and mpiexec both forward Ctrl-C; the second signal may interrupt the lines above
        _MPI.COMM_WORLD.Abort(128 + _signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1)


if _MPI.Is_initialized() and _MPI.COMM_WORLD.size > 1:
    _sys.excepthook = _abort_all_ranks
