"""Structures as inputs of the GemNet-OC family: triplets and quadruplets with periodic images.

The atoms determine the triplets. Bases, weights and embeddings are random, because operators are linear in each.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trigraph.backends import get_backend_function
from trigraph.graphs.edge_graph import Triplets
from trigraph.graphs.segments import Segments
from trigraph.table import Definition
from trigraph.verification.structures import AtomicStructure, draw_normal_numbers

CIRCULAR, SPHERICAL = 7, 49  # numbers of Legendre polynomials and spherical harmonics up to degree 6, as in GemNet-OC
RADIAL, INTERM, EMB_IN, EMB_OUT = 4, 3, 4, 5  # small because the judge is slow
NEAREST = 3.0  # angstrom; as in GemNet-OC, quadruplets use shorter edges than triplets


def _find_in_edges(structure: AtomicStructure, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for every edge into any of `nodes`, the index of the node in `nodes`, and the edge."""
    offsets, order = structure.graph.dst_offsets, structure.graph.dst_edge_index
    counts = (offsets[1:] - offsets[:-1])[nodes]
    place = np.repeat(np.arange(len(nodes)), counts)
    number = np.arange(len(place)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place, order[offsets[nodes][place] + number]


def find_triplets(structure: AtomicStructure) -> Triplets:
    """Return all pairs of edges j -> i and k -> j, where k may be an image of i but not i itself."""
    return structure.graph.triplets("edge")


def find_quadruplets(structure: AtomicStructure) -> Triplets:
    """Return all pairs of edges c -> a and d -> b with an edge b -> a; the four atoms differ, but may be images."""
    outer, middle = _find_in_edges(structure, structure.dst)
    outer, middle = outer[middle != outer], middle[middle != outer]
    place, inner = _find_in_edges(structure, structure.src[middle])
    outer, middle = outer[place], middle[place]
    src, shifts = structure.src, structure.shifts
    same = (src[inner] == src[outer]) & (shifts[middle] + shifts[inner] == shifts[outer]).all(axis=1)
    other = ~same & (inner != structure.graph.reverse_edge[middle])
    return Triplets(outer[other], inner[other])


@dataclass(frozen=True)
class TripletInput:
    """Input of the family's operators: a structure with a list of triplets or quadruplets.

    `lists` computes the list, `spherical` is the width of the basis, and edges are summed into atoms if `into_atoms`.
    `patch` and `whole` limit the number of triplets; only edges shorter than `reach` are used (None means all).
    """

    structure: AtomicStructure
    lists: Callable[[AtomicStructure], Triplets]
    spherical: int
    into_atoms: bool
    reach: float | None
    patch: int
    whole: int

    def select_structure_and_triplets(self, patch: bool) -> tuple[AtomicStructure, Triplets]:
        """Return the patch or the whole structure, and its list of triplets."""
        some = self.structure
        if self.reach is not None:
            near = np.linalg.norm(some.vec, axis=1) < self.reach
            some = replace(some, src=some.src[near], dst=some.dst[near], shifts=some.shifts[near])
        some = some.limit_triplets(self.patch if patch else self.whole)
        return some, self.lists(some)

    def make_arguments(self, definition: Definition, patch: bool, keep: np.ndarray | None) -> dict[str, Any]:
        """Return arguments of fwd (`RealInput.values`); `keep` is not used, because there are no kinks."""
        some, lists = self.select_structure_and_triplets(patch)
        edges = len(some.src)
        sph = draw_normal_numbers(f"{some.name} spherical basis", len(lists.outer), self.spherical)
        radial = definition.name == "basis_embedding_radial"
        shape = (INTERM, RADIAL) if radial else (RADIAL, self.spherical, INTERM)
        basis = {
            "rad_basis": draw_normal_numbers(f"{some.name} radial basis", edges, RADIAL),
            "weight": draw_normal_numbers(f"{some.name} embedding", *shape),
        }
        values = {**basis, "sph_basis": sph, "sph": sph, "triplets": Segments(lists.outer, edges)}
        if definition.name == "interaction_bilinear":
            values |= {
                "rad_W1": get_backend_function("pyref", "basis_embedding_spherical_fwd")(**basis),
                "m": draw_normal_numbers(f"{some.name} m", edges, EMB_IN),
                "weight": draw_normal_numbers(f"{some.name} bilinear", EMB_OUT, INTERM * EMB_IN),
                "atoms": Segments(some.dst, len(some.positions)) if self.into_atoms else None,
                "idx_in": Segments(lists.inner, edges),
            }
        return values

    def describe_exclusions(self, patch: bool) -> str:
        """Describe the number of triplets or quadruplets, and what the patch or the whole input excludes."""
        some, lists = self.select_structure_and_triplets(patch)
        return "; ".join(filter(None, (f"{len(lists.outer)} triplets or quadruplets", some.note)))


def list_triplet_inputs(structure: AtomicStructure) -> dict[str, TripletInput]:
    """Return the inputs of the family's operators for a structure, by name."""
    over_triplets = TripletInput(structure, find_triplets, CIRCULAR, False, None, 600, 10_000)
    return {
        f"{structure.name}, triplets": over_triplets,
        f"{structure.name}, triplets into atoms": replace(over_triplets, into_atoms=True),
        f"{structure.name}, quadruplets": TripletInput(
            structure, find_quadruplets, SPHERICAL, False, NEAREST, 100, 300
        ),
    }
