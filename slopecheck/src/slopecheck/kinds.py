"""The single list of kinds of check, for functions and calculators, with the property that each tests."""

from collections.abc import Mapping
from typing import NamedTuple


class CheckKind(NamedTuple):
    """The property that a kind of check tests for a function and for a calculator; "" where it does not apply.

    For functions, the check is made for derivatives of order `lowest` and, with `each`, of every higher order.
    """

    function: str = ""
    calculator: str = ""
    lowest: int = 1
    each: bool = False


CHECK_KINDS: Mapping[str, CheckKind] = {
    "form": CheckKind(
        "a derivative of any order has the dtype, shape and device of its argument; no output has a wider dtype than "
        "all inputs, for example because of a float64 constant in a float32 function"
    ),
    "forces": CheckKind("", "forces with central differences of the energy, over a range of steps and by component"),
    "stress": CheckKind("", "stress with central differences of the energy under strain"),
    "net force": CheckKind("", "the sum of forces with zero"),
    "net torque": CheckKind("", "the torque of forces with zero, without a periodic cell"),
    "rotation": CheckKind("", "results before and after a rotation of atoms and cell"),
    "reflection": CheckKind("", "results before and after a reflection of atoms and cell"),
    "translation": CheckKind("", "results before and after a translation of all atoms"),
    "renumbering": CheckKind(
        "", "results before and after a permutation of the atoms, including a crowd (a dense group of atoms)"
    ),
    "wrapping": CheckKind("", "results before and after moving atoms by lattice vectors"),
    "repetition": CheckKind("", "energy, forces and stress of a doubled cell with the original cell"),
    "cutoff": CheckKind("", "energy and forces of two atoms on both sides of every distance in a scan (continuity)"),
    "scale": CheckKind(
        "",
        "energy and forces in scans of a structure's scale and shear, of a crowd's shear, and of pairs that cross the "
        "cutoff",
    ),
    "line": CheckKind("", "energy and forces on both sides of angles of 0 and 180 degrees"),
    "lone atom": CheckKind("", "the force on an isolated atom with zero; its energy must be finite"),
    "two atoms": CheckKind("", "the forces of two atoms with the direction of their axis and the slope of the energy"),
    "far atoms": CheckKind("", "results of a structure together with a distant atom with the sum of separate results"),
    "company": CheckKind("", "two distant copies of the structure with a single one (batch invariance)"),
    "unchanged": CheckKind(
        "a call does not modify its inputs (including integers), cotangents or directions",
        "the atoms before and after a call",
    ),
    "repeat": CheckKind(
        "39 calls give bitwise identical results; a mistake in 3 of 10 calls is missed once in a million times",
        "results of new calculators, and of requests in another order, bitwise",
    ),
    "kept": CheckKind("no call overwrites the results of an earlier call", "results before and after later calls"),
    "history": CheckKind(
        "results are bitwise identical after calls with other inputs",
        "results after calls for other structures, or after moving atoms (in place, into the cutoff), with a new "
        "calculator",
    ),
    "constraints": CheckKind("", "results with and without a constraint on the atoms"),
    "copy": CheckKind("", "results of a deep copy with the original, bitwise"),
    "pickle": CheckKind("", "results of an unpickled calculator with the original, bitwise"),
    "drift": CheckKind(
        "",
        "the energy errors of velocity-Verlet dynamics at two time steps: half the step must give a quarter of the "
        "error",
    ),
    "alone": CheckKind(
        "the derivative for one input does not depend on whether others are requested; derivatives of single outputs, "
        "and along single directions, add up (torch, JAX)"
    ),
    "threads": CheckKind("calls with 1, 2 or 3 threads give bitwise identical results (torch)"),
    "layout": CheckKind(
        "strided, offset, transposed, expanded and reversed inputs, cotangents and directions give the same results "
        "as contiguous ones"
    ),
    "nan": CheckKind(
        "a NaN in one element does not reach outputs that do not depend on that element, as it would if a mask were "
        "multiplied",
        lowest=0,
    ),
    "float32": CheckKind(
        "float32 results agree with float64 results up to 100 times the effect of changing all numbers by one epsilon"
    ),
    "differences": CheckKind(
        "along a random direction, for each input and order, the error falls with the square of the step down to "
        "rounding, and below 1e-7. The same holds at a second point, where results cached by an earlier call are "
        "wrong. The rows `elements` compare up to 200 elements of each input one by one (fewer if it has more than "
        "10,000) and the others in 40 groups, so that large correct elements do not hide a small wrong one",
        each=True,
    ),
    "adjoint": CheckKind(
        "the derivative of the gradient with respect to its cotangent agrees with the gradient. Third derivatives in "
        "cotangents, directions and inputs agree with second derivatives, and third derivatives in inputs agree with "
        "each other",
        lowest=2,
        each=True,
    ),
    "symmetry": CheckKind(
        "second derivatives are symmetric, and third derivatives are equal in all six orders of three directions",
        "u J v with v J u, where J is the Jacobian of the forces, from differences of forces",
        lowest=2,
        each=True,
    ),
}
FUNCTION_CHECKS = {name: kind.function for name, kind in CHECK_KINDS.items() if kind.function}
CALCULATOR_CHECKS = {name: kind.calculator for name, kind in CHECK_KINDS.items() if kind.calculator}
