"""Names and texts of the program that uses these checks, for tables, pages, pictures and comparisons."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slopecheck.environment import collect_environment

# Names of the properties that checks test in addition to values and derivatives, by kind of check.
PROPERTIES = {
    "nan": "NaN locality",
    "repeat": "repeated calls",
    "kept": "kept results",
    "history": "earlier calls",
    "threads": "numbers of threads",
    "layout": "memory layout",
    "form": "dtypes and shapes",
    "unchanged": "unchanged arguments",
    "alone": "single requests",
}
# Settings on which results depend, with the path of keys in a report.
INFLUENCES = {
    "seed": ("seed",),
    "slopecheck": ("environment", "slopecheck", "version"),
    "NumPy": ("environment", "packages", "numpy"),
}


@dataclass(frozen=True)
class ReportTerms:
    """Names and texts of a program; the defaults suit functions and calculators."""

    environment: Callable[[], Mapping[str, Any]] = collect_environment  # returns a report's environment
    kinds: Mapping[str, str] = field(default_factory=dict)  # what each kind of check compares
    properties: Mapping[str, str] = field(default_factory=lambda: PROPERTIES)
    curves: Collection[str] = ("differences", "forces", "stress")  # kinds of check that measure a slope
    influences: Mapping[str, Sequence[str]] = field(default_factory=lambda: INFLUENCES)  # the keys may include "commit"
    # Name of the definition of each operator; the operators of one definition are its orders of derivatives.
    definitions: Mapping[str, str] = field(default_factory=dict)
    # Remarks about failed cases of an operator.
    remarks: Callable[[Sequence[str], str], list[str]] = lambda cases, operator: []
    colours: Mapping[str, str] = field(default_factory=dict)  # colour of the curves of each backend
    legend: str = ""  # text below the table of a run
