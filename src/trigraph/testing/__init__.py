"""Checks of operators that users implement. For other functions and for calculators, use `slopecheck`."""

import trigraph.verification  # noqa: F401 - raises an error that names a missing package
from trigraph.testing.operators import OperatorError, verify

__all__ = ["OperatorError", "verify"]
