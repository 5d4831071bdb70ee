"""The front door: one checked function for each operator of the table.

``trigraph.X(..., panel=None)`` checks its arguments against the table, chooses the panel and calls it.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import numpy as np

from trigraph.checks import Checked, bind_arguments, check_call
from trigraph.graphs import array_kind, entered
from trigraph.operators import OPERATORS, Argument, Operator

__all__ = [
    *("PANELS", "choose_panel", "execute", "front_door", "panel_function", "public_signature", "raise_named"),
    "wrapped",
]

# Panel: module that holds its functions, and the kind of arrays it takes.
PANELS: dict[str, tuple[str, str]] = {
    "fortran": ("trigraph.fortran", "numpy"),
    "fortran-reference": ("trigraph.fortran.reference", "numpy"),
    "pyref": ("trigraph.pyref", "numpy"),
    "gpu": ("trigraph.gpu", "cupy"),
    "gpu-host": ("trigraph.gpu", "numpy"),
}


@cache
def panel_function(panel: str, name: str) -> Callable[..., Any]:
    """Return a function of one panel: the unchecked one of an operator, or ``execute``, which runs a checked call."""
    function: Callable[..., Any] = getattr(importlib.import_module(PANELS[panel][0]), name)
    return function


def choose_panel(op: Operator, values: dict[str, Any], panel: Any) -> str:
    """Return the panel that was asked for, or the one that goes with the arrays."""
    if panel is None:
        for a in op.arguments:
            if type(values[a.name]) is not np.ndarray and array_kind(values[a.name]) == "cupy":
                return "gpu"
        return "fortran"
    if not isinstance(panel, str):
        raise TypeError(f"{op.name}: panel is a {type(panel).__name__}; expected a string")
    if panel not in PANELS:
        raise ValueError(f"{op.name}: panel is {panel!r}; expected one of {', '.join(PANELS)}")
    return panel


def wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """Return the lines of a paragraph of a docstring."""
    return textwrap.wrap(text, 112, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _indented(text: str) -> list[str]:
    return wrapped(text, "    ", "    ")


def _described(name: str, kind: str, text: str) -> list[str]:
    return [f"{name} : {kind}", *_indented(text)]


def _doc(a: Argument) -> str:
    left_out = " May be left out where what follows comes by keyword." * (a.nullable and not a.keyword)
    return a.doc + left_out + " The gpu panels take float16 and bfloat16, too." * a.half


def _kind(a: Argument) -> str:
    numbers = "the graph's integers" if a.index else "float32 or float64"
    return f"array of {numbers}, shape ({', '.join(a.dims)}){', or None' if a.nullable else ''}"


def _docstring(op: Operator) -> str:
    spec = op.definition
    of = f"{spec.name}_{'fwd' if op.order == 1 else 'bwd'}"
    part = "Part of the vector" if op.restriction else "Vector"
    lines = [f"{part}-Jacobian product of `{of}`." if op.order else spec.summary, ""]
    lines += ["Formula::", "", *_indented(op.formula), "", "Parameters", "----------"]
    for a in op.arguments:
        if not a.keyword:
            lines += _described(a.name, _kind(a), _doc(a))
    if op.graph:
        for graph in op.graph.arguments:
            kind = f"{op.graph.type_name}{', or None' if graph.optional else ''}"
            lines += _described(graph.name, kind, graph.doc)
    for attribute in op.attributes:
        kind = "{" + ", ".join(map(repr, attribute.choices)) + "}" if attribute.choices else "int"
        default = "" if attribute.required else f", default {attribute.default!r}"
        lines += _described(attribute.name, ("float" if attribute.real else kind) + default, attribute.doc)
    for a in op.arguments:
        if a.keyword:
            lines += _described(a.name, _kind(a), _doc(a))
    if op.selective:
        text = "Fields to compute (default: all); the others are None and cost nothing."
        lines += _described("wrt", "str or iterable of str, optional", text)
    text = "Where to write: same dtype, C-contiguous, clear of the inputs."
    lines += _described("out", "array or mapping from field to array, optional", text)
    text = "Default: the fast path of fortran for NumPy arrays, gpu for device arrays."
    lines += _described("panel", "{" + ", ".join(f'"{p}"' for p in PANELS) + "}, optional", text)
    lines += ["", "Returns", "-------"]
    if op.single:
        field = op.fields[0]
        lines += _described(field.name, f"array, shape ({', '.join(field.dims)})", field.doc)
    else:
        for f in op.fields:
            lines += _described(f.name, f"array, shape ({', '.join(f.dims)})", f.doc)
    lines += ["", "Raises", "------", "TypeError", "    Wrong kind of array, dtype or argument.", "ValueError"]
    lines += [
        "    Wrong shape, size, field, overlap or panel.",
        "",
        "Notes",
        "-----",
        *([] if op.single else ["Fields are those of a NamedTuple, in this order."]),
        *wrapped(f"Source: {spec.source}"),
    ]
    return "\n".join(lines)


def public_signature(op: Operator) -> inspect.Signature:
    """Return the signature of the public function: that of every panel, `out` and `panel`."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    extra = [inspect.Parameter(name, keyword, default=None) for name in ("out", "panel")]
    return op.signature.replace(parameters=[*op.signature.parameters.values(), *extra])


def raise_named(op: Operator, error: MemoryError) -> NoReturn:
    """Raise an error again, with the operator's name if it has none."""
    try:
        if type(error).__module__.partition(".")[0] == "cupy" or str(error).startswith(f"{op.name}: "):
            raise error
        raise MemoryError(f"{op.name}: {str(error) or 'out of memory'}") from error
    finally:
        # An error holds the calls it went through. If this call held the error in turn, the memory of the others would
        # be free only when Python looks for cycles.
        del error


def front_door(op: Operator) -> Callable[..., Any]:
    """Return the checked public function of an operator."""
    signature = public_signature(op)

    def call(*args: Any, out: Any = None, panel: str | None = None, **kwargs: Any) -> Any:
        try:
            return checked_call(bind_arguments(op, args, kwargs, signature), out, panel)
        except MemoryError as error:
            raise_named(op, error)

    def checked_call(values: dict[str, Any], out: Any, panel: str | None) -> Any:
        wrt = values.pop("wrt", None)
        chosen = choose_panel(op, values, panel)
        if PANELS[chosen][1] == "numpy":
            return execute(op, check_call(op, values, wrt, out, "numpy", chosen), chosen)
        with entered(*values.values()):
            return execute(op, check_call(op, values, wrt, out, PANELS[chosen][1], chosen), chosen)

    call.__name__ = call.__qualname__ = op.name
    call.__module__ = "trigraph"
    call.__doc__ = _docstring(op)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def execute(op: Operator, checked: Checked, panel: str) -> Any:
    """Run a call that has passed every check in a panel, and return what the public function returns."""
    given = {n: a[..., 0] if n in checked.columns else a for n, a in checked.out.items()}
    run = panel_function(panel, "execute")
    return _restore(op, run(op, checked.values, checked.sizes, checked.wanted, given, checked.kept), checked)


def _restore(op: Operator, result: Any, checked: Checked) -> Any:
    """Return the caller's own arrays, and columns with the trailing axis their input had."""
    if op.single:
        return next(iter(checked.out.values()), result)
    if not checked.columns and not checked.out:
        return result
    columns = {n: getattr(result, n)[..., None] for n in checked.columns if getattr(result, n) is not None}
    changed = columns | checked.out
    return result._replace(**changed) if changed else result


FUNCTIONS = {name: front_door(op) for name, op in OPERATORS.items()}
