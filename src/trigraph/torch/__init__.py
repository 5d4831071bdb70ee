"""The operators of trigraph in PyTorch: differentiable twice, on the CPU and on CUDA devices.

There is one function for each definition of the operator table, ``trigraph.torch.mha_gat_n2n(...)`` for
``mha_gat_n2n_fwd``, ``_bwd`` and ``_bwd2``, with the arguments of the front door and tensors in place of arrays.
"""

from trigraph.torch.functions import FUNCTIONS
from trigraph.torch.graphs import register as _register
from trigraph.torch.library import LIBRARY as _LIBRARY

_register(_LIBRARY)
globals().update(FUNCTIONS)
__all__ = sorted(FUNCTIONS)
