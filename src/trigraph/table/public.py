"""The panels, and the signatures and docstrings of the public functions.

Only the standard library is used here: the build writes type stubs from this module before the package exists.
"""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from trigraph.table.grammar import Argument, Operator

# Panel: module that holds its functions, and the kind of arrays it takes.
PANELS: dict[str, tuple[str, str]] = {
    "fortran": ("trigraph.fortran", "numpy"),
    "fortran-reference": ("trigraph.fortran.reference", "numpy"),
    "pyref": ("trigraph.pyref", "numpy"),
    "gpu": ("trigraph.gpu", "cupy"),
    "gpu-host": ("trigraph.gpu", "numpy"),
}


def public_signature(op: Operator) -> inspect.Signature:
    """Return the signature of a function in `trigraph` or `trigraph.torch`: that of every panel, `out` and `panel`."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    extra = [inspect.Parameter(name, keyword, default=None) for name in ("out", "panel")]
    return op.signature.replace(parameters=[*op.signature.parameters.values(), *extra])


def distributed_signature(op: Operator) -> inspect.Signature:
    """Return the signature of a function in `trigraph.distributed`, which has `partition` where it has no graph."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    extra = [inspect.Parameter("partition", keyword)] if op.graph is None else []
    extra.append(inspect.Parameter("panel", keyword, default=None))
    return op.signature.replace(parameters=[*op.signature.parameters.values(), *extra])


def publish(function: Any, module: str, name: str, signature: inspect.Signature, doc: str) -> None:
    """Give a function that is made from the table what users see of it."""
    function.__name__ = function.__qualname__ = name
    function.__module__, function.__signature__, function.__doc__ = module, signature, doc


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


def docstring(op: Operator) -> str:
    """Return the docstring of the function in `trigraph`."""
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


def torch_docstring(op: Operator) -> str:
    """Return the docstring of the function in `trigraph.torch` that has the definition of a forward operator."""
    spec = op.definition
    lines = [
        spec.summary,
        "",
        "Parameters",
        "----------",
        *wrapped(", ".join(op.parameters)),
        f"    As of `trigraph.{op.name}`, tensors of the CPU or of a CUDA device in place of arrays.",
        "out : tensor or mapping from field to tensor, optional",
        "    Where to write; nothing is recorded for differentiation then.",
        "panel : str, optional",
        f"    As of `trigraph.{op.name}`; derivatives are computed there, too.",
        "",
        "Returns",
        "-------",
        "tensor" if op.single else "NamedTuple of tensors",
        f"    As of `trigraph.{op.name}`, differentiable twice in every floating input.",
        *([] if not spec.auxiliary else [f"    Constants: {', '.join(a.name for a in spec.auxiliary)}."]),
        "",
        "Raises",
        "------",
        "TypeError, ValueError",
        f"    As `trigraph.{op.name}`.",
        "RuntimeError",
        "    Where a third derivative is asked for.",
        "",
        "Notes",
        "-----",
        *wrapped(f"Source: {spec.source}"),
    ]
    return "\n".join(lines)


def distributed_docstring(op: Operator) -> str:
    """Return the docstring of the function in `trigraph.distributed`."""
    lines = [
        op.definition.summary,
        "",
        "Parameters",
        "----------",
        *wrapped(", ".join(p for p in distributed_signature(op).parameters if p != "partition")),
        f"    As of `trigraph.{op.name}`; all ranks have to call it. Arrays with rows have",
        "    those that this rank owns; all else is the same everywhere. A Partition is the graph.",
        *(["partition : Partition", "    Of the edges that the rows belong to."] if op.graph is None else []),
        "",
        "Returns",
        "-------",
        "array" if op.single else "NamedTuple",
        f"    As `trigraph.{op.name}`: the rows that this rank owns; sums over all rows on every rank.",
        "",
        "Raises",
        "------",
        "TypeError, ValueError, RuntimeError",
        f"    As `trigraph.{op.name}`; on all ranks where arguments differ or one has met an error.",
    ]
    return "\n".join(lines)
