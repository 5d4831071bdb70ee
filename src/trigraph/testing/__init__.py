"""Checks of derivatives for everyone: any differentiable function of NumPy arrays, of torch's tensors or of JAX's."""

from trigraph.testing.derivatives import check_derivatives
from trigraph.testing.result import DerivativeError, Result

__all__ = ["DerivativeError", "Result", "check_derivatives"]
