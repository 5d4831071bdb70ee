"""Torch's operators ``trigraph::X_fwd``, ``X_bwd`` and ``X_bwd2``, one for each order of each definition of the table.

The arguments of an operator are its arrays, the tensors and numbers of its graph objects, its attributes, the backend,
and for derivatives the names of the requested fields. It returns a tensor for each field, without elements if the field
is not requested or does not exist. X_bwd is the derivative of X_fwd, and X_bwd2 that of X_bwd; forward mode uses the
same three. X_bwd3, the derivative of X_bwd2 for operators that are not linear in each input, has none itself: where a
further one may follow, torch differentiates their plain forms.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import forward_ad

from trigraph.backends import BACKENDS, choose_backend, execute, function_of, raise_named
from trigraph.backends.choice import has_third
from trigraph.backends.third import multilinear
from trigraph.checks import MOST_PASSED, bind_sizes, check_call, check_elements, choice_number, layout
from trigraph.table import GRAPH_PARTS, NAMED, Operator, evaluate
from trigraph.table.lazy import lazy
from trigraph.torch.arrays import array_of, has_storage, is_batched, on_device, tensor_from
from trigraph.torch.graphs import assemble, graph_of, numbers, record_streams, tensors, uncompiled
from trigraph.torch.signatures import apply_to_entries, nested, without_defaults

LIBRARY = torch.library.Library("trigraph", "DEF")


class _Passed(NamedTuple):
    """What is the same in all calls with one key: the backend's function, and results of `check_call`."""

    run: Callable[..., Any]
    sizes: dict[str, int]
    wanted: tuple[str, ...]
    backend_cache: dict[Any, Any]


class TorchOperator:
    """One operator of the table as a torch operator: its schema, the order of its arguments, its kernels.

    Arguments have two forms. Within trigraph they are a list of arrays in the order of the table, and `keywords`:
    graph objects, attributes, `backend` and, for derivatives, `wanted`. For torch's dispatcher they are flat
    (`flattened`), with graph objects as tensors and numbers.
    """

    def __init__(self, op: Operator) -> None:
        self.op = op
        self.array_names = tuple(a.name for a in op.arguments)
        self.graphs = tuple((a.name, GRAPH_PARTS[op.graph.type_name]) for a in op.graph.arguments) if op.graph else ()
        self.labels = tuple(f"{op.name}: {name}" for name in self.array_names)  # for messages
        self.num_arrays = len(self.array_names)
        self.first = self.array_names.index(op.definition.inputs[0].name)
        self.num_numbers = sum(len(p.numbers) for _, p in self.graphs)
        lengths = (len(p.arrays) + len(p.reverse) for _, p in self.graphs)
        stops = (*itertools.accumulate(lengths, initial=self.num_arrays),)
        self.graph_places, self.num_tensors = tuple(itertools.pairwise(stops)), stops[-1]
        self.fields = frozenset(f.name for f in op.fields)
        self.plain_names = (*(a.name for a in op.attributes), "backend", *(("wanted",) if op.selective else ()))
        self.names = (*self.array_names, *(name for name, _ in self.graphs), *(a.name for a in op.attributes))
        # Checks of a call on the CPU depend on shapes, dtypes, contiguity and alignment of its arrays, on attributes,
        # backend and requested fields, and on classes, numbers and dtypes of its graphs. The key that `compute_on_cpu`
        # makes holds all of these. What depends on elements of arrays is checked in each call.
        self.passed: dict[tuple[Any, ...], _Passed] = {}

    def __call__(self, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Call the operator, and record it if an array requires a gradient or has a tangent."""
        arrays = _autocast(arrays, arrays[self.first].device.type)
        if torch.compiler.is_compiling():
            return self.composite(*self.flattened(arrays, keywords, self.op.order > 0 or torch.is_grad_enabled()))
        forwards = has_tangents(arrays)
        recorded = forwards or requires_grad(arrays)
        args = self.flattened(arrays, keywords, recorded or self.op.order > 0)
        if not recorded:
            return self.overload(*args)
        try:
            return self.function.apply(forwards, *args)
        except RuntimeError as error:
            named = zip(self.array_names, arrays, strict=True)
            made = [name for name, a in named if a is not None and a.is_inference()]
            if not made or "nference tensor" not in str(error):
                raise
            raise RuntimeError(
                f"{self.op.name}: {', '.join(made)}: made in torch.inference_mode(), of which torch takes no "
                "derivatives; expected tensors, and a model, that were made outside, or torch.no_grad() around the call"
            ) from error

    def call_flat(self, *args: Any) -> Any:
        """Call the operator with flat arguments, recorded as by `__call__`.

        Raise RuntimeError if torch.func differentiates it inside a compiled program, because torch has no kernel.
        """
        arrays = args[: self.num_arrays]
        # Compiled programs do not update the current level of `forward_ad`.
        forwards = has_tangents([a for a in arrays if a is not None and not is_batched(a)], level=0)
        if not (forwards or requires_grad(arrays)):
            return self.overload(*args)
        try:
            return self.function.apply(forwards, *args)
        except NotImplementedError:
            raise RuntimeError(
                f"{self.op.name}: a compiled program differentiates it by torch.func; expected torch.autograd.grad, or "
                "a program that make_fx has traced from the function and torch.func"
            ) from None

    @lazy
    def function(self) -> Any:
        """The torch.autograd.Function that records a call outside of compiled programs, which record `overload`.

        Its first argument is whether forward mode is active; only then are tensors saved for it.
        """
        derivative = _Derivative(self)
        # A nested vmap may have more levels beneath, for which only a custom function has rules.
        rule = _vmap(self, lambda *args: self.function.apply(True, *args))

        class Recorded(torch.autograd.Function):
            @staticmethod
            def forward(forwards: bool, *args: Any) -> Any:
                return self.overload(*args)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                derivative.save(ctx, inputs[1:], output, inputs[0])

            @staticmethod
            def backward(ctx: Any, *cotangents: Any) -> Any:
                return None, *derivative.backward(ctx, cotangents, ctx.needs_input_grad[1:])

            @staticmethod
            @nested
            def jvp(ctx: Any, saved: Any, *tangents: Any) -> Any:
                return derivative.tangents(ctx, saved, tangents[1:])

            @staticmethod
            def vmap(info: Any, in_dims: tuple[int | None, ...], forwards: bool, *args: Any) -> Any:
                return rule(info, in_dims[1:], *args)

        without_defaults(Recorded)
        Recorded.__name__ = Recorded.__qualname__ = f"Trigraph_{self.op.name}"
        return Recorded

    @lazy
    def overload(self) -> Any:
        """The operator in torch's dispatcher."""
        return getattr(torch.ops.trigraph, self.op.name).default

    @lazy
    def composite(self) -> Any:
        """The operator that compiled programs call, implemented by `call_flat`."""
        return getattr(torch.ops.trigraph, f"call_{self.op.name}").default

    @property
    def schema(self) -> str:
        """Types and names of arguments and results, without the operator's name."""
        parameters = [f"Tensor{'?' * a.nullable} {a.name}" for a in self.op.arguments]
        for argument, (name, parts) in zip(self.op.graph.arguments if self.op.graph else (), self.graphs, strict=True):
            for array in (*parts.arrays, *parts.reverse):
                absent = argument.optional or array in parts.optional or array in parts.reverse
                parameters.append(f"Tensor{'?' * absent} {name}_{array}")
        parameters += [f"SymInt {name}_{number}" for name, parts in self.graphs for number in parts.numbers]
        for a in self.op.attributes:
            kind = "float" if a.real else "int" if a.size else "bool" if True in a.choices else "str"
            parameters.append(f"{kind}{'?' * (None in a.choices)} {a.name}")
        parameters += ["str backend"] + ["str wanted"] * self.op.selective
        results = ", ".join("Tensor" for _ in self.op.fields)
        return f"({', '.join(parameters)}) -> " + (f"({results})" if len(self.op.fields) > 1 else results)

    def flattened(self, arrays: Sequence[Any], keywords: Mapping[str, Any], reverse: bool) -> list[Any]:
        """Return flat arguments for the dispatcher, including the reverse orders of graphs if `reverse`."""
        flat, numbers_of_graphs = list(arrays), []
        for name, parts in self.graphs:
            graph = keywords[name]
            if graph is None:
                flat += [None] * (len(parts.arrays) + len(parts.reverse))
                numbers_of_graphs += [0] * len(parts.numbers)
            else:
                flat += tensors(graph, reverse)
                numbers_of_graphs += numbers(graph)
        return flat + numbers_of_graphs + [keywords[name] for name in self.plain_names]

    def unflattened(self, args: Sequence[Any], convert: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return arrays and `keywords` from flat arguments; `convert` is applied to arrays of new graph objects."""
        keywords = dict(zip(self.plain_names, args[self.num_tensors + self.num_numbers :], strict=True))
        i, number = self.num_arrays, self.num_tensors
        for name, parts in self.graphs:
            stop = i + len(parts.arrays) + len(parts.reverse)
            graph = graph_of(tuple(args[i:stop]))
            if graph is None:
                counts = args[number : number + len(parts.numbers)]
                graph = assemble(self.op.graph.type_name, tuple(map(convert, args[i:stop])), counts)  # type: ignore[union-attr]
            keywords[name] = graph
            i, number = stop, number + len(parts.numbers)
        return list(args[: self.num_arrays]), keywords

    @lazy
    def kernel(self) -> Callable[..., Any]:
        """The dispatcher's kernel for CPU and CUDA: `compute` with flat arguments, opaque to torch's compiler."""

        def run(*args: Any) -> Any:
            first: torch.Tensor = args[self.first]
            try:
                if first.is_cpu:
                    return self.compute_on_cpu(args)
                # Arrays of a graph are viewed on torch's stream too: CuPy's own stream must not wait during a capture.
                with on_device(first, shares=True):
                    return self.compute(args, None)
            except MemoryError as error:
                raise_named(self.op, error)

        return uncompiled(run)

    def compute_on_cpu(self, args: tuple[Any, ...]) -> Any:
        """Compute with flat arguments on the CPU, without the checks if a call with the same key has passed them.

        Within a model, checks of a small call would take longer than the call, because what they read is no longer in
        the processor's cache.
        """
        graphs: list[Any] = []
        views: list[Any] = []
        key = list(args[self.num_tensors :])
        for i, j in self.graph_places:
            graph = graph_of(args[i:j])
            if graph is None and args[i] is not None:
                return self.compute(args, None)
            graphs.append(graph)
            key.append(None if graph is None else graph._key)
        for label, tensor in zip(self.labels, args, strict=False):
            if tensor is None:
                views.append(None)
                key.append(None)
            else:
                view = array_of(tensor, label)
                views.append(view)
                key += (view.shape, view.dtype, view.flags.c_contiguous and view.flags.aligned)
        passed = self.passed.get(tuple(key))
        if passed is None:
            return self.compute(args, tuple(key))
        given = (*views, *graphs, *args[self.num_tensors + self.num_numbers :])
        values = dict(zip(self.names, given, strict=False))  # the rest are `backend` and `wanted`
        check_elements(self.op, values)
        result = passed.run(self.op, values, passed.sizes, passed.wanted, {}, passed.backend_cache)
        if self.op.single:
            return tensor_from(result)
        first = args[self.first]
        return tuple([first.new_empty(0) if a is None else tensor_from(a) for a in result])

    def compute(self, args: Sequence[Any], key: tuple[Any, ...] | None) -> Any:
        """Check a call with flat arguments and compute on their device, which `on_device` has made current.

        On the CPU, remember by `key` that it has passed.
        """
        arrays, values = self.unflattened(args, array_of)
        first: torch.Tensor = arrays[self.first]
        values |= {n: array_of(t, label) for n, label, t in zip(self.array_names, self.labels, arrays, strict=True)}
        wanted, backend = values.pop("wanted", None), values.pop("backend")
        backend = choose_backend(self.op, values, backend) if backend else "gpu" if first.is_cuda else "fortran"
        wrt = None if wanted is None else wanted.split(",") if wanted else ()
        checked = check_call(self.op, values, wrt, None, BACKENDS[backend][1], backend)
        if key is not None and checked.unchanged:
            if len(self.passed) >= MOST_PASSED:
                self.passed.clear()
            run = function_of(self.op, backend)
            self.passed[key] = _Passed(run, checked.sizes, checked.wanted, checked.backend_cache)
        results = self.execute(checked, backend, first, {})
        if self.op.single:
            return results[self.op.fields[0].name]
        return tuple([first.new_empty(0) if t is None else t for t in results.values()])

    def execute(self, checked: Any, backend: str, like: torch.Tensor, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run a call that has passed every check; return its fields by name, with the caller's tensors if `outputs`.

        Torch allocates results on a device, because `Tensor.record_stream` does not protect memory of another library
        from reuse while another stream reads it.
        """
        allocated: dict[str, Any] = {}
        if like.is_cuda:
            record_streams([checked.values[name] for name, _ in self.graphs])
            for f in self.op.fields:
                if f.name in checked.wanted and f.name not in outputs:
                    shape, dtype = layout(self.op, f, checked.values, checked.sizes)
                    shape = (*shape, 1) if f.name in checked.columns else shape
                    allocated[f.name] = like.new_empty(shape, dtype=getattr(torch, dtype.name))
            checked.out.update((n, array_of(t)) for n, t in allocated.items())
        result = execute(self.op, checked, backend)
        arrays = zip(self.op.fields, (result,) if self.op.single else result, strict=True)
        results = {f.name: None if a is None or like.is_cuda else tensor_from(a) for f, a in arrays}
        return {**results, **allocated, **outputs}

    def fake(self, *args: Any) -> Any:
        """Return uninitialized tensors with the shapes and dtypes of `compute`."""
        arrays, keywords = self.unflattened(args, lambda t: t)
        values = {**keywords, **dict(zip(self.array_names, arrays, strict=True))}
        op, first = self.op, arrays[self.first]
        columns = set()
        for a in op.arguments:
            value = values[a.name]
            if a.column and value is not None and value.dim() == len(a.dims) + 1:
                values[a.name] = value[..., 0]
                columns.add(a.name)
        sizes = bind_sizes(op, values, {a.name: tuple(values[a.name].shape) for a in op.given(values)})
        returned = {f.name for f in op.returned(values, sizes)}
        if op.selective:
            returned &= set(values["wanted"].split(","))
        fields = []
        for f in op.fields:
            if f.name not in returned:
                fields.append(first.new_empty(0))
                continue
            shape, dtype = layout(op, f, values, sizes)
            kind = torch.float32 if isinstance(dtype, np.dtype) else dtype  # sums of half-precision numbers
            fields.append(first.new_empty((*shape, 1) if f.name in columns else shape, dtype=kind))
        return fields[0] if op.single else tuple(fields)


def _autocast(arrays: Sequence[Any], device: str) -> Sequence[Any]:
    """Convert half-precision tensors to float32 under autocast, following its policy for sums."""
    if not torch.is_autocast_enabled(device):
        return arrays
    half = (torch.float16, torch.bfloat16)
    return [a.to(torch.float32) if a is not None and a.dtype in half else a for a in arrays]


def requires_grad(arrays: Sequence[Any]) -> bool:
    """Whether a call with these arrays records reverse-mode differentiation."""
    return torch.is_grad_enabled() and any(a is not None and a.requires_grad for a in arrays)


def has_tangents(arrays: Sequence[Any], level: int | None = None) -> bool:
    """Whether an array has, or may have beneath a wrapper of torch.func, a forward-mode tangent at this level.

    The default is the current level.
    """
    floating = [a for a in arrays if a is not None and a.is_floating_point()]
    return not all(map(has_storage, floating)) or any(
        forward_ad.unpack_dual(a, level=level).tangent is not None for a in floating
    )


class _Derivative:
    """Reverse- and forward-mode derivatives of an operator, for its torch.autograd.Function."""

    def __init__(self, op: TorchOperator) -> None:
        self.op, self.order = op, op.op.order
        self.spec = op.op.definition
        self.fields = tuple(f.name for f in op.op.fields)
        self.outputs = tuple(a.name for a in self.spec.outputs)
        self.inputs = tuple(a.name for a in self.spec.inputs)
        self.differentiable = self.outputs if self.order == 0 else self.fields
        self.constants = frozenset(self.fields).difference(self.differentiable)
        self.output_places = [i for i, n in enumerate(self.fields) if n in self.outputs]
        # By the choices of a call, on which alone it depends what exists and what bwd reuses.
        self.of_choices: dict[tuple[Any, ...], tuple[frozenset[str], list[int | None]]] = {}

    @property
    def later(self) -> tuple[TorchOperator, TorchOperator]:
        """The bwd and bwd2 operators of the definition."""
        return OPERATORS_OF_TORCH[f"{self.spec.name}_bwd"], OPERATORS_OF_TORCH[f"{self.spec.name}_bwd2"]

    def save(self, ctx: Any, inputs: Sequence[Any], output: Any, forwards: bool = False) -> None:
        """Save arguments and reusable results for reverse mode, and with `forwards` also for forward mode."""
        results = output if isinstance(output, tuple) else (output,)
        ctx.rest = inputs[self.op.num_tensors :]
        absent, places = self.chosen(dict(zip(self.op.plain_names, ctx.rest[self.op.num_numbers :], strict=True)))
        kept = [None if i is None else results[i] for i in places]
        # Autograd frees saved tensors, including those of graphs, after the backward, and raises if they were modified.
        saved = (*inputs[: self.op.num_tensors], *kept)
        ctx.save_for_backward(*saved)
        if forwards:
            ctx.save_for_forward(*saved)
        ctx.shapes = [results[i].shape for i in self.output_places]
        ctx.set_materialize_grads(False)
        left = self.constants | absent
        ctx.mark_non_differentiable(*[results[i] for i, n in enumerate(self.fields) if n in left])

    def chosen(self, keywords: Mapping[str, Any]) -> tuple[frozenset[str], list[int | None]]:
        """Return the fields without elements, and the positions of results that bwd reuses.

        Fields have no elements if they are not requested, or do not exist for the attributes of the call. A position is
        None if the result does not exist or bwd does not read it, so that its memory can be freed or overwritten.
        """
        if self.op.op.selective:
            return frozenset(self.fields).difference(keywords["wanted"].split(",")), []
        key = tuple([keywords[name] for name in self.op.op.choices])
        choice = self.of_choices.get(key)
        if choice is None:
            choices = {a.name: choice_number(a.choices, keywords[a.name]) for a in self.op.op.attributes if a.choices}
            absent = frozenset(f.name for f in self.op.op.fields if f.when and not evaluate(f.when, choices))
            unused = {n for n, when in self.spec.given_back_when if not evaluate(when, choices)} | absent
            places = [None if n in unused else self.fields.index(n) for n in self.spec.given_back]
            choice = self.of_choices[key] = absent, places
        return choice

    def arguments(self, ctx: Any, saved: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arrays of the call and its reusable results by name, and all others."""
        count = self.op.num_tensors
        arrays, keywords = self.op.unflattened((*saved[:count], *ctx.rest), lambda t: t)
        values = dict(zip(self.op.array_names, arrays, strict=True))
        if self.order == 0:
            values |= zip(self.spec.given_back, saved[count:], strict=True)
        return values, keywords

    def call(self, op: TorchOperator, values: dict[str, Any], keywords: Any, fields: Sequence[str]) -> Any:
        """Call a derivative with the graph, attributes and backend of the original call; return its fields by name."""
        if not fields:
            return {}
        result = op([values.get(name) for name in op.array_names], {**keywords, "wanted": ",".join(fields)})
        named = zip((f.name for f in op.op.fields), result if isinstance(result, tuple) else (result,), strict=True)
        return {n: t for n, t in named if n in fields}

    def zeros(self, ctx: Any, like: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return zero gradients of all outputs by name."""
        return {f"grad_{n}": like.new_zeros(s) for n, s in zip(self.outputs, ctx.shapes, strict=True)}

    def third(self, values: Mapping[str, Any], keywords: Mapping[str, Any], cotangents: Mapping[str, Any]) -> Any:
        """Return a function from names of bwd2's arguments to their gradients, given cotangents of its fields.

        A multilinear operator has them by calls of its operators (`trigraph.backends.third.multilinear`), which
        differentiate to any order in this way. Other operators use their plain forms, or X_bwd3 if the backend has it
        and nothing is recorded or has a tangent.
        """
        if not self.spec.is_multilinear(keywords):
            bwd3 = OPERATORS_OF_TORCH[f"{self.spec.name}_bwd3"]
            backend = keywords["backend"] or ("gpu" if values[self.inputs[0]].is_cuda else "fortran")
            further = torch.is_grad_enabled() or has_tangents(
                [*map(values.get, self.op.array_names), *cotangents.values()]
            )
            if further or not has_third(backend, bwd3.op, keywords):
                return partial(self.gradients, self.curvature(values, keywords, cotangents, {}))
            along = {**values, **{f"ggg_{n}": t for n, t in cotangents.items()}}
            return lambda wanted: self.call(bwd3, along, keywords, [n for n in wanted if n in bwd3.fields])
        names = [n for n in self.inputs if values[n] is not None]

        def call(order: int, changed: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
            return self.call(self.later[order - 1], changed, keywords, fields)

        return lambda wanted: multilinear(names, values, cotangents, wanted, call)

    def backward(self, ctx: Any, cotangents: Sequence[Any], needed: Sequence[bool]) -> tuple[Any, ...]:
        """Return the gradients of the arguments that need one, and None for all others."""
        values, keywords = self.arguments(ctx, ctx.saved_tensors)
        if self.order == 2:
            present = {n: t for n, t in zip(self.fields, cotangents, strict=True) if t is not None and t.numel()}
            wanted = [n for n, need in zip(self.op.array_names, needed, strict=False) if need]
            grads = self.third(values, keywords, present)(wanted) if present else {}
            return (*(grads.get(n) for n in self.op.array_names), *(None for _ in needed[self.op.num_arrays :]))
        prefix = "grad_" if self.order == 0 else "gg_"
        prefixed = {f"{prefix}{n}": t for n, t in zip(self.fields, cotangents, strict=True) if n in self.differentiable}
        if self.order == 0 and any(t is None for t in prefixed.values()):
            prefixed = self.zeros(ctx, values[self.inputs[0]]) | {n: t for n, t in prefixed.items() if t is not None}
        op = self.later[self.order]
        names = {n for n, need in zip(self.op.array_names, needed, strict=False) if need}
        fields = [f.name for f in op.op.fields if f.name in names]
        grads = self.call(op, values | prefixed, keywords, fields)
        return (*(grads.get(n) for n in self.op.array_names), *(None for _ in needed[self.op.num_arrays :]))

    def tangents(self, ctx: Any, saved: Sequence[Any], tangents: Sequence[Any]) -> Any:
        """Return the derivatives of the results along tangents of the arguments (forward mode).

        With tangents as gg_input, bwd2's grad_output is the Jacobian-vector product, and its other fields are the
        derivatives of the gradients along the tangents, because second derivatives are symmetric.
        """
        values, keywords = self.arguments(ctx, saved)
        along = {n: t for n, t in zip(self.op.array_names, tangents, strict=False) if t is not None}
        left = self.constants | self.chosen(keywords)[0]
        bwd, bwd2 = self.later
        direction = {f"gg_{n}": along[n] for n in self.inputs if n in along}
        if self.order == 2:
            by_field = self.third_tangents(values, keywords, along)
        elif self.order == 0:
            names = tuple(f"grad_{n}" for n in self.outputs)
            by_field = self.call(bwd2, values | self.zeros(ctx, values[self.inputs[0]]) | direction, keywords, names)
            by_field = {n.removeprefix("grad_"): t for n, t in by_field.items()}
        else:
            fields = tuple(n for n in self.fields if n not in left)
            by_field = self.call(bwd2, values | direction, keywords, fields) if direction else {}
            grads = tuple(f"grad_{n}" for n in self.outputs)
            if any(n in along for n in grads):
                more = values | {n: along.get(n, torch.zeros_like(values[n])) for n in grads}
                for n, t in self.call(bwd, more, keywords, fields).items():
                    by_field[n] = by_field[n] + t if n in by_field else t
        # Torch's assertion fails if a differentiable result has no tangent.
        named = ((n, by_field.get(n)) for n in self.fields)
        results = tuple(torch.zeros_like(values[n]) if t is None and n not in left else t for n, t in named)
        return results if len(results) > 1 else results[0]

    def third_tangents(
        self, values: Mapping[str, Any], keywords: Mapping[str, Any], along: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the derivatives of bwd2's fields along tangents of its arguments: the transpose of `third`."""
        names = [n for n in self.inputs if values[n] is not None]
        wanted = keywords["wanted"].split(",")
        if self.spec.is_multilinear(keywords):
            by_field: dict[str, torch.Tensor] = {}

            def add(changed: dict[str, Any], without: Sequence[str] = ()) -> None:
                fields = tuple(n for n in wanted if n not in without)
                for n, t in self.call(self.later[1], {**values, **changed}, keywords, fields).items():
                    by_field[n] = by_field[n] + t if n in by_field else t

            grads = [f"grad_{n}" for n in self.outputs]
            if any(f"gg_{n}" in along for n in names):
                add({f"gg_{n}": along.get(f"gg_{n}") for n in names})
            if any(n in along for n in grads):
                add({n: along.get(n, torch.zeros_like(values[n])) for n in grads}, grads)
            for n in names:
                if n in along:
                    add({n: along[n], f"gg_{n}": None}, (n,))
            return by_field
        mixed = {n: along[f"gg_{n}"] for n in names if f"gg_{n}" in along}
        return self.gradients(self.curvature(values, keywords, along, mixed), wanted)

    def curvature(self, *arguments: Any) -> Any:
        """Return `trigraph.torch.plain.curvature` of the operator, which loads SciPy's special functions."""
        from trigraph.torch.plain import curvature

        values, keywords, *more = arguments
        # Any operation of torch removes the wrappers of levels of torch.func that have ended; torch.func.vjp does not.
        values, *more = ({n: t if t is None else t.view_as(t) for n, t in v.items()} for v in (values, *more))
        return curvature(self.spec, values, keywords, *more)

    def gradients(self, curvature: tuple[Mapping[str, Any], Any], wanted: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return gradients of what `curvature` returned in those of its arrays that are wanted."""
        arrays, function = curvature
        some = [n for n in wanted if n in arrays]
        of_some = torch.func.vjp(lambda *t: function(dict(zip(some, t, strict=True))), *(arrays[n] for n in some))
        number, pull = of_some[:2]
        return dict(zip(some, pull(torch.ones_like(number)), strict=True))


def _vmap(op: TorchOperator, apply: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule for torch.vmap, which applies the operator to each entry."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        if info.batch_size == 0:
            moved = [a if d is None else a.movedim(d, 0) for a, d in zip(args, in_dims, strict=True)]
            one = op.fake(*(a if d is None else a.new_empty(a.shape[1:]) for a, d in zip(moved, in_dims, strict=True)))
            empty = tuple(t.new_empty(0, *t.shape) for t in (one if isinstance(one, tuple) else (one,)))
            return (empty, (0,) * len(empty)) if len(empty) > 1 else (empty[0], 0)
        return apply_to_entries(apply, info.batch_size, in_dims, args)

    return uncompiled(rule)


def _register(op: TorchOperator) -> TorchOperator:
    name, derivative = f"trigraph::{op.op.name}", _Derivative(op)
    LIBRARY.define(f"{op.op.name}{op.schema}")
    LIBRARY.define(f"call_{op.op.name}{op.schema}")
    LIBRARY.impl(f"call_{op.op.name}", op.call_flat, "CompositeImplicitAutograd")
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(op.op.name, lambda *args: op.kernel(*args), key)
    torch.library.register_fake(name, op.fake, lib=LIBRARY)
    for each in (name, f"trigraph::call_{op.op.name}"):
        torch.library.register_vmap(each, _vmap(op, op.call_flat), lib=LIBRARY)

    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        return derivative.backward(ctx, cotangents, ctx.needs_input_grad)

    if op.op.order < 3:
        torch.library.register_autograd(name, backward, setup_context=derivative.save, lib=LIBRARY)
    return op


OPERATORS_OF_TORCH: dict[str, TorchOperator] = {
    name: _register(TorchOperator(op))
    for name, op in NAMED.items()
    if op.restriction is None and (op.order < 3 or not op.definition.always_multilinear)
}
