"""Checks for everyone: derivatives of any function, and operators and calculators that others have written."""

from trigraph.testing.derivatives import check_derivatives
from trigraph.testing.operators import OperatorError, verify
from trigraph.testing.result import DerivativeError, Result

__all__ = ["DerivativeError", "OperatorError", "Result", "check_derivatives", "verify"]
