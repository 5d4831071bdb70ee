"""The single list of kinds of check, for functions and calculators, with the property that each tests."""

from collections.abc import Mapping
from typing import NamedTuple


class CheckKind(NamedTuple):
    """The property that a kind of check tests for a function and for a calculator; "" where it does not apply.

    For functions, `lowest` is the lowest order of derivatives with this check; `each`: every order from there has it.
    """

    function: str = ""
    calculator: str = ""
    lowest: int = 1
    each: bool = False


CHECK_KINDS: Mapping[str, CheckKind] = {
    "form": CheckKind(
        "a derivative of any order has the dtype, shape and device of its argument; no output has a wider dtype than "
        "all inputs, as from a float64 constant in a float32 function"
    ),
    "forces": CheckKind("", "forces with central differences of the energy, over a range of steps and by component"),
    "stress": CheckKind("", "stress with central differences of the energy under strain"),
    "net force": CheckKind("", "the sum of forces with zero"),
    "net torque": CheckKind("", "the torque of forces with zero, without a periodic cell"),
    "rotation": CheckKind("", "results before and after a rotation of atoms and cell"),
    "reflection": CheckKind("", "results before and after a reflection of atoms and cell"),
    "translation": CheckKind("", "results before and after a translation of all atoms"),
    "renumbering": CheckKind(
        "", "results before and after a permutation of the atoms, also of a crowd with many neighbours"
    ),
    "wrapping": CheckKind("", "results before and after moving atoms by lattice vectors"),
    "repetition": CheckKind("", "energy, forces and stress of a doubled cell with those of one"),
    "cutoff": CheckKind("", "energy and forces of two atoms on both sides of every distance of a scan (continuity)"),
    "scale": CheckKind(
        "",
        "the same for scans of the structure's scale and shear, a crowd's shear, and where pairs cross the cutoff",
    ),
    "line": CheckKind("", "energy and forces on both sides of angles of 0 and 180 degrees"),
    "lone atom": CheckKind("", "the force on an isolated atom with zero; its energy must be finite"),
    "two atoms": CheckKind("", "the forces of two atoms with the direction of their axis and the slope of the energy"),
    "far atoms": CheckKind("", "a structure and a distant atom with the sum of both"),
    "company": CheckKind("", "two distant copies of the structure with one (batch invariance)"),
    "unchanged": CheckKind(
        "a call changes none of its inputs (including integers), cotangents and directions",
        "the atoms before and after a call",
    ),
    "repeat": CheckKind(
        "39 calls give equal bits; a mistake in 3 calls of 10 is missed once in a million times",
        "bitwise equality of new calculators, and of another order of requests",
    ),
    "kept": CheckKind("no call writes to results of an earlier call", "results before and after later calls"),
    "history": CheckKind(
        "results have the same bits after calls with other inputs",
        "results after other structures, or moved atoms (in place, into the cutoff), with those of a new calculator",
    ),
    "constraints": CheckKind("", "results with and without a constraint on the atoms"),
    "copy": CheckKind("", "bitwise equality of a deep copy"),
    "pickle": CheckKind("", "bitwise equality of a pickled calculator"),
    "drift": CheckKind("", "the energy error of velocity-Verlet dynamics with four times that at half the time step"),
    "alone": CheckKind(
        "the derivative for one input is the same whether or not others are requested; derivatives of single outputs, "
        "and along single directions, add up (torch, JAX)"
    ),
    "threads": CheckKind("calls with 1, 2 or 3 threads give equal bits (torch)"),
    "layout": CheckKind(
        "inputs, cotangents and directions that are strided, offset, transposed, expanded or reversed give the same "
        "results as contiguous ones"
    ),
    "nan": CheckKind(
        "a NaN in an element does not reach outputs that do not depend on the element, as it does if a mask is "
        "multiplied",
        lowest=0,
    ),
    "float32": CheckKind(
        "results in float32 equal those in float64, up to 100 times the effect of changing all numbers by one epsilon"
    ),
    "differences": CheckKind(
        "along a direction, for each input and order: the error falls with the square of the step down to rounding, "
        "and below 1e-7; also at a second point, where results cached by an earlier call are wrong. Rows `elements` "
        "compare up to 200 elements of each input one by one, others in 40 groups, so that large correct elements do "
        "not hide a small wrong one; of more than 10,000, fewer are compared one by one",
        each=True,
    ),
    "adjoint": CheckKind(
        "the derivative of the gradient with respect to its cotangent agrees with the gradient; third derivatives for "
        "cotangents, directions and inputs agree with second ones, and those for inputs with each other",
        lowest=2,
        each=True,
    ),
    "symmetry": CheckKind(
        "second derivatives are symmetric, and third derivatives equal in all six orders of three directions",
        "u J v with v J u, by differences of forces (J: their Jacobian)",
        lowest=2,
        each=True,
    ),
}
FUNCTION_CHECKS = {name: kind.function for name, kind in CHECK_KINDS.items() if kind.function}
CALCULATOR_CHECKS = {name: kind.calculator for name, kind in CHECK_KINDS.items() if kind.calculator}
