"""The one table of tolerances of functions and calculators, each with its reason.

The rounding of a function or calculator is not known but estimated. Errors are divided by their scale before they
are compared, so a tolerance is a pure number.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """One row: the `kind` of check, the `unit` of its errors, the allowed `value`, and the reason."""

    kind: str
    unit: str
    value: str
    reason: str


# Machine epsilon by dtype of a check; real128 stands for sums kept as pairs of float64, which hold 106 bits.
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "real128": 2.0**-105}
BEST = 1e-7  # largest allowed error, at the best step, of a curve of central differences in float64

MARGIN = 8.0  # factor between an estimated standard deviation and the allowed error
SENSITIVE = 1e-6  # if rounding hides an error of this size at every step, a curve shows nothing
UNSURE = 1e-7  # a larger relative rounding of a gradient is not trusted
ROUNDING = 2.0**-44  # relative difference of results that are computed in another order
RESPONSE = 100.0  # of float32
KEEPS = 0.7  # fraction of its size that a jump keeps from one window to the next
HALVED = 0.25  # tolerance for the binary logarithm of a ratio of errors

TABLE = (
    Tolerance(
        "differences of any function",
        "sum |grad_i v_i|",
        f"at every step: {MARGIN:g} times the estimated rounding; best step {BEST:g}",
        "Rounding of values is the standard deviation that fourth differences of nearby values show (Moré and Wild), "
        f"that of gradients what a change of the inputs' last bits makes, {UNSURE:g} at most, since what is wrong does "
        "change; 8 deviations are not met by chance in some thousand comparisons. The slope is 2 +- 0.1, as always; "
        "where the function has no third derivative it is less, down to 0.9, and the limit of the error, by Aitken's "
        "extrapolation of three steps, must be below 1e-7. "
        f"Where rounding hides {SENSITIVE:g} at every step the check does not pass. It is inconclusive, and no "
        f"failure, if the error, at the step that shows most, is below {MARGIN:g} times all that a change of the last "
        "bits makes, plus the square of the step times the relative change of the gradient per relative change of the "
        "inputs, times the root of their number, as changes along one direction add up.",
    ),
    Tolerance(
        "elements",
        "what is allowed",
        "1",
        f"{MARGIN:g} times the rounding of two differences and of the gradient, and the change from a step to half "
        "of it, which is more than the error that is left of the extrapolated difference. Where that is more than half "
        "of an element, which adds at least 2**-38 to the sum of magnitudes, the check is inconclusive.",
    ),
    Tolerance(
        "layout, alone, adjoint, symmetry of any function",
        "largest number of the result; sum of |terms|",
        f"2**{int(math.log2(ROUNDING))} (layout, alone); {MARGIN:g} times that and rounding (adjoint, symmetry)",
        "256 epsilons of float64: in another layout, or for one output, some hundred terms are added in another order. "
        f"Beyond that, {MARGIN:g} times what a change of the last bits makes, {UNSURE:g} at most; and for derivatives "
        "the last bit of what is derived over a step of the size of the inputs, below which they vanish. An error "
        f"of third derivatives below {MARGIN:g} times that is inconclusive: what cancels within the "
        "second ones is not seen.",
    ),
    Tolerance(
        "float32",
        "what a change of all numbers by one epsilon of float32 makes",
        f"{RESPONSE:g}",
        "A result in float32 rounds in every step of the computation, not in its inputs alone: so many steps in a row. "
        "A larger error is inconclusive if it is within 8 standard deviations of the rounding in float32, which fourth "
        "differences of the error show: that of a wrong function changes smoothly.",
    ),
    Tolerance(
        "results of a calculator",
        "eV per atom, eV/Å, eV/Å^3",
        f"{MARGIN:g} times the rounding of both results, and of positions that were computed",
        "As for differences. Rounding of positions changes an energy by the sum of |forces|, a force by its slope.",
    ),
    Tolerance(
        "cutoff, scale, line",
        "fourth differences over rounding",
        f"1, or falling by more than {KEEPS:g} from a window to the next, a quarter of it",
        "What is smooth falls by 256, a kink by 4, the root of a distance by 2; a jump stays.",
    ),
    Tolerance(
        "drift",
        "logarithm to base 2",
        f"2 +- {HALVED:g}",
        "The error of velocity Verlet falls with the square of the time step: half of it divides the error by 4, but "
        "for terms of the next order.",
    ),
    Tolerance(
        "form, unchanged, repeat, threads, copy, pickle of functions and calculators",
        "whether wrong",
        "0",
        "Equal is equal.",
    ),
)
