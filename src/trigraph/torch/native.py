"""Optional torch operators in C++ (``fortran/torch.cpp``), which compute on the CPU without calling Python.

An operator ``trigraph_cpu::X`` accepts the flat arguments of ``trigraph::X`` without the backend, with numbers instead
of choices, and with a bit mask of the requested fields. If its checks refuse the arguments, ``trigraph::X`` computes
the call or raises an error. ``trigraph_cpu::eager_X`` has no registered derivative, which would make torch call Python
each time. Under a dispatch mode, for example in tracing, ``eager_X`` calls ``trigraph_cpu::X``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from trigraph.checks import find_choice_index
from trigraph.fortran.levels import LIBRARY, find_torch_operator_language
from trigraph.fortran.threads import synchronise_library_settings
from trigraph.graphs import GRAPH_TYPES
from trigraph.table import GRAPH_PARTS, Operator
from trigraph.torch.graphs import list_graph_tensors

REFUSAL_ERRORS = (RuntimeError, ValueError, MemoryError)
_ORDINARY_CLASSES = (torch.Tensor, torch.nn.Parameter)


def _load_native_operators() -> Any:
    """Load the C++ operators, and return their namespace, or None if they were not built."""
    if find_torch_operator_language()[0] != "C++":
        return None
    try:
        synchronise_library_settings()
    except (ImportError, ValueError):  # no build of the fast path is usable; each call will raise this error
        return None
    torch.ops.load_library(str(LIBRARY.with_name("libtrigraph_torch.so")))
    return torch.ops.trigraph_cpu


_OPERATORS = _load_native_operators()
_FRAGMENT = torch.library.Library("trigraph_cpu", "FRAGMENT") if _OPERATORS else None


class NativeOperator:
    """Operator ``trigraph_cpu::X``. `fake` and `vmap` are the rules of ``trigraph::X`` for flat arguments."""

    def __init__(self, op: Operator, numbers: int, fake: Callable[..., Any], vmap: Callable[..., Any]) -> None:
        self.op, self.overload = op, getattr(_OPERATORS, op.name).default
        self.start = numbers  # position of the first attribute in the arguments
        self.stop = numbers + len(op.attributes)
        self.bits = {f.name: 1 << place for place, f in enumerate(op.fields)}
        self.mask_cache: dict[str, int] = {}  # cached results of `make_field_mask`, keyed by its argument
        self.nullable = [a.nullable for a in op.arguments]
        self.first = [a.name for a in op.arguments].index(op.definition.inputs[0].name)
        cls, parts = (
            (GRAPH_TYPES[op.graph_kind.type_name], GRAPH_PARTS[op.graph_kind.type_name])
            if op.graph_kind
            else (None, None)
        )
        self.graphs: list[Any] = [
            (g.name, g.optional, cls, parts) for g in (op.graph_kind.arguments if op.graph_kind else ())
        ]
        self.eager = getattr(_OPERATORS, f"eager_{op.name}").default
        assert _FRAGMENT is not None
        _FRAGMENT.impl(f"eager_{op.name}", lambda *args: self.overload(*args), "Python")
        torch.library.register_fake(
            f"trigraph_cpu::{op.name}", lambda *args: fake(*self.decode_arguments(args)), lib=_FRAGMENT
        )

        def apply_vmap_rule(info: Any, in_dims: Any, *args: Any) -> Any:
            return vmap(info, (*in_dims[: self.stop], None, *in_dims[self.stop :]), *self.decode_arguments(args))

        torch.library.register_vmap(f"trigraph_cpu::{op.name}", apply_vmap_rule, lib=_FRAGMENT)

    def register_autograd(self, backward: Callable[..., Any], save: Callable[..., Any]) -> None:
        """Register the derivative of ``trigraph::X``, for programs that are differentiated after tracing."""
        torch.library.register_autograd(
            f"trigraph_cpu::{self.op.name}",
            backward,
            setup_context=lambda ctx, inputs, output: save(ctx, self.decode_arguments(inputs), output),
            lib=_FRAGMENT,
        )

    def plain_call_needs_gradient(self, arrays: Sequence[Any]) -> bool | None:
        """Return whether one of the arrays requires a gradient, or None if the call is not plain.

        A call is plain if its arrays are ordinary CPU tensors, outside compiled programs, transforms and forward mode.
        """
        if torch.compiler.is_compiling():
            return None
        needs_gradient = False
        try:
            for array, nullable in zip(arrays, self.nullable, strict=True):
                if array is None:
                    if not nullable:
                        return None
                elif type(array) in _ORDINARY_CLASSES and array.is_cpu:
                    array.untyped_storage()  # raises RuntimeError for wrappers of torch.func
                    needs_gradient = needs_gradient or array.requires_grad
                else:
                    return None
            # If the tensor has a forward-mode tangent, `unpack_dual` returns a different tensor object.
            return needs_gradient if forward_ad.unpack_dual(arrays[self.first]).primal is arrays[self.first] else None
        except RuntimeError:
            return None

    def list_arguments_after_arrays(self, keywords: Mapping[str, Any], reverse: bool) -> list[Any] | None:
        """Return the arguments after the arrays, or None if the operator does not support the graphs or attributes.

        With `reverse`, include the reverse arrays of graphs.
        """
        rest: list[Any] = []
        numbers: list[Any] = []
        for name, optional, cls, parts in self.graphs:
            graph = keywords[name]
            if graph is None and optional:
                rest += [None] * (len(parts.arrays) + len(parts.reverse))
                numbers += [0] * len(parts.numbers)
            elif type(graph) is cls and graph.kind == "numpy":
                rest += list_graph_tensors(graph, reverse)
                numbers += [+getattr(graph, n) for n in parts.numbers]
            else:
                return None
        for attribute in self.op.attributes:
            value = keywords[attribute.name]
            if type(value) not in attribute.value_types:
                return None
            numbers.append(find_choice_index(attribute.choices, value) if attribute.choices else value)
        if self.op.accepts_wrt:
            numbers.append(self.make_field_mask(keywords["wanted"]))
        return rest + numbers

    def encode_arguments(self, args: Any) -> list[Any]:
        """Convert the arguments of ``trigraph::X`` to those of ``trigraph_cpu::X``."""
        given = [*zip(self.op.attributes, args[self.start : self.stop], strict=True)]
        numbers = [find_choice_index(a.choices, v) if a.choices else v for a, v in given]
        if not self.op.accepts_wrt:
            return [*args[: self.start], *numbers]
        return [*args[: self.start], *numbers, self.make_field_mask(args[-1])]

    def make_field_mask(self, wanted: str) -> int:
        """Return the bit mask of the fields named in `wanted`, a comma-separated list."""
        mask = self.mask_cache.get(wanted)
        if mask is None:
            mask = self.mask_cache[wanted] = sum(self.bits[n] for n in wanted.split(",") if n)
        return mask

    def decode_arguments(self, args: Any) -> list[Any]:
        """Convert the arguments of ``trigraph_cpu::X`` to those of ``trigraph::X``."""
        given = zip(self.op.attributes, args[self.start : self.stop], strict=True)
        values = [a.choices[v] if a.choices else v for a, v in given]
        wanted = [",".join(n for n, bit in self.bits.items() if args[-1] & bit)] if self.op.accepts_wrt else []
        return [*args[: self.start], *values, "", *wanted]

    def __call__(self, args: Any) -> Any:
        """Compute with the flat arguments of ``trigraph::X``; return None if the operator refuses them."""
        try:
            return self.overload(*self.encode_arguments(args))
        except REFUSAL_ERRORS:
            return None


def make_native_operator(op: Operator, *rules: Any) -> NativeOperator | None:
    """Return the C++ version of an operator, or None if there is none.

    For definitions that are linear for some attributes, X_bwd3 has no C++ version: those choices use lower orders.
    """
    if not hasattr(_OPERATORS, op.name) or (op.order == 3 and op.definition.linear_when):
        return None
    return NativeOperator(op, *rules)
