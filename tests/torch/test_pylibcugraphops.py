"""Tests of the replacement for pylibcugraphops with PyG's CuGraph layers and MLPerf's DimeNet++ binding."""

import importlib
import importlib.util
import inspect
import sys
import textwrap

import numpy as np
import pytest
from expect_error import expect_error

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex  # noqa: E402
from torch_geometric.nn import GATConv, RGCNConv, SAGEConv  # noqa: E402

import trigraph  # noqa: E402
from trigraph import compat  # noqa: E402
from trigraph.compat.pylibcugraphops import pytorch as classes  # noqa: E402
from trigraph.compat.pylibcugraphops.pytorch import operators  # noqa: E402

CUGRAPH = "torch_geometric.nn.conv.cugraph"
SRC, DST = [7, 8, 3, 4, 7, 8, 3, 7, 2, 9, 6, 0, 3], [0, 1, 2, 3, 4, 5, 1, 1, 2, 3, 7, 7, 1]
OFFSETS, INDICES = np.array([0, 2, 2, 5]), np.array([0, 3, 1, 2, 3])


@pytest.fixture(scope="module")
def cugraph_layers():
    """Return PyG's CuGraph layers, unmodified except that they accept CPU tensors."""
    compat.install()
    for name in [name for name in sys.modules if name.startswith(CUGRAPH)]:
        del sys.modules[name]  # so that they are imported again, with pylibcugraphops
    package = importlib.import_module(CUGRAPH)
    base = sys.modules[f"{CUGRAPH}.base"]
    source = textwrap.dedent(inspect.getsource(base.CuGraphModule.get_cugraph))
    assert source.count("if not row.is_cuda:") == 1
    exec(source.replace("if not row.is_cuda:", "if False:"), vars(base))
    base.CuGraphModule.get_cugraph = base.get_cugraph
    return package


def compute_gradients(value, tensors):
    weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(1), dtype=value.dtype)
    return torch.autograd.grad((value * weights).sum(), tensors, retain_graph=True)


def assert_same_with_gradients(theirs, ours, own_inputs, inputs):
    """Compare outputs and gradients in float64 (sums of at most 20 terms in different orders)."""
    expected, got = ((out, *compute_gradients(out, wanted)) for out, wanted in ((theirs, own_inputs), (ours, inputs)))
    for a, b in zip(expected, got, strict=True):
        assert torch.allclose(a.reshape(b.shape), b, rtol=1e-12, atol=1e-12)


def make_edge_index_and_size(bipartite):
    size = (10, 8) if bipartite else (10, 10)
    return EdgeIndex(torch.tensor([SRC, DST]), sparse_size=size), size


def make_features():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(10, 5, generator=generator, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("max_num_neighbors", [8, None])
@pytest.mark.parametrize("heads", [1, 2, 5])
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("bipartite", [True, False])
def test_cugraph_gat_layer_agrees_with_pyg(cugraph_layers, bipartite, concat, heads, max_num_neighbors):
    edges, size = make_edge_index_and_size(bipartite)
    settings = {"heads": heads, "concat": concat}
    original = GATConv(5, 2, add_self_loops=False, **settings).double()
    layer = cugraph_layers.CuGraphGATConv(5, 2, **settings).double()
    with torch.no_grad():
        layer.lin.weight.copy_(original.lin.weight)
        layer.att[: heads * 2] = original.att_src.flatten()
        layer.att[heads * 2 :] = original.att_dst.flatten()
    x, same = make_features(), make_features()
    expected = original((x, x[: size[1]]) if bipartite else x, edges)
    out = layer(same, edges, torch.empty(len(SRC), 0, dtype=torch.float64), max_num_neighbors)
    att = torch.cat(compute_gradients(expected, [original.att_src, original.att_dst])).flatten()
    assert torch.allclose(att, compute_gradients(out, [layer.att])[0], rtol=1e-12, atol=1e-12)
    assert_same_with_gradients(expected, out, [x, original.lin.weight], [same, layer.lin.weight])


@pytest.mark.parametrize("aggr", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize("bipartite", [True, False])
@pytest.mark.parametrize("max_num_neighbors", [8, None])
def test_cugraph_sage_layer_agrees_with_pyg(cugraph_layers, max_num_neighbors, bipartite, aggr):
    """SAGE layers agree without `project`, which only CuGraphSAGEConv also applies to destination features."""
    edges, size = make_edge_index_and_size(bipartite)
    original, layer = SAGEConv(5, 2, aggr=aggr).double(), cugraph_layers.CuGraphSAGEConv(5, 2, aggr=aggr).double()
    with torch.no_grad():
        layer.lin.weight.copy_(torch.cat([original.lin_l.weight, original.lin_r.weight], dim=1))
        layer.lin.bias.copy_(original.lin_l.bias)
    x, same = make_features(), make_features()
    expected = original((x, x[: size[1]]) if bipartite else x, edges)
    out = layer(same, edges, max_num_neighbors)
    weights = torch.cat(compute_gradients(expected, [original.lin_l.weight, original.lin_r.weight]), dim=1)
    assert torch.allclose(weights, compute_gradients(out, [layer.lin.weight])[0], rtol=1e-12, atol=1e-12)
    assert_same_with_gradients(expected, out, [x, original.lin_l.bias], [same, layer.lin.bias])


@pytest.mark.parametrize("aggr", ["sum", "mean"])
@pytest.mark.parametrize("bipartite", [True, False])
@pytest.mark.parametrize("num_bases", [1, 2, None])
@pytest.mark.parametrize("root_weight", [True, False])
def test_cugraph_rgcn_layer_agrees_with_pyg(cugraph_layers, root_weight, num_bases, bipartite, aggr):
    edges, size = make_edge_index_and_size(bipartite)
    types = torch.tensor([0, 1, 2, 1, 0, 2, 2, 1, 0, 0, 1, 1, 2])
    settings = {"num_relations": 3, "num_bases": num_bases, "aggr": aggr, "root_weight": root_weight}
    original, layer = RGCNConv(5, 2, **settings).double(), cugraph_layers.CuGraphRGCNConv(5, 2, **settings).double()
    with torch.no_grad():
        layer.weight[: len(original.weight)] = original.weight
        if root_weight:
            layer.weight[-1] = original.root
        if num_bases:
            layer.comp.copy_(original.comp)
    x, same = make_features(), make_features()
    expected = original((x, x[: size[1]]) if bipartite else x, edges.as_tensor(), types)
    out = layer(same, edges, types)
    (weight,) = compute_gradients(out, [layer.weight])
    coefficients, own_coefficients = ([original.comp], [layer.comp]) if num_bases else ([], [])
    (reference,) = compute_gradients(expected, [original.weight])
    assert torch.allclose(reference, weight[: len(reference)], rtol=1e-12, atol=1e-12)
    assert_same_with_gradients(expected, out, [x, *coefficients], [same, *own_coefficients])


def test_compat_is_importable_under_original_names(cugraph_layers):
    import pylibcugraphops.pytorch

    assert pylibcugraphops.__version__ == "24.12.0"
    assert (
        pylibcugraphops.pytorch.operators is importlib.import_module("pylibcugraphops.pytorch.operators") is operators
    )
    assert pylibcugraphops.pytorch.CSC is classes.CSC
    assert importlib.import_module("cugraph_ops_binding") is importlib.import_module(
        "trigraph.compat.cugraph_ops_binding"
    )
    assert importlib.util.find_spec("pylibcugraphops.nothing") is None
    compat.install()
    from torch_geometric.testing import withPackage

    @withPackage("pylibcugraphops>=23.02")
    def requires_pylibcugraphops(): ...

    assert requires_pylibcugraphops.pytestmark[0].args == (False,)  # so PyG would run its tests of these layers


def test_install_refuses_another_package(monkeypatch):
    other = type(sys)("pylibcugraphops")
    monkeypatch.setitem(sys.modules, "pylibcugraphops", other)
    with pytest.raises(RuntimeError, match=r"^install: another pylibcugraphops is imported already; expected the call"):
        compat.install()


def make_mlperf_case():
    """Return MLPerf's binding, a graph, and the inputs and index arrays of the triplet sum."""
    from trigraph.compat import cugraph_ops_binding as binding

    rng, coo = np.random.default_rng(0), np.array([[0, 0, 1, 1, 2, 2, 3], [1, 2, 0, 2, 0, 1, 0]])
    graph, shapes = trigraph.EdgeGraph(*coo, 4), ((7, 3), (7, 42), (7, 5), (47, 4))
    inputs = [torch.tensor(rng.normal(size=shape), requires_grad=True) for shape in shapes]
    index = [torch.tensor(a) for a in (coo, graph.src_offsets, graph.dst_offsets, graph.dst_edge_index)]
    return binding, graph, inputs, index


def test_mlperf_binding_equals_the_operators():
    binding, graph, inputs, index = make_mlperf_case()
    out = binding.ib_agg_edge(*inputs, *index, binding.MMAOp.HighPrecision)
    assert np.array_equal(out.detach(), trigraph.agg_edge_to_edge_fwd(*(a.detach().numpy() for a in inputs), graph))
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), inputs))
    dist = torch.full((7, 1), 0.5, dtype=torch.float64, requires_grad=True)
    rbf, sbf = binding.radial_basis(dist, torch.arange(1.0, 7, dtype=torch.float64))
    expected = trigraph.radial_basis_fwd(dist.detach().numpy()[:, 0], np.arange(1.0, 7))
    assert np.array_equal(rbf.detach(), expected[0])
    assert np.array_equal(sbf.detach(), expected[1])
    assert torch.autograd.grad(sbf.sum(), dist)[0].shape == (7, 1)


def test_basis_aggregation_is_twice_differentiable():
    types = torch.tensor([0, 1, 1, 0, 1])
    graph = classes.HeteroCSC(torch.tensor(OFFSETS), torch.tensor(INDICES), types, 4, 2)
    types.fill_(7)  # the graph holds a copy
    x, comp = make_features()[:4], torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def aggregate_with_bases(x, comp):
        return operators.agg_hg_basis_n2n_post(x, comp, graph, concat_own=True, norm_by_out_degree=True)

    assert torch.autograd.gradgradcheck(aggregate_with_bases, (x.detach().requires_grad_(), comp))


def list_wrong_calls():
    """Return functions with invalid arguments, and the expected errors."""
    ends, types, x = (torch.tensor(OFFSETS), torch.tensor(INDICES)), torch.tensor(INDICES), torch.randn(4, 6)
    csc, typed = classes.CSC(*ends, 4), classes.HeteroCSC(*ends, types, 4, 4)
    binding, _, inputs, index = make_mlperf_case()
    reversed_offsets = [*index[:2], index[2].flip(0), index[3]]
    wrong_ends, a_list = [x, *index[1:], 0], [*index[:3], [0], 0]
    return [
        (classes.CSC, [*ends, 2], "ValueError: CSC: indices[1] is 3; expected"),
        (classes.HeteroCSC, [*ends, types, 4, 2], "ValueError: HeteroCSC: edge_types[1] is 3; expected 0"),
        (classes.HeteroCSC, [*ends, types[:2], 4, 4], "ValueError: HeteroCSC: edge_types has shape (2,)"),
        (operators.mha_gat_n2n, [x[:2], torch.randn(12), csc, 2], "ValueError: mha_gat_n2n: feat has shape (2, 6)"),
        (operators.agg_concat_n2n, [None, csc], "TypeError: agg_concat_n2n: feat is a NoneType; expected"),
        (operators.agg_hg_basis_n2n_post, [x, None, csc], "TypeError: ...: graph is a CSC; expected a HeteroCSC"),
        (operators.agg_hg_basis_n2n_post, [x, x[:3], typed], "ValueError: ...: weights_comb has shape (3, 6)"),
        (binding.radial_basis, [x[0], x[0]], "ValueError: radial_basis: dist has shape (6,); expected (num_edges"),
        (binding.ib_agg_edge, [*inputs, *wrong_ends], "ValueError: ib_agg_edge: edge_index has shape (4, 6)"),
        (
            binding.ib_agg_edge,
            [*inputs, *reversed_offsets, 0],
            "ValueError: ib_agg_edge: dst_offsets does not match edge_index",
        ),
        (binding.ib_agg_edge, [*inputs, *a_list], "TypeError: ib_agg_edge: dst_edge_index is a list"),
    ]


def test_wrong_compat_arguments_are_refused():
    for function, arguments, text in list_wrong_calls():
        with expect_error(text):
            function(*arguments)
