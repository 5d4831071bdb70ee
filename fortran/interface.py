"""Write the C interface of the fast path from the operator table: header, functions and Fortran modules.

Meson calls ``interface.py write GRAPHS.f90 FOLDER``, where GRAPHS.f90 is the expanded source of the module
trigraph_graphs, and ``interface.py modules FOLDER COMPILER SOURCES...``, which compiles the sources to .mod files. The
arguments of the procedures in trigraph_graphs are parsed from their declarations.
"""

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # the package cannot be imported during the build
    import shims  # type: ignore[import-not-found]

    shims.load_table()

from trigraph.fortran import calls
from trigraph.fortran.calls import EXPORTED, list_kind_pairs, name_c_function
from trigraph.fortran.shims import INDICES, SHIM_SETS, ArgumentOrder, order_arguments, wrap_arguments
from trigraph.table import DEFINITIONS, FAMILIES, SYMBOLS, Operator
from trigraph.table.public import summary

FAST = SHIM_SETS["fast"]
# Procedures of trigraph_graphs that belong to the C interface, because they have no arguments of derived types.
FLAT_PROCEDURES = (
    *("build_csc", "build_csc_orders", "build_edge_graph", "build_segments"),
    *("check_csc", "check_edge_graph", "check_segments"),
)
C_TYPES = {"f32": "float", "f64": "double", "i32": "int32_t", "i64": "int64_t"}
INDEX_TYPES = {"i32": "int32", "i64": "int64"}
# Exclusive upper bounds of the elements of graph arrays; for arrays that are not listed, the bound is their length.
UPPER_BOUNDS = {
    "indices": "num_src_nodes",
    "edge_ids": "num_edges",
    "destinations": "num_dst_nodes",
    "input_of_triplet": "num_inputs",
    "reverse_start": "num_edges + 1",
    "reverse_stop": "num_edges + 1",
}
HEADER = """/* C interface of trigraph's fast path, described in docs/fortran.md.

   All functions take arguments in the same order: num_threads (0: the library chooses), sizes, flags and choices,
   float64 numbers, graph arrays, cotangents and inputs, flags of requested results (1 or 0), and results. Arrays are
   row-major. An optional input has a flag has_...: if it is 0, the array and its cotangents (gg_... and ggg_...) are
   not read and may be NULL. Results whose flag want_... is 0 are not written and may be NULL. Indices are 0-based. */
#ifndef TRIGRAPH_H
#define TRIGRAPH_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Status of an operator: 0, or the reason why no result was written. */
enum {
    TRIGRAPH_REFUSED = 1,        /* the system refused memory or threads */
    TRIGRAPH_WRONG_NUMBER = 2,   /* a size, a choice, a number or the number of threads is out of range */
    TRIGRAPH_WRONG_LOCATION = 3, /* a location of an extremum is not an in-edge of its destination */
    TRIGRAPH_WRONG_GRAPH = 4,    /* a graph array has an index that is out of range, or offsets that decrease */
    TRIGRAPH_NO_LEVEL = 5,       /* no build of the fast path can run on this processor, or none has this name */
};
const char *trigraph_status_text(int status);
/* Size in bytes of the last refused memory request, which is reported once; 0 if unknown. */
int64_t trigraph_refused_bytes(void);

/* Number of threads for calls with num_threads = 0. The default is OMP_NUM_THREADS or the number of processors of the
   process, but 1 for small calls and in a forked process. A number out of range returns TRIGRAPH_WRONG_NUMBER. */
int trigraph_set_num_threads(int num_threads);
int trigraph_get_num_threads(void);

/* The level of the instruction set, "v2", "v3", "v4" or "base". The default is TRIGRAPH_CPU_LEVEL or, if this is not
   set, the highest level that is built and that the processor can run; NULL selects the latter. Results of v3 and v4
   are bitwise identical. The current level is NULL if there is no build. */
int trigraph_set_cpu_level(const char *level);
const char *trigraph_get_cpu_level(void);

"""


def write_c_expression(expression: str, number: str = "double") -> str:
    """Convert an expression of the table to C. ``x**flag`` selects x or 1. Names are cast to `number`."""
    operators = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Eq: "==", ast.Gt: ">", ast.And: "&&", ast.Or: "||"}

    def write_node(node: ast.expr) -> str:
        if isinstance(node, ast.BinOp):
            left, right = write_node(node.left), write_node(node.right)
            return (
                f"({right} ? {left} : 1)"
                if isinstance(node.op, ast.Pow)
                else f"({left} {find_c_operator(node.op)} {right})"
            )
        if isinstance(node, ast.Compare):
            return f"({write_node(node.left)} {find_c_operator(node.ops[0])} {write_node(node.comparators[0])})"
        if isinstance(node, ast.BoolOp):
            return "(" + f" {find_c_operator(node.op)} ".join(map(write_node, node.values)) + ")"
        return ast.unparse(node) if isinstance(node, ast.Constant) else f"({number}){ast.unparse(node)}"

    def find_c_operator(node: Any) -> str:
        return operators[type(node)]

    return write_node(ast.parse(expression, mode="eval").body)


def write_output_count(op: Operator, wanted: str = "want_{}") -> str:
    """Return a C expression for the number of elements written; `wanted` is the format of the flag of a field."""
    terms = []
    for f in op.fields:
        conditions = [wanted.format(f.name)] if op.accepts_wrt else []
        conditions += [f"has_{f.name.removeprefix('gg_')}"] if f.optional else []
        conditions += [write_c_expression(f.when)] if f.when else []
        size = " * ".join(map(write_c_expression, f.dims))
        terms.append(f"({' && '.join(conditions)} ? {size} : 0)" if conditions else size)
    return " + ".join(terms)


def _write_prototype(name: str, arguments: list[str]) -> str:
    return wrap_arguments(f"int {name}", arguments, "").replace("&\n    & ", "\n    ").rstrip("\n")


def _write_function_head(op: Operator, real: str, index: str | None) -> str:
    order, whole = order_arguments(op, FAST), C_TYPES[index or "i64"]
    named = [f"int {n}" for n in (*order.threads, *order.dims)] + [f"double {n}" for n in order.numbers]
    named += [f"const {whole} *{a}" for a in order.graph]
    named += [f"const {whole if a in order.integers else C_TYPES[real]} *{a}" for a in order.inputs]
    named += [f"int {w}" for w in order.wants]
    named += [f"{whole if a in order.integers else C_TYPES[real]} *{a}" for a in order.outputs]
    return _write_prototype(name_c_function(op, real, index), named)


def _list_out_of_range_conditions(op: Operator, order: ArgumentOrder) -> Iterator[str]:
    """Yield C conditions that are true if a size, a choice or a number is out of range."""
    choices = {a.name: len(a.choices) for a in op.attributes if a.choices}
    for n in order.dims:
        symbol = op.definition.get_limited_symbol(n) if n in op.definition.symbols else None
        most = choices[n] - 1 if n in choices else symbol.maximum if symbol else None
        yield f"{n} < {symbol.minimum if symbol else 0}" + ("" if most is None else f" || {n} > {most}")
    yield from (f"!({n} >= 0 && {n} <= DBL_MAX)" for n in order.numbers)


def find_owning_graph(op: Operator, array: str) -> str:
    """Return the name of the graph argument that contains an array."""
    return op.graph_kind.paths.get(array, ("graph.",))[0].split(".")[0] if op.graph_kind else ""


def _list_need_conditions(op: Operator, array: str) -> list[str]:
    """Return the C condition under which a graph array is needed, as a list that is empty if it is always needed."""
    requires = [f"{a.name} == {a.choices.index(c)}" for a in op.attributes for c, _ in a.requires]
    return requires if array == "reverse_edge" else []


def _list_argument_addresses(op: Operator, order: ArgumentOrder) -> Iterator[str]:
    """Yield the address that is passed for each argument; absent arrays are passed as `&none`, not NULL."""
    yield from (f"&{n}" for n in (*order.threads, *order.dims, *order.numbers))
    conditions: dict[str, list[str]] = {n: _list_need_conditions(op, n) for n in order.graph}
    for n in order.graph:
        conditions[n] += [f"has_{find_owning_graph(op, n)}"] * (f"has_{find_owning_graph(op, n)}" in order.dims)
    for n in order.inputs:
        conditions[n] = [f"has_{o}" for o in {n, re.sub("^g+_", "", n)} if f"has_{o}" in order.dims]
    for f in op.fields:
        wanted = [f"want_{f.name}"] if op.accepts_wrt else [write_c_expression(f.when)] if f.when else []
        conditions[f"out_{f.name}"] = wanted

    def write_address(name: str) -> str:
        return f"{conditions[name][0]} ? (void *){name} : &none" if conditions[name] else f"(void *){name}"

    yield from map(write_address, (*order.graph, *order.inputs))
    yield from (f"&{n}" for n in order.wants)
    yield from map(write_address, order.outputs)


def _list_graph_validity_conditions(op: Operator, order: ArgumentOrder, index: str) -> Iterator[str]:
    """Yield C conditions that are true if the graph arrays are valid."""
    kind = op.graph_kind
    if kind is None:
        return
    lengths = [*kind.forward, *kind.fast, *kind.reverse]
    for place, (n, length) in enumerate(lengths):
        if n not in order.graph:
            continue
        owner = find_owning_graph(op, n)
        condition = (
            [f"!has_{owner}"] if owner in kind.optional_names else [f"!({c})" for c in _list_need_conditions(op, n)]
        )
        if length.endswith("+1"):
            check = f"rises_{index}({n}, {length.removesuffix('+1')}, {lengths[place + 1][1]})"
        else:
            check = f"within_{index}({n}, {length}, {-(n == 'reverse_edge')}, {UPPER_BOUNDS.get(n, length)})"
        yield " || ".join([*condition, check])


def _write_c_function(op: Operator, real: str, index: str | None, number: int) -> str:
    """Return the source of the C function that calls the procedure with this number."""
    order, whole = order_arguments(op, FAST), INDEX_TYPES[index or "i64"]
    addresses = ",\n        ".join(_list_argument_addresses(op, order))
    refused = " || ".join(_list_out_of_range_conditions(op, order))
    lines = [f"if (num_threads < 0 || {refused})", "    return TRIGRAPH_WRONG_NUMBER;"]
    if conditions := list(_list_graph_validity_conditions(op, order, whole)):
        lines += [f"if (!trusted && !(({') && ('.join(conditions)})))", "    return TRIGRAPH_WRONG_GRAPH;"]
    for n in (a.name for a in op.index_arguments if a.name in order.inputs):
        lines += [f"if (has_{n} && !locations_{whole}(offsets, num_dst_nodes, dim, {n}))"]
        lines += ["    return TRIGRAPH_WRONG_LOCATION;"]
    lines += [
        "if (num_threads == 0)",
        f"    num_threads = choose_num_threads({write_c_expression(op.operation_count_expression)}"
        f" + {write_output_count(op)});",
    ]
    lines += ["int64_t none = -1;  /* stands for absent arrays: an index, or NaN */"] * ("none" in addresses) + [
        f"void *p[] = {{{addresses}}};"
    ]
    arrays = len(order.graph) + len(order.inputs) + len(order.outputs)
    lines.append(f"return call_procedure({number}, p, {len(order.names)}, {arrays});")
    return f"{_write_function_head(op, real, index)}\n{{\n" + "".join(f"    {line}\n" for line in lines) + "}\n\n"


def _write_c_functions() -> str:
    """Return a file that is included twice: first for the names of the procedures, then for the C functions."""
    each = [(op, *instance) for op in EXPORTED.values() for instance in list_kind_pairs(op)]
    names = [name_c_function(*one).removeprefix("trigraph_") for one in each]
    text = "#ifndef FUNCTIONS\n#define FUNCTIONS(X) " + " ".join(f"X({n})" for n in names) + "\n#else\n"
    return text + "".join(_write_c_function(*one, number) for number, one in enumerate(each)) + "#endif\n"


def _list_choice_numbers() -> list[tuple[str, int]]:
    """Return the name and value of each choice, such as ``("mha_gat_n2n_activation_relu", 1)``."""
    attributes = [(d.name, a) for d in DEFINITIONS for a in d.attributes]
    return [(f"{n}_{a.name}_{choice}".lower(), k) for n, a in attributes for k, choice in enumerate(a.choices)]


def _write_choices_module() -> str:
    """Return the source of the module trigraph_choices, which names the values of choices."""
    text = "!> Values of the choices that operators take, numbered as in the operator table.\nmodule trigraph_choices\n"
    text += "    implicit none\n    public\n"
    text += "".join(f"    integer, parameter :: {name} = {number}\n" for name, number in _list_choice_numbers())
    return text + "end module trigraph_choices\n"


def _write_header(graphs: str) -> str:
    """Return the C header; `graphs` is the source of trigraph_graphs."""
    text = HEADER
    for op in EXPORTED.values():
        order, named = order_arguments(op, FAST), {a.name: a for a in op.arguments}
        lines = [summary(op)] + [f"{n}: {SYMBOLS[n].doc}" for n in order.dims if n in SYMBOLS]
        for n in order.inputs + order.outputs:
            array = named.get(n) or next(f for f in op.fields if f"out_{f.name}" == n)
            lines.append(f"{n} ({', '.join(array.dims)}): {array.doc}")
        text += "/* " + "\n   ".join(lines) + " */\n"
        text += "".join(f"{_write_function_head(op, *instance)};\n" for instance in list_kind_pairs(op)) + "\n"
    named_choices = "".join(f"    TRIGRAPH_{name.upper()} = {number},\n" for name, number in _list_choice_numbers())
    text += f"/* Values of the choices that operators take. */\nenum {{\n{named_choices}}};\n\n"
    text += "/* Status of functions that build or check graph arrays: 0, or the first error. */\nenum {\n"
    for name, number, meaning in re.findall(r"parameter, public :: (graph_\w+) = (\d+) +!< (.*)", graphs):
        text += f"    TRIGRAPH_{name.upper()} = {number}, /* {meaning} */\n"
    return text + f"}};\n{_write_graph_functions(graphs)[1]}\n#ifdef __cplusplus\n}}\n#endif\n#endif\n"


class DeclaredArgument(NamedTuple):
    """Declaration of an argument of a procedure."""

    is_array: bool
    written: bool


def parse_argument_declarations(source: str, procedure: str) -> dict[str, DeclaredArgument]:
    """Return the arguments of a procedure of trigraph_graphs, keyed by name, in order."""
    text = re.sub(r"&\s*\n\s*&", "", source)
    match = re.search(rf"subroutine {procedure}\(([^)]*)\)\n(.*?)\n *end subroutine {procedure}\n", text, re.DOTALL)
    assert match is not None, procedure
    declared = {}
    for intent, names in re.findall(r"^ *\S.*, intent\((\w+)\).* :: (.*)", match[2], re.MULTILINE):
        for name in re.split(r",(?![^()]*\))", names):
            declared[name.partition("(")[0].strip()] = DeclaredArgument("(" in name, intent != "in")
    return {name: declared[name] for name in re.split(r",\s*", match[1].strip())}


def _write_graph_functions(source: str) -> tuple[str, str]:
    """Return the Fortran source of the bind(C) functions that build and check graphs, and their C prototypes."""
    functions = prototypes = ""
    for procedure in FLAT_PROCEDURES:
        for index in INDICES:
            declared = parse_argument_declarations(source, f"{procedure}_{index}")
            del declared["status"]
            name = f"trigraph_{procedure}_{index}"
            functions += wrap_arguments(f"function {name}", list(declared), "").rstrip("\n")
            functions += f" &\n    & result(status) bind(C, name='{name}')\n"
            functions += "    use, intrinsic :: iso_c_binding, only: c_int, c_int32_t, c_int64_t\n"
            functions += f"    use trigraph_graphs, only: {procedure}_{index}\n    implicit none\n"
            for a, d in declared.items():
                array = f"{INDICES[index]}, intent({'inout' if d.written else 'in'}) :: {a}(*)"
                functions += f"    {array if d.is_array else f'integer(c_int), value :: {a}'}\n"
            functions += "    integer(c_int) :: status\n\n"
            functions += wrap_arguments(f"call {procedure}_{index}", [*declared, "status"]) + f"end function {name}\n\n"
            const = {a: "" if d.written else "const " for a, d in declared.items()}
            typed = {a: f"{const[a]}{C_TYPES[index]} *{a}" if d.is_array else f"int {a}" for a, d in declared.items()}
            prototypes += _write_prototype(name, [*typed.values()]) + ";\n"
    return functions, prototypes


def generate_interface_files(graphs: str) -> dict[str, str]:
    """Return the contents of all files, keyed by name; `graphs` is the source of trigraph_graphs."""
    files = {
        "trigraph.h": _write_header(graphs),
        "interface.inc": _write_c_functions(),
        "graphs_c.f90": _write_graph_functions(graphs)[0],
    }
    files |= {
        "choices.f90": _write_choices_module(),
        **{f"{f}_calls.f90": calls.write_calls_module(f) for f in FAMILIES},
    }
    return {name: re.sub(" +\n", "\n", text) for name, text in files.items()}


def main() -> None:
    """Run the command line that meson uses."""
    what, *arguments = sys.argv[1:]
    if what == "write":
        for name, text in generate_interface_files(Path(arguments[0]).read_text("utf-8")).items():
            Path(arguments[1], name).write_text(text, "utf-8")
        return
    folder, *command = arguments
    with tempfile.TemporaryDirectory() as place:  # empty, because compilers do not rewrite an unchanged .mod file
        absolute = [str(Path(a).resolve()) if a.endswith(".f90") else a for a in command]
        subprocess.run([*absolute, "-fsyntax-only"], check=True, cwd=place)
        for path in Path(place).iterdir():
            shutil.copy(path, folder)


if __name__ == "__main__":
    main()
