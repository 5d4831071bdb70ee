"""Tolerances of the checks of functions and calculators, each with its reason.

The rounding of a function or calculator is not known but estimated. Errors are divided by their scale before they
are compared with a tolerance, which is therefore a pure number.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ToleranceRow:
    """Row of the table: the `kind` of check, the `unit` of its errors, the allowed `value`, and the reason."""

    kind: str
    unit: str
    value: str
    reason: str


# Machine epsilon by dtype of a check; real128 denotes sums stored as pairs of float64, which hold 106 bits.
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "real128": 2.0**-105}
BEST = 1e-7  # largest allowed error, at the best step, of a curve of central differences in float64

MARGIN = 8.0  # factor between an estimated standard deviation and the allowed error
SENSITIVE = 1e-6  # a curve is not judged if rounding hides an error of this size at every step
UNSURE = 1e-7  # largest relative rounding error of a gradient that is trusted
ROUNDING = 2.0**-44  # relative difference of results that are computed in another order
RESPONSE = 100.0  # float32: allowed error relative to the effect of changing all numbers by one epsilon
KEEPS = 0.7  # fraction of its size that a jump keeps from one window to the next
HALVED = 0.25  # tolerance for the binary logarithm of a ratio of errors

TABLE = (
    ToleranceRow(
        "differences of any function",
        "sum |grad_i v_i|",
        f"at every step: {MARGIN:g} times the estimated rounding; best step {BEST:g}",
        "The rounding of values is the standard deviation from fourth differences of nearby values (Moré and Wild). "
        f"The rounding of gradients is the effect of changing the inputs' last bits. It is limited to {UNSURE:g}, "
        f"because a wrong gradient may change more. {MARGIN:g} standard deviations do not occur by chance in "
        "thousands of comparisons. The slope must be 2 +- 0.1. If the function has no third derivative, the slope may "
        "be as low as 0.9, but the limit of the error (Aitken's extrapolation of three steps) must be below 1e-7. "
        f"If rounding hides an error of {SENSITIVE:g} at every step, the check does not pass. It is inconclusive, not "
        "failed, if the error at the most informative step is below the sum of two terms: "
        f"{MARGIN:g} times the full effect of changing the last bits, and the square of the step times the relative "
        "change of the gradient per relative change of the inputs, times the square root of the number of inputs, "
        "because changes along one direction add up.",
    ),
    ToleranceRow(
        "elements",
        "the allowed error",
        "1",
        f"The allowed error is {MARGIN:g} times the rounding of two differences and of the gradient, plus the "
        "change when the step is halved, which exceeds the remaining error of the extrapolated difference. If this is "
        "more than half of an element that contributes at least 2**-38 to the sum of magnitudes, the check is "
        "inconclusive.",
    ),
    ToleranceRow(
        "layout, alone, adjoint, symmetry of any function",
        "largest number of the result; sum of |terms|",
        f"2**{int(math.log2(ROUNDING))} (layout, alone); {MARGIN:g} times that and rounding (adjoint, symmetry)",
        "This is 256 epsilons of float64, because hundreds of terms may be added in another order for another layout, "
        f"or for a single output. In addition, {MARGIN:g} times the effect of changing the last bits is allowed, at "
        f"most {UNSURE:g}, and for derivatives the last bit of the differentiated values, divided by the size of the "
        "inputs. "
        f"An error of third derivatives below {MARGIN:g} times this tolerance is inconclusive, because terms that "
        "cancel within second derivatives cannot be measured.",
    ),
    ToleranceRow(
        "float32",
        "the effect of changing all numbers by one epsilon of float32",
        f"{RESPONSE:g}",
        f"A float32 computation rounds in every step, not only its inputs; this allows for {RESPONSE:g} steps. "
        "A larger error is inconclusive if it is within 8 standard deviations of the rounding in float32, estimated "
        "from fourth differences of the error, because the error of a wrong function changes smoothly.",
    ),
    ToleranceRow(
        "results of a calculator",
        "eV per atom, eV/Å, eV/Å^3",
        f"{MARGIN:g} times the rounding of both results, and of computed positions",
        "The reason is the same as for differences. The rounding of positions changes an energy by the sum of "
        "|forces|, and a force by its slope.",
    ),
    ToleranceRow(
        "cutoff, scale, line",
        "fourth differences over rounding",
        f"1, or a fall to less than {KEEPS:g} times from one window to the next, which is a quarter as wide",
        "Differences fall by a factor of 256 for smooth functions, by 4 at a kink, and by 2 for the root of a "
        "distance. They do not fall at a jump.",
    ),
    ToleranceRow(
        "drift",
        "logarithm to base 2",
        f"2 +- {HALVED:g}",
        "The error of velocity Verlet is proportional to the square of the time step, up to terms of higher order, so "
        "half the step gives a quarter of the error.",
    ),
    ToleranceRow(
        "form, unchanged, repeat, threads, copy, pickle of functions and calculators",
        "1 if wrong",
        "0",
        "The results must be bitwise identical.",
    ),
)
