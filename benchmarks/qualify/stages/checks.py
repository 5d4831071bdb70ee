"""Checks that need a device: uninitialised memory, unaligned arrays, streams, threads, captures, extremes, sizes.

`trigraph verify`, an earlier stage, checks half precision, NaN and `out` arrays.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

import trigraph
from trigraph.backends import FUNCTIONS, explain_unavailable
from trigraph.benchmarks.qualify.part import Notes
from trigraph.benchmarks.qualify.place import Device
from trigraph.checks import find_symbol_sizes
from trigraph.table import OPERATORS, Array, Operator, evaluate_expression
from trigraph.verification import tolerances
from trigraph.verification.accuracy import compute_field_error
from trigraph.verification.cases import build_case, list_variants
from trigraph.verification.judged import compute_with_judge
from trigraph.verification.subjects import convert_result_to_mapping

AT_ONCE = True
EVERY_OPERATOR = tuple(OPERATORS)
SELECTED_OPERATORS = (
    "agg_weighted_n2n_bwd",
    "mha_gat_n2n_fwd",
    "agg_edge_to_edge_fwd",
    "interaction_bilinear_fwd",
    "gno_message_fwd",
)
ROUNDS = 20  # number of calls per stream or thread
LARGE = 2**31  # the largest arrays have more elements than this
Fields = dict[str, Any]


def list_parts(target: Device) -> list[str]:
    """Return the names of the checks."""
    return list(CHECKS)


def run_part(part: str, target: Device, notes: Notes) -> None:
    """Run the check called `part`."""
    CHECKS[part](target, notes)


def _limit_names_in_rehearsal(target: Device, names: tuple[str, ...] = EVERY_OPERATOR) -> tuple[str, ...]:
    return names[:2] if target.rehearsal else names


def draw_operator_arguments(
    op: Operator, dtype: str = "float32", variant: str = "regular", seed: int = 0
) -> dict[str, Any]:
    """Return arguments of an operator, drawn as in verification: writable NumPy arrays, and graphs."""
    kind = next(v for v in list_variants(op.definition) if v.name == variant)
    values = build_case(op.definition, kind, dtype, seed).arguments(op)
    for value in values.values():
        if hasattr(value, "prepare"):  # builds what graphs would otherwise build in the first backward
            value.prepare()
    return {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in values.items()}


def call_operator(op: Operator, values: Mapping[str, Any], backend: str, out: Any = None) -> Fields:
    """Call an operator's public function; return its results by field."""
    return convert_result_to_mapping(op, FUNCTIONS[op.name](**values, backend=backend, out=out))


def find_different_fields(target: Device, got: Fields, right: Fields) -> str:
    """Return the names of fields that differ bitwise."""
    pairs = {n: (target.copy_to_host(got[n]), target.copy_to_host(value)) for n, value in right.items()}
    return ", ".join(
        n for n, (a, b) in pairs.items() if (a is None) != (b is None) or (b is not None and a.tobytes() != b.tobytes())
    )


def fill_with_invalid(fields: Fields) -> None:
    """Fill arrays with values that no operator returns."""
    for array in fields.values():
        if array is not None:
            array.fill(-7 if array.dtype.kind == "i" else np.nan)


def find_fields_from_unwritten_memory(target: Device, op: Operator) -> str:
    """Return the fields whose bits change if workspace, results and `out` are first filled with NaN."""
    values = target.move_to_device(draw_operator_arguments(op))
    right = call_operator(op, values, target.backend)
    out = {n: target.xp.empty_like(array) for n, array in right.items() if array is not None}
    fill_with_invalid(out)
    with target.fill_uninitialized():
        fresh = call_operator(op, values, target.backend)
        into = call_operator(op, values, target.backend, next(iter(out.values())) if op.returns_array else out)
    wrong = [find_different_fields(target, got, right) for got in (fresh, into)]
    wrong += [n for n, array in out.items() if into[n] is not array]
    return "; ".join(filter(None, wrong))


def _check_uninitialized_memory(target: Device, notes: Notes) -> None:
    for name in _limit_names_in_rehearsal(target):
        wrong = find_fields_from_unwritten_memory(target, OPERATORS[name])
        notes.add(f"{name}, memory that holds NaN, and out=", not wrong, wrong)


def find_fields_of_unaligned_arrays(target: Device, op: Operator, dtype: str) -> str:
    """Return the fields that differ for arrays one element after an aligned address, which allows no vector loads."""
    arguments = draw_operator_arguments(op, dtype)
    values = target.move_to_device(arguments)
    right = call_operator(op, values, target.backend)
    for key, array in values.items():
        if isinstance(arguments[key], np.ndarray):
            whole = target.xp.empty(array.size + 1, array.dtype)
            whole[1:] = array.reshape(-1)
            values[key] = whole[1:].reshape(array.shape)
    return find_different_fields(target, call_operator(op, values, target.backend), right)


def _check_unaligned_arrays(target: Device, notes: Notes) -> None:
    for name in _limit_names_in_rehearsal(target):
        for dtype in ("float32", "float64"):
            wrong = find_fields_of_unaligned_arrays(target, OPERATORS[name], dtype)
            notes.add(f"{name}, {dtype}, odd offsets", not wrong, wrong)


def list_calls_with_results(target: Device) -> list[tuple[str, Callable[[], Fields], Fields]]:
    """Return, by operator name, a call and its results for some operators."""
    works: list[tuple[str, Callable[[], Fields], Fields]] = []
    for name in _limit_names_in_rehearsal(target, SELECTED_OPERATORS):
        op = OPERATORS[name]
        call = partial(
            call_operator, op, target.move_to_device(draw_operator_arguments(op, variant="skewed")), target.backend
        )
        works.append((name, call, target.copy_to_host(call())))
    target.synchronize()
    return works


def find_wrong_calls(target: Device, works: list[tuple[str, Callable[[], Fields], Fields]], *streams: Any) -> set[str]:
    """Run calls on alternating streams; return the names of calls whose results differ from a call on its own."""
    calls = []
    for turn in range(ROUNDS):
        for k, (name, call, right) in enumerate(works):
            with streams[(turn + k) % len(streams)]:
                calls.append((name, call(), right))
    target.synchronize()
    return {name for name, got, right in calls if find_different_fields(target, got, right)}


def _check_streams(target: Device, notes: Notes) -> None:
    """Check different calls on two concurrent streams."""
    wrong = find_wrong_calls(target, list_calls_with_results(target), target.make_stream(), target.make_stream())
    notes.add("calls on two streams", not wrong, "; ".join(wrong))


def find_wrong_calls_in_threads(target: Device) -> set[str]:
    """Run calls in two threads, each with its own stream; return the names of calls whose results differ."""
    works = list_calls_with_results(target)
    with ThreadPoolExecutor(2) as pool:
        wrong = [pool.submit(find_wrong_calls, target, works, target.make_stream()) for _ in range(2)]
    return wrong[0].result() | wrong[1].result()


def _check_threads(target: Device, notes: Notes) -> None:
    wrong = find_wrong_calls_in_threads(target)
    notes.add("calls on two threads", not wrong, "; ".join(wrong))


def find_fields_of_wrong_replays(target: Device, op: Operator) -> str:
    """Return the fields that differ if a captured call is replayed with new inputs, after other calls used the pool."""
    values = target.move_to_device(draw_operator_arguments(op))
    results, replay = target.capture_call(partial(call_operator, op, values, target.backend))
    for key, value in target.move_to_device(draw_operator_arguments(op, seed=1)).items():
        if hasattr(value, "dtype") and value.shape == values[key].shape:
            values[key][...] = value
    right = target.copy_to_host(call_operator(op, values, target.backend))
    fill_with_invalid(results)
    replay()
    wrong = find_different_fields(target, results, right)
    with target.fill_uninitialized():
        again = call_operator(op, values, target.backend)
    replay()
    return wrong or find_different_fields(target, results, right) or find_different_fields(target, again, right)


def _check_captured_calls(target: Device, notes: Notes) -> None:
    for name in _limit_names_in_rehearsal(target):
        wrong = find_fields_of_wrong_replays(target, OPERATORS[name])
        notes.add(f"{name}, captured and replayed", not wrong, wrong)


def find_inaccurate_fields(target: Device, op: Operator) -> list[str]:
    """Return the fields that are inaccurate for tiny or large numbers; allow gpu-host's error if it is larger."""
    arguments, wrong = draw_operator_arguments(op), []
    fields = {f.name: f for f in op.fields}
    real = [n for n, v in arguments.items() if isinstance(v, np.ndarray) and v.size and n not in ("dist", "freq")]
    for first in real:
        for power in (-140, 20):  # -140 checks that subnormal numbers are not flushed to zero
            values = {**arguments, first: np.ldexp(arguments[first], power)}
            with np.errstate(all="ignore"):
                right = call_operator(op, values, "gpu-host")
                got = target.copy_to_host(call_operator(op, target.move_to_device(values), target.backend))
                exact = compute_with_judge(op, values)
            sizes = find_symbol_sizes(op, values)
            most = tolerances.accuracy_tolerance(True, evaluate_expression(op.definition.terms, sizes))
            names = [n for n, v in exact.items() if not is_accurate(fields[n], got[n], right[n], v, most)]
            wrong += [f"{n} where {first} is multiplied by 2^{power}" for n in names]
    return wrong


def _check_extreme_numbers(target: Device, notes: Notes) -> None:
    if explain_unavailable("gpu-host"):
        notes.add("extremes", note=f"left out: gpu-host is {explain_unavailable('gpu-host')}")
        return
    for name in _limit_names_in_rehearsal(target):
        wrong = find_inaccurate_fields(target, OPERATORS[name])
        notes.add(f"{name} in extremes", not wrong, "; ".join(wrong))


def is_accurate(field: Array, got: np.ndarray, right: np.ndarray, exact: np.ndarray, most: float) -> bool:
    """Return whether the same numbers are finite and the error is at most `most` or 8 times the error of `right`."""
    if not (np.isfinite(got) == np.isfinite(right)).all():
        return False
    kept = np.isfinite(right)
    triple = exact[kept] if field.index else exact[:, kept]
    error, usual = (compute_field_error(a[kept], field, triple, "float32") for a in (got, right))
    return bool(error <= max(most, 8 * usual))


def _check_large_arrays(target: Device, notes: Notes) -> None:
    """Check arrays with more than 2^31 numbers, and graphs with more than 2^24 edges."""
    xp, limit = target.xp, target.shrink_in_rehearsal(LARGE, 2**12)
    nodes = target.shrink_in_rehearsal(2**24, 2**5) + 3
    dim = limit // (nodes - 3) + 1
    needed, free = 16 * nodes * dim, target.measure_free_bytes()
    if needed > free:
        notes.add("large arrays", None, f"{needed / 2**30:.0f} GiB are needed, {free / 2**30:.0f} are free")
        return
    for index in (np.int32, np.int64):
        offsets, sources = xp.arange(nodes + 1, dtype=index), xp.arange(nodes, dtype=index)[::-1].copy()
        graph = trigraph.CSC(offsets, sources, nodes)
        x = xp.empty((nodes, dim), np.float32)
        x[...] = xp.arange(nodes, dtype=np.float32)[:, None]
        weight = xp.full(nodes, 2, np.float32)
        label = f"{nodes} nodes and edges of dim {dim}, {np.dtype(index).name}"
        out = trigraph.agg_weighted_n2n_fwd(x, weight, graph, backend=target.backend).output_embedding
        notes.add(f"weighted sum, forward, {label}", bool((out == 2 * x[::-1][:, :1]).all()))
        grads = trigraph.agg_weighted_n2n_bwd(out, x, weight, graph, backend=target.backend, wrt=("embedding",))
        notes.add(f"weighted sum, backward, {label}", bool((grads.embedding == 4 * x[:, :1]).all()))
        del out, grads, x
    edges, width = limit // 1024 + 5, 32
    coords = xp.empty((edges, 3), np.float32)
    coords[...] = xp.linspace(-1, 1, edges, dtype=np.float32)[:, None]
    params = target.move_to_device(
        np.random.default_rng(0).standard_normal(8 * (4 + width**2) + width**2).astype(np.float32)
    )
    kernel = trigraph.gno_kernel_fwd(coords, params, f_in=width, f_out=width, backend=target.backend)
    tail, weights = (target.copy_to_host(a).astype(np.float64) for a in (coords[-64:], params))
    right = FUNCTIONS["gno_kernel_fwd"](tail, weights, width, width, backend="pyref")
    error = np.max(np.abs(target.copy_to_host(kernel[-64:]) - right))
    notes.add(f"kernel of {edges} edges, 32 x 32", bool(error <= 512 * 2.0**-23 * np.max(np.abs(right))))


CHECKS: dict[str, Callable[[Device, Notes], None]] = {
    "poisoned": _check_uninitialized_memory,
    "streams": _check_streams,
    "threads": _check_threads,
    "capture": _check_captured_calls,
    "views": _check_unaligned_arrays,
    "extremes": _check_extreme_numbers,
    "large": _check_large_arrays,
}
