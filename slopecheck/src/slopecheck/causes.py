"""Guesses at the cause of wrong gradients, forces or stress.

A cause is guessed only if exactly one simple mistake explains the values of all compared components. Otherwise, the
text states the common factor of all components, if there is one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np

KNOWN = 1e-3  # largest relative uncertainty of a reported factor
CONSTANTS = 1e-4  # largest relative difference of physical constants between programs
CLEAR = 10.0  # a component is used to find a factor only if it exceeds its tolerance by this ratio
SHEARS = ("yz", "xz", "xy")


@dataclass(frozen=True)
class ComponentComparison:
    """Claimed components and the values from differences, with the tolerances of both."""

    given: np.ndarray
    differences: np.ndarray
    rounding: float
    allowed: np.ndarray

    def components_agree(self, given: np.ndarray, differences: np.ndarray, more: np.ndarray | float = 0.0) -> bool:
        """Return whether two arrays of components agree."""
        return bool((abs(given - differences) <= self.rounding + self.allowed + more).all())

    def select_components(self, which: slice | np.ndarray) -> "ComponentComparison":
        """Return a subset of the components."""
        return ComponentComparison(self.given[which], self.differences[which], self.rounding, self.allowed[which])

    def find_common_factor(self, least: int) -> tuple[float, float] | None:
        """Return the common factor of all components and its uncertainty.

        Return None if there is no common factor, if it is too uncertain, or if fewer than `least` components show it.
        """
        clear = abs(self.differences) > CLEAR * self.allowed
        if not np.count_nonzero(clear) >= least:
            return None
        best = int(np.argmax(np.where(clear, abs(self.differences) / self.allowed, 0.0)))
        size = abs(self.differences[best])
        factor = float(self.given[best] / self.differences[best])
        unsure = float((abs(factor) * self.allowed[best] + self.rounding) / size)
        bounds = abs(factor) * self.allowed + unsure * abs(self.differences)
        if not (
            unsure <= KNOWN * max(abs(factor), KNOWN)
            and self.components_agree(self.given, factor * self.differences, bounds)
        ):
            return None
        return factor, unsure


def _list_unit_mistake_factors(length: int) -> dict[str, float]:
    """Return the factors of common unit mistakes, by description, for a quantity in eV/Å^length."""
    from ase import units

    power = f"^{length}" * (length > 1)
    named = {"kcal/mol for eV": units.kcal / units.mol, "kJ/mol for eV": units.kJ / units.mol}
    named[f"1/Bohr{power} for 1/Å{power}"] = units.Bohr**-length
    for name, value in {"Hartree": units.Hartree, "Rydberg": units.Rydberg}.items():
        named |= {f"{name} for eV": value, f"{name}/Bohr{power} for eV/Å{power}": value / units.Bohr**length}
    if length == 3:
        named |= {"GPa for eV/Å^3": units.GPa, "kbar for eV/Å^3": units.GPa / 10, "bar for eV/Å^3": units.bar}
    return {f"units: {text}?": value for text, value in named.items()}


def _describe_factor(
    factor: float, unsure: float, exact: Mapping[str, float], units: Mapping[str, float], *found: str
) -> str:
    """Describe a common factor, and name its cause if exactly one fits; a factor of units may be inverted."""
    if abs(factor - 1) <= unsure:
        return ""
    size = abs(factor)
    causes = [*found, *(text for text, value in exact.items() if abs(size - value) <= unsure)]
    for text, value in units.items():
        causes += [text] * any(abs(size - f) <= unsure + CONSTANTS * f for f in (value, 1 / value))
    if abs(factor + 1) <= unsure:
        causes.append("the sign?")
    elif factor < 0:
        causes = [f"the sign, and {cause}" for cause in causes]
    text = f"every component is {factor:.6g} times what differences give"
    return f"{text}: {causes[0]}" if len(causes) == 1 else text


def _list_counting_mistake_factors(number: int) -> dict[str, float]:
    counts = {"each pair of atoms counted twice?": 2.0, "only one of the two atoms of each pair counted?": 0.5}
    per_atom = {"the number of atoms: an energy per atom?": number, "divided by the number of atoms?": 1 / number}
    return counts | (per_atom if number > 1 else {})


def guess_cause_in_forces(compared: ComponentComparison, forces: np.ndarray) -> str:
    """Guess the cause of wrong forces from the compared first atoms and all `forces`; return "" if none fits."""
    rows = compared.differences.reshape(-1, 3)
    bounds = compared.rounding + compared.allowed.reshape(-1, 3)
    found = [np.flatnonzero((abs(forces - row) <= bound).all(axis=1)) for row, bound in zip(rows, bounds, strict=True)]
    moved = [(a, int(p[0])) for a, p in enumerate(found) if len(p) == 1 and p[0] != a]
    order = len(moved) > 1 and all(len(p) == 1 for p in found)
    known = compared.find_common_factor(min(3, compared.given.size))
    if known is not None:
        return _describe_factor(
            *known,
            _list_counting_mistake_factors(len(forces)),
            _list_unit_mistake_factors(1),
            *["another order of atoms?"] * order,
        )
    if order:
        return f"the force on atom {moved[0][0]} is in the row of atom {moved[0][1]}: another order of atoms?"
    return ""


def guess_cause_in_gradient(compared: ComponentComparison, transposed: np.ndarray | None) -> str:
    """Guess the cause of a wrong gradient from its elements and from its transpose; return "" if none fits."""
    clear = abs(compared.differences) > CLEAR * compared.allowed
    if clear.any() and not compared.given.any():
        return "every element is zero: detached, or computed without a graph?"
    known = compared.find_common_factor(min(2, compared.given.size))
    if known is not None:
        return _describe_factor(*known, {"a factor of two?": 2.0, "a factor of one half?": 0.5}, {})
    if transposed is not None and compared.components_agree(transposed, compared.differences):
        return "the transpose of the gradient agrees: transposed?"
    return ""


def guess_cause_in_stress(compared: ComponentComparison, number: int, volume: float) -> str:
    """Guess the cause of a wrong stress from its components in Voigt order; return "" if none fits."""
    exact = {"not divided by the volume?": volume, "divided by the volume twice?": 1 / volume}
    known = compared.find_common_factor(3)
    if known is not None:
        return _describe_factor(*known, exact | _list_counting_mistake_factors(number), _list_unit_mistake_factors(3))
    normal, shear = compared.select_components(slice(3)), compared.select_components(slice(3, 6))
    wrong = np.flatnonzero(~(abs(compared.given - compared.differences) <= compared.rounding + compared.allowed))
    found, alone = [], compared.select_components(wrong).find_common_factor(1) if len(wrong) == 1 else None
    if normal.components_agree(normal.given, normal.differences):
        factor, unsure = shear.find_common_factor(2) or (1.0, 0.0)
        texts = {2.0: "twice what differences give: Voigt factor?", 0.5: "half what differences give: Voigt factor?"}
        texts[-1.0] = "the negative of what differences give?"
        found += [f"the shear is {text}" for value, text in texts.items() if abs(factor - value) <= unsure]
        found += [
            f"the shear is in the order {', '.join(SHEARS[i] for i in order)}; expected {', '.join(SHEARS)}?"
            for order in list(permutations(range(3)))[1:]
            if shear.components_agree(shear.given, shear.differences[[*order]], shear.allowed[[*order]])
        ]
    if alone and abs(alone[0] + 1) <= alone[1]:
        found.append("this component alone has the other sign?")
    return found[0] if len(found) == 1 else ""
