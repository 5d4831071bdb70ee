"""The drop-in for pylibcugraphops: PyG's CuGraph layers run on it, and its functions write trigraph's results."""

import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex  # noqa: E402
from torch_geometric.nn import GATConv, RGCNConv, SAGEConv  # noqa: E402

import trigraph  # noqa: E402
from trigraph import compat  # noqa: E402
from trigraph.compat.pylibcugraphops import MMAOp, dimenet, make_bipartite_csc, operators  # noqa: E402
from trigraph.compat.pylibcugraphops import pytorch as classes  # noqa: E402
from trigraph.compat.pylibcugraphops.operators import AggOp, mha_params  # noqa: E402
from trigraph.compat.pylibcugraphops.pytorch import operators as differentiable  # noqa: E402

CUGRAPH = "torch_geometric.nn.conv.cugraph"
SRC, DST = [7, 8, 3, 4, 7, 8, 3, 7, 2, 9, 6, 0, 3], [0, 1, 2, 3, 4, 5, 1, 1, 2, 3, 7, 7, 1]
OFFSETS, INDICES = np.array([0, 2, 2, 5]), np.array([0, 3, 1, 2, 3])


@pytest.fixture(scope="module")
def layers():
    """PyG's CuGraph layers, unmodified except for their refusal of CPU tensors (`row.is_cuda`)."""
    compat.install()
    for name in [name for name in sys.modules if name.startswith(CUGRAPH)]:
        del sys.modules[name]  # import them again, with pylibcugraphops
    package = importlib.import_module(CUGRAPH)
    base = sys.modules[f"{CUGRAPH}.base"]
    source = textwrap.dedent(inspect.getsource(base.CuGraphModule.get_cugraph))
    assert source.count("if not row.is_cuda:") == 1
    exec(source.replace("if not row.is_cuda:", "if False:"), vars(base))
    base.CuGraphModule.get_cugraph = base.get_cugraph
    return package


def gradients(value, tensors):
    weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(1), dtype=value.dtype)
    return torch.autograd.grad((value * weights).sum(), tensors, retain_graph=True)


def assert_same(theirs, ours, own_inputs, inputs):
    """Compare outputs and all gradients in float64; both sum at most 20 terms, in different orders."""
    for a, b in zip((theirs, *gradients(theirs, own_inputs)), (ours, *gradients(ours, inputs)), strict=True):
        assert torch.allclose(a.reshape(b.shape), b, rtol=1e-12, atol=1e-12)


def edge_index(bipartite):
    size = (10, 8) if bipartite else (10, 10)
    return EdgeIndex(torch.tensor([SRC, DST]), sparse_size=size), size


def features():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(10, 5, generator=generator, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("max_num_neighbors", [8, None])
@pytest.mark.parametrize("heads", [1, 2, 5])
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("bipartite", [True, False])
def test_gat_layer(layers, bipartite, concat, heads, max_num_neighbors):
    edges, size = edge_index(bipartite)
    settings = {"heads": heads, "concat": concat}
    original = GATConv(5, 2, add_self_loops=False, **settings).double()
    layer = layers.CuGraphGATConv(5, 2, **settings).double()
    with torch.no_grad():
        layer.lin.weight.copy_(original.lin.weight)
        layer.att[: heads * 2] = original.att_src.flatten()
        layer.att[heads * 2 :] = original.att_dst.flatten()
    x, same = features(), features()
    expected = original((x, x[: size[1]]) if bipartite else x, edges)
    out = layer(same, edges, torch.empty(len(SRC), 0, dtype=torch.float64), max_num_neighbors)
    att = torch.cat(gradients(expected, [original.att_src, original.att_dst])).flatten()
    assert torch.allclose(att, gradients(out, [layer.att])[0], rtol=1e-12, atol=1e-12)
    assert_same(expected, out, [x, original.lin.weight], [same, layer.lin.weight])


@pytest.mark.parametrize("aggr", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize("bipartite", [True, False])
@pytest.mark.parametrize("max_num_neighbors", [8, None])
def test_sage_layer(layers, max_num_neighbors, bipartite, aggr):
    """SAGE layers agree without `project`, which only CuGraphSAGEConv applies to destination features too."""
    edges, size = edge_index(bipartite)
    original, layer = SAGEConv(5, 2, aggr=aggr).double(), layers.CuGraphSAGEConv(5, 2, aggr=aggr).double()
    with torch.no_grad():
        layer.lin.weight.copy_(torch.cat([original.lin_l.weight, original.lin_r.weight], dim=1))
        layer.lin.bias.copy_(original.lin_l.bias)
    x, same = features(), features()
    expected = original((x, x[: size[1]]) if bipartite else x, edges)
    out = layer(same, edges, max_num_neighbors)
    weights = torch.cat(gradients(expected, [original.lin_l.weight, original.lin_r.weight]), dim=1)
    assert torch.allclose(weights, gradients(out, [layer.lin.weight])[0], rtol=1e-12, atol=1e-12)
    assert_same(expected, out, [x, original.lin_l.bias], [same, layer.lin.bias])


@pytest.mark.parametrize("aggr", ["sum", "mean"])
@pytest.mark.parametrize("bipartite", [True, False])
@pytest.mark.parametrize("num_bases", [1, 2, None])
@pytest.mark.parametrize("root_weight", [True, False])
def test_rgcn_layer(layers, root_weight, num_bases, bipartite, aggr):
    edges, size = edge_index(bipartite)
    types = torch.tensor([0, 1, 2, 1, 0, 2, 2, 1, 0, 0, 1, 1, 2])
    settings = {"num_relations": 3, "num_bases": num_bases, "aggr": aggr, "root_weight": root_weight}
    original, layer = RGCNConv(5, 2, **settings).double(), layers.CuGraphRGCNConv(5, 2, **settings).double()
    with torch.no_grad():
        layer.weight[: len(original.weight)] = original.weight
        if root_weight:
            layer.weight[-1] = original.root
        if num_bases:
            layer.comp.copy_(original.comp)
    x, same = features(), features()
    expected = original((x, x[: size[1]]) if bipartite else x, edges.as_tensor(), types)
    out = layer(same, edges, types)
    (weight,) = gradients(out, [layer.weight])
    coefficients, own_coefficients = ([original.comp], [layer.comp]) if num_bases else ([], [])
    (reference,) = gradients(expected, [original.weight])
    assert torch.allclose(reference, weight[: len(reference)], rtol=1e-12, atol=1e-12)
    assert_same(expected, out, [x, *coefficients], [same, *own_coefficients])


def test_import_under_the_original_name(layers):
    import pylibcugraphops.pytorch

    assert pylibcugraphops.__version__ == "24.12.0"
    assert pylibcugraphops.pytorch.operators.mha_gat_n2n is differentiable.mha_gat_n2n
    assert pylibcugraphops.pytorch.CSC is classes.CSC
    assert importlib.import_module("pylibcugraphops.pytorch.operators") is differentiable
    assert importlib.import_module("cugraph_ops_binding").MMAOp is MMAOp
    assert importlib.util.find_spec("pylibcugraphops.nothing") is None
    compat.install()
    from torch_geometric.testing import withPackage

    @withPackage("pylibcugraphops>=23.02")
    def needs_it(): ...

    assert needs_it.pytestmark[0].args == (False,)  # PyG would not skip its tests of these layers


# The originals' documentation, parameter by parameter.
DOCUMENTED = {
    dimenet.agg_edge_to_edge_bwd2_main: "output_grad_rbf_grad_embedding, output_grad_embedding_grad_rbf, "
    "output_grad_weights, input_vector, input_rbf, input_grad_grad_rbf, input_embedding, input_grad_grad_embedding, "
    "input_grad_embedding, input_weights, coo_idx, src_offsets, mma_operation, cuda_stream=0",
    operators.mha_gat_n2n_bwd_fp32_fp32_fp32_fp32: "grad_src_node_embedding, grad_dst_node_embedding, "
    "grad_attention_weights, grad_softmax_scores, grad_output_embedding, src_node_embedding, dst_node_embedding, "
    "attention_weights, softmax_scores, graph, params, grad_attention_weights_workspace=None, stream_id=0",
    operators.agg_weighted_n2n_bwd: "grad_input, grad_edge_weight, grad_output, edge_weight, input_embedding, graph, "
    f"aggregation_operation={AggOp.Sum!r}, output_embedding=None, output_extrema_location=None, node_degree=None, "
    "stream_id=0",
}


@pytest.mark.parametrize("function", DOCUMENTED, ids=lambda f: f.__name__)
def test_documented_signatures(function):
    assert str(inspect.signature(function)) == f"({DOCUMENTED[function]})"
    assert f"`trigraph.{function.__name__}`" in function.__doc__


def test_install_refuses_another_package(monkeypatch):
    other = type(sys)("pylibcugraphops")
    monkeypatch.setitem(sys.modules, "pylibcugraphops", other)
    with pytest.raises(RuntimeError, match=r"^install: another pylibcugraphops is imported already; expected the call"):
        compat.install()


def attention_arrays(rng, make=np.asarray):
    src, dst, weights = rng.normal(size=(4, 6)), rng.normal(size=(3, 6)), rng.normal(size=12)
    graph = make_bipartite_csc(make(OFFSETS), make(INDICES), 4)
    return graph, make(src), make(dst), make(weights)


def written(function, shapes, *arguments, make=np.asarray, **keywords):
    """Return outputs of these shapes after a function has written to them."""
    outputs = [make(np.full(shape, np.nan)) for shape in shapes]
    function(*outputs, *arguments, **keywords)
    return outputs


def assert_equal(got, expected):
    for one, right in zip(got, expected, strict=True):
        assert np.array_equal(one, right)


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("concat", [True, False])
def test_attention_in_place(concat, make):
    rng = np.random.default_rng(0)
    graph, *inputs = attention_arrays(rng, make)
    settings = {"num_heads": 2, "activation": "ELU", "concat_heads": concat}
    arrays, params = [np.asarray(a) for a in inputs], mha_params(**settings)
    shapes = [(3, 6 if concat else 3), (2, 2, 5)]
    out, scores = written(operators.mha_gat_n2n_fwd, shapes, *inputs, graph, params, make=make, stream_id=0)
    expected = trigraph.mha_gat_n2n_fwd(*arrays, graph.csc, **settings, return_softmax_scores=True)
    assert_equal((out, scores), (expected.output_embedding, expected.softmax_scores))
    grad, bwd = make(rng.normal(size=out.shape)), operators.mha_gat_n2n_bwd_fp32_fp32_fp32_fp32
    rest = (None, grad, *inputs, scores, graph, params)
    more = {"grad_attention_weights_workspace": None, "stream_id": 0}
    grads = written(bwd, [a.shape for a in arrays], *rest, make=make, **more)
    expected = trigraph.mha_gat_n2n_bwd(np.asarray(grad), *arrays, graph.csc, **settings)
    assert_equal(grads, expected[:3])
    only = make(np.full(12, np.nan))
    operators.mha_gat_n2n_bwd(None, None, only, *rest)
    assert np.array_equal(only, expected.attention_weights)


@pytest.mark.parametrize("operation", AggOp)
def test_aggregation_in_place(operation):
    rng = np.random.default_rng(0)
    x, weight, grad = rng.normal(size=(4, 3)), rng.normal(size=5), rng.normal(size=(3, 3))
    graph = make_bipartite_csc(OFFSETS, INDICES, 4, np.array([4, 0, 3, 1, 2]))
    degree, location = np.full(3, np.nan), np.full((3, 3), -7)
    auxiliary = {"node_degree": degree} if operation is AggOp.Mean else {}
    auxiliary |= {"output_extrema_location": location} if operation in (AggOp.Min, AggOp.Max) else {}
    (out,) = written(operators.agg_weighted_n2n_fwd, [(3, 3)], x, weight, graph, operation, **auxiliary)
    forward = trigraph.agg_weighted_n2n_fwd(x, weight, graph.csc, operation.value)
    assert_equal((out, *auxiliary.values()), (getattr(forward, n) for n in ("output_embedding", *auxiliary)))
    rest = (grad, weight, x, graph, operation)
    grads = written(operators.agg_weighted_n2n_bwd, [(4, 3), 5], *rest, output_embedding=out, **auxiliary)
    assert_equal(grads, trigraph.agg_weighted_n2n_bwd(grad, x, weight, graph.csc, operation.value))
    operators.agg_weighted_n2n_bwd(None, None, *rest)  # no gradient is requested


def triplets():
    rng = np.random.default_rng(0)
    coo = np.array([[0, 0, 1, 1, 2, 2, 3], [1, 2, 0, 2, 0, 1, 0]])
    graph = trigraph.EdgeGraph(*coo, 4)
    arrays = {"vec": (7, 3), "sbf_rad": (7, 42), "embedding": (7, 5), "weights": (47, 4)}
    return coo, graph, {name: rng.normal(size=shape) for name, shape in arrays.items()}, rng


def test_dimenet_in_place():
    coo, graph, a, rng = triplets()
    into, out_of = (coo, graph.dst_offsets, graph.dst_edge_index), (coo, graph.src_offsets)
    vec, sbf_rad, embedding, weights = a.values()
    shapes = [sbf_rad.shape, embedding.shape, weights.shape]
    grad, gg_sbf_rad, gg_embedding = (rng.normal(size=shape) for shape in ((7, 5), (7, 42), (7, 5)))
    results = written(dimenet.agg_edge_to_edge_fwd, [(7, 5)], *a.values(), *into, MMAOp.HighPrecision, cuda_stream=0)
    assert_equal(results, [trigraph.agg_edge_to_edge_fwd(**a, graph=graph)])
    inputs = (vec, sbf_rad, embedding, grad, weights)
    results = written(dimenet.agg_edge_to_edge_bwd, shapes, *inputs, *out_of, MMAOp.LowPrecision)
    expected = trigraph.agg_edge_to_edge_bwd(grad, **a, graph=graph)
    assert_equal(results, (expected.sbf_rad, expected.embedding, expected.weights))
    inputs = (vec, sbf_rad, gg_sbf_rad, embedding, gg_embedding, weights)
    results = written(dimenet.agg_edge_to_edge_bwd2_grad, [(7, 5)], *inputs, *into, MMAOp.HighPrecision)
    assert_equal(results, [trigraph.agg_edge_to_edge_bwd2_grad(gg_sbf_rad, gg_embedding, **a, graph=graph)])
    inputs = (vec, sbf_rad, gg_sbf_rad, embedding, gg_embedding, grad, weights)
    results = written(dimenet.agg_edge_to_edge_bwd2_main, shapes, *inputs, *out_of, MMAOp.HighPrecision, cuda_stream=0)
    assert_equal(results, trigraph.agg_edge_to_edge_bwd2_main(gg_sbf_rad, gg_embedding, grad, **a, graph=graph))


def test_the_binding_of_mlperf():
    from trigraph.compat import cugraph_ops_binding as binding

    coo, graph, a, _ = triplets()
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in a.items()}
    offsets = (torch.tensor(getattr(graph, n)) for n in ("src_offsets", "dst_offsets", "dst_edge_index"))
    out = binding.ib_agg_edge(*tensors.values(), torch.tensor(coo), *offsets, binding.MMAOp.HighPrecision)
    assert np.array_equal(out.detach(), trigraph.agg_edge_to_edge_fwd(**a, graph=graph))
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), list(tensors.values())))
    dist = torch.full((7, 1), 0.5, dtype=torch.float64, requires_grad=True)
    rbf, sbf = binding.radial_basis(dist, torch.arange(1.0, 7, dtype=torch.float64))
    assert (rbf.shape, sbf.shape) == ((7, 6), (7, 42))
    assert torch.autograd.grad(sbf.sum(), dist)[0].shape == (7, 1)


def test_operators_are_twice_differentiable():
    types = torch.tensor([0, 1, 1, 0, 1])
    graph = classes.HeteroCSC(torch.tensor(OFFSETS), torch.tensor(INDICES), types, 4, 2)
    types.fill_(7)  # the graph has its own copy
    x, comp = features()[:4], torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def function(x, comp):
        return differentiable.agg_hg_basis_n2n_post(x, comp, graph, concat_own=True, norm_by_out_degree=True)

    assert torch.autograd.gradgradcheck(function, (x.detach().requires_grad_(), comp))


def refused_calls():
    """Calls with a bad argument, and the beginning of the error's text."""
    graph, src, dst, weights = attention_arrays(np.random.default_rng(0))
    out, params, fwd, types = np.empty((3, 6)), mha_params(2), operators.mha_gat_n2n_fwd, torch.tensor(INDICES)
    coo, edges, a, _ = triplets()
    late = (coo, edges.dst_offsets[::-1].copy(), edges.dst_edge_index, MMAOp.HighPrecision)
    ends = torch.tensor(OFFSETS), torch.tensor(INDICES)
    csc, x = classes.CSC(*ends, 4), torch.randn(4, 6)
    yield partial(classes.CSC, *ends, 2), r"ValueError: CSC: indices\[1\] is 3; expected"
    yield partial(make_bipartite_csc, *ends, 4, types[:2]), "ValueError: make_bipartite_csc: map_csc_to_coo has"
    yield partial(classes.HeteroCSC, *ends, types, 4, 2), r"ValueError: HeteroCSC: edge_types\[1\] is 3; expected 0"
    yield partial(classes.HeteroCSC, *ends, types[:2], 4, 4), r"ValueError: HeteroCSC: edge_types has shape \(2,\)"
    yield (
        partial(fwd, out, None, src, dst[:2], weights, graph, params),
        r"ValueError: mha_gat_n2n_fwd: dst_node_embedding has shape \(2, 6\)",
    )
    yield (
        partial(fwd, out[:2], None, src, dst, weights, graph, params),
        r"ValueError: mha_gat_n2n_fwd: output_embedding has shape \(2, 6\)",
    )
    yield (
        partial(fwd, out, None, src, dst, weights, graph, None),
        "TypeError: mha_gat_n2n_fwd: params is a NoneType; expected mha_params",
    )
    yield (
        partial(dimenet.agg_edge_to_edge_fwd, np.empty((7, 5)), *a.values(), *late),
        "ValueError: agg_edge_to_edge_fwd: dst_offsets is not that of the edges in coo_idx",
    )
    yield (
        partial(differentiable.mha_gat_n2n, x[:2], torch.randn(12), csc, 2),
        r"ValueError: mha_gat_n2n: feat has shape \(2, 6\); expected \(4, dim\)",
    )
    yield (
        partial(differentiable.agg_hg_basis_n2n_post, x, None, csc),
        "TypeError: agg_hg_basis_n2n_post: graph is a CSC; expected a HeteroCSC",
    )


def test_calls_that_are_refused():
    for function, text in refused_calls():
        with pytest.raises((TypeError, ValueError)) as raised:
            function()
        assert re.match(text, f"{raised.type.__name__}: {raised.value}"), raised.value


def test_an_output_that_torch_negates_when_it_is_read_is_refused():
    output = torch.complex(torch.ones(3, 3), torch.ones(3, 3)).conj().imag
    graph = make_bipartite_csc(OFFSETS, INDICES, 4)
    with pytest.raises(ValueError, match=r"^agg_weighted_n2n_fwd: output_embedding has torch's negative bit; expected"):
        operators.agg_weighted_n2n_fwd(output, torch.ones(4, 3), None, graph)


def test_a_backward_knows_that_a_tensor_it_saved_was_written_in_place():
    graph = make_bipartite_csc(OFFSETS, INDICES, 4)
    out, leaf = torch.zeros(3, 3), torch.ones(3, 3, requires_grad=True)
    product = leaf * out
    operators.agg_weighted_n2n_fwd(out, torch.ones(4, 3), None, graph, AggOp.Sum)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
