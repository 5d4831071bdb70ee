"""Tests that torch's operators in C++ and in Python return bitwise identical results and raise the same errors."""

import ctypes
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mutated_sources import assert_tests_detect_mutation, write_mutated_sources
from programs import run_command
from table_calls import draw_operator_arguments
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import trigraph
import trigraph.torch as tt
from trigraph.fortran.levels import LIBRARY, find_torch_operator_language, list_runnable_levels
from trigraph.table import DEFINITIONS, ORDERS
from trigraph.torch.library import OPERATORS_OF_TORCH
from trigraph.verification.cases import build_case, list_variants

LANGUAGE, WHY = find_torch_operator_language()
pytestmark = pytest.mark.skipif(LANGUAGE != "C++", reason=WHY)
QUICK = "agg_weighted_n2n"
MOSTLY_SLOW = [pytest.param(d, marks=[] if d.name == QUICK else pytest.mark.slow) for d in DEFINITIONS]
DTYPES = (("float32", np.int32), ("float64", np.int64), ("float32", np.int64), ("float64", np.int32))


def yield_cases(definition, dtypes=DTYPES):
    """Yield cases with all kinds of graphs: hubs, isolated nodes, no edges, no nodes."""
    for variant in list_variants(definition, ()):
        for dtype, index in dtypes:
            yield build_case(definition, replace(variant, index=index), dtype, 0)


def flatten_arguments(op, arguments, wanted=None):
    """Convert arguments by name to the flat arguments of ``trigraph::X``, which request all fields or `wanted`."""
    arrays = [arguments.get(n) for n in op.array_names]
    tensors = [None if a is None else torch.from_numpy(np.array(a)) for a in arrays]
    given = {name: arguments.get(name) for name, _ in op.graphs}
    given |= {a.name: arguments.get(a.name, a.default) for a in op.op.attributes} | {"backend": ""}
    fields = [f.name for f in op.op.fields] if wanted is None else wanted
    return op.flatten_arguments(tensors, given | {"wanted": ",".join(fields)}, True)


def yield_calls(definition, dtypes=DTYPES):
    """Yield each operator of a definition with flat arguments that request all results, or a single one."""
    for case in yield_cases(definition, dtypes):
        for name in (f"{definition.name}_{order}" for order in (*ORDERS, "bwd3")):
            if (op := OPERATORS_OF_TORCH.get(name)) is None or op.native is None:
                continue
            arguments = case.arguments(op.op)
            given = {n: v for n, v in arguments.items() if n != "wrt"}
            fewer = {n: None if n.startswith(("gg_", "ggg_")) else v for n, v in given.items()}
            yield op, flatten_arguments(op, given)
            for field in list_field_names(op, given) if op.op.accepts_wrt else ():
                yield op, flatten_arguments(op, fewer, [field])


def list_field_names(op, arguments):
    """Return the names of the result fields for the given arguments."""
    absent = {n for n in op.op.definition.optional_names if arguments.get(n) is None}
    return [f.name for f in op.op.fields if f.name.removeprefix("gg_") not in absent]


def compute_results_or_error(function):
    """Call a function; return its results, or the type and text of its error."""
    try:
        results = function()
    except (ValueError, TypeError, RuntimeError, MemoryError, NotImplementedError) as error:
        return type(error), str(error)
    return results if isinstance(results, tuple | list) else (results,)


def assert_bitwise_equal(results, expected, what):
    for one, other in zip(results, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype), what
        assert one.numpy().tobytes() == other.numpy().tobytes(), what


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_bits_are_those_of_python(definition):
    seen = set()
    for op, args in yield_calls(definition):
        expected = compute_results_or_error(lambda op=op, args=args: op.overload(*args))
        results = compute_results_or_error(
            lambda op=op, args=args: op.native.overload(*op.native.encode_arguments(args))
        )
        if isinstance(expected[0], type):
            assert op.native(args) is None, (op.op.name, expected)
            continue
        assert not isinstance(results[0], type), (op.op.name, results)
        assert_bitwise_equal(results, expected, op.op.name)
        seen.add(op.op.name)
    assert {f"{definition.name}_{order}" for order in ORDERS} <= seen


def list_changed_tensors(tensor):
    """Return variants of a tensor, each with a change in a property that is checked."""
    changed = [tensor.to(d) for d in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64)]
    changed += [tensor[:-1], tensor[..., :-1], tensor[None], tensor[..., None], tensor.flip(0), tensor.movedim(0, -1)]
    changed += [-tensor, tensor * torch.nan if tensor.is_floating_point() else tensor + 2**30]
    changed += [torch.stack([tensor, tensor], dim=-1)[..., 0], torch.empty(0, dtype=tensor.dtype)]
    released, unaligned = tensor.clone(), np.frombuffer(b"0" + tensor.numpy().tobytes(), np.uint8)[1:]
    released.untyped_storage().resize_(tensor.nbytes - 1)
    return [*changed, released, torch.from_numpy(unaligned.view(tensor.numpy().dtype).reshape(tensor.shape))]


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("name", OPERATORS_OF_TORCH)
def test_errors_are_those_of_python(name, monkeypatch):
    """Results of valid calls equal Python's bitwise, and invalid calls raise the same errors as in Python."""
    op = OPERATORS_OF_TORCH[name]
    values = draw_operator_arguments(op.op) | {"backend": ""}
    if op.op.accepts_wrt:
        values["wanted"] = ",".join(sorted(op.fields))
    good = {n: None if v is None else torch.from_numpy(v) if n in op.array_names else v for n, v in values.items()}

    def compute_bytes_or_error(values):
        try:
            results = op([values[n] for n in op.array_names], {n: v for n, v in values.items() if n not in op.labels})
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            return type(error), str(error)
        fields = results if isinstance(results, tuple) else (results,)
        return [(t.dtype, t.shape, t.numpy().tobytes()) for t in fields]

    changed = [(n, v) for n in op.array_names if good[n] is not None for v in list_changed_tensors(good[n])]
    changed += [(a.name, None) for a in op.op.arguments if a.nullable]
    for graph, _ in op.graphs:
        others = {"index": np.int32}, {"seed": 2}, {"num_edges": 9, "num_triplets": 7}
        changed += [(graph, draw_operator_arguments(op.op, **other)[graph]) for other in others]
    if op.op.accepts_wrt:
        changed += [("wanted", field) for field in op.fields]
    changed += [("backend", backend) for backend in ("pyref", "fortran-reference")]
    wrong = (-1.0, np.nan, np.inf, 1e300), (-1, 0, 1, 99, 2**40)
    changed += [(a.name, value) for a in op.op.attributes for value in a.choices or wrong[a.is_size]]
    plain = [compute_bytes_or_error(good | {name: value}) for name, value in changed]
    monkeypatch.setattr(op, "native", None)
    for (name, value), result in zip(changed, plain, strict=True):
        assert result == compute_bytes_or_error(good | {name: value}), (name, value)


@pytest.mark.parametrize("definition", MOSTLY_SLOW, ids=lambda d: d.name)
def test_native_operators_pass_opcheck(definition):
    seen = set()
    for op, args in yield_calls(definition, DTYPES[:1]):
        results = compute_results_or_error(lambda op=op, args=args: op.overload(*args))
        if op.op.name not in seen and not isinstance(results[0], type):
            seen.add(op.op.name)
            encoded = tuple(op.native.encode_arguments(args))
            torch.library.opcheck(op.native.overload, encoded, test_utils=("test_schema", "test_faketensor"))
    assert len(seen) >= 3


def compute_results_and_derivatives(definition, case):
    """Return the results of the public function and three orders of derivatives."""
    arguments = case.arguments(OPERATORS_OF_TORCH[f"{definition.name}_fwd"].op)
    tensors = {n: torch.from_numpy(np.array(a)) if isinstance(a, np.ndarray) else a for n, a in arguments.items()}
    inputs = [n for n in tensors if isinstance(tensors[n], torch.Tensor) and tensors[n].is_floating_point()]
    for n in inputs:
        tensors[n].requires_grad_()
    results = getattr(tt, definition.name)(**tensors)
    results = results if isinstance(results, tuple) else (results,)
    found = [r for r in results if r is not None]
    number = sum((r * r).sum() for r in found if r.requires_grad)
    for _ in range(3):
        if not isinstance(number, torch.Tensor) or not number.requires_grad:
            break
        wanted = [tensors[n] for n in inputs]
        alone = torch.autograd.grad(number, wanted, retain_graph=True, allow_unused=True)
        grads = torch.autograd.grad(number, wanted, create_graph=True, allow_unused=True)
        found += [g for g in (*alone, *grads) if g is not None]
        number = sum((g * g).sum() for g in grads if g is not None and g.requires_grad)
    return [t.detach() for t in found]


@pytest.mark.parametrize("definition", MOSTLY_SLOW, ids=lambda d: d.name)
def test_derivatives_have_the_bits_of_python(definition, monkeypatch):
    used, served = [], []
    derivative = OPERATORS_OF_TORCH[f"{definition.name}_fwd"].derivative
    plain = derivative.compute_native_gradients

    def record_and_compute_gradients(*arguments):
        grads = plain(*arguments)
        if not torch.is_grad_enabled():
            served.append(grads is not None)
        return grads

    monkeypatch.setattr(derivative, "compute_native_gradients", record_and_compute_gradients)
    for case in yield_cases(definition, DTYPES[:2]):
        with monkeypatch.context() as patched:
            for op in OPERATORS_OF_TORCH.values():
                patched.setattr(op, "native", None)
            expected = compute_results_and_derivatives(definition, case)
        used.append(len(expected))
        assert_bitwise_equal(compute_results_and_derivatives(definition, case), expected, (definition.name, case))
    assert max(used) > 2
    assert any(served)  # not every call is, because the output's gradient may be absent


def test_locations_of_agg_weighted_n2n_are_checked():
    op, x = OPERATORS_OF_TORCH["agg_weighted_n2n_bwd"], np.random.default_rng(0).random((3, 4))
    graph, (name,) = trigraph.CSC(np.array([0, 2, 3, 3]), np.array([0, 1, 1])), [a.name for a in op.op.index_arguments]
    found = getattr(trigraph.agg_weighted_n2n_fwd(x, None, graph, op="max"), name)
    for change in (0, 1, -1, 2**30):
        given = {"grad_output_embedding": x, "embedding": x, "graph": graph, "op": "max", name: found + change}
        args = flatten_arguments(op, given, ["embedding"])
        assert (op.native(args) is None) == isinstance(
            compute_results_or_error(lambda args=args: op.overload(*args))[0], type
        )
        assert (op.native(args) is None) == (change != 0)


def test_transforms_work_without_required_gradients():
    graph, (x, t) = trigraph.CSC.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]])), torch.rand(2, 3, 4)

    def sum_neighbors(x, weight=None):
        return tt.agg_weighted_n2n(x, weight, graph).output_embedding

    with forward_ad.dual_level():
        for dual in (
            sum_neighbors(forward_ad.make_dual(x, t)),
            sum_neighbors(t, forward_ad.make_dual(torch.rand(3), torch.ones(3))),
        ):
            assert torch.allclose(forward_ad.unpack_dual(dual).tangent, sum_neighbors(t))
    assert torch.allclose(torch.func.jvp(sum_neighbors, (x,), (t,))[1], sum_neighbors(t))
    assert torch.equal(
        torch.vmap(sum_neighbors)(torch.stack([x, t])), torch.stack([sum_neighbors(x), sum_neighbors(t)])
    )
    assert torch.allclose(torch.func.grad(lambda x: sum_neighbors(x).sum())(x), torch.ones(3, 4))
    assert torch.allclose(torch.vmap(lambda c: c * sum_neighbors(x))(torch.ones(2)), sum_neighbors(x))


def test_compiled_programs_call_native_operators():
    graph = trigraph.CSC.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]))

    class NeighborMaximum(torch.nn.Module):
        def forward(self, x):
            return tt.agg_weighted_n2n(x, None, graph, op="max").output_embedding

    x, op = torch.rand(3, 4), OPERATORS_OF_TORCH["agg_weighted_n2n_fwd"]
    flat = flatten_arguments(op, {"src_embedding": x.numpy(), "graph": graph, "op": "max"})
    for program in (make_fx(NeighborMaximum())(x), make_fx(lambda x: op.composite_overload(x, *flat[1:])[0])(x)):
        assert "trigraph_cpu.agg_weighted_n2n_fwd" in program.code
        assert torch.equal(program(x), NeighborMaximum()(x))
    compiled = torch.compile(NeighborMaximum(), backend="aot_eager", fullgraph=True)
    y = x.clone().requires_grad_()
    compiled(y).sum().backward()
    x.requires_grad_()
    NeighborMaximum()(x).sum().backward()
    assert torch.equal(x.grad, y.grad)
    many = torch.rand(5, 3, 4)
    assert torch.equal(torch.vmap(NeighborMaximum())(many), torch.stack([NeighborMaximum()(one) for one in many]))


def test_interface_follows_cpu_level_and_threads():
    interface = ctypes.CDLL(str(LIBRARY))
    interface.trigraph_get_cpu_level.restype = ctypes.c_char_p
    level, number = trigraph.get_cpu_level(), trigraph.get_num_threads()
    try:
        for each in list_runnable_levels():
            trigraph.set_cpu_level(each)
            assert interface.trigraph_get_cpu_level().decode() == each
        trigraph.set_num_threads(number + 1)
        assert interface.trigraph_get_num_threads() == number + 1
    finally:
        trigraph.set_cpu_level(level)
        trigraph.set_num_threads(number)


def test_environment_turns_native_operators_off():
    script = "from trigraph.torch.library import OPERATORS_OF_TORCH as o; print(o['gno_kernel_fwd'].native is None)"
    for value in ("0", "1"):
        done = run_command(sys.executable, "-c", script, env={**os.environ, "TRIGRAPH_TORCH_CPP": value})
        assert done.stdout.strip() == str(value == "0")
    variables = {**os.environ, "TRIGRAPH_TORCH_CPP": "0", "COLUMNS": "300"}
    done = run_command(sys.executable, "-m", "trigraph", "info", env=variables)
    assert "torch's operators in Python (TRIGRAPH_TORCH_CPP is 0)" in done.stdout


SIGNATURE_PROGRAM = """
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include "%s"
template <class A, class B> constexpr bool same = sizeof(A) == sizeof(B)
    && std::is_integral_v<A> == std::is_integral_v<B>
    && std::is_pointer_v<A> == std::is_pointer_v<B> && std::is_void_v<A> == std::is_void_v<B>;
template <class> struct each;
template <class R, class... A> struct each<R (*)(A...)> {
    template <class S, class... B> static constexpr bool equals(S (*)(B...))
    {
        if constexpr (sizeof...(A) == sizeof...(B)) return same<R, S> && (same<A, B> && ...);
        return false;
    }
};
#define CHECK(name, ...) static_assert(each<decltype(torch_##name)>::equals(&aoti_torch_##name), #name);
TORCH_FUNCTIONS(CHECK)
"""


def test_declarations_are_those_of_torchs_header(tmp_path):
    """The hand-written declarations in torch.cpp agree with the installed torch's header."""
    source = Path(trigraph.__file__).parent / "fortran" / "torch.cpp"
    (tmp_path / "torch_operators.inc").write_text(
        "const struct { const char *name, *schema; Kernel kernel; } operators[] = {{nullptr, nullptr, nullptr}};\n"
    )
    (tmp_path / "same.cpp").write_text(SIGNATURE_PROGRAM % source)
    package = Path(trigraph.__file__).parent
    folders = [f"-I{p}" for p in (tmp_path, package / "include", Path(torch.__file__).parent / "include")]
    run_command("g++", "-std=c++17", "-fsyntax-only", "-w", *folders, tmp_path / "same.cpp")


# Mutations of torch.cpp and of the output of torch_operators.py: (old text, new text).
MUTATIONS = {
    "": ("contiguous", "contiguous"),
    "strides are ignored": ("contiguous = contiguous && (sizes[k] == 1 || strides[k] == next);", "contiguous = true;"),
    "an absent cotangent is not zero": (
        "zeros.reset(new char[bytes]());",
        "zeros.reset(new char[bytes]()), std::memset(zeros.get(), 63, bytes);",
    ),
    "a status is ignored": ("status = trigraph_", "status = 0 & trigraph_"),
    "another field is computed": ("(wanted >> 1 & 1)", "(wanted >> 0 & 1)"),
    "int64 is read as int32": ("whole == int64)\n            status", "whole == int32)\n            status"),
    "numbers need not be positive": ("if (x[k] <= 0)", "if (x[k] < -1e30)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", MUTATIONS)
def test_wrong_lines_are_found(tmp_path, wrong):
    package = LIBRARY.parent
    for path in package.glob("libtrigraph*.so"):
        if "torch" not in path.name:
            (tmp_path / path.name).symlink_to(path)
    generated = tmp_path / "torch_operators.inc"
    run_command(sys.executable, package / "torch_operators.py", generated)
    write_mutated_sources([package / "torch.cpp", generated], tmp_path, MUTATIONS[wrong])
    flags = ["-std=c++17", "-O0", "-shared", "-fPIC", f"-I{tmp_path}", f"-I{package.parent / 'include'}"]
    library = tmp_path / "libtrigraph_torch.so"
    run_command(
        "g++", *flags, tmp_path / "torch.cpp", f"-L{package}", "-ltrigraph", "-o", library, f"-Wl,-rpath,{tmp_path}"
    )
    chosen = "bits_are and radial_basis or errors_are and radial" if "positive" in wrong else f"_are_ and {QUICK}"
    use_library = "from trigraph.fortran import levels; levels.LIBRARY = Path(sys.argv[1])"
    assert_tests_detect_mutation(tmp_path / "libtrigraph.so", use_library, __file__, chosen, bool(wrong))
