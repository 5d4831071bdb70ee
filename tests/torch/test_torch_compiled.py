"""Tests of trigraph.torch.compile_potential: one program for structures of any size, with differentiable forces."""

import contextlib
import copy
import io
import logging
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from ase.build import bulk
from compiled_programs import compiled_whole
from expect_error import expect_error

import trigraph
import trigraph.ase
import trigraph.torch as tt
from trigraph.table import NAMED
from trigraph.torch.graphs import list_graph_constants
from trigraph.torch.nn import DimeNetPlusPlus, Potential
from trigraph.torch.potentials.program_inputs import (
    ProgramInputs,
    list_neighbor_graphs,
    make_example_inputs,
    trace_program,
)
from trigraph.torch.potentials.program_key import ProgramKey
from trigraph.torch.potentials.replacement import copy_model_sharing_parameters
from trigraph.torch.potentials.traced import find_index_nodes, rewrite_sums, select_rows, sum_rows

pytestmark = compiled_whole
SIZES = {"hidden_channels": 32, "int_emb_size": 8, "basis_emb_size": 4, "out_emb_channels": 40}
LAYERS = {"num_before_skip": 0, "num_after_skip": 1, "num_output_layers": 1, "num_blocks": 1, "out_channels": 1}
FIELDS = {name: [f.name for f in op.fields] for name, op in NAMED.items()}
ROUNDING = 1000 * torch.finfo(torch.float64).eps  # tolerance for sums over edges and channels


def make_potential(**sizes):
    torch.manual_seed(0)
    return DimeNetPlusPlus(
        **SIZES | sizes, **LAYERS, num_spherical=3, num_radial=4, cutoff=3.0, output_initializer="glorot_orthogonal"
    ).double()


def draw_structure_tensors(sizes, seed=0):
    """Return atomic numbers, positions and batch of clusters whose numbers of atoms are `sizes`."""
    rng = np.random.default_rng(seed)
    lattice = 1.7 * np.stack(np.meshgrid(*[np.arange(3)] * 3), axis=-1).reshape(-1, 3)
    pos = [rng.permutation(lattice)[:n] + rng.uniform(-0.3, 0.3, (n, 3)) for n in sizes]
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.int64))
    return torch.tensor(rng.integers(1, 9, len(batch))), torch.tensor(np.concatenate([np.zeros((0, 3)), *pos])), batch


def assert_close(got, expected, factor=1):
    assert got.shape == expected.shape
    error = (got - expected).detach().abs().max() if got.numel() else 0.0
    assert error <= factor * ROUNDING * (expected.detach().abs().max().clamp(min=1.0) if got.numel() else 1.0)


BATCHES = [(4, 7), (9,), (4, 4), (12, 13, 5), (2, 1), (1, 1, 1), (3,) * 20, (1,), ()]


def assert_same_results(program, model, batches, periodic):
    """Assert that a compiled potential agrees with its model up to rounding for batches of any size."""
    for seed, sizes in enumerate(batches):
        z, pos, batch = draw_structure_tensors(sizes, seed)
        cell = 6.0 * torch.eye(3).double().repeat(len(sizes), 1, 1) if periodic else None
        got = program.energy_forces_stress(z, pos, batch, cell)
        expected = model.energy_forces_stress(z, pos, batch, cell)
        assert (got.stress is None) == (not periodic)
        for one, other in zip(got, expected, strict=True):
            if other is not None:
                assert_close(one, other)
                assert not one.requires_grad
        assert_close(program(z, pos, batch, cell), model(z, pos, batch, cell))


@pytest.mark.parametrize("periodic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_one_program_serves_all_sizes(periodic):
    """Batches of few, many, single and no atoms need one compilation and agree with the eager results."""
    model = make_potential()
    compiled = tt.compile_potential(model, backend="aot_eager")
    assert_same_results(compiled, model, BATCHES, periodic)
    assert compiled.compilations == 1


@pytest.mark.parametrize(
    ("curvature", "in_positions"),
    [(False, False), *(pytest.param(c, True, marks=pytest.mark.slow) for c in (False, True))],
)
def test_gradients_of_losses_agree_with_eager(curvature, in_positions):
    """Gradients of a loss of forces or of Hessian products agree with eager gradients after each step.

    Gradients with respect to positions (here for one batch) need a separate program, which takes as long to compile.
    """
    model = make_potential()
    compiled = tt.compile_potential(model, backend="aot_eager")
    optimizer = torch.optim.SGD(compiled.parameters(), lr=1e-3)
    for seed, sizes in enumerate([(5, 6), (8,), (3, 4, 7)]):
        z, pos, batch = draw_structure_tensors(sizes, seed)
        vector = torch.tensor(np.random.default_rng(seed).standard_normal(pos.shape), requires_grad=seed == 1)
        pos.requires_grad_(in_positions and seed == 1)
        gradients = []
        for one in (model, compiled):
            if curvature:
                product = one.hessian_vector_product(z, pos, vector, batch, create_graph=True)
                assert_close(one.hessian_vector_product(z, pos, vector, batch), product)
                loss = product.square().sum()
            else:
                results = one.energy_forces_stress(z, pos, batch, create_graph=True)
                loss = results.forces.square().sum() + results.energy.sum()
            inputs = [*model.parameters(), *([pos] + [vector] * curvature) * pos.requires_grad]
            gradients.append([loss, *torch.autograd.grad(loss, inputs, materialize_grads=True)])
        for got, expected in zip(*reversed(gradients), strict=True):
            assert_close(got, expected, 10)
        for p, gradient in zip(model.parameters(), gradients[1][1:], strict=False):
            p.grad = gradient
        optimizer.step()
    assert compiled.compilations == 1 + in_positions + curvature


class Springs(Potential):
    """A user's potential, springs between neighbours, which uses only the sums of `Neighbors`."""

    cutoff = 3.0

    def __init__(self):
        super().__init__()
        self.stiffness = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def atoms_of_vectors(self, z, vec, neighbors):
        distance = vec.square().sum(dim=1, keepdim=True).sqrt()
        return neighbors.into_atoms(0.25 * self.stiffness * (self.cutoff - distance).square())


def test_compiled_user_potential_agrees_with_eager():
    model = Springs()
    compiled = tt.compile_potential(model, backend="aot_eager")
    z, pos = torch.tensor([1, 1]), torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0]]).double()
    for one in (model, compiled):
        results = one.energy_forces_stress(z, pos, create_graph=True)
        assert results.energy.tolist() == [1.0]
        assert results.forces.tolist() == [[-2.0, 0.0, 0.0], [2.0, 0.0, 0.0]]
        (gradient,) = torch.autograd.grad(results.forces[1, 0], model.stiffness)
        assert gradient.item() == 1.0
        product = one.hessian_vector_product(z, pos, torch.eye(2, 3).double(), create_graph=True)
        assert product.tolist() == [[2.0, 1.0, 0.0], [-2.0, -1.0, 0.0]]
        (gradient,) = torch.autograd.grad(product[1, 0], model.stiffness)
        assert gradient.item() == -1.0
        assert one.hessian(z, pos)[1, 0].tolist() == [[-2.0, 0.0, 0.0], [2.0, 0.0, 0.0]]
    assert compiled(z, pos).tolist() == [1.0]
    z, pos, batch = draw_structure_tensors((5, 2, 4))
    more = {"batch": batch[torch.randperm(11)], "cell": 4.0 * torch.eye(3).double().repeat(3, 1, 1)}
    expected = model.hessian(z, pos, **more)
    assert_close(compiled.hessian(z, pos, block_size=10, **more), expected)
    rows = compiled.hessian(z, pos, neighbors=model.neighbors(pos, **more), cell=more["cell"], atoms=[3])
    assert_close(rows, expected[3:4])
    assert compiled.hessian(z[:1], pos[:1]).abs().sum() == 0
    with expect_error("NotImplementedError: ..._NoAtoms does not define atoms_of_vectors"):
        type("_NoAtoms", (Potential,), {"cutoff": 1.0})()(z, pos.float())


def trace_program_and_example(model, z, pos, batch, vector=None):
    """Return a model's traced program, the state of its key, and an example of the program's arguments."""
    neighbors, key = model.neighbors(pos, batch), ProgramKey(model)
    example = make_example_inputs(model, ProgramInputs.from_neighbors(z, pos, None, neighbors, vector))
    constants = tuple(map(list_graph_constants, list_neighbor_graphs(neighbors)))
    program = trace_program(copy_model_sharing_parameters(model, key), constants, example, ())
    return program, key.state, example


def test_unneeded_parameter_gradients_are_skipped():
    """Hessians and programs do not compute parameter gradients; `hessian` calls the model itself, not a copy."""

    class GradFlagRecordingSprings(Springs):
        def __init__(self):
            super().__init__()
            self.inner, self.seen = Springs(), []
            self.register_buffer("calls", torch.zeros(()))

        def atoms_of_vectors(self, *arguments):
            self.calls += 1
            self.seen.append((self.stiffness.requires_grad, self.inner.stiffness.requires_grad))
            return super().atoms_of_vectors(*arguments)

    model, (z, pos, _) = GradFlagRecordingSprings(), draw_structure_tensors((3,))
    hessian = model.hessian(z, pos)
    assert model.seen == [(False, False)]
    assert model.calls == 1
    assert all(p.requires_grad for p in model.parameters())
    assert torch.equal(hessian, Springs().hessian(z, pos))
    program, _, _ = trace_program_and_example(make_potential(), z, pos, None, torch.ones_like(pos))
    asked = {n.target.name().split("::")[1]: n.args[-1] for n in program.graph.nodes if "bwd" in str(n.target)}
    fields = {"agg_edge_to_edge_bwd": 3, "agg_edge_to_edge_bwd2": 4, "radial_basis_bwd": 1, "radial_basis_bwd2": 3}
    for name, number in fields.items():  # the program requests all fields except the last (weights or freq)
        wanted = asked[name]
        assert wanted == (2**number - 1 if isinstance(wanted, int) else ",".join(FIELDS[name][:number]))


@pytest.mark.parametrize("wrong", [lambda atoms: atoms[:, 0], lambda atoms: atoms.T, lambda atoms: atoms[:1]])
def test_energies_of_wrong_shape_are_refused(wrong):
    class WrongShapeSprings(Springs):
        def atoms_of_vectors(self, *arguments):
            return wrong(super().atoms_of_vectors(*arguments))

    model, (z, pos, batch) = WrongShapeSprings(), draw_structure_tensors((5, 6))
    compiled = tt.compile_potential(model, backend="eager")
    for call in (model, model.energy_forces_stress, compiled, compiled.energy_forces_stress):
        with expect_error(
            "ValueError: WrongShapeSprings.atoms_of_vectors: ...; expected (num_atoms, out_channels) = (..., 1)"
        ):
            call(z, pos, batch)


@pytest.mark.parametrize("detach", [lambda atoms: atoms.detach(), lambda atoms: atoms.detach().requires_grad_()])
def test_energies_independent_of_vectors_are_refused(detach):
    """Models whose energies do not depend on vectors are refused if there are edges; isolated atoms have no forces."""

    class DetachedEnergySprings(Springs):
        def atoms_of_vectors(self, *arguments):
            return detach(super().atoms_of_vectors(*arguments))

    model, (z, pos, batch) = DetachedEnergySprings(), draw_structure_tensors((5, 6))
    with expect_error("ValueError: Potential.atoms_of_vectors: ...do not depend on vec; expected"):
        model.energy_forces_stress(z, pos, batch)
    forces = model.energy_forces_stress(z[:1], pos[:1], create_graph=True).forces
    assert forces.tolist() == [[0.0, 0.0, 0.0]]
    assert model.hessian(z[:1], pos[:1]).abs().sum() == 0


def test_each_dtype_has_its_own_program():
    """Each dtype has its own program; invalid input raises the same errors as in the eager potential."""
    model = Springs()
    compiled = tt.compile_potential(model, backend="eager")
    z, pos, batch = draw_structure_tensors((5, 6))
    double = compiled.energy_forces_stress(z, pos, batch)
    model.float()
    single = compiled.energy_forces_stress(z.int(), pos.float(), batch.int())
    assert single.energy.dtype == torch.float32
    assert (single.energy - double.energy).abs().max() <= 500 * 2**-24 * double.energy.abs().max()
    assert compiled.compilations == 2
    with expect_error("TypeError: Springs: pos has dtype torch.float64; expected torch.float32, as for the parameters"):
        compiled.energy_forces_stress(z, pos, batch)
    with expect_error("TypeError: compile_potential: model is a Linear; expected a trigraph.torch.nn.Potential"):
        tt.compile_potential(torch.nn.Linear(1, 1))


def test_models_that_detach_vectors_are_refused():
    class PartlyDetachedSprings(Springs):
        def atoms_of_vectors(self, z, vec, neighbors):
            return super().atoms_of_vectors(z, vec.detach() + vec, neighbors)

    z, pos, batch = draw_structure_tensors((5, 6))
    pos.requires_grad_()  # the model and its program differ only in gradients with respect to positions
    with expect_error("RuntimeError: compile_potential: PartlyDetachedSprings and its program differ by ..."):
        tt.compile_potential(PartlyDetachedSprings(), backend="eager").energy_forces_stress(
            z, pos, batch, create_graph=True
        )


def test_size_dependent_branches_run_eagerly_with_warning():
    """If a model branches on sizes, calls that take another branch run eagerly with a warning."""

    class SizeBranchingSprings(Springs):
        def atoms_of_vectors(self, z, vec, neighbors):
            energies = super().atoms_of_vectors(z, vec, neighbors)
            return 2.0 * energies if z.shape[0] > 20 else energies

    model = SizeBranchingSprings()
    compiled = tt.compile_potential(model, backend="eager")
    for sizes in [(9, 12), (5, 6)]:
        z, pos, batch = draw_structure_tensors(sizes)
        with pytest.warns(UserWarning, match="branch, for 11 atoms") if sizes == (5, 6) else contextlib.nullcontext():
            results = compiled.energy_forces_stress(z, pos, batch)
        assert_close(results.energy, model.energy_forces_stress(z, pos, batch).energy)


class NeuralSprings(Springs):
    """A potential with submodules, to which tests add hooks and wrappers."""

    def __init__(self, inner=None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(1, 8).double(), torch.nn.Linear(8, 1).double()
        self.inner, self.scale = inner or torch.nn.Dropout(0.0), 1.0
        self.held = {"list": [1.0], "dict": {"factor": 1.0}, "set": {0, 8}}

    def atoms_of_vectors(self, z, vec, neighbors):
        distance = vec.square().sum(dim=1, keepdim=True).sqrt()
        weight = self.scale * self.held["dict"]["factor"] * (self.cutoff - distance).square()
        return neighbors.into_atoms(self.last(self.inner(torch.tanh(self.first(distance)))) * weight)


@pytest.mark.slow
def test_one_compilation_for_few_and_many_edges():
    """Few and many edges share one program, although torch compiles float32 sums differently beyond 4096 terms."""
    model = NeuralSprings(torch.nn.Linear(8, 8).double())
    compiled = tt.compile_potential(copy.deepcopy(model).float())
    for number in (5, 70):
        pos = torch.tensor(np.random.default_rng(number).uniform(size=(number, 3)))
        gradients = []
        for one, dtype in ((compiled, torch.float32), (model, torch.float64)):
            results = one.energy_forces_stress(torch.full((number,), 6), pos.to(dtype), create_graph=True)
            loss = results.forces.square().mean() + results.energy.square().mean()
            gradients.append(torch.autograd.grad(loss, list(one.parameters()), materialize_grads=True))
        for got, expected in zip(*gradients, strict=True):
            # Results are sums of at most 4830 terms with a few rounding errors each, which partly cancel.
            assert (got - expected).abs().max() <= 4830 * torch.finfo(torch.float32).eps * expected.abs().max()
    assert compiled.compilations == 1


def test_derivatives_of_sums_are_selections():
    """In traced programs, derivatives of sums over edges or atoms are replaced by row selections."""
    model = make_potential()
    program, state, example = trace_program_and_example(model, *draw_structure_tensors((4, 7)))
    before = program(state, *example)
    rewrite_sums(program, find_index_nodes(program, state, example))
    targets = [node.target for node in program.graph.nodes]
    number = 1 + len(model.output_blocks)  # sums into structures, and into atoms in each block
    assert targets.count(sum_rows) == targets.count(select_rows) == number
    assert sum("agg_weighted_n2n_bwd" in str(target) for target in targets) == 1  # sums forces on edges into atoms
    after = program(state, *example)
    for got, right in zip(after, before, strict=True):
        assert (got is None and right is None) or torch.equal(got, right)
    gradients = [torch.autograd.grad(r[1].square().sum(), [*model.parameters()][:3]) for r in (before, after)]
    for got, right in zip(*gradients, strict=True):
        assert_close(got, right)


class MeanAndSumPotential(NeuralSprings):
    """A potential with means and weighted sums on the graph for sums into atoms."""

    def atoms_of_vectors(self, z, vec, neighbors):
        squares = vec.square().sum(dim=1, keepdim=True)
        mean = tt.agg_weighted_n2n(squares, None, neighbors.into, op="mean").output_embedding
        return mean.square() + tt.agg_weighted_n2n(squares, squares[:, 0], neighbors.into).output_embedding


def test_means_and_weighted_sums_are_not_taken_for_sums():
    model, (z, pos, batch) = MeanAndSumPotential(), draw_structure_tensors((4, 7))
    gradients = []
    for one in (model, tt.compile_potential(model, backend="aot_eager")):
        results = one.energy_forces_stress(z, pos.requires_grad_(), batch, create_graph=True)
        gradients.append((results.energy, results.forces, *torch.autograd.grad(results.forces.square().sum(), pos)))
    for expected, got in zip(*gradients, strict=True):
        assert_close(got, expected)


def make_batch_norm():
    return torch.nn.BatchNorm1d(8).double()


@pytest.mark.parametrize(
    ("training", "refused"),
    [
        (True, None),
        (False, None),
        pytest.param(True, "program of NeuralSprings is compiled again for other numbers", marks=pytest.mark.slow),
    ],
)
def test_compiled_call_has_effects_of_eager_call(training, refused):
    """A call has the same effect on buffers, gradients and random numbers as an eager call, or none if refused."""
    eager, state = NeuralSprings(make_batch_norm()).train(training), torch.get_rng_state()
    model = copy.deepcopy(eager)
    compiled = tt.compile_potential(model, backend="aot_eager")
    for seed in range(1 if refused else 2):
        with expect_error(f"RuntimeError: ...the {refused} of ...") if refused else contextlib.nullcontext():
            compiled.energy_forces_stress(*draw_structure_tensors((5, 6), seed), create_graph=bool(refused))
        if not refused:
            eager.energy_forces_stress(*draw_structure_tensors((5, 6), seed))
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    for name, buffer in eager.named_buffers():
        assert_close(dict(model.named_buffers())[name].double(), buffer.double())
    assert eager.inner.num_batches_tracked == (2 if training and not refused else 0)


@pytest.mark.slow
def test_copies_and_pickles_have_programs_of_their_own():
    inputs, compiled, file = (
        draw_structure_tensors((5, 6)),
        tt.compile_potential(NeuralSprings(), backend="eager"),
        io.BytesIO(),
    )
    unused = pickle.loads(pickle.dumps(compiled))
    assert_close(compiled.energy_forces_stress(*inputs).energy, compiled.model.energy_forces_stress(*inputs).energy)
    torch.save(compiled, file)
    file.seek(0)
    for other in (copy.deepcopy(compiled), torch.load(file, weights_only=False), unused):
        assert (other.compilations, other.options) == (0, {"backend": "eager"})
        with torch.no_grad():
            other.model.last.weight.mul_(2.0)
        assert_close(other.energy_forces_stress(*inputs).energy, other.model.energy_forces_stress(*inputs).energy)
    assert_close(compiled.energy_forces_stress(*inputs).energy, compiled.model.energy_forces_stress(*inputs).energy)


@pytest.mark.slow
def test_simultaneous_first_calls_are_correct():
    """Threads that make their first calls at the same time get correct results, and tracing still works afterwards."""
    inputs, model = draw_structure_tensors((5, 6)), NeuralSprings()
    potentials = [tt.compile_potential(one, backend="eager") for one in (model, copy.deepcopy(model))]
    meeting = threading.Barrier(4)

    def compute_forces_at_barrier(i):
        meeting.wait()
        return potentials[i % 2].energy_forces_stress(*inputs, create_graph=i > 1).forces

    with ThreadPoolExecutor(4) as pool:
        for forces in pool.map(compute_forces_at_barrier, range(4)):
            assert_close(forces, model.energy_forces_stress(*inputs).forces)
    assert [one.compilations for one in potentials] == [2, 2]
    other = NeuralSprings(torch.nn.Tanh())
    got = tt.compile_potential(other, backend="eager").energy_forces_stress(*inputs)
    assert_close(got.forces, other.energy_forces_stress(*inputs).forces)


def test_recompile_waits_for_a_program_that_another_thread_makes():
    """`recompile` waits for a program that is being compiled, and discards it, because the model has changed."""
    inputs, calls, traced, go = draw_structure_tensors((5, 6)), [], threading.Event(), threading.Event()

    class PausingSprings(Springs):
        config = type("Config", (), {"factor": 1.0})

        def atoms_of_vectors(self, *arguments):
            calls.append(self.config.factor)
            if len(calls) == 2:  # the first call is eager
                traced.set()
                assert go.wait(60)
            return calls[-1] * super().atoms_of_vectors(*arguments)

    compiled = tt.compile_potential(PausingSprings(), backend="eager")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: compiled.energy_forces_stress(*inputs).energy)
        assert traced.wait(60)
        PausingSprings.config.factor = 2.0
        second = pool.submit(compiled.recompile)
        assert not second.done()
        go.set()
        expected = 2.0 * first.result()
        second.result()
    assert compiled.programs == []
    assert_close(compiled.energy_forces_stress(*inputs).energy, expected)


class CallCountingSprings(NeuralSprings):
    calls = 0

    def atoms_of_vectors(self, *arguments):
        self.calls += 1
        return super().atoms_of_vectors(*arguments)


class BufferAssigningSprings(NeuralSprings):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def atoms_of_vectors(self, *arguments):
        self.calls = self.calls + 1
        return super().atoms_of_vectors(*arguments)


class PlainTensorSprings(NeuralSprings):
    def __init__(self):
        super().__init__()
        self.factor = torch.ones(1).double()

    def atoms_of_vectors(self, *arguments):
        return self.factor * super().atoms_of_vectors(*arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (CallCountingSprings, "RuntimeError: ...Springs changes calls when it is called, as a program would not; ..."),
        (BufferAssigningSprings, "RuntimeError: ...Springs and its program change buffer calls differently, by 1..."),
        (
            PlainTensorSprings,
            "RuntimeError: ...PlainTensorSprings cannot be traced; ..., with buffers instead of tensors in factor: ...",
        ),
        (lambda: NeuralSprings(torch.nn.Dropout(0.5)), "RuntimeError: ...does it detach a tensor, ... random numbers?"),
    ],
)
def test_models_that_tracing_misrepresents_are_refused(make, message):
    model, state = make(), torch.get_rng_state()
    with expect_error(message):
        tt.compile_potential(model, backend="eager").energy_forces_stress(*draw_structure_tensors((5, 6)))
    assert torch.equal(state, torch.get_rng_state())
    assert getattr(model, "calls", 0) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dynamic": False}, "TypeError: compile_potential: dynamic is given; expected only backend, mode, ..."),
        ({"fullgraph": True}, "TypeError: compile_potential: fullgraph is given; expected only backend, mode, ..."),
        ({"mode": "fast"}, "RuntimeError: Unrecognized mode=fast, ..."),
    ],
)
def test_unknown_compile_options_are_refused(options, message):
    with expect_error(message):
        tt.compile_potential(NeuralSprings(), **options)


@pytest.mark.parametrize(
    ("make", "periodic", "create_graph"),
    [
        (NeuralSprings, False, False),
        pytest.param(NeuralSprings, True, True, marks=pytest.mark.slow),
        pytest.param(lambda: make_potential(out_emb_channels=16), False, False, marks=pytest.mark.slow),
        pytest.param(lambda: make_potential(out_emb_channels=16), True, True, marks=pytest.mark.slow),
    ],
)
def test_each_kind_of_call_is_compiled_once(make, periodic, create_graph):
    """Each kind of call is compiled once, even with Inductor's decompositions, some of which depend on sizes."""
    compiled = tt.compile_potential(make(), backend="aot_eager_decomp_partition")
    cell = 9.0 * torch.eye(3).double()
    for sizes in [(3,), (9, 4), (2,), (20,), (1, 2, 3)]:
        z, pos, batch = draw_structure_tensors(sizes)
        cells = cell.repeat(len(sizes), 1, 1) if periodic else None
        pos = torch.nn.Parameter(pos) if sizes == (20,) else pos
        twice = torch.arange(2 * len(z)) // 2
        compiled.energy_forces_stress(z[twice][::2], pos, batch[twice][::2], cells, create_graph=create_graph)
        one = {"cell": cell if periodic else None, "create_graph": create_graph}
        compiled.energy_forces_stress(z[:1].expand(len(z)).int(), pos, **one)
    assert compiled.compilations == 1 + create_graph  # one more because a Parameter requires a gradient


def test_compilation_progress_is_logged(caplog, capsys):
    with caplog.at_level(logging.INFO, "trigraph"):
        tt.compile_potential(NeuralSprings(), backend="eager").energy_forces_stress(*draw_structure_tensors((5, 6)))
    told = [record.getMessage() for record in caplog.records if record.name == "trigraph"]
    assert [text.split(" in ")[0] for text in told] == [
        "compile_potential: compiling NeuralSprings; this may take minutes",
        "compile_potential: compiled NeuralSprings",
    ]
    assert capsys.readouterr().err == ""  # no progress bar without a terminal


@pytest.mark.slow
def test_inductor_compiles_dynamics_and_batches_once():
    """Inductor compiles one program for a hundred neighbour lists, and one for batches of molecules."""
    model = make_potential()
    atoms = bulk("Cu", cubic=True).repeat(2)
    atoms.rattle(0.05, seed=0)
    atoms.calc = trigraph.ase.Calculator(model, compile=True)
    rng, edges = np.random.default_rng(0), set()
    for _ in range(100):
        atoms.positions += rng.normal(0, 0.02, atoms.positions.shape)
        forces, eager = atoms.get_forces(), trigraph.ase.Calculator(model).get_forces(atoms)
        assert np.abs(forces - eager).max() <= ROUNDING * max(1.0, np.abs(eager).max())
        edges.add(model.neighbors(torch.tensor(atoms.positions), cell=torch.tensor(atoms.cell[:])).graph.num_edges)
    assert len(edges) > 10
    assert atoms.calc.model.compilations == 1
    compiled = tt.compile_potential(model)
    assert_same_results(compiled, model, [*BATCHES, *rng.integers(1, 27, (20, 5))], periodic=False)
    assert compiled.compilations == 1
