"""Write the operators of ``torch.cpp`` from the operator table: ``torch_operators.py OUT``.

Each operator accepts the arguments of the `trigraph.torch` operator of the same name, except the backend. Integers
replace strings: the index of a choice, and a bit mask of the requested fields.
"""

import re
import sys
from pathlib import Path

if __name__ == "__main__":  # the package cannot be imported during the build
    import shims  # type: ignore[import-not-found]

    shims.load_table()

from trigraph.fortran.calls import EXPORTED, name_c_function
from trigraph.fortran.interface import find_owning_graph, write_c_expression
from trigraph.fortran.shims import SHIM_SETS, order_arguments
from trigraph.table import GRAPH_PARTS, Array, ArrayArgument, Operator

FAST = SHIM_SETS["fast"]
REALS = {"f32": ("float", "float32"), "f64": ("double", "float64")}
INTEGERS = {"i32": ("int32_t", "int32"), "i64": ("int64_t", "int64")}
INT_MAX = 2**31 - 1
OPERATORS = {n: op for n, op in EXPORTED.items() if op.restriction is None}


def convert_to_cpp(expression: str) -> str:
    """Convert an expression for a size to C++."""
    return write_c_expression(expression, "i64")


def list_schema_arguments(op: Operator) -> list[tuple[str, str]]:
    """Return the types and names of an operator's arguments, in the order of its schema."""
    named = [(f"Tensor{'?' * a.nullable}", a.name) for a in op.arguments]
    graphs = [(g, GRAPH_PARTS[op.graph_kind.type_name]) for g in op.graph_kind.arguments] if op.graph_kind else []
    for g, parts in graphs:
        for array in (*parts.arrays, *parts.reverse):
            absent = g.optional or array in parts.optional or array in parts.reverse
            named.append((f"Tensor{'?' * absent}", f"{g.name}_{array}"))
    named += [("SymInt", f"{g.name}_{n}") for g, parts in graphs for n in parts.numbers]
    named += [("float" if a.real else "int", a.name) for a in op.attributes]
    return named + [("int", "wanted")] * op.accepts_wrt


def write_schema(op: Operator) -> str:
    """Return the torch schema of an operator."""
    results = ", ".join("Tensor" for _ in op.fields)
    typed = ", ".join(f"{kind} {name}" for kind, name in list_schema_arguments(op))
    return f"{op.name}({typed}) -> " + (f"({results})" if len(op.fields) > 1 else results)


class KernelWriter:
    """Writes the source of the kernel of an operator; each method appends a group of lines."""

    def __init__(self, op: Operator) -> None:
        self.op, self.order = op, order_arguments(op, FAST)
        self.lines: list[str] = []
        self.known: set[str] = set()
        self.first = op.definition.inputs[0].name
        self.by_name = {a.name: a for a in op.arguments}

    def add_line(self, line: str) -> None:
        """Append a line to the body of the kernel."""
        self.lines.append(f"    {line}")

    def write_argument_reads(self) -> None:
        """Write the code that reads the arguments from the stack and takes ownership of the tensors."""
        self.add_line(f'static const char *const its_name = "{self.op.name}";')
        tensors = ", ".join(f"&a_{name}" for kind, name in list_schema_arguments(self.op) if kind.startswith("Tensor"))
        for i, (kind, name) in enumerate(list_schema_arguments(self.op)):
            if kind.startswith("Tensor"):
                take = "read_optional_tensor" if kind.endswith("?") else "read_tensor"
                self.add_line(f'TensorArgument a_{name}(its_name, "{name}", {take}(s[{i}]));')
            elif kind == "float":
                self.add_line(f"[[maybe_unused]] const double {name} = read_number(s[{i}]);")
            else:
                self.add_line(f"[[maybe_unused]] const i64 {name} = read_integer(s[{i}]);")
                self.known.add(name)
        self.add_line(
            f"for (TensorArgument *a : {{{tensors}}})"
        )  # after all tensors are owned, because `load_contiguous` can throw
        self.add_line("    if (a->is_present())")
        self.add_line("        a->load_contiguous();")

    def name_graph_array(self, name: str) -> str:
        """Return the C++ variable for a graph array."""
        path = self.op.graph_kind.paths.get(name, (f"graph.{name}",))[0]  # type: ignore[union-attr]
        return f"a_{path.replace('.', '_')}"

    def write_graph_sizes(self) -> None:
        """Write the code that obtains sizes from graphs; the first graph that is present determines a shared size."""
        if self.op.graph_kind is None:
            return
        parts = GRAPH_PARTS[self.op.graph_kind.type_name]
        lengths = {n: (array, less) for n, array, less in parts.lengths}

        def write_graph_size(path: str) -> str:
            graph, name = path.split(".")
            if name not in lengths:
                return f"{graph}_{name}"
            array, less = lengths[name]
            return f"a_{graph}_{array}.sizes[0] - {less}"

        for g in self.op.graph_kind.arguments:
            for a in (*parts.arrays, *parts.reverse):
                self.add_line(f"if (a_{g.name}_{a}.is_present()) check_rank(a_{g.name}_{a}, 1);")
        for name in self.op.graph_kind.sizes:
            *some, last = self.op.graph_kind.paths.get(name, (f"graph.{name}",))
            text = write_graph_size(last)
            for path in reversed(some):
                text = f"a_{path.split('.')[0]}_{parts.arrays[0]}.is_present() ? {write_graph_size(path)} : {text}"
            self.add_line(f"const i64 {name} = {text};")
            self.known.add(name)

    def write_flags_and_attribute_checks(self) -> None:
        """Write the code that sets the presence flags of optional arguments, and checks attributes."""
        op, spec = self.op, self.op.definition
        for name in dict.fromkeys((*spec.optional_names, *FAST.list_optional_arguments(op))):
            whole = op.graph_kind is not None and name in op.graph_kind.optional_names
            array = f"{name}_{GRAPH_PARTS[op.graph_kind.type_name].arrays[0]}" if whole else name  # type: ignore[union-attr]
            self.add_line(f"const i64 has_{name} = a_{array}.is_present();")
            self.known.add(f"has_{name}")
        self.add_line(f"const int32_t real = a_{self.first}.dtype;")
        self.add_line(f"if (real != float32 && real != float64) check_dtype(a_{self.first}, float64);")
        for a in op.attributes:
            if a.real:
                self.add_line(f'check_finite_nonnegative(its_name, "{a.name}", {a.name}, real);')
            elif a.choices:
                self.add_line(f'check_integer_range(its_name, "{a.name}", {a.name}, 0, {len(a.choices) - 1});')
            else:
                limits = spec.get_limited_symbol(a.name)
                self.add_line(
                    f'check_integer_range(its_name, "{a.name}", {a.name}, '
                    f"{limits.minimum}, {limits.maximum or INT_MAX});"
                )
            for choice, _ in a.requires:
                place = a.choices.index(choice)
                self.add_line(
                    f"if ({a.name} == {place} && !a_graph_reverse_edge.is_present()) "
                    'refuse(its_name, ": no reverse edges");'
                )
        for name in spec.optional_names:
            for cotangent in (c for c in (f"gg_{name}", f"ggg_{name}") if c in self.by_name):
                self.add_line(
                    f'if (a_{cotangent}.is_present() && !has_{name}) refuse(its_name, ": {cotangent} is given");'
                )

    def write_shape_checks(self) -> None:
        """Write the code that checks ranks, dtypes and sizes of arrays, and determines the remaining sizes."""
        for a, dims in self.op.argument_axes:
            checks, bound = [f"check_{'column' if a.column else 'rank'}(a_{a.name}, {len(dims)});"], []
            checks.append(f"check_dtype(a_{a.name}, {'whole' if a.index else 'real'});")
            for axis, (dim, names) in enumerate(dims):
                unknown = sorted(names - self.known)
                if not unknown:
                    checks.append(f"check_size(a_{a.name}, {axis}, {convert_to_cpp(dim)});")
                    continue
                (symbol,) = unknown
                at = [convert_to_cpp(re.sub(rf"\b{symbol}\b", v, dim)) for v in "01"]
                limits = self.op.definition.get_limited_symbol(symbol)
                bound.append(
                    f"const i64 {symbol} = solve_for_symbol(a_{a.name}, {axis}, {at[0]}, {at[1]}, {limits.minimum}, "
                    f'{limits.maximum or INT_MAX}, "{symbol}");'
                )
                self.known.add(symbol)
            if a.nullable:
                assert not bound, (self.op.name, a.name)
                self.add_line(f"if (a_{a.name}.is_present()) {{ {' '.join(checks)} }}")
            else:  # check rank and dtype, determine unknown sizes, then check known sizes
                for line in (*checks[:2], *bound, *checks[2:]):
                    self.add_line(line)
        self.add_line(
            " ".join(f'check_integer_range(its_name, "{n}", {n}, 0, {INT_MAX});' for n in self.op.definition.symbols)
        )

    def write_graph_array_checks(self) -> None:
        """Write the code that checks dtypes, lengths and presence of graph arrays."""
        if self.op.graph_kind is None:
            return
        parts, kind = GRAPH_PARTS[self.op.graph_kind.type_name], self.op.graph_kind
        lengths = dict((*kind.forward, *kind.fast, *kind.reverse))
        for name in self.order.graph:
            array = self.name_graph_array(name)
            self.add_line(f"if ({array}.is_present()) {{")
            self.add_line(f"    check_dtype({array}, whole); check_size({array}, 0, {convert_to_cpp(lengths[name])});")
            self.add_line("}")
            if name not in parts.optional and find_owning_graph(self.op, name) not in kind.optional_names:
                self.add_line(f'if (!{array}.is_present()) refuse(its_name, ": the graph lacks {name}");')

    def write_zero_cotangents(self) -> None:
        """Write the code that fills absent cotangents of present inputs with zeros."""
        for a in (a for a in self.op.arguments if a.nullable and not a.given_back and a.name in self.order.inputs):
            base = re.sub("^g+_", "", a.name)
            if base != a.name:
                size = " * ".join(map(convert_to_cpp, a.dims))
                condition = f" && has_{base}" if base in self.op.definition.optional_names else ""
                self.add_line(f"if (!a_{a.name}.is_present(){condition}) a_{a.name}.fill_with_zeros(double({size}));")

    def write_result_allocations(self) -> None:
        """Write the code that creates the results, which are empty if they are not requested or do not exist."""
        for k, f in enumerate(self.op.fields):
            conditions = [f"(wanted >> {k} & 1)"] if self.op.accepts_wrt else []
            conditions += [f"has_{f.name.removeprefix('gg_')}"] if f.optional else []
            conditions += [convert_to_cpp(f.when)] if f.when else []
            self.add_line(f"const bool want_{f.name} = {' && '.join(conditions) or 'true'};")
            column = self.write_column_condition(f) if f.column else "false"
            dtype = f"want_{f.name} ? whole : real" if f.index else "real"
            shape = ", ".join(map(convert_to_cpp, f.dims))
            self.add_line(f"ResultTensor out_{f.name}(its_name, want_{f.name}, {dtype}, {{{shape}}}, {column});")

    def write_column_condition(self, f: Array) -> str:
        """Return a C++ condition: whether the argument of a derivative (or its input, if absent) is a column."""
        base = f"a_{f.name.removeprefix('gg_')}.column"
        a: ArrayArgument | None = self.by_name.get(f.name)
        if a is None:
            return "false"
        return f"(a_{f.name}.is_present() ? a_{f.name}.column : {base})" if a.nullable else f"a_{f.name}.column"

    def write_interface_call(self) -> None:
        """Write the call to the C interface; if every sum is empty, results are 0, and indices are -1."""
        op, order = self.op, self.order
        wanted = [f"(!want_{f.name} || out_{f.name}.numbers > 0)" for f in op.fields]
        self.add_line(f"if ({' && '.join([f'{s} > 0' for s in op.definition.symbols] + wanted)}) {{")
        self.add_line("    const GraphCheckSuspension trust;")
        self.add_line("    int status = -1;")
        for real, (c_real, real_name) in REALS.items():
            for index in INTEGERS if op.graph_kind else (None,):
                c_whole, whole_name = INTEGERS[index or "i64"]
                arguments = ["0", *(f"int({n})" for n in order.dims), *order.numbers]
                arguments += [f"(const {c_whole} *){self.name_graph_array(n)}.data" for n in order.graph]
                kinds = {n: c_whole if n in order.integers else c_real for n in order.inputs}
                arguments += [f"(const {kind} *)a_{n}.data" for n, kind in kinds.items()]
                arguments += [f"want_{f.name}" for f in op.fields] if op.accepts_wrt else []
                arguments += [f"({c_whole if f.index else c_real} *)out_{f.name}.data" for f in op.fields]
                condition = f"real == {real_name}" + (f" && whole == {whole_name}" if index else "")
                name = name_c_function(op, real, index)
                self.add_line(f"    if ({condition})")
                self.add_line(f"        status = {name}({', '.join(arguments)});")
        for a in op.index_arguments:
            if a.name in order.inputs:
                for c_whole, whole_name in INTEGERS.values():
                    self.add_line(f"    if (status == TRIGRAPH_WRONG_LOCATION && whole == {whole_name})")
                    self.add_line(f"        refuse_location<{c_whole}>(a_{a.name}, a_graph_offsets);")
        self.add_line("    check_status(its_name, status);")
        self.add_line("} else {")
        for f in op.fields:
            size = "whole == int32 ? 4 : 8" if f.index else "real == float32 ? 4 : 8"
            self.add_line(f"    if (want_{f.name})")
            bytes_of = f"size_t(out_{f.name}.numbers) * ({size})"
            self.add_line(f"        std::memset(out_{f.name}.data, {-1 if f.index else 0}, {bytes_of});")
        self.add_line("}")

    def write_source(self) -> str:
        """Return the source of the kernel."""
        self.write_argument_reads()
        self.write_graph_sizes()
        if self.op.graph_kind is not None:
            first = self.op.graph_kind.arguments[0].name
            array = GRAPH_PARTS[self.op.graph_kind.type_name].arrays[0]
            self.add_line(f"const int32_t whole = a_{first}_{array}.dtype;")
            self.add_line(f"if (whole != int32 && whole != int64) check_dtype(a_{first}_{array}, int64);")
        self.write_flags_and_attribute_checks()
        self.write_shape_checks()
        self.write_graph_array_checks()
        for a in self.op.positive_arguments:
            for c_real, name in REALS.values():
                self.add_line(f"if (real == {name}) check_positive<{c_real}>(a_{a.name}, a_{a.name}.sizes[0]);")
        self.write_zero_cotangents()
        self.write_result_allocations()
        self.write_interface_call()
        for k, f in enumerate(self.op.fields):
            self.add_line(f"s[{k}] = out_{f.name}.release();")
        return f"void {self.op.name}(Value *s, uint64_t, uint64_t)\n{{\n" + "\n".join(self.lines) + "\n}\n\n"


def main() -> None:
    """Run the command line that meson uses."""
    text = "".join(KernelWriter(op).write_source() for op in OPERATORS.values())
    text += "const struct {\n    const char *name, *schema;\n    Kernel kernel;\n} operators[] = {\n"
    text += "".join(f'    {{"{n}", "{write_schema(op)}", {n}}},\n' for n, op in OPERATORS.items()) + "};\n"
    Path(sys.argv[1]).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
