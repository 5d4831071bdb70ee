"""Torch's operators ``trigraph::X_fwd``, ``X_bwd`` and ``X_bwd2``, one for each order of each definition of the table.

Arguments of an operator are its arrays, the tensors and numbers of its graph objects, its attributes, the panel, and
for derivatives the names of the fields wanted. It returns a tensor for each field, one without elements where the field
is not wanted or does not exist. The derivative of X_fwd is X_bwd, that of X_bwd is X_bwd2; tangents (forward mode)
follow from the same three.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import _C
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from trigraph.checks import bind_sizes, check_call, choice_number, shape_of
from trigraph.panels import PANELS, choose_panel, execute, raise_named
from trigraph.table import OPERATORS, Operator, evaluate
from trigraph.table.lazy import lazy
from trigraph.torch.arrays import array_of, on_device, tensor_from
from trigraph.torch.graphs import PARTS, assemble, graph_of, numbers, tensors

__all__ = ["LIBRARY", "OPERATORS_OF_TORCH", "TorchOperator", "has_tangents"]

COMPUTING = (_C.DispatchKey.CPU, _C.DispatchKey.CUDA)


def _keys(*names: str) -> Any:
    """Return a set of the dispatcher's keys."""
    return functools.reduce(operator.or_, (_C.DispatchKeySet(getattr(_C.DispatchKey, n)) for n in names))


# What the dispatcher knows of an ordinary tensor, and of one made in inference mode; and of an ordinary thread: no mode
# and no transform, no tracing, no autocast.
ORDINARY_TENSORS = frozenset(
    _keys(d, f"Autocast{d}", *more).raw_repr()
    for d in ("CPU", "CUDA")
    for more in ((), ("ADInplaceOrView", f"Autograd{d}"))
)
ORDINARY_INCLUDED = _keys("BackendSelect", "ADInplaceOrView").raw_repr()
AUTOCAST = _keys("AutocastCPU", "AutocastCUDA").raw_repr()
AUTOGRAD = _keys("AutogradFunctionality").raw_repr()
TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter)
HERE = contextlib.nullcontext()
LIBRARY = torch.library.Library("trigraph", "DEF")


class TorchOperator:
    """One operator of the table as torch's: its schema, its places among the arguments, its kernels.

    Its arguments have two forms. Within trigraph they are the list of its arrays, in the order of the table, and all
    `others` by name: graph objects, attributes, `panel` and, for derivatives, `wanted`. Torch's dispatcher takes them
    flat (`crossing`), graph objects as tensors and numbers.
    """

    def __init__(self, op: Operator) -> None:
        self.op = op
        self.array_names = tuple(a.name for a in op.arguments)
        self.graphs = tuple((a.name, PARTS[op.graph.type_name]) for a in op.graph.arguments) if op.graph else ()
        self.num_arrays = len(self.array_names)
        self.first = self.array_names.index(op.definition.inputs[0].name)
        self.num_tensors = self.num_arrays + sum(len(p.arrays) + len(p.reverse) for _, p in self.graphs)
        self.num_numbers = sum(len(p.numbers) for _, p in self.graphs)
        self.plain_names = (*(a.name for a in op.attributes), "panel", *(("wanted",) if op.selective else ()))

    def __call__(self, arrays: Sequence[Any], others: Mapping[str, Any]) -> Any:
        """Call the operator, past torch's dispatcher where that would change nothing.

        The dispatcher, and what it makes of a graph, take a third of a small call's time. It would do more where a
        subclass is hidden in a graph, where somebody registered a kernel of his own for ``trigraph::X``, and for
        observers other than the profiler.
        """
        if not self._passes(arrays, others):
            return self.overload(*self.crossing(arrays, others, self.op.order > 0 or torch.is_grad_enabled()))
        if is_recorded(arrays):
            return self.function.apply(None, others, *arrays)
        return self.run(arrays, others)

    def _passes(self, arrays: Sequence[Any], others: Mapping[str, Any]) -> bool:
        """Whether the call may go past the dispatcher: at most autograd takes part in it, and graphs have tensors.

        A graph has its tensors from its first call on, unless it holds arrays of torch's own: one that is traced.
        """
        if torch.compiler.is_compiling() or not is_ordinary(arrays):
            return False
        graphs = [others[name] for name, _ in self.graphs]
        return all(g is None or (g.kind != "torch" and "tensors" in g._built) for g in graphs)

    @lazy
    def function(self) -> Any:
        """The torch.autograd.Function that records a call."""
        return _Derivative(self).function()

    @lazy
    def kernel(self) -> Callable[..., Any]:
        """What the dispatcher calls first, for arguments that may be differentiated."""
        return _autograd(self)

    @lazy
    def overload(self) -> Any:
        """The operator as torch calls it."""
        return getattr(torch.ops.trigraph, self.op.name).default

    @property
    def schema(self) -> str:
        """Names and types of arguments and results."""
        found = [f"Tensor{'?' * a.nullable} {a.name}" for a in self.op.arguments]
        for argument, (name, parts) in zip(self.op.graph.arguments if self.op.graph else (), self.graphs, strict=True):
            for array in (*parts.arrays, *parts.reverse):
                absent = argument.optional or array in parts.optional or array in parts.reverse
                found.append(f"Tensor{'?' * absent} {name}_{array}")
        found += [f"SymInt {name}_{number}" for name, parts in self.graphs for number in parts.numbers]
        for a in self.op.attributes:
            kind = "float" if a.real else "int" if a.size else "bool" if True in a.choices else "str"
            found.append(f"{kind}{'?' * (None in a.choices)} {a.name}")
        found += ["str panel"] + ["str wanted"] * self.op.selective
        results = ", ".join("Tensor" for _ in self.op.fields)
        return f"{self.op.name}({', '.join(found)}) -> " + (f"({results})" if len(self.op.fields) > 1 else results)

    def crossing(self, arrays: Sequence[Any], others: Mapping[str, Any], reverse: bool) -> list[Any]:
        """Return the arguments as the dispatcher takes them; the orders of the backward only where they are needed."""
        found, numbers_of_graphs = list(arrays), []
        for name, parts in self.graphs:
            graph = others[name]
            if graph is None:
                found += [None] * (len(parts.arrays) + len(parts.reverse))
                numbers_of_graphs += [0] * len(parts.numbers)
            else:
                found += tensors(graph, reverse)
                numbers_of_graphs += numbers(graph)
        return found + numbers_of_graphs + [others[name] for name in self.plain_names]

    def apart(self, args: Sequence[Any], convert: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return arrays and `others` of what crossed; the arrays of graphs that are put together are converted."""
        others = dict(zip(self.plain_names, args[self.num_tensors + self.num_numbers :], strict=True))
        i, number = self.num_arrays, self.num_tensors
        for name, parts in self.graphs:
            stop = i + len(parts.arrays) + len(parts.reverse)
            graph = graph_of(tuple(args[i:stop]))
            if graph is None:
                given = args[number : number + len(parts.numbers)]
                graph = assemble(self.op.graph.type_name, tuple(map(convert, args[i:stop])), given)  # type: ignore[union-attr]
            others[name] = graph
            i, number = stop, number + len(parts.numbers)
        return list(args[: self.num_arrays]), others

    def compute(self, *args: Any) -> Any:
        """Compute with what crossed: the dispatcher's kernel of both devices."""
        return self.run(*self.apart(args, array_of))

    def run(self, arrays: Sequence[Any], others: Mapping[str, Any]) -> Any:
        """Compute on the tensors' device."""
        try:
            return self._run(arrays, others)
        except MemoryError as error:
            raise_named(self.op, error)

    def _run(self, arrays: Sequence[Any], others: Mapping[str, Any]) -> Any:
        first: torch.Tensor = arrays[self.first]
        with on_device(first) if first.is_cuda else HERE:
            values = {**others, **dict(zip(self.array_names, map(array_of, arrays), strict=True))}
            wanted, panel = values.pop("wanted", None), values.pop("panel")
            panel = choose_panel(self.op, values, panel) if panel else "gpu" if first.is_cuda else "fortran"
            wrt = None if wanted is None else wanted.split(",") if wanted else ()
            result = execute(self.op, check_call(self.op, values, wrt, None, PANELS[panel][1], panel), panel)
            if self.op.single:
                return tensor_from(result)
            return tuple([first.new_empty(0) if r is None else tensor_from(r) for r in result])

    def fake(self, *args: Any) -> Any:
        """Return tensors of the shapes and dtypes that `run` returns, with nothing in them."""
        arrays, others = self.apart(args, lambda t: t)
        values = {**others, **dict(zip(self.array_names, arrays, strict=True))}
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
        found = []
        for f in op.fields:
            if f.name not in returned:
                found.append(first.new_empty(0))
                continue
            half = first.dtype in (torch.float16, torch.bfloat16) and not f.half
            dtype = args[self.num_arrays].dtype if f.index else torch.float32 if half else first.dtype
            column = (1,) if f.name in columns else ()
            found.append(first.new_empty(shape_of(f, sizes) + column, dtype=dtype))
        return found[0] if op.single else tuple(found)


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


def _outer_levels() -> contextlib.AbstractContextManager[None]:
    return _recording() if _C._are_functorch_transforms_active() else contextlib.nullcontext()


def is_ordinary(arrays: Sequence[torch.Tensor | None]) -> bool:
    """Whether the dispatcher would only call `TorchOperator.kernel`: no mode, transform, autocast or profiler is on."""
    excluded = _C._dispatch_tls_local_exclude_set().raw_repr()
    if (
        _C._dispatch_tls_local_include_set().raw_repr() & ~ORDINARY_INCLUDED
        or excluded & AUTOCAST != AUTOCAST
        or (excluded & AUTOGRAD and not torch.is_inference_mode_enabled())
        or _C._len_torch_function_stack()
        or _C._autograd._profiler_enabled()
    ):
        return False
    return False not in [
        a is None or (type(a) in TENSOR_TYPES and _C._dispatch_keys(a).raw_repr() in ORDINARY_TENSORS) for a in arrays
    ]


def is_recorded(args: Sequence[Any]) -> bool:
    """Whether a call with these arguments is to be differentiated."""
    return (_C.is_grad_enabled() and _C._any_requires_grad(*args)) or forward_ad._current_level >= 0


def has_tangents(args: Sequence[Any]) -> bool:
    """Whether an argument has a tangent (forward mode); compiled programs do not tell `forward_ad` of their levels."""
    tensors = (a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point())
    with _C._DisableTorchDispatch():  # or modes and tensor subclasses would be asked for the alias that this makes
        return any(torch._VF._unpack_dual(t, level=0).tangent is not None for t in tensors)


def _compute(op: TorchOperator, keyset: Any, args: Sequence[Any]) -> Any:
    """Return the results of what crossed, by what comes after autograd."""
    if (keyset & _C._after_ADInplaceOrView_keyset).highestPriorityTypeId() in COMPUTING:
        return op.compute(*args)
    with _C._AutoDispatchBelowAutograd():
        return op.overload.redispatch(keyset & _C._after_autograd_keyset, *args)


class _Derivative:
    """How an operator is differentiated, backwards and forwards: the parts of its torch.autograd.Function."""

    def __init__(self, op: TorchOperator) -> None:
        self.op, self.order = op, op.op.order
        self.spec = op.op.definition
        self.fields = tuple(f.name for f in op.op.fields)
        self.outputs = tuple(a.name for a in self.spec.outputs)
        self.inputs = tuple(a.name for a in self.spec.inputs)
        self.differentiable = self.outputs if self.order == 0 else self.fields
        self.constants = frozenset(self.fields).difference(self.differentiable)
        self.output_places = [i for i, n in enumerate(self.fields) if n in self.outputs]
        self.of_choices: dict[tuple[Any, ...], tuple[frozenset[str], list[int | None]]] = {}

    @property
    def later(self) -> tuple[TorchOperator, TorchOperator]:
        """The first and second derivative of the definition."""
        return OPERATORS_OF_TORCH[f"{self.spec.name}_bwd"], OPERATORS_OF_TORCH[f"{self.spec.name}_bwd2"]

    def save(
        self, ctx: Any, arrays: Sequence[Any], others: Mapping[str, Any], results: tuple[Any, ...], forwards: bool
    ) -> None:
        """Keep what derivatives need, backwards or also forwards: arguments, and results that can be given back."""
        absent, places = self.chosen(others)
        kept = [None if i is None else results[i] for i in places]
        # Graphs are saved as tensors, which autograd frees after the backward, and refuses if they were changed since.
        args = self.op.crossing(arrays, others, True)
        saved, ctx.rest = args[: self.op.num_tensors], args[self.op.num_tensors :]
        ctx.save_for_backward(*saved, *kept)
        if forwards:
            ctx.save_for_forward(*saved, *kept)
        ctx.shapes = [results[i].shape for i in self.output_places]
        ctx.set_materialize_grads(False)
        left = self.constants | absent
        ctx.mark_non_differentiable(*[results[i] for i, n in enumerate(self.fields) if n in left])

    def chosen(self, others: Mapping[str, Any]) -> tuple[frozenset[str], list[int | None]]:
        """Return the fields that came back without elements, and the places of results that can be given back.

        A field comes back so where it is not wanted, or does not exist for the choices of the call. The place is None
        of a result that does not exist for them, or that the first derivative does not look at: a caller may then
        overwrite it, and its memory is free sooner.
        """
        if self.op.op.selective:
            return frozenset(self.fields).difference(others["wanted"].split(",")), []
        key = tuple([others[name] for name in self.op.op.choices])
        found = self.of_choices.get(key)
        if found is None:
            choices = {a.name: choice_number(a.choices, others[a.name]) for a in self.op.op.attributes if a.choices}
            absent = frozenset(f.name for f in self.op.op.fields if f.when and not evaluate(f.when, choices))
            unused = {n for n, when in self.spec.given_back_when if not evaluate(when, choices)} | absent
            places = [None if n in unused else self.fields.index(n) for n in self.spec.given_back]
            found = self.of_choices[key] = absent, places
        return found

    def arguments(self, ctx: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arrays of the call by name, with the results that can be given back, and all others."""
        saved, count = ctx.saved_tensors, self.op.num_tensors
        arrays, others = self.op.apart((*saved[:count], *ctx.rest), lambda t: t)
        values = dict(zip(self.op.array_names, arrays, strict=True))
        if self.order == 0:
            values |= zip(self.spec.given_back, saved[count:], strict=True)
        return values, others

    def call(self, op: TorchOperator, values: dict[str, Any], others: dict[str, Any], fields: Sequence[str]) -> Any:
        """Return the fields of a derivative by name; graph, attributes and panel are those of the call."""
        if not fields:
            return {}
        result = op([values.get(name) for name in op.array_names], {**others, "wanted": ",".join(fields)})
        found = zip((f.name for f in op.op.fields), result if isinstance(result, tuple) else (result,), strict=True)
        return {n: t for n, t in found if n in fields}

    def zeros(self, ctx: Any, like: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return zeros in the shapes of the outputs, under the names of their gradients."""
        return {f"grad_{n}": like.new_zeros(s) for n, s in zip(self.outputs, ctx.shapes, strict=True)}

    def refuse(self) -> None:
        """Raise where the second derivative is differentiated."""
        if self.order == 2:
            raise RuntimeError(
                f"{self.op.op.name}: its derivative was asked for; expected two derivatives of {self.spec.name} "
                "backwards, or one forwards of one backwards"
            )

    def backward(self, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Return the gradients of the arguments that need one."""
        self.refuse()
        values, others = self.arguments(ctx)
        needed = dict(zip(self.op.array_names, ctx.needs_input_grad[2:], strict=True))
        prefix = "grad_" if self.order == 0 else "gg_"
        given = {f"{prefix}{n}": t for n, t in zip(self.fields, cotangents, strict=True) if n in self.differentiable}
        if self.order == 0 and any(t is None for t in given.values()):
            given = self.zeros(ctx, values[self.inputs[0]]) | {n: t for n, t in given.items() if t is not None}
        op = self.later[self.order]
        fields = [f.name for f in op.op.fields if needed.get(f.name)]
        found = self.call(op, values | given, others, fields)
        return (None, None, *(found.get(n) for n in self.op.array_names))

    def tangents(self, ctx: Any, *tangents: Any) -> Any:
        """Return the derivatives of the results along tangents of the arguments (forward mode).

        The second derivative's grad_output is the product of the Jacobian with (gg_input); its other fields are the
        change of the gradient along the same direction, since second derivatives are symmetric.
        """
        self.refuse()
        values, others = self.arguments(ctx)
        along = {n: t for n, t in zip(self.op.array_names, tangents[2:], strict=True) if t is not None}
        bwd, bwd2 = self.later
        direction = {f"gg_{n}": along[n] for n in self.inputs if n in along}
        if self.order == 0:
            names = tuple(f"grad_{n}" for n in self.outputs)
            found = self.call(bwd2, values | self.zeros(ctx, values[self.inputs[0]]) | direction, others, names)
            found = {n.removeprefix("grad_"): t for n, t in found.items()}
        else:
            fields = tuple(n for n in self.fields if n not in self.chosen(others)[0])
            found = self.call(bwd2, values | direction, others, fields) if direction else {}
            grads = tuple(f"grad_{n}" for n in self.outputs)
            if any(n in along for n in grads):
                more = values | {n: along.get(n, torch.zeros_like(values[n])) for n in grads}
                for n, t in self.call(bwd, more, others, fields).items():
                    found[n] = found[n] + t if n in found else t
        results = tuple(found.get(n) for n in self.fields)
        return results if len(results) > 1 else results[0]

    def function(self) -> Any:
        """Return the torch.autograd.Function, for one level of torch.func: its dispatcher sends each here in turn."""
        op = self.op

        def forward(ctx: Any, sent: tuple[Any, bool] | None, others: Mapping[str, Any], *arrays: Any) -> Any:
            if sent is None:  # the call went past the dispatcher
                result, forwards = op.run(arrays, others), forward_ad._current_level >= 0
            else:  # A Function's forward runs without gradients, but outer levels of torch.func may record this call.
                keyset, forwards = sent
                with _outer_levels():
                    result = _compute(op, keyset, op.crossing(arrays, others, True))
            self.save(ctx, arrays, others, result if isinstance(result, tuple) else (result,), forwards)
            return result

        def backward(ctx: Any, *cotangents: Any) -> Any:  # compiled autograd takes a function alone, and asks for a key
            return self.backward(ctx, *cotangents)

        methods = {"forward": forward, "backward": backward, "jvp": self.tangents}
        methods["_compiled_autograd_key"] = torch.autograd.Function._compiled_autograd_key
        static = {name: staticmethod(method) for name, method in methods.items()}
        return type(f"Trigraph_{op.op.name}", (_SingleLevelFunction,), static)


def _autograd(op: TorchOperator) -> Callable[..., Any]:
    """Return the kernel that records a call for differentiation, where an argument takes part in one."""

    def kernel(keyset: Any, *args: Any) -> Any:
        forwards = has_tangents(args)
        if not (forwards or is_recorded(args)):
            return _compute(op, keyset, args)
        arrays, others = op.apart(args, lambda t: t)
        if not _C._are_functorch_transforms_active():
            return op.function.apply((keyset, forwards), others, *arrays)
        with enable_single_level_autograd_function():
            return op.function.apply((keyset, forwards), others, *arrays)

    return kernel


def _vmap(op: TorchOperator) -> Callable[..., Any]:
    """Return the rule of torch.vmap: the operator for one entry after the other."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        moved = [a if d is None else a.movedim(d, 0) for a, d in zip(args, in_dims, strict=True)]
        if info.batch_size == 0:
            one = op.fake(*(a if d is None else a.new_empty(a.shape[1:]) for a, d in zip(moved, in_dims, strict=True)))
            empty = tuple(t.new_empty(0, *t.shape) for t in (one if isinstance(one, tuple) else (one,)))
            return (empty, (0,) * len(empty)) if len(empty) > 1 else (empty[0], 0)
        entries = []
        for i in range(info.batch_size):
            result = op.overload(*(a if d is None else a[i] for a, d in zip(moved, in_dims, strict=True)))
            entries.append(result if isinstance(result, tuple) else (result,))
        stacked = tuple(torch.stack(column) for column in zip(*entries, strict=True))
        return (stacked, (0,) * len(stacked)) if len(stacked) > 1 else (stacked[0], 0)

    return rule


def _register(op: TorchOperator) -> TorchOperator:
    name = f"trigraph::{op.op.name}"
    LIBRARY.define(op.schema)
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(op.op.name, op.compute, key)
    LIBRARY.impl(op.op.name, op.kernel, "Autograd", with_keyset=True)
    torch.library.register_fake(name, op.fake, lib=LIBRARY)
    torch.library.register_vmap(name, _vmap(op), lib=LIBRARY)
    for device in ("cpu", "cuda"):
        torch.library.register_autocast(name, device, torch.float32, lib=LIBRARY)
    return op


OPERATORS_OF_TORCH: dict[str, TorchOperator] = {
    name: _register(TorchOperator(op)) for name, op in OPERATORS.items() if op.restriction is None
}
