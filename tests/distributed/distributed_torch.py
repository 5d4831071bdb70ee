"""Checks for test_distributed.py: derivatives in torch, a training step compared with one process, the example."""

import contextlib
import hashlib
import importlib.util
import io
import re
from pathlib import Path

import distributed_errors as errors
import numpy as np
import pytest
import torch
from ase import Atom
from ase.build import fcc111
from distributed_operators import override_chunk_size
from mpi4py import MPI
from torch.autograd import forward_ad

import trigraph.torch
from trigraph import EdgeGraph, distributed
from trigraph.distributed import nn
from trigraph.distributed import torch as divided
from trigraph.torch.nn import DimeNetPlusPlus

CUTOFF = 3.0  # Å; includes two images of an atom, but few neighbours, because triplets take time
EXAMPLE = Path(__file__).parents[2] / "examples" / "divided_forces.py"
# Ranks and one process add the same float64 terms in different orders, in a dozen sums of up to thousands of terms.
TOLERANCE = 1e-9


def assert_close(got, expected):
    error = (got - expected).abs().max() / expected.abs().max()
    assert error <= TOLERANCE, error


def collect_tensor(part, tensor, symbol):
    return torch.from_numpy(part.collect(tensor.detach().numpy(), symbol))


def digest_tensors(*tensors):
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()


def compare_and_digest_dimenet_step(comm):
    """Compare a training step of DimeNet++ for a periodic slab with an undivided model; return a digest."""
    atoms = fcc111("Cu", (2, 3, 3), a=3.6, vacuum=6.0)
    atoms.rattle(0.1, seed=1)
    atoms.append(Atom("Cu", [0, 0, -20]))  # an isolated atom
    atoms.numbers[::4] = 79
    torch.manual_seed(0)
    sizes = (16, 1, 2, 8, 4, 16, 3, 3)
    model = nn.DimeNetPlusPlus(*sizes, cutoff=CUTOFF, output_initializer="glorot_orthogonal").double()
    graph, _, offset, _ = EdgeGraph.from_ase(atoms, CUTOFF)
    neighbors = nn.DividedNeighbors.divide(
        graph, offset, comm, distributed.owners.bisection(atoms.positions, comm.size)
    )
    with pytest.warns(DeprecationWarning, match="use DividedNeighbors.add_ends"):
        assert neighbors.of_ends == neighbors.add_ends
    z, pos = torch.from_numpy(atoms.numbers), torch.from_numpy(atoms.positions).double()
    own_atoms = torch.tensor(neighbors.into.owned["num_dst_nodes"])
    energy, forces = model.energy_forces(z[own_atoms], pos[own_atoms], neighbors, create_graph=True)
    rows = neighbors.into.get_row_partition("num_dst_nodes")
    loss = energy**2 + divided.total(forces.square().sum(1), rows)
    loss.backward()
    parameters = list(model.parameters())
    all_forces = collect_tensor(neighbors.into, forces, "num_dst_nodes")
    assert not all_forces[-1].any()
    assert not torch.signbit(all_forces[-1]).any()
    results = [energy, all_forces, *(p.grad.clone() for p in parameters)]
    reference = DimeNetPlusPlus(*sizes, cutoff=CUTOFF).double()
    reference.load_state_dict(model.state_dict())
    cell = torch.from_numpy(np.array(atoms.cell)).double()
    expected = reference.energy_forces_stress(z, pos, cell=cell, pbc=list(atoms.pbc), create_graph=True)
    (expected.energy[0] ** 2 + expected.forces.square().sum()).backward()
    assert_close(energy, expected.energy[0])
    assert_close(all_forces, expected.forces)
    for own, other in zip(parameters, reference.parameters(), strict=True):
        assert_close(own.grad, other.grad)
    torch.optim.Adam(parameters, 1e-3).step()
    return digest_tensors(*results, *parameters)


def dimenet_equals_one_process():
    with override_chunk_size(50):  # splits sums into several chunks
        assert compare_and_digest_dimenet_step(MPI.COMM_WORLD) == compare_and_digest_dimenet_step(MPI.COMM_SELF)


def example_is_independent_of_ranks():
    """The example prints the same numbers for any number of ranks, and its error decreases."""
    spec = importlib.util.spec_from_file_location("divided_forces", EXAMPLE)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    program.CUTOFF = CUTOFF
    printed = []
    for program.COMM in (MPI.COMM_SELF, MPI.COMM_WORLD):
        with contextlib.redirect_stdout(io.StringIO()) as lines:
            program.main(["--steps", "5"], standalone_mode=False)
        printed.append(lines.getvalue())
    assert printed[1] == (printed[0] if MPI.COMM_WORLD.rank == 0 else "")
    first, last = (float(error) for error in re.findall(r"force (\S+)", printed[0]))
    assert last < 0.9 * first


def differentiates_at_most_twice():
    """First and second derivatives over all ranks work; third derivatives and forward mode raise errors."""
    rows = errors.SHARED_PARTITION.get_row_partition("num_src_nodes")
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    x = torch.from_numpy(errors.OWN_ROWS.copy()).requires_grad_()
    energy = scale * divided.total((x**2).sum(1), rows)
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    divided.total((force**2).sum(1), rows).backward()
    assert abs(scale.grad.item() / (8 * 3.0 * (errors.ROWS**2).sum()) - 1) < 1e-12
    weights = torch.ones(8, dtype=torch.float64)
    x = torch.from_numpy(errors.OWN_ROWS.copy()).requires_grad_()
    out = divided.mha_gat_n2n(x, x, weights, errors.SHARED_PARTITION, 1).output_embedding
    for _ in range(2):
        (out,) = torch.autograd.grad((out**2).sum(), x, create_graph=True)
    errors.assert_error_on_all_ranks(
        "RuntimeError: mha_gat_n2n_bwd2: a third derivative was requested", out.sum().backward
    )
    with forward_ad.dual_level():
        for result in (
            divided.mha_gat_n2n(x, x, weights, errors.SHARED_PARTITION, 1).output_embedding,
            divided.total(x, rows),
        ):
            dual = forward_ad.make_dual(result.detach(), result.detach())
            errors.assert_error_on_all_ranks(
                "trigraph.distributed.torch: forward mode", torch.autograd.grad, result, x, dual
            )
    dist = torch.full((errors.SHARED_PARTITION.owned["num_edges"].size,), 0.5, requires_grad=True)
    divided.radial_basis(dist, torch.ones(2), 2, partition=errors.SHARED_PARTITION).rbf.sum().backward()
    of_rbf, of_other = (np.full((len(dist), n), value, np.float32) for n, value in ((2, 1), (4, 0)))
    expected = trigraph.radial_basis_bwd(of_rbf, of_other, dist.detach().numpy(), np.ones(2, np.float32), 2)
    assert (dist.grad.numpy() == expected.dist).all()


def refuses_wrong_arguments_of_total():
    """Invalid arguments of `total` raise errors on all ranks."""
    x, rows = torch.from_numpy(errors.OWN_ROWS), errors.SHARED_PARTITION.get_row_partition("num_src_nodes")
    errors.assert_error_on_all_ranks("total: x is", divided.total, x[1:] if errors.LAST else x, rows)
    errors.assert_error_on_all_ranks(
        "expected the result of get_row_partition", divided.total, x, errors.SHARED_PARTITION
    )
    if MPI.COMM_WORLD.size > 1:
        errors.assert_error_on_all_ranks(
            "total: x is of torch.float64", divided.total, x.float() if errors.LAST else x, rows
        )
