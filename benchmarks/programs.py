"""Contenders, and timed programs that are not operators of the table, such as training steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Call = Callable[[], dict[str, Any]]
"""A contender ready to run: returns its results by name, ``gno_message_bwd.coords``, each an array or, where its form
has to be changed for the comparison, a function that returns one."""


@dataclass(frozen=True)
class Contender:
    """Implementation of a program, or another package's implementation of a workload.

    `make` accepts the sizes and dtype of a program, or the inputs of a workload. It must be picklable, such as a
    module's function or a partial of it, and import packages that may be missing.
    """

    make: Callable[..., Call]
    about: str  # description for the record
    peer: bool = True  # whether the contender does not use trigraph
    device: bool = False  # whether the contender runs only on a CUDA device


@dataclass(frozen=True)
class Program:
    """Timed program, such as a training step of a whole model."""

    name: str
    summary: str
    contenders: Mapping[str, Contender]  # results are compared with the first contender's, trigraph's
    sizes: Mapping[str, int]
    # Sizes for a quick run, and for the tiny run that only loads libraries.
    small: Mapping[str, int] = field(default_factory=dict)
    family: str = "models"
    # Number of terms (triplets or edges) in the longest sum for the gradient of a weight. Its square root is the
    # approximate error, in units of eps, of sequential summation.
    terms: int = 0

    def choose_run_sizes(self, size: str) -> dict[str, int]:
        """Return the sizes of a full, a small or a tiny run."""
        return dict(self.sizes) if size == "full" else {**self.sizes, **self.small}

    def make_contender_call(self, name: str, sizes: Mapping[str, int], dtype: str) -> Call:
        """Return a contender's call; raise ModuleNotFoundError if a package is missing."""
        return self.contenders[name].make(sizes, dtype)
