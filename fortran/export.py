"""Write the Fortran sources for programs without Python: ``trigraph fortran DIR``.

The templates are expanded for one width of vectors. From the operator table come what a template does not hold: named
constants of the choices, a C interface of the fast path with its header, and the lists of arguments.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from trigraph import __version__
from trigraph.fortran.shims import INDICES, REALS, SHIM_SETS, UNSET, order_of, wrapped
from trigraph.table import DEFINITIONS, OPERATORS, SYMBOLS, Operator

SOURCES = Path(__file__).parent
FAMILIES = tuple(dict.fromkeys(spec.family for spec in DEFINITIONS))
REFUSED = 1  # status of the C interface where a size is negative, or there are no threads
# What a program with athena's arguments is compiled from; the last two lie in the folder athena.
ATHENA = ("kinds.f90", "products.f90", "gno_fast.f90", "gno_c.f90", "trigraph_athena_calls.c", "trigraph_athena.f90")
C_TYPES = {"f32": "float", "f64": "double", "i32": "int32_t", "i64": "int64_t"}

FPM = """name = "trigraph"
version = "{version}"
license = "MIT"

[build]
auto-executables = false
auto-tests = false
auto-examples = false

[fortran]
implicit-typing = false
source-form = "free"

[dependencies]
openmp = "*"
"""

MESON = """project(
    'trigraph', 'c', 'fortran', version: '{version}', default_options: ['buildtype=release', 'fortran_std=none'],
)
openmp = dependency('openmp', language: 'fortran', required: false)
trigraph = library(
    'trigraph',
    {sources},
    c_args: [{flags}],
    fortran_args: [{flags}],
    link_language: 'fortran',
    dependencies: openmp,
    install: true,
)
trigraph_dep = declare_dependency(
    link_with: trigraph, include_directories: include_directories('include'), dependencies: openmp,
)
install_headers('include/trigraph.h')
"""

README = """# trigraph {version}, its Fortran sources

Written by `trigraph fortran` for vectors of {vector_bytes} bytes. Nothing of Python is needed to build or run them:
`fpm build{fpm_flags}`, `meson setup build && meson compile -C build`, or any compiler, in this order:

```sh
gfortran -O3{flags} -fopenmp -c {files}
```

`trigraph_FAMILY` is a reference module (real(sp), real(dp), real(qp)), `trigraph_FAMILY_fast` the fast path (OpenMP,
real(sp), real(dp)), both generic over int32 and int64 indices. `trigraph_choices` names the values of choices.
`include/trigraph.h` declares the fast path for C: one function for each operator, kind of real numbers and of indices.
`trigraph_athena` has the operations of athena's graph neural operator with athena's arguments, as pure procedures. A
program that uses it alone needs no more than these files:

```sh
gfortran -O3{flags} -fopenmp -c {athena_files}
```

Arrays have the entity last, as `embedding(dim, num_src_nodes)`; in C that is a row of `dim` numbers for each node.
`status` is 0, or not 0 where memory for work space was refused; the C functions return it, or {refused} where a size is
negative or num_threads is not positive. Other sizes, and indices, are trusted.

Values of indices are 0-based, sorts are stable. Of a CSC, `offsets`, `indices` and `edge_ids` are the in-edges of the
destinations, position by position; `destinations` has the destination of each position, `src_offsets` and
`src_positions` the positions sorted by source, `row_offsets` and `row_positions` those sorted by row of the edge
arrays. Of an EdgeGraph, `src` and `dst` are sorted by source, `dst_offsets` and `dst_edge_index` are the edges sorted
by destination, `reverse_edge` is the edge that goes back (-1: none), `reverse_start` and `reverse_stop` are the range
of `dst_edge_index` that an edge leaves out with exclude = 1.

An input that may be absent comes with a flag `has_...`: with 0, its array and its cotangent `gg_...` are not read and
may have one element. Where the lists say "None", they mean that flag; a cotangent without a flag is zeros. An output
whose `want_...` is false is not touched and may have one element. In C, `want_...` is an int, and an array is never
NULL.

## Arguments of the fast path

The reference takes the same without `num_threads`, the arrays of the graph that are marked with a star, and what fwd
returned and a derivative may be given back (marked with two). Marks are no part of the names.

{lists}
"""


def _constants() -> str:
    """Source of a module that names the values of choices: ``mha_gat_n2n_activation_relu = 1``."""
    lines = [
        "!> Values of the choices that operators take, numbered as in the operator table.",
        "module trigraph_choices",
    ]
    lines += ["    implicit none", "    public"]
    for spec in DEFINITIONS:
        for a in (a for a in spec.attributes if a.choices):
            for number, choice in enumerate(a.choices):
                lines.append(f"    integer, parameter :: {spec.name}_{a.name}_{str(choice).lower()} = {number}")
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
    arguments = [*order.threads, *order.dims, *order.numbers, *order.graph, *order.inputs, *order.wants, *order.outputs]
    text = wrapped(f"function {name}", arguments, "")
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
    ops = (op for op in OPERATORS.values() if op.family == family)
    return "".join(_c_function(op, *instance) for op in ops for instance in _instances(op))


def _c_prototype(op: Operator, real: str, index: str | None) -> str:
    order, whole = order_of(op, SHIM_SETS["fast"]), C_TYPES[index or "i64"]
    named = [f"int {n}" for n in (*order.threads, *order.dims)] + [f"double {n}" for n in order.numbers]
    named += [f"const {whole} *{a}" for a in order.graph]
    named += [f"const {whole if a in order.integers else C_TYPES[real]} *{a}" for a in order.inputs]
    named += [f"int {w}" for w in order.wants]
    named += [f"{whole if a in order.integers else C_TYPES[real]} *{a}" for a in order.outputs]
    return wrapped(f"int {_c_name(op, real, index)}", named, "").replace("&\n    & ", "\n    ").rstrip("\n") + ";\n"


def _header() -> str:
    text = "/* The fast path of trigraph for C. README.md says what the arguments are. */\n"
    text += "#ifndef TRIGRAPH_H\n#define TRIGRAPH_H\n"
    text += '#include <stdint.h>\n#ifdef __cplusplus\nextern "C" {\n#endif\n\n'
    for op in OPERATORS.values():
        prototypes = "".join(_c_prototype(op, *instance) for instance in _instances(op))
        text += f"/* {op.definition.summary} */\n{prototypes}\n"
    return text + "#ifdef __cplusplus\n}\n#endif\n#endif\n"


def _shape(dims: tuple[str, ...]) -> str:
    return f"({', '.join(reversed(dims))})"


def _list(op: Operator) -> str:
    """Return the arguments of an operator, one a line."""
    order = order_of(op, SHIM_SETS["fast"])
    of = {a.name: a for a in op.arguments} | {f"out_{f.name}": f for f in op.fields}
    reverse = {n for n, _ in (op.graph.fast + op.graph.reverse)} if op.graph else set()
    lengths = dict((*op.graph.forward, *op.graph.fast, *op.graph.reverse)) if op.graph else {}
    back = {a.name for a in op.arguments if a.given_back}
    choices = {a.name: a.choices for a in op.attributes if a.choices}
    lines = [f"### `{op.name}_fast`", "", op.definition.summary, ""]
    for n in (*order.threads, *order.dims):
        if n in choices:
            what = "`integer`, " + ", ".join(f"{k} {c}" for k, c in enumerate(choices[n]))
        elif n.startswith("has_"):
            what = f"`integer`, 1 where {n.removeprefix('has_')} is given, else 0" + "**" * (n[4:] in back)
        else:
            what = "`integer`" + (f", {SYMBOLS[n].doc}" if n in SYMBOLS else "")
        lines.append(f"- `{n}`: {what}")
    lines += [f"- `{n}`: `real(dp)`" for n in order.numbers]
    lines += [f"- `{n}`{' *' * (n in reverse)}: integer array `({lengths[n]})`" for n in order.graph]
    for names in (order.inputs, order.outputs):
        if names is order.outputs:
            lines += [f"- `{w}`: `logical`" for w in order.wants]
        for n in names:
            kind = "integer" if n in order.integers else "real"
            lines.append(f"- `{n}`{' **' * (n in back)}: {kind} array `{_shape(of[n].dims)}`; {of[n].doc}")
    return "\n".join([*lines, "- `status`: `integer, intent(out)`", ""])


def _expand(template: Path, out: Path, vector_bytes: int) -> None:
    command = [sys.executable, "-m", "fypp", "-I", str(SOURCES / "common"), f"-DVECTOR_BYTES={vector_bytes}"]
    if out.suffix == ".c":
        command.append("--no-folding")  # fypp would break long lines with an ampersand, which C does not know
    subprocess.run([*command, str(template), str(out)], check=True)


def write(folder: Path, vector_bytes: int) -> list[Path]:
    """Write sources, C header, build files and README into a folder; return the sources in an order to compile them in.

    A vector register of the processor has 16, 32 or 64 bytes: 64 goes with ``-march=x86-64-v4``, 32 with ``-v3``, 16
    with any. ModuleNotFoundError if fypp is not installed.
    """
    import fypp  # type: ignore[import-untyped]  # noqa: F401  # before anything is written

    src = folder / "src"
    src.mkdir(parents=True, exist_ok=True)
    (folder / "include").mkdir(exist_ok=True)
    copied = ("common/kinds.f90", "reference/scaled.f90")
    written = [Path(shutil.copy(SOURCES / name, src)) for name in copied]
    templates = [("fast/rows.c", "rows.c"), ("fast/dimenet_features.c", "dimenet_features.c")]
    templates += [("fast/products", "products.f90"), ("fast/pieces", "pieces.f90")]
    templates += [pair for f in FAMILIES for pair in ((f"reference/{f}", f"{f}.f90"), (f"fast/{f}", f"{f}_fast.f90"))]
    for template, name in templates:
        written.append(src / name)
        _expand(SOURCES / f"{template}.fypp", written[-1], vector_bytes)
    texts = {"choices": _constants()} | {f"{f}_c": _c_functions(f) for f in FAMILIES}
    for name, text in texts.items():
        written.append(src / f"{name}.f90")
        written[-1].write_text(text)
    written += [Path(shutil.copy(SOURCES / "athena" / name, src)) for name in ATHENA[-2:]]
    (folder / "include" / "trigraph.h").write_text(_header())
    names = [str(path.relative_to(folder)) for path in written]
    march = {16: "", 32: "-march=x86-64-v3", 64: "-march=x86-64-v4"}[vector_bytes]
    values: dict[str, Any] = {
        "version": __version__,
        "vector_bytes": vector_bytes,
        "refused": REFUSED,
        "files": " ".join(names),
        "athena_files": " ".join(f"src/{name}" for name in ATHENA),
        "lists": "\n".join(_list(op) for op in OPERATORS.values()),
    }
    (folder / "fpm.toml").write_text(FPM.format(**values))
    flags = f"'{march}'" if march else ""
    sources = ",\n    ".join(f"'{name}'" for name in names)
    (folder / "meson.build").write_text(MESON.format(**values, flags=flags, sources=sources))
    fpm_flags = f" --flag '{march}' --c-flag '{march}'" if march else ""
    (folder / "README.md").write_text(README.format(**values, flags=f" {march}" if march else "", fpm_flags=fpm_flags))
    return written
