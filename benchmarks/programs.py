"""Programs: workloads that are more than operators of the table, such as a training step of a whole model."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from trigraph.benchmarks.worker import Job
from trigraph.benchmarks.workloads import Call, Target, Unavailable

__all__ = ["Contender", "Program", "make_program"]


@dataclass(frozen=True)
class Contender:
    """One of the ways to run a program.

    Attributes
    ----------
    make : callable
        Takes sizes and dtype, returns a `Call`; picklable, so a function of a module or a partial of one.
    about : str
        What it is, for the record.
    requires : tuple of str
        Modules it imports.
    peer : bool
        Whether it is what users run without trigraph.
    work : int
        How many times the first contender's work a call does; costs are compared after division by it.
    """

    make: Callable[[Mapping[str, int], str], Call]
    about: str
    requires: tuple[str, ...] = ("torch",)
    peer: bool = False
    work: int = 1


@dataclass(frozen=True)
class Program:
    """What is timed.

    Attributes
    ----------
    name, family, summary : str
        Programs of one name are run together, each on its own.
    contenders : dict of str to Contender
        The first is trigraph's: the results and the costs of the others are compared with its.
    sizes : dict
    small : dict
        Sizes in place of those, for a quick run and for the tiny run that loads what is loaded at the first call.
    targets : tuple of Target
        `peer` is a contender.
    profiled : bool
        Whether to find what shares of the first contender's time are spent in trigraph's operators and in torch's
        matrix products.
    terms : int
        Terms of the longest sum in the gradient of a weight: triplets or edges. One that is added up term after term
        is off by about the square root of their number, in units of eps.
    """

    name: str
    family: str
    summary: str
    contenders: Mapping[str, Contender]
    sizes: Mapping[str, int]
    small: Mapping[str, int]
    targets: tuple[Target, ...] = ()
    profiled: bool = False
    terms: int = 0

    def jobs(self, sizes: Mapping[str, int], dtype: str, peers: bool) -> dict[str, Job]:
        """Return what the workers run."""
        tiny = {**self.sizes, **self.small}
        first = next(iter(self.contenders))
        return {
            name: Job(
                partial(make_program, contender, sizes, dtype),
                partial(make_program, contender, tiny, dtype),
                profiled=self.profiled and name == first,
            )
            for name, contender in self.contenders.items()
            if peers or not contender.peer
        }


def make_program(contender: Contender, sizes: Mapping[str, int], dtype: str) -> Call:
    """Return a contender ready to run.

    Raises
    ------
    Unavailable
        If a module it needs is not there.
    """
    for module in contender.requires:
        if importlib.util.find_spec(module) is None:
            raise Unavailable(f"{module} is not installed")
    return contender.make(sizes, dtype)
