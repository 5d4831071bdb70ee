"""Number of threads of a rank: its share of the machine's processors, unless the user chooses a number."""

from collections.abc import Callable

from mpi4py import MPI

from trigraph.fortran.threads import limit_default_threads, list_available_processors

_listeners: list[Callable[[int], None]] = []
_shares: list[int] = []


def add_processor_share_listener(listener: Callable[[int], None]) -> None:
    """Call a function with this rank's number of processors, now and whenever the number decreases."""
    _listeners.append(listener)
    if _shares:
        listener(min(_shares))


def limit_threads_to_share(comm: MPI.Comm) -> None:
    """Find this rank's share of the processors and limit its threads to that number. All ranks must call this function.

    Ranks that the launcher has bound to different processors do not share them.
    """
    machine = comm.Split_type(MPI.COMM_TYPE_SHARED)
    processors = list_available_processors()
    num_sharing = sum(not processors.isdisjoint(other) for other in machine.allgather(processors))
    machine.Free()
    _shares.append(max(len(processors) // num_sharing, 1))
    for listener in _listeners:
        listener(min(_shares))


add_processor_share_listener(limit_default_threads)
