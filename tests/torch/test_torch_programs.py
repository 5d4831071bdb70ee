"""Tests of trigraph.torch in compiled, traced and exported programs, under vmap, and in other processes."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from compiled_programs import compiled_whole  # noqa: E402
from table_calls import draw_operator_arguments  # noqa: E402
from test_torch_native import flatten_arguments, list_field_names  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import trigraph  # noqa: E402
import trigraph.torch as tt  # noqa: E402
from trigraph import CSC, EdgeGraph, Segments  # noqa: E402
from trigraph.fortran.levels import find_torch_operator_language  # noqa: E402
from trigraph.table import SYMBOLS  # noqa: E402
from trigraph.torch import batches  # noqa: E402
from trigraph.torch.library import OPERATORS_OF_TORCH, TorchOperator  # noqa: E402

DTYPE = torch.float64


@pytest.fixture(autouse=True)
def _reset_compiler():
    """Reset torch's compiler, which compiles a function only a few times."""
    torch.compiler.reset()


def make_attention_graph():
    return CSC(np.array([0, 2, 3, 6, 6]), np.array([0, 1, 2, 0, 1, 3]))


def compute_attention_loss(x, weights, graph):
    return tt.mha_gat_n2n(x, x, weights, graph, 2, activation="ELU").output_embedding.tanh().square().sum()


def draw_attention_inputs():
    torch.manual_seed(0)
    return tuple(torch.randn(*s, dtype=DTYPE, requires_grad=True) for s in ((4, 6), (12,)))


def make_energy_arguments():
    """Return positions, weights, the graph, its sources and destinations, and frequencies."""
    torch.manual_seed(0)
    positions = torch.randn(6, 3, dtype=DTYPE)
    graph = EdgeGraph.from_positions(positions, 3.0).graph
    ends = torch.from_numpy(np.array(graph.src)), torch.from_numpy(np.array(graph.dst))
    weights = 0.3 * torch.randn(7 * 6 + 4, 3, dtype=DTYPE)
    return positions.requires_grad_(), weights.requires_grad_(), graph, *ends, np.pi * torch.arange(1, 7, dtype=DTYPE)


def compute_energy(positions, weights, graph, src, dst, frequencies):
    vec = positions[src] - positions[dst]
    basis = tt.radial_basis(vec.norm(dim=1) / 3.0, frequencies)
    return tt.agg_edge_to_edge(vec, basis.sbf_rad, basis.rbf[:, :4].tanh(), weights, graph).square().sum()


def compute_energy_and_forces(positions, *rest):
    total = compute_energy(positions, *rest)
    (gradient,) = torch.autograd.grad(total, positions, create_graph=True)
    return total, -gradient


def assert_close(got, expected):
    """Compare values of order 1 from a few hundred operations, in which sums may be added in another order."""
    np.testing.assert_allclose(got.detach().numpy(), expected.detach().numpy(), rtol=1e-10, atol=1e-10)


@compiled_whole
def test_compiled_model_refuses_graph_without_tensors():
    graph = make_attention_graph()
    graph._built.clear()
    with pytest.raises(Exception, match=r"this graph was built before trigraph\.torch was imported"):
        torch.compile(compute_attention_loss, fullgraph=True, backend="aot_eager")(*draw_attention_inputs(), graph)
    with torch.no_grad():
        expected = compute_attention_loss(*draw_attention_inputs(), graph)  # the first use creates the graph's tensors
    got = torch.compile(compute_attention_loss, fullgraph=True, backend="aot_eager")(*draw_attention_inputs(), graph)
    assert torch.equal(got, expected)


def test_a_graph_that_changes_before_the_backward_is_noticed():
    """Changing a graph's tensors before the backward pass raises torch's error about in-place changes."""
    graph = make_attention_graph()
    apart, indices = tt.GraphTensors.from_graph(graph), graph.indices.copy()
    result = compute_attention_loss(*draw_attention_inputs(), apart)
    apart.tensors[1].zero_()
    assert np.array_equal(graph.indices, indices)  # GraphTensors holds copies
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_result_keeps_no_graph_after_its_backward():
    graph = make_attention_graph()
    seen = weakref.ref(graph.indices)
    result = compute_attention_loss(*draw_attention_inputs(), graph)
    del graph
    gc.collect()
    assert seen() is not None
    result.backward()
    gc.collect()
    assert seen() is None
    assert result.grad_fn is not None


@pytest.mark.slow
def test_third_derivatives_traced_for_graphs_of_any_size():
    """Traced third derivatives work for sizes and numbers of parallel edges that differ from the example's."""

    def differentiate_three_times(*tensors_and_graph):
        *tensors, graph = tensors_and_graph
        y = tt.agg_edge_to_edge(*tensors, graph, 3, 2).sin().sum()
        for _ in range(3):
            grads = torch.autograd.grad(y, tensors, create_graph=True)
            y = sum(g.square().sum() for g in grads)
        return y

    def draw_triplet_sum_arguments(*numbers):
        out, back = numbers
        src = np.repeat([0, 0, 1, 1, 2, 3], [out, 1, back, 1, 1, 1])
        graph = trigraph.EdgeGraph(src, np.repeat([1, 2, 0, 2, 0, 1], [out, 1, back, 1, 1, 1]), 4).prepare()
        rng = np.random.default_rng(0)
        shapes = (graph.num_edges, 3), (graph.num_edges, 6), (graph.num_edges, 8), (14, 2)
        return [torch.from_numpy(rng.uniform(0.5, 1, s)).requires_grad_() for s in shapes], graph

    tensors, graph = draw_triplet_sum_arguments(1, 2)
    program = make_fx(differentiate_three_times, tracing_mode="symbolic")(*tensors, tt.GraphTensors.from_graph(graph))
    for edges in ((1, 1), (1, 3), (6, 1)):
        tensors, graph = draw_triplet_sum_arguments(*edges)
        assert torch.allclose(
            program(*tensors, tt.GraphTensors.from_graph(graph)), differentiate_three_times(*tensors, graph), rtol=1e-9
        )


@compiled_whole
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_traced_and_compiled_forces_train_as_eager_ones(mode, backend):
    arguments = make_energy_arguments()
    expected = compute_energy_and_forces(*arguments)
    (wanted,) = torch.autograd.grad(expected[1].square().sum(), arguments[1])
    positions, weights, graph, *rest = arguments
    arguments = positions, weights, tt.GraphTensors.from_graph(graph), *rest
    traced = make_fx(compute_energy_and_forces, tracing_mode=mode)(*arguments)
    names = {str(node.target) for node in traced.graph.nodes}
    library = "trigraph_cpu" if find_torch_operator_language()[0] == "C++" else "trigraph"
    assert {f"{library}.agg_edge_to_edge_{order}.default" for order in ("fwd", "bwd")} <= names
    for function in (traced, torch.compile(traced, fullgraph=True, backend=backend)):
        total, forces = function(*arguments)
        assert_close(total, expected[0])
        assert_close(forces, expected[1])
        (gradient,) = torch.autograd.grad(forces.square().sum(), arguments[1])
        np.testing.assert_allclose(gradient.numpy(), wanted.numpy(), rtol=1e-9, atol=1e-9 * wanted.abs().max().item())


def compute_tangent_and_vmap(positions, rest, graph):
    """Return a directional derivative (forward mode) and the messages of a batch (vmap)."""
    function = lambda p: compute_energy(p, *rest)  # noqa: E731
    message = lambda p: tt.agg_weighted_n2n(p, None, graph).output_embedding  # noqa: E731
    with forward_ad.dual_level():
        along = forward_ad.unpack_dual(function(forward_ad.make_dual(positions, positions.cos()))).tangent
    return along, torch.func.vmap(message)(torch.stack([positions[:4], positions[1:5]]))


@compiled_whole
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("eager", marks=pytest.mark.slow)])
def test_compiled_transforms_agree_with_eager_ones(backend):
    """Compiled torch.func transforms agree with eager ones."""
    positions, *rest = make_energy_arguments()
    rest = [r.detach() if isinstance(r, torch.Tensor) else r for r in rest]
    positions, graph = positions.detach(), make_attention_graph()
    expected = compute_tangent_and_vmap(positions, rest, graph)
    program = torch.compile(compute_tangent_and_vmap, backend=backend, fullgraph=True)
    for got, right in zip(program(positions, rest, graph), expected, strict=True):
        assert right.abs().max() > 0.1
        assert_close(got / right.abs().max(), right / right.abs().max())
    message = lambda p: tt.agg_weighted_n2n(p, None, graph).output_embedding.sin().sum()  # noqa: E731
    for transform in (torch.func.grad, torch.func.jacfwd, torch.func.hessian):
        try:  # torch 2.15 falls back to eager mode
            got = torch.compile(transform(message), backend=backend)(positions[:4])
        except RuntimeError as error:
            assert "a compiled program differentiates it by torch.func" in str(error)  # noqa: PT017
        else:
            right = transform(message)(positions[:4])
            assert_close(got / right.abs().max(), right / right.abs().max())
        traced = make_fx(transform(message))(positions[:4])
        got, right = torch.compile(traced, backend=backend)(positions[1:5]), transform(message)(positions[1:5])
        assert_close(got / right.abs().max(), right / right.abs().max())


@compiled_whole
def test_graphs_can_be_built_in_transforms_and_programs():
    """Graphs can be built inside torch.func transforms, and in compiled programs, which then have a graph break."""
    x, edge_index = torch.randn(4, 3, dtype=DTYPE), torch.tensor([[0, 1, 2, 0, 1, 3], [0, 0, 1, 2, 2, 2]])

    def compute_sum_loss(x, graph=None):
        graph = CSC.from_edge_index(edge_index[:, :], 4) if graph is None else graph
        return tt.agg_weighted_n2n(2 * x, None, graph).output_embedding.tanh().square().sum()

    graph = CSC.from_edge_index(edge_index, 4)
    for transform in (torch.func.grad, torch.func.jacfwd, torch.func.hessian):
        assert torch.equal(transform(compute_sum_loss)(x), transform(lambda x: compute_sum_loss(x, graph))(x))
    cold, kept = CSC.from_edge_index(edge_index, 4), []

    def compute_loss_with_kept_graph(x):
        if not kept:
            kept.append(CSC.from_edge_index(edge_index, 4))
        return compute_sum_loss(x, kept[0])

    # Graphs are first used inside one transform (hessian), then reused in another (grad).
    for first_used_inside in (lambda x: compute_sum_loss(x, cold), compute_loss_with_kept_graph):
        for transform in (torch.func.hessian, torch.func.grad):
            assert torch.equal(transform(first_used_inside)(x), transform(lambda x: compute_sum_loss(x, graph))(x))
    assert torch.equal(torch.compile(compute_sum_loss, backend="eager")(x), compute_sum_loss(x, graph))
    index, matrix = torch.tensor([0, 0, 3, 1]), torch.randn(3, 2, 5, dtype=DTYPE)

    def embed_triplets(x):
        return tt.basis_embedding_triplets(2 * x, matrix, torch.ones(4, 2, dtype=DTYPE), index)

    assert torch.equal(torch.compile(embed_triplets, backend="eager")(x), embed_triplets(x))

    def sum_into_output(x, out):
        tt.agg_weighted_n2n(2 * x, None, graph, out={"output_embedding": out})
        return 2 * out

    got = torch.compile(sum_into_output, backend="eager")(x, torch.empty(4, 3, dtype=DTYPE))
    assert torch.equal(got, sum_into_output(x, x.clone()))
    with pytest.raises(TypeError, match=r"CSC: edge_index is a torch\.Tensor batched by torch\.vmap \(join the graphs"):
        torch.vmap(lambda e: CSC.from_edge_index(e, 4) and e)(edge_index[None])


@pytest.mark.parametrize("rows", [1 << 16, *(pytest.param(n, marks=pytest.mark.slow) for n in (25, 120))])
def test_vmap_equals_separate_calls_bitwise(rows, monkeypatch):
    """vmap equals separate calls bitwise, whether all arrays, all but the last, or a single array are batched."""
    monkeypatch.setattr(batches, "MOST_ROWS", rows)
    numbers, unrecorded, of_all = [], TorchOperator.compute_unrecorded, lambda a: batches.find_member_axis(a) is None
    monkeypatch.setattr(
        TorchOperator, "compute_unrecorded", lambda op, args: numbers.append(op) or unrecorded(op, args)
    )
    for op in OPERATORS_OF_TORCH.values():
        settings = op.op.definition.settings or ({},)
        empty = dict.fromkeys((n for n in op.op.definition.symbols if SYMBOLS[n].minimum == 0), 0)
        for k, (setting, sizes) in enumerate([*((one, {}) for one in settings), (settings[-1], empty)]):
            dtype, index = ((np.float64, np.int64), (np.float32, np.int32))[k % 2]
            values = draw_operator_arguments(op.op, dtype, index, setting=setting, **sizes)
            args = flatten_arguments(op, values, list_field_names(op, values))
            places = [place for place, t in enumerate(args[: op.num_arrays]) if t is not None]
            for some in {(*places,), (*places[:-1],), *((place,) for place in places)} - {()}:
                entries = [[args[p] * (1 + i % 2 * args[p].is_floating_point()) for p in some] for i in range(5)]

                def call_operator_with_tensors(*tensors, op=op, args=args, some=some):
                    given = dict(zip(some, tensors, strict=True))
                    results = op.call_with_flat_arguments(*(given.get(place, a) for place, a in enumerate(args)))
                    return results if isinstance(results, tuple) else (results,)

                numbers.clear()
                got = torch.vmap(call_operator_with_tensors)(*map(torch.stack, zip(*entries, strict=True)))
                if rows == 1 << 16:  # also check the number of operator calls
                    each = any(of_all(op.op.arguments[place]) for place in some)
                    assert len(numbers) == (6 if each else 2 + 5 * any(map(of_all, op.op.fields))), (op.op.name, some)
                expected = map(
                    torch.stack, zip(*(call_operator_with_tensors(*tensors) for tensors in entries), strict=True)
                )
                for t, right in zip(got, expected, strict=True):
                    assert t.shape == right.shape
                    assert t.numpy().tobytes() == right.numpy().tobytes(), (op.op.name, setting, some)


class _FunctionModule(torch.nn.Module):
    """A module that calls a function, for `torch.export`."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def compute_embedding_loss(rad_basis, weight, sph_basis, triplets):
    return tt.basis_embedding_triplets(rad_basis, weight, sph_basis, triplets).square().sum()


EXPORTED = {
    "CSC": (compute_attention_loss, lambda: (*draw_attention_inputs(), make_attention_graph())),
    "EdgeGraph": (compute_energy, make_energy_arguments),
    "Segments": (
        compute_embedding_loss,
        lambda: (*(torch.ones(s, dtype=DTYPE) for s in ((4, 3), (3, 2, 5), (3, 2))), Segments(np.array([1, 0, 1]), 4)),
    ),
}


@compiled_whole
@pytest.mark.parametrize(("function", "arguments"), EXPORTED.values(), ids=EXPORTED)
def test_an_exported_model_takes_a_graph(function, arguments, tmp_path):
    arguments = tuple(
        tt.GraphTensors.from_graph(a) if isinstance(a, (CSC, EdgeGraph, Segments)) else a for a in arguments()
    )
    program = torch.export.export(_FunctionModule(function), arguments)
    assert program.module()(*arguments).item() == function(*arguments).item()
    torch.export.save(program, tmp_path / "program.pt2")
    again = torch.export.load(tmp_path / "program.pt2")
    assert again.module()(*arguments).item() == function(*arguments).item()


def test_a_graph_of_tensors_is_refused_beside_arrays():
    graph = tt.GraphTensors.from_graph(make_attention_graph()).graph()
    assert graph.kind == "torch"
    with pytest.raises(TypeError, match=r"graph holds torch\.Tensor; backend 'fortran' takes numpy\.ndarray"):
        trigraph.agg_weighted_n2n_fwd(np.ones((4, 2)), None, graph)


def test_threads_compute_equal_gradients():
    x, weights = draw_attention_inputs()

    def compute_gradients(_):
        return torch.autograd.grad(compute_attention_loss(x, weights, make_attention_graph()), (x, weights))

    expected = compute_gradients(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(all(map(torch.equal, got, expected)) for got in pool.map(compute_gradients, range(80)))


def call_among_fake_tensors(work):
    with FakeTensorMode(allow_non_fake_inputs=True):
        work()


MODES = {
    "fake tensors": call_among_fake_tensors,
    "inference mode": lambda work: torch.inference_mode()(work)(),
    "make_fx": lambda work: make_fx(lambda x: (work(), x)[1], tracing_mode="fake", _allow_non_fake_inputs=True)(
        torch.ones(1)
    ),
    "grad": lambda work: torch.func.grad(lambda x: (work(), x.sum())[1])(torch.ones(1)),
    "vmap": lambda work: torch.func.vmap(lambda x: (work(), x)[1])(torch.ones(2, 1)),
}


@pytest.mark.parametrize("under", MODES)
def test_graph_first_used_in_any_mode_keeps_ordinary_tensors(under):
    x, weights = (t.detach() for t in draw_attention_inputs())
    value = compute_attention_loss(x, weights, make_attention_graph())
    expected = torch.func.grad(compute_attention_loss)(x, weights, make_attention_graph())
    prepared, called, built = make_attention_graph(), make_attention_graph(), []

    def compute_loss_on_graph():
        compute_attention_loss(torch.ones(4, 6, dtype=DTYPE, requires_grad=True), weights, called)

    for work in (prepared.prepare, compute_loss_on_graph, lambda: built.append(make_attention_graph())):
        MODES[under](work)
    program = torch.compile(compute_attention_loss, backend="aot_eager")
    for graph in (prepared, called, built[0]):
        assert torch.equal(torch.func.grad(compute_attention_loss)(x, weights, graph), expected)
        mapped = torch.vmap(torch.func.grad(compute_attention_loss), (0, None, None))(x[None], weights, graph)
        assert torch.equal(mapped[0], expected)
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu"):
            compute_attention_loss(leaf, weights, graph).backward()
        assert torch.equal(leaf.grad, expected)
        kept = [*graph._built["tensors"], *graph._built["reverse_tensors"]]
        assert all(type(t) is torch.Tensor and not t.is_inference() and t.device.type == "cpu" for t in kept)
        assert torch.equal(program(x, weights, graph), value)
