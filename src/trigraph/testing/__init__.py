"""Checks of operators by other authors; functions and calculators are checked by `slopecheck`."""

import trigraph.verification  # noqa: F401 - which says what is missing
from trigraph.testing.operators import OperatorError, verify

__all__ = ["OperatorError", "verify"]
