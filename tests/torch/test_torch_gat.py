"""Tests that trigraph.torch.nn.GATConv and add_self_loops have the same results as PyTorch Geometric's."""

import pytest
import torch
from expect_error import expect_error
from test_torch_nn import EDGES, NODES, assert_all_close, assert_close, compute_gradients, draw_rows, make_edges

import trigraph
from trigraph.torch import nn

pyg = pytest.importorskip("torch_geometric.nn")
from torch_geometric.utils import add_self_loops, remove_self_loops  # noqa: E402


def make_gat_layer_pair(*args, seed=0, **kwargs):
    """Return PyG's layer and trigraph's layer with the same parameters."""
    torch.manual_seed(seed)
    theirs, ours = pyg.GATConv(*args, **kwargs).double(), nn.GATConv(*args, **kwargs).double()
    with torch.no_grad():
        for p in theirs.parameters():
            p.normal_()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    return theirs, ours


OPTIONS = [
    {"heads": 3, "concat": False, "residual": True},
    {"heads": 2, "add_self_loops": False, "bias": False},
    {"heads": 2, "negative_slope": 0.5, "edge_dim": 3},
    {"heads": 2, "edge_dim": 3, "add_self_loops": False, "concat": False},
    {"edge_dim": 3, "fill_value": torch.tensor([0.5, -1.0, 2.0])},
    {"heads": 2, "edge_dim": 3, "fill_value": "max"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gat_equals_pyg(options):
    theirs, ours = make_gat_layer_pair(4, 5, **options)
    x, edge_index = draw_rows(NODES, 4), make_edges()
    attr = draw_rows(EDGES, 3, 2) if "edge_dim" in options else None
    inputs = (x,) if attr is None else (x, attr)
    expected, (loops, attention) = theirs(x, edge_index, attr, return_attention_weights=True)
    expected_grads = compute_gradients(theirs, expected, *inputs)
    fused = ours(x, edge_index, attr)
    out, (got_loops, got_attention) = ours(x, edge_index, attr, return_attention_weights=True)
    assert_close(got_attention, attention)
    assert torch.equal(got_loops, loops)
    for got in (fused, out):
        assert_close(got, expected)
        assert_all_close(compute_gradients(ours, got, *inputs), expected_grads)
    if options.get("bias") is False:  # also check gradients of attention weights
        assert_all_close(compute_gradients(ours, got_attention, *inputs), compute_gradients(theirs, attention, *inputs))


@pytest.mark.parametrize(("sizes", "dtype"), [((NODES, 6), torch.int32), ((6, NODES), torch.int64)])
@pytest.mark.parametrize("options", [{}, {"heads": 2, "residual": True, "edge_dim": 3}], ids=str)
def test_bipartite_gat_equals_pyg(options, sizes, dtype):
    theirs, ours = make_gat_layer_pair((4, 3), 5, **options)
    x, edge_index = (draw_rows(sizes[0], 4), draw_rows(sizes[1], 3, 5)), make_edges(*sizes)
    # PyG's fill_value="mean" fails if there are more destinations than sources.
    attr = draw_rows(EDGES, 3, 2) if "edge_dim" in options and sizes[1] < sizes[0] else None
    inputs = x if attr is None else (*x, attr)
    used = [p for n, p in theirs.named_parameters() if attr is not None or "edge" not in n]
    parameters = [p for n, p in ours.named_parameters() if attr is not None or "edge" not in n]
    for size in (None, sizes):
        expected = theirs(x, edge_index, attr, size=size)
        got = ours(x, edge_index.to(dtype), attr, size=size)
        assert_close(got, expected)
        g = torch.ones_like(expected)
        expected_grads = torch.autograd.grad(expected, [*used, *inputs], g)
        assert_all_close(torch.autograd.grad(got, [*parameters, *inputs], g), expected_grads)
    if not options:
        got, expected = (layer((x[0], None), edge_index, size=sizes) for layer in (ours, theirs))
        assert_close(got, expected)


@pytest.mark.parametrize(
    ("in_channels", "options", "inputs"),
    [
        ((4, 4), {"heads": 2}, (draw_rows(NODES, 4), make_edges())),
        (4, {"heads": 2, "residual": True}, ((draw_rows(NODES, 4), draw_rows(6, 4, 5)), make_edges(NODES, 6))),
        (4, {"edge_dim": 1}, (draw_rows(NODES, 4), make_edges())),  # edge features are absent
        (4, {}, (draw_rows(NODES, 4), make_edges(), draw_rows(EDGES, 1))),  # edge features are unused
        (
            4,
            {"edge_dim": 1, "fill_value": 0.5},
            (draw_rows(NODES, 4), make_edges(), draw_rows(EDGES, 1)[:, 0]),
        ),  # 1-D edge features
        (4, {"edge_dim": 2, "fill_value": None}, (draw_rows(NODES, 4), make_edges(), draw_rows(EDGES, 2, 2))),
    ],
    ids=lambda v: str(v) if not isinstance(v, tuple) else "",
)
def test_gat_accepts_unusual_inputs_like_pyg(in_channels, options, inputs):
    theirs, ours = make_gat_layer_pair(in_channels, 5, **options)
    assert_close(ours(*inputs), theirs(*inputs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gat_under_autocast_agrees_with_pyg(dropout, dtype):
    """Under autocast, results have the same dtype as in PyG, and agree up to rounding errors of the projected features.

    PyG rounds scores and features to half precision; sums have about ten terms.
    """
    theirs, ours = make_gat_layer_pair(4, 5, heads=2, dropout=dropout)
    theirs, ours, x = theirs.float(), ours.float(), draw_rows(NODES, 4).detach().float()
    outputs = []
    for layer in (ours, theirs):
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=dtype):
            outputs.append(layer(x, make_edges()))
            out, (_, attention) = layer(x, make_edges(), return_attention_weights=True)
        assert out.dtype == attention.dtype == torch.float32
    assert_close(*outputs, 10 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("prepared", [False, True])
def test_dropout_equals_pyg(prepared, monkeypatch):
    theirs, ours = make_gat_layer_pair(4, 5, heads=2, dropout=0.4, edge_dim=3, add_self_loops=False)
    edge_index = make_edges()
    order = torch.argsort(edge_index[1], stable=True)
    edge_index, x, attr = edge_index[:, order], draw_rows(NODES, 4), draw_rows(EDGES, 3, 2)
    graph = trigraph.CSC.from_edge_index(edge_index, NODES) if prepared else edge_index
    torch.manual_seed(3)
    expected = theirs(x, edge_index, attr)
    torch.manual_seed(3)
    got = ours(x, graph, attr)
    assert_close(got, expected)
    assert_all_close(compute_gradients(ours, got, x, attr), compute_gradients(theirs, expected, x, attr))
    monkeypatch.setattr(
        nn.GATConv, "_compute_with_torch_operators", None
    )  # the slow path must not be used in eval mode
    assert not torch.equal(got, ours.eval()(x, graph, attr))
    assert_close(ours(x, graph, attr), theirs.eval()(x, edge_index, attr))


def test_gat_on_prepared_graph_equals_pyg():
    theirs, ours = make_gat_layer_pair(4, 5, heads=2, edge_dim=3)
    x, edge_index, attr = draw_rows(NODES, 4), make_edges(), draw_rows(EDGES, 3, 2)
    with expect_error("ValueError: GATConv: edge_index is a CSC and add_self_loops is True;"):
        ours(x, trigraph.CSC.from_edge_index(edge_index, NODES), attr)
    looped, more = nn.add_self_loops(edge_index, attr, NODES)
    ours.add_self_loops = False
    graph = trigraph.CSC.from_edge_index(looped, NODES)
    expected, (_, attention) = theirs(x, edge_index, attr, return_attention_weights=True)
    assert_close(ours(x, graph, more), expected)
    out, (pairs, weights) = ours(x, graph, more, return_attention_weights=True)
    assert_close(out, expected)
    positions = torch.tensor(graph.edge_ids.tolist())
    assert torch.equal(pairs, looped[:, positions])
    assert_close(weights, attention[positions])


@pytest.mark.parametrize("fill_value", ["mean", "add", "sum", "min", "max", "mul", 2.0])
def test_added_self_loops_equal_pyg(fill_value):
    edge_index, attr = make_edges(), draw_rows(EDGES, 2)
    expected = add_self_loops(*remove_self_loops(edge_index, attr), fill_value=fill_value, num_nodes=NODES)
    got = nn.add_self_loops(edge_index, attr, NODES, fill_value)
    assert torch.equal(got[0], expected[0])
    assert_close(got[1], expected[1])
    assert nn.add_self_loops(edge_index)[0].shape[1] == int((edge_index[0] != edge_index[1]).sum()) + NODES - 1
    assert nn.add_self_loops(edge_index[:, :0])[0].shape == (2, 0)


def test_self_loops_are_added_for_nodes_on_both_sides():
    """Self-loops are added for the nodes that exist on both sides, where PyG raises an error."""
    edge_index, attr = make_edges(6, NODES), draw_rows(EDGES, 2)
    looped, features = nn.add_self_loops(edge_index, attr, 6)
    assert torch.equal(looped[:, -6:], torch.arange(6).expand(2, -1))
    for i, got in enumerate(features[-6:]):
        into = (edge_index[1] == i) & (edge_index[0] != i)
        assert_close(got, attr[into].mean(0) if into.any() else torch.zeros(2).double())
