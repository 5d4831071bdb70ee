"""Tests of DimeNet++ in trigraph.torch.nn: initial parameters, derivatives, cells, batches, invalid input."""

import functools
import itertools

import numpy as np
import pytest
import torch
from ase.build import bulk, fcc111
from compiled_programs import compiled_whole
from expect_error import expect_error
from pyg_dimenet import SIZES
from torch.autograd import forward_ad

import trigraph
from trigraph.fortran.silu import fill_silu_derivatives
from trigraph.fortran.threads import restore_num_threads
from trigraph.torch.layers import activations
from trigraph.torch.layers.activations import SiLU
from trigraph.torch.nn import DimeNetPlusPlus, ForceField, InteractionBlock, RadialBasis

# Few layers, for fast compilation.
SMALL = {"num_blocks": 1, "num_before_skip": 0, "num_after_skip": 1, "num_output_layers": 1}


def make_dimenet(dtype=torch.float64, **sizes):
    torch.manual_seed(0)
    model = DimeNetPlusPlus(**(SIZES | sizes))
    with torch.no_grad():  # make biases nonzero
        for p in model.parameters():
            p += 0.05 * torch.randn_like(p)
    return model.to(dtype)


def convert_atoms_to_tensors(atoms):
    return tuple(map(torch.tensor, (atoms.numbers, atoms.positions, np.array(atoms.cell), atoms.pbc)))


def make_cluster_tensors(number=14, seed=0):
    """Return atomic numbers and positions on a distorted lattice with distances of at least 1."""
    rng = np.random.default_rng(seed)
    lattice = 1.9 * np.stack(np.meshgrid(*[np.arange(3)] * 3), axis=-1).reshape(-1, 3)
    positions = rng.permutation(lattice)[:number] + rng.uniform(-0.4, 0.4, (number, 3))
    return torch.tensor(rng.integers(1, 30, number)), torch.tensor(positions)


def make_slab_atoms():
    atoms = fcc111("Cu", (1, 2, 2), vacuum=4.0)
    atoms.numbers[1] = 79
    atoms.rattle(0.05, seed=3)
    return atoms


def assert_close(got, expected, tolerance):
    got, expected = got.detach(), expected.detach()
    error = (got - expected).abs().max() / expected.abs().max()
    assert got.shape == expected.shape
    assert error <= tolerance, float(error)


def test_initial_parameters_are_orthogonal_or_zero():
    """As in PyG, initial weights are scaled orthogonal matrices, and biases and the output layer are zero."""
    torch.manual_seed(5)
    ours = DimeNetPlusPlus(**(SIZES | {"output_initializer": "zeros"}))
    ours.reset_parameters()
    for name, p in ours.interaction_blocks[0].named_parameters():
        if name.endswith("bias"):
            assert not p.any()
        else:
            assert p.var().item() == pytest.approx(2 / sum(p.shape), rel=1e-5)
    assert not ours.output_blocks[0].lin.weight.any()
    assert torch.equal(ours.rbf.freq, torch.pi * torch.arange(1.0, 4))
    z, pos = make_cluster_tensors()
    assert ours(z, pos.float()).tolist() == [0.0]


@pytest.mark.parametrize("periodic", [False, True])
def test_forces_and_stress_are_derivatives(periodic):
    """Forces and stress agree with central differences (h = eps^(1/3)) up to O(eps^(2/3)) of the largest terms."""
    model, h = make_dimenet(), torch.finfo(torch.float64).eps ** (1 / 3)
    z, pos, cell, pbc = convert_atoms_to_tensors(make_slab_atoms())
    cell, pbc = (cell, pbc) if periodic else (None, None)
    neighbors = model.neighbors(pos, cell=cell, pbc=pbc)
    results = model.energy_forces_stress(z, pos, cell=cell, neighbors=neighbors)
    moves, strain = (d / d.norm() for d in (torch.randn_like(pos), torch.randn(3, 3, dtype=torch.float64)))
    strain = strain * periodic
    terms = -results.forces * moves
    if periodic:
        terms = torch.cat([terms, torch.linalg.det(cell).abs() * results.stress[0] * strain])
        assert torch.equal(results.stress[0], results.stress[0].T)

    def compute_strained_energy(step):
        changed = torch.eye(3, dtype=torch.float64) + step * (strain + strain.T) / 2
        keywords = {"cell": cell @ changed if periodic else None, "neighbors": neighbors}
        return model(z, (pos + step * moves) @ changed, **keywords).item()

    assert (results.stress is None) != periodic
    assert (
        abs((compute_strained_energy(h) - compute_strained_energy(-h)) / (2 * h) - terms.sum())
        <= 100 * h**2 * terms.abs().max()
    )
    assert results.forces.sum(dim=0).abs().max() <= 1e-12 * results.forces.abs().max()


def test_parameter_gradient_agrees_with_central_differences():
    """The parameter gradient of a loss of energies, forces and stresses agrees with central differences."""
    model = make_dimenet()
    z, pos, cell, pbc = convert_atoms_to_tensors(make_slab_atoms())
    weights = [torch.randn(shape, dtype=torch.float64) for shape in ((4, 3), (1, 3, 3), (4,))]

    def compute_force_loss(model):
        results = model.energy_forces_stress(z, pos, cell=cell, pbc=pbc, create_graph=True)
        energies = results.energy.sum() + (weights[2] * results.energies).sum()
        return energies + (weights[0] * results.forces).sum() + 100 * (weights[1] * results.stress).sum()

    parameters, values, h = list(model.parameters()), [], 1e-5
    direction = [torch.randn_like(p) for p in parameters]
    grads = torch.autograd.grad(compute_force_loss(model), parameters, allow_unused=True)
    products = [g * d for g, d in zip(grads, direction, strict=True) if g is not None]
    expected, scale = sum(p.sum() for p in products), sum(p.abs().sum() for p in products)
    for step in (h, -2 * h):  # change weights in place, as optimizers do
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p += step * d
        values.append(compute_force_loss(model).item())
    # The errors of the difference are h^2 times a third derivative (1e-10 of the gradients) and eps / h times the loss.
    assert abs((values[0] - values[1]) / (2 * h) - expected) <= 1e-8 * scale


def test_batch_results_equal_single_structures():
    """Results for a batch (various cells or none, interleaved atoms) agree with results for each structure."""
    model = make_dimenet()
    structures = [
        convert_atoms_to_tensors(make_slab_atoms()),
        convert_atoms_to_tensors(bulk("NaCl", "rocksalt", a=5.0)),
        (*make_cluster_tensors(5), None, None),
    ]
    alone = [model.energy_forces_stress(z, p, cell=c, pbc=b) for z, p, c, b in structures]
    batch = torch.cat([torch.full((len(s[0]),), i) for i, s in enumerate(structures)])
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    z, pos = (torch.cat([s[k] for s in structures])[order] for k in (0, 1))
    pbc = torch.stack([torch.zeros(3, dtype=bool) if s[3] is None else s[3] for s in structures])
    cells = [s[2] for s in structures]
    together = model.energy_forces_stress(z, pos, batch[order], cells, pbc)
    assert_close(together.energy, torch.cat([a.energy for a in alone]), 1e-14)
    for name in ("forces", "energies"):
        assert_close(getattr(together, name), torch.cat([getattr(a, name) for a in alone])[order], 1e-13)
    assert_close(together.stress[:2], torch.cat([a.stress for a in alone[:2]]), 1e-13)
    assert together.stress[2].isnan().all()
    stacked = torch.stack([torch.zeros(3, 3, dtype=torch.float64) if c is None else c for c in cells])
    again = model.energy_forces_stress(z, pos, batch[order].int(), stacked, pbc)
    assert torch.equal(again.forces, together.forces)
    copied = batch[order]
    neighbors = model.neighbors(pos, copied, cells, pbc)
    copied.zero_()  # the neighbours hold a copy
    again = model.energy_forces_stress(z, pos, cell=stacked, neighbors=neighbors)
    assert torch.equal(again.forces, together.forces)


def test_only_structures_with_cells_are_periodic():
    """Without `pbc`, structures with a cell are periodic in all directions, and structures without a cell in none."""
    model, batch = make_dimenet(), torch.tensor([0] * 4 + [1] * 4)
    z, pos, cell, _ = convert_atoms_to_tensors(make_slab_atoms())
    energies = model(z.repeat(2), pos.repeat(2, 1), batch, [cell, None])
    assert_close(energies, torch.stack([model(z, pos, cell=cell), model(z, pos)]), 1e-14)
    assert model(z[:0], pos[:0], batch[:0], []).shape == (0, 1)


def test_isolated_atoms_and_empty_structures_are_accepted():
    model = make_dimenet()
    z, pos = torch.tensor([29, 79]), torch.tensor([[0.0, 0, 0], [9, 0, 0]], dtype=torch.float64)
    apart = model.energy_forces_stress(z, pos, create_graph=True)
    assert_close(apart.energy, sum(model(z[i : i + 1], pos[i : i + 1]) for i in range(2)), 1e-14)
    assert not apart.forces.any()
    (apart.energy.sum() + apart.forces.sum()).backward()
    empty = model.energy_forces_stress(z[:0], pos[:0])
    assert empty.energy.tolist() == [0]
    assert (empty.forces.shape, empty.energies.shape) == ((0, 3), (0,))
    cells = torch.eye(3, dtype=torch.float64).repeat(3, 1, 1) * 20
    results = model.energy_forces_stress(z, pos, torch.tensor([0, 2]), cells)
    assert results.energy[1] == 0
    assert not results.stress[1].any()
    assert model(z[:0], pos[:0], torch.zeros(0, dtype=torch.int64)).shape == (0, 1)


@compiled_whole
def test_compiled_energies_agree_for_given_neighbors():
    """Compiled energies agree with eager ones (test_torch_compiled.py covers derivatives)."""
    model, (z, pos, cell, pbc) = make_dimenet(**SMALL), convert_atoms_to_tensors(make_slab_atoms())
    kept = {"cell": cell, "neighbors": model.neighbors(pos, cell=cell, pbc=pbc)}
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_close(compiled(z, pos, **kept), model(z, pos, **kept), 1e-14)


@compiled_whole
def test_compiled_search_agrees_with_eager_mode():
    """torch.compile breaks the graph at the neighbour search; results and derivatives agree with eager mode."""
    model, (z, pos, cell, pbc) = make_dimenet(**SMALL), convert_atoms_to_tensors(make_slab_atoms())
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager")
    derivatives = torch.compile(model.energy_forces_stress, backend="eager")
    for scale in (1.0, 0.95, 0.9):
        arguments = (z, scale * pos, None, scale * cell, pbc)
        assert_close(compiled(*arguments), model(*arguments), 1e-14)
        for got, expected in zip(derivatives(*arguments), model.energy_forces_stress(*arguments), strict=True):
            assert torch.equal(got, expected)
    with expect_error("ValueError: ...z goes from -1 to 49; expected atomic numbers from 0 to 94"):
        compiled(z - 30, pos)


def flatten_tensors(tree):
    return [tree] if isinstance(tree, torch.Tensor) else [tensor for part in tree for tensor in flatten_tensors(part)]


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.hessian], ids=["grad", "hessian"])
def test_search_inside_transform_gives_same_derivatives(transform):
    """Derivatives by torch.func are the same whether neighbours are searched inside the transform or passed to it."""
    model, (z, pos, cell, pbc) = make_dimenet(**SMALL), convert_atoms_to_tensors(make_slab_atoms())
    batch, neighbors = torch.zeros_like(z), model.neighbors(pos, cell=cell, pbc=pbc)
    for argnums in (0, 1, (0, 1)):
        search = transform(lambda p, c: model(z, p, batch, [c]).sum(), argnums)(pos, cell)
        kept = transform(lambda p, c: model(z, p, cell=c, neighbors=neighbors).sum(), argnums)(pos, cell)
        for got, expected in zip(flatten_tensors(search), flatten_tensors(kept), strict=True):
            assert torch.equal(got, expected)


def test_search_under_vmap_is_refused():
    model, (z, pos) = make_dimenet(), make_cluster_tensors(4)
    with expect_error("ValueError: DimeNetPlusPlus: pos: a tensor is batched by torch.vmap; expected"):
        torch.vmap(lambda p: model(z, p))(torch.stack([pos, pos]))


@pytest.mark.parametrize("create_graph", [False, True])
def test_forces_work_in_inference_mode(create_graph):
    """Forces work in inference mode, and with tensors or neighbours created in inference mode."""
    model, (z, pos, cell, pbc) = make_dimenet(), convert_atoms_to_tensors(make_slab_atoms())
    expected = model.energy_forces_stress(z, pos, cell=cell, pbc=pbc)
    with torch.inference_mode():
        z, pos, cell = z.clone(), pos.clone(), cell.clone()
        neighbors = model.neighbors(pos, cell=cell, pbc=pbc)
        calls = [
            model.energy_forces_stress(z, pos, cell=cell, pbc=pbc, create_graph=create_graph),
            model.energy_forces_stress(z, pos, cell=[cell], neighbors=neighbors, create_graph=create_graph),
        ]
    calls.append(model.energy_forces_stress(z, pos, cell=cell, neighbors=neighbors, create_graph=create_graph))
    for results in calls:
        assert all(map(torch.equal, results, expected))
        assert results.forces.requires_grad == create_graph
        if create_graph:
            results.forces.square().sum().backward()


def yield_third_derivatives(*functions):
    """Yield the third derivative of the sum of each function, for each order of forward and reverse mode."""
    for order in itertools.product([torch.func.jacfwd, torch.func.jacrev], repeat=3):
        yield (functools.reduce(lambda g, step: step(g), order, lambda t, f=f: f(t).sum()) for f in functions)


def test_silu_agrees_with_torch_in_all_modes():
    x = torch.linspace(-30, 30, 41, dtype=torch.float64, requires_grad=True)
    act = SiLU()
    assert torch.equal(act(x), torch.nn.functional.silu(x))
    near = x[15:26].detach().requires_grad_()
    assert torch.autograd.gradcheck(act, near, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(act, near, check_fwd_over_rev=True)
    got, expected = (
        torch.func.vmap(torch.func.grad(torch.func.grad(torch.func.grad(f))))(x) for f in (act, torch.nn.SiLU())
    )
    assert (got - expected).abs().max() <= 1e-14
    for got, expected in yield_third_derivatives(act, torch.nn.SiLU()):
        assert (got(near.detach()) - expected(near.detach())).abs().max() <= 1e-14
    with forward_ad.dual_level():  # only the cotangent has a tangent; nothing is recorded
        (expected,) = torch.autograd.grad(act(near), near, 1 / near.detach().cosh())
        dual = forward_ad.make_dual(torch.ones_like(near), 1 / near.detach().cosh())
        (got,) = torch.autograd.grad(act(near), near, dual)
        assert torch.equal(forward_ad.unpack_dual(got).tangent, expected)
    for name in ("swish", "SiLU", "tanh", "leaky_relu"):
        make_dimenet(act=name)(*make_cluster_tensors(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_pass_silu_derivatives_are_accurate(dtype, monkeypatch):
    """Second and third derivatives of SiLU agree with torch's SiLU in double precision."""
    numbers = torch.Generator().manual_seed(0)
    extremes = torch.tensor([-800.0, -110.0, -40.0, -1e-30, 0.0, 1e-30, 17.0, 120.0, 800.0], dtype=dtype)
    x = torch.cat([8 * torch.randn(1991, dtype=dtype, generator=numbers), extremes]).reshape(40, 50)
    g, a, b, c = torch.randn(4, 50, 40, dtype=dtype, generator=numbers).transpose(1, 2)  # non-contiguous tensors

    def compute_second_and_third_derivatives(act, *tensors):
        x, g, a, b, c = (t.detach().requires_grad_() for t in tensors)
        (first,) = torch.autograd.grad(act(x), x, g, create_graph=True)
        second = torch.autograd.grad(first, (g, x), a, create_graph=True)
        third = torch.autograd.grad(second, (a, g, x), (b, c), retain_graph=True)
        recorded = torch.autograd.grad(second, (a, g, x), (b, c), create_graph=True)
        return (*second, *third), recorded

    passes = []
    monkeypatch.setattr(
        activations,
        "fill_silu_derivatives",
        lambda order, *arrays: passes.append(order) or fill_silu_derivatives(order, *arrays),
    )
    found, recorded = compute_second_and_third_derivatives(SiLU(), x, g, a, b, c)
    assert passes == [2, 3]
    for n in (1, 2, 5):
        with restore_num_threads():
            trigraph.set_num_threads(n)
            assert all(map(torch.equal, compute_second_and_third_derivatives(SiLU(), x, g, a, b, c)[0], found))
    expected, _ = compute_second_and_third_derivatives(torch.nn.SiLU(), *(t.double() for t in (x, g, a, b, c)))
    # Each derivative is a sum of products whose factors have a few rounding errors; derivatives of SiLU are below 1.1.
    scales = [t.double().abs() for t in (a, a * g, b.abs() + (c * g).abs(), c * a, a * (b.abs() + (c * g).abs()))]
    for got, other, scale in zip((*found, *recorded), (*expected, *expected[2:]), [*scales, *scales[2:]], strict=True):
        assert got.dtype == dtype
        assert not (got.double() - other).abs().gt(16 * torch.finfo(dtype).eps * scale).any()
        assert got.isfinite().all()
    empty = torch.zeros(0, 3, dtype=dtype)
    assert all(t.shape == (0, 3) for t in compute_second_and_third_derivatives(SiLU(), *[empty] * 5)[0])
    # Also test cotangents of sums, which are expanded scalars, and half precision, which uses torch operations.
    assert len(passes) == 2 * 5
    sums, _ = compute_second_and_third_derivatives(SiLU(), x, torch.ones(()).to(x).expand_as(x), a, b, c)
    assert torch.equal(sums[2], compute_second_and_third_derivatives(SiLU(), x, torch.ones_like(x), a, b, c)[0][2])
    for got, other in zip(
        compute_second_and_third_derivatives(SiLU(), *(t.bfloat16() for t in (x, g, a, b, c)))[0], expected, strict=True
    ):
        assert got.dtype == torch.bfloat16
        assert (got.double() - other).abs().max() <= 0.1 * other.abs().max()


def test_forces_without_graph_use_torch_silu(monkeypatch):
    """Without create_graph, forces and energies use torch's own SiLU, which is faster and bitwise identical."""
    model, (z, pos) = make_dimenet(num_blocks=1), make_cluster_tensors(6)
    expected = model.energy_forces_stress(z, pos, create_graph=True)
    monkeypatch.delattr(activations, "_SiLU")
    results = model.energy_forces_stress(z, pos)
    assert torch.equal(results.energy, expected.energy)
    assert torch.equal(results.forces, expected.forces)
    with torch.no_grad():
        assert torch.equal(model(z, pos), expected.energy)
    with pytest.raises(NameError):
        model.energy_forces_stress(z, pos, create_graph=True)


def test_float32_forces_and_hessian_blocks_are_accurate():
    z, pos = make_cluster_tensors(6)
    model = make_dimenet(num_blocks=1)
    single = make_dimenet(torch.float32, num_blocks=1).energy_forces_stress(z, pos.float())
    assert single.energy.dtype == single.forces.dtype == torch.float32
    # The tolerance is for a few hundred successive operations, each with a relative rounding error of 2^-24.
    assert_close(single.forces.double(), model.energy_forces_stress(z, pos).forces, 500 * 2**-24)
    neighbors = model.neighbors(pos)
    hessian = torch.func.hessian(lambda p: model(z, p, neighbors=neighbors).sum())(pos).reshape(18, 18)
    assert_close(hessian, hessian.T, 1e-13)
    blocks = []
    got = model.hessian(z, pos, block_size=7, progress=lambda todo: blocks.extend(todo) or todo)
    assert_close(got.reshape(18, 18), hessian, 1e-12)
    assert [len(block) for block in blocks] == [7, 7, 4]
    assert not got.requires_grad
    assert_close(model.hessian(z, pos, neighbors=neighbors, atoms=[4, -4]), got[[4, 2]], 1e-12)
    assert model.hessian(z, pos, atoms=[]).shape == (0, 3, 6, 3)


def test_hessian_products_agree_with_the_hessian():
    """Hessian products for a batch agree with each Hessian; a parameter gradient agrees with a finite difference."""
    (z, pos), model = make_cluster_tensors(6), make_dimenet(**SMALL)
    batch, vector = torch.tensor([0, 1, 1, 0, 1, 0]), torch.randn(6, 3, dtype=pos.dtype)
    product = model.hessian_vector_product(z, pos, vector, batch)
    for structure in (batch == 0, batch == 1):
        hessian = model.hessian(z[structure], pos[structure]).reshape(9, 9)
        assert_close(product[structure].flatten(), hessian @ vector[structure].flatten(), 1e-12)
    weight = model.interaction_blocks[0].lin_kj.weight

    def compute_product_loss():
        return model.hessian_vector_product(z, pos, vector, create_graph=True).square().sum()

    (gradient,) = torch.autograd.grad(compute_product_loss(), weight)
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            weight[1, 2] += sign * 1e-4
        ends.append(compute_product_loss().item())
        with torch.no_grad():
            weight[1, 2] -= sign * 1e-4
    assert_close(gradient[1, 2], torch.tensor((ends[0] - ends[1]) / 2e-4), 1e-6)
    alone = model.hessian(z[:1], pos[:1])
    assert alone.shape == (1, 3, 1, 3)
    assert not alone.any()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m, z, pos: m.hessian(z, pos, block_size=0), "ValueError: ...block_size is 0; expected at least 1"),
        (lambda m, z, pos: m.hessian(z, pos, atoms=[6]), "IndexError: ...hessian: atoms has 6; expected atoms of 6"),
        (lambda m, z, pos: m.hessian_vector_product(z, pos, pos.float()), "TypeError: ...vector is torch.float32 on"),
        (lambda m, z, x: m.hessian_vector_product(z, x, x[:2]), "ValueError: ...vector has shape (2, 3); expected"),
        (lambda m, z, x: m.hessian_vector_product(z, x, [1.0]), "TypeError: ...vector is a list; expected a torch."),
        (lambda m, z, pos: ForceField(torch.nn.Linear(2, 2)), "TypeError: ForceField: model is a Linear; expected a"),
    ],
)
def test_bad_hessian_arguments_are_refused(call, text):
    with expect_error(text):
        call(make_dimenet(**SMALL), *make_cluster_tensors(6))


ATOMS = {"z": torch.tensor([1, 8]), "pos": torch.tensor([[0.0, 0, 0], [1, 0, 0]], dtype=torch.float64)}
BAD = [
    ({"z": [1, 8]}, "TypeError: ...z is a list; expected a torch.Tensor"),
    ({"z": torch.tensor([1.0, 8])}, "TypeError: ...z has dtype torch.float32; expected torch.int64 or torch.int32"),
    ({"z": torch.tensor([1, 95])}, "ValueError: ...z goes from 1 to 95; expected atomic numbers from 0 to 94"),
    ({"z": torch.tensor([1])}, "ValueError: ...pos has shape (2, 3); expected (num_atoms, 3) = (1, 3)"),
    ({"pos": torch.zeros(2, 3)}, "TypeError: ...pos has dtype torch.float32; expected torch.float64, as for"),
    ({"pos": torch.zeros(2, 3).double()}, "ValueError: ...expected a finite vector of non-zero length"),
    ({"pos": torch.zeros(2, 3).double().to("meta")}, "ValueError: ...pos is on meta; expected cpu, where the"),
    ({"batch": torch.tensor([0])}, "ValueError: ...batch has shape (1,); expected (num_atoms,) = (2,)"),
    ({"batch": torch.tensor([-1, 0])}, "ValueError: ...batch goes from -1 to 0; expected from 0 to num_structures"),
    ({"batch": torch.tensor([10**12, 0])}, f"MemoryError: ...max(batch) + 1 is {10**12 + 1}, whose arrays take 16000"),
    ({"cell": torch.eye(2)}, "ValueError: ...cell has shape (1, 2, 2); expected (num_structures, 3, 3) = (1, 3, 3)"),
    ({"cell": [None, torch.eye(3)]}, "ValueError: ...batch is None and cell has 2 structures; expected one"),
    ({"cell": [torch.eye(3) * (1 + 0j)]}, "TypeError: ...cell[0] has dtype torch.complex64; expected real numbers"),
    ({"cell": [3]}, "TypeError: ...cell[0] is a int; expected a torch.Tensor or None"),
    ({"cell": torch.zeros(3, 3)}, "ValueError: ...expected independent vectors in periodic directions"),
    ({"pbc": True}, "ValueError: ...cell is None with pbc [True, True, True]; expected independent vectors"),
    ({"pbc": [True, False]}, "ValueError: ...pbc has shape (2,); expected (), (3,) or (num_structures, 3) = (1, 3)"),
]


@pytest.mark.parametrize(("change", "text"), BAD, ids=[t for _, t in BAD])
def test_bad_structures_are_refused(change, text):
    model = make_dimenet()
    for function in (model, model.energy_forces_stress):
        with expect_error(text):
            function(**(ATOMS | change))


def test_errors_name_the_structure_of_a_batch():
    """Errors about a batch name the structure and the index of the atom within it."""
    model, (z, pos) = make_dimenet(), make_cluster_tensors(6)
    pos[3] = torch.nan
    with expect_error("ValueError: DimeNetPlusPlus: structure 7 of the batch: EdgeGraph: positions[1] is [nan"):
        model(z, pos, torch.tensor([0, 7, 0, 7, 0, 7]))


def test_of_sources_selects_rows_at_src():
    """`of_sources` selects rows at `src`, with exact derivatives, also if it is compiled or there are no edges."""
    z, pos, cell, pbc = convert_atoms_to_tensors(make_slab_atoms())
    neighbors = make_dimenet().neighbors(pos, cell=cell, pbc=pbc)
    vec = pos[neighbors.src] - pos[neighbors.dst] + neighbors.shifts.double() @ cell
    assert_close(neighbors.vectors(pos, cell[None]), vec, 1e-15)
    x = torch.randn(len(z), 5, dtype=pos.dtype, requires_grad=True)
    assert torch.equal(neighbors.of_sources(x), x[neighbors.src])
    assert torch.autograd.gradcheck(neighbors.of_sources, (x,))
    assert torch.autograd.gradgradcheck(neighbors.of_sources, (x,))
    assert torch.equal(torch.compile(neighbors.of_sources, backend="aot_eager", fullgraph=True)(x), x[neighbors.src])
    assert make_dimenet().neighbors(pos[:1]).of_sources(x[:1]).shape == (0, 5)
    for name, values, text in (
        ("of_sources", x[:3], "(3, 5); expected (num_atoms, width) with 4 rows"),
        ("into_atoms", x[:, 0], "(4,); expected (num_edges, width)"),
        ("into_structures", x[:, 0], "(4,); expected (num_atoms, width)"),
    ):
        with expect_error(f"ValueError: Neighbors.{name}: values has shape {text}"):
            getattr(neighbors, name)(values)


@pytest.mark.parametrize("method", ["into_atoms", "into_structures"])
def test_sums_have_derivatives_of_any_order(method):
    """Sums have derivatives of any order in both modes, and work under vmap, compiled, and without edges."""
    _, pos = make_cluster_tensors(5)
    neighbors = make_dimenet().neighbors(pos, torch.tensor([0, 0, 2, 2, 2]))
    index, number = (neighbors.dst, 5) if method == "into_atoms" else (neighbors.batch, 3)
    summed, x = getattr(neighbors, method), torch.randn(len(index), 3, dtype=pos.dtype, requires_grad=True)

    def sum_with_index_add(x):
        return x.new_zeros(number, 3).index_add(0, index, x)

    def compose_with_fourth_power(function):
        return lambda x: function(x).square().square()

    assert_close(summed(x), sum_with_index_add(x), 1e-15)
    assert torch.autograd.gradcheck(summed, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(summed, (x,), check_fwd_over_rev=True)
    for got, right in yield_third_derivatives(
        compose_with_fourth_power(summed), compose_with_fourth_power(sum_with_index_add)
    ):
        assert_close(got(x.detach()), right(x.detach()), 1e-12)
    stacked = torch.stack([x.detach(), -x.detach()])
    assert_close(*(torch.vmap(compose_with_fourth_power(f))(stacked) for f in (summed, sum_with_index_add)), 1e-12)
    assert_close(torch.compile(summed, backend="aot_eager", fullgraph=True)(x), sum_with_index_add(x), 1e-15)
    assert make_dimenet().neighbors(pos[:1], torch.tensor([0])).into_atoms(x[:0]).shape == (1, 3)


def test_mismatched_neighbors_are_refused():
    model, (z, pos, cell, pbc) = make_dimenet(), convert_atoms_to_tensors(make_slab_atoms())
    neighbors = model.neighbors(pos, cell=cell, pbc=pbc)
    for more, text in [
        ({"batch": torch.zeros(4, dtype=torch.int64)}, "batch is given with neighbors; expected None, as they hold it"),
        ({"pbc": pbc}, "pbc is given with neighbors; expected None, as they hold it"),
        ({}, "Neighbors: cell is None; expected cells, because some edges cross their boundaries"),
    ]:
        with expect_error(f"ValueError: ...{text}"):
            model(z, pos, neighbors=neighbors, **more)
    with expect_error("ValueError: ...neighbors have 4 atoms; expected num_atoms = 3"):
        model(z[:3], pos[:3], cell=cell, neighbors=neighbors)
    with expect_error("TypeError: DimeNetPlusPlus: neighbors is a EdgeGraph; expected Neighbors"):
        model(z, pos, cell=cell, neighbors=neighbors.graph)
    with expect_error("ValueError: ...z goes from 29 to 95; expected atomic numbers from 0 to 94"):
        model(torch.tensor([29, 29, 95, 29]), pos, cell=cell, neighbors=neighbors)
    with expect_error("TypeError: ...pos has dtype torch.bfloat16; expected torch.float32 or torch.float64"):
        make_dimenet().bfloat16()(z, pos.bfloat16())
    with expect_error("ValueError: ...out_channels is 2; expected 1 for energy_forces_stress"):
        make_dimenet(out_channels=2).energy_forces_stress(z, pos)


MINIMA = {
    **dict.fromkeys(("num_blocks", "num_before_skip", "num_after_skip", "num_output_layers"), 0),
    **dict.fromkeys(("hidden_channels", "out_channels", "int_emb_size", "basis_emb_size", "out_emb_channels"), 1),
    "num_spherical": 2,
    "num_radial": 1,
    "envelope_exponent": 2,
    "max_num_neighbors": 1,
}


def test_smallest_layer_sizes_give_finite_results():
    """Energies and forces are finite for the smallest sizes of all layers."""
    results = make_dimenet(**MINIMA | {"num_blocks": 1, "num_output_layers": 1}).energy_forces_stress(
        *make_cluster_tensors(5)
    )
    assert results.energy.isfinite().all()
    assert results.forces.isfinite().all()
    assert make_dimenet(**MINIMA)(*make_cluster_tensors(5)).isfinite().all()


BAD_SIZES = [
    *(({n: least - 1}, f"ValueError: {n} is {least - 1}; expected at least {least}") for n, least in MINIMA.items()),
    ({"num_blocks": 2.0}, "TypeError: num_blocks is a float; expected an int"),
    ({"num_spherical": 9}, "ValueError: num_spherical is 9; expected at most 8"),
    ({"cutoff": float("nan")}, "ValueError: cutoff is nan; expected a finite number above 0"),
    ({"act": "swich"}, "ValueError: act is 'swich'; expected a callable or one of "),
    ({"output_initializer": "ones"}, "ValueError: output_initializer is 'ones'; expected 'zeros' or"),
]


@pytest.mark.parametrize(("change", "text"), BAD_SIZES, ids=str)
def test_bad_layer_sizes_are_refused(change, text):
    with expect_error(text.replace(": ", ": DimeNetPlusPlus: ", 1)):
        make_dimenet(**change)


def test_single_layers_check_their_arguments():
    """Layers used alone check their arguments (their results are covered by tests of the whole model)."""
    with expect_error("ValueError: RadialBasis: cutoff is inf; expected a finite number above 0"):
        RadialBasis(3, cutoff=float("inf"))
    with expect_error("TypeError: InteractionBlock: act is a int; expected a callable or the name of an activation"):
        InteractionBlock(12, 8, 4, 4, 3, 1, 2, 3)
