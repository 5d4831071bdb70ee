"""Tests of inputs to trigraph.torch: memory of tensors, invalid input, `out`, and graphs in checkpoints."""

import contextlib
import copy
import gc
import pickle
import pickletools
import re
import sys
import weakref

import numpy as np
import pytest
from table_calls import draw_operator_arguments

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

import trigraph  # noqa: E402
import trigraph.torch as tt  # noqa: E402
from trigraph import CSC, EdgeGraph, Segments  # noqa: E402
from trigraph.table import OPERATORS  # noqa: E402
from trigraph.torch import arrays  # noqa: E402
from trigraph.torch.layers.activations import silu  # noqa: E402


def make_graph(index=np.int64):
    return CSC(np.array([0, 2, 3, 6, 6], index), np.array([0, 1, 2, 0, 1, 3], index))


def make_attention_arguments(dtype=torch.float32):
    torch.manual_seed(0)
    x, y, weights = (torch.randn(*s, dtype=dtype) for s in ((4, 6), (4, 6), (12,)))
    return {"src_embedding": x, "dst_embedding": y, "attention_weights": weights, "graph": make_graph(), "num_heads": 2}


def assert_attention_refuses(kind, text, **changes):
    """Assert that attention raises this error when some of its arguments are replaced by `changes`."""
    with pytest.raises(kind, match="^" + re.escape(text)) as caught:
        tt.mha_gat_n2n(**{**make_attention_arguments(), **changes})
    assert caught.type is kind


META = torch.ones(4, 6, device="meta")
WRONG_ARGUMENTS = [
    (TypeError, "src_embedding is a list; expected a torch.Tensor of float32 or float64", {"src_embedding": [1.0]}),
    (TypeError, "src_embedding is a tensor of layout torch.sparse_coo", {"src_embedding": torch.eye(4, 6).to_sparse()}),
    (ValueError, "src_embedding is on meta; expected a CPU or CUDA device", {"src_embedding": META}),
    (ValueError, "dst_embedding is on meta; expected host", {"dst_embedding": META}),
    (TypeError, "src_embedding has dtype bfloat16; expected", {"src_embedding": torch.ones(4, 6).bfloat16()}),
    (ValueError, "dst_embedding has shape (3, 6); expected", {"dst_embedding": torch.ones(3, 6)}),
    (TypeError, "graph is a Tensor; expected a trigraph.CSC", {"graph": torch.ones(2, 3)}),
    (TypeError, "got an unexpected keyword argument 'heads'", {"heads": 3}),
    (ValueError, "backend is ''; expected one of fortran, ", {"backend": ""}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "changes"), WRONG_ARGUMENTS, ids=lambda v: v if isinstance(v, str) else "")
def test_bad_input_is_refused_by_name(kind, text, changes):
    assert_attention_refuses(kind, f"mha_gat_n2n_fwd: {text}", **changes)


def test_bfloat16_without_ml_dtypes_is_refused(monkeypatch):
    arrays.convert_to_numpy_dtype.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert_attention_refuses(
        ImportError, "bfloat16 needs ml_dtypes: pip install", src_embedding=torch.ones(4, 6).bfloat16()
    )


def test_only_requested_gradients_are_computed(monkeypatch, force_python_operators):
    from trigraph.torch import library

    seen = []
    real = library.check_arguments

    def record_and_check_arguments(op, values, wrt, *rest):
        seen.append((op.name, wrt and tuple(wrt)))
        return real(op, values, wrt, *rest)

    monkeypatch.setattr(library, "check_arguments", record_and_check_arguments)
    arguments = make_attention_arguments(torch.float64)
    weights = arguments["attention_weights"].requires_grad_()
    value = tt.mha_gat_n2n(**arguments).output_embedding.square().sum()
    (gradient,) = torch.autograd.grad(value, weights, create_graph=True)
    gradient.sum().backward()
    names = [name for name, _ in seen]
    assert names == ["mha_gat_n2n_fwd", "mha_gat_n2n_bwd", "mha_gat_n2n_bwd2", "mha_gat_n2n_bwd"]
    assert seen[1][1] == ("attention_weights",)
    assert seen[2][1] == ("grad_output_embedding", "attention_weights")


VIEWS = {
    "transposed": lambda t: t.t().contiguous().t(),
    "strided": lambda t: torch.stack([t, -t], dim=-1)[..., 0],
    "offset": lambda t: torch.cat([t.new_zeros(1), t.reshape(-1)])[1:].view(t.shape),
    "expanded": lambda t: t[:1].expand(t.shape),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_jacobians_are_independent_of_strides(view):
    arguments = make_attention_arguments(torch.float64)
    for name in ("src_embedding", "dst_embedding"):

        def compute_attention(t, name=name):
            return tt.mha_gat_n2n(**{**arguments, name: t}).output_embedding

        seen = view(arguments[name].clone())
        whole = seen.clone(memory_format=torch.contiguous_format)
        got, expected = (torch.autograd.functional.jacobian(compute_attention, t) for t in (seen, whole))
        assert torch.equal(got, expected)


def test_tensors_are_passed_without_copies(monkeypatch, force_python_operators):
    """Backends use the tensors' memory, and results are returned without a copy."""
    from trigraph.torch import library

    seen = {}
    real = library.execute

    def record_and_execute(op, checked, backend):
        result = real(op, checked, backend)
        seen.update(checked.values, result=result[0])
        return result

    monkeypatch.setattr(library, "execute", record_and_execute)
    arguments = make_attention_arguments()
    result = tt.mha_gat_n2n(**arguments)
    for name in ("src_embedding", "dst_embedding", "attention_weights"):
        assert seen[name].ctypes.data == arguments[name].data_ptr()
    assert seen["graph"].indices.ctypes.data == arguments["graph"].indices.ctypes.data
    assert seen["result"].ctypes.data == result.output_embedding.data_ptr()


def test_out_is_written_and_returned():
    arguments = make_attention_arguments() | {"return_softmax_scores": True}
    expected = tt.mha_gat_n2n(**arguments)
    out = torch.full((4, 6), torch.nan)
    result = tt.mha_gat_n2n(**arguments, out={"output_embedding": out})
    assert result.output_embedding is out
    assert torch.equal(out, expected.output_embedding)
    assert torch.equal(result.softmax_scores, expected.softmax_scores)
    kernel = draw_operator_arguments(OPERATORS["gno_kernel_fwd"])
    on_torch = {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in kernel.items()}
    out = torch.empty_like(tt.gno_kernel(**on_torch))
    assert tt.gno_kernel(**on_torch, out=out) is out
    assert torch.equal(out, tt.gno_kernel(**on_torch))


def test_backward_is_refused_after_out_overwrites_saved_tensor():
    arguments = make_attention_arguments()
    out, factor = torch.ones(4, 6), torch.ones(4, 6, requires_grad=True)
    product = (out * factor).sum()
    tt.mha_gat_n2n(**arguments, out={"output_embedding": out})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with torch.inference_mode():  # inference tensors have no version counter
        written = torch.empty(4, 6)
        tt.mha_gat_n2n(**arguments, out={"output_embedding": written})
    assert torch.equal(written, out)


@pytest.mark.parametrize("op", ["sum", "min", "max", "mean"])
def test_results_that_no_derivative_needs_can_be_overwritten(op):
    x = torch.randn(4, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(tt.agg_weighted_n2n(x, None, make_graph(), op).output_embedding.relu().sum(), x)
    result = tt.agg_weighted_n2n(x, None, make_graph(), op).output_embedding
    result.relu_()
    if op == "mean":  # the derivative of a mean uses the saved output
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
    else:
        result.sum().backward()
        assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("through", ["trigraph", "trigraph.torch"])
def test_refused_calls_hold_no_tensors(monkeypatch, through, force_python_operators):
    """After a MemoryError, a tensor that the caller deletes is freed immediately, without garbage collection."""
    from trigraph.backends import front_door as backends
    from trigraph.torch import library

    def raise_memory_error(*args):
        raise MemoryError("agg_weighted_n2n_fwd: no 9 bytes")

    for module in (backends, library):
        monkeypatch.setattr(module, "check_arguments", raise_memory_error)
    x = torch.zeros(4, 3)
    seen = weakref.ref(x)
    gc.disable()
    try:
        with contextlib.suppress(MemoryError):
            tt.agg_weighted_n2n(x, None, make_graph()) if through == "trigraph.torch" else aggregate_in_numpy(x)
        del x
        assert seen() is None
    finally:
        gc.enable()


def aggregate_in_numpy(x):
    """Call the public function while a local variable refers to the tensor."""
    return trigraph.agg_weighted_n2n_fwd(x.numpy(), None, make_graph())


def test_out_that_cannot_be_written_is_refused():
    out = torch.zeros(4, 6)
    for kind, text, bad in (
        (ValueError, "requires grad", out.clone().requires_grad_()),
        (TypeError, "is a ndarray; expected a torch.Tensor", np.zeros((4, 6))),
        (ValueError, "has strides", torch.zeros(6, 4).t()),
        (TypeError, "is a tensor of layout torch.sparse_coo", out.to_sparse()),
        (ValueError, "has torch's negative bit", make_lazily_negated(out)),
    ):
        assert_attention_refuses(
            kind, f"mha_gat_n2n_fwd: out['output_embedding'] {text}", out={"output_embedding": bad}
        )
    x = torch.randn(4, 6, requires_grad=True)
    with forward_ad.dual_level():
        text = "mha_gat_n2n_fwd: src_embedding has a tangent and out is given"
        dual = forward_ad.make_dual(torch.zeros(4, 6), torch.ones(4, 6))
        assert_attention_refuses(ValueError, text, out={"output_embedding": out}, src_embedding=dual)
    with pytest.raises(ValueError, match="agg_weighted_n2n_fwd: out is given inside a transform"):
        torch.vmap(lambda x: tt.agg_weighted_n2n(x, None, make_graph(), out=out))(out[None])
    text = "mha_gat_n2n_fwd: src_embedding requires grad and out is given"
    assert_attention_refuses(ValueError, text, out={"output_embedding": out}, src_embedding=x)
    with torch.no_grad():
        tt.mha_gat_n2n(**{**make_attention_arguments(), "src_embedding": x}, out={"output_embedding": out})


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_graphs_are_built_from_tensors(index):
    edge_index = torch.tensor([[0, 1, 2, 3, 1], [1, 0, 0, 2, 2]], dtype=index)
    got = CSC.from_edge_index(edge_index, 5)
    expected = CSC.from_edge_index(edge_index.numpy(), 5)
    for name in ("offsets", "indices", "edge_ids"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
        assert getattr(got, name).dtype == edge_index.numpy().dtype
    edge_index[:] = 0  # the graph holds a copy
    assert got.indices.tolist() == expected.indices.tolist()
    members = Segments(torch.tensor([1, 0, 1], dtype=index), 3)
    assert members.offsets.tolist() == [0, 1, 3, 3]
    positions = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    of_tensors = EdgeGraph.from_positions(positions, 2.0)
    of_arrays = EdgeGraph.from_positions(positions.detach().numpy(), 2.0)
    assert of_tensors.graph.src.tolist() == of_arrays.graph.src.tolist()
    for a, b in zip(of_tensors[1:], of_arrays[1:], strict=True):
        assert isinstance(a, torch.Tensor)
        np.testing.assert_array_equal(a.numpy(), b)
    ends = torch.tensor([[2, 0, 1, 0], [0, 2, 0, 1]], dtype=index)
    ordered = EdgeGraph.from_unsorted(*ends, 3, vec=torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]]))
    assert isinstance(ordered.permutation, torch.Tensor)
    assert ends[0][ordered.permutation.long()].tolist() == ordered.graph.src.tolist()


def test_basis_embedding_chooses_its_form():
    rad, sph, index = torch.randn(4, 3), torch.randn(6, 2), torch.tensor([0, 3, 1, 1, 0, 2])
    weight = torch.randn(3, 2, 5)
    assert torch.equal(tt.basis_embedding(rad, weight[:, 0].T), tt.basis_embedding_radial(rad, weight[:, 0].T))
    assert torch.equal(tt.basis_embedding(rad, weight), tt.basis_embedding_spherical(rad, weight))
    expected = tt.basis_embedding_triplets(rad, weight, sph, Segments(index.numpy(), 4))
    assert torch.equal(tt.basis_embedding(rad, weight, sph, index), expected)  # the tensor `index` replaces Segments
    with pytest.raises(ValueError, match=r"basis_embedding_triplets_fwd: triplets: Segments: index\[1\] is 3; expect"):
        tt.basis_embedding_triplets(rad[:3], weight, sph, index)
    with pytest.raises(TypeError, match="basis_embedding: triplets is None, but sph_basis is given; expected both"):
        tt.basis_embedding(rad, weight, sph)


def make_lazily_negated(tensor):
    """Return an equal tensor with the negative bit set, which torch negates when it is read."""
    negated = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    assert negated.is_neg()
    return negated


def test_lazily_negated_tensors_are_read_correctly():
    """Graphs and layers use the values of lazily negated tensors, not the raw memory."""
    torch.manual_seed(0)
    positions, of = torch.rand(9, 3), make_lazily_negated
    plain = EdgeGraph.from_positions(positions, 0.5, torch.eye(3), True)
    negated = EdgeGraph.from_positions(of(positions), 0.5, of(torch.eye(3)), True)
    for got, expected in zip(negated[1:], plain[1:], strict=True):
        assert torch.equal(got, expected)
    src, dst = (torch.from_numpy(a.copy()) for a in (plain.graph.src, plain.graph.dst))
    again = EdgeGraph(src, dst, 9, vec=of(plain.vec))
    np.testing.assert_array_equal(again.reverse_edge, plain.graph.reverse_edge)
    x, layer, edge_index = torch.randn(9, 4), tt.nn.GATConv(4, 2), torch.stack([src, dst])
    assert torch.equal(layer(of(x), edge_index), layer(x, edge_index))
    embed, interact = tt.nn.BasisEmbedding(2, 3, 4), tt.nn.EfficientInteractionBilinear(5, 3, 6)
    rad, sph, m = torch.randn(3, 2), torch.randn(4, 4), torch.randn(4, 5)
    lists = (torch.tensor([1, 2, 0, 1]), torch.tensor([0, 0, 0, 1]))
    basis = embed(rad, sph, None, None, *lists)
    assert all(map(torch.equal, embed(of(rad), of(sph), None, None, *lists), basis))
    assert torch.equal(interact([of(b) for b in basis], of(m), *lists), interact(basis, m, *lists))


@pytest.mark.parametrize("name", ["src_embedding", "out"])
def test_a_tensor_whose_storage_was_released_is_refused(name):
    """Tensors whose memory has been released, as in frameworks that shard parameters, are refused."""
    arguments = {n: t.clone() if isinstance(t, torch.Tensor) else t for n, t in make_attention_arguments().items()}
    arguments["out"] = {"output_embedding": torch.empty(4, 6)} if name == "out" else None
    released = arguments["out"]["output_embedding"] if name == "out" else arguments[name]
    released.untyped_storage().resize_(0)
    text = "out['output_embedding']" if name == "out" else name
    assert_attention_refuses(
        ValueError, f"mha_gat_n2n_fwd: {text} has a storage of 0 bytes; expected at least ", **arguments
    )


def test_an_index_tensor_whose_storage_was_released_is_refused():
    edge_index = torch.tensor([[0, 1], [1, 0]])
    edge_index.untyped_storage().resize_(8)
    text = r"^CSC: edge_index has a storage of 8 bytes; expected at least 32: it was rel"
    with pytest.raises(ValueError, match=text):
        CSC.from_edge_index(edge_index)
    with pytest.raises(ValueError, match=text):  # this holds even if torch.func has wrapped the tensor
        torch.func.grad(lambda x: (CSC.from_edge_index(edge_index.detach()), x.sum())[1])(torch.ones(2))


# Checkpoints: torch's safe loading accepts graphs, which are checked when they are loaded.

GRAPHS = {
    "CSC": lambda: CSC(np.array([0, 2, 3]), np.array([0, 1, 1]), 3, np.array([1, 0, 1]), 2),
    "EdgeGraph": lambda: EdgeGraph(np.array([0, 0, 1, 2]), np.array([1, 2, 0, 0]), 3),
    "Segments": lambda: Segments(np.array([1, 0, 1], np.int32), 3),
    "no edges": lambda: EdgeGraph(np.zeros(0, np.int32), np.zeros(0, np.int32), 3),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_survive_checkpoints_pickles_and_copies(name, tmp_path):
    """Graphs survive checkpoints with safe loading, pickles and copies."""
    graph = GRAPHS[name]()
    values = (graph, tt.GraphTensors.from_graph(graph))
    torch.save(values, tmp_path / "checkpoint.pt")
    again = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    for value in (*again, *pickle.loads(pickle.dumps(values)), *copy.deepcopy(values)):
        assert isinstance(value, (type(graph), tt.GraphTensors))
        loaded_graph = value.graph() if isinstance(value, tt.GraphTensors) else value
        if loaded_graph is value:
            assert repr(loaded_graph) == repr(graph)
        made, expected = tt.GraphTensors.from_graph(loaded_graph), tt.GraphTensors.from_graph(graph)
        assert made.numbers == expected.numbers
        for a, b in zip(made.tensors, expected.tensors, strict=True):
            assert (a is None) == (b is None)
            assert a is None or (a.dtype == b.dtype and torch.equal(a, b))
    program = pickletools.genops(pickle.dumps(graph, torch.serialization.DEFAULT_PROTOCOL))
    assert not any("numpy" in str(argument) for _, argument, _ in program)


@pytest.mark.parametrize("load_in_inference_mode", [False, True])
# `place` is the index of `indices`, `src` or `index` among the tensors of a graph.
@pytest.mark.parametrize(("name", "place"), [("CSC", 1), ("EdgeGraph", 3), ("Segments", 0)])
def test_checkpoints_of_impossible_graphs_are_refused(name, place, load_in_inference_mode, tmp_path):
    """Loading a graph with indices out of range raises an error, since kernels would read out of bounds."""
    apart = tt.GraphTensors.from_graph(GRAPHS[name]())
    apart.tensors[place] = apart.tensors[place] + 1000
    torch.save(apart, tmp_path / "apart.pt")
    with (
        torch.inference_mode(load_in_inference_mode),
        pytest.raises(ValueError, match=r"is 100[01]; expected 0 <= |is not sorted"),
    ):
        torch.load(tmp_path / "apart.pt", weights_only=True)


class ForgedPickle:
    """An object that `torch.save` writes as a call to a function with arbitrary arguments."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def test_forged_checkpoints_are_refused(tmp_path):
    """Loading a file that calls an allowed function with forged arguments raises an error."""
    out_of_range = r"^CSC: indices\[0\] is 1000; expected 0 <= indices < num_src_nodes = 3"
    make, (name, arguments) = GRAPHS["CSC"]().__reduce_ex__(torch.serialization.DEFAULT_PROTOCOL)
    impossible = name, (arguments[0], arguments[1] + 1000, *arguments[2:])
    apart = vars(tt.GraphTensors.from_graph(GRAPHS["CSC"]()))
    for value, kind, text in (
        (ForgedPickle(make, impossible), ValueError, out_of_range),
        (ForgedPickle(make, ("eval", ())), ValueError, "^rebuilt: type_name is 'eval'; expected one of CSC"),
        (ForgedPickle(tt.GraphTensors, tuple(apart.values())), pickle.UnpicklingError, "GraphTensors"),
    ):
        torch.save(value, tmp_path / "forged.pt")
        with pytest.raises(kind, match=text):
            torch.load(tmp_path / "forged.pt", weights_only=True)


TENSOR_FORMS = {
    "whole": lambda t: t,
    "transposed": lambda t: t.t().clone().t(),
    "cut": lambda t: torch.cat([t, t], 1)[:, : t.shape[1]],
    "expanded": lambda t: t[:1].clone().expand(t.shape),
    "empty": lambda t: t[:0].clone(),
    "leaf": lambda t: t.clone().requires_grad_() if t.is_floating_point() else t,
    "negated": lambda t: torch.complex(t, -t).conj().imag if t.dtype == torch.float64 else t,
    "zeros": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "subclass": lambda t: t.clone().as_subclass(torch.nn.Parameter if t.is_floating_point() else torch.Tensor),
}


@pytest.mark.parametrize("form", TENSOR_FORMS)
def test_an_array_views_the_memory_of_a_tensor(form):
    """The array has the tensor's values and strides, keeps its memory alive, and leaves its storage resizable."""
    views = []
    for dtype in ("float16", "bfloat16", "float32", "float64", "int32", "int64", "bool"):
        tensor = TENSOR_FORMS[form]((torch.arange(12) % 7).view(3, 4).to(getattr(torch, dtype)))
        expected, strides = tensor.clone().tolist(), [n * tensor.element_size() for n in tensor.stride()]
        array, address = arrays.view_tensor_as_array(tensor), tensor.data_ptr()
        assert (array.dtype.name, array.shape, array.tolist()) == (dtype, tuple(tensor.shape), expected)
        assert tensor.untyped_storage().resizable()
        if form not in ("negated", "zeros"):
            assert array.size == 0 or (array.ctypes.data, [*array.strides]) == (address, strides)
            assert array.flags.writeable
        views.append((array, expected))
    del tensor
    gc.collect()
    for array, expected in views:
        assert array.tolist() == expected


def test_a_call_leaves_storages_resizable():
    """Frameworks that shard parameters can release the memory of tensors after a call."""
    values = make_attention_arguments()
    leaves = [t.requires_grad_() for t in values.values() if isinstance(t, torch.Tensor)]
    cotangent = torch.randn(4, 6)
    out = tt.mha_gat_n2n(**values).output_embedding
    torch.autograd.grad(out, leaves, cotangent, create_graph=True)[0].sum().backward()
    x, offsets = torch.randn(3, 2, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 2])
    for _ in range(3):
        (grad,) = torch.autograd.grad(silu(x).square().sum(), x, create_graph=True)
        grad.square().sum().backward()
    CSC(offsets, offsets[:2])
    edges = torch.tensor([[0, 1], [1, 0]])
    CSC.from_edge_index(edges)
    for tensor in (*leaves, cotangent, x, offsets, edges):
        storage = tensor.untyped_storage()
        storage.resize_(0)
        assert storage.nbytes() == 0
