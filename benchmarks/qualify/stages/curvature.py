"""Compiled training on curvature, whose programs take the longest to compile: several minutes."""

from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.stages.compiled import ALONE, AT_ONCE, contenders, run
from trigraph.benchmarks.qualify.stages.models import CURVATURE

__all__ = ["ALONE", "AT_ONCE", "parts", "run"]


def parts(place: Device) -> list[str]:
    """Return programs and contenders."""
    return contenders(place, CURVATURE)
