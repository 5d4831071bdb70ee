"""Generate the package's type stubs from the operator table: ``python tools/stubs.py FOLDER``.

The package creates its operators from the table when it is imported, so editors and mypy cannot see them. The stubs
``__init__.pyi``, ``results.pyi``, ``torch/__init__.pyi`` and ``distributed/__init__.pyi`` describe the operators. The
build runs this file before the package exists, with only the standard library.
"""

import ast
import os
import runpy
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
runpy.run_path(str(ROOT / "fortran" / "shims.py"))["load_table"]()

from trigraph.table import DEFINITIONS, NAMED, OPERATORS, OVER_FORMS, Operator, result_type  # noqa: E402
from trigraph.table.public import (  # noqa: E402
    BACKENDS,
    distributed_docstring,
    distributed_signature,
    docstring,
    public_signature,
    torch_docstring,
)

HEADER = '"""Written by the build, from the operator table."""\n\n'
# All arrays in a call have the same dtype. CuPy arrays, which lack type information, are accepted as Any.
ARRAY = '_A = TypeVar("_A", NDArray[np.float32], NDArray[np.float64])\n'
BACKEND = "_Backend: TypeAlias = Literal[" + ", ".join(f'"{backend}"' for backend in BACKENDS) + "]\n\n"
NUMPY = "import numpy as np\nfrom numpy.typing import NDArray\n\n"


def _format_literal(value: object) -> str:
    """Return a value as source code, with strings in double quotes."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _format_parameter(name: str, op: Operator, fields: str, left_out: bool) -> str:
    """Return one line of a signature; with `left_out`, arrays that may be None default to None."""
    optional = {"wrt": f"{fields} | Iterable[{fields}]", "out": f"_A | Mapping[{fields}, _A]", "backend": "_Backend"}
    if name in optional:
        return f"    {name}: {optional[name]} | None = None,\n"
    for graph in op.graph_kind.arguments if op.graph_kind else ():
        if graph.name == name:
            kind = op.graph_kind.type_name if op.graph_kind else ""
            kind += " | NDArray[Any]" if graph.rows else ""
            return f"    {name}: {kind}{' | None = None' if graph.optional else ''},\n"
    for array in op.arguments:
        if array.name == name:
            kind = "NDArray[Any]" if array.index else "_A"
            default = " = None" if array.keyword or (left_out and array.nullable) else ""
            return f"    {name}: {kind}{' | None' if array.nullable else ''}{default},\n"
    attribute = next(a for a in op.attributes if a.name == name)
    kind = "float" if attribute.real else "SupportsIndex"
    if attribute.choices:
        kind = f"Literal[{', '.join(map(_format_literal, attribute.choices))}]"
    default = "" if attribute.is_required else f" = {_format_literal(attribute.default)}"
    return f"    {name}: {kind}{default},\n"


def _format_signature(op: Operator, fields: str, keywords: str) -> str:
    """Return the head of a function; parameters from `keywords` on are keyword-only and may be omitted."""
    text, star = f"def {op.name}(\n", False
    for name in public_signature(op).parameters:
        if name == keywords:
            text, star = text + "    *,\n", True
        text += _format_parameter(name, op, fields, star)
    return f"{text}) -> {'_A' if op.returns_array else f'{result_type(op.name).__name__}[_A]'}:"


def _format_field_alias(op: Operator) -> tuple[str, str]:
    """Return the name and definition of the type for an operator's field names."""
    name = f"_{result_type(op.name).__name__}Field"
    names = ", ".join(f'"{f.name}"' for f in op.fields)
    head = f"{name}: TypeAlias = Literal["
    return name, f"{head}{names}]" if len(head + names) < 120 else f"{head}\n    {names}\n]"


def _format_docstring_body(text: str) -> str:
    """Return a function body that consists of a docstring."""
    return textwrap.indent(f'"""{text}\n"""\n\n', "    ", lambda line: bool(line.strip()))


def _format_all_list(names: Iterable[str]) -> str:
    """Return the source of ``__all__``, the list of public names."""
    return "__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n\n"


def _format_operator_stub(op: Operator) -> str:
    """Return the stub of one operator, with two overloads (one with keywords) if arrays may be omitted."""
    fields, alias = _format_field_alias(op)
    positional = f"{_format_signature(op, fields, 'out')}\n{_format_docstring_body(docstring(op))}"
    left_out = next((a.name for a in op.arguments if a.nullable and not a.keyword), None)
    if left_out is None:
        return f"{alias}\n\n{positional}"
    return f"{alias}\n\n@overload\n{_format_signature(op, fields, left_out)} ...\n@overload\n{positional}"


def _list_public_names_and_imports() -> tuple[list[str], list[str]]:
    """Return the package's public names, and the lines that import those that are not operators."""
    tree = ast.parse((ROOT / "src" / "trigraph" / "__init__.py").read_text())
    values: dict[str, Any] = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    public = [element.value for element in values["__all__"].elts if isinstance(element, ast.Constant)]
    lines = [f"from trigraph import {name} as {name}\n" for name in ast.literal_eval(values["_MODULES"])]
    lines.append("from trigraph.testing.operators import verify as verify\n")
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            lines += [
                f"from {node.module} import {a.name} as {a.name}\n"
                for a in node.names
                if a.name in public and a.name not in OVER_FORMS
            ]
    return [*public, *NAMED], sorted([*lines, _format_result_imports()])


def _format_result_imports() -> str:
    """Return the line that imports the result types."""
    classes = sorted(result_type(op.name).__name__ for op in (NAMED | OVER_FORMS).values() if not op.returns_array)
    return "from trigraph.results import (\n" + "".join(f"    {name},\n" for name in classes) + ")\n"


def _format_package_stub() -> str:
    """Return the stub of ``__init__.py``."""
    public, imports = _list_public_names_and_imports()
    names = sorted(public, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    text = HEADER + "from collections.abc import Iterable, Mapping\n"
    text += "from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar, overload\n\n"
    text += NUMPY + "".join(imports) + "\n__version__: str\n" + _format_all_list(names) + ARRAY + BACKEND
    return text + "".join(_format_operator_stub(op) for op in (NAMED | OVER_FORMS).values()).rstrip("\n") + "\n"


def _format_results_stub() -> str:
    """Return the stub of ``results.py``."""
    text = HEADER + "from typing import Any, Generic, NamedTuple, TypeVar\n\n"
    text += NUMPY + ARRAY + "\n"
    for op in (NAMED | OVER_FORMS).values():
        if not op.returns_array:
            text += f"class {result_type(op.name).__name__}(NamedTuple, Generic[_A]):\n"
            text += f'    """What `{op.name}` returns."""\n\n'
            for f in op.fields:
                optional = " | None" if op.order or f.when else ""
                text += f"    {f.name}: {'NDArray[Any]' if f.index else '_A'}{optional}\n"
            text += "\n"
    return text.rstrip("\n") + "\n"


def _format_torch_stub() -> str:
    """Return the stub of ``torch/__init__.py``, with a function on tensors for each definition."""
    text = HEADER + "from collections.abc import Mapping\n"
    text += "from typing import Literal, NamedTuple, SupportsIndex, TypeAlias\n\nfrom torch import Tensor\n\n"
    text += "from trigraph import CSC, EdgeGraph, Segments\nfrom trigraph.torch import nn as nn\n"
    text += "from trigraph.torch.conversion import convert as convert\n"
    text += "from trigraph.torch.graphs import GraphTensors as GraphTensors\n\n"
    text += (
        _format_all_list(
            sorted(["GraphTensors", "basis_embedding", "convert", *(spec.name for spec in DEFINITIONS), "nn"])
        )
        + BACKEND
    )
    for name in (*(spec.name for spec in DEFINITIONS), "basis_embedding"):
        op = (OPERATORS | OVER_FORMS)[f"{name}_fwd"]
        result = "Tensor" if op.returns_array else f"_{result_type(op.name).__name__.removesuffix('Fwd')}"
        if not op.returns_array:
            text += f"class {result}(NamedTuple):\n"
            text += "".join(f"    {f.name}: Tensor{' | None' if f.when else ''}\n" for f in op.fields) + "\n"
        text += f"def {name}(\n"
        for parameter in public_signature(op).parameters:
            line = _format_parameter(parameter, op, "str", False)
            line = line.replace("NDArray[Any]", "Tensor").replace("_A", "Tensor")
            text += ("    *,\n" if parameter == "out" else "") + line
        text += f") -> {result}:\n{_format_docstring_body(torch_docstring(op))}"
    return text.rstrip("\n") + "\n"


def _format_distributed_stub() -> str:
    """Return the stub of ``distributed/__init__.py``, with a function on a Partition for each operator."""
    text = HEADER + "from collections.abc import Iterable, Mapping\n"
    text += "from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar\n\n"
    text += NUMPY + "from trigraph.distributed import owners as owners\n"
    places = {"divide": ("partition", "partition_pieces"), "exchange": ("Halo",), "partition": ("Partition",)}
    for module, name in ((module, name) for module, names in places.items() for name in names):
        text += f"from trigraph.distributed.{module} import {name} as {name}\n"
    text += _format_result_imports() + "\n" + ARRAY + BACKEND
    for name, op in OPERATORS.items():
        fields, alias = _format_field_alias(op)
        graphs = {g.name: " | None = None" * g.optional for g in op.graph_kind.arguments} if op.graph_kind else {}
        text += f"{alias}\n\ndef {name}(\n"
        for parameter in distributed_signature(op).parameters:
            if parameter == ("backend" if op.graph_kind else "partition"):
                text += "    *,\n"
            if parameter == "partition":
                text += "    partition: Partition,\n"
            elif parameter in graphs:
                text += f"    {parameter}: Partition{graphs[parameter]},\n"
            else:
                text += _format_parameter(parameter, op, fields, False)
        result = "_A" if op.returns_array else f"{result_type(op.name).__name__}[_A]"
        text += f") -> {result}:\n{_format_docstring_body(distributed_docstring(op))}"
    return text.rstrip("\n") + "\n"


STUBS = {
    "__init__.pyi": _format_package_stub,
    "results.pyi": _format_results_stub,
    "torch/__init__.pyi": _format_torch_stub,
    "distributed/__init__.pyi": _format_distributed_stub,
}

folder = Path(sys.argv[1])
for name, stub in STUBS.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(stub(), encoding="utf-8")
os.utime(folder)  # the folder is ninja's output, so update its time stamp
