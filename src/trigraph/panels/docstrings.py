"""Docstrings of the public functions, from the operator table."""

from __future__ import annotations

import textwrap

from trigraph.panels.choice import PANELS
from trigraph.table.grammar import Argument, Operator

__all__ = ["wrapped"]


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
