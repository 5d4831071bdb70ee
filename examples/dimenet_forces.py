"""Forces on a crystal by the operators of DimeNet++: energy, its gradient in the vectors of the edges, then in atoms.

One interaction block with random parameters gives the energy of slightly displaced rock salt, with periodic images;
forces are exact derivatives, and a central difference of the energy shows it. Needs ase: pip install 'trigraph[ase]'.
"""

import numpy as np
from ase.build import bulk

import trigraph

CUTOFF, N_RADIAL, N_SPHERICAL, WIDTH, MIDDLE = 5.0, 6, 7, 8, 4  # angstrom; sizes of the model
rng = np.random.default_rng(0)

atoms = bulk("NaCl", "rocksalt", a=5.64)
atoms.rattle(0.1, seed=0)
edges = trigraph.EdgeGraph.from_ase(atoms, CUTOFF)
graph = edges.graph
freq = np.pi * np.arange(1.0, N_RADIAL + 1)
features = rng.standard_normal((graph.num_edges, WIDTH))
projection = rng.standard_normal((N_RADIAL, WIDTH))
weights = 0.3 * rng.standard_normal((N_SPHERICAL * N_RADIAL + WIDTH, MIDDLE))
readout = rng.standard_normal((graph.num_edges, WIDTH))


def energy_and_forces(positions):
    """Energy = sum of readout * out, and minus its gradient in the positions."""
    vec = positions[graph.src] - positions[graph.dst] + edges.offset
    length = np.linalg.norm(vec, axis=1)
    basis = trigraph.radial_basis_fwd(length / CUTOFF, freq, N_SPHERICAL)
    embedding = features * (basis.rbf @ projection)
    # The rule for periodic systems: an edge leaves out its very reverse, not every image of the atom it goes to.
    arrays = (vec, basis.sbf_rad, embedding, weights, graph, N_SPHERICAL, N_RADIAL, "edge")
    energy = np.sum(readout * trigraph.agg_edge_to_edge_fwd(*arrays))

    # Backwards: `vec` of the sum is the angular part, `sbf_rad` and `embedding` go on through the distance.
    grads = trigraph.agg_edge_to_edge_bwd(readout, *arrays, wrt=("vec", "sbf_rad", "embedding"))
    grad_rbf = (grads.embedding * features) @ projection.T
    radial = trigraph.radial_basis_bwd(grad_rbf, grads.sbf_rad, length / CUTOFF, freq, N_SPHERICAL, wrt="dist")
    grad_vec = grads.vec + (radial.dist / (CUTOFF * length))[:, None] * vec
    forces = np.zeros_like(positions)
    np.add.at(forces, graph.src, -grad_vec)
    np.add.at(forces, graph.dst, grad_vec)
    return energy, forces


energy, forces = energy_and_forces(atoms.positions)
direction, step = rng.standard_normal(forces.shape), 1e-5
after, before = (energy_and_forces(atoms.positions + h * direction)[0] for h in (step, -step))
difference = -(after - before) / (2 * step)
error = abs(difference - np.sum(forces * direction)) / abs(difference)
print(f"{graph.num_edges} edges, {graph.num_triplets('edge')} triplets; energy {energy:.3f}")
print(f"forces against a central difference: relative error {error:.1e}")
print(f"sum of forces: {np.abs(forces.sum(axis=0)).max():.1e}")
assert error < 1e-7
assert np.abs(forces.sum(axis=0)).max() < 1e-10 * np.abs(forces).max()
