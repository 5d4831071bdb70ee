"""The operators of trigraph for JAX on the CPU, for jit, grad, jvp, vmap and scan, differentiable to any order.

There is one function for each definition of the operator table. For example, ``trigraph.jax.mha_gat_n2n(...)`` takes
the arguments of ``mha_gat_n2n_fwd`` as JAX arrays; its derivatives are ``mha_gat_n2n_bwd`` and ``mha_gat_n2n_bwd2``.
"""

try:
    import jax.ffi as _ffi  # noqa: F401
except ImportError as _error:
    raise ImportError("trigraph.jax needs JAX 0.5 or later, which has jax.ffi: pip install 'trigraph[jax]'") from _error

from trigraph.jax.functions import FUNCTIONS
from trigraph.jax.graphs import register_graph_pytrees as _register

_register()
globals().update(FUNCTIONS)
__all__ = sorted(FUNCTIONS)
