"""Checks of derivatives of any function, and of operators and calculators by other authors."""

from trigraph.testing.calculators import check_calculator
from trigraph.testing.derivatives import check_derivatives
from trigraph.testing.operators import OperatorError, verify
from trigraph.testing.result import CalculatorError, DerivativeError, Result

__all__ = [
    "CalculatorError",
    "DerivativeError",
    "OperatorError",
    "Result",
    "check_calculator",
    "check_derivatives",
    "verify",
]
