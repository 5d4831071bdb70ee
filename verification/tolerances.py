"""Table of all tolerances. Each tolerance is a multiple or a power of the machine epsilon, and its entry states why.

Errors are divided by a scale before they are compared, so that tolerances are pure numbers. Reports and the
documentation print `TABLE`; checks call the functions below the table.
"""

import math

import numpy as np

from slopecheck import tolerances as of_functions
from slopecheck.tolerances import ToleranceRow

# Epsilon of results by dtype. The judge computes in real128 (2**-112), but returns pairs of float64.
EPS = {**of_functions.EPS, "float16": 2.0**-10, "bfloat16": 2.0**-7}

CHUNKED_TOLERANCE = 8.0

TABLE = (
    ToleranceRow(
        "accuracy",
        "eps * scale",
        "8 (fortran, gpu, gpu-host)",
        "Sums are computed in chunks of at most 256 terms. Rounding errors within a chunk are independent and add up "
        "to about sqrt(256)/2 half-epsilons of the partial sums. scale is the sum of |terms| from the judge.",
    ),
    ToleranceRow(
        "accuracy",
        "eps * scale",
        "8 + sqrt(n) (pyref, fortran-reference, implementations)",
        "A direct sum of n terms has n rounding errors, each at most half an epsilon of scale. They are independent, "
        "so their sum grows as sqrt(n). n is `terms` in the operator table.",
    ),
    ToleranceRow(
        "accuracy",
        "eps * scale",
        "8 + n/2 (pyref, fortran-reference and implementations, if terms are equal)",
        "This is the bound for a direct sum of equal terms: all n rounding errors of half an epsilon of scale can "
        "have the same sign. It is used for the cases named constant, and for such data of users. Sums in chunks keep "
        "a tolerance of 8, because partial sums are added pairwise.",
    ),
    ToleranceRow(
        "accuracy",
        "smallest normal number",
        "1, added to eps * scale",
        "Results that underflow have no relative accuracy. If the scale is 0, the result must be 0 up to the smallest "
        "normal number.",
    ),
    ToleranceRow(
        "half",
        "eps * scale of float32",
        "8, plus half an epsilon of the stored type, relative",
        "Sums are computed in float32 from half-precision numbers, and each element is rounded again when it is "
        "stored. Below the smallest normal number, this error is half the spacing of numbers.",
    ),
    ToleranceRow(
        "differences",
        "sum |grad_i v_i|",
        "at every step: c (2 S + 2 h S') eps / (2 h sum |grad_i v_i|)",
        "This is the rounding floor: each of two evaluations has an error within c eps of its scale S, and the "
        "gradient an error within c eps of its scale S' = sum scale_i |v_i|, with c as for accuracy. Up to degree 2, "
        "central differences have no other error. For other functions, the slope must be 2 +- 0.1 over two decades.",
    ),
    ToleranceRow(
        "differences", "sum |grad_i v_i|", "best step 1e-7 (float64)", "A usable derivative reaches this error."
    ),
    ToleranceRow(
        "differences",
        "sum |grad_i v_i|",
        "best step 2**-64 = 5e-20 (real128)",
        "The truncation error h**2 equals the rounding floor K eps / h where both are (K eps)**(2/3), with eps = "
        "2**-105 and K = 2**9.",
    ),
    ToleranceRow(
        "golden",
        "eps * scale",
        "8 + sqrt(n), plus the backend's tolerance",
        "Both sides have rounding errors: the vectors are direct float64 sums, computed by automatic differentiation.",
    ),
    ToleranceRow(
        "golden",
        "maximum of the vector",
        "8 eps32 (float64 backends), 16 eps32 (float32)",
        "athena computes in float32 and is within 9e-7 = 7.5 eps32 of float64. A float32 backend may add the same "
        "error.",
    ),
    ToleranceRow(
        "adjoint, symmetry",
        "eps * (scales of both sides)",
        "c as for accuracy",
        "Each side is a sum of fields, which have errors within c eps of their scales. The sums over fields are exact "
        "(real128).",
    ),
    ToleranceRow("permutation", "eps * scale", "2 c", "Each of the two results is within c of the exact result."),
    ToleranceRow(
        "forces, force training",
        "sum |grad_i v_i|",
        "best step 1e-7, slope 2 +- 0.1 over two decades",
        "The reasons are the same as for differences. The energy is not a quadratic polynomial of the positions, nor "
        "is the loss one of the parameters.",
    ),
    ToleranceRow(
        "invariance",
        "eps * scale",
        "2 c",
        "The reason is the same as for permutation. scale is a sum over the steps of the computation, including "
        "positions and cell vectors: each step's scale times |the derivative of energy or force with respect to its "
        "result|.",
    ),
    ToleranceRow(
        "bessel",
        "eps * scale",
        "c + 8",
        "c is the backend's tolerance. The other 8 are for scipy in float64, where zeros, arguments and functions are "
        "also rounded.",
    ),
    ToleranceRow(
        "threads, levels, repeat, out, nan, empty",
        "number of elements that differ, or |value|",
        "0",
        "Results must be bitwise identical, and empty sums must be zero. Levels other than v4 are also compared with "
        "the judge.",
    ),
    ToleranceRow(
        "layout, complete", "number of arrays, or of checks", "0", "No array may be wrong, and no check may be missing."
    ),
)

# Tolerances of the smallest relative error over the steps of a finite-difference curve.
BEST = {"float64": of_functions.BEST, "real128": 2.0**-64}


def eps(dtype: str) -> float:
    """Return the machine epsilon of ``"float32"``, ``"float64"``, ``"real128"``, ``"float16"`` or ``"bfloat16"``."""
    return EPS[dtype]


def tiny(dtype: str) -> float:
    """Return the smallest normal number of a dtype; for bfloat16, it is the same as for float32."""
    return float(np.finfo("float32" if dtype == "bfloat16" else dtype).tiny)


def accuracy_tolerance(chunked: bool, terms: int, equal: bool = False) -> float:
    """Return the accuracy tolerance in units of eps * scale, for chunked sums or direct sums of `terms` terms.

    If all terms are `equal`, the rounding errors of a direct sum may have the same sign.
    """
    if chunked:
        return CHUNKED_TOLERANCE
    return CHUNKED_TOLERANCE + (terms / 2 if equal else math.sqrt(terms))


def difference_tolerance(dtype: str) -> float:
    """Return the tolerance of the smallest relative error on a finite-difference curve."""
    return BEST[dtype]


def golden_tolerance(dtype: str) -> float:
    """Return the tolerance, relative to the largest value, for golden vectors computed in float32."""
    return (16 if dtype == "float32" else 8) * EPS["float32"]
