"""Programs: workloads that are more than operators of the table, such as a training step of a whole model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from trigraph.benchmarks.calls import Call, require
from trigraph.benchmarks.worker import Job
from trigraph.benchmarks.workloads import Target


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
    folder : str or None
        Where its trigraph is, if that is another build.
    """

    make: Callable[[Mapping[str, int], str], Call]
    about: str
    requires: tuple[str, ...] = ("torch",)
    peer: bool = False
    folder: str | None = None


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
    terms: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the contenders."""
        return tuple(self.contenders)

    @property
    def fast(self) -> str:
        """The contender that the others are compared with: the first."""
        return next(iter(self.contenders))

    def at(self, size: str) -> dict[str, int]:
        """Return the sizes of a full or a small run."""
        return dict(self.sizes) if size == "full" else {**self.sizes, **self.small}

    def jobs(self, sizes: Mapping[str, int], dtype: str, peers: bool) -> dict[str, Job]:
        """Return what the workers run."""
        return {
            name: Job(
                partial(make_program, contender, sizes, dtype),
                partial(make_program, contender, self.at("small"), dtype),
                folder=contender.folder,
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
    require(*contender.requires)
    return contender.make(sizes, dtype)
