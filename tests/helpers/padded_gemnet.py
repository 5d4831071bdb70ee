"""Golden vectors and random cases for the tests of GemNet-OC's padded interface."""

import numpy as np
import pytest

from trigraph.benchmarks.gemnet import numbered
from trigraph.verification import golden

VECTORS = ("gemnet_triplet", "gemnet_quadruplet_49", "gemnet_edge_to_atom")
EDGES, ATOMS, RADIAL, SPHERICAL, INTERM, EMB_IN, EMB_OUT = 9, 5, 4, 3, 2, 6, 7


def vectors(name):
    if name not in golden.files():
        assert not golden.check_missing()
        pytest.skip(f"golden vectors {name}.npz are not on this machine")
    with np.load(golden.files()[name]) as archive:
        return dict(archive)


class Padded:
    """A case with unordered triplets, and with edges and atoms without any."""

    def __init__(self, dtype=np.float64, index=np.int64):
        rng = np.random.default_rng(0)
        self.outer = rng.integers(1, EDGES, 23).astype(index)
        self.inner = numbered(self.outer).astype(index)
        self.atom = rng.integers(0, ATOMS - 1, EDGES).astype(index)
        self.number = numbered(self.atom).astype(index)
        shapes = {
            "weight": (RADIAL, SPHERICAL, INTERM),
            "radial": (INTERM, RADIAL),
            "rad_basis": (EDGES, RADIAL),
            "sph_basis": (23, SPHERICAL),
            "m": (23, EMB_IN),
            "dense": (EMB_OUT, INTERM * EMB_IN),
        }
        for name, shape in shapes.items():
            setattr(self, name, rng.standard_normal(shape).astype(dtype))

    @property
    def lists(self):
        return {"idx_sph_outer": self.outer, "idx_sph_inner": self.inner}

    @property
    def atoms(self):
        return {"idx_rad_outer": self.atom, "idx_rad_inner": self.number, "num_atoms": ATOMS}
