"""Small cases that reach every kernel: for sanitizers on a device, and for those of gpu-host.

Each family has a module with ``run(place)``: it computes the cases with the kernels, compares them with the readable
panel, and returns every array that the kernels gave.
"""

from __future__ import annotations

from trigraph.gpu.instances import INSTANCES

__all__ = ["subset"]

WITH_INT, WITH_LONG = {"float", "float16", "bfloat16", "int"}, {"double", "long long"}


def subset(family: str) -> tuple[str, ...]:
    """Return the instances that the cases reach: float64 with int64, the others with int32; half of all."""

    def kept(instance: str) -> bool:
        arguments = set(instance[instance.index("<") + 1 : -1].split(", "))
        types = {name for name in arguments if not name.isdigit()} - {"false", "true"}
        return types <= WITH_INT or types <= WITH_LONG

    return tuple(instance for instance in INSTANCES[family] if kept(instance))
