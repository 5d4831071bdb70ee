"""Tests of the CUDA code in `trigraph.torch`, with stand-ins for CuPy and torch (torch_stand_in.py)."""

import re
import sys
from pathlib import Path

import cupy_stand_in
import numpy as np
import pytest
import torch
import torch_stand_in
from expect_error import expect_error
from graph_stand_in import OperationCounter
from table_calls import FUNCTIONS, draw_operator_arguments, select_graph_arguments
from tensors import convert_to_tensors
from torch_stand_in import Stream

import trigraph.torch
from trigraph.arrays import import_cupy
from trigraph.backends.choice import supports_bwd3
from trigraph.graphs import to_device
from trigraph.torch import arrays, nn
from trigraph.torch.layers import activations, edges
from trigraph.torch.library import OPERATORS_OF_TORCH
from trigraph.torch.potentials import structures
from trigraph.torch.potentials.structures import find_neighbors
from trigraph.verification.subjects import convert_result_to_mapping

NAMES = [
    n
    for n, op in OPERATORS_OF_TORCH.items()
    if op.op.order < 3 or supports_bwd3("gpu", op.op, draw_operator_arguments(op.op, np.float32))
]


@pytest.fixture
def device_records(monkeypatch, tmp_path):
    return torch_stand_in.install_torch_and_cupy(monkeypatch, tmp_path)[1]


def draw_torch_call(name):
    """Return a torch operator and random arguments by name."""
    op = OPERATORS_OF_TORCH[name]
    return op, draw_operator_arguments(op.op, np.float32)


def compute_fields_on_device(op, values):
    """Call a torch operator; return all its fields by name."""
    rest = {n: v for n, v in values.items() if n not in op.array_names}
    wanted = ",".join(f.name for f in op.op.fields)
    keywords = {**rest, "backend": "", **({"wanted": wanted} if op.op.accepts_wrt else {})}
    result = op([values[n] for n in op.array_names], keywords)
    return dict(zip((f.name for f in op.op.fields), result if isinstance(result, tuple) else (result,), strict=True))


def compute_with_gpu_host(op, values):
    return convert_result_to_mapping(op.op, FUNCTIONS[op.op.name](**values, backend="gpu-host"))


@pytest.mark.parametrize("name", NAMES)
def test_results_equal_gpu_host_in_torch_memory(device_records, name):
    """Results equal gpu-host's bitwise; small arrays share one torch allocation, and calls can be captured."""
    op, values = draw_torch_call(name)
    expected, values = compute_with_gpu_host(op, values), convert_to_tensors(values)
    for graph in select_graph_arguments(op.op, values).values():
        graph.prepare()
    device_records.allocation_sizes.clear()
    with cupy_stand_in.simulate_capture():
        fields = compute_fields_on_device(op, values)
    assert all(t.untyped_storage().resizable() for t in fields.values())  # torch allocated the memory
    assert len(device_records.allocation_sizes) <= 1
    for field, array in expected.items():
        assert (array is None) == (fields[field].numel() == 0)
        assert array is None or fields[field].numpy().tobytes() == array.tobytes(), field


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_silu_kernels_agree_with_cpu_derivatives(request, dtype):
    """Derivatives of SiLU agree with the CPU's up to a few rounding errors of their terms, and are finite."""
    extremes = torch.tensor([-800.0, -110.0, -40.0, -1e-30, 0.0, 1e-30, 17.0, 120.0, 800.0], dtype=dtype)
    x = torch.cat([8 * torch.randn(1991, dtype=dtype), extremes]).reshape(40, 50)
    b, c, a, g = torch.randn(4, 50, 40, dtype=dtype).transpose(1, 2)  # these tensors are non-contiguous
    tensors, scales = (b, c, a, g, x), (a, a * g, b.abs() + (c * g).abs(), c * a, a * (b.abs() + (c * g).abs()))
    expected = [t for order in (2, 3) for t in activations._launch_silu_kernel(order, *tensors[6 - 2 * order :])]
    device = request.getfixturevalue("device_records")
    streams = record_launch_streams(request.getfixturevalue("monkeypatch"))
    with torch.cuda.stream(Stream(7)):
        x, g, a = (t.detach().requires_grad_() for t in (x, g, a))
        (first,) = torch.autograd.grad(activations.SiLU()(x), x, g, create_graph=True)
        second = torch.autograd.grad(first, (g, x), a, create_graph=True)
        found = [*second, *torch.autograd.grad(second, (a, g, x), (b, c))]
    assert [s.ptr for s in streams] == [7, 7]
    for got, other, scale in zip(found, expected, scales, strict=True):
        assert got.isfinite().all()
        assert not (got - other).abs().gt(8 * torch.finfo(dtype).eps * scale.abs()).any()
    assert activations._launch_silu_kernel(2, *[x[:0]] * 3)[0].shape == (0, 50)
    assert not device.recorded_streams


@pytest.mark.usefixtures("device_records")
def test_operations_of_a_step_match_the_documentation():
    """A potential's steps need the numbers of torch operations and kernel launches stated in docs/gpu.md.

    The numbers do not depend on the structure, and only slightly on the version of torch.
    """
    torch.manual_seed(0)
    sizes = {"hidden_channels": 4, "out_emb_channels": 4, "basis_emb_size": 2, "int_emb_size": 4}
    model = nn.DimeNetPlusPlus(out_channels=1, num_blocks=4, num_spherical=3, num_radial=2, **sizes)
    z, pos, cell = torch.tensor([6, 1, 1, 1, 1]), 3 * torch.rand(5, 3), 9 * torch.eye(3)[None]
    given = {"cell": cell, "neighbors": model.neighbors(pos, cell=cell)}

    def compute_loss_gradients(results):
        loss = sum(t.square().sum() for t in (results[:2] if isinstance(results, tuple) else [results]))
        return torch.autograd.grad(loss, [*model.parameters()])

    steps = {
        "energy and forces": lambda: model.energy_forces_stress(z, pos, **given),
        "training on forces": lambda: compute_loss_gradients(
            model.energy_forces_stress(z, pos, **given, create_graph=True)
        ),
        "training on curvature": lambda: compute_loss_gradients(
            model.hessian_vector_product(z, pos, pos, **given, create_graph=True)
        ),
    }
    cupy_stand_in.state.dry = True
    for step in steps.values():
        step()  # the first call does one-time work
    counts = {}
    for name, step in steps.items():
        before = cupy_stand_in.state.launches
        with OperationCounter() as counter:
            step()
        counts[name] = counter.count, cupy_stand_in.state.launches - before
    page = (Path(__file__).parents[2] / "docs/gpu.md").read_text()
    rows = re.findall(r"^\| (.*\S) +\| +([\d,]+) \| +([\d,]+) \|$", page, re.MULTILINE)
    stated = {name: [int(n.replace(",", "")) for n in numbers] for name, *numbers in rows}
    assert counts.keys() == stated.keys()
    for name, numbers in counts.items():
        assert all(abs(n - m) <= 0.05 * m for n, m in zip(numbers, stated[name], strict=True)), (name, numbers)


def record_launch_streams(monkeypatch):
    """Return a list to which every launch adds its stream."""
    streams, call = [], cupy_stand_in.CompiledKernel.__call__

    def record_stream_and_launch(*args, **kwargs):
        streams.append(cupy_stand_in.state.stream)
        return call(*args, **kwargs)

    monkeypatch.setattr(cupy_stand_in.CompiledKernel, "__call__", record_stream_and_launch)
    return streams


def test_kernels_launch_on_torchs_current_stream(device_records, monkeypatch):
    """Kernels are launched on torch's current stream; torch's default stream is CuPy's null stream."""
    streams, (op, values) = record_launch_streams(monkeypatch), draw_torch_call("agg_weighted_n2n_bwd")
    values = convert_to_tensors(values)
    for stream in (Stream(), Stream(7), Stream()):
        with torch.cuda.stream(stream):
            compute_fields_on_device(op, values)
    assert list(dict.fromkeys(s.ptr for s in streams)) == [1, 7]
    assert len(set(map(id, streams))) == 2  # one CuPy object per stream


def test_graphs_passed_as_tensors_do_not_synchronize(device_records):
    """Graphs passed as tensors, as in compiled programs, cause no synchronisation, so calls can be captured."""
    op, values = draw_torch_call("mha_gat_n2n_fwd")
    expected, values = compute_with_gpu_host(op, values), convert_to_tensors(values)
    keywords = {**{n: v for n, v in values.items() if n not in op.array_names}, "backend": ""}
    args = op.flatten_arguments([values[n] for n in op.array_names], keywords, True)
    copies = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
    with torch.cuda.stream(Stream(7)):
        fields = op.overload(*copies)  # the stand-in's streams have no method that waits for another stream
    assert fields[0].numpy().tobytes() == expected[op.op.fields[0].name].tobytes()


def test_graph_memory_is_recorded_on_other_streams(device_records):
    op, values = draw_torch_call("agg_weighted_n2n_bwd")
    values = convert_to_tensors(values)
    compute_fields_on_device(op, values)
    assert not device_records.recorded_streams
    with torch.cuda.stream(Stream(7)):
        compute_fields_on_device(op, values)
    held = {t.data_ptr() for t in trigraph.torch.graphs.list_graph_tensors(values["graph"], True)}
    assert {address for address, _ in device_records.recorded_streams} == held
    assert {stream.cuda_stream for _, stream in device_records.recorded_streams} == {7}


def test_graphs_are_built_in_memory_of_torch(device_records):
    """Graphs, and their prepared orders by source, are built on torch's stream in torch's memory."""
    with torch.cuda.stream(Stream(7)):
        graph = convert_to_tensors(draw_torch_call("agg_weighted_n2n_bwd")[1]["graph"])
        graph.prepare()
    held = trigraph.torch.graphs.list_graph_tensors(graph, True)
    assert all(t.untyped_storage().resizable() for t in held)
    assert graph.offsets.memory.stream.ptr == graph.prepare().src_offsets.memory.stream.ptr == 7


def test_cupy_graphs_work_without_torch_cuda(device_records, monkeypatch):
    """If torch is built without CUDA, graphs of CuPy arrays work, but have no tensors."""
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    monkeypatch.setattr(torch.utils.dlpack, "from_dlpack", None)
    graph = to_device(draw_torch_call("agg_weighted_n2n_bwd")[1]["graph"])
    assert graph.prepare().src_offsets is not None


TRICLINIC = [[4.0, 0, 0], [2.5, 3, 0], [-1.5, 1, 2.2]]
STRUCTURES = {
    "molecules": (None, None),
    "crystals": ([torch.tensor(TRICLINIC), None, 3 * torch.eye(3)], None),
    "slab": (torch.tensor(TRICLINIC).expand(3, 3, 3).contiguous(), [[True, False, True]] * 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.parametrize("name", STRUCTURES)
def test_device_search_finds_the_cpu_edges(request, name, most, dtype):
    """The search on a device finds the same edges as matscipy, in the same order and as int32."""
    cell, pbc = STRUCTURES[name]
    generator = torch.Generator().manual_seed(0)
    batch = torch.tensor([0, 2, 1, 2] * 6)
    pos = 7 * torch.rand(24, 3, generator=generator, dtype=dtype) - 2

    def find_neighbor_arrays():
        pbc_tensor = None if pbc is None else np.array(pbc)
        result = find_neighbors("test", pos, 2.9, batch, cell, pbc_tensor, most)
        graphs = [result.graph, result.ends, result.into, result.members]
        numbers = [np.asarray(t.numpy()) for g in graphs for t in trigraph.torch.graphs.list_graph_tensors(g, True)]
        return numbers, None if result.shifts is None else result.shifts.numpy()

    expected, shifts = find_neighbor_arrays()
    request.getfixturevalue("device_records")
    request.getfixturevalue("monkeypatch").setattr(structures, "find_neighbor_pairs", None)
    edges, cells = find_neighbor_arrays()
    assert all(a.dtype == np.int32 and np.array_equal(a, b) for a, b in zip(edges, expected, strict=True))
    assert np.array_equal(cells, shifts) if shifts is not None else cells is None


def test_layer_graphs_have_int32_indices(device_records):
    """Layers build graphs with int32 indices on a device (test_qualify.py compares their results)."""
    edge_index = torch.randint(0, 9, (2, 40))
    nn.GATConv(5, 3, heads=2)(torch.randn(9, 5), edge_index)
    graph = edges.find_or_build_graph("", edge_index, 9, 9, True)
    assert graph.offsets.dtype == np.int32
    assert edges.find_or_build_graph("", edge_index, 9, 9, True) is graph
    edge_index.data.fill_(8)  # a write that leaves torch's version counter unchanged
    assert edges.find_or_build_graph("", edge_index, 9, 9, True).max_in_degree == 1


@pytest.mark.parametrize("training", [False, True])
def test_edge_lists_are_refused_during_capture(device_records, training):
    """During a capture, edge lists are refused, since their values cannot be read; prepared graphs work."""
    layer = nn.GATConv(5, 3, dropout=0.5, add_self_loops=False)
    x, edge_index = torch.randn(9, 5), torch.randint(0, 9, (2, 40))
    graph = trigraph.CSC.from_edge_index(edge_index, 9)
    layer(x, edge_index)
    layer.train(training)(x, graph)
    with (
        cupy_stand_in.simulate_capture(),
        expect_error("RuntimeError: GATConv: edge_index is a tensor, whose values the host has"),
    ):
        layer(x, edge_index)
    with cupy_stand_in.simulate_capture():
        layer(x, graph)


def test_device_tensors_without_cupy_are_refused(device_records, monkeypatch):
    x, edge_index = torch.randn(9, 3), torch.randint(0, 9, (2, 40))
    layer, graph = nn.WeightedConv(3, 4), trigraph.CSC.from_edge_index(edge_index, 9)
    monkeypatch.setitem(sys.modules, "cupy", None)
    text = "ImportError: CuPy is not installed: pip install 'trigraph[cuda12]' 'cupy-cuda12x[ctk]', or ..."
    for edges_or_graph in (edge_index, graph):
        with expect_error(text):
            layer(x, edges_or_graph)


def test_allocator_accepts_empty_array_first(device_records):
    allocate = arrays._TorchAllocator(import_cupy().cuda, torch.device("cuda"), shares=True)
    first, second = allocate(0), allocate(8)
    assert second.ptr == first.ptr
