"""Write the Fortran sources for programs without Python: ``trigraph fortran DIR``.

The templates are expanded for one width of vectors. From the operator table come what a template does not hold: named
constants of the choices, procedures with graphs and optional arguments (`calls.py`), a C interface of the fast path
with its header, and what arguments mean. Kinds and shapes of arguments are read from the declarations of the
procedures. Which sources a family needs, and in which order, follows from what the sources use.
"""

import graphlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from trigraph import __version__
from trigraph.fortran import calls
from trigraph.fortran.shims import INDICES, REALS, SHIM_SETS, UNSET, order_of, wrapped
from trigraph.table import DEFINITIONS, FAMILIES, SYMBOLS, Attribute, Operator
from trigraph.table.public import summary

SOURCES = Path(__file__).parent
REFUSED = 1  # status of the C interface where a size is negative, or there are no threads
C_INT = "integer(c_int), value"
MANIFEST = ".trigraph-fortran"
SHOWN = 20  # files that an error names
COMMENT = re.compile(r"^ *![^\n]*|/\*.*?\*/", re.MULTILINE | re.DOTALL)  # of lines in Fortran, or in C
# Procedures of trigraph_graphs: those with arrays, which C has too, and those with objects.
FLAT = (
    *("build_csc", "build_csc_orders", "build_edge_graph", "build_segments"),
    *("check_csc", "check_edge_graph", "check_segments"),
)
MADE = ("make_csc", "make_edge_graph", "make_segments")
# What a program compiles for a family, in Fortran with the fast path or the reference, or in C: its last sources.
WAYS = {
    "calls": ("choices.f90", "{}_calls.f90"),
    "reference": ("choices.f90", "graphs.f90", "{}.f90"),
    "C": ("graphs_c.f90", "{}_c.f90"),
}
ATHENA = ("trigraph_athena_calls.c", "trigraph_athena.f90")
C_TYPES = {"f32": "float", "f64": "double", "i32": "int32_t", "i64": "int64_t"}

FPM = """name = "trigraph"
version = "{version}"
license = "MIT"

[build]
auto-executables = false
auto-tests = false
auto-examples = false

[install]
library = true

[fortran]
implicit-typing = false
source-form = "free"

[dependencies]
openmp = "*"
"""

CMAKE = """cmake_minimum_required(VERSION 3.18)
project(trigraph VERSION {version} LANGUAGES C Fortran)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()
find_package(OpenMP COMPONENTS Fortran)

set(modules ${{CMAKE_CURRENT_BINARY_DIR}}/modules)
add_library(trigraph SHARED
    {sources})
add_library(trigraph::trigraph ALIAS trigraph)
set_target_properties(trigraph PROPERTIES Fortran_MODULE_DIRECTORY ${{modules}} LINKER_LANGUAGE Fortran)
target_compile_options(trigraph PRIVATE {march})
target_include_directories(trigraph PUBLIC
    $<BUILD_INTERFACE:${{CMAKE_CURRENT_SOURCE_DIR}}/include> $<BUILD_INTERFACE:${{modules}}>
    $<INSTALL_INTERFACE:${{CMAKE_INSTALL_INCLUDEDIR}}> $<INSTALL_INTERFACE:${{CMAKE_INSTALL_INCLUDEDIR}}/trigraph>)
if(OpenMP_Fortran_FOUND)
    target_link_libraries(trigraph PRIVATE OpenMP::OpenMP_Fortran)
endif()

set(package ${{CMAKE_INSTALL_LIBDIR}}/cmake/trigraph)
install(TARGETS trigraph EXPORT trigraph DESTINATION ${{CMAKE_INSTALL_LIBDIR}})
install(FILES include/trigraph.h DESTINATION ${{CMAKE_INSTALL_INCLUDEDIR}})
install(DIRECTORY ${{modules}}/ DESTINATION ${{CMAKE_INSTALL_INCLUDEDIR}}/trigraph)
install(EXPORT trigraph NAMESPACE trigraph:: FILE trigraph-config.cmake DESTINATION ${{package}})
write_basic_package_version_file(trigraph-config-version.cmake COMPATIBILITY SameMinorVersion)
# Relative to where the file is: `cmake --install --prefix`, and moves of the whole, change that.
file(RELATIVE_PATH include ${{CMAKE_INSTALL_FULL_LIBDIR}}/pkgconfig ${{CMAKE_INSTALL_FULL_INCLUDEDIR}})
file(CONFIGURE OUTPUT trigraph.pc @ONLY CONTENT [[
Name: trigraph
Description: graph and geometric message-passing operators
Version: @PROJECT_VERSION@
Libs: -L${{pcfiledir}}/.. -ltrigraph
Cflags: -I${{pcfiledir}}/@include@ -I${{pcfiledir}}/@include@/trigraph
]])
install(FILES ${{CMAKE_CURRENT_BINARY_DIR}}/trigraph-config-version.cmake DESTINATION ${{package}})
install(FILES ${{CMAKE_CURRENT_BINARY_DIR}}/trigraph.pc DESTINATION ${{CMAKE_INSTALL_LIBDIR}}/pkgconfig)
"""

README = """# trigraph {version}, its Fortran sources

Written by `trigraph fortran` for vectors of {vector_bytes} bytes; families: {families}. Nothing of Python is needed to
build or run them. With CMake, which installs a library, modules, header, a CMake package and `trigraph.pc`, for
pkg-config (under a prefix of its own: another such folder would replace the library):

```sh
cmake -B build -DCMAKE_INSTALL_PREFIX=$HOME/trigraph && cmake --build build -j && cmake --install build
```

With fpm, `fpm build{fpm_flags}`, or a dependency on this folder. With any compiler, the files that a program needs are
compiled in this order, and then its own. All are compiled at every change, where CMake builds the library once. A
program of two families takes the files of both commands, each once and in this order:

```sh
{commands}
```

`trigraph_FAMILY_calls` has the fast path with graphs as objects and optional arguments, `trigraph_FAMILY_fast` the same
with sizes and all arrays as arguments (OpenMP, real(sp), real(dp)), `trigraph_FAMILY` the reference (real(qp), too).
All are generic over int32 and int64 indices. `trigraph_choices` names the values of choices, `trigraph_graphs` makes
graphs and checks them. `include/trigraph.h` has the choices, the fast path, what makes graphs and the checks for C:
one function for each operator, kind of real numbers and of indices.{athena}

`{manifest}` has the digests of the files written here. `trigraph fortran` writes over these files, unless they
were changed since, and over no others. It removes those that it does not write again: name all families in one call
(`--family gat --family dimenet`).

Arrays have the entity last, as `embedding(dim, num_src_nodes)`; in C that is a row of `dim` numbers for each node.
Values of indices are 0-based, sorts are stable. Of a CSC, `offsets`, `indices` and `edge_ids` are the in-edges of the
destinations, position by position; `destinations` has the destination of each position, `src_offsets` and
`src_positions` the positions sorted by source, `row_offsets` and `row_positions` those sorted by row of the edge
arrays. Of an EdgeGraph, `src` and `dst` are sorted by source, `dst_offsets` and `dst_edge_index` are the edges sorted
by destination, `reverse_edge` is the edge that goes back (-1: none), `reverse_start` and `reverse_stop` are the range
of `dst_edge_index` that an edge leaves out with exclude = 1.

## Graphs

The module `trigraph_graphs` has objects, `type(csc_i32)`, `type(csc_i64)` and so on, that `make_csc`, `make_edge_graph`
and `make_segments` build from lists of edges or members, with all arrays that operators need. `build_...` write the
same arrays to the caller's, `check_...` read arrays that were made elsewhere once; in C, `trigraph_build_csc_i32` and
so on return the status. `status` is 0, or the first thing that is wrong:

{statuses}

1-based offsets are always found, 1-based indices only where the last node is among them.

All index arrays of a call have the kind of its graph, and all real arrays one kind; of a call that mixes them, the
compiler says only that there is no specific subroutine for the generic. Default integers go with `_i32`; `_i64`, which
these lists show, is for arrays that are int64 already. What the arrays of an object hold is checked where it is made:
values of a component that a program changes by hand are not checked again.
{unsorted}
{graphs}
## Arguments of `trigraph_FAMILY_calls`

Arrays have the shapes of Python's in reverse. Arguments below `status` are optional, and best given by keyword. A
derivative that is absent is not computed, and an absent cotangent `gg_...` or `ggg_...` is zero. `status` is 0; -k
where argument k of the list, in which `status` counts too, has a wrong shape, choice or number, or is a graph that was
not made; or positive where memory was refused. Outputs are then unchanged. Where the lists say "None", they mean that
an argument is absent.

Values in arrays are not checked, and `status` is then 0: what raises in Python gives NaN here, or a gradient of zero.
{choices}
{called}
## Arguments of the fast path and of the reference

These are the procedures of the fast path. The reference takes the same without `num_threads`, the arrays of the graph
that are marked with a star, and what fwd returned and a derivative may be given back (marked with two); arrays of the
graph marked with three stars are taken by the reference alone. Marks are no part of the names. Where a name or a shape
is another in the reference, it follows. Third derivatives (`X_bwd3`) are the fast path's alone; those of the other
operators are sums of calls of `X_bwd` and `X_bwd2` with other arguments. `i64` is that of `trigraph_kinds`.

Sizes and indices are trusted: 1-based offsets, for instance, give wrong numbers with status 0. `status` is 0, or not 0
where memory for work space was refused; the C functions return it, or {refused} where a size is negative or num_threads
is not positive.

An input that may be absent comes with a flag `has_...`: with 0, its array and its cotangents `gg_...` and `ggg_...` are
not read and may have one element. Where the lists say "None", they mean that flag; a cotangent without a flag is zeros.
An output whose `want_...` is false is not touched and may have one element. In C, `want_...` is an int, and an array is
never NULL.

{lists}
"""
UNSORTED_README = """
Edges of an edge graph in any order:

```fortran
integer(i32), allocatable :: permutation(:)      ! beside type(edge_graph_i32) :: graph

call make_edge_graph(graph, num_nodes, src, dst, status, permutation=permutation)
call agg_edge_to_edge_fwd(graph, vec(:, permutation + 1), sbf_rad(:, permutation + 1), embedding(:, permutation + 1), &
    & weights, sorted, status)
out(:, permutation + 1) = sorted                 ! in the order of src and dst again
```
"""
ATHENA_README = """
`trigraph_athena` has the operations of athena's graph neural operator with athena's arguments, as pure procedures."""


def _choices(families: Sequence[str]) -> list[tuple[str, int]]:
    """Return names for the values of choices, and these: ``mha_gat_n2n_activation_relu``, 1."""
    attributes = [(d.name, a) for d in DEFINITIONS if d.family in families for a in d.attributes]
    return [(f"{n}_{a.name}_{choice}".lower(), k) for n, a in attributes for k, choice in enumerate(a.choices)]


def _named_choices(families: Sequence[str]) -> str:
    """Return what the README says of the names of choices, nothing where families have none."""
    names = "".join(f"- `{name}` {number}\n" for name, number in _choices(families))
    return names and (
        "\nThe module `trigraph_choices` names the values of choices; the header, in capitals after `TRIGRAPH_`:\n\n"
        + names
    )


def _constants(families: Sequence[str]) -> str:
    """Source of a module that names the values of choices."""
    lines = [
        "!> Values of the choices that operators take, numbered as in the operator table.",
        "module trigraph_choices",
    ]
    lines += ["    implicit none", "    public"]
    lines += [f"    integer, parameter :: {name} = {number}" for name, number in _choices(families)]
    return "\n".join([*lines, "end module trigraph_choices", ""])


def _instances(op: Operator) -> list[tuple[str, str | None]]:
    return [(real, index) for real in REALS for index in (INDICES if op.graph else (None,))]


def _c_name(op: Operator, real: str, index: str | None) -> str:
    return f"trigraph_{op.name}_{real}" + (f"_{index}" if index else "")


def _c_function(op: Operator, real: str, index: str | None) -> str:
    """Fortran source of a C function: scalars by value, arrays by address."""
    order, (suffix, kind) = order_of(op, SHIM_SETS["fast"]), REALS[real]
    whole = INDICES[index or "i64"]
    name, procedure = _c_name(op, real, index), f"{op.name}_fast_{suffix}" + (f"_{index}" if index else "")
    text = wrapped(f"function {name}", order.names, "")
    text = text.rstrip("\n") + f" &\n    & result(status) bind(C, name='{name}')\n"
    text += "    use, intrinsic :: iso_c_binding, only: c_int, c_int32_t, c_int64_t, c_float, c_double\n"
    text += f"    use trigraph_{op.family}_fast, only: {procedure}\n    implicit none\n"
    scalars = [*order.threads, *order.dims, *order.wants]
    text += "".join(f"    integer(c_int), value :: {s}\n" for s in scalars)
    text += "".join(f"    real(c_double), value :: {n}\n" for n in order.numbers)
    text += "".join(f"    {whole}, intent(in) :: {a}(*)\n" for a in order.graph)
    for names, intent in ((order.inputs, "in"), (order.outputs, "inout")):
        text += "".join(f"    {whole if a in order.integers else kind}, intent({intent}) :: {a}(*)\n" for a in names)
    text += f"    integer(c_int) :: status\n\n    status = {REFUSED}\n"
    text += wrapped("if (min", [*order.dims, *(f"{n} - 1" for n in order.threads)]).rstrip("\n") + " < 0) return\n"
    text += f"    {UNSET}\n"
    return text + wrapped(f"call {procedure}", [*order.passed(), "status"]) + f"end function {name}\n\n"


def _c_functions(family: str) -> str:
    """Fortran source of all C functions of a family."""
    ops = (op for op in calls.EXPORTED.values() if op.family == family)
    return "".join(_c_function(op, *instance) for op in ops for instance in _instances(op))


def _c_prototype(op: Operator, real: str, index: str | None) -> str:
    order, whole = order_of(op, SHIM_SETS["fast"]), C_TYPES[index or "i64"]
    named = [f"int {n}" for n in (*order.threads, *order.dims)] + [f"double {n}" for n in order.numbers]
    named += [f"const {whole} *{a}" for a in order.graph]
    named += [f"const {whole if a in order.integers else C_TYPES[real]} *{a}" for a in order.inputs]
    named += [f"int {w}" for w in order.wants]
    named += [f"{whole if a in order.integers else C_TYPES[real]} *{a}" for a in order.outputs]
    return _prototype(_c_name(op, real, index), named)


def _prototype(name: str, arguments: list[str]) -> str:
    return wrapped(f"int {name}", arguments, "").replace("&\n    & ", "\n    ").rstrip("\n") + ";\n"


def _header(graphs: str, families: Sequence[str]) -> str:
    """Return the C header; `graphs` is the source of trigraph_graphs."""
    text = "/* The fast path of trigraph for C. README.md says what the arguments are. */\n"
    text += "#ifndef TRIGRAPH_H\n#define TRIGRAPH_H\n"
    text += '#include <stdint.h>\n#ifdef __cplusplus\nextern "C" {\n#endif\n\n'
    for op in (op for op in calls.EXPORTED.values() if op.family in families):
        prototypes = "".join(_c_prototype(op, *instance) for instance in _instances(op))
        text += f"/* {summary(op)} */\n{prototypes}\n"
    if named := "".join(f"    TRIGRAPH_{name.upper()} = {number},\n" for name, number in _choices(families)):
        text += f"/* Values of the choices that operators take. */\nenum {{\n{named}}};\n\n"
    text += "/* What makes or checks the arrays of a graph returns: 0, or the first thing that is wrong. */\nenum {\n"
    for name, (number, meaning) in _statuses(graphs).items():
        text += f"    TRIGRAPH_{name.upper()} = {number}, /* {meaning} */\n"
    text += f"}};\n{_c_graphs(graphs)[1]}\n"
    return text + "#ifdef __cplusplus\n}\n#endif\n#endif\n"


class Declared(NamedTuple):
    """An argument of a procedure as its source declares it; `shape` is that of an array, as ``(dim, num_edges)``."""

    kind: str
    shape: str
    written: bool = False
    optional: bool = False
    allocatable: bool = False


def _split(names: str) -> list[str]:
    """Split at commas that are in no parentheses."""
    return [part.strip() for part in re.split(r",(?![^()]*(?:\([^()]*\)[^()]*)*\))", names)]


def declarations(source: str, procedure: str) -> dict[str, Declared]:
    """Return the arguments of a procedure by name, in order.

    A last dimension that is open is completed by the comment before the declaration.
    """
    text = re.sub(r"&\s*\n\s*&", "", source)
    match = re.search(rf"subroutine {procedure}\(([^)]*)\)\n(.*?)\n *end subroutine {procedure}\n", text, re.DOTALL)
    assert match is not None, procedure
    declared, noted = {}, ""
    for line in match[2].splitlines():
        if noted_shape := re.fullmatch(r" *! (\(.*\))", line):
            noted = noted_shape[1]
        elif argument := re.fullmatch(r" *(\S.*), intent\((\w+)\)(.*) :: (.*)", line):
            for each in _split(argument[4]):
                name, _, shape = each.partition("(")
                shape = noted if shape.endswith("*)") else f"({shape}" if shape else ""
                marks = (word in argument[3] for word in ("optional", "allocatable"))
                declared[name] = Declared(argument[1].strip(), shape, argument[2] != "in", *marks)
    return {name: declared[name] for name in _split(match[1])}


def _procedure(op: Operator, ending: str = "") -> str:
    return f"{op.name}{ending}_dp" + ("_i64" if op.graph else "")


def _list(op: Operator, fast: str, reference: str) -> str:
    """Return the arguments of an operator, one a line, from the sources of its modules.

    The reference has no third derivatives.
    """
    order = order_of(op, SHIM_SETS["fast"])
    other_order = order_of(op, SHIM_SETS["reference"]) if op.order < 3 else order
    # Both declare their arguments in this order; Fortran's names have no case.
    names, others = [*order.names, "status"], [*other_order.names, "status"]
    declared = dict(zip(names, declarations(fast, _procedure(op, "_fast")).values(), strict=True))
    in_reference = {}
    if op.order < 3:
        in_reference = dict(zip(others, declarations(reference, _procedure(op)).items(), strict=True))
    of = {a.name: a for a in op.arguments} | {f"out_{f.name}": f for f in op.fields}
    back = {n for a in op.arguments if a.given_back for n in (a.name, f"has_{a.name}")}
    choices = {a.name: a.choices for a in op.attributes if a.choices}
    direct = [n for n in other_order.graph if n not in order.graph]
    lines = [f"### `{op.name}_fast`", "", summary(op), ""]
    for n in order._replace(graph=direct + order.graph).names:
        kind, shape, *_ = declared.get(n) or in_reference[n][1]
        marks = " ***" * (n in direct) + " **" * (n in back) + " *" * (n in order.graph and n not in other_order.graph)
        if not shape:
            text = f"`{kind}`"
            if n in choices:
                text += ", " + ", ".join(f"{k} {c}" for k, c in enumerate(choices[n]))
            elif n.startswith("has_"):
                text += f", 1 where {n.removeprefix('has_')} is given, else 0"
            elif n in SYMBOLS:
                text += f", {SYMBOLS[n].doc}"
        else:
            text = f"{kind.partition('(')[0]} array `{shape}`"
            other, (_, other_shape, *_) = in_reference.get(n, (n, Declared(kind, shape)))
            if (other.lower(), other_shape) != (n.lower(), shape):
                text += f", in the reference `{other}{other_shape if other_shape != shape else ''}`"
            text += f"; {of[n].doc}" if n in of else ""
        lines.append(f"- `{n}`{marks}: {text}")
    return "\n".join([*lines, "- `status`: `integer, intent(out)`", ""])


def _graph_list(name: str, source: str) -> str:
    """Return what the source says of a procedure of trigraph_graphs, and its arguments."""
    comment = re.findall(rf"((?: *!.*\n)+) *pure subroutine {name}_i64\(", source)[0]
    lines = [f"### `{name}`", "", re.sub(r"\n? *!. ?", " ", comment).strip(), ""]
    for n, d in declarations(source, f"{name}_i64").items():
        kind = f"integer array `{d.shape}`" if d.shape else f"`{d.kind}`"
        marks = ", written" * d.written + ", allocatable" * d.allocatable + ", optional" * d.optional
        lines.append(f"- `{n}`: {kind}{marks}")
    return "\n".join([*lines, ""])


def _call_list(op: Operator) -> str:
    """Return the arguments of an operator with graphs and optional arguments, one a line."""
    lines = [f"### `{op.name}`", "", summary(op), ""]
    for d in calls.dummies(op, "f64", "i64"):
        text = f"{d.kind.partition('(')[0]} array `({', '.join(d.shape)})`" if d.shape else f"`{d.kind}`"
        text += ", written" * (d.intent != "in") + ", optional" * d.optional
        if isinstance(d.about, Attribute):
            named = ", ".join(f"{k} {c}" for k, c in enumerate(d.about.choices))
            text += f", {named or d.about.doc}" + ("" if d.about.required else f" [{d.about.default}]")
        elif d.about:
            text += f"; {d.about.doc}"
        lines.append(f"- `{d.name}`: {text}")
    return "\n".join([*lines, ""])


def _statuses(source: str) -> dict[str, tuple[int, str]]:
    """Return what may be wrong with graphs: number and meaning by name."""
    statuses = re.findall(r"parameter, public :: (graph_\w+) = (\d+) +!< (.*)", source)
    return {name: (int(number), meaning) for name, number, meaning in statuses}


def _c_graphs(source: str) -> tuple[str, str]:
    """Return C functions that make and check graphs, in Fortran, and their prototypes."""
    functions = prototypes = ""
    for check in FLAT:
        for index in INDICES:
            declared = declarations(source, f"{check}_{index}")
            del declared["status"]
            name = f"trigraph_{check}_{index}"
            functions += wrapped(f"function {name}", list(declared), "").rstrip("\n")
            functions += f" &\n    & result(status) bind(C, name='{name}')\n"
            functions += "    use, intrinsic :: iso_c_binding, only: c_int, c_int32_t, c_int64_t\n"
            functions += f"    use trigraph_graphs, only: {check}_{index}\n    implicit none\n"
            for a, d in declared.items():
                intent = "intent(inout)" if d.written else "intent(in)"
                functions += f"    {INDICES[index]}, {intent} :: {a}(*)\n" if d.shape else f"    {C_INT} :: {a}\n"
            functions += "    integer(c_int) :: status\n\n"
            functions += wrapped(f"call {check}_{index}", [*declared, "status"]) + f"end function {name}\n\n"
            const = {a: "" if d.written else "const " for a, d in declared.items()}
            arguments = [f"{const[a]}{C_TYPES[index]} *{a}" if d.shape else f"int {a}" for a, d in declared.items()]
            prototypes += _prototype(name, arguments)
    return functions, prototypes


def _expand(template: Path, out: Path, vector_bytes: int) -> None:
    command = [sys.executable, "-m", "fypp", "-M", str(SOURCES), "-m", "operators", "-I", str(SOURCES / "common")]
    command.append(f"-DVECTOR_BYTES={vector_bytes}")
    if out.suffix == ".c":
        command.append("--no-folding")  # fypp would break long lines with an ampersand, which C does not know
    subprocess.run([*command, str(template), str(out)], check=True)


def _paths() -> dict[str, Path]:
    """Return where the sources are that do not follow from the operator table alone, by the names that they get."""
    paths = {f"{f}.f90": SOURCES / "reference" / f"{f}.fypp" for f in FAMILIES}
    for path in sorted((SOURCES / "fast").glob("*.fypp")):
        stem = f"{path.stem}_fast" if path.stem in FAMILIES else path.stem
        paths[stem if stem.endswith(".c") else f"{stem}.f90"] = path
    paths |= {name: SOURCES / "athena" / name for name in ATHENA}
    others = (
        SOURCES / "common" / "kinds.f90",
        SOURCES / "common" / "graphs.fypp",
        SOURCES / "reference" / "scaled.f90",
        SOURCES / "reference" / "dual.f90",
    )
    return paths | {f"{path.stem}.f90": path for path in others}


def _texts() -> dict[str, str]:
    """Return the text of all sources by name, templates as they are."""
    texts = {name: path.read_text("utf-8") for name, path in _paths().items()}
    texts |= {f"{f}_calls.f90": calls.module(f) for f in FAMILIES} | {f"{f}_c.f90": _c_functions(f) for f in FAMILIES}
    return texts | {"choices.f90": _constants(FAMILIES), "graphs_c.f90": "use trigraph_graphs"}


def _order(texts: Mapping[str, str], last: Iterable[str]) -> list[str]:
    """Return these sources and all that they need, in an order to compile them in.

    A source uses modules, and calls functions of C or of ``bind(C)`` by names of which a template has the beginning.
    """
    makers = {m[1]: name for name, text in texts.items() for m in re.finditer(r"^module (\w+)", text, re.MULTILINE)}
    defined = r"^(?:\w+ )*(trigraph_[a-z]\w*)[\w${}]*\("
    for name, text in texts.items():
        if name.endswith((".c", "_c.f90")):
            makers |= dict.fromkeys(re.findall(defined, text, re.MULTILINE), name)
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    todo, seen = [*last], set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            words = set(re.findall(r"\btrigraph_[a-z]\w*", re.sub(COMMENT, "", texts[name])))
            needed = sorted({makers[w] for w in words if w in makers} - {name})
            sorter.add(name, *needed)
            todo += needed
    return list(sorter.static_order())


def commands(families: Sequence[str] = FAMILIES, flags: str = "") -> str:
    """Return shell commands: for each family, those that compile a program with what it needs."""
    texts, lines = _texts(), []
    for family in families:
        modules = {"calls": f"trigraph_{family}_calls", "reference": f"trigraph_{family}, the reference", "C": "for C"}
        programs = {f"{family}: {modules[way]}": ([n.format(family) for n in last], way) for way, last in WAYS.items()}
        if family == "gno":
            programs["gno: trigraph_athena"] = ([*ATHENA], "")
        for title, (last, way) in programs.items():
            files = " ".join(f"src/{name}" for name in _order(texts, last))
            own = "-Iinclude {} program.c" if way == "C" else "{} program.f90"
            command = f"gfortran -O3{flags} -fopenmp {own.format(files)} -o program"
            lines += [f"# {title}", " \\\n    ".join(textwrap.wrap(command, 82, break_on_hyphens=False))]
    return "\n".join(lines)


def _contents(vector_bytes: int, families: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return all files, by their paths in the folder, and the sources in an order to compile them in."""
    texts, last = _texts(), [*ATHENA] if "gno" in families else []
    last += [name.format(f) for f in families for way in WAYS.values() for name in way]
    sources, paths = _order(texts, last), _paths()
    texts["choices.f90"] = _constants(families)
    with tempfile.TemporaryDirectory() as place:
        for name in (n for n in sources if n in paths and paths[n].suffix == ".fypp"):
            _expand(paths[name], Path(place, name), vector_bytes)
            texts[name] = Path(place, name).read_text("utf-8")
    graphs = texts["graphs.f90"]
    texts["graphs_c.f90"] = _c_graphs(graphs)[0]
    files = {f"src/{name}": texts[name] for name in sources}
    march = {16: "", 32: "-march=x86-64-v3", 64: "-march=x86-64-v4"}[vector_bytes]
    flags = f" {march}" if march else ""
    # An operator may lie in the module of its family, or in another that begins with the family's name.
    fast = {f: "".join(text for name, text in files.items() if name.startswith(f"src/{f}_")) for f in families}
    ops = [op for op in calls.EXPORTED.values() if op.family in families]
    values: dict[str, Any] = {
        "version": __version__,
        "vector_bytes": vector_bytes,
        "families": ", ".join(families),
        "refused": REFUSED,
        "manifest": MANIFEST,
        "march": march,
        "sources": "\n    ".join(files),
        "commands": commands(families, flags),
        "athena": ATHENA_README if "gno" in families else "",
        "unsorted": UNSORTED_README if "dimenet" in families else "",
        "statuses": "\n".join(f"- {number} (`{n}`): {text}" for n, (number, text) in _statuses(graphs).items()),
        "graphs": "\n".join(_graph_list(name, graphs) for name in (*MADE, *FLAT)),
        "choices": _named_choices(families),
        "called": "\n".join(map(_call_list, ops)),
        "lists": "\n".join(_list(op, fast[op.family], files[f"src/{op.family}.f90"]) for op in ops),
        "fpm_flags": f" --flag '{march}' --c-flag '{march}'" if march else "",
    }
    files["include/trigraph.h"] = _header(graphs, families)
    files["fpm.toml"], files["CMakeLists.txt"] = FPM.format(**values), CMAKE.format(**values)
    files["README.md"] = README.format(**values)
    return files, [f"src/{name}" for name in sources]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _listed(manifest: Path) -> dict[str, set[str]]:
    """Return the digests by name of a manifest, which has the lines of sha256sum; ValueError if it is none."""
    digests: dict[str, set[str]] = {}
    for line in manifest.read_text("utf-8").splitlines():
        digest, _, name = line.partition("  ")
        path = PurePosixPath(name)
        if not re.fullmatch("[0-9a-f]{64}", digest) or not path.parts or path.is_absolute() or ".." in path.parts:
            raise ValueError
        digests.setdefault(name, set()).add(digest)
    return digests


def _obstacles(folder: Path, files: Iterable[str]) -> tuple[dict[str, set[str]], list[str]]:
    """Return what earlier calls wrote to a folder, digests by name, and what forbids to write these files there.

    A folder is written to if it is new or empty, or has a manifest: then over files that have a digest in it, and
    where there is no file yet. Symbolic links are not followed.
    """
    manifest = folder / MANIFEST
    if not folder.exists():
        return {}, []
    if not manifest.is_file() or manifest.is_symlink():
        return {}, sorted(p.name for p in folder.iterdir())
    try:
        listed = _listed(manifest)
    except ValueError:
        return {}, [f"{MANIFEST} (not a list of digests)"]
    obstacles = []
    for name in sorted({*listed, *files}):
        for path in reversed([folder / name, *(folder / p for p in PurePosixPath(name).parents[:-1])]):
            if path.is_symlink():
                obstacles.append(f"{path.relative_to(folder)} (a symbolic link)")
            elif not path.exists():
                pass
            elif path != folder / name:
                if path.is_dir():
                    continue
                obstacles.append(f"{path.relative_to(folder)} (not a folder)")
            elif not path.is_file():
                obstacles.append(f"{name} (not a file)")
            elif name not in listed:
                obstacles.append(name)
            elif _digest(path.read_bytes()) not in listed[name]:
                obstacles.append(f"{name} (changed since)")
            break
    return listed, list(dict.fromkeys(obstacles))


def _replace(path: Path, data: bytes) -> None:
    """Write a file beside its place and move it there, so that it is never half written and no link is followed."""
    beside = path.with_name(f"{MANIFEST}-{os.getpid()}")
    try:
        with beside.open("xb") as file:
            file.write(data)
        beside.replace(path)
    except FileExistsError:
        raise
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write(folder: Path, vector_bytes: int, families: Sequence[str] = FAMILIES) -> list[Path]:
    """Write sources, C header, build files and README into a folder; return the sources in an order to compile them in.

    A vector register of the processor has 16, 32 or 64 bytes: 64 goes with ``-march=x86-64-v4``, 32 with ``-v3``, 16
    with any. Sources are those that these families need.

    Raises
    ------
    ModuleNotFoundError
        If fypp is not installed.
    FileExistsError
        If the folder has files that this function did not write, or that were changed since, or is a symbolic link that
        leads nowhere; nothing was written then.
    """
    import fypp  # type: ignore[import-untyped]  # noqa: F401  # before anything is written

    files, sources = _contents(vector_bytes, families)
    for place in (folder, *folder.parents):
        if place.is_symlink() and not place.exists():
            raise FileExistsError(f"{place} is a symbolic link that leads nowhere; expected a folder, or a new name")
    listed, obstacles = _obstacles(folder, files)
    if obstacles:
        shown = ", ".join(obstacles[:SHOWN]) + (f" and {len(obstacles) - SHOWN} more" if len(obstacles) > SHOWN else "")
        raise FileExistsError(
            f"{folder} has {shown}; expected a new or empty folder, or files that trigraph fortran wrote"
        )
    data = {name: text.encode() for name, text in files.items()}
    digests = {name: {_digest(d)} for name, d in data.items()}
    for parent in {folder, *((folder / name).parent for name in files)}:
        parent.mkdir(parents=True, exist_ok=True)
    # Old and new digests while files are written: if that is interrupted, the next call knows both.
    both = {name: listed.get(name, set()) | digests.get(name, set()) for name in {**listed, **digests}}
    _replace(folder / MANIFEST, _manifest(both))
    for name, content in data.items():
        _replace(folder / name, content)
    for name in listed.keys() - data.keys():  # sources of another version, which fpm would compile as well
        (folder / name).unlink(missing_ok=True)
    _replace(folder / MANIFEST, _manifest(digests))
    return [folder / name for name in sources]


def _manifest(digests: Mapping[str, set[str]]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, each in digests.items() for digest in sorted(each)).encode()
