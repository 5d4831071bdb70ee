"""`trigraph.torch` on the device: three orders, streams, captures, compilation, half precision, memory, layers.

A rehearsal uses tensors on the CPU and has no streams, no captures and no second device.
"""

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from typing import Any

import numpy as np

import trigraph
from trigraph.benchmarks.measure import compute_relative_error, convert_to_numpy
from trigraph.benchmarks.models import PROGRAMS
from trigraph.benchmarks.qualify.part import Notes
from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.stages.checks import call_operator, draw_operator_arguments, find_different_fields
from trigraph.table import DEFINITIONS, OPERATORS, THIRD, Definition
from trigraph.verification.cases import find_half_dtype

STEPS = 1000  # training steps; memory must not grow after the first tenth
DTYPES = "float32", "float64"
# Tolerance between device and CPU for layers and third derivatives, which sum thousands of terms in different orders.
TOLERANCES = {dtype: 512 * float(np.finfo(dtype).eps) for dtype in DTYPES}
Fields = dict[str, Any]


def list_parts(target: Device) -> list[str]:
    """Return the names of the checks or, in a rehearsal, of the first."""
    return list(CHECKS)[: target.shrink_in_rehearsal(len(CHECKS), 1)]


def run_part(part: str, target: Device, notes: Notes) -> None:
    """Run the check called `part` if torch is installed."""
    if why := explain_missing_torch(target):
        notes.add(part, None, why)
    else:
        CHECKS[part](target, notes)


def explain_missing_torch(target: Device) -> str:
    """Return the reason why torch cannot be checked, or "" if it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    there = target.rehearsal or torch.cuda.is_available()
    return "" if there else f"torch {torch.__version__} finds no device"


def _convert_to_tensors(target: Device, value: Any, index: int = 0) -> Any:
    """Return the arguments with NumPy arrays, including those in graphs, replaced by tensors."""
    import torch

    if isinstance(value, dict):
        return {n: _convert_to_tensors(target, v, index) for n, v in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.name == "bfloat16":
            return _convert_to_tensors(target, value.astype(np.float32), index).to(torch.bfloat16)
        return torch.from_numpy(value.copy()).to("cpu" if target.rehearsal else f"cuda:{index}")
    if hasattr(value, "prepare"):
        make, arguments = value.__reduce__()
        graph = make(*(_convert_to_tensors(target, a, index) for a in arguments))
        graph.prepare()
        return graph
    return value


def _call_torch_operator(target: Device, spec: Definition, values: Mapping[str, Any], **more: Any) -> Any:
    names = [n for n in OPERATORS[f"{spec.name}_fwd"].parameter_names if n not in spec.request_names]
    function, backend = getattr(trigraph.torch, spec.name), target.backend if target.rehearsal else None
    return function(**{n: values[n] for n in names}, backend=backend, **more)


def _compute_all_orders(target: Device, spec: Definition, values: Mapping[str, Any]) -> dict[str, Fields]:
    """Return the outputs and their derivatives up to third order, from autograd.

    The third order is the gradient of the inner product of the second order's fields and the cotangents ggg_.
    """
    import torch

    inputs = [a.name for a in spec.inputs if values[a.name] is not None]
    grads = [f"grad_{a.name}" for a in spec.outputs]
    ggs = [f"gg_{n}" for n in inputs]
    values = {n: v.requires_grad_() if n in (*inputs, *grads, *ggs) else v for n, v in values.items()}
    result = _call_torch_operator(target, spec, values)
    outputs = [result] if isinstance(result, torch.Tensor) else [getattr(result, a.name) for a in spec.outputs]
    first = torch.autograd.grad(outputs, [values[n] for n in inputs], [values[n] for n in grads], create_graph=True)
    names = [*grads, *inputs]
    along = [values[n] for n in ggs]
    second = torch.autograd.grad(first, [values[n] for n in names], along, create_graph=True, allow_unused=True)
    total = sum((values[f"ggg_{n}"] * t).sum() for n, t in zip(names, second, strict=True) if t is not None)
    third = torch.autograd.grad(total, [values[n] for n in (*ggs, *names)], allow_unused=True)
    return {
        "fwd": dict(zip((a.name for a in spec.outputs), outputs, strict=True)),
        "bwd": dict(zip(inputs, first, strict=True)),
        "bwd2": dict(zip(names, second, strict=True)),
        "bwd3": dict(zip((*ggs, *names), third, strict=True)),
    }


def _find_different_fields(fields: Fields, right: Fields, target: Device) -> str:
    """Return the names of torch's fields that differ bitwise from the backend's."""
    import torch

    tensors = {n: tensor.detach().cpu() for n, tensor in fields.items() if tensor is not None}
    arrays = {n: (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy() for n, t in tensors.items()}
    return find_different_fields(target, arrays, {n: right[n] for n in arrays})


def _compute_relative_difference(tensor: Any, right: np.ndarray) -> float:
    """Return the largest difference divided by the largest number in `right`; None counts as zero."""
    got = 0.0 if tensor is None else tensor.detach().cpu().numpy()
    return float(abs(got - right).max(initial=0) / max(abs(right).max(initial=0), 1e-6))


def _check_derivatives(target: Device, notes: Notes) -> None:
    """Check all operators by autograd on each device: forward and two orders bitwise, the third order against pyref."""
    import torch

    several = product(range(1 if target.rehearsal else torch.cuda.device_count()), DTYPES, DEFINITIONS)
    for index, dtype, spec in islice(several, target.shrink_in_rehearsal(1000, 2)):
        bwd3, label = THIRD[f"{spec.name}_bwd3"], f"{dtype}, device {index}"
        values = draw_operator_arguments(bwd3, dtype)
        orders = _compute_all_orders(target, spec, _convert_to_tensors(target, values, index))
        right = call_operator(bwd3, values, "pyref")
        errors = {n: _compute_relative_difference(t, right[n]) for n, t in orders.pop("bwd3").items()}
        far = ", ".join(f"{n}: {error:.1e}" for n, error in errors.items() if not (error <= TOLERANCES[dtype]))
        notes.add(f"{bwd3.name}, {label}", not far, far or f"largest error {max(errors.values()):.1e}")
        for order, fields in orders.items():
            op = OPERATORS[f"{spec.name}_{order}"]
            arguments = {n: values.get(n) for n in op.parameter_names if n not in spec.request_names}
            wrong = _find_different_fields(
                fields, call_operator(op, target.move_to_device(arguments), target.backend), target
            )
            notes.add(f"{op.name}, {label}", not wrong, wrong)


def _check_half_precision(target: Device, notes: Notes) -> None:
    """Check bfloat16 embeddings against the backend, and that autocast computes in float32."""
    import torch

    op = OPERATORS["mha_gat_n2n_fwd"]
    values = draw_operator_arguments(op)
    half = {
        a.name: values[a.name].astype(find_half_dtype("bfloat16"))
        for a in op.select_present_arguments(values)
        if a.half
    }
    right = call_operator(op, target.move_to_device({**values, **half}), target.backend)
    out = _call_torch_operator(target, op.definition, _convert_to_tensors(target, {**values, **half})).output_embedding
    wrong = _find_different_fields({"output_embedding": out}, right, target)
    notes.add("attention with bfloat16", not wrong, wrong)
    with torch.autocast("cpu" if target.rehearsal else "cuda", torch.bfloat16):
        out = _call_torch_operator(
            target, op.definition, _convert_to_tensors(target, {**values, **half})
        ).output_embedding
    notes.add("attention in autocast", out.dtype == torch.float32, str(out.dtype))


def _check_layers_against_cpu(target: Device, notes: Notes) -> None:
    """Check the outputs and gradients of layers and of a model against the CPU."""
    import torch

    from trigraph.torch import nn

    edges, x, pos = torch.randint(0, 50, (2, 400)), torch.randn(50, 16), 6 * torch.rand(50, 3)
    z = torch.randint(1, 9, (50,))
    sizes: Fields = {
        "hidden_channels": 16,
        "num_blocks": 1,
        "int_emb_size": 8,
        "basis_emb_size": 4,
        "out_emb_channels": 16,
    }
    model = nn.DimeNetPlusPlus(**sizes, out_channels=1, num_spherical=7, num_radial=6, cutoff=3.0)
    works = {"GATConv": (nn.GATConv(16, 4, heads=4), x, edges), "DimeNetPlusPlus": (model, z, pos)}
    for name, (layer, *arguments) in works.items():
        results = []
        try:
            for device in ("cpu", "cpu" if target.rehearsal else "cuda"):
                own = copy.deepcopy(layer).to(device)
                out = own(*(a.to(device) for a in arguments))
                out.square().sum().backward()
                results.append([out, *(p.grad for p in own.parameters() if p.grad is not None)])
        except ImportError as error:  # the neighbour search on the CPU needs matscipy or ASE
            notes.add(name, None, str(error))
            continue
        pairs = [(a.detach(), b.detach().cpu()) for a, b in zip(*results, strict=True)]
        errors = [float((a - b).abs().max() / a.abs().max().clamp(min=1e-6)) for a, b in pairs]
        close = all(error <= TOLERANCES["float32"] for error in errors)
        notes.add(f"{name} against the CPU", close, f"largest error {max(errors):.1e}")


def _check_curvature_gradients(target: Device, notes: Notes) -> None:
    """Check a third derivative against the CPU: the gradient of a loss of DimeNet++'s Hessian times a vector."""
    import torch

    (program,) = (p for p in PROGRAMS if p.name == "dimenet-molecules-curvature-training")
    for dtype in DTYPES:
        results = []
        for device in ("cpu", "cpu" if target.rehearsal else "cuda"):
            with torch.device(device):
                call = program.make_contender_call("trigraph", program.choose_run_sizes("small"), dtype)
                results.append({n: convert_to_numpy(t) for n, t in call().items()})
        error = compute_relative_error(results[1], results[0])
        notes.add(f"gradients of curvature in {dtype}", error <= TOLERANCES[dtype], f"largest error {error:.1e}")


def _draw_attention_argument_sets(target: Device) -> tuple[Definition, Fields, Fields]:
    """Return the definition of attention, and two sets of its arguments with the same graph."""
    spec = OPERATORS["mha_gat_n2n_fwd"].definition
    first, second = (draw_operator_arguments(OPERATORS["mha_gat_n2n_fwd"], seed=seed) for seed in (0, 1))
    second = {n: v if isinstance(v, np.ndarray) else first[n] for n, v in second.items()}
    moved = _convert_to_tensors(target, first)
    return (
        spec,
        moved,
        {n: _convert_to_tensors(target, v) if isinstance(v, np.ndarray) else moved[n] for n, v in second.items()},
    )


def _check_record_stream(target: Device, notes: Notes) -> None:
    """Check that torch does not reuse the memory of a result while a stream passed to `record_stream` reads it."""
    import torch

    spec, values, _ = _draw_attention_argument_sets(target)
    right, busy = _call_torch_operator(target, spec, values).output_embedding, torch.randn(4096, 4096, device="cuda")
    torch.full_like(right, torch.nan), right + 0  # loads the kernels now, because loading waits for the device
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(main)
    with torch.cuda.stream(side):
        out = _call_torch_operator(target, spec, values).output_embedding
    main.wait_stream(side)
    for _ in range(50):
        busy = busy @ busy
    kept, address = out + 0, out.data_ptr()
    out.record_stream(main)
    del out
    with torch.cuda.stream(side):
        fillers = [torch.full_like(right, torch.nan) for _ in range(20)]
    if main.query():  # torch may reuse memory that is no longer in use
        notes.add("record_stream", None, "the device had finished before memory was requested")
    else:
        notes.add("record_stream", all(t.data_ptr() != address for t in fillers), "memory in use was reused")
    notes.add("bits on a side stream", torch.equal(kept, right))


def _check_threads(target: Device, notes: Notes) -> None:
    """Check the same calls in two threads, each with its own stream."""
    import torch

    spec, values, _ = _draw_attention_argument_sets(target)
    right = _call_torch_operator(target, spec, values).output_embedding
    torch.cuda.synchronize()

    def repeats_same_results(_: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            return all(
                torch.equal(_call_torch_operator(target, spec, values).output_embedding, right) for _ in range(20)
            )

    with ThreadPoolExecutor(2) as pool:
        same = all(pool.map(repeats_same_results, range(2)))
    notes.add("calls in two threads", same)


def _check_captures(target: Device, notes: Notes) -> None:
    """Check torch's CUDA graphs, with and without `out`, and CUDA graphs created by torch's compiler."""
    import torch

    spec, values, second = _draw_attention_argument_sets(target)
    right = _call_torch_operator(target, spec, second).output_embedding
    for label, out in (("", None), (" with out", torch.empty_like(right))):
        keywords = {} if out is None else {"out": {"output_embedding": out}}
        held = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in values.items()}
        _call_torch_operator(target, spec, held, **keywords)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = _call_torch_operator(target, spec, held, **keywords).output_embedding
        for n, v in second.items():
            if isinstance(v, torch.Tensor):
                held[n].copy_(v)
        graph.replay()
        notes.add(f"captured and replayed{label}", torch.equal(got, right))
    name = spec.inputs[0].name
    try:
        compiled = torch.compile(
            lambda x: _call_torch_operator(target, spec, {**second, name: x}).output_embedding, mode="reduce-overhead"
        )
        got = [compiled(second[name]).clone() for _ in range(3)]
    except Exception as error:  # torch's compiler needs a C compiler
        notes.add("reduce-overhead", False if "capture" in str(error) else None, repr(error))
    else:
        notes.add("reduce-overhead", all(torch.equal(a, right) for a in got))


def _check_memory_growth(target: Device, notes: Notes) -> None:
    """Check that memory does not grow over many training steps."""
    import torch

    layer = trigraph.torch.nn.GATConv(16, 4, heads=4).cuda()
    x, edges, taken = torch.randn(1000, 16, device="cuda"), torch.randint(0, 1000, (2, 8000), device="cuda"), []
    for step in range(STEPS):
        layer(x, edges).sum().backward()
        if step in (STEPS // 10, STEPS - 1):
            torch.cuda.synchronize()
            taken.append((torch.cuda.memory_allocated(), target.xp.get_default_memory_pool().total_bytes()))
    notes.add(f"memory over {STEPS} steps", taken[0] == taken[1], f"{taken[0]}, then {taken[1]} bytes")


def _time_training_steps(target: Device, notes: Notes) -> None:
    """Time a training step of trigraph's and of PyTorch Geometric's GATConv."""
    import torch

    edges, x = torch.randint(0, 100_000, (2, 1_600_000), device="cuda"), torch.randn(100_000, 64, device="cuda")
    times = []
    try:
        from torch_geometric import nn as pyg

        for layers in (trigraph.torch.nn, pyg):
            layer = layers.GATConv(in_channels=64, out_channels=32, heads=8).cuda()

            def run_training_step(layer: Any = layer) -> None:
                layer(x, edges).sum().backward()

            run_training_step()
            times.append(min(target.measure_seconds(run_training_step, 5) for _ in range(5)))
    except ImportError as error:
        notes.add("GATConv", None, str(error))
    else:
        notes.add("GATConv", seconds=times[0], peer=times[1], ratio=times[1] / times[0])


CHECKS: dict[str, Callable[[Device, Notes], None]] = {
    "derivatives": _check_derivatives,
    "half precision": _check_half_precision,
    "layers": _check_layers_against_cpu,
    "curvature": _check_curvature_gradients,
    "streams": _check_record_stream,
    "threads": _check_threads,
    "captures": _check_captures,
    "memory": _check_memory_growth,
    "peers": _time_training_steps,
}
