"""What one check leaves behind: the row every table, plot and report is made of."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

# What a check compares with what.
KINDS = {
    "accuracy": "a panel against the real128 judge, elementwise",
    "differences": "central finite differences of one order against the next",
    "golden": "a panel against vectors computed by other programs",
    "adjoint": "<bwd(g), v> against <g, jvp(v)> from bwd2's grad_ field",
    "symmetry": "second derivatives in exchanged directions",
    "permutation": "edges renumbered: equal up to rounding",
    "threads": "equal bits whatever the number of threads",
    "levels": "equal bits of the fast path's builds for x86-64-v3 and -v4",
    "repeat": "equal bits when called again",
    "batch": "nodes and edges in a batch with others, unconnected: equal bits (of pyref and of a user's function: "
    "values against the judge's of the case alone)",
    "half": "embeddings stored in float16 and, with ml_dtypes, in bfloat16 (gpu, gpu-host): against the judge, each "
    "element rounded once",
    "layout": "results are C-contiguous, writeable, of the right dtype, and share memory with nothing",
    "out": "arrays of the caller's are written in full: equal bits, wherever they lie",
    "nan": "NaN and infinity in some elements of an argument reach exactly what depends on them",
    "forces": "forces by the chain of operators against differences of the energy in positions",
    "force training": "gradients of a loss of forces in the parameters against differences",
    "invariance": "energy and forces of atoms rotated, mirrored, translated and renumbered",
    "bessel": "radial functions from x = 0.001 to 1, degree by degree, against scipy's",
    "empty": "no edges, no nodes, isolated nodes: zeros",
    "complete": "checks that were planned and not made: only there when it fails",
    "not offered": "checks not made since the function under test offers no such thing; neither passed nor failed",
}


@dataclasses.dataclass(frozen=True)
class Check:
    """One comparison of one field of one operator in one panel."""

    operator: str
    panel: str  # ``gpu-host``, ``judge``, or the name of a user's function
    dtype: str  # ``float32``, ``float64`` or ``real128``
    kind: str  # a key of `KINDS`
    case: str  # name of the input: ``regular``, ``shared rows``, ``airfoil``, ``athena case03``
    field: str  # output or derivative compared; for differences, the input differentiated
    # In the unit the tolerance is stated in (see ``tolerances.py``): the check passes when error <= tolerance.
    error: float
    tolerance: float
    order: float | None = None  # of a finite-difference curve; None where differences are exact up to rounding
    seconds: float = 0.0  # time of the panel's call (of all calls of a curve)
    curve: tuple[tuple[float, float], ...] = ()  # error against step of differences; of ``bessel``, against x
    digest: str | None = None  # of the bits of the field (accuracy checks), see `digest`
    note: str = ""  # why it failed, or what the error is relative to
    trace: str = ""  # traceback of the exception that `note` tells

    @property
    def passed(self) -> bool:
        """Whether error <= tolerance; a NaN never passes."""
        return bool(self.error <= self.tolerance) and self.offered

    @property
    def failed(self) -> bool:
        """Whether it did not pass; what was not offered did neither."""
        return not self.passed and self.offered

    @property
    def offered(self) -> bool:
        """Whether it is a check: of kind ``not offered``, `error` is the number of checks that were not made."""
        return self.kind != "not offered"


def digest(array: np.ndarray) -> str:
    """First 64 bits of the SHA-256 of dtype, shape and bits; every NaN counts as the same bits."""
    canonical = array if array.dtype.kind == "i" else np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    state = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    state.update(np.ascontiguousarray(canonical).tobytes())
    return state.hexdigest()[:16]
