"""Tests that captured potentials agree with eager calls on the device: forces, Hessian products and training steps.

Rehearsals make the same padded calls on the CPU, without a capture.
"""

import copy

import numpy as np
import pytest
from neighbor_cases import CUTOFF, draw_structure_batch

from trigraph.benchmarks.models import SLAB, build_atoms, make_dimenet
from trigraph.torch import Capacity, compile_potential
from trigraph.torch.potentials.capacity_search import PaddedNeighborSearch
from trigraph.torch.potentials.padding import CheckedStructures, PaddedBuffers
from trigraph.torch.potentials.structures import find_neighbors
from trigraph.torch.potentials.training_step import PaddedStructures

WIDTHS = {name: value for name, value in SLAB.items() if name not in ("nx", "ny", "layers")}
SMALLER = {"hidden_channels": 32, "num_blocks": 1, "out_emb_channels": 48}
TOLERANCE = {"float32": 1e-4, "float64": 1e-11}  # tolerances by dtype, relative to the largest value


@pytest.fixture
def device_type(target):
    pytest.importorskip("ase")
    return "cpu" if target.rehearsal else "cuda"


@pytest.fixture(params=TOLERANCE)
def dimenet(request, target, device_type, torch):
    widths = WIDTHS | (SMALLER if target.rehearsal else {})
    return copy.deepcopy(make_dimenet("trigraph", request.param, **widths)).to(device_type)


def yield_batches(torch, model):
    """Yield call arguments: a large slab three times, a small slab twice, then batches of molecules."""
    like = next(model.parameters())
    large, small = (build_atoms("slab", SLAB | {"nx": n, "ny": n, "layers": 3})[0] for n in (3, 2))
    molecules = build_atoms("molecules", {"molecules": 12})
    for seed, several in enumerate(
        ([large], [large], [large], [small], [small], molecules[:4], molecules[4:8], molecules)
    ):
        rng = np.random.default_rng(seed)
        pos = np.concatenate([a.positions + 0.02 * rng.standard_normal((len(a), 3)) for a in several])
        batch = torch.arange(len(several)).repeat_interleave(torch.tensor([len(a) for a in several]))
        cell = torch.tensor(np.array([a.cell for a in several])).to(like) if several[0].pbc.any() else None
        z = torch.tensor(np.concatenate([a.numbers for a in several])).to(like.device)
        yield z, torch.tensor(pos).to(like), batch.to(like.device), cell, [a.pbc.tolist() for a in several]


def assert_tensors_close(torch, got, expected):
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            a, b = a.detach(), b.detach()
            assert torch.equal(a.isnan(), b.isnan())
            a, b = a.nan_to_num(), b.nan_to_num()
            dtype = str(b.dtype).removeprefix("torch.")
            assert float((a - b).abs().max()) <= TOLERANCE[dtype] * max(float(b.abs().max()), 1e-3)


def test_captured_forces_and_hessian_products_agree_with_eager(torch, dimenet):
    """Results agree after weights are changed in place or replaced, and earlier results stay unchanged."""
    captured, pairs = compile_potential(dimenet, capture=True), []
    for seed, arguments in enumerate(yield_batches(torch, dimenet)):
        repeated = [(one.energy_forces_stress(*arguments) for one in (captured, dimenet)) for _ in range(3)]
        pairs += map(tuple, repeated)
        vector = torch.ones_like(arguments[1])
        products = [one.hessian_vector_product(*arguments[:2], vector, *arguments[2:]) for one in (captured, dimenet)]
        pairs.append([(p,) for p in products])
        with torch.no_grad():
            next(dimenet.parameters()).mul_(1.01)
        if seed == 4:
            dimenet.emb.lin.weight = torch.nn.Parameter(1.1 * dimenet.emb.lin.weight)
    for got, expected in pairs:
        assert_tensors_close(torch, got, expected)


def test_edges_found_in_cuda_graph_equal_cpu(target, torch, device_type):
    """Edges found in a CUDA graph are bitwise identical to those found on the CPU, for both index dtypes."""
    for seed in range(20 if target.rehearsal else 60):
        drawn = draw_structure_batch(seed, (np.float32, np.float64)[seed % 2])
        on_host = [torch.from_numpy(array) for array in drawn]
        given = [t.to(device_type) for t in on_host]
        found = [find_neighbors("test", p, CUTOFF, *others) for p, *others in (on_host, given)]
        needed, index, paddings = Capacity.from_neighbors(found[0]), (torch.int32, torch.int64)[seed // 2 % 2], []
        for (pos, of_atom, cells, _), neighbors in zip((on_host, given), found, strict=True):
            z, padding = torch.ones_like(of_atom), PaddedBuffers(needed.grow(), pos, True, index)
            padding.load_structures(z, pos, cells, neighbors, CUTOFF)
            paddings.append(padding)
        (host_padding, padding), (pos, of_atom, cells, flags) = paddings, given
        for array in padding.edges.values():
            array.zero_()
        search = PaddedNeighborSearch(padding, CUTOFF, None)
        search.record_checked_atoms(drawn[3])
        for _ in range(3):
            assert search.load_arguments(torch.ones_like(of_atom), pos, of_atom, cells, flags)
            if target.rehearsal:  # the CPU has no event to wait for
                result = search.find_and_write_edges()[0].tolist()
            else:
                search.start_search()
                result = [*search.wait_for_result()]
            assert result == [0, needed.edges]
            for name, array in host_padding.edges.items():
                assert torch.equal(padding.edges[name].cpu(), array), name
            assert torch.equal(padding.shifts.cpu(), host_padding.shifts)


def test_captured_potentials_work_in_calculators(torch, dimenet):
    """Captured potentials work in ASE dynamics with a skin, and as torch-sim models."""
    from ase import units
    from ase.md.verlet import VelocityVerlet

    from trigraph.ase import Calculator

    final_positions = []
    for options in ({}, {"capture": True}):
        (atoms,) = build_atoms("slab", SLAB | {"nx": 3, "ny": 3, "layers": 2})
        atoms.calc = Calculator(dimenet, skin=0.5, **options)
        VelocityVerlet(atoms, 1 * units.fs).run(20)
        final_positions.append(atoms.positions)
    assert np.abs(final_positions[1] - final_positions[0]).max() < 1e-3
    pytest.importorskip("torch_sim")
    from trigraph.torch_sim import Model

    z, pos, batch, cell, pbc = next(yield_batches(torch, dimenet))
    state = {"atomic_numbers": z, "positions": pos, "system_idx": batch, "cell": cell.mT, "pbc": pbc}
    got, expected = (Model(one)(state) for one in (compile_potential(dimenet, capture=True), dimenet))
    assert_tensors_close(torch, got.values(), expected.values())


@pytest.mark.parametrize("form", ["forces", "curvature", "bfloat16"])
def test_captured_training_steps_agree_with_eager(target, torch, device_type, dimenet, form):
    """Losses and gradients agree with eager steps, with Adam inside the graph and clipped gradients."""
    if form == "bfloat16" and next(dimenet.parameters()).dtype is torch.float64:
        pytest.skip("autocast leaves float64")
    with_curvature = form == "curvature"

    def compute_loss(structures, labels):
        real, found = structures.real_atoms, structures.energy_forces_stress()
        errors = [found.forces - labels["forces"]]
        if with_curvature:
            errors.append(structures.hessian_vector_product(labels["forces"]))
        of_energy = ((found.energy - labels["energy"]).square() * structures.real_structures).sum()
        return of_energy + sum((e.square().sum(1) * real).sum() / real.sum() for e in errors)

    capturable = {} if target.rehearsal else {"capturable": True}
    optimizer = torch.optim.Adam(dimenet.parameters(), 1e-5, **capturable)
    step = compile_potential(dimenet, capture=True).training_step(compute_loss, optimizer, max_norm=10.0)
    for arguments in yield_batches(torch, dimenet):
        z, pos, batch, cell, pbc = arguments
        labels = {"forces": 0.1 * torch.ones_like(pos)}, {"energy": pos.new_zeros(int(batch.max()) + 1)}
        eager_model = copy.deepcopy(dimenet)  # has the weights before the step
        given = CheckedStructures(z, pos, cell, eager_model.neighbors(pos, batch, cell, pbc))
        structures = PaddedStructures(
            eager_model, given, torch.ones_like(pos[:, 0]), torch.ones_like(labels[1]["energy"])
        )
        with torch.autocast(device_type, torch.bfloat16, enabled=form == "bfloat16"):
            got, expected = (
                step(*arguments, of_atoms=labels[0], of_structures=labels[1]),
                compute_loss(structures, {**labels[0], **labels[1]}),
            )
        expected.backward()
        torch.nn.utils.clip_grad_norm_(eager_model.parameters(), 10.0)
        if form == "bfloat16":
            assert float((got - expected).detach().abs()) <= 0.05 * float(expected.detach())
        else:
            pairs = [
                (p.grad, q.grad)
                for p, q in zip(dimenet.parameters(), eager_model.parameters(), strict=True)
                if q.grad is not None
            ]
            assert_tensors_close(torch, [got, *(p for p, _ in pairs)], [expected, *(q for _, q in pairs)])
