"""Look-up of a backend's functions, its availability and its support for third derivatives."""

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from trigraph.arrays import NO_CUPY
from trigraph.table.grammar import Operator
from trigraph.table.operators import FAMILIES, OPERATORS
from trigraph.table.public import BACKENDS

DIFFERENTIABLE_BACKENDS = (
    "pyref",
    "fortran-reference",
)  # backends that can differentiate bwd and bwd2 of every operator


@cache  # caching is safe, because the modules of the backends do not change
def get_backend_function(backend: str, name: str) -> Callable[..., Any]:
    """Return a backend's function: an operator without argument checks, or ``execute``, which runs a checked call."""
    return getattr(importlib.import_module(BACKENDS[backend][0]), name)


def is_bwd3_composed(op: Operator, values: Mapping[str, Any]) -> bool:
    """Return whether bwd3 is composed of bwd and bwd2 (see `trigraph.backends.third`) for these attributes.

    This holds for operators that are linear in each input or, like the GNO operators, polynomial between kinks.
    """
    return not op.definition.has_native_bwd3 or op.definition.is_multilinear(values)


def supports_bwd3(backend: str, op: Operator, values: Mapping[str, Any]) -> bool:
    """Return whether a backend has bwd3 of an operator with these attributes."""
    return is_bwd3_native(backend, op.name) or is_bwd3_composed(op, values)


@cache  # caching is safe, because the modules of the backends do not change
def is_bwd3_native(backend: str, name: str) -> bool:
    """Return whether a backend has its own implementation of an operator X_bwd3, for all attributes."""
    return backend in DIFFERENTIABLE_BACKENDS or hasattr(importlib.import_module(BACKENDS[backend][0]), name)


@cache  # packages and devices that appear after the first call in a process are not detected
def explain_unavailable(name: str) -> str:
    """Return the reason why a backend cannot run on this machine, or "" if it can."""
    if BACKENDS[name][1] == "cupy":
        try:
            import cupy

            if cupy.cuda.runtime.getDeviceCount() == 0:
                return "no CUDA device"
        except ModuleNotFoundError:
            return NO_CUPY
        except ImportError as error:
            return f"CuPy cannot be imported: {error}"
        except Exception as error:  # CuPy raises CUDARuntimeError without a driver
            return f"no CUDA device ({error})"
    try:
        for op in OPERATORS:
            get_backend_function(name, op)
        if name == "gpu-host":
            for family in FAMILIES:
                importlib.import_module("trigraph.gpu.launcher").find_installed_library(family)
    except (ImportError, AttributeError) as error:
        return f"not built ({error})"
    return ""
