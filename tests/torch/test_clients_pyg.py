"""Tests that PyTorch Geometric programs have the same results with trigraph's layers, also after `convert`."""

import copy
import functools
import pickle

import pytest
import torch
from expect_error import expect_error
from pyg_dimenet import SIZES, TOLERANCE, patch_pyg_dimenet
from test_torch_nn import assert_close as layers_close
from torch.ao.nn.quantized import dynamic
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations
from torch.nn.utils.prune import random_unstructured

from trigraph.torch import convert, nn

pyg = pytest.importorskip("torch_geometric.nn")
from torch_geometric import EdgeIndex  # noqa: E402
from torch_geometric.data import Batch, Data, HeteroData  # noqa: E402
from torch_geometric.explain import Explainer, GNNExplainer  # noqa: E402
from torch_geometric.nn.models import dimenet as peer  # noqa: E402
from torch_geometric.utils import to_torch_coo_tensor, to_torch_csc_tensor, to_torch_csr_tensor  # noqa: E402

from trigraph.torch import pyg as both  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Sparse ")  # torch warns about sparse matrices

# For sums of about ten terms of order 1 in different orders.
assert_close = functools.partial(layers_close, eps=64 * 2**-53)


@pytest.fixture(autouse=True)
def use_seed_and_float64():
    """Use the same random numbers in each test, in float64."""
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make_gat_layers(*args, **kwargs):
    """Return PyG's layer and three trigraph layers with its parameters: a plain, a derived and a converted one."""
    theirs = pyg.GATConv(*args, **kwargs)
    ours, subclass = nn.GATConv(*args, **kwargs), both.GATConv(*args, **kwargs)
    for layer in (ours, subclass):
        layer.load_state_dict(theirs.state_dict())
    converted = copy.deepcopy(theirs)
    assert [r.note for r in convert(converted).replaced] == ["trigraph.torch.pyg.GATConv"]
    return theirs, (ours, subclass, converted)


BIPARTITE_EDGES = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])
# A matrix with self-loops, which GATConv replaces, and with empty rows and columns.
LOOP_EDGES = torch.tensor([[0, 1, 2, 3, 0, 2], [1, 1, 0, 2, 2, 2]])
MATRICES = {
    "coo": to_torch_coo_tensor,
    "csr": to_torch_csr_tensor,
    "csc": lambda edges, values=None, size=None: to_torch_csr_tensor(edges, values, size=size).to_sparse_csc(),
}


def test_bipartite_results_agree_with_pyg():
    """Results for bipartite graphs agree with PyG: with `size`, without destination features, as sparse matrices."""
    x = torch.randn(4, 8), torch.randn(2, 16)
    theirs, ours = make_gat_layers((8, 16), 32, heads=2, residual=True)
    matrix = to_torch_csc_tensor(BIPARTITE_EDGES, size=(4, 2)).t()
    for conv in ours:
        assert str(conv) == "GATConv((8, 16), 32, heads=2)"
        for features in (x, (x[0], None)):
            assert_close(conv(features, BIPARTITE_EDGES, size=(4, 2)), theirs(features, BIPARTITE_EDGES, size=(4, 2)))
            assert_close(conv(features, matrix), theirs(features, matrix))
        assert_close(conv(x, BIPARTITE_EDGES), theirs(x, BIPARTITE_EDGES))


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("layout", MATRICES)
def test_sparse_matrices_agree_with_edge_lists(layout, loops):
    """Sparse matrices agree with edge lists; their values are edge features, and attention has the same layout."""
    x, features = torch.randn(4, 8), torch.randn(6, 3)
    theirs, ours = make_gat_layers(8, 5, heads=2, edge_dim=3, add_self_loops=loops)
    order = (LOOP_EDGES[1] * 4 + LOOP_EDGES[0]).argsort()
    matrix = MATRICES[layout](LOOP_EDGES.flip(0)[:, order], features[order], size=(4, 4))
    expected, (edges, weights) = theirs(x, LOOP_EDGES, features, return_attention_weights=True)
    dense = torch.zeros(4, 4, 2).index_put((edges[1], edges[0]), weights)
    for conv in ours:
        assert_close(conv(x, matrix), expected)
        out, (sparse, values) = conv(x, matrix, return_attention_weights=True)
        assert_close(out, expected)
        assert sparse.layout is matrix.layout
        assert torch.equal(sparse.values(), values)
        assert_close(sparse.to_sparse_coo().to_dense(), dense)
    if layout != "csc":  # PyG does not add self-loops to CSC matrices
        assert_close(theirs(x, matrix), expected)


def test_pyg_containers_give_pyg_results():
    """Results agree with PyG for Data, Batch, sorted EdgeIndex, Sequential, and sampled bipartite layers."""
    theirs, ours = make_gat_layers(8, 4, heads=2)
    data = [Data(x=torch.randn(4, 8), edge_index=LOOP_EDGES), Data(x=torch.randn(5, 8), edge_index=BIPARTITE_EDGES)]
    batch = Batch.from_data_list(data)
    order = LOOP_EDGES[1].argsort(stable=True)
    sorted_edges = EdgeIndex(LOOP_EDGES[:, order], sparse_size=(4, 4), sort_order="col")
    pair = (batch.x, batch.x[:4])  # a sampled layer's destinations are the first nodes
    sampled = torch.tensor([[7, 8, 3, 5], [0, 1, 1, 3]])
    for conv in ours:
        assert_close(conv(batch.x, batch.edge_index), theirs(batch.x, batch.edge_index))
        assert_close(conv(batch.x, batch.edge_index)[4:], conv(data[1].x, BIPARTITE_EDGES))
        assert_close(conv(data[0].x, sorted_edges), theirs(data[0].x, LOOP_EDGES))
        assert_close(conv(pair, sampled), theirs(pair, sampled))
        sequence = pyg.Sequential("x, edge_index", [(conv, "x, edge_index -> x"), torch.nn.ReLU()])
        assert_close(sequence(batch.x, batch.edge_index), theirs(batch.x, batch.edge_index).relu())


class ConvolutionNet(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.conv, self.lin = kind((-1, -1), 6, heads=2, add_self_loops=False), torch.nn.Linear(12, 4)

    def forward(self, x, edge_index):
        return self.lin(self.conv(x, edge_index).relu())


def test_hetero_models_accept_the_layers():
    """`to_hetero` and HeteroConv accept the layers, including converted ones and lazy sizes."""
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(10, 5), torch.randn(6, 3)
    for src, dst in (("paper", "paper"), ("author", "paper"), ("paper", "author")):
        ends = torch.stack([torch.randint(0, len(data[n].x), (20,)) for n in (src, dst)])
        data[src, "to", dst].edge_index = ends
    theirs, ours = (pyg.to_hetero(ConvolutionNet(kind), data.metadata()) for kind in (pyg.GATConv, both.GATConv))
    with torch.no_grad():
        theirs(data.x_dict, data.edge_index_dict)
        ours(data.x_dict, data.edge_index_dict)
    ours.load_state_dict(theirs.state_dict())
    expected = theirs(data.x_dict, data.edge_index_dict)
    converted = copy.deepcopy(theirs)
    assert len(convert(converted).replaced) == 3
    for model in (ours, converted):
        for name, out in model(data.x_dict, data.edge_index_dict).items():
            assert_close(out, expected[name])
    convs = {edge: nn.GATConv((-1, -1), 4, add_self_loops=False) for edge in data.edge_types}
    outputs = pyg.HeteroConv(convs)(data.x_dict, data.edge_index_dict)
    assert {name: out.shape for name, out in outputs.items()} == {"paper": (10, 4), "author": (6, 4)}


def test_explainers_and_hooks_use_pyg_message_passing():
    """With explainers or message hooks, the layer uses PyG's message passing; other values of `flow` are refused."""
    theirs, (_, conv, _) = make_gat_layers(8, 4)
    x = torch.randn(4, 8)
    explainer = Explainer(
        conv,
        GNNExplainer(epochs=2),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "regression", "task_level": "node", "return_type": "raw"},
    )
    assert explainer(x, LOOP_EDGES).edge_mask.shape == (6,)
    seen = []
    handle = conv.register_message_forward_hook(lambda *args: seen.append(args))
    assert_close(conv(x, LOOP_EDGES), theirs(x, LOOP_EDGES))
    assert len(seen) == 1
    handle.remove()
    assert_close(conv(x, LOOP_EDGES), theirs(x, LOOP_EDGES))
    assert len(seen) == 1
    flow = "flow is 'target_to_source'; only 'source_to_target' is supported; ..."
    with expect_error(f"NotImplementedError: GATConv: {flow}"):
        both.GATConv(8, 4, flow="target_to_source")


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.* is deprecated; use:DeprecationWarning")  # trace reads every attribute
def test_script_and_trace_are_refused():
    """torch.jit.script and trace raise errors: a trace would always use the graph of its example."""
    model = nn.DimeNetPlusPlus(4, 1, 1, 4, 2, 4, 2, 2)
    with expect_error("NotImplementedError: GATConv: torch.jit.script cannot read the operators of trigraph; use ..."):
        torch.jit.script(torch.nn.Sequential(nn.GATConv(4, 2)))
    with expect_error("NotImplementedError: GATConv: torch.jit.trace would keep this edge_index ..."):
        torch.jit.trace(nn.GATConv(8, 4), (torch.randn(4, 8), BIPARTITE_EDGES))
    with expect_error("NotImplementedError: DimeNetPlusPlus: torch.jit.trace would keep these neighbours ..."):
        torch.jit.trace(model, (torch.tensor([1, 1]), torch.eye(3)[:2]))


@pytest.fixture(scope="module")
def patch_dimenet():
    """Patch PyG's DimeNet++ to work without optional packages."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        patch_pyg_dimenet(monkeypatch, peer)
        yield


@pytest.fixture(scope="module")
def original_dimenet(patch_dimenet):
    """Return PyG's model in float64 with nonzero biases; cached, because sympy takes seconds to derive the basis."""
    torch.manual_seed(0)
    model = peer.DimeNetPlusPlus(**SIZES).double()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.05 * torch.randn_like(p)
    return model


def make_two_structures(number=14):
    """Return two structures of atoms on a distorted lattice with distances of at least 1."""
    lattice = 1.9 * torch.cartesian_prod(*[torch.arange(3.0)] * 3)
    positions = lattice[torch.randperm(27)[:number]] + 0.8 * torch.rand(number, 3) - 0.4
    return torch.randint(1, 30, (number,)), positions.double(), (torch.arange(number) >= 6).long()


def compute_energy_and_derivatives(model, z, pos, batch):
    """Return energies, their position gradient, and derivatives of a directional derivative (positions, parameters)."""
    pos = pos.clone().requires_grad_()
    energy = model(z, pos, batch)
    (grad,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)
    direction = torch.linspace(-1, 1, pos.numel()).to(pos).view_as(pos)
    return energy, grad, *torch.autograd.grad((grad * direction).sum(), [pos, *model.parameters()], allow_unused=True)


def assert_derivatives_close(got, expected, tolerance):
    """Compare derivatives; parameter derivatives are compared relative to the largest of all of them."""
    assert [a is None for a in got] == [a is None for a in expected]
    pairs = [(a, b) for a, b in zip(got, expected, strict=True) if a is not None]
    largest = max(float(b.detach().abs().max()) for _, b in pairs[3:])
    for i, (a, b) in enumerate(pairs):
        assert a.shape == b.shape
        scale = largest if i >= 3 else float(b.detach().abs().max())
        error = float((a - b).detach().abs().max())
        assert error <= tolerance * scale, (i, error / scale)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("limit", [1000, 5])
def test_dimenet_derivatives_agree_with_pyg(limit, original_dimenet):
    """DimeNet++ with PyG's state_dict, or converted, agrees with PyG in energies, forces and second derivatives."""
    theirs = copy.deepcopy(original_dimenet)
    theirs.max_num_neighbors = limit
    ours = nn.DimeNetPlusPlus(**SIZES, max_num_neighbors=limit).double()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict(), strict=True)
    z, pos, batch = make_two_structures()
    expected = compute_energy_and_derivatives(theirs, z, pos, batch)
    assert_derivatives_close(compute_energy_and_derivatives(ours, z, pos, batch), expected, TOLERANCE)
    forces = ours.energy_forces_stress(z, pos, batch).forces
    assert float((forces + expected[1]).detach().abs().max()) <= TOLERANCE * float(expected[1].detach().abs().max())
    convert(theirs)
    assert_derivatives_close(compute_energy_and_derivatives(theirs, z, pos, batch), expected, TOLERANCE)


def test_convert_and_revert_keep_the_model(original_dimenet):
    """`convert` preserves parameters, hooks, flags, references and names; `revert` restores bitwise equal results."""
    theirs, (z, pos, batch) = copy.deepcopy(original_dimenet), make_two_structures()
    before, names = theirs(z, pos, batch), [n for n, _ in theirs.named_modules()]
    parameters = list(theirs.parameters())
    classes, attributes = ([of(m) for m in theirs.modules()] for of in (type, lambda m: sorted(vars(m))))
    optimizer, seen = torch.optim.SGD(theirs.parameters(), 0.0), []
    block = theirs.interaction_blocks[1]
    theirs.register_forward_hook(lambda *args: seen.append(args[0]))
    theirs.emb.eval()
    conversion = convert(theirs)
    assert conversion.skipped == []
    assert "trigraph.torch.potentials.dimenet.DimeNetPlusPlus" in str(conversion)
    assert convert(theirs).replaced == convert(theirs).skipped == []
    theirs(z, pos, batch).sum().backward()
    optimizer.step()
    assert seen == [theirs]
    assert all(a is b for a, b in zip(theirs.parameters(), parameters, strict=True))
    assert [n for n, _ in theirs.named_modules()] == names
    assert (theirs.training, theirs.emb.training, block.training) == (True, False, True)
    copies = copy.deepcopy(theirs)
    assert torch.equal(copies(z, pos, batch), theirs(z, pos, batch))
    conversion.revert()
    assert [type(m) for m in theirs.modules()] == classes
    assert [sorted(vars(m)) for m in theirs.modules()] == attributes
    assert torch.equal(theirs(z, pos, batch), before)
    conversion.revert()  # a second call does nothing


class LinearAdapter(torch.nn.Module):
    """An adapter around a linear layer, as in LoRA."""

    def __init__(self, linear):
        super().__init__()
        self.base, self.more = linear, torch.nn.Linear(4, 6, bias=False)

    def forward(self, x):
        return self.base(x) + self.more(x)


class DoublingModule(torch.nn.Module):
    def forward(self, x):
        return 2 * x


class ParameterSubclass(torch.nn.Parameter):
    pass


def add_doubling_hook(module):
    module.register_forward_hook(lambda module, args, out: 2 * out)


def double_forward(layer, forward):
    layer.forward = lambda *args: 2 * forward(*args)


def quantize_linear(layer):
    layer.lin = dynamic.Linear(4, 6, bias_=False)
    layer.lin.set_weight_bias(torch.quantize_per_tensor(torch.randn(6, 4), 0.1, 0, torch.qint8), None)


# Changes that prevent a GATConv(4, 3, heads=2) from being converted, and the reported reasons.
STATES = {
    "message": (lambda c: setattr(c, "message", lambda x_j, alpha: 2 * x_j), "message of the layer is not"),
    "update": (lambda c: setattr(c, "update", lambda inputs: 2 * inputs), "update of the layer is not"),
    "aggregate": (lambda c: setattr(c, "aggregate", lambda x, *a, **k: x[:4] * 2), "aggregate of the layer is"),
    "edge_update": (lambda c: setattr(c, "edge_update", lambda alpha_j, *a, **k: alpha_j), "edge_update of the layer"),
    "propagate": (lambda c: setattr(c, "propagate", lambda edge_index, x, alpha, size: x[0]), "propagate of the layer"),
    "aggr_module": (lambda c: setattr(c, "aggr_module", pyg.MaxAggregation()), "aggr_module is MaxAggregation()"),
    "hook of aggr_module": (lambda c: add_doubling_hook(c.aggr_module), "aggr_module is SumAggregation()"),
    "negative_slope": (lambda c: setattr(c, "negative_slope", -0.5), "negative_slope is -0.5"),
    "forward": (lambda c: double_forward(c, c.forward), "its forward is replaced"),
    "adapter": (lambda c: setattr(c, "lin", LinearAdapter(c.lin)), "its lin is a test_clients_pyg.LinearAdapter"),
    "quantized": (quantize_linear, "its lin is a torch.ao.nn.quantized"),
    "parametrized": (
        lambda c: register_parametrization(c.lin, "weight", DoublingModule()),
        "its lin is a torch.nn.utils.para",
    ),
    "pruned": (lambda c: random_unstructured(c.lin, "weight", 2), "its lin has hooks"),
    "hook": (lambda c: add_doubling_hook(c.lin), "its lin has hooks"),
    "own method": (lambda c: setattr(c.lin, "forward", lambda x: x.repeat(1, 2)[:, :6]), "its lin.forward is replaced"),
    "bias": (lambda c: setattr(c, "lin", torch.nn.Linear(4, 6)), "it has parameters att_src, "),
    "parameter": (
        lambda c: setattr(c, "att_src", ParameterSubclass(c.att_src)),
        "its att_src is a test_clients_pyg.Para",
    ),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("state", STATES)
def test_layers_whose_state_is_not_known_compute_as_before(state):
    """Layers in an unrecognised state are not converted, and the reason is reported; later changes take effect."""
    for converted_first in (False, True):
        torch.set_default_dtype(torch.float32)  # quantized layers support no other dtype
        layer, x = pyg.GATConv(4, 3, heads=2), torch.randn(4, 4)
        other, (change, words) = copy.deepcopy(layer), STATES[state]
        conversion = convert(other) if converted_first else None
        for conv in (layer, other):
            torch.manual_seed(5)
            change(conv)
        expected = layer(x, LOOP_EDGES)
        if conversion is None:
            (left,) = convert(other).skipped
            assert words in left.note
            assert type(other) is pyg.GATConv
        layers_close(other(x, LOOP_EDGES), expected, 64 * 2**-24)  # the tolerance of `assert_close` for float32


def test_layers_with_ordinary_changes_are_converted():
    """Layers with data attributes, forward hooks, torch's Linear, any fill_value or lazy sizes are converted."""
    seen, features = [], torch.randn(6, 3)
    theirs = pyg.GATConv(-1, 2, heads=2, edge_dim=3, fill_value=torch.tensor([0.5, -1.0, 2.0]), residual=True)
    theirs(torch.randn(4, 4), LOOP_EDGES, features)
    theirs.lin, theirs.name, theirs.dropout = torch.nn.Linear(4, 4, bias=False), "first", 0.0
    converted = copy.deepcopy(theirs)
    converted.register_forward_hook(lambda *args: seen.append(args))
    assert convert(converted).skipped == []
    x = torch.randn(4, 4)
    assert_close(converted(x, LOOP_EDGES, features), theirs(x, LOOP_EDGES, features))
    assert len(seen) == 1


def test_revert_refuses_layers_that_have_another_class():
    """`revert` reverts all layers, or raises an error and changes nothing if a layer's class has changed."""
    model = torch.nn.ModuleList([pyg.GATConv(4, 2), pyg.GATConv(4, 2)])
    conversion = convert(model)
    register_parametrization(model[1], "att_src", DoublingModule())
    layer = "a torch.nn.utils.parametrize.ParametrizedGATConv"
    with expect_error(f"RuntimeError: Conversion.revert: a layer is {layer}; ..."):
        conversion.revert()
    assert type(model[0]) is both.GATConv
    remove_parametrizations(model[1], "att_src")
    conversion.revert()
    assert [type(m) for m in model] == [pyg.GATConv] * 2


def test_converted_dimenet_can_be_pickled(original_dimenet, tmp_path):
    """A converted DimeNet++ can be pickled, unlike PyG's, whose basis functions cannot."""
    model = copy.deepcopy(original_dimenet)
    with pytest.raises(pickle.PicklingError):
        torch.save(model, tmp_path / "model.pt")
    convert(model)
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    atoms = make_two_structures()
    assert torch.equal(again(*atoms), model(*atoms))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: add_doubling_hook(m.interaction_blocks[1].lin_rbf1), "its interaction_blocks.1.lin_rbf1 has hooks"),
        (lambda m: setattr(m.emb, "lin", LinearAdapter(m.emb.lin)), "its emb.lin is a test_clients_pyg.LinearAdapter"),
        (lambda m: setattr(m.emb, "forward", m.emb.forward), "its emb.forward is replaced on the instance"),
        (lambda m: setattr(m.rbf, "cutoff", 2.0), "cutoff is 3.5 and 2.0 and 3.5 in its parts"),
        (lambda m: m.half(), "has dtype torch.float16; expected all of torch.float32 or of torch.float64"),
        (lambda m: setattr(m.emb, "emb", torch.nn.Embedding(119, 12)), "emb.emb.weight has shape (119, 12); expected"),
        (lambda m: delattr(m, "sbf"), "it is not as its constructor makes it: "),
    ],
)
def test_dimenets_of_unknown_state_are_skipped(original_dimenet, change, words):
    model = copy.deepcopy(original_dimenet)
    change(model)
    (left,) = convert(model).skipped
    assert words in left.note
    assert type(model) is peer.DimeNetPlusPlus


def test_convert_names_skipped_layers():
    """The report names the layers that are left unchanged: unsupported options and derived classes."""

    class GATConvWithDoubledMessage(pyg.GATConv):
        def message(self, x_j, alpha):
            return 2 * super().message(x_j, alpha)

    left = [
        pyg.GATConv(4, 2, flow="target_to_source"),
        pyg.GATConv(4, 2, aggr="mean"),
        GATConvWithDoubledMessage(4, 2),
        pyg.GATConv(4, 2, decomposed_layers=2),
    ]
    model = torch.nn.ModuleList([pyg.GATConv(4, 2), *left, torch.nn.Linear(4, 2)])
    conversion = convert(model)
    assert [layer.path for layer in conversion.replaced] == ["0"]
    assert [layer.path for layer in conversion.skipped] == ["1", "2", "3", "4"]
    assert convert(model).skipped == conversion.skipped  # converted layers are not reported as derived
    words = ["flow is 'target_to_source'", "aggr is 'mean'", "derived from GATConv", "decomposed_layers is 2"]
    for layer, word in zip(conversion.skipped, words, strict=True):
        assert word in layer.note
        assert word in str(conversion)
    assert [type(m) for m in model[1:5]] == [type(m) for m in left]
    assert type(pickle.loads(pickle.dumps(model[0]))) is both.GATConv
    with expect_error("TypeError: convert: model is a str; expected a torch.nn.Module"):
        convert("model")
