"""Graph and geometric message-passing operators in Fortran, NumPy and CUDA, with exact first and second derivatives.

``trigraph.X(...)`` checks its arguments and calls the fast CPU path, or the CUDA kernels for device arrays;
``backend=`` selects another backend. See ``trigraph --help`` for the command line.
"""

import importlib as _importlib
import os.path as _path
from typing import Any as _Any

from trigraph.arrays import LIBRARIES as _LIBRARIES
from trigraph.backends import BACKENDS, FUNCTIONS
from trigraph.backends.forms import basis_embedding_bwd, basis_embedding_bwd2, basis_embedding_fwd
from trigraph.fortran.levels import get_cpu_level, set_cpu_level
from trigraph.fortran.threads import get_num_threads, set_num_threads
from trigraph.gno_params import pack_gno_params, unpack_gno_params
from trigraph.graphs import CSC
from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.graphs.segments import Segments
from trigraph.table import OPERATORS

__all__ = [
    "CSC",
    "EdgeGraph",
    "OPERATORS",
    "BACKENDS",
    "Segments",
    "basis_embedding_bwd",
    "basis_embedding_bwd2",
    "basis_embedding_fwd",
    "get_cpu_level",
    "get_num_threads",
    "pack_gno_params",
    "set_cpu_level",
    "set_num_threads",
    "unpack_gno_params",
    *FUNCTIONS,
]
if not _path.exists(__file__):
    raise ImportError(
        f"trigraph cannot run from an archive, since the system loads its compiled backends from files: unpack "
        f"{__file__.removesuffix('/trigraph/__init__.py')}, or install with pip"
    )
globals().update(FUNCTIONS)
_LIBRARIES["torch"] = lambda: _importlib.import_module("trigraph.torch.arrays")
_LIBRARIES["libtrigraph"] = lambda: str(_importlib.import_module("trigraph.fortran.levels").LIBRARY)
_LIBRARIES["num_threads"] = get_num_threads

# Submodules that are imported on first access, as an attribute (`trigraph.compat`) or by an import statement.
_MODULES = ("ase", "compat", "fortran", "gpu", "pyref", "results", "testing", "torch", "verification")


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        return _importlib.import_module(f"trigraph.{name}")
    if name == "verify":
        return _importlib.import_module("trigraph.testing.operators").verify
    if name == "__version__":
        from importlib.metadata import version  # imported here, because the import is slow

        return version("trigraph")
    raise AttributeError(f"module 'trigraph' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "verify", "__version__"])
