"""Structures as input of the GemNet-OC family: triplets and quadruplets with periodic images, their bases and sums.

Angles are those of the atoms; radial basis, weights and embeddings are synthetic.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import eval_legendre, factorial, lpmv

from trigraph.graphs.segments import Segments
from trigraph.panels import panel_function
from trigraph.table import Definition
from trigraph.verification.structures import Structure, numbers

CIRCULAR, SPHERICAL = 7, 49  # Legendre polynomials; spherical harmonics up to degree 6, as in GemNet-OC
RADIAL, INTERM, EMB_IN, EMB_OUT = 4, 3, 4, 5  # small because the judge is slow
NEAREST = 3.0  # angstrom: edges of quadruplets, as in GemNet-OC shorter than those of triplets


@dataclass(frozen=True)
class Lists:
    """Lists of triplets or quadruplets; arrays have one entry for each."""

    structure: Structure  # structure with their edges
    outer: np.ndarray  # edge that a triplet or quadruplet is summed into
    inner: np.ndarray  # edge whose embedding it reads
    angle: np.ndarray  # cosine of the angle between edges
    dihedral: np.ndarray  # angle between planes, for quadruplets; 0 if three atoms are collinear


def _in_edges(structure: Structure, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the position in `nodes` and the edge, for every edge into each node."""
    offsets, order = structure.graph.dst_offsets, structure.graph.dst_edge_index
    counts = (offsets[1:] - offsets[:-1])[nodes]
    place = np.repeat(np.arange(len(nodes)), counts)
    number = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place, order[offsets[nodes][place] + number]


def _unit(structure: Structure) -> np.ndarray:
    return np.asarray(structure.vec / np.linalg.norm(structure.vec, axis=1, keepdims=True))


def triplets(structure: Structure) -> Lists:
    """Return every edge j -> i with every edge k -> j whose atom k differs from i; it may be an image of i."""
    outer, inner = _in_edges(structure, structure.src)
    other = inner != structure.graph.reverse_edge[outer]
    outer, inner = outer[other], inner[other]
    u = _unit(structure)
    cosine = -np.sum(u[outer] * u[inner], axis=1)  # at j, where the vector of j -> i ends
    return Lists(structure, outer, inner, np.clip(cosine, -1, 1), np.zeros(len(outer)))


def quadruplets(structure: Structure) -> Lists:
    """Return every edge c -> a with all b -> a and d -> b; the four atoms differ, but may be images of one another."""
    outer, middle = _in_edges(structure, structure.dst)
    outer, middle = outer[middle != outer], middle[middle != outer]
    place, inner = _in_edges(structure, structure.src[middle])
    outer, middle = outer[place], middle[place]
    src, shifts = structure.src, structure.shifts
    same = (src[inner] == src[outer]) & (shifts[middle] + shifts[inner] == shifts[outer]).all(axis=1)
    other = ~same & (inner != structure.graph.reverse_edge[middle])
    outer, middle, inner = outer[other], middle[other], inner[other]
    u = _unit(structure)
    c, axis, d = u[outer], u[middle], u[inner]
    first, second = np.cross(axis, c), np.cross(axis, d)
    sine = np.sum(axis * np.cross(first, second), axis=1)
    lines = np.minimum(*(np.linalg.norm(n, axis=1) for n in (first, second))) < 1e-6
    dihedral = np.where(lines, 0.0, np.arctan2(sine, np.sum(first * second, axis=1)))
    return Lists(structure, outer, inner, np.clip(np.sum(c * axis, axis=1), -1, 1), dihedral)


def circular_basis(lists: Lists) -> np.ndarray:
    """Return sqrt((2l+1)/4pi) P_l of the angle, (num_triplets, `CIRCULAR`)."""
    degrees = np.arange(CIRCULAR)
    return np.asarray(np.sqrt((2 * degrees + 1) / (4 * np.pi)) * eval_legendre(degrees, lists.angle[:, None]))


def spherical_basis(lists: Lists) -> np.ndarray:
    """Return the real orthonormal spherical harmonics of angle and dihedral, (num_quadruplets, `SPHERICAL`)."""
    columns = []
    for l in range(int(np.sqrt(SPHERICAL))):  # noqa: E741
        for m in range(-l, l + 1):
            size = np.sqrt((2 * l + 1) / (4 * np.pi) * factorial(l - abs(m)) / factorial(l + abs(m)))
            turns = np.cos(m * lists.dihedral) if m >= 0 else np.sin(-m * lists.dihedral)
            columns.append(size * (np.sqrt(2) if m else 1) * lpmv(abs(m), l, lists.angle) * turns)
    return np.stack(columns, axis=1)


def radial_basis(structure: Structure) -> np.ndarray:
    """Return Gaussians of the distance under a smooth envelope, (num_edges, `RADIAL`)."""
    x = np.linalg.norm(structure.vec, axis=1)[:, None] / structure.cutoff
    centers = np.linspace(0, 1, RADIAL)
    return np.asarray((1 - 21 * x**5 + 35 * x**6 - 15 * x**7) * np.exp(-((x - centers) ** 2) * RADIAL**2 / 2))


@dataclass(frozen=True)
class Sums:
    """Input of the family's operators from a structure: `lists`, `basis`, and whether edges are summed into atoms.

    `patch` and `whole` limit the number of triplets; only edges shorter than `reach` are used (None: all).
    """

    structure: Structure
    lists: Callable[[Structure], Lists]
    basis: Callable[[Lists], np.ndarray]
    into_atoms: bool
    reach: float | None
    patch: int
    whole: int

    def within(self, patch: bool) -> Lists:
        """Return the lists of the patch or of the whole."""
        some = self.structure
        if self.reach is not None:
            near = np.linalg.norm(some.vec, axis=1) < self.reach
            some = replace(some, src=some.src[near], dst=some.dst[near], shifts=some.shifts[near])
        return self.lists(some.within(self.patch if patch else self.whole))

    def values(self, definition: Definition, patch: bool, keep: np.ndarray | None) -> dict[str, Any]:
        """Arguments of fwd, see `RealInput.values`; without kinks, every edge is kept."""
        lists = self.within(patch)
        some, sph = lists.structure, self.basis(lists)
        edges, spherical = len(some.src), sph.shape[1]
        radial = definition.name == "basis_embedding_radial"
        shape = (INTERM, RADIAL) if radial else (RADIAL, spherical, INTERM)
        basis = {"rad_basis": radial_basis(some), "weight": numbers(f"{some.name} embedding", *shape)}
        known = {**basis, "sph_basis": sph, "sph": sph, "triplets": Segments(lists.outer, edges)}
        if definition.name == "interaction_bilinear":
            known |= {
                "rad_W1": panel_function("pyref", "basis_embedding_spherical_fwd")(**basis),
                "m": numbers(f"{some.name} m", edges, EMB_IN),
                "weight": numbers(f"{some.name} bilinear", EMB_OUT, INTERM * EMB_IN),
                "atoms": Segments(some.dst, len(some.positions)) if self.into_atoms else None,
                "idx_in": Segments(lists.inner, edges),
            }
        return known

    def remark(self, patch: bool) -> str:
        """Return the number of triplets or quadruplets, and what is left out of the patch or of the whole."""
        lists = self.within(patch)
        return "; ".join(filter(None, (f"{len(lists.outer)} triplets or quadruplets", lists.structure.note)))


def sums_over(structure: Structure) -> dict[str, Sums]:
    """Return the inputs of the family's operators from a structure, by name."""
    over_triplets = Sums(structure, triplets, circular_basis, False, None, 600, 10_000)
    return {
        f"{structure.name}, triplets": over_triplets,
        f"{structure.name}, triplets into atoms": replace(over_triplets, into_atoms=True),
        f"{structure.name}, quadruplets": Sums(structure, quadruplets, spherical_basis, False, NEAREST, 100, 300),
    }
