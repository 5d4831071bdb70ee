"""The operators of trigraph for PyTorch, differentiable to any order, on the CPU and on CUDA devices.

There is one function per definition in the operator table. For example, ``trigraph.torch.mha_gat_n2n`` computes
``mha_gat_n2n_fwd`` for tensors, and its derivatives use ``mha_gat_n2n_bwd`` and ``mha_gat_n2n_bwd2``.
"""

try:
    import torch as _torch
except ImportError as _error:
    raise ImportError("trigraph.torch needs PyTorch: pip install 'trigraph[torch]'") from _error
if _torch.__version__ < (2, 6):  # type: ignore[operator]
    raise ImportError(f"trigraph.torch needs PyTorch 2.6 or later; {_torch.__version__} is installed")

import importlib as _importlib

from trigraph.torch.derivatives import register_derivatives as _register_derivatives
from trigraph.torch.functions import FUNCTIONS, basis_embedding
from trigraph.torch.graphs import GraphTensors
from trigraph.torch.graphs import register_graphs as _register
from trigraph.torch.library import LIBRARY as _LIBRARY

_register(_LIBRARY)
_register_derivatives()
globals().update(FUNCTIONS)
__all__ = [
    "Capacity",
    "GraphTensors",
    "basis_embedding",
    "compile_potential",
    "convert",
    "export_potential",
    "nn",
    *sorted(FUNCTIONS),
]


_MODULES = {
    "Capacity": "potentials.padding",
    "convert": "conversion",
    "compile_potential": "potentials.compiled",
    "export_potential": "potentials.export",
}


def __getattr__(name: str) -> object:
    if name == "nn":
        return _importlib.import_module("trigraph.torch.nn")
    if name in _MODULES:
        return getattr(_importlib.import_module(f"trigraph.torch.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'trigraph.torch' has no attribute {name!r}")
