"""Check the derivatives of functions and ASE calculators by the slope of the error of central differences."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slopecheck.calculators import check_calculator
    from slopecheck.derivatives import check_derivatives
    from slopecheck.result import CalculatorError, DerivativeError, Result

__all__ = ["CalculatorError", "DerivativeError", "Result", "check_calculator", "check_derivatives"]
__version__ = "0.1.0"

# Names are imported at their first use, so that the command line starts quickly.
_HOMES = {"check_calculator": "calculators", "check_derivatives": "derivatives"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"slopecheck.{_HOMES.get(name, 'result')}"), name)
    raise AttributeError(f"module 'slopecheck' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
