"""Write the modules `trigraph_FAMILY_calls`, which call the C interface with graph objects and optional arguments.

Each procedure is named after its operator and accepts the same arguments as the Python function: graphs, arrays (with
dimensions in the reverse order of the operator table) and attributes. It reads sizes from the arrays, checks shapes and
numbers, and passes the caller's arrays to the C function without copying them.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from trigraph import table
from trigraph.fortran.operators import write_fortran_expression
from trigraph.fortran.shims import INDICES, REALS, SHIM_SETS, order_arguments, wrap_arguments
from trigraph.table import Attribute, Operator
from trigraph.table.public import summary

EXPORTED: dict[str, Operator] = SHIM_SETS["fast"].select_operators(table)
TYPES = {"CSC": "csc", "EdgeGraph": "edge_graph", "Segments": "segments"}  # types of the module trigraph_graphs
HEAD = """!> The fast path of {family} with graph objects of trigraph_graphs and with optional arguments.
!!
!! Arrays have the dimensions of Python's arrays in reverse order. Absent derivatives are not computed, and absent
!! cotangents are zero. status is 0, -k if argument k has a wrong shape, choice or number or is an empty graph, or a
!! positive status of trigraph.h, for example if memory was refused. Outputs are unchanged unless status is 0.
module trigraph_{family}_calls
    use trigraph_kinds, only: sp, dp, i32, i64
    use trigraph_graphs, only: has_length{types}
    use, intrinsic :: iso_c_binding, only: c_int, c_int32_t, c_int64_t, c_float, c_double
    implicit none
    private
"""


def list_kind_pairs(op: Operator) -> list[tuple[str, str | None]]:
    """Return the pairs of real kind and index kind for which an operator has C functions."""
    return [(real, index) for real in REALS for index in (INDICES if op.graph_kind else (None,))]


def name_c_function(op: Operator, real: str, index: str | None) -> str:
    """Return the name of the C function of an operator for a real kind and an index kind."""
    return f"trigraph_{op.name}_{real}" + (f"_{index}" if index else "")


def _write_c_interface(op: Operator, real: str, index: str | None) -> str:
    """Return the Fortran interface block of the C function of an operator."""
    order, whole = order_arguments(op, SHIM_SETS["fast"]), INDICES[index or "i64"]
    name = name_c_function(op, real, index)
    text = wrap_arguments(f"function {name}", order.names, "        ").rstrip("\n")
    text += f" &\n            & result(status) bind(C, name='{name}')\n"
    lines = ["import :: c_int, c_int32_t, c_int64_t, c_float, c_double"]
    lines += [f"integer(c_int), value :: {n}" for n in (*order.threads, *order.dims, *order.wants)]
    lines += [f"real(c_double), value :: {n}" for n in order.numbers]
    lines += [f"{whole}, intent(in) :: {n}(*)" for n in order.graph]
    for names, intent in ((order.inputs, "in"), (order.outputs, "inout")):
        kinds = {n: whole if n in order.integers else REALS[real][1] for n in names}
        lines += [f"{kind}, intent({intent}) :: {n}(*)" for n, kind in kinds.items()]
    body = "".join(f"            {line}\n" for line in [*lines, "integer(c_int) :: status"])
    return f"{text}{body}        end function {name}\n"


class DummyArgument(NamedTuple):
    """Dummy argument of a procedure. `table_entry` is the entry of the table: a graph, array, output or attribute."""

    name: str
    kind: str
    intent: str
    optional: bool
    table_entry: Any = None
    shape: tuple[str, ...] = ()  # dimensions of an array in Fortran order

    @property
    def declaration(self) -> str:
        """Fortran declaration of the argument."""
        array = f"({', '.join(':' * len(self.shape))})" if self.shape else ""
        contiguous, optional = ", contiguous" * bool(array), ", optional" * self.optional
        target = ", target" * (self.optional and bool(array or self.kind.startswith("type")))
        return f"{self.kind}, intent({self.intent}){contiguous}{target}{optional} :: {self.name}{array}"


def _find_base_input(name: str) -> str:
    """Return the name of the input that a cotangent or derivative belongs to, or the name itself."""
    return re.sub("^(out_)?(gg_|ggg_)?", "", name)


def _convert_to_fortran(dim: str) -> str:
    """Convert an expression from the table to Fortran."""
    return write_fortran_expression(ast.parse(dim, mode="eval").body)


def list_dummy_arguments(op: Operator, real: str, index: str | None) -> list[DummyArgument]:
    """Return the dummy arguments: required ones in the order of the Python function, the status, then optional ones."""
    kinds = {False: f"real({REALS[real][0]})", True: f"integer({index})"}
    found = []
    if op.graph_kind:
        kind = f"type({TYPES[op.graph_kind.type_name]}_{index})"
        found += [DummyArgument(g.name, kind, "in", g.optional, g) for g in op.graph_kind.arguments]
    for a in SHIM_SETS["fast"].select_arguments(op):
        shape = tuple(map(_convert_to_fortran, reversed(a.dims)))
        found.append(DummyArgument(a.name.lower(), kinds[a.index], "in", a.nullable, a, shape))
    for a in (a for a in op.attributes if not a.requests):
        found.append(DummyArgument(a.name, "real(dp)" if a.real else "integer", "in", not a.is_required, a))
    for f in op.fields:
        shape = tuple(map(_convert_to_fortran, reversed(f.dims)))
        optional = op.accepts_wrt or f in op.definition.auxiliary
        found.append(DummyArgument(f"out_{f.name.lower()}", kinds[f.index], "inout", optional, f, shape))
    required, others = ([d for d in found if d.optional == optional] for optional in (False, True))
    threads = DummyArgument("num_threads", "integer", "in", True)
    return [*required, DummyArgument("status", "integer", "out", False), *others, threads]


class _ProcedureWriter:
    """Writes the source of one procedure."""

    def __init__(self, op: Operator, real: str, index: str | None) -> None:
        self.op, self.index, self.real, self.instance = op, index, REALS[real][0], (real, index)
        self.dummies = list_dummy_arguments(op, real, index)
        self.ending = f"_{self.real}" + (f"_{index}" if index else "")
        self.order = order_arguments(op, SHIM_SETS["fast"])
        # Optional attributes have local copies; optional arrays and graphs have pointers.
        self.local = {
            d.name for d in self.dummies if d.optional and (isinstance(d.table_entry, Attribute) or not d.table_entry)
        }
        self.pointers = [d for d in self.dummies if d.optional and d.shape]
        self.argument_numbers = {d.name: place for place, d in enumerate(self.dummies, 1)}
        self.bound: dict[str, str] = {}  # for each size, the array whose shape determines it

    def replace_optional_attributes(self, expression: str) -> str:
        """Return an expression in which local copies replace optional attributes."""
        return re.sub(r"[A-Za-z_]\w*", lambda m: f"{m[0]}_" if m[0] in self.local else m[0], expression)

    def list_graph_components(self, name: str) -> list[tuple[str, str]]:
        """Return the (argument, component) pairs that can supply a graph size or array, in order of priority."""
        assert self.op.graph_kind is not None
        paths = self.op.graph_kind.paths.get(name, (f"graph.{name}",))
        return [(path.split(".")[0], path.split(".")[1]) for path in paths]

    def write_argument_check(self, name: str, condition: str, given: str = "") -> Iterator[str]:
        """Return lines that report a wrong argument if `condition` is true and `given`, if not empty, is also true."""
        yield f"status = -{self.argument_numbers[name]}"
        if given:
            yield from (f"if ({given}) then", f"    if ({condition}) return", "end if")
        else:
            yield f"if ({condition}) return"

    def write_scalar_assignments(self) -> Iterator[str]:
        """Yield lines that set flags, attributes and sizes."""
        yield "num_threads_ = 0"  # 0: the library chooses the number of threads
        for a in (a for a in self.op.attributes if a.name in self.local):
            default = a.choices.index(a.default) if a.choices else a.default
            yield f"{a.name}_ = {default}" + "_dp" * a.real
        yield from (f"if (present({name})) {name}_ = {name}" for name in sorted(self.local))
        for name in SHIM_SETS["fast"].list_optional_arguments(self.op):
            yield f"has_{name} = merge(1, 0, present({name}))"
        for name in self.op.graph_kind.sizes if self.op.graph_kind else ():
            *others, (last, component) = self.list_graph_components(name)
            yield f"{name} = {last}%{component}"
            yield from (f"if (present({first})) {name} = {first}%{other}" for first, other in others)
        yield from self.write_sizes_from_shapes()

    def write_sizes_from_shapes(self) -> Iterator[str]:
        """Yield lines that determine the remaining sizes from dimensions of arrays."""
        symbols = set(self.op.definition.symbols)
        known = {a.name for a in self.op.attributes} | set(self.op.graph_kind.sizes if self.op.graph_kind else ())
        given = [d for a in self.op.size_binding_order for d in self.dummies if d.table_entry is a and not d.optional]
        while unknown := symbols - known:
            axes = ((d, axis, dim) for d in given for axis, dim in enumerate(d.shape, 1))
            d, axis, dim = next(a for a in axes if len(unknown & set(re.findall(r"\w+", a[2]))) == 1)
            (name,) = unknown & set(re.findall(r"\w+", dim))
            length, at = f"size({d.name}, {axis})", [re.sub(rf"\b{name}\b", str(n), dim) for n in (0, 1)]
            if dim != name:  # the dimension is a linear function of the unknown size
                zero, one = map(self.replace_optional_attributes, at)
                length = f"({length} - ({zero}))/max(1, {one} - ({zero}))"
            yield f"{name} = {length}"
            known.add(name)
            self.bound[name] = d.name

    def write_argument_checks(self) -> Iterator[str]:
        """Yield lines that reject invalid graphs, attributes, sizes and shapes."""
        op = self.op
        if op.graph_kind:
            lengths = dict(op.graph_kind.forward + op.graph_kind.fast + op.graph_kind.reverse)
            for graph in op.graph_kind.arguments:
                parts = ((*self.list_graph_components(name)[0], lengths[name]) for name in self.order.graph)
                whole = [f"has_length({g}%{part}, {length})" for g, part, length in parts if g == graph.name]
                given = f"present({graph.name})" * graph.optional
                yield from self.write_argument_check(graph.name, f".not. ({' .and. '.join(whole)})", given)
        for a in (a for a in op.attributes if not a.requests):
            name = self.replace_optional_attributes(a.name)
            if a.real:
                yield from self.write_argument_check(a.name, f".not. ({name} >= 0 .and. {name} <= huge({name}))")
            elif a.choices:
                yield from self.write_argument_check(a.name, f"{name} < 0 .or. {name} > {len(a.choices) - 1}")
        for name in op.definition.symbols:
            symbol, attribute = op.definition.get_limited_symbol(name), name in {a.name for a in op.attributes}
            wrong_argument = name if attribute else self.bound.get(name)
            if wrong_argument and (symbol.minimum > 0 or symbol.maximum is not None):
                own = self.replace_optional_attributes(name)
                above = "" if symbol.maximum is None else f" .or. {own} > {symbol.maximum}"
                yield from self.write_argument_check(wrong_argument, f"{own} < {symbol.minimum}{above}")
        for d in (d for d in self.dummies if d.shape):
            base = _find_base_input(d.name)
            absent = (
                f"has_{base} == 0 .or. "
                if d.optional and base != d.name and base in op.definition.optional_names
                else ""
            )
            wrong = f"{absent}any(shape({d.name}) /= [{', '.join(map(self.replace_optional_attributes, d.shape))}])"
            yield from self.write_argument_check(d.name, wrong, f"present({d.name})" if d.optional else "")
        yield from self.write_argument_check("num_threads", "num_threads < 1", "present(num_threads)")

    def write_absent_pointers(self) -> Iterator[str]:
        """Yield lines that point absent inputs to zeros, and absent outputs that are written anyway to local arrays."""
        if not self.pointers and not (self.op.graph_kind and self.op.graph_kind.optional_names):
            return
        yield "spare_size = 1"
        for d in self.pointers:
            if d.name.startswith(("gg_", "ggg_")):
                size = "*".join(f"int({self.replace_optional_attributes(s)}, i64)" for s in d.shape)
                base = _find_base_input(d.name)
                size += f"*has_{base}" if base in self.op.definition.optional_names else ""
                yield f"if (.not. present({d.name})) spare_size = max(spare_size, {size})"
        yield from (
            "allocate (spare(spare_size), source=0.0_" + self.real + ", stat=status)",
            "if (status /= 0) return",
        )
        for d in self.pointers:
            integers = d.kind.startswith("integer")
            if self.is_always_written(d):
                size = "*".join(f"int({self.replace_optional_attributes(s)}, i64)" for s in d.shape)
                exists = self.replace_optional_attributes(d.table_entry.when)
                yield f"spare_size = merge(1_i64, {size}, present({d.name}) .or. .not. ({exists}))"
                yield from (f"allocate (own_{d.name}(spare_size), stat=status)", "if (status /= 0) return")
                yield f"to_{d.name} => own_{d.name}"
            else:
                yield f"to_{d.name} => {'no_index' if integers else 'spare'}"
            yield f"if (present({d.name})) to_{d.name}(1:size({d.name}, kind=i64)) => {d.name}"
        for name, graph, component in self.list_optional_graph_arrays():
            yield f"to_{name} => no_index"
            yield f"if (present({graph})) to_{name} => {graph}%{component}"

    def is_always_written(self, d: DummyArgument) -> bool:
        """Return whether an optional output is written even if it is absent (depending only on choices)."""
        return d.intent == "inout" and not self.op.order and d.table_entry.when not in self.op.definition.request_names

    def list_optional_graph_arrays(self) -> list[tuple[str, str, str]]:
        """Return a (name, graph, component) triple for each array of an optional graph."""
        if not self.op.graph_kind:
            return []
        parts = [(name, *self.list_graph_components(name)[0]) for name in self.order.graph]
        return [part for part in parts if part[1] in self.op.graph_kind.optional_names]

    def list_actual_arguments(self) -> list[str]:
        """Return the actual arguments for the C function."""
        order, pointers = (
            self.order,
            {d.name for d in self.pointers} | {p[0] for p in self.list_optional_graph_arrays()},
        )
        requests = {f.when: f.name for f in self.op.fields}
        words = {
            n: f"merge(1, 0, present(out_{requests[n]}))" for n in self.op.definition.request_names if n in requests
        }
        words |= {w: f"merge(1, 0, present({w.replace('want_', 'out_', 1).lower()}))" for w in order.wants}
        words |= {n: "%".join(self.list_graph_components(n)[0]) for n in order.graph}
        words |= {n: f"to_{n}" for n in pointers}
        lower = [n if n in words else n.lower() for n in order.names]
        return [words.get(n, self.replace_optional_attributes(n)) for n in lower]

    def write_local_declarations(self) -> Iterator[str]:
        attributes = {a.name for a in self.op.attributes}
        whole = [n for n in self.op.definition.symbols if n not in attributes]
        whole += [f"has_{n}" for n in SHIM_SETS["fast"].list_optional_arguments(self.op)]
        whole += [f"{n}_" for n in sorted(self.local - set(self.op.real_attribute_names))]
        yield f"integer :: {', '.join(whole)}"
        yield from (f"real(dp) :: {n}_" for n in self.op.real_attribute_names if n in self.local)
        parts = self.list_optional_graph_arrays()
        if self.pointers or parts:
            yield "integer(i64) :: spare_size"
            yield f"real({self.real}), allocatable, target :: spare(:)"
        if parts or any(d.kind.startswith("integer") and not self.is_always_written(d) for d in self.pointers):
            yield f"integer({self.index}), target :: no_index(1)"
        for d in self.pointers:
            yield f"{d.kind}, pointer, contiguous :: to_{d.name}(:)"
            if self.is_always_written(d):
                yield f"{d.kind}, allocatable, target :: own_{d.name}(:)"
        yield from (f"integer({self.index}), pointer, contiguous :: to_{name}(:)" for name, *_ in parts)

    def write_source(self) -> str:
        name = f"{self.op.name}{self.ending}"
        scalars = list(self.write_scalar_assignments())
        lines = [
            *(d.declaration for d in self.dummies),
            *self.write_local_declarations(),
            "",
            *scalars,
            *self.write_argument_checks(),
            *self.write_absent_pointers(),
        ]
        body = "".join(_fold_line(f"        {line}".rstrip()) + "\n" for line in lines)
        head = wrap_arguments(f"subroutine {name}", [d.name for d in self.dummies])
        call = wrap_arguments(
            f"status = {name_c_function(self.op, *self.instance)}", self.list_actual_arguments(), "        "
        )
        return f"\n    !> {summary(self.op)}\n{head}{body}{call}    end subroutine {name}\n"


def _fold_line(line: str) -> str:
    """Split a line into continuation lines if it is too long."""
    if len(line) <= 130:
        return line
    at = line.rfind(" ", 0, 128) + 1
    return f"{line[:at]}&\n{_fold_line('            & ' + line[at:])}"


def write_calls_module(family: str) -> str:
    """Return the source of the Fortran module for an operator family."""
    ops = [op for op in EXPORTED.values() if op.family == family]
    types = {f", {TYPES[op.graph_kind.type_name]}_{index}": None for op in ops if op.graph_kind for index in INDICES}
    text, body = HEAD.format(family=family, types="".join(types)), ""
    for op in ops:
        procedures = [_ProcedureWriter(op, *instance) for instance in list_kind_pairs(op)]
        text += f"    public :: {op.name}\n    interface {op.name}\n"
        text += "".join(f"        module procedure {op.name}{p.ending}\n" for p in procedures) + "    end interface\n"
        text += f"    interface\n{''.join(_write_c_interface(op, *p.instance) for p in procedures)}    end interface\n"
        body += "".join(p.write_source() for p in procedures)
    return f"{text}\ncontains\n{body}end module trigraph_{family}_calls\n"
