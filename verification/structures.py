"""Molecules, slabs and crystals as inputs of the DimeNet++ family: files, periodic graphs, and a small model.

The default run reads the shipped structures with NumPy; other files require ASE.
"""

import math
import os
import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from slopecheck.structures import read_atoms
from trigraph.backends import get_backend_function
from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.table import Definition

FOLDER = Path(__file__).parent / "data" / "structures"
SHIPPED = {"benzene": "benzene", "ethanol": "ethanol", "copper slab with CO": "copper_co", "rock salt": "rock_salt"}
# Attributes of the radial basis and the sum as in DimeNet++, with the exclusion rule for periodic systems.
BASIS: dict[str, Any] = {"num_spherical": 7, "envelope_exponent": 5}
SUM: dict[str, Any] = {"num_spherical": 7, "num_radial": 6, "exclude": "edge"}
WIDTH, MID_WIDTH = 3, 2  # n_emb and n_mid; small because the judge is slow
# Largest numbers of triplets in the patch that is compared with the judge, and in the input for differences and
# physics, for which pyref stores arrays over all triplets.
PATCH_TRIPLETS, WHOLE_TRIPLETS = 1500, 10_000
# Peak memory in bytes per edge while neighbours are found and sorted (measured: 253).
BYTES_PER_EDGE = 256


@dataclass(frozen=True)
class AtomicStructure:
    """Atoms, and their neighbours within a cutoff."""

    name: str
    positions: np.ndarray  # (num_nodes, 3)
    cell: np.ndarray  # (3, 3)
    cutoff: float  # in the unit of the positions
    src: np.ndarray  # int64, (num_edges,); edges are sorted by source
    dst: np.ndarray
    shifts: np.ndarray  # int64, (num_edges, 3): number of cells that each edge crosses
    note: str = ""  # description of what was excluded

    # Cached properties depend only on fields, which never change.

    @cached_property
    def graph(self) -> EdgeGraph:
        """Graph of the structure; the shifts determine the reverse edges."""
        return EdgeGraph(self.src, self.dst, len(self.positions), shifts=self.shifts)

    @cached_property
    def offset(self) -> np.ndarray:
        """``shifts @ cell``, with exactly opposite offsets for opposite shifts."""
        s = self.shifts
        return np.asarray(s[:, :1] * self.cell[0] + s[:, 1:2] * self.cell[1] + s[:, 2:] * self.cell[2])

    @property
    def vec(self) -> np.ndarray:
        """Vectors of the edges."""
        return np.asarray(self.positions[self.src] - self.positions[self.dst] + self.offset)

    def limit_triplets(self, triplets: int) -> "AtomicStructure":
        """Return a part with at most the given number of triplets, including triplets that sums exclude.

        Edges are added by the distance of their farther atom from the center, then by length. All atoms are kept.
        """
        if _count_triplets(self.src, self.dst) <= triplets:
            return self
        middle = np.linalg.norm(self.positions - self.positions.mean(axis=0), axis=1)
        rank = np.argsort(np.argsort(middle, kind="stable"), kind="stable")
        length = np.linalg.norm(self.vec, axis=1)
        order = np.lexsort((length, np.maximum(rank[self.src], rank[self.dst])))
        few, many = 0, len(order)
        while many - few > 1:
            half = (few + many) // 2
            fits = _count_triplets(self.src[order[:half]], self.dst[order[:half]]) <= triplets
            few, many = (half, many) if fits else (few, half)
        keep = np.sort(order[:few])
        note = f"{few} of {len(order)} edges, with at most {triplets} triplets around the middle"
        return replace(self, src=self.src[keep], dst=self.dst[keep], shifts=self.shifts[keep], note=note)

    def make_arguments(self, definition: Definition, patch: bool, keep: np.ndarray | None) -> dict[str, Any]:
        """Return arguments of fwd (`RealInput.values`): DimeNet++'s frequencies, random embeddings and weights."""
        some = self.limit_triplets(PATCH_TRIPLETS if patch else WHOLE_TRIPLETS)
        drawn = make_interaction_model(some)
        dist = np.linalg.norm(some.vec, axis=1) / some.cutoff
        if definition.name == "radial_basis":
            return {"dist": dist if keep is None else dist[keep], "freq": drawn.freq, **BASIS}
        basis = get_backend_function("pyref", "radial_basis_fwd")(dist, drawn.freq, **BASIS)
        embedding = drawn.embedding * (basis.rbf @ drawn.projection)
        arrays = {"vec": some.vec, "sbf_rad": basis.sbf_rad, "embedding": embedding, "weights": drawn.weights}
        return {**arrays, "graph": some.graph, **SUM}

    def describe(self) -> str:
        """Describe the structure, and the parts that are compared with the judge or used in other checks."""

        def describe_part(triplets: int) -> str:
            edges = len(self.limit_triplets(triplets).src)
            share = f"{100 * edges / len(self.src):.2g} percent; at most {triplets} triplets around the middle"
            return f"{edges} edges ({share})" if edges < len(self.src) else "all edges"

        return (
            f"Structure {self.name}: {len(self.positions)} atoms, {len(self.src)} edges within {self.cutoff:g}, "
            f"{_count_triplets(self.src, self.dst)} triplets. The judge checks {describe_part(PATCH_TRIPLETS)}; "
            f"differences, forces and invariances use {describe_part(WHOLE_TRIPLETS)}."
        )

    def describe_exclusions(self, patch: bool) -> str:
        """Describe what the patch or the whole input excludes."""
        return self.limit_triplets(PATCH_TRIPLETS if patch else WHOLE_TRIPLETS).note


def _count_triplets(src: np.ndarray, dst: np.ndarray) -> int:
    size = int(max(src.max(initial=-1), dst.max(initial=-1))) + 1
    return int(np.bincount(dst, minlength=size)[src].sum())


@dataclass(frozen=True)
class InteractionModel:
    """Parameters of an interaction block that sums over the embeddings `embedding`_e * (rbf_e @ `projection`).

    Shapes: `freq` (R,), `embedding` (num_edges, C), `projection` (R, C), `weights` (S*R + C, M). `readout` (num_edges,
    C) contains the weight of each element of the result in the energy.
    """

    freq: np.ndarray
    embedding: np.ndarray
    projection: np.ndarray
    weights: np.ndarray
    readout: np.ndarray


def draw_normal_numbers(name: str, *shape: int) -> np.ndarray:
    """Draw standard normal numbers with a seed derived from a name."""
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)


def make_interaction_model(structure: AtomicStructure) -> InteractionModel:
    """Return a model for a structure, with DimeNet++'s initial frequencies and random other parameters."""
    radial, rows, edges = SUM["num_radial"], SUM["num_spherical"] * SUM["num_radial"], len(structure.src)
    return InteractionModel(
        freq=np.pi * np.arange(1, radial + 1),
        embedding=draw_normal_numbers(f"{structure.name} embedding", edges, WIDTH),
        projection=draw_normal_numbers(f"{structure.name} projection", radial, WIDTH) / np.sqrt(radial),
        weights=draw_normal_numbers(f"{structure.name} weights", rows + WIDTH, MID_WIDTH) / np.sqrt(MID_WIDTH),
        readout=draw_normal_numbers(f"{structure.name} readout", edges, WIDTH),
    )


def load_shipped_structures() -> tuple[AtomicStructure, ...]:
    """Return the structures of the default run."""
    structures = []
    for name, file in SHIPPED.items():
        with np.load(FOLDER / f"{file}.npz") as z:
            neighbours = (z[key].astype(np.int64) for key in ("src", "dst", "shifts"))
            structures.append(AtomicStructure(name, z["positions"], z["cell"], float(z["cutoff"]), *neighbours))
    return tuple(structures)


def _estimate_num_edges(atoms: Any, cutoff: float) -> float:
    """Return the number of edges, which is exact without periodic directions and otherwise estimated.

    The mean number of images of a pair within the cutoff is the volume of such a ball divided by the cell volume.
    """
    periodic = np.asarray(atoms.cell)[np.asarray(atoms.pbc)]
    number, size = len(periodic), float(np.linalg.det(periodic @ periodic.T)) ** 0.5
    if number == 0:
        tree = cKDTree(atoms.positions)
        return float(tree.count_neighbors(tree, cutoff) - len(atoms))
    ball = math.pi ** (number / 2) / math.gamma(number / 2 + 1) * math.pow(cutoff, number)
    return len(atoms) ** 2 * ball / size if size else 0.0  # cells without volume raise an error elsewhere


def make_structure(name: str, atoms: Any, cutoff: float) -> AtomicStructure:
    """Find the neighbours of an ``ase.Atoms``.

    Raises ValueError if two atoms coincide, no two are closer than `cutoff`, a periodic direction has no cell vector,
    or there is not enough memory for the edges.
    """
    edges, memory = _estimate_num_edges(atoms, cutoff), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not edges * BYTES_PER_EDGE <= memory:
        raise ValueError(
            f"verify: structure {name}: about {edges:.2g} edges within {cutoff:g} need {edges * BYTES_PER_EDGE:.2g} "
            f"bytes; this machine has {memory:.2g}"
        )
    neighbors = EdgeGraph.from_ase(atoms, cutoff)
    if neighbors.graph.num_edges == 0:
        raise ValueError(f"verify: structure {name}: no two of its {len(atoms)} atoms are closer than {cutoff:g}")
    cell = np.asarray(atoms.cell, np.float64)
    graph = neighbors.graph
    return AtomicStructure(name, atoms.positions.copy(), cell, cutoff, graph.src, graph.dst, neighbors.shifts)


def read_structure(name: str | Path, cutoff: float) -> AtomicStructure:
    """Read a structure file, or a frame of a trajectory, with `read_atoms`; `cutoff` is in the file's unit of length.

    Raises ValueError if ASE is not installed, the file cannot be read, or the atoms do not form a valid graph.
    """
    atoms, own = read_atoms(name), Path(name).name
    try:
        return make_structure(own, atoms, cutoff)
    except ValueError as error:
        text = str(error).removeprefix("EdgeGraph: ").removeprefix(f"verify: structure {own}: ")
        raise ValueError(f"verify: structure {name}: {text}") from error
