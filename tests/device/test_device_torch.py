"""`trigraph.torch` on the device: three orders, half precision, layers, streams, threads, captures, memory.

A rehearsal has the CPU's tensors; streams, captures and several devices are not in it.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from device_calls import compute, draw, unequal

import trigraph
from trigraph.benchmarks.measure import as_numpy, relative_error
from trigraph.benchmarks.models import PROGRAMS
from trigraph.table import DEFINITIONS, OPERATORS, THIRD
from trigraph.verification.cases import half_dtype

STEPS = 1000  # after which as much memory is taken as after the first tenth
# Of layers, and of third derivatives, on the device and on the CPU: sums of some thousand terms in other orders.
CLOSE = {dtype: 512 * float(np.finfo(dtype).eps) for dtype in ("float32", "float64")}
ATTENTION = OPERATORS["mha_gat_n2n_fwd"]


@pytest.fixture
def cuda(place, torch):
    """Return torch's functions of a device."""
    if place.rehearsal:
        pytest.skip("needs a device")
    return torch.cuda


def devices(place, torch):
    return ["cpu"] if place.rehearsal else [f"cuda:{k}" for k in range(torch.cuda.device_count())]


def to_torch(value, device):
    """Return arguments with tensors for NumPy's arrays, graphs too."""
    import torch

    if isinstance(value, dict):
        return {n: to_torch(v, device) for n, v in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.name == "bfloat16":
            return to_torch(value.astype(np.float32), device).to(torch.bfloat16)
        return torch.from_numpy(value.copy()).to(device)
    if hasattr(value, "prepare"):
        make, arguments = value.__reduce__()
        graph = make(*(to_torch(a, device) for a in arguments))
        graph.prepare()
        return graph
    return value


def compute_forward(place, definition, values, **more):
    names = [n for n in OPERATORS[f"{definition.name}_fwd"].parameters if n not in definition.requests]
    backend = place.backend if place.rehearsal else None
    return getattr(trigraph.torch, definition.name)(**{n: values[n] for n in names}, backend=backend, **more)


def differentiate(place, torch, definition, values):
    """Return what autograd gives: the outputs, their gradients, and the derivatives of these, up to the third order.

    The third order is the gradient of the sum of the products of the second's fields with the cotangents ggg_.
    """
    inputs = [a.name for a in definition.inputs if values[a.name] is not None]
    grads = [f"grad_{a.name}" for a in definition.outputs]
    ggs = [f"gg_{n}" for n in inputs]
    values = {n: v.requires_grad_() if n in (*inputs, *grads, *ggs) else v for n, v in values.items()}
    result = compute_forward(place, definition, values)
    outputs = [result] if isinstance(result, torch.Tensor) else [getattr(result, a.name) for a in definition.outputs]
    first = torch.autograd.grad(outputs, [values[n] for n in inputs], [values[n] for n in grads], create_graph=True)
    names = [*grads, *inputs]
    along = [values[n] for n in ggs]
    second = torch.autograd.grad(first, [values[n] for n in names], along, create_graph=True, allow_unused=True)
    total = sum((values[f"ggg_{n}"] * t).sum() for n, t in zip(names, second, strict=True) if t is not None)
    third = torch.autograd.grad(total, [values[n] for n in (*ggs, *names)], allow_unused=True)
    return {
        "fwd": dict(zip((a.name for a in definition.outputs), outputs, strict=True)),
        "bwd": dict(zip(inputs, first, strict=True)),
        "bwd2": dict(zip(names, second, strict=True)),
        "bwd3": dict(zip((*ggs, *names), third, strict=True)),
    }


def unequal_tensors(place, torch, fields, right):
    """Return the names of fields of torch that have other bits than the backend's."""
    tensors = {n: tensor.detach().cpu() for n, tensor in fields.items() if tensor is not None}
    arrays = {n: (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy() for n, t in tensors.items()}
    return unequal(place, arrays, {n: right[n] for n in arrays})


def distance(tensor, right):
    """Return the largest difference over the largest number; a tensor that is None is zero."""
    got = 0.0 if tensor is None else tensor.detach().cpu().numpy()
    return float(abs(got - right).max(initial=0) / max(abs(right).max(initial=0), 1e-6))


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_derivatives(place, torch, definition, dtype, record_property):
    """By autograd, on each device there is: two orders have the backend's bits, the third is close to pyref's."""
    bwd3 = THIRD[f"{definition.name}_bwd3"]
    values = draw(bwd3, dtype)
    right = compute(bwd3, values, "pyref")
    for device in devices(place, torch):
        orders = differentiate(place, torch, definition, to_torch(values, device))
        errors = {n: distance(t, right[n]) for n, t in orders.pop("bwd3").items()}
        record_property("largest error", max(errors.values()))
        assert {n: error for n, error in errors.items() if not (error <= CLOSE[dtype])} == {}
        for order, fields in orders.items():
            op = OPERATORS[f"{definition.name}_{order}"]
            arguments = {n: values.get(n) for n in op.parameters if n not in definition.requests}
            expected = compute(op, place.moved(arguments), place.backend)
            assert unequal_tensors(place, torch, fields, expected) == [], op.name


def test_half_precision(place, torch):
    """Embeddings in bfloat16 give the backend's bits; autocast computes in float32."""
    device, values = devices(place, torch)[0], draw(ATTENTION)
    half = {a.name: values[a.name].astype(half_dtype("bfloat16")) for a in ATTENTION.given(values) if a.half}
    right = compute(ATTENTION, place.moved({**values, **half}), place.backend)
    out = compute_forward(place, ATTENTION.definition, to_torch({**values, **half}, device)).output_embedding
    assert unequal_tensors(place, torch, {"output_embedding": out}, right) == []
    with torch.autocast(device.partition(":")[0], torch.bfloat16):
        out = compute_forward(place, ATTENTION.definition, to_torch({**values, **half}, device)).output_embedding
    assert out.dtype == torch.float32


@pytest.mark.parametrize("name", ["GATConv", "DimeNetPlusPlus"])
def test_layers(place, torch, name, record_property):
    """A layer and a model give the CPU's results and gradients."""
    from trigraph.torch import nn

    if name == "GATConv":
        layer, arguments = nn.GATConv(16, 4, heads=4), (torch.randn(50, 16), torch.randint(0, 50, (2, 400)))
    else:
        pytest.importorskip("ase")  # finds neighbours on the CPU
        sizes = {"hidden_channels": 16, "num_blocks": 1, "int_emb_size": 8, "basis_emb_size": 4, "out_emb_channels": 16}
        layer = nn.DimeNetPlusPlus(**sizes, out_channels=1, num_spherical=7, num_radial=6, cutoff=3.0)
        arguments = torch.randint(1, 9, (50,)), 6 * torch.rand(50, 3)
    results = []
    for device in ("cpu", devices(place, torch)[0]):
        own = copy.deepcopy(layer).to(device)
        out = own(*(a.to(device) for a in arguments))
        out.square().sum().backward()
        results.append([out, *(p.grad for p in own.parameters() if p.grad is not None)])
    error = max(distance(b, a.detach().cpu().numpy()) for a, b in zip(*results, strict=True))
    record_property("largest error", error)
    assert error <= CLOSE["float32"]


@pytest.mark.parametrize("dtype", CLOSE)
def test_curvature(place, torch, dtype, record_property):
    """The gradient of a loss of DimeNet++'s Hessian times a vector, a third derivative, is the CPU's."""
    pytest.importorskip("ase")
    (program,) = (p for p in PROGRAMS if p.name == "dimenet-molecules-curvature-training")
    results = []
    for device in ("cpu", devices(place, torch)[0]):
        with torch.device(device):
            call = program.prepare("trigraph", program.at("small"), dtype)
            results.append({n: as_numpy(t) for n, t in call().items()})
    error = relative_error(results[1], results[0])
    record_property("largest error", error)
    assert error <= CLOSE[dtype]


def draw_twice(place):
    """Return two sets of attention's arguments with one graph."""
    first, second = (draw(ATTENTION, seed=seed) for seed in (0, 1))
    moved = to_torch(first, "cuda")
    return moved, {n: to_torch(v, "cuda") if isinstance(v, np.ndarray) else moved[n] for n, v in second.items()}


def test_record_stream(place, torch, cuda):
    """Memory of a result is not given away before another stream, which torch was told of, has read it."""
    values, _ = draw_twice(place)
    right = compute_forward(place, ATTENTION.definition, values).output_embedding
    busy = torch.randn(4096, 4096, device="cuda")
    torch.full_like(right, torch.nan), right + 0  # loading a kernel waits for the device, so all are loaded here
    main, side = cuda.current_stream(), cuda.Stream()
    side.wait_stream(main)
    with cuda.stream(side):
        out = compute_forward(place, ATTENTION.definition, values).output_embedding
    main.wait_stream(side)
    for _ in range(50):
        busy = busy @ busy
    kept, address = out + 0, out.data_ptr()
    out.record_stream(main)
    del out
    with cuda.stream(side):
        fillers = [torch.full_like(right, torch.nan) for _ in range(20)]
    finished = main.query()
    assert torch.equal(kept, right)
    if finished:  # memory that nobody uses any more may be given away
        pytest.skip("bits are right; the device had finished before memory was asked for")
    assert all(t.data_ptr() != address for t in fillers)


def test_two_threads(place, torch, cuda):
    values, _ = draw_twice(place)
    right = compute_forward(place, ATTENTION.definition, values).output_embedding
    cuda.synchronize()

    def work(_):
        with cuda.stream(cuda.Stream()):
            results = (compute_forward(place, ATTENTION.definition, values).output_embedding for _ in range(20))
            return all(torch.equal(out, right) for out in results)

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(2)))


@pytest.mark.parametrize("given", [False, True], ids=["", "out"])
def test_capture(place, torch, cuda, given):
    """A CUDA graph of torch is replayed with other inputs, with and without `out`."""
    values, second = draw_twice(place)
    right = compute_forward(place, ATTENTION.definition, second).output_embedding
    keywords = {"out": {"output_embedding": torch.empty_like(right)}} if given else {}
    held = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    compute_forward(place, ATTENTION.definition, held, **keywords)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        got = compute_forward(place, ATTENTION.definition, held, **keywords).output_embedding
    for n, v in second.items():
        if isinstance(v, torch.Tensor):
            held[n].copy_(v)
    graph.replay()
    assert torch.equal(got, right)


def test_reduce_overhead(place, torch, cuda):
    """A program that torch compiles to CUDA graphs has the same bits."""
    _, values = draw_twice(place)
    right, name = compute_forward(place, ATTENTION.definition, values).output_embedding, ATTENTION.arguments[0].name

    def forward(x):
        return compute_forward(place, ATTENTION.definition, {**values, name: x}).output_embedding

    try:
        compiled = torch.compile(forward, mode="reduce-overhead")
        results = [compiled(values[name]).clone() for _ in range(3)]
    except Exception as error:  # torch's compiler needs another one, for C
        if "capture" in str(error):
            raise
        pytest.skip(repr(error))
    assert all(torch.equal(out, right) for out in results)


def test_memory_is_flat(place, torch, cuda):
    layer = trigraph.torch.nn.GATConv(16, 4, heads=4).cuda()
    x, edges, taken = torch.randn(1000, 16, device="cuda"), torch.randint(0, 1000, (2, 8000), device="cuda"), []
    for step in range(STEPS):
        layer(x, edges).sum().backward()
        if step in (STEPS // 10, STEPS - 1):
            cuda.synchronize()
            taken.append((cuda.memory_allocated(), place.xp.get_default_memory_pool().total_bytes()))
    assert taken[0] == taken[1]
