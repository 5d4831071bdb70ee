"""Tests of padded and captured potentials: results independent of the capacity, replays (by a stand-in), training."""

import contextlib
import copy
import pickle

import cupy_stand_in
import graph_stand_in
import numpy as np
import pytest
import torch
import torch_stand_in
from ase.build import bulk, molecule
from expect_error import expect_error
from two_ranks import compute_on_two_ranks, take_rank_averaged_steps, take_training_steps

import trigraph.ase
from trigraph.graphs.edge_graph import build_with_reverse
from trigraph.table import GRAPH_PARTS
from trigraph.torch import Capacity, compile_potential
from trigraph.torch.nn import DimeNetPlusPlus, Potential
from trigraph.torch.potentials.padding import MAX_GHOST_DEGREE, CheckedStructures, PaddedBuffers, choose_capacity
from trigraph.torch.potentials.training_step import PaddedStructures, check_capturable_optimizer

TOLERANCE = 1e-12  # tolerance relative to the largest value, for float64 sums in different orders


def make_potential(dtype=torch.float64, **sizes):
    torch.manual_seed(0)
    widths = {"hidden_channels": 16, "int_emb_size": 8, "basis_emb_size": 4, "out_emb_channels": 24, **sizes}
    return DimeNetPlusPlus(
        **widths, out_channels=1, num_blocks=1, num_spherical=3, num_radial=4, cutoff=3.0, act="swish",
        output_initializer="glorot_orthogonal",
    ).to(dtype)  # fmt: skip


def make_molecule_tensors(*names, seed=0, dtype=torch.float64):
    """Return atomic numbers, positions and batch of molecules with slightly displaced atoms."""
    rng, several = np.random.default_rng(seed), [molecule(name) for name in names]
    z = torch.tensor(np.concatenate([a.numbers for a in several]))
    pos = np.concatenate([a.positions for a in several]) + 0.05 * rng.standard_normal((len(z), 3))
    batch = torch.arange(len(several)).repeat_interleave(torch.tensor([len(a) for a in several]))
    return z, torch.tensor(pos, dtype=dtype), batch


def make_crystal_tensors(dtype=torch.float64):
    atoms = bulk("NaCl", "rocksalt", a=5.6, cubic=True)
    atoms.rattle(0.1, seed=0)
    z, pos, cell = (torch.tensor(np.array(a)) for a in (atoms.numbers, atoms.positions, atoms.cell))
    return z, pos.to(dtype), cell.to(dtype)


def assert_close(got, expected):
    assert got.shape == expected.shape
    assert float((got - expected).detach().abs().max()) <= TOLERANCE * float(
        expected.detach().abs().max().clamp(min=1.0)
    )


def make_filled_padding(model, capacity, z, pos, cells=None, batch=None):
    neighbors = model.neighbors(pos, batch, cells)
    padding = PaddedBuffers(capacity, pos, cells is not None, neighbors.src.dtype)
    padding.load_structures(z, pos, cells, neighbors, model.cutoff)
    return padding


def assert_graphs_equal_constructed(neighbors):
    """Assert that padded graphs have the same arrays and sizes as graphs from the constructors."""
    graph, atoms, edges = neighbors.graph, neighbors.graph.num_nodes, neighbors.graph.num_edges
    right = build_with_reverse(*(np.array(a) for a in (graph.src, graph.dst)), atoms, np.array(graph.reverse_edge))
    for name in GRAPH_PARTS["EdgeGraph"].arrays:
        assert np.array_equal(getattr(graph, name), getattr(right, name)), name
    assert max(right.max_in_degree, right.max_out_degree) <= graph.max_in_degree
    ends = np.stack([graph.src, atoms + graph.dst], axis=1).flatten()
    of = trigraph.CSC.from_coo(np.arange(atoms), neighbors.batch.numpy(), atoms, neighbors.num_structures)
    for got, one in (
        (neighbors.ends, trigraph.CSC(2 * np.arange(edges + 1), ends, 2 * atoms)),
        (neighbors.into, trigraph.CSC(right.dst_offsets, right.dst_edge_index, edges)),
        (neighbors.sources, trigraph.CSC(np.arange(edges + 1), np.array(graph.src), atoms)),
        (neighbors.members, of),
    ):
        arrays = [(getattr(got, name), getattr(one, name)) for name in GRAPH_PARTS["CSC"].arrays]
        for array, expected in (*arrays, *zip(got.prepare(), one.prepare(), strict=True)):
            assert np.array_equal(array, expected)
        assert one.max_in_degree <= got.max_in_degree
        assert (got.num_src_nodes, got.num_edges) == (one.num_src_nodes, one.num_edges)
        x = np.random.default_rng(0).standard_normal((got.num_src_nodes, 3))
        keywords = {"edge_weight": None, "backend": "gpu-host"}
        sums = [trigraph.agg_weighted_n2n_fwd(x, graph=g, **keywords).output_embedding for g in (got, one)]
        assert sums[0].tobytes() == sums[1].tobytes()  # long rows are handled although their number is unknown
        keywords["wrt"] = ["embedding"]
        back = [trigraph.agg_weighted_n2n_bwd(sums[0], x, graph=g, **keywords).embedding for g in (got, one)]
        assert back[0].tobytes() == back[1].tobytes()


def test_padded_graphs_equal_constructed_graphs():
    """Graphs with ghost atoms are valid, also with odd sizes, long rows, and few ghosts."""
    z, pos, cell = make_crystal_tensors()
    for more, cutoff in (((0, 0, 0), 3.0), ((0, 1, 1), 3.0), ((300, 5, 0), 9.5), ((0, 3000, 2), 3.0)):
        model = make_potential()
        model.cutoff = cutoff
        needed = Capacity.from_neighbors(model.neighbors(pos, cell=cell))
        assert (needed.degree > MAX_GHOST_DEGREE) == (cutoff > 9)
        padding = make_filled_padding(
            model, Capacity(*map(sum, zip(needed, (*more, 0), strict=True))), z, pos, cell[None]
        )
        assert_graphs_equal_constructed(padding.neighbors)
        assert int(padding.real_atoms.sum()) == len(z)
    # Repeat with a smaller, odd number of atoms, and with atoms of the structures interleaved.
    model, (z, pos, batch) = make_potential(), make_molecule_tensors("C6H6", "H2O")
    model.max_num_neighbors = 1
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    padding = make_filled_padding(model, Capacity(50, 301, 2), z[order], pos[order], None, batch[order])
    assert_graphs_equal_constructed(padding.neighbors)
    padding.load_structures(z[:12], pos[:12], None, model.neighbors(pos[:12]), model.cutoff)
    assert_graphs_equal_constructed(padding.neighbors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_do_not_depend_on_the_capacity(dtype):
    """Results are bitwise identical for all capacities, and whether alone or in a batch; ghost atoms cause no NaN."""
    model = make_potential(dtype, hidden_channels=64, out_emb_channels=128)
    z, pos, cell = make_crystal_tensors(dtype)
    needed = Capacity.from_neighbors(model.neighbors(pos, cell=cell))
    results = []
    for capacity in (needed, needed._replace(structures=4), needed.grow(), Capacity(200, 1500), Capacity(9, 4001, 2)):
        captured = compile_potential(model, capture=True, capacity=capacity)
        results.append(captured.energy_forces_stress(z, pos, cell=cell))
        assert captured.capacities == [capacity]
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    expected = model.energy_forces_stress(z, pos, cell=cell)
    for got, right in zip(results[0], expected, strict=True):
        assert float((got - right).abs().max()) <= 100 * torch.finfo(dtype).eps * float(right.abs().max())
    z, pos, batch = make_molecule_tensors("C6H6", "H2O", "CH3CH2OH", "H2", dtype=dtype)
    together = compile_potential(model, capture=True).energy_forces_stress(z, pos, batch)
    for number in range(4):
        of = batch == number
        fewest_ghosts = Capacity.from_neighbors(model.neighbors(pos[of]))
        for capacity in (None, fewest_ghosts):
            alone = compile_potential(model, capture=True, capacity=capacity).energy_forces_stress(z[of], pos[of])
            assert torch.equal(alone.energy[0], together.energy[number])
            assert torch.equal(alone.forces, together.forces[of])
    padding = make_filled_padding(model, needed.grow(), *make_molecule_tensors("H2O", dtype=dtype)[:2])
    structures = PaddedStructures(model, padding, padding.real_atoms, padding.real_structures)
    product = structures.hessian_vector_product(torch.ones_like(padding.pos))
    gradients = torch.autograd.grad(product.square().sum(), list(model.parameters()), materialize_grads=True)
    assert all(bool(t.isfinite().all()) for t in (product, *structures.energy_forces_stress()[:2], *gradients))
    assert not product[3:].any()
    assert not structures.energy_forces_stress().forces[3:].any()


@pytest.fixture
def captured_graphs(monkeypatch):
    """Return the stand-in's captured graphs (rehearsals of tests/device make padded calls without a capture)."""
    return graph_stand_in.install_cuda_graphs(monkeypatch)


def test_replays_agree_with_the_model(captured_graphs):
    """Calls with other inputs, sizes, weights and modes agree with the model, and do not change earlier results."""
    model = make_potential()
    captured = compile_potential(model, capture=True, capacity=[Capacity(64, 128, 3)])
    kept, made = [], []
    calls = (["H2O"], ["CH4"], ["NH3", "H2O"], ["C6H6"] * 2, ["C6H6", "CH4"], ["C6H6"] * 2, ["NH3", "H2O"])
    for seed, names in enumerate((*calls, *calls[:2])):
        z, pos, batch = make_molecule_tensors(*names, "N2", seed=seed)
        neighbors = model.neighbors(pos, batch)
        for _ in range(2):  # reuse the neighbours, as with a skin
            pos = pos + 0.01
            vector = torch.randn_like(pos)
            expected = model.energy_forces_stress(z, pos, neighbors=neighbors)
            got = captured.energy_forces_stress(z, pos, neighbors=neighbors)
            product = captured.hessian_vector_product(z, pos, vector, batch)
            kept += [(got.energy, expected.energy), (got.forces, expected.forces), (got.energies, expected.energies)]
            kept.append((product, model.hessian_vector_product(z, pos, vector, batch)))
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.01)
        if seed == 4:  # change a parameter's address
            model.emb.lin.weight = torch.nn.Parameter(model.emb.lin.weight * 2)
        if seed == 6:
            model.emb.lin.weight.data = model.emb.lin.weight.data + 1
        model.train(seed % 3 == 0)
        made.append(len(captured_graphs))
    for got, expected in kept:
        assert_close(got, expected)
    assert len(captured.capacities) == 2
    assert Capacity(64, 128, 3) in captured.capacities
    z, pos, cell = make_crystal_tensors()
    for one in (captured, pickle.loads(pickle.dumps(captured)), copy.deepcopy(captured)):
        for _ in range(2):
            assert_close(*(m.energy_forces_stress(z, pos, cell=cell).stress for m in (one, model)))
    assert_close(captured.hessian(z[:3], pos[:3], block_size=4), model.hessian(z[:3], pos[:3]))
    assert captured(z, pos).shape == (1,)
    assert sum(g.replays for g in captured_graphs) > len(captured_graphs)
    assert made[:4] == [2, 2, 4, 6]  # each new mode or capacity makes two more
    own = compile_potential(model, capture=True, static_results=True)
    results = [own.energy_forces_stress(z, pos + 0.1 * k, cell=cell).forces for k in range(4)]
    assert results[-1].data_ptr() == results[-2].data_ptr() != results[0].data_ptr()


def compute_loss(structures, labels):
    """Return a loss of energies, forces and curvature; ghosts have zero forces and labels, but nonzero energies."""
    found, real = structures.energy_forces_stress(), structures.real_structures
    loss = ((found.energy - labels["energy"]).square() * real).sum() / real.sum()
    errors = [found.forces - labels["forces"]]
    if "curvature" in labels:
        errors.append(structures.hessian_vector_product(labels["vector"]) - labels["curvature"])
    for error in errors:
        loss = loss + error.square().sum() / structures.real_atoms.sum()
    return loss


def take_eager_training_step(model, optimizer, arguments, labels, max_norm):
    """Take an eager training step without ghost atoms; return the loss."""
    z, pos, batch = arguments
    given = CheckedStructures(z, pos, None, model.neighbors(pos, batch))
    ones = pos.new_ones(len(z)), pos.new_ones(given.neighbors.num_structures)
    with torch.autocast("cpu", torch.bfloat16, enabled=torch.is_autocast_enabled("cpu")):
        loss = compute_loss(PaddedStructures(model, given, *ones), labels)
    with torch.autocast("cpu", enabled=False):
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("form", ["curvature", "bfloat16"])
def test_captured_training_agrees_with_eager_steps(captured_graphs, form):
    """Losses, gradients and weights agree with eager steps for batches of several sizes."""
    model = make_potential(torch.float32 if form == "bfloat16" else torch.float64)
    model.emb.lin_rbf.requires_grad_(False)
    other = copy.deepcopy(model)
    several = [torch.optim.SGD(one.parameters(), 1e-3, momentum=0.9) for one in (model, other)]
    step = compile_potential(model, capture=True).training_step(compute_loss, several[0], max_norm=1.0)
    batches = (["H2O"], ["CH4"], ["NH3"], ["C6H6", "H2O"], ["CH3CH2OH", "CH4"], ["H2O"], ["NH3"])
    mixed = torch.autocast("cpu", torch.bfloat16) if form == "bfloat16" else contextlib.nullcontext()
    for seed, names in enumerate(batches):
        arguments = make_molecule_tensors(*names, seed=seed, dtype=next(model.parameters()).dtype)
        rows = ("forces", *(("vector", "curvature") if form == "curvature" else ()))
        of_atoms = {name: torch.randn_like(arguments[1]) for name in rows}
        of_structures = {"energy": torch.randn(len(names), dtype=arguments[1].dtype)}
        if seed == 5:
            for optimizer in several:
                optimizer.param_groups[0]["lr"] = 5e-3
        with mixed:
            got = step(*arguments, of_atoms=of_atoms, of_structures=of_structures)
            expected = take_eager_training_step(other, several[1], arguments, of_atoms | of_structures, 1.0)
        pairs = [(got, expected)]
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            pairs += [(p, q)] + [(p.grad, q.grad)] * (q.grad is not None)
        for a, b in pairs:
            if form == "bfloat16":  # bfloat16 products depend on the number of rows
                assert float((a - b).detach().abs().max()) <= 0.05 * float(b.detach().abs().max().clamp(min=1.0))
            else:
                assert_close(a, b)
        if seed % 2:
            several[0].zero_grad()
    assert [g.replays for g in captured_graphs] == [2, 1, 1]


def test_ranks_average_gradients(tmp_path):
    """Training on two ranks with half of each batch and averaged gradients agrees with one process."""
    model = make_potential()
    names = ("H2O", "CH4", "NH3", "N2"), ("C6H6", "H2O", "H2", "CH4"), ("NH3", "N2", "CH4", "H2O")
    halves = [[make_molecule_tensors(*n[2 * rank : 2 * rank + 2]) for n in names] for rank in range(2)]
    whole = [
        (torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]]), torch.cat([a[2], b[2] + 2]))
        for a, b in zip(*halves, strict=True)
    ]
    ranks = compute_on_two_ranks(tmp_path, take_rank_averaged_steps, [(copy.deepcopy(model), half) for half in halves])
    expected = take_training_steps(model, whole, lambda gradient: None)
    for weights in ranks:
        for got, right in zip(weights, expected, strict=True):
            assert_close(got, right)
    assert not torch.equal(expected[1], list(make_potential().parameters())[1])


class Springs(Potential):
    """A user's potential; `wrong` makes it wait for the device, or mix atoms that are not neighbours."""

    cutoff = 3.0
    wrong = ""

    def __init__(self):
        super().__init__()
        self.stiffness = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def atoms_of_vectors(self, z, vec, neighbors):
        distance = vec.square().sum(dim=1, keepdim=True).sqrt()
        ones = neighbors.of_sources(torch.ones_like(vec[: z.shape[0], :1]))
        energies = neighbors.into_atoms(0.25 * self.stiffness * ones * (self.cutoff - distance).clamp(min=0).square())
        if self.wrong == "item" and float(energies.detach().sum()) < 0:
            return -energies
        if self.wrong == "sizes" and distance[distance < 2.0].numel() > 1000:
            return -energies
        return energies - energies.mean() if self.wrong == "mean" else energies


def test_models_that_cannot_be_captured_are_refused(monkeypatch):
    graphs, (z, pos, batch) = graph_stand_in.install_cuda_graphs(monkeypatch), make_molecule_tensors("C6H6", "H2O")
    model = Springs()
    captured = compile_potential(model, capture=True)
    for _ in range(3):
        assert_close(*(one.energy_forces_stress(z, pos, batch).forces for one in (captured, model)))
    assert graphs[0].replays == 2
    for wrong in ("item", "sizes"):
        model.wrong = wrong  # the change is noticed: the call is captured again
        captured.energy_forces_stress(z, pos, batch)
        with expect_error("RuntimeError: compile_potential: Springs: cannot be captured in a CUDA graph; expected ..."):
            captured.energy_forces_stress(z, pos, batch)
    model.wrong = "mean"
    changes = "RuntimeError: compile_potential: result 0 of Springs changes by ... with ghost atoms; expected ..."
    with expect_error(changes):
        captured.energy_forces_stress(z, pos, batch)
    model.wrong = ""
    mean, total, energies = (
        captured.training_step(lambda structures, labels, f=f: f(structures.energy_forces_stress()))
        for f in (lambda e: e.forces.square().mean(), lambda e: e.forces.square().sum(), lambda e: e.energy)
    )
    with expect_error(changes):
        mean(z, pos, batch)
    assert float(total(z, pos, batch)) > 0
    error = "TypeError: compile_potential: the loss is tensor...; expected a tensor of shape () that depends on ..."
    with expect_error(error):
        energies(z, pos, batch)
    error = "RuntimeError: compile_potential: ...needs a GradScaler..."
    with torch.autocast("cpu", torch.float16), expect_error(error):
        total(z, pos, batch)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with expect_error("RuntimeError: compile_potential: Springs: called while a CUDA graph is captured; expected ..."):
        captured.energy_forces_stress(z, pos, batch)


def test_bad_capture_arguments_are_refused():
    model, given = Springs(), make_molecule_tensors("H2O", "H2O")
    captured = compile_potential(model, capture=True)
    sgd, adam, lbfgs = (cls(model.parameters()) for cls in (torch.optim.SGD, torch.optim.Adam, torch.optim.LBFGS))
    step = captured.training_step(compute_loss, adam)
    rows, energies = {"e": given[1]}, {"e": torch.zeros(2).double()}
    for message, call in {
        "RuntimeError: CapturedPotential: create_graph is True; expected False, because ...": lambda: (
            captured.energy_forces_stress(*given, create_graph=True)
        ),
        "mode is given with capture=True; expected capacity or static_results": lambda: compile_potential(
            model, capture=True, mode="reduce-overhead"
        ),
        "capacity is given; expected only backend, mode, options of torch.compile": lambda: compile_potential(
            model, capacity=Capacity(1, 1)
        ),
        "capacity is a int; expected Capacity, or a list of them": lambda: compile_potential(
            model, capture=True, capacity=3
        ),
        "ValueError: compile_potential: capacity.edges is 0; expected ...": lambda: compile_potential(
            model, capture=True, capacity=Capacity(1, 0)
        ),
        "model is a DistributedDataParallel; expected a trigraph.torch.nn.Potential": lambda: compile_potential(
            object.__new__(torch.nn.parallel.DistributedDataParallel), capture=True
        ),
        "loss is a int; expected a function of structures and labels": lambda: captured.training_step(3),
        "optimizer is LBFGS, which calls the loss several times; expected another optimizer": lambda: (
            captured.training_step(compute_loss, lbfgs)
        ),
        "the step of Adam reads numbers on the host; expected Adam(..., capturable=True), or SGD": lambda: (
            check_capturable_optimizer(adam, True)
        ),
        "ValueError: compile_potential: of_atoms['e'] has shape (2,); expected (num_atoms, ...) with 6 rows": lambda: (
            step(*given, of_atoms=energies)
        ),
        "ValueError: compile_potential: labels of atoms and of structures have the name e; expected ...": lambda: step(
            *given, of_atoms=rows, of_structures=energies
        ),
        "of_structures['e'] is list; expected a torch.Tensor on cpu": lambda: step(*given, of_structures={"e": [0.0]}),
        "ValueError: Calculator: compile and capture are True; expected one of them": lambda: trigraph.ase.Calculator(
            model, compile=True, capture=True
        ),
    }.items():
        with expect_error(message if "Error:" in message else f"TypeError: compile_potential: {message}"):
            call()
    check_capturable_optimizer(sgd, True)
    large, small = Capacity(1000, 10_000), Capacity(100, 4000)
    assert choose_capacity(Capacity(600, 5001), [], [large]) == choose_capacity(small, [large], []) == large
    for existing in (large, small._replace(edges=9999)):
        assert choose_capacity(small, [], [existing]) == Capacity(128, 5056)
    assert captured.energy_forces_stress(given[0][:0], given[1][:0]).forces.shape == (0, 3)


@pytest.mark.parametrize("model", [Springs().float(), make_potential(torch.float32)], ids=["springs", "dimenet"])
def test_captured_device_code_never_synchronizes(monkeypatch, tmp_path, model):
    """trigraph's device code for forces, curvature and gradients never makes the host wait."""
    arguments = make_molecule_tensors("H2O", "NH3", dtype=torch.float32)
    given = CheckedStructures(*arguments[:2], None, model.neighbors(arguments[1], arguments[2]))
    ones = torch.ones(len(given.z)), torch.ones(2)
    labels = {"energy": torch.ones(2), **{n: torch.ones_like(given.pos) for n in ("forces", "vector", "curvature")}}

    def compute_forces_and_derivatives(inputs, real, labels):
        structures = PaddedStructures(model, inputs, *real)
        loss, found = compute_loss(structures, labels), structures.energy_forces_stress()
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, materialize_grads=True)
        return found.forces, structures.hessian_vector_product(labels["vector"]), *gradients

    expected = [t.detach() for t in compute_forces_and_derivatives(given, ones, labels)]
    graph_stand_in.install_cuda_graphs(monkeypatch)
    torch_stand_in.install_torch_and_cupy(monkeypatch, tmp_path)
    padding = PaddedBuffers(Capacity(7, 20, 2), given.pos, False, torch.int32)
    padding.load_structures(*given, model.cutoff)
    padded = {n: padding.make_label_tensor(t, n != "energy") for n, t in labels.items()}
    padding.fill_labels(padded, {n: (t, None) for n, t in labels.items()})
    real = padding.real_atoms, padding.real_structures
    compute_forces_and_derivatives(padding, real, padded)
    launches = cupy_stand_in.state.launches
    with cupy_stand_in.simulate_capture(), graph_stand_in.OperationRecorder():
        got = compute_forces_and_derivatives(padding, real, padded)
    assert cupy_stand_in.state.launches > launches
    for a, b in zip((*(t[: len(given.z)] for t in got[:2]), *got[2:]), expected, strict=True):
        assert float((a.detach() - b).abs().max()) <= 1e-4 * float(b.abs().max())
