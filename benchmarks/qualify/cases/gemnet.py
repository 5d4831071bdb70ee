"""Cases that reach every kernel of the GemNet-OC family, small enough for a sanitizer, compared with pyref."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

import trigraph.gpu as gpu
import trigraph.pyref as pyref
from trigraph import Segments
from trigraph.benchmarks.qualify.cases.comparison import close_fields
from trigraph.benchmarks.qualify.place import Device
from trigraph.gpu import sums

__all__ = ["run"]

# float, index, sorted, triplets of each edge, atoms, interm, num_spherical, emb_in, emb_out: an edge that is cut and
# edges without triplets; more than one block of units, and an atom that is cut; widths beyond one tile in each
# direction, which take blocks of 128 threads; usual widths, whose blocks have 64; widths of one.
CASES = {
    "hub": (np.float32, np.int32, False, [3, 0, 0, 300, 128, 0, 1], 3, 3, 2, 5, 20),
    "many": (np.float64, np.int64, False, [1, 0, 2] * 90, 4, 2, 1, 2, 1),
    "wide": (np.float32, np.int32, True, [3, 0, 20, 35], 2, 34, 49, 35, 2),
    "usual": (np.float64, np.int64, False, [5, 3, 18], 2, 16, 7, 33, 20),
    "narrow": (np.float64, np.int64, True, [1], 1, 1, 1, 1, 1),
}


def shuffled(rng: np.random.Generator, segments: Segments, is_sorted: bool) -> Segments:
    return segments if is_sorted else Segments(rng.permutation(segments.index), segments.num_segments)


def make(name: str) -> tuple[Any, ...]:
    """Segments and arguments by name; most edges are those of the first atom, and not every input row is used."""
    real, index, is_sorted, sizes, num_atoms, interm, spherical, emb_in, emb_out = CASES[name]
    rng = np.random.default_rng(3)
    edges, radial = len(sizes), 3
    triplets = shuffled(rng, Segments(np.repeat(np.arange(edges, dtype=index), sizes), edges), is_sorted)
    atom = np.maximum(np.arange(edges, dtype=index) - edges + num_atoms, 0).astype(index)
    atoms = shuffled(rng, Segments(atom, num_atoms + 1), is_sorted)
    count = triplets.num_members
    idx_in = Segments(rng.integers(0, count // 2 + 1, count).astype(index), count // 2 + 2)
    shapes = {
        "rad_basis": (edges, radial),
        "row_weight": (interm, radial),
        "basis_weight": (radial, spherical, interm),
        "sph": (count, spherical),
        "rows": (edges, interm),
        "rad_W1": (edges, interm, spherical),
        "rad_W1_t": (count, interm),
        "m": (count, emb_in),
        "m_in": (idx_in.num_segments, emb_in),
        "weight": (emb_out, interm * emb_in),
        "m_ca": (edges, emb_out),
        "m_ca_atoms": (atoms.num_segments, emb_out),
    }
    values = {key: rng.standard_normal(shape).astype(real) for key, shape in shapes.items()}
    values |= {f"gg_{key}": rng.standard_normal(shape).astype(real) for key, shape in shapes.items()}
    return triplets, atoms, idx_in, values


def results(panel: Any, triplets: Any, atoms: Any, idx_in: Any, v: dict[str, Any]) -> dict[str, Any]:
    """Every field of every operator."""
    found: dict[str, Any] = {}

    def orders(operator: str, label: str, g: str, factors: tuple[str, ...], *graph: Any) -> None:
        inputs, ggs = [v[f] for f in factors], [v[f"gg_{f}"] for f in factors]
        fwd, bwd, bwd2 = (getattr(panel, f"{operator}_{order}") for order in ("fwd", "bwd", "bwd2"))
        found[f"{label} fwd"] = (fwd(*inputs, *graph),)
        found[f"{label} bwd"] = bwd(v[g], *inputs, *graph)
        found[f"{label} bwd2"] = bwd2(*ggs, v[g], *inputs, *graph)
        for k, factor in enumerate(factors):
            only = [gg if i == k else None for i, gg in enumerate(ggs)]
            found[f"{label} bwd2 of {factor}"] = bwd2(*only, v[g], *inputs, *graph)

    orders("basis_embedding_radial", "radial", "rows", ("rad_basis", "row_weight"))
    orders("basis_embedding_spherical", "spherical", "rad_W1", ("rad_basis", "basis_weight"))
    orders("basis_embedding_triplets", "triplets", "rad_W1_t", ("rad_basis", "basis_weight", "sph"), triplets)
    for to_atoms in (False, True):
        for by_input in (False, True):
            graph = triplets, atoms if to_atoms else None, idx_in if by_input else None
            factors = ("rad_W1", "sph", "m_in" if by_input else "m", "weight")
            label = f"bilinear{' to atoms' if to_atoms else ''}{' by input' if by_input else ''}"
            orders("interaction_bilinear", label, "m_ca_atoms" if to_atoms else "m_ca", factors, *graph)
    return found


def run(place: Device) -> dict[str, np.ndarray]:
    """Compare all cases with the readable panel and return what the kernels gave."""
    collected: dict[str, np.ndarray] = {}
    with mock.patch.object(sums, "WORKSPACE", 1):  # blocks as small as they get
        for name in CASES:
            case = make(name)
            collected |= close_fields(name, place.hosted(results(gpu, *place.moved(case))), results(pyref, *case))
    return collected
