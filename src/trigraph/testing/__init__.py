"""Checks of derivatives for everyone: any differentiable function of NumPy arrays, of torch's tensors or of JAX's.

Calculators of ASE have checks of their own.
"""

from trigraph.testing.calculators import check_calculator
from trigraph.testing.derivatives import check_derivatives
from trigraph.testing.result import CalculatorError, DerivativeError, Result

__all__ = ["CalculatorError", "DerivativeError", "Result", "check_calculator", "check_derivatives"]
