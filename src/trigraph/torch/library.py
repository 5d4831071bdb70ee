"""Torch operators ``trigraph::X_fwd``, ``X_bwd``, ``X_bwd2`` and, if needed, ``X_bwd3`` for each definition X.

The arguments of an operator are its arrays, the tensors and numbers of its graph objects, its attributes, the backend
and, for derivatives, the names of the requested fields. The result is one tensor per field, which is empty if the field
was not requested or does not exist. X_bwd is the derivative of X_fwd, X_bwd2 of X_bwd, and X_bwd3 of X_bwd2.
Forward mode uses the same operators (`trigraph.torch.derivatives`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from trigraph.backends import LIBRARY_BY_BACKEND, choose_backend, execute, raise_with_operator_name
from trigraph.checks import check_and_convert_attributes, check_arguments, find_field_shape_and_dtype, find_symbol_sizes
from trigraph.table import GRAPH_PARTS, NAMED, Operator
from trigraph.table.lazy import lazy
from trigraph.torch.arrays import (
    has_storage,
    is_batched_by_vmap,
    use_torch_stream_and_allocator,
    view_array_as_tensor,
    view_tensor_as_array,
)
from trigraph.torch.batches import make_vmap_rule
from trigraph.torch.graphs import (
    assemble_graph,
    exclude_from_compilation,
    find_cached_graph,
    list_graph_numbers,
    list_graph_tensors,
    record_streams,
)
from trigraph.torch.native import REFUSAL_ERRORS, NativeOperator, make_native_operator
from trigraph.torch.signatures import allow_nesting, skip_default_argument_search

LIBRARY = torch.library.Library("trigraph", "DEF")


class TorchOperator:
    """Torch version of an operator of the table: its schema, argument order and kernels.

    Within trigraph, an operator is called with a list of arrays in the order of the table, and with `keywords`: graph
    objects, attributes, `backend` and, for derivatives, `wanted`. For torch's dispatcher, `flatten_arguments` combines
    all arguments in one list and replaces graph objects by their tensors and numbers.
    """

    def __init__(self, op: Operator) -> None:
        self.op = op
        self.array_names = tuple(a.name for a in op.arguments)
        self.graphs = (
            tuple((a.name, GRAPH_PARTS[op.graph_kind.type_name]) for a in op.graph_kind.arguments)
            if op.graph_kind
            else ()
        )
        self.labels = tuple(f"{op.name}: {name}" for name in self.array_names)  # for error messages
        self.num_arrays = len(self.array_names)
        self.first = self.array_names.index(op.definition.inputs[0].name)
        self.num_numbers = sum(len(p.numbers) for _, p in self.graphs)
        self.num_tensors = self.num_arrays + sum(len(p.arrays) + len(p.reverse) for _, p in self.graphs)
        self.fields = frozenset(f.name for f in op.fields)
        self.native: NativeOperator | None = None
        self.backend_position = self.num_tensors + self.num_numbers + len(op.attributes)
        self.plain_names = (*(a.name for a in op.attributes), "backend", *(("wanted",) if op.accepts_wrt else ()))
        # `OperatorDerivatives`, set by `trigraph.torch.derivatives` once all operators exist.
        self.derivative: Any = None

    def __call__(self, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Call the operator; autograd records the call if an array requires a gradient or has a tangent."""
        results = self.try_native_call(arrays, keywords)
        if results is not None:
            return results
        arrays = _apply_autocast(arrays, arrays[self.first].device.type)
        if torch.compiler.is_compiling():
            return self.composite_overload(
                *self.flatten_arguments(arrays, keywords, self.op.order > 0 or torch.is_grad_enabled())
            )
        forwards = has_tangents(arrays)
        recorded = forwards or autograd_records_call(arrays)
        args = self.flatten_arguments(arrays, keywords, recorded or self.op.order > 0)
        if not recorded:
            return self.compute_unrecorded(args)
        try:
            return self.autograd_function.apply(forwards, *args)
        except RuntimeError as error:
            named = zip(self.array_names, arrays, strict=True)
            inference_names = [name for name, a in named if a is not None and a.is_inference()]
            if not inference_names or "nference tensor" not in str(error):
                raise
            raise RuntimeError(
                f"{self.op.name}: {', '.join(inference_names)}: made in torch.inference_mode(), for which torch "
                "computes no derivatives; expected tensors and a model made outside that mode, or torch.no_grad() "
                "around the call"
            ) from error

    def try_native_call(self, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Compute a plain call in C++, and record it if an array requires a gradient; return None for other calls.

        A plain call is on the CPU with the default backend, outside compiled programs, transforms and forward mode.
        """
        native = self.native
        if (
            native is None
            or keywords["backend"]
            or (needs_gradient := native.plain_call_needs_gradient(arrays)) is None
        ):
            return None
        recorded = needs_gradient and torch.is_grad_enabled()
        rest = native.list_arguments_after_arrays(keywords, recorded or self.op.order > 0)
        if rest is None:
            return None
        try:
            if recorded:
                return self.native_autograd_function.apply(rest, [keywords[name] for name in self.plain_names], *arrays)
            return native.eager(*arrays, *rest)
        except REFUSAL_ERRORS:  # an active transform of torch.func also causes a RuntimeError
            return None

    @lazy
    def native_autograd_function(self) -> Any:
        """`torch.autograd.Function` that computes a plain call in C++ and records it."""
        eager: Any = self.native.eager if self.native else None
        numbered = self.num_tensors - self.num_arrays

        class NativeCall(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, rest: Sequence[Any], values: Sequence[Any], *arrays: Any) -> Any:
                output = eager(*arrays, *rest)
                ctx.numbers = rest[numbered:]
                self.derivative.save_for_derivatives(
                    ctx, (*arrays, *rest[: numbered + self.num_numbers], *values), output
                )
                return output

            @staticmethod
            def backward(ctx: Any, *cotangents: Any) -> Any:
                needed = ctx.needs_input_grad[2:]
                grads = self.derivative.compute_native_gradients(ctx, cotangents, needed)
                return None, None, *(grads or self.derivative.backward(ctx, cotangents, needed))

        NativeCall.__name__ = NativeCall.__qualname__ = f"Trigraph_{self.op.name}"
        return NativeCall

    def call_with_flat_arguments(self, *args: Any) -> Any:
        """Call the operator with flat arguments, recorded by autograd as in `__call__`.

        Raise RuntimeError if torch.func differentiates the call in a compiled program, which torch does not support.
        """
        arrays = args[: self.num_arrays]
        # Compiled programs do not update `forward_ad`'s current level, so pass the outermost level, 0.
        forwards = has_tangents([a for a in arrays if a is not None and not is_batched_by_vmap(a)], level=0)
        if not (forwards or autograd_records_call(arrays)):
            return self.compute_unrecorded(args)
        try:
            return self.autograd_function.apply(forwards, *args)
        except NotImplementedError:
            raise RuntimeError(
                f"{self.op.name}: a compiled program differentiates it by torch.func; expected torch.autograd.grad, or "
                "a program traced by make_fx from the function and its torch.func derivative"
            ) from None

    @lazy
    def autograd_function(self) -> Any:
        """`torch.autograd.Function` through which autograd records calls. Compiled programs contain `overload` instead.

        The first argument states whether forward mode is active, which requires more tensors to be saved.
        """
        # The vmap rule applies `function` again, because outer torch.func levels need its derivatives and vmap rule.
        rule = make_vmap_rule(self, lambda *args: self.autograd_function.apply(True, *args))

        class RecordedCall(torch.autograd.Function):
            @staticmethod
            def forward(forwards: bool, *args: Any) -> Any:
                return self.compute_unrecorded(args)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                self.derivative.save_for_derivatives(ctx, inputs[1:], output, inputs[0])

            @staticmethod
            def backward(ctx: Any, *cotangents: Any) -> Any:
                return None, *self.derivative.backward(ctx, cotangents, ctx.needs_input_grad[1:])

            @staticmethod
            @allow_nesting
            def jvp(ctx: Any, saved: Any, *tangents: Any) -> Any:
                return self.derivative.compute_tangents(ctx, saved, tangents[1:])

            @staticmethod
            def vmap(info: Any, in_dims: tuple[int | None, ...], forwards: bool, *args: Any) -> Any:
                return rule(info, in_dims[1:], *args)

        skip_default_argument_search(RecordedCall)
        RecordedCall.__name__ = RecordedCall.__qualname__ = f"Trigraph_{self.op.name}"
        return RecordedCall

    def compute_unrecorded(self, args: Sequence[Any]) -> Any:
        """Call the operator with flat arguments, in C++ if possible, without recording the call."""
        native = self.native
        if native is not None and not args[self.backend_position] and args[self.first].device.type == "cpu":
            results = native(args)
            if results is not None:
                return results
        return self.overload(*args)

    @lazy
    def overload(self) -> Any:
        """Operator ``trigraph::X`` from torch's dispatcher."""
        return getattr(torch.ops.trigraph, self.op.name).default

    @lazy
    def composite_overload(self) -> Any:
        """Operator ``trigraph::call_X``, which compiled programs call; `call_with_flat_arguments` implements it."""
        return getattr(torch.ops.trigraph, f"call_{self.op.name}").default

    @property
    def schema(self) -> str:
        """Torch schema (argument types and names, result types) without the operator's name."""
        parameters = [f"Tensor{'?' * a.nullable} {a.name}" for a in self.op.arguments]
        for argument, (name, parts) in zip(
            self.op.graph_kind.arguments if self.op.graph_kind else (), self.graphs, strict=True
        ):
            for array in (*parts.arrays, *parts.reverse):
                is_optional = argument.optional or array in parts.optional or array in parts.reverse
                parameters.append(f"Tensor{'?' * is_optional} {name}_{array}")
        parameters += [f"SymInt {name}_{number}" for name, parts in self.graphs for number in parts.numbers]
        for a in self.op.attributes:
            kind = "float" if a.real else "int" if a.is_size else "bool" if True in a.choices else "str"
            parameters.append(f"{kind}{'?' * (None in a.choices)} {a.name}")
        parameters += ["str backend"] + ["str wanted"] * self.op.accepts_wrt
        results = ", ".join("Tensor" for _ in self.op.fields)
        return f"({', '.join(parameters)}) -> " + (f"({results})" if len(self.op.fields) > 1 else results)

    def flatten_arguments(self, arrays: Sequence[Any], keywords: Mapping[str, Any], reverse: bool) -> list[Any]:
        """Return flat arguments for the dispatcher, with the reverse arrays of graphs if `reverse`."""
        flat, numbers_of_graphs = list(arrays), []
        for name, parts in self.graphs:
            graph = keywords[name]
            if graph is None:
                flat += [None] * (len(parts.arrays) + len(parts.reverse))
                numbers_of_graphs += [0] * len(parts.numbers)
            else:
                flat += list_graph_tensors(graph, reverse)
                numbers_of_graphs += list_graph_numbers(graph)
        return flat + numbers_of_graphs + [keywords[name] for name in self.plain_names]

    def unflatten_arguments(
        self, args: Sequence[Any], convert: Callable[[Any], Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Split flat arguments into arrays and `keywords`; apply `convert` to the tensors of graphs to be rebuilt."""
        keywords = dict(zip(self.plain_names, args[self.num_tensors + self.num_numbers :], strict=True))
        i, number = self.num_arrays, self.num_tensors
        for name, parts in self.graphs:
            stop = i + len(parts.arrays) + len(parts.reverse)
            graph = find_cached_graph(tuple(args[i:stop]))
            if graph is None:
                counts = args[number : number + len(parts.numbers)]
                graph = assemble_graph(self.op.graph_kind.type_name, tuple(map(convert, args[i:stop])), counts)  # type: ignore[union-attr]
            keywords[name] = graph
            i, number = stop, number + len(parts.numbers)
        return list(args[: self.num_arrays]), keywords

    @lazy
    def dispatcher_kernel(self) -> Callable[..., Any]:
        """Dispatcher kernel for CPU and CUDA, which calls `compute_fields`; torch's compiler does not trace it."""

        def compute_for_dispatcher(*args: Any) -> Any:
            first: torch.Tensor = args[self.first]
            try:
                # View even graph arrays on torch's stream: otherwise, CuPy's stream waits, but CUDA graphs forbid
                # waiting.
                with use_torch_stream_and_allocator(first, shares=True):
                    fields = self.compute_fields(args).values()
                if self.op.returns_array:
                    return next(iter(fields))
                return tuple([first.new_empty(0) if t is None else t for t in fields])
            except MemoryError as error:
                raise_with_operator_name(self.op, error)

        return exclude_from_compilation(compute_for_dispatcher)

    def compute_fields(self, args: Sequence[Any], out: Any = None) -> dict[str, Any]:
        """Check flat arguments, and compute the fields on their device, which must be current.

        Return the fields by name, including the caller's tensors in `out`. On a CUDA device, torch allocates results,
        because `Tensor.record_stream` protects only torch's own memory from reuse while another stream reads it.
        """
        op, (arrays, values) = self.op, self.unflatten_arguments(args, view_tensor_as_array)
        like: torch.Tensor = arrays[self.first]
        values |= {
            n: view_tensor_as_array(t, label) for n, label, t in zip(self.array_names, self.labels, arrays, strict=True)
        }
        wanted, backend = values.pop("wanted", None), values.pop("backend")
        wrt = None if wanted is None else wanted.split(",") if wanted else ()
        check_and_convert_attributes(op, values)
        library = LIBRARY_BY_BACKEND[choose_backend(op, values, backend or None)]
        label = f"{op.name}: out"
        if isinstance(out, Mapping):
            checked = check_arguments(
                op, values, wrt, {n: view_tensor_as_array(t, f"{label}[{n!r}]") for n, t in out.items()}, library
            )
            outputs = dict(out)
        else:
            checked = check_arguments(op, values, wrt, view_tensor_as_array(out, label), library)
            outputs = dict.fromkeys(checked.out, out)
        if like.is_cuda:
            record_streams([values[name] for name, _ in self.graphs])
            for f in op.fields:
                if f.name in checked.wanted and f.name not in outputs:
                    shape, dtype = find_field_shape_and_dtype(op, f, values, checked.sizes)
                    shape = (*shape, 1) if f.name in checked.columns else shape
                    outputs[f.name] = like.new_empty(shape, dtype=getattr(torch, dtype.name))
            checked.out.update((n, view_tensor_as_array(t)) for n, t in outputs.items() if n not in checked.out)
        result = execute(op, checked, library.backend)
        fields = zip(op.fields, (result,) if op.returns_array else result, strict=True)
        return {
            f.name: outputs[f.name] if f.name in outputs else None if a is None else view_array_as_tensor(a)
            for f, a in fields
        }

    def make_fake_results(self, *args: Any) -> Any:
        """Return uninitialized tensors with the shapes and dtypes of the results (fake implementation for torch)."""
        arrays, keywords = self.unflatten_arguments(args, lambda t: t)
        values = {**keywords, **dict(zip(self.array_names, arrays, strict=True))}
        op, first = self.op, arrays[self.first]
        columns = set()
        for a in op.arguments:
            value = values[a.name]
            if a.column and value is not None and value.dim() == len(a.dims) + 1:
                values[a.name] = value[..., 0]
                columns.add(a.name)
        sizes = find_symbol_sizes(op, values)
        returned = {f.name for f in op.list_returned_fields(values, sizes)}
        if op.accepts_wrt:
            returned &= set(values["wanted"].split(","))
        fields = []
        for f in op.fields:
            if f.name not in returned:
                fields.append(first.new_empty(0))
                continue
            shape, dtype = find_field_shape_and_dtype(op, f, values, sizes)
            kind = torch.float32 if isinstance(dtype, np.dtype) else dtype  # half-precision sums are float32
            fields.append(first.new_empty((*shape, 1) if f.name in columns else shape, dtype=kind))
        return fields[0] if op.returns_array else tuple(fields)


def _apply_autocast(arrays: Sequence[Any], device: str) -> Sequence[Any]:
    """Convert half-precision tensors to float32 under autocast, which computes sums in float32."""
    if not torch.is_autocast_enabled(device):
        return arrays
    half = (torch.float16, torch.bfloat16)
    return [a.to(torch.float32) if a is not None and a.dtype in half else a for a in arrays]


def autograd_records_call(arrays: Sequence[Any]) -> bool:
    """Return whether reverse-mode autograd records a call with these arrays."""
    return torch.is_grad_enabled() and any(a is not None and a.requires_grad for a in arrays)


def has_tangents(arrays: Sequence[Any], level: int | None = None) -> bool:
    """Return whether an array has a forward-mode tangent at `level`, or may have one inside a torch.func wrapper.

    `level` defaults to the current level.
    """
    floating = [a for a in arrays if a is not None and a.is_floating_point()]
    return not all(map(has_storage, floating)) or any(
        forward_ad.unpack_dual(a, level=level).tangent is not None for a in floating
    )


def _register_operator(op: TorchOperator) -> TorchOperator:
    name = f"trigraph::{op.op.name}"
    LIBRARY.define(f"{op.op.name}{op.schema}")
    LIBRARY.define(f"call_{op.op.name}{op.schema}")
    LIBRARY.impl(f"call_{op.op.name}", op.call_with_flat_arguments, "CompositeImplicitAutograd")
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(op.op.name, lambda *args: op.dispatcher_kernel(*args), key)
    torch.library.register_fake(name, op.make_fake_results, lib=LIBRARY)
    for each in (name, f"trigraph::call_{op.op.name}"):
        torch.library.register_vmap(each, make_vmap_rule(op, op.call_with_flat_arguments), lib=LIBRARY)
    op.native = make_native_operator(
        op.op, op.num_tensors + op.num_numbers, op.make_fake_results, make_vmap_rule(op, op.call_with_flat_arguments)
    )
    return op


OPERATORS_OF_TORCH: dict[str, TorchOperator] = {
    name: _register_operator(TorchOperator(op))
    for name, op in NAMED.items()
    if op.restriction is None and (op.order < 3 or not op.definition.is_always_multilinear)
}
