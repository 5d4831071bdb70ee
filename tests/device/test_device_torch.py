"""Tests of `trigraph.torch` on the device: derivatives, half precision, models, streams, threads, captures, memory.

Rehearsals use CPU tensors, and skip tests of streams, threads, captures and memory.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tensors import convert_to_tensors

import trigraph
from trigraph.benchmarks.measure import compute_relative_error, convert_to_numpy
from trigraph.benchmarks.models import PROGRAMS
from trigraph.benchmarks.qualify.stages.checks import call_operator, draw_operator_arguments, find_different_fields
from trigraph.benchmarks.qualify.stages.torch import STEPS, TOLERANCES
from trigraph.table import NAMED, OPERATORS
from trigraph.verification.cases import find_half_dtype
from trigraph.verification.differentiated import make_framework_subject

ATTENTION = OPERATORS["mha_gat_n2n_fwd"]
MODELS = ("gat-minibatches-8000", "dimenet-molecules-training", "dimenet-molecules-curvature-training")


@pytest.fixture
def torch_cuda(target, torch):
    """Return `torch.cuda`, or skip the test in a rehearsal."""
    if target.rehearsal:
        pytest.skip("needs a device")
    return torch.cuda


def list_torch_devices(target, torch):
    return ["cpu"] if target.rehearsal else [f"cuda:{k}" for k in range(torch.cuda.device_count())]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("op", [op for op in NAMED.values() if op.restriction is None], ids=lambda op: op.name)
def test_autograd_derivatives_equal_the_backend(target, torch, op, dtype, record_property):
    """Derivatives by autograd equal the backend's bitwise; third derivatives are close to pyref's."""
    values, auxiliary = draw_operator_arguments(op, dtype), [a.name for a in op.definition.auxiliary]
    backend = "pyref" if op.order == 3 else "fortran" if target.rehearsal else target.backend
    expected = call_operator(op, values if op.order == 3 else target.move_to_device(values), backend)
    expected = {n: target.copy_to_host(a) for n, a in expected.items() if n not in auxiliary and a is not None}
    for device in list_torch_devices(target, torch):
        got = make_framework_subject("torch", device).call(op, values, None)
        if op.order == 3:
            scales = {n: max(abs(a).max(initial=0), 1e-6) for n, a in expected.items()}
            errors = {n: float(abs(got[n] - a).max(initial=0) / scales[n]) for n, a in expected.items()}
            record_property("errors", errors)
            assert all(error <= TOLERANCES[dtype] for error in errors.values()), errors
        else:
            assert find_different_fields(target, got, expected) == ""


def test_bfloat16_results_equal_the_backend(target, torch):
    """Results for bfloat16 embeddings are bitwise identical to the backend's; under autocast, results are float32."""
    device, backend, values = (
        list_torch_devices(target, torch)[0],
        target.backend if target.rehearsal else None,
        draw_operator_arguments(ATTENTION),
    )
    halves = [a.name for a in ATTENTION.select_present_arguments(values) if a.half]
    half = {n: values[n].astype(find_half_dtype("bfloat16")) for n in halves}
    expected = target.copy_to_host(
        call_operator(ATTENTION, target.move_to_device({**values, **half}), target.backend)["output_embedding"]
    )
    tensors = {n: convert_to_tensors(v, device) for n, v in values.items()}
    tensors |= {n: tensors[n].to(torch.bfloat16) for n in halves}
    out = trigraph.torch.mha_gat_n2n(**tensors, backend=backend).output_embedding
    assert out.dtype == torch.bfloat16
    assert out.view(torch.int16).cpu().numpy().tobytes() == expected.tobytes()
    with torch.autocast(device.partition(":")[0], torch.bfloat16):
        assert trigraph.torch.mha_gat_n2n(**tensors, backend=backend).output_embedding.dtype == torch.float32


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", MODELS)
def test_model_gradients_agree_with_cpu(target, torch, name, dtype, record_property):
    """Losses of attention layers, forces and curvature, and their gradients, agree with the CPU."""
    pytest.importorskip("ase")  # for the neighbour search on the CPU
    (program,), results = (p for p in PROGRAMS if p.name == name), []
    for device in ("cpu", list_torch_devices(target, torch)[0]):
        with torch.device(device):
            call = program.make_contender_call("trigraph", program.choose_run_sizes("small"), dtype)
        results.append({n: convert_to_numpy(t) for n, t in call().items()})
    error = compute_relative_error(results[1], results[0])
    record_property("error", error)
    assert error <= TOLERANCES[dtype]


@pytest.fixture
def attention_and_embeddings(torch_cuda, torch):
    """Return attention on the device as a function of the source embedding, and two such embeddings."""
    values = {n: convert_to_tensors(v, "cuda") for n, v in draw_operator_arguments(ATTENTION).items()}
    values["graph"].prepare()

    def compute_attention(x, **options):
        return trigraph.torch.mha_gat_n2n(**{**values, "src_embedding": x}, **options).output_embedding

    torch_cuda.synchronize()
    return compute_attention, values["src_embedding"], torch.randn_like(values["src_embedding"])


def test_recorded_stream_protects_result_memory(torch, torch_cuda, attention_and_embeddings):
    """A result's memory is not reused before another stream, registered with record_stream, has read it."""
    attend, x, _ = attention_and_embeddings
    expected, busy = attend(x), torch.randn(4096, 4096, device="cuda")
    torch.full_like(expected, torch.nan), expected + 0  # load the kernels now: loading waits for the device
    main, side = torch_cuda.current_stream(), torch_cuda.Stream()
    side.wait_stream(main)
    with torch_cuda.stream(side):
        out = attend(x)
    main.wait_stream(side)
    for _ in range(50):
        busy = busy @ busy
    kept, address = out + 0, out.data_ptr()
    out.record_stream(main)
    del out
    with torch_cuda.stream(side):
        fillers = [torch.full_like(expected, torch.nan) for _ in range(20)]
    finished = main.query()
    assert torch.equal(kept, expected)
    if finished:  # then reusing the memory was allowed
        pytest.skip("results are correct, but the device had finished before the next allocation")
    assert all(t.data_ptr() != address for t in fillers)


def test_two_threads_compute_equal_attention(torch, torch_cuda, attention_and_embeddings):
    attend, x, _ = attention_and_embeddings
    expected = attend(x)
    torch_cuda.synchronize()

    def repeats_same_results(_):
        with torch_cuda.stream(torch_cuda.Stream()):
            return all(torch.equal(attend(x), expected) for _ in range(20))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(repeats_same_results, range(2)))


@pytest.mark.parametrize("given", [False, True], ids=["", "out"])
def test_captured_attention_replays_with_other_inputs(torch, torch_cuda, attention_and_embeddings, given):
    """A captured CUDA graph can be replayed with other inputs, with and without `out`."""
    attend, x, y = attention_and_embeddings
    expected, held = attend(y), x.clone()
    keywords = {"out": {"output_embedding": torch.empty_like(expected)}} if given else {}
    attend(held, **keywords)
    graph = torch_cuda.CUDAGraph()
    with torch_cuda.graph(graph):
        got = attend(held, **keywords)
    held.copy_(y)
    graph.replay()
    assert torch.equal(got, expected)


def test_reduce_overhead_mode_gives_identical_results(torch, torch_cuda, attention_and_embeddings):
    """torch.compile in the mode "reduce-overhead", which uses CUDA graphs, returns bitwise identical results."""
    attend, x, _ = attention_and_embeddings
    expected = attend(x)
    try:
        compiled = torch.compile(attend, mode="reduce-overhead")
        results = [compiled(x).clone() for _ in range(3)]
    except Exception as error:  # there may be no C compiler
        if "capture" in str(error):
            raise
        pytest.skip(repr(error))
    assert all(torch.equal(out, expected) for out in results)


def test_training_steps_do_not_grow_memory(target, torch, torch_cuda):
    layer = trigraph.torch.nn.GATConv(16, 4, heads=4).cuda()
    x, edges, memory_use = torch.randn(1000, 16, device="cuda"), torch.randint(0, 1000, (2, 8000), device="cuda"), []
    for step in range(STEPS):
        layer(x, edges).sum().backward()
        if step in (STEPS // 10, STEPS - 1):
            torch_cuda.synchronize()
            memory_use.append((torch_cuda.memory_allocated(), target.xp.get_default_memory_pool().total_bytes()))
    assert memory_use[0] == memory_use[1]
