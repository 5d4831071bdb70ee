"""Compiled training on curvature; each program takes several minutes to compile."""

from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.stages.compiled import ALONE, AT_ONCE, contenders, run
from trigraph.benchmarks.qualify.stages.models import CURVATURE

__all__ = ["ALONE", "AT_ONCE", "parts", "run"]


def parts(target: Device) -> list[str]:
    """Return a part for each program and compiled contender of training on curvature."""
    return contenders(target, CURVATURE)
