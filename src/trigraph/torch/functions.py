"""Public functions of `trigraph.torch`, which bind and check arguments like `trigraph.backends.front_door`.

With `out`, a function writes to the given tensors; otherwise it calls a torch operator, which can be differentiated.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trigraph.arrays import ArrayLibrary
from trigraph.backends import choose_backend, raise_with_operator_name
from trigraph.backends.forms import make_basis_embedding_function
from trigraph.checks import (
    bind_arguments,
    check_and_convert_attributes,
    check_and_convert_graphs,
    check_dtypes_and_devices,
    find_choice_index,
)
from trigraph.table import DEFINITIONS, ORDERS, OVER_FORMS, Definition, Operator, evaluate_expression, result_type
from trigraph.table.lazy import lazy
from trigraph.table.public import public_signature, set_function_metadata, torch_docstring
from trigraph.torch.arrays import has_storage, use_torch_stream_and_allocator
from trigraph.torch.graphs import COMPILER_TRACES_CALLS, GraphTensors, exclude_from_compilation, replace_code_object
from trigraph.torch.library import OPERATORS_OF_TORCH, TorchOperator, has_tangents


def _name_device(tensor: torch.Tensor) -> str:
    return "host" if tensor.is_cpu else str(tensor.device)


class _TensorLibrary(ArrayLibrary):
    """Array library for dense tensors on one CPU or CUDA device; the operators check dtypes themselves."""

    def __init__(self) -> None:
        self.kind, self.backend = "torch", ""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def get_dtype_and_device(self, caller: str, name: str, value: Any, first: str = "") -> tuple[Any, str]:
        if not isinstance(value, torch.Tensor):
            expected = "expected a torch.Tensor of float32 or float64"
            raise TypeError(f"{caller}: {name} is a {type(value).__name__}; {expected}")
        if value.layout is not torch.strided:
            raise TypeError(f"{caller}: {name} is a tensor of layout {value.layout}; expected torch.strided")
        if not first and value.device.type not in ("cpu", "cuda"):
            raise ValueError(f"{caller}: {name} is on {value.device}; expected a CPU or CUDA device")
        return None, _name_device(value)

    def convert_graph(self, value: Any) -> Any:
        return value.graph() if isinstance(value, GraphTensors) else value


TENSORS = _TensorLibrary()


def _find_existing_fields(op: Operator) -> dict[tuple[Any, ...], tuple[bool, ...]] | None:
    """Return which fields exist for each combination of attributes, or None if all fields always exist."""
    if not any(f.when for f in op.fields):
        return None
    attributes = [a for a in op.attributes if a.choices]
    existing = {}
    for values in itertools.product(*(a.choices for a in attributes)):
        chosen = {a.name: find_choice_index(a.choices, v) for a, v in zip(attributes, values, strict=True)}
        existing[values] = tuple(bool(not f.when or evaluate_expression(f.when, chosen)) for f in op.fields)
    return existing


def _check_out(op: TorchOperator, arrays: Sequence[Any], out: Any) -> None:
    """Raise unless `out` holds dense tensors on the device of the arguments and the call is not differentiated."""
    name, device = op.op.name, _name_device(arrays[op.first])
    out_tensors = {f"out[{n!r}]": t for n, t in out.items()} if isinstance(out, Mapping) else {"out": out}
    for label, tensor in out_tensors.items():
        if not isinstance(tensor, torch.Tensor):
            more = "" if op.op.returns_array or label != "out" else ", or a mapping from field to tensor"
            raise TypeError(f"{name}: {label} is a {type(tensor).__name__}; expected a torch.Tensor{more}")
        out_device = TENSORS.get_dtype_and_device(name, label, tensor, label)[1]
        if out_device != device:
            raise ValueError(f"{name}: {label} is on {out_device}; expected {device}, where the arguments are")
        if tensor.requires_grad:
            raise ValueError(f"{name}: {label} requires grad; expected a tensor that does not")
        if tensor.is_neg():  # results would be written only to a copy of the tensor
            raise ValueError(f"{name}: {label} has torch's negative bit; expected a tensor whose memory has its values")
    if not all(t is None or has_storage(t) for t in (*arrays, *out_tensors.values())):
        raise ValueError(f"{name}: out is given inside a transform of torch.func; expected None")
    tensors = {n: t for n, t in zip(op.array_names, arrays, strict=True) if t is not None}
    for label, tensor in tensors.items():
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise ValueError(f"{name}: {label} requires grad and out is given; expected torch.no_grad() around it")
    for label, tensor in (tensors | out_tensors).items():
        if has_tangents([tensor]):
            raise ValueError(
                f"{name}: {label} has a tangent and out is given; expected no forward-mode differentiation"
            )


def _compute_into(op: TorchOperator, arrays: list[Any], keywords: dict[str, Any], out: Any) -> Any:
    """Compute an operator, write the results to the tensors in `out`, and return all fields by name."""
    _check_out(op, arrays, out)
    try:
        with use_torch_stream_and_allocator(arrays[op.first], shares=True):
            results = op.compute_fields(op.flatten_arguments(arrays, keywords, False), out)
    except MemoryError as error:
        raise_with_operator_name(op.op, error)
    for tensor in out.values() if isinstance(out, Mapping) else (out,):
        torch.autograd.graph.increment_version(tensor)  # backward passes that need the old values will raise errors
    return results


def _make_public_function(spec: Definition) -> Callable[..., Any]:
    op = OPERATORS_OF_TORCH[f"{spec.name}_fwd"]
    table = op.op
    signature = public_signature(table)
    result = None if table.returns_array else result_type(table.name)
    field_existence = _find_existing_fields(table)
    # Compute lazy attributes now: compiled programs guard on their existence and would be recompiled once they exist.
    orders = [OPERATORS_OF_TORCH[f"{spec.name}_{order}"] for order in ORDERS]
    for thing in (*orders, *(o.op for o in orders), spec, table.graph_kind, *table.attributes):
        for name, value in vars(type(thing)).items():
            if isinstance(value, lazy):
                getattr(thing, name)

    def call_forward_operator(*args: Any, out: Any = None, backend: str | None = None, **kwargs: Any) -> Any:
        values = bind_arguments(table, args, kwargs, signature)
        values["backend"] = backend or ""
        if out is None and backend is None and not torch.compiler.is_compiling():
            arrays = [values.pop(n) for n in op.array_names]
            fields = op.try_native_call(arrays, values)
            if fields is not None:
                return build_result(fields, values)
            values |= zip(op.array_names, arrays, strict=True)
        if torch.compiler.is_dynamo_compiling() and (
            out is not None or any(isinstance(values[n], torch.Tensor) for n, _ in op.graphs)
        ):
            # Torch's compiler cannot trace the NumPy and CuPy code that builds graphs and writes to `out`.
            return uncompiled_compute(*args, out=out, backend=backend, **kwargs)
        _, device = check_dtypes_and_devices(table, values, TENSORS)
        check_and_convert_graphs(table, values, TENSORS, device, stacklevel=3)
        if not all(type(values[a.name]) in a.value_types for a in table.attributes):  # the operators check the values
            check_and_convert_attributes(table, values)
        if backend is not None:
            choose_backend(table, values, backend)
        arrays = [values.pop(n) for n in op.array_names]
        if out is not None:
            results = _compute_into(op, arrays, values, out)
            return results[table.fields[0].name] if result is None else result(**results)
        return build_result(op(arrays, values), values)

    def build_result(fields: Any, values: Mapping[str, Any]) -> Any:
        if result is None:
            return fields
        if field_existence is not None:
            present = field_existence[tuple([values[n] for n in table.choice_attribute_names])]
            fields = [t if t_exists else None for t, t_exists in zip(fields, present, strict=True)]
        return result(*fields)

    set_function_metadata(call_forward_operator, "trigraph.torch", spec.name, signature, torch_docstring(table))
    uncompiled_compute = exclude_from_compilation(call_forward_operator)
    return replace_code_object(call_forward_operator) if COMPILER_TRACES_CALLS else uncompiled_compute


FUNCTIONS = {spec.name: _make_public_function(spec) for spec in DEFINITIONS}
_FORMS = OVER_FORMS["basis_embedding_fwd"]
basis_embedding = make_basis_embedding_function(
    _FORMS, FUNCTIONS, "trigraph.torch", "basis_embedding", torch_docstring(_FORMS)
)
