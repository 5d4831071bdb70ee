"""Ranks on one machine share its processors: each runs its share of them as threads, unless the user chose a number."""

from __future__ import annotations

from collections.abc import Callable

from mpi4py import MPI

from trigraph.fortran.threads import available_processors, share_processors

_listeners: list[Callable[[int], None]] = []
_shares: list[int] = []


def tell(listener: Callable[[int], None]) -> None:
    """Call a function with the share of processors, now and whenever it gets smaller."""
    _listeners.append(listener)
    if _shares:
        listener(min(_shares))


def share(comm: MPI.Comm) -> None:
    """Find out how many processors a rank has to itself, and limit threads to them; all ranks have to call it.

    Ranks that are bound to different processors, as some launchers do, take nothing from each other.
    """
    machine = comm.Split_type(MPI.COMM_TYPE_SHARED)
    processors = available_processors()
    rivals = sum(not processors.isdisjoint(other) for other in machine.allgather(processors))
    machine.Free()
    _shares.append(max(len(processors) // rivals, 1))
    for listener in _listeners:
        listener(min(_shares))


tell(share_processors)
