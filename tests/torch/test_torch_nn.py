"""Tests of the layers in trigraph.torch.nn: formulas, copies, programs, unusual graphs, invalid input."""

import copy
import gc
import itertools
import pickle
import re
import sys
import weakref

import numpy as np
import pytest
from expect_error import expect_error
from programs import run_command

torch = pytest.importorskip("torch")

from compiled_programs import compiled_whole  # noqa: E402

import trigraph  # noqa: E402
import trigraph.pyref as pyref  # noqa: E402
from trigraph import CSC  # noqa: E402
from trigraph.torch import GraphTensors, agg_weighted_n2n, compile_potential, convert, nn  # noqa: E402
from trigraph.torch.layers.edges import find_or_build_graph  # noqa: E402

pyg = pytest.importorskip("torch_geometric.nn")

EPS = 1e-12  # tolerance for float64 sums of some hundred terms of order 1
NODES, EDGES = 9, 40


def assert_close(got, expected, eps=EPS):
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    scale = max(1.0, float(expected.detach().abs().max())) if expected.numel() else 1.0
    assert bool(((got - expected).abs() <= eps * scale).all())


def make_edges(num_src=NODES, num_dst=NODES, num_edges=EDGES, dtype=torch.int64):
    """Return random edges, including self-loops and parallel edges; the last node on each side is isolated."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, num_src - 1, num_edges), rng.integers(0, num_dst - 1, num_edges)
    return torch.tensor(np.stack(ends)).to(dtype)


def draw_rows(number, width, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((number, width))).requires_grad_()


def compute_gradients(module, out, *inputs):
    """Return the gradients of a weighted sum of the output with respect to parameters and inputs."""
    g = torch.from_numpy(np.random.default_rng(7).standard_normal(tuple(out.shape)))
    return torch.autograd.grad(out, [*module.parameters(), *inputs], g, retain_graph=True, allow_unused=True)


def assert_all_close(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("root_weight", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("op", "mean_by"), [("sum", "weight"), ("mean", "weight"), ("mean", "count"), ("min", "weight"), ("max", "weight")]
)
def test_weighted_conv_equals_the_operator(op, mean_by, weighted, root_weight):
    layer = nn.WeightedConv((4, 3), 5, op, mean_by, root_weight).double()
    x = (draw_rows(NODES, 4), draw_rows(6, 3, 5))
    edge_index = make_edges(NODES, 6)
    weight = (draw_rows(EDGES, 1)[:, 0].detach().abs() + 0.1).requires_grad_() if weighted else None
    graph = trigraph.CSC.from_coo(edge_index[0], edge_index[1], NODES, 6)
    expected = agg_weighted_n2n(x[0] @ layer.lin.weight.T, weight, graph, op, mean_by).output_embedding + layer.bias
    if root_weight:
        expected = expected + x[1] @ layer.lin_root.weight.T
    inputs = [x[0], *([x[1]] if root_weight else []), *([weight] if weighted else [])]
    for either in (edge_index, graph):
        got = layer(x, either, weight)
        assert_close(got, expected)
        expected_grads = compute_gradients(layer, expected, *inputs)
        assert_all_close(compute_gradients(layer, got, *inputs), expected_grads)


def test_weighted_conv_works_without_destination_features():
    layer, edge_index = nn.WeightedConv((4, 3), 5).double(), make_edges(NODES, 6)
    graph, x = trigraph.CSC.from_coo(edge_index[0], edge_index[1], NODES, 6), draw_rows(NODES, 4)
    assert_close(layer((x, None), graph), layer((x, draw_rows(6, 3)), edge_index), 0)


def make_gno_layer(in_channels=3, **options):
    torch.manual_seed(0)
    return nn.GNOLayer(in_channels, 4, 2, **{"hidden": 5, "activation": torch.tanh, **options}).double()


@pytest.mark.parametrize("bias", [False, True])
def test_gno_equals_pyref(bias):
    layer, x, coords, edge_index = make_gno_layer(bias=bias), draw_rows(NODES, 3), draw_rows(EDGES, 2, 2), make_edges()
    if bias:
        torch.nn.init.normal_(layer.bias)
    graph = trigraph.CSC.from_edge_index(edge_index.numpy(), NODES)
    arrays = [a.detach().numpy() for a in (x, coords, layer.params)]
    message = torch.from_numpy(pyref.gno_message_fwd(*arrays, graph, 3, 4))
    expected = torch.tanh(x @ layer.weight.T + message + (layer.bias if bias else 0))
    for edge_like in (edge_index, graph):
        assert_close(layer(x, edge_like, coords), expected)
    assert torch.autograd.gradcheck(lambda *a: layer(a[0], graph, a[1]), (x, coords), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *a: layer(a[0], graph, a[1]), (x, coords), fast_mode=True)


def test_gno_takes_athenas_parameters():
    """Layers load athena's parameter vector U | b_u | V | b_v | W | b, in which W is column-major."""
    layer = make_gno_layer()
    F, first = 12, 5 * (2 + 1 + 12) + 12
    values = torch.arange(first + F + 4.0).double()
    layer.load_packed(values)
    assert torch.equal(layer.params, values[:first])
    np.testing.assert_array_equal(layer.weight.detach(), values[first:-4].numpy().reshape(4, 3, order="F"))
    assert torch.equal(layer.bias, values[-4:])
    packed = trigraph.pack_gno_params(*trigraph.unpack_gno_params(values[:first].numpy(), 2, 3, 4))
    np.testing.assert_array_equal(packed, layer.params.detach())
    with expect_error("ValueError: GNOLayer: values has shape (3,); expected (params + weight + bias,) ="):
        layer.load_packed(values[:3])


def test_bipartite_gno_adds_destination_features():
    layer, edge_index = make_gno_layer((3, 2)), make_edges(NODES, 6)
    x, coords = (draw_rows(NODES, 3), draw_rows(6, 2)), draw_rows(EDGES, 2, 2)
    graph = trigraph.CSC.from_coo(edge_index[0], edge_index[1], NODES, 6)
    own = layer.weight @ x[1].T
    message = torch.atanh(layer((x[0], None), graph, coords))
    assert_close(layer(x, edge_index, coords), torch.tanh(own.T + message), 1e-10)


def add_parametrization(linear):
    torch.nn.utils.parametrize.register_parametrization(linear, "weight", torch.nn.Identity())
    return linear


@pytest.mark.parametrize("wrap", [torch.nn.Sequential, add_parametrization])
@pytest.mark.parametrize(
    "make", [lambda: nn.GATConv(3, 4, residual=True), lambda: nn.WeightedConv(3, 4, root_weight=True)]
)
def test_linear_layers_can_be_replaced(make, wrap):
    """The linear layer may be replaced by a Sequential or a parametrized layer, which have no parameter `weight`."""
    layer, x = make().double(), draw_rows(NODES, 3)
    expected = layer(x, make_edges())
    for name, linear in list(layer.named_children()):
        setattr(layer, name, wrap(linear))
    assert torch.equal(layer(x, make_edges()), expected)


def convert_layer(layer):
    assert convert(layer).skipped == []
    return layer


PYG_OPTIONS = {"heads": 2, "edge_dim": 2, "add_self_loops": False}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gat", "gat-dropout", "weighted", "gno", "converted"])
@pytest.mark.parametrize("training", [False, True])
def test_half_precision_layers_agree_with_float32(name, dtype, training):
    """With 16-bit inputs on a CPU, sums are computed in float32 and rounded once; other operations round as usual."""
    make, attr = LAYERS.get(name, (lambda: pyg.GATConv(3, 4, **PYG_OPTIONS), draw_rows(EDGES, 2, 2)))
    layer = make().to(dtype).train(training)
    layer = convert_layer(layer) if name == "converted" else layer
    single, (x, attr) = copy.deepcopy(layer).float(), (t.detach().to(dtype) for t in (draw_rows(NODES, 3), attr))
    expected = single(x.float(), make_edges(), attr.float())
    got = layer(x, make_edges(), attr)
    assert got.dtype is dtype
    # The linear layers, scores, result and activation each cause a rounding error of eps.
    assert_close(got.float(), expected, 16 * torch.finfo(dtype).eps)
    got.sum().backward()
    assert all(p.grad.dtype is dtype for p in layer.parameters())


LAYERS = {
    "gat": (lambda: nn.GATConv(3, 4, heads=2, edge_dim=2, add_self_loops=False), draw_rows(EDGES, 2, 2)),
    "gat-dropout": (
        lambda: nn.GATConv(3, 4, heads=2, edge_dim=2, add_self_loops=False, dropout=1e-300),
        draw_rows(EDGES, 2),
    ),
    "weighted": (lambda: nn.WeightedConv(3, 4, root_weight=True), draw_rows(EDGES, 1)[:, 0].detach().requires_grad_()),
    "gno": (lambda: nn.GNOLayer(3, 4, 2, activation=torch.nn.Softplus()), draw_rows(EDGES, 2, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_can_be_copied(name):
    """Layers can be copied, pickled, converted to other dtypes and printed."""
    make, attr = LAYERS[name]
    layer, x = make().double(), draw_rows(NODES, 3)
    expected = layer(x, make_edges(), attr)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_close(other(x, make_edges(), attr), expected, 0)
    single = layer.float()(x.float(), make_edges(), attr.float())
    assert_close(single, expected.float(), 1e-5)
    assert type(layer).__name__ in repr(layer)


@compiled_whole
@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_compiled_layers_agree_with_eager(name, prepared):
    make, attr = LAYERS[name]
    layer, x = make().double(), draw_rows(NODES, 3)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for graph in (trigraph.CSC.from_edge_index(e, NODES) for e in (make_edges(), make_edges().flip(0))):
        if prepared:
            graph.prepare()
        got = compiled(x, graph, attr)
        assert ("reverse_tensors" in graph._built) == prepared  # otherwise the program sorts the edges
        expected = layer(x, graph, attr)
        assert_close(got, expected)
        assert_all_close(compute_gradients(layer, got, x, attr), compute_gradients(layer, expected, x, attr))


@compiled_whole
@pytest.mark.parametrize("name", [*LAYERS, "converted"])
def test_exported_layers_take_a_graph_of_any_size(name):
    """One exported program accepts GraphTensors of any size and equals eager mode bitwise; edge lists raise errors."""
    make, attr = LAYERS.get(name, (lambda: convert_layer(pyg.GATConv(3, 4, **PYG_OPTIONS)), draw_rows(EDGES, 2)))
    layer = make().double()
    rng = np.random.default_rng(0)

    def draw_layer_arguments(nodes, number):
        graph = CSC.from_coo(rng.integers(nodes, size=number), rng.integers(nodes, size=number), nodes, nodes)
        x, features = (torch.tensor(rng.standard_normal(shape)) for shape in ((nodes, 3), (number, *attr.shape[1:])))
        return x, GraphTensors.from_graph(graph), features

    example, auto = draw_layer_arguments(NODES, EDGES), torch.export.Dim.AUTO
    dynamic = ({0: auto}, example[1].dynamic_shapes, {0: auto})
    program = torch.export.export(layer, example, dynamic_shapes=dynamic).module()
    for sizes in ((NODES, EDGES), (5, 17), (30, 300), (5, 3), (2, 2)):
        inputs = draw_layer_arguments(*sizes)
        assert torch.equal(program(*inputs), layer(*inputs))
        assert torch.equal(layer(*inputs), layer(inputs[0], inputs[1].graph(), inputs[2]))
    if name != "gat-dropout":
        with pytest.raises(TypeError, match=r"FakeTensor, .* pass trigraph\.torch\.GraphTensors\.from_graph\(graph"):
            torch.export.export(layer, (example[0], make_edges(), attr.detach()))


SLOW_LAYERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("gat-dropout", "gat-lazy")]


@pytest.mark.parametrize("name", ["gat", "weighted", "gno", "gat-loops", *SLOW_LAYERS])
def test_compiled_layers_break_where_graphs_are_built(name):
    """torch.compile breaks the graph where a CSC is built from edges, and returns the eager results."""
    more = {"gat-loops": lambda: nn.GATConv(3, 4, dropout=1e-300), "gat-lazy": lambda: nn.GATConv(-1, 4)}
    make, attr = (more[name], None) if name in more else LAYERS[name]
    torch.manual_seed(0)
    layer, x, edge_index = make().double(), draw_rows(NODES, 3), make_edges()
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager")
    for number in (EDGES, EDGES - 1, EDGES - 5):
        edges_and_attr = (edge_index[:, :number], None if attr is None else attr.detach()[:number])
        assert_close(compiled(x, *edges_and_attr), layer(x, *edges_and_attr))
    if isinstance(layer, nn.GATConv) and layer.dropout:
        one = torch.compile(layer, backend="eager", fullgraph=True)
        assert_close(one(x, *edges_and_attr), layer(x, *edges_and_attr))
        return
    with expect_error("ValueError: ...: edge_index: CSC: src[...] is -1; expected 0 <= src < num_src_nodes = 9"):
        compiled(x, edge_index - 1, attr)
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"with fullgraph=True pass a graph \(trigraph\.CSC\.from_edge_index\)"):
        torch.compile(layer, backend="eager", fullgraph=True)(x, *edges_and_attr)


TRANSFORMS = [(name, "grad") for name in LAYERS]
TRANSFORMS += itertools.product(("gat", "weighted", "gno"), ("jacfwd", "hessian"))


@pytest.mark.parametrize(("name", "transform"), TRANSFORMS)
def test_torch_func_derivatives_agree_with_prepared_graph(name, transform):
    """Inside torch.func transforms, layers that build graphs have the same derivatives as with a prepared graph."""
    make, attr = LAYERS[name]
    layer, attr, x = make().double(), attr.detach(), draw_rows(NODES, 3).detach()
    transform = getattr(torch.func, transform)
    prepared, looped, more = copy.deepcopy(layer), make_edges(), attr
    if isinstance(layer, nn.GATConv):
        layer.add_self_loops = True
        looped, more = nn.add_self_loops(looped, attr, NODES)
    graph = trigraph.CSC.from_edge_index(looped, NODES)
    got = transform(lambda x: layer(x, make_edges(), attr).square().sum())(x)
    assert_close(got, transform(lambda x: prepared(x, graph, more).square().sum())(x))


@pytest.mark.parametrize("name", LAYERS)
def test_layers_accept_graphs_without_edges_or_nodes(name):
    make, attr = LAYERS[name]
    layer, none = make().double(), make_edges()[:, :0]
    out = layer(draw_rows(NODES, 3), none, attr[:0])
    alone = layer(draw_rows(NODES, 3), trigraph.CSC.from_edge_index(none, NODES), attr[:0])
    assert_close(out, alone, 0)
    own = layer(draw_rows(NODES, 3), make_edges(), attr)[-1]  # the last node is isolated
    assert_close(out[-1], own, EPS)
    assert layer(draw_rows(0, 3), none, attr[:0]).shape == (0, out.shape[1])
    grads = compute_gradients(layer, out)
    assert all(bool(torch.isfinite(g).all()) for g in grads)


GRAPH = trigraph.CSC.from_edge_index(make_edges(), NODES)
BAD = [  # the layer's name is added to each text, except after "..."
    ("gat", {"x": [1.0]}, "TypeError: x is a list; expected a torch.Tensor"),
    ("gat", {"edge_index": make_edges().T}, "ValueError: edge_index has shape (40, 2); expected (2, num_edges"),
    ("gat", {"attr": draw_rows(EDGES, 3)}, "ValueError: edge_attr has shape (40, 3); expected (num_edges, edge_"),
    ("gat", {"attr": draw_rows(7, 2)}, "ValueError: edge_attr has shape (7, 2); expected ... with 40 rows"),
    ("gat", {"size": (9, 8)}, "ValueError: size is (9, 8); expected (num_src_nodes, num_dst_nodes) = (9, 9"),
    ("gat-dropout", {"attr": draw_rows(1, 2), "edge_index": GRAPH}, "ValueError: edge_attr has ... with 40 rows"),
    ("gat-plain", {"attr": draw_rows(7, 1)[:, 0]}, "ValueError: edge_attr has shape (7, 1); expected ... 40 rows"),
    ("gat-plain", {"attr": draw_rows(7, 1)[:, :, None]}, "ValueError: edge_attr has ...; expected ... 40 rows"),
    ("gat-plain", {"attr": [1.0]}, "TypeError: edge_attr is a list; expected a torch.Tensor"),
    ("weighted", {"x": draw_rows(NODES, 4)}, "ValueError: x has shape (9, 4); expected ... with 3 columns"),
    ("weighted", {"attr": draw_rows(EDGES, 1)}, "ValueError: ...edge_weight has shape (40, 1) of rank 2; expected"),
    ("weighted", {"x": (draw_rows(NODES, 3), None), "edge_index": GRAPH}, "ValueError: x[1] is None and "),
    ("gno", {"attr": draw_rows(EDGES, 3)}, "ValueError: coords has shape (40, 3); expected ... with 2 columns"),
    ("gno", {"attr": draw_rows(7, 2)}, "ValueError: ...coords has shape (7, 2); expected (num_edges, d) = (40, d)"),
]
BAD_GRAPHS = [
    ({"edge_index": GraphTensors("Segments", [], [])}, "TypeError: edge_index is GraphTensors of type Segments;"),
    (
        {"edge_index": GRAPH, "x": draw_rows(NODES - 1, 3)},
        "ValueError: x has shape (8, 3); expected ... with 9 rows, num_src_nodes of the graph",
    ),
    (
        {"edge_index": GRAPH, "x": (draw_rows(NODES, 3), draw_rows(1, 3))},
        "ValueError: x[1] has shape (1, 3); expected ... 9 rows, num_dst_nodes of the ",
    ),
    (
        {"edge_index": make_edges() + 2},
        "ValueError: edge_index: CSC: src[...] is 9; expected 0 <= src < num_src_nodes = 9",
    ),
    ({"edge_index": make_edges().to("meta")}, "ValueError: edge_index is on meta; expected cpu, where x is"),
]
BAD += [(name, *bad) for name in LAYERS for bad in BAD_GRAPHS]


@pytest.mark.parametrize(("name", "changes", "text"), BAD)
def test_layers_refuse_bad_input_by_name(name, changes, text):
    make, attr = {**LAYERS, "gat-plain": (lambda: nn.GATConv(3, 4), None)}[name]
    arguments = {"x": draw_rows(NODES, 3), "edge_index": make_edges(), "attr": attr} | changes
    more = {"size": arguments["size"]} if "size" in arguments else {}
    layer = make().double()
    with expect_error(text if ": ..." in text else text.replace(": ", f": {type(layer).__name__}: ", 1)):
        layer(arguments["x"], arguments["edge_index"], arguments["attr"], **more)


@pytest.mark.parametrize("name", [*LAYERS, "gat-loops"])
def test_edge_lists_under_vmap_are_refused(name):
    make, attr = (lambda: nn.GATConv(3, 4, dropout=0.5), None) if name == "gat-loops" else LAYERS[name]
    layer, x = make().double(), draw_rows(NODES, 3).detach()
    text = "TypeError: ...: edge_index is a torch.Tensor batched by torch.vmap (join the graphs of all entries"
    with expect_error(text):
        torch.vmap(lambda e: layer(x, e, attr))(make_edges()[None])


def test_inference_mode_parameters_are_refused_for_derivatives():
    with torch.inference_mode():
        layer, model = LAYERS["gno"][0]().double(), nn.DimeNetPlusPlus(4, 1, 1, 4, 4, 4, 2, 2)
    inputs, atoms = (draw_rows(NODES, 3), make_edges(), draw_rows(EDGES, 2)), (torch.tensor([1, 1]), torch.eye(3)[:2])
    made = "made in torch.inference_mode(), for which ..."
    with expect_error(f"RuntimeError: gno_message_fwd: params: {made}torch computes no ..."):
        layer(*inputs)
    for call in (model, model.energy_forces_stress):
        with expect_error(f"RuntimeError: DimeNetPlusPlus: its parameters were {made}"):
            call(*atoms)
    with torch.no_grad():
        assert layer(*inputs).shape == (NODES, 4)
        assert model(*atoms).shape == (1,)


BAD_SETTINGS = [
    (nn.WeightedConv, (3, 4, "add"), {}, "ValueError: aggr is 'add'; expected one of sum, "),
    (nn.WeightedConv, ((3, 0), 4), {}, "ValueError: in_channels[1] is 0; expected at least 1"),
    (nn.GATConv, (0, 4), {}, "ValueError: in_channels is 0; expected at least 1, or -1"),
    (nn.GATConv, (3, 4), {"negative_slope": -1}, "ValueError: negative_slope is -1.0; expected a finite"),
    (nn.GATConv, (3, 4), {"dropout": 2}, "ValueError: dropout is 2; expected a probability"),
    (
        nn.GATConv,
        (3, 4),
        {"fill_value": "median"},
        "ValueError: fill_value is 'median'; expected a number, a tensor, or one of",
    ),
    (nn.GNOLayer, (3, 4, 2), {"hidden": 0}, "ValueError: hidden is 0; expected at least 1"),
    (nn.GNOLayer, (3, 4, 2), {"activation": "relu"}, "TypeError: activation is a str; expected"),
    (nn.add_self_loops, (make_edges(), draw_rows(3, 2), NODES), {}, "ValueError: edge_attr has shape"),
    (nn.add_self_loops, (make_edges(), None, -1), {}, "ValueError: num_nodes is -1; expected"),
    (nn.add_self_loops, (make_edges(), None, 10**12), {}, "MemoryError: num_nodes is 1000000000000, "),
]


@pytest.mark.parametrize(("call", "arguments", "keywords", "text"), BAD_SETTINGS)
def test_layers_refuse_bad_settings(call, arguments, keywords, text):
    with expect_error(text.replace(": ", f": {call.__name__}: ", 1)):
        call(*arguments, **keywords)


@compiled_whole
def test_pickles_with_former_module_names_load(tmp_path):
    """Pickles that use the former module names of layers and potentials can be loaded in a new process."""
    models = [make() for make, _ in LAYERS.values()] + [nn.DimeNetPlusPlus(4, 1, 1, 4, 4, 4, 2, 2)]
    text = pickle.dumps([*models, compile_potential(models[-1])], protocol=0)  # protocol 0 stores names as text
    former = re.sub(rb"trigraph\.torch\.(layers|potentials)\.", b"trigraph.torch.nn.", text)
    assert former.count(b"trigraph.torch.nn.") >= len(models)
    (tmp_path / "models").write_bytes(former)
    program = "import pickle, sys; print([type(m).__name__ for m in pickle.load(open(sys.argv[1], 'rb'))])"
    printed = run_command(sys.executable, "-c", program, tmp_path / "models").stdout
    assert printed.strip() == str([*(type(m).__name__ for m in models), "CompiledPotential"])


def test_layers_do_not_import_torchs_compiler():
    """Layers do not import torch's compiler, which would double the import time."""
    program = """
import sys, torch
from trigraph.torch import nn
nn.GATConv(3, 4, dropout=0.5)(torch.ones(2, 3), torch.tensor([[0], [1]]))
nn.DimeNetPlusPlus(4, 1, 1, 4, 4, 4, 2, 2).energy_forces_stress(torch.tensor([1, 1]), torch.eye(3)[:2])
sys.exit("torch._dynamo" in sys.modules)
"""
    run_command(sys.executable, "-c", program)


WRITES = {
    "torch": lambda written, edge_index, path: written.copy_(edge_index),
    "data": lambda written, edge_index, path: written.data.copy_(edge_index),
    "other data": lambda written, edge_index, path: setattr(written, "data", edge_index.int().clone()),
    "NumPy": lambda written, edge_index, path: np.copyto(written.numpy(), edge_index.numpy()),
    "DLPack": lambda written, edge_index, path: torch.from_dlpack(written).copy_(edge_index),
    "another process": lambda written, edge_index, path: path.write_bytes(edge_index.numpy().tobytes()),
}


@pytest.mark.parametrize("loops", [False, True])
def test_graph_is_cached_with_its_edge_tensor(monkeypatch, loops):
    """The graph of an edge tensor is built once for all layers, rebuilt after changes, and freed with the tensor."""
    built, of_ends = [], CSC._build_on_host
    monkeypatch.setattr(CSC, "_build_on_host", lambda *a, **k: (built.append(0), of_ends(*a, **k))[1])
    layers = [nn.GATConv(3, 2, add_self_loops=loops, edge_dim=2) for _ in range(2)]
    x, edge_index, features = torch.randn(4, 3), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), torch.randn(4, 2)
    with torch.inference_mode():
        first = layers[0](x, edge_index, features)
    for layer in layers:
        layer(x, edge_index)
    assert torch.equal(layers[0](x, edge_index, features), first)
    assert len(built) == 1
    edge_index[0, 0] = 2
    expected = layers[0](x, edge_index.clone(), features)
    assert torch.equal(layers[0](x, edge_index, features), expected)
    assert len(built) == 3
    edge_index[0, 0] = 4
    with pytest.raises(ValueError, match="src\\[0\\] is 4; expected 0 <= src < num_src_nodes = 4"):
        layers[0](x, edge_index)
    graph = weakref.ref(find_or_build_graph("", edge_index.clamp_(max=3), 4, 4))
    assert graph() is not None
    del edge_index
    gc.collect()
    assert graph() is None


@pytest.mark.parametrize("name", [*LAYERS, "gat-loops", "converted"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_layers_notice_writes_to_edge_tensors(name, write, tmp_path):
    """After any kind of write to the edge tensor, layers use and check its current values."""
    of_name = {"gat-loops": nn.GATConv, "converted": lambda *a, **k: convert_layer(pyg.GATConv(*a, **k))}
    make, attr = LAYERS.get(name, (lambda: of_name[name](3, 4, edge_dim=2), draw_rows(EDGES, 2)))
    layer, x, first, second = make().double().eval(), draw_rows(NODES, 3), make_edges(), make_edges().flip(0)
    file = torch.from_file(str(tmp_path / "edges"), shared=True, size=first.numel(), dtype=first.dtype)
    mapped = file.view_as(first).copy_(first)
    expected = [layer(x, e.clone(), attr) for e in (first, second)]
    assert not torch.equal(*expected)
    for edge_index, result in ((first, expected[0]), (second, expected[1]), (first, expected[0])):
        write(mapped, edge_index, tmp_path / "edges")
        for _ in range(2):
            assert torch.equal(layer(x, mapped, attr), result)
    write(mapped, first + NODES, tmp_path / "edges")
    with expect_error("ValueError: ...: edge_index: CSC: src[...] is ...; expected 0 <= src < num_src_nodes = 9"):
        layer(x, mapped, attr)
