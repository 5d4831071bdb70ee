"""The backends, and the signatures and docstrings of the public functions.

This module uses only the standard library, because the build writes type stubs from it before the package exists.
"""

import inspect
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trigraph.table.grammar import ArrayArgument, Definition, Operator

# For each backend, the module of its functions and the library of its arrays.
BACKENDS: dict[str, tuple[str, str]] = {
    "fortran": ("trigraph.fortran", "numpy"),
    "fortran-reference": ("trigraph.fortran.reference", "numpy"),
    "pyref": ("trigraph.pyref", "numpy"),
    "gpu": ("trigraph.gpu", "cupy"),
    "gpu-host": ("trigraph.gpu", "numpy"),
}


def public_signature(op: Operator) -> inspect.Signature:
    """Return the signature of a function in `trigraph` or `trigraph.torch`, which adds `out` and `backend`."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    extra = [inspect.Parameter(name, keyword, default=None) for name in ("out", "backend")]
    return op.signature.replace(parameters=[*op.signature.parameters.values(), *extra])


def distributed_signature(op: Operator) -> inspect.Signature:
    """Return the signature of a function in `trigraph.distributed`, with `partition` if the operator has no graph."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    extra = [inspect.Parameter("partition", keyword)] if op.graph_kind is None else []
    extra.append(inspect.Parameter("backend", keyword, default=None))
    return op.signature.replace(parameters=[*op.signature.parameters.values(), *extra])


def set_function_metadata(function: Any, module: str, name: str, signature: inspect.Signature, doc: str) -> None:
    """Set the name, module, signature and docstring of a function generated from the table."""
    function.__name__ = function.__qualname__ = name
    function.__module__, function.__signature__, function.__doc__ = module, signature, doc


def wrap_paragraph(text: str, first: str = "", rest: str = "") -> list[str]:
    """Wrap a paragraph of a docstring and return its lines."""
    return textwrap.wrap(text, 112, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _wrap_indented(text: str) -> list[str]:
    return wrap_paragraph(text, "    ", "    ")


def _format_docstring_entry(name: str, type_text: str, text: str) -> list[str]:
    return [f"{name} : {type_text}", *_wrap_indented(text)]


def _describe_argument(a: ArrayArgument) -> str:
    left_out = " May be omitted if the following arguments are given by keyword." * (a.nullable and not a.keyword)
    return a.doc + left_out + " The gpu backends also take float16 and bfloat16." * a.half


def _describe_argument_type(a: ArrayArgument) -> str:
    numbers = "the graph's integers" if a.index else "float32 or float64"
    return f"array of {numbers}, shape ({', '.join(a.dims)}){', or None' if a.nullable else ''}"


def _format_raises_section(op: Operator) -> list[str]:
    """Return the docstring section that lists every exception and its causes."""
    first, graph = op.definition.inputs[0].name, op.graph_kind
    choices = ", ".join([*(a.name for a in op.attributes), *["wrt"] * op.accepts_wrt, "backend"])
    types = (
        "If an argument is missing or unknown, an array is not an ndarray of the backend's kind (NumPy or CuPy), its "
    )
    types += f"dtype does not match {first} (for indices: the graph), or another argument has the wrong type."
    values = [
        f"If an array has the wrong rank or size, or is on a different device than {first}",
        *(f"{a.name} has a number that is not positive (NumPy arrays only)" for a in op.positive_arguments),
        *(f"{a.name} has a position that is not an in-edge (NumPy arrays only)" for a in op.index_arguments),
        f"an argument has an unsupported value ({choices})",
        "out has a field that is not computed, or an array that has the wrong shape or device, is not C-contiguous, "
        "writeable and aligned, or overlaps an input or another output.",
    ]
    built = f" {graph.type_name} checks offsets and indices when it is built." if graph else ""
    sections = {
        "TypeError": types,
        "ValueError": "; ".join(values) + built,
        "MemoryError": "If memory for results or workspace is refused.",
        "ImportError": "If the backend is not installed.",
    }
    return [
        "",
        "Raises",
        "------",
        *(line for name, text in sections.items() for line in (name, *_wrap_indented(text))),
    ]


def _format_see_also_section(definition: Definition, *names: str) -> list[str]:
    """Return the docstring section that lists related functions and the layers of a definition."""
    layers = (f"torch.nn.{layer}" for layer in definition.layers)
    return ["", "See Also", "--------", *(f"trigraph.{name}" for name in (*names, *layers))]


def _format_example_section(heads: Sequence[str], statements: Iterable[str], printed: str) -> list[str]:
    """Return the docstring section with an example and the output of its last statement."""
    lines = "\n".join(
        f">>> {s}" if len(s) < 85 else textwrap.fill(s, 88, initial_indent=">>> ", subsequent_indent="...     ")
        for s in (*heads, *statements)
    )
    return ["", "Examples", "--------", lines, printed]


def _list_example_arguments(op: Operator) -> dict[str, str]:
    """Return the arguments of an example by name, as expressions; `y` is the result of fwd."""
    spec, example = op.definition, op.definition.example
    forward = Operator(f"{spec.name}_fwd", 0, spec)
    given = dict(zip(forward.parameter_names, example.arguments.split(", "), strict=False))
    cotangents = [a.name for a in op.arguments if a.name.startswith("gg_")]
    given |= dict.fromkeys(cotangents, "None") | {n: f"{given[n[3:]]}**2" for n in cotangents[:1]}
    given |= {f"ggg_{a.name}": "None" for a in spec.inputs if op.order == 3}
    for prefix in ("grad_", "ggg_grad_"):
        given |= {f"{prefix}{a.name}": "y" if forward.returns_array else f"y.{a.name}" for a in spec.outputs}
    return given


def _find_printed_field(op: Operator, given: Mapping[str, str]) -> str:
    return op.fields[0].name if op.order < 2 else [f.name for f in op.fields if f.name in given][-1]


def _format_numpy_example(op: Operator) -> list[str]:
    """Return the docstring section with an example of the function in `trigraph`."""
    example, given = op.definition.example, _list_example_arguments(op)
    argument_text = ", ".join(given[name] for name in op.parameter_names if name in given)
    if op.order == 3:
        argument_text = ", ".join(f"{n}={given[n]}" for n in op.parameter_names if given.get(n, "None") != "None")
    field = "" if op.returns_array else f".{_find_printed_field(op, given)}"
    statements = [*example.lines, f"trigraph.{op.name}({argument_text}){field}"]
    if any(name.startswith("grad_") for name in op.parameter_names):
        statements.insert(-1, f"y = trigraph.{op.definition.name}_fwd({example.arguments})")
    return _format_example_section(("import numpy as np", "import trigraph"), statements, example.prints[op.suffix])


def _format_torch_example(op: Operator) -> list[str]:
    """Return the docstring section with an example for `trigraph.torch`, which computes a gradient."""
    example = op.definition.example
    first = example.arguments.partition(",")[0]
    call = (
        f"trigraph.torch.{op.definition.name}({example.arguments}){'' if op.returns_array else f'.{op.fields[0].name}'}"
    )
    statements = [line.replace("np.array", "torch.tensor").replace("np.", "torch.") for line in example.lines]
    statements.append(f"torch.func.grad(lambda {first}: {call}.sum())({first})")
    return _format_example_section(("import torch, trigraph.torch",), statements, example.prints["torch"])


def _format_jax_example(op: Operator) -> list[str]:
    """Return the docstring section with an example for `trigraph.jax`: a gradient, as in the bwd example."""
    spec, example = op.definition, op.definition.example
    first, _, others = example.arguments.partition(", ")
    field = "" if op.returns_array or len(spec.outputs) > 1 else f".{op.fields[0].name}"
    call = f"trigraph.jax.{spec.name}(v, {others}){field}"
    half = f"({call}**2).sum() / 2" if len(spec.outputs) == 1 else f"sum((y**2).sum() / 2 for y in {call})"
    heads = "import jax, numpy as np, trigraph.jax", 'jax.config.update("jax_enable_x64", True)'
    statements = *example.lines, f"jax.grad(lambda v: {half})({first})"
    return _format_example_section(
        heads, statements, example.prints["bwd"].replace("array", "Array")[:-1] + ", dtype=float64)"
    )


def _format_distributed_example(op: Operator) -> list[str]:
    """Return the docstring section with an example for `trigraph.distributed`, with the same numbers."""
    spec, example, given = op.definition, op.definition.example, _list_example_arguments(op)
    forward, first = Operator(f"{spec.name}_fwd", 0, spec), given[spec.inputs[0].name]
    sizes: Sequence[str] = ("num_edges",)
    words, graph = {"partition": "partition=part"}, "trigraph.CSC.from_coo(edges, edges)"
    if op.graph_kind:
        name = op.graph_kind.arguments[0].name
        sizes, words, graph = op.graph_kind.sizes, {name: "part"}, given[name]
    arrays = (*op.arguments, *forward.arguments, *op.fields)
    rows = {a.name: next((d for d in a.dims if d in sizes), "") for a in arrays}
    for name, value in given.items():  # the output `y` already has this rank's rows only
        is_global = rows.get(name) and value[0] not in "Ny"
        words.setdefault(name, f'part.take({value}, "{rows[name]}")' if is_global else value)

    def format_call(op: Operator) -> str:
        return f"distributed.{op.name}({', '.join(words[n] for n in (*op.parameter_names, 'partition') if n in words)})"

    field = _find_printed_field(op, given)
    statements = [
        *example.lines,
        *([] if op.graph_kind else [f"edges = np.arange(len({first}))"]),
        f"part = distributed.partition({graph}, MPI.COMM_WORLD)",
        *([f"y = {format_call(forward)}"] if any(name.startswith("grad_") for name in op.parameter_names) else []),
        f"mine = {format_call(op)}{'' if op.returns_array else f'.{field}'}",
        f'part.collect(mine, "{rows[field]}")' if rows[field] else "mine",
    ]
    heads = ("import numpy as np, trigraph", "from mpi4py import MPI", "from trigraph import distributed")
    return _format_example_section(heads, statements, example.prints[op.suffix])


def summary(op: Operator) -> str:
    """Return a sentence that says what an operator computes."""
    operator_name = f"{op.definition.name}_{('', 'fwd', 'bwd', 'bwd2')[op.order]}"
    prefix_text = "Part of the vector" if op.restriction else "Vector"
    return f"{prefix_text}-Jacobian product of `{operator_name}`." if op.order else op.definition.summary


def docstring(op: Operator) -> str:
    """Return the docstring of the function in `trigraph`."""
    spec = op.definition
    lines = [summary(op), ""]
    formula = [line for statement in op.formula.split("; ") for line in wrap_paragraph(statement, "    ", "        ")]
    lines += ["Formula::", "", *formula, "", "Parameters", "----------"]
    described = {
        a.name: _format_docstring_entry(a.name, _describe_argument_type(a), _describe_argument(a)) for a in op.arguments
    }
    if op.graph_kind:
        for graph in op.graph_kind.arguments:
            type_text = f"{op.graph_kind.type_name}{', or None' if graph.optional else ''}"
            described[graph.name] = _format_docstring_entry(graph.name, type_text, graph.doc)
    for attribute in op.attributes:
        type_text = "{" + ", ".join(map(repr, attribute.choices)) + "}" if attribute.choices else "int"
        default = "" if attribute.is_required else f", default {attribute.default!r}"
        type_text = ("float" if attribute.real else type_text) + default
        described[attribute.name] = _format_docstring_entry(attribute.name, type_text, attribute.doc)
    lines += [line for name in op.parameter_names for line in described[name]]
    if op.accepts_wrt:
        text = "Fields to compute (default: all). Other fields are None."
        lines += _format_docstring_entry("wrt", "str or iterable of str, optional", text)
    text = "Arrays for the results: same dtype, C-contiguous, no overlap with inputs."
    lines += _format_docstring_entry("out", "array or mapping from field to array, optional", text)
    of_numpy = "fortran for NumPy arrays"
    text = f"Implementation (default: {of_numpy}, gpu for CuPy arrays)."
    lines += _format_docstring_entry("backend", "{" + ", ".join(f'"{p}"' for p in BACKENDS) + "}, optional", text)
    lines += ["", "Returns", "-------"]
    for f in op.fields:
        lines += _format_docstring_entry(f.name, f"array, shape ({', '.join(f.dims)})", f.doc)
    others = [f"{spec.name}_{suffix}" for suffix in spec.example.prints if suffix not in (op.suffix, "torch")]
    lines += [
        *_format_raises_section(op),
        *_format_see_also_section(spec, *others, f"torch.{spec.name}"),
        "",
        "Notes",
        "-----",
        *([] if op.returns_array else ["The result is a NamedTuple with these fields."]),
        *wrap_paragraph(f"Source: {spec.source}"),
        *_format_numpy_example(op),
    ]
    return "\n".join(lines)


def torch_docstring(op: Operator) -> str:
    """Return the docstring of the function in `trigraph.torch` for a forward operator."""
    spec = op.definition
    lines = [
        spec.summary,
        "",
        "Parameters",
        "----------",
        ", ".join(op.parameter_names),  # on one line, because numpydoc requires it
        f"    As for `trigraph.{op.name}`, with tensors on the CPU or a CUDA device instead of arrays.",
        "out : tensor or mapping from field to tensor, optional",
        "    Tensors for the results, which are then not recorded for differentiation.",
        "backend : str, optional",
        f"    As for `trigraph.{op.name}`; derivatives use the same backend.",
        "",
        "Returns",
        "-------",
        "tensor" if op.returns_array else "NamedTuple of tensors",
        f"    As for `trigraph.{op.name}`, differentiable to any order with respect to every floating input.",
        *([] if not spec.auxiliary else [f"    Constants: {', '.join(a.name for a in spec.auxiliary)}."]),
        "",
        "Raises",
        "------",
        "TypeError, ValueError, MemoryError, ImportError",
        f"    As for `trigraph.{op.name}`. Also TypeError for a tensor that is not dense (torch.strided), and",
        "    ValueError for a device that is not a CPU or CUDA device, or for `out` in a call that is differentiated.",
        *_format_see_also_section(spec, op.name),
        "",
        "Notes",
        "-----",
        *wrap_paragraph(f"Source: {spec.source}"),
        *_format_torch_example(op),
    ]
    return "\n".join(lines)


def jax_docstring(op: Operator) -> str:
    """Return the docstring of the function in `trigraph.jax` for a forward operator."""
    lines = [
        op.definition.summary,
        "",
        "Parameters",
        "----------",
        ", ".join(op.parameter_names),  # on one line, because numpydoc requires it
        f"    As for `trigraph.{op.name}`, with JAX arrays on the CPU. Values are not checked.",
        "",
        "Returns",
        "-------",
        "jax.Array" if op.returns_array else "NamedTuple of jax.Array",
        f"    As for `trigraph.{op.name}`, differentiable to any order with respect to every floating input.",
        "",
        "Raises",
        "------",
        "TypeError, ValueError",
        f"    As for `trigraph.{op.name}`, when it is called or traced. Also TypeError for arrays of 64 bits if JAX",
        "    has not enabled them, and ValueError for an array that is not on a CPU or was donated.",
        "NotImplementedError",
        "    If a program for a device other than a CPU calls it.",
        *_format_see_also_section(op.definition, op.name, f"torch.{op.definition.name}"),
        "",
        "Notes",
        "-----",
        *wrap_paragraph(f"Source: {op.definition.source}"),
        *_format_jax_example(op),
    ]
    return "\n".join(lines)


def distributed_docstring(op: Operator) -> str:
    """Return the docstring of the function in `trigraph.distributed`."""
    lines = [
        summary(op),
        "",
        "Parameters",
        "----------",
        ", ".join(p for p in distributed_signature(op).parameters if p != "partition"),
        f"    As for `trigraph.{op.name}`, with a Partition as the graph. All ranks must call the function.",
        "    Arrays with rows hold the rows that this rank owns; all other arguments are equal on all ranks.",
        *(["partition : Partition", "    Partition of the edges of these rows."] if op.graph_kind is None else []),
        "",
        "Returns",
        "-------",
        "array" if op.returns_array else "NamedTuple",
        f"    As for `trigraph.{op.name}`: rows that this rank owns; sums over all rows on every rank.",
        "",
        "Raises",
        "------",
        "TypeError, ValueError, MemoryError, ImportError",
        f"    As for `trigraph.{op.name}`, on the rank with the error; ValueError on all ranks if arguments differ.",
        "RuntimeError",
        "    On a rank without an error, if another rank has one.",
        *_format_see_also_section(op.definition, op.name, "distributed.partition"),
        *_format_distributed_example(op),
    ]
    return "\n".join(lines)
