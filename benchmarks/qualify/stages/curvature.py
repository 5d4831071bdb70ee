"""Compiled training on curvature; each program takes several minutes to compile."""

from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.stages.compiled import ALONE, AT_ONCE, list_compiled_contenders, run_part
from trigraph.benchmarks.qualify.stages.models import CURVATURE

__all__ = ["ALONE", "AT_ONCE", "list_parts", "run_part"]


def list_parts(target: Device) -> list[str]:
    """Return a part for each program and compiled contender of training on curvature."""
    return list_compiled_contenders(target, CURVATURE)
