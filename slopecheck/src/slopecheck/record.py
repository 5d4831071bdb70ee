"""The record of one check, from which tables, plots and reports are made."""

import dataclasses
import hashlib

import numpy as np

# The attributes of a check, which are also the columns of the table of checks in a report.json.
COLUMNS = {
    "operator": "operator, or the name of a function or calculator",
    "backend": "`gpu-host`, `judge`, the name of a user's function, or the framework that differentiates",
    "dtype": "`float32`, `float64` or `real128`",
    "kind": "kind of check; for `trigraph verify`, see the table of kinds above",
    "case": "the input, such as `regular`, `shared rows`, `airfoil`, `athena case03`; for a function, the order of "
    "derivatives; for a calculator, the structure",
    "field": "output or derivative that was compared; for differences, the input that was changed",
    "error": "error in the unit of the tolerance; null if it is not finite. A check passes if error <= tolerance. For "
    "the kind `not offered`, the number of unsupported checks",
    "tolerance": "largest allowed error",
    "order": "slope of a curve of differences; null if the curve has only rounding errors, and for other checks",
    "seconds": "time of the backend's call, or of all calls for a curve",
    "curve": "pairs (step, error) of differences; for `bessel`, pairs (x, error)",
    "digest": "hash of the field, 16 hexadecimal digits (`accuracy`); null for other kinds",
    "note": "reason for a failure, or the scale of the error",
    "trace": "traceback of the exception in the note",
    "inconclusive": "true if double precision cannot decide, as the note explains; the check neither passed nor failed",
}


@dataclasses.dataclass(frozen=True)
class Check:
    """One comparison of one field of one operator in one backend; `COLUMNS` describes the attributes."""

    operator: str
    backend: str
    dtype: str
    kind: str
    case: str
    field: str
    error: float
    tolerance: float
    order: float | None = None
    seconds: float = 0.0
    curve: tuple[tuple[float, float], ...] = ()
    digest: str | None = None
    note: str = ""
    trace: str = ""
    inconclusive: bool = False

    @property
    def passed(self) -> bool:
        """Whether error <= tolerance; NaN never passes."""
        return bool(self.error <= self.tolerance) and self.offered and not self.inconclusive

    @property
    def failed(self) -> bool:
        """Whether the check failed; a check that was not offered or is inconclusive has neither passed nor failed."""
        return not self.passed and self.offered and not self.inconclusive

    @property
    def offered(self) -> bool:
        """Whether the check was made; for kind ``not offered``, `error` is the number of missing checks."""
        return self.kind != "not offered"


def digest_array(array: np.ndarray) -> str:
    """Return 64 bits of the SHA-256 of dtype, shape and data, in hexadecimal; all NaNs count as equal."""
    canonical = array if array.dtype.kind == "i" else np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    state = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    state.update(np.ascontiguousarray(canonical).tobytes())
    return state.hexdigest()[:16]
