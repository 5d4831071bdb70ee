"""A rank of test_distributed_torch.py: training steps of DimeNet++ and of attention, beside one process without MPI.

The last line of rank 0 is a digest of energies, forces, gradients and trained parameters.
"""

import hashlib

import numpy as np
import torch
from ase import Atom
from ase.build import fcc111
from mpi4py import MPI
from torch.nn import functional as F

import trigraph.torch
from trigraph import CSC, EdgeGraph, distributed
from trigraph.distributed import nn
from trigraph.distributed import torch as divided
from trigraph.distributed.kinds import CSCKind, EdgesKind, RowsKind
from trigraph.torch.nn import DimeNetPlusPlus

COMM = MPI.COMM_WORLD
FOUND = hashlib.sha256()
# Both add the same float64 terms in another order, through a dozen layers of sums of at most some thousand terms.
CLOSE = 1e-9


def close(found, expected):
    error = (found - expected).abs().max() / expected.abs().max()
    assert error <= CLOSE, error


def whole(part, tensor, symbol):
    return torch.from_numpy(part.collect(tensor.detach().numpy(), symbol))


def keep(*tensors):
    for tensor in tensors:
        FOUND.update(tensor.detach().numpy().tobytes())


def dimenet(dtype):
    """Forces of a slab with periodic images, and a step that fits them."""
    atoms = fcc111("Cu", (2, 3, 3), a=3.6, vacuum=6.0)
    atoms.rattle(0.1, seed=1)
    atoms.append(Atom("Cu", [0, 0, -20]))  # without neighbours
    atoms.numbers[::4] = 79
    torch.manual_seed(0)
    sizes = (16, 1, 2, 8, 4, 16, 3, 3)
    model = nn.DimeNetPlusPlus(*sizes, cutoff=4.0, output_initializer="glorot_orthogonal").to(dtype)
    graph, _, offset, _ = EdgeGraph.from_ase(atoms, 4.0)
    neighbors = nn.DividedNeighbors.divide(
        graph, offset, COMM, distributed.owners.bisection(atoms.positions, COMM.size)
    )
    z, pos = torch.from_numpy(atoms.numbers), torch.from_numpy(atoms.positions).to(dtype)
    mine = torch.from_numpy(neighbors.into.owned["num_dst_nodes"])
    energy, forces = model.energy_forces(z[mine], pos[mine], neighbors, create_graph=True)
    rows = neighbors.into.rows("num_dst_nodes")
    loss = energy**2 + divided.total(forces.square().sum(1), rows)
    loss.backward()
    parameters = list(model.parameters())
    all_forces = whole(neighbors.into, forces, "num_dst_nodes")
    assert not all_forces[-1].any()
    assert not torch.signbit(all_forces[-1]).any()
    keep(energy, all_forces, *(p.grad for p in parameters))
    reference = DimeNetPlusPlus(*sizes, cutoff=4.0).to(dtype)
    reference.load_state_dict(model.state_dict())
    cell = torch.from_numpy(np.array(atoms.cell)).to(dtype)
    expected = reference.energy_forces_stress(z, pos, cell=cell, pbc=list(atoms.pbc), create_graph=True)
    (expected.energy[0] ** 2 + expected.forces.square().sum()).backward()
    if dtype == torch.float64:
        close(energy, expected.energy[0])
        close(all_forces, expected.forces)
        for own, other in zip(parameters, reference.parameters(), strict=True):
            close(own.grad, other.grad)
    torch.optim.Adam(parameters, 1e-3).step()
    keep(*parameters)


def attention(dtype):
    """Two layers of attention, a step that fits them to numbers of the nodes."""
    rng, nodes, edges, heads = np.random.default_rng(0), 600, 4000, 2
    graph = CSC.from_edge_index(rng.integers(0, nodes, (2, edges)))
    part = distributed.partition(graph, COMM, distributed.owners.metis(graph, COMM.size))
    rows = part.rows("num_dst_nodes")
    generator = torch.Generator().manual_seed(1)
    shapes = [(8, 5), (8,), (16,), (6, 8), (6,), (12,)]
    parameters = [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]
    copies = [p.detach().clone().requires_grad_() for p in parameters]
    x, y = (torch.randn(nodes, width, generator=generator, dtype=dtype) for width in (5, 6))
    mine = torch.from_numpy(part.owned["num_dst_nodes"])

    def model(x, parameters, linear, layer, graph, act):
        first, first_bias, at, second, second_bias, at_second = parameters
        x = linear(x, first, first_bias)
        x = act(layer(x, x, at, graph, heads).output_embedding)
        x = linear(x, second, second_bias)
        return layer(x, x, at_second, graph, heads).output_embedding

    out = model(
        x[mine],
        parameters,
        lambda *args: divided.linear(*args, rows),
        divided.mha_gat_n2n,
        part,
        lambda x: divided.rowwise(F.elu, x),
    )
    loss = divided.total((out - y[mine]).square().sum(1), rows)
    loss.backward()
    expected = (model(x, copies, F.linear, trigraph.torch.mha_gat_n2n, graph, F.elu) - y).square().sum()
    expected.backward()
    keep(loss, whole(part, out, "num_dst_nodes"), *(p.grad for p in parameters))
    if dtype == torch.float64:
        close(loss, expected)
        for own, other in zip(parameters, copies, strict=True):
            close(own.grad, other.grad)
    torch.optim.SGD(parameters, 1e-3).step()
    keep(*parameters)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for sums in (CSCKind, EdgesKind, RowsKind):
        sums.chunk = 50  # so that there are several
    for kind in (torch.float32, torch.float64):
        attention(kind)
        dimenet(kind)
    if COMM.rank == 0:
        print(FOUND.hexdigest())
