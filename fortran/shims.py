"""Write the C-interoperable subroutines (shims) that f2py wraps: one per operator and combination of kinds.

f2py maps unknown kinds to C float and merely logs this. It therefore parses these thin shims instead of the modules.
Their arguments are integers, c_float, c_double and explicit-shape arrays, and they call the specific procedures of the
modules. There are three sets of shims (`SHIM_SETS`), whose arguments are in the same order.

Arrays are passed flat (rank 1): the public function has checked their shapes and memory order, and Fortran's sequence
association restores the shapes. Every shim returns a status; if the system refused memory or threads, the status is
nonzero, and no output has been written. A shim sets the status to UNSET before each call, because a procedure that did
not set it would otherwise return the previous contents of the memory, which are usually 0.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

REALS = {"f32": ("sp", "real(c_float)"), "f64": ("dp", "real(c_double)")}
UNSET = "status = -1"
INDICES = {"i32": "integer(c_int32_t)", "i64": "integer(c_int64_t)"}
F2CMAP = {
    "real": {"c_float": "float", "c_double": "double"},
    "integer": {"c_int": "int", "c_int32_t": "int", "c_int64_t": "long_long"},
}


class ShimSet(NamedTuple):
    """Properties of the shims of one extension module."""

    procedures: str = ""  # suffix of the names of procedures and their modules
    reals: tuple[str, ...] = ("f32", "f64")  # keys of `REALS`; there is a shim for each combination with `indices`
    indices: tuple[str, ...] = ("i32", "i64")  # keys of `INDICES`
    # Shape of the representation of one element of an input or output: (2,) for a pair, () for a single number.
    input_parts: tuple[int, ...] = ()
    output_parts: tuple[int, ...] = ()
    # Whether numbers have type(scaled), and third derivatives are computed with type(dual).
    scaled: bool = False
    threads: bool = False  # whether the first argument is the number of threads, which are reserved before the call
    # Whether the shims call the fast path, whose derivatives need additional graph arrays and reuse auxiliary results
    # of fwd if the caller passes them; the other shims do not read these results.
    fast: bool = False
    extra: tuple[str, ...] = ()  # sources of additional subroutines in the module

    def select_operators(self, table: Any) -> dict[str, Any]:
        """Return the operators that have shims, keyed by name; `table` is the module `trigraph.table`."""
        own = {n: op for n, op in table.THIRD.items() if self.scaled or (self.fast and op.definition.has_native_bwd3)}
        return table.OPERATORS | own

    def select_arguments(self, op: Any) -> tuple[Any, ...]:
        """Return the array arguments of an operator that its shim accepts."""
        auxiliary = [a.name for a in op.definition.auxiliary]
        return tuple(a for a in op.arguments if not a.given_back or (self.fast and a.name in auxiliary))

    def list_optional_arguments(self, op: Any) -> tuple[str, ...]:
        """Return the names of the optional arguments, each of which has a presence flag ``has_...``."""
        return (*op.definition.optional_names, *(a.name for a in self.select_arguments(op) if a.given_back))

    def list_graph_arrays(self, op: Any) -> list[str]:
        """Return the names of the graph arrays in argument order."""
        if op.graph_kind is None:
            return []
        kind = op.graph_kind
        if not self.fast:
            return [name for name, _ in kind.forward]
        arrays = kind.forward + kind.fast + (kind.reverse if op.order else ())
        return [name for name, _ in arrays if name not in kind.direct]


def load_table() -> ModuleType:
    """Load the operator table by path, because the package cannot be imported during the build."""
    folder = Path(__file__).resolve().parent
    root = folder.parent  # root of the checkout or of the installed package
    for name, paths in (("trigraph", [root / "src" / "trigraph", root]), ("trigraph.fortran", [folder])):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(path) for path in paths]
    return importlib.import_module("trigraph.table")


def wrap_arguments(head: str, names: list[str], indent: str = "    ") -> str:
    """Return ``head(names...)``, split into continuation lines if necessary."""
    lines = [f"{indent}{head}("]
    for i, name in enumerate(names):
        piece = name + (", " if i + 1 < len(names) else ")")
        if len(lines[-1]) + len(piece) > 110:
            lines[-1] += "&"
            lines.append(f"{indent}    & ")
        lines[-1] += piece
    return "\n".join(lines) + "\n"


class ArgumentOrder(NamedTuple):
    """Names of a procedure's arguments, in order; `integers` are the inputs and outputs that contain integers."""

    threads: list[str]
    dims: list[str]
    numbers: list[str]
    graph: list[str]
    inputs: list[str]
    wants: list[str]
    outputs: list[str]
    integers: set[str]

    @property
    def names(self) -> list[str]:
        """Names of all arguments except the status."""
        return self.threads + self.dims + self.numbers + self.graph + self.inputs + self.wants + self.outputs

    def list_actual_arguments(self) -> list[str]:
        """Return the actual arguments of a call, except the status; integer flags are converted to logical."""
        flags = [f"{w} /= 0" for w in self.wants]
        return self.threads + self.dims + self.numbers + self.graph + self.inputs + flags + self.outputs


def order_arguments(op: Any, shims: ShimSet) -> ArgumentOrder:
    """Return the order of the arguments of an operator's procedure."""
    passed_arguments = shims.select_arguments(op)
    return ArgumentOrder(
        threads=["num_threads"] if shims.threads else [],
        dims=[
            *op.definition.symbols,
            *(f"has_{n}" for n in shims.list_optional_arguments(op)),
            *op.choice_attribute_names,
        ],
        numbers=list(op.real_attribute_names),
        graph=shims.list_graph_arrays(op),
        inputs=[a.name for a in passed_arguments],
        wants=[f"want_{f.name}" for f in op.fields] if op.accepts_wrt else [],
        outputs=[f"out_{f.name}" for f in op.fields],
        integers={a.name for a in passed_arguments if a.index} | {f"out_{f.name}" for f in op.fields if f.index},
    )


def write_shim(op: Any, shims: ShimSet, real: str, index: str | None, lower: Sequence[Any] = ()) -> str:
    """Return the source of one shim. A judge's shim of bwd3 differentiates the operators in `lower`, bwd and bwd2."""
    order = order_arguments(op, shims)
    threads, dims, numbers, graph, inputs, wants, outputs, integers = order
    arrays = graph + inputs + outputs
    ending = f"_{index}" if index else ""
    name = f"{op.name}_{real}{ending}"
    own, kind = REALS[real]
    text = wrap_arguments(f"subroutine {name}", [*order.names, "status", *(f"n_{a}" for a in arrays)], "")
    text += "    use iso_c_binding, only: c_int, c_int32_t, c_int64_t, c_float, c_double\n"
    if shims.scaled:
        text += "    use trigraph_dual, only: scaled, dual, assignment(=)\n"
        text += "    use trigraph_pairs, only: load_pairs, store_triples\n"
    suffix = ("du" if lower else "sc") if shims.scaled else own
    called = [f"{o.name}{shims.procedures}_{suffix}{ending}" for o in lower or [op]]
    text += f"    use trigraph_{op.family}{shims.procedures}, only: {', '.join(called)}\n"
    text += "    implicit none\n    !f2py threadsafe\n"
    text += TEAM_INTERFACE if shims.threads else ""
    text += "    integer(c_int), intent(out) :: status\n"
    text += "".join(f"    integer(c_int), intent(in) :: {s}\n" for s in threads + dims + wants)
    text += "".join(f"    integer(c_int64_t), intent(in) :: n_{a}\n" for a in arrays)
    text += "".join(f"    real(c_double), intent(in) :: {a}\n" for a in numbers)
    whole = INDICES[index or "i64"]
    text += "".join(f"    {whole}, intent(in) :: {a}(n_{a})\n" for a in graph)
    for names, intent, parts in ((inputs, "in", shims.input_parts), (outputs, "inout", shims.output_parts)):
        for a in names:
            declared, shape = (whole, ()) if a in integers else (kind, parts)
            text += f"    {declared}, intent({intent}) :: {a}({', '.join([f'n_{a}', *map(str, shape)])})\n"
    if shims.scaled:
        body = write_third_derivative_body(called, lower, shims, order) if lower else write_judge_body(called[0], order)
        return text + body + f"end subroutine {name}\n\n"
    if shims.threads:
        text += "    status = trigraph_reserve_team(num_threads)\n    if (status /= 0) return\n"
    text += f"    {UNSET}\n"
    text += wrap_arguments(f"call {called[0]}", [*order.list_actual_arguments(), "status"])
    text += "    call trigraph_release_team()\n" if shims.threads else ""
    return text + f"end subroutine {name}\n\n"


def write_judge_body(procedure: str, order: ArgumentOrder) -> str:
    """Return declarations and calls of a judge's shim, whose real numbers have type(scaled): a value and a scale."""
    inputs, wants, outputs = order.inputs, order.wants, [a for a in order.outputs if a not in order.integers]
    text = "".join(f"    type(scaled), allocatable :: sc_{a}(:)\n" for a in inputs + outputs)
    for a in inputs + outputs:
        text += f"    allocate (sc_{a}(n_{a}), stat=status)\n    if (status /= 0) return\n"
    text += "".join(f"    call load_pairs({a}, sc_{a})\n" for a in inputs)
    scaled = order._replace(
        inputs=[f"sc_{a}" for a in inputs], outputs=[f"sc_{a}" if a in outputs else a for a in order.outputs]
    )
    text += f"    {UNSET}\n"
    text += wrap_arguments(f"call {procedure}", [*scaled.list_actual_arguments(), "status"])
    text += "    if (status /= 0) return\n"
    for a, want in zip(order.outputs, wants or [""] * len(order.outputs), strict=True):
        if a in outputs:
            split = f"    call store_triples(sc_{a}, {a})\n"
            text += f"    if ({want} /= 0) then\n    {split}    end if\n" if want else split
    return text


def write_third_derivative_body(
    procedures: Sequence[str], lower: Sequence[Any], shims: ShimSet, order: ArgumentOrder
) -> str:
    """Return the body of a judge's shim of bwd3: gg_ fields are derivatives of bwd, the others derivatives of bwd2."""
    values = [a for a in order.inputs if not a.startswith("ggg_")]
    text = "".join(f"    type(dual), allocatable :: du_{a}(:)\n" for a in values + order.outputs)
    for a in values + order.outputs:
        text += f"    allocate (du_{a}(n_{a}), stat=status)\n    if (status /= 0) return\n"
    for a in values:
        text += f"    call load_pairs({a}, du_{a}%v)\n"
        text += f"    call load_pairs(ggg_{a}, du_{a}%d)\n" if f"ggg_{a}" in order.inputs else f"    du_{a}%d = 0\n"
    for procedure, op in zip(procedures, lower, strict=True):
        below, prefix = order_arguments(op, shims), "gg_" if op.order == 1 else ""
        below = below._replace(
            inputs=[f"du_{a}" for a in below.inputs],
            wants=[w.replace("want_", f"want_{prefix}", 1) for w in below.wants],
            outputs=[a.replace("out_", f"du_out_{prefix}", 1) for a in below.outputs],
        )
        condition = " .or. &\n        & ".join(f"{w} /= 0" for w in below.wants)
        text += f"    if ({condition}) then\n        {UNSET}\n"
        text += wrap_arguments(f"call {procedure}", [*below.list_actual_arguments(), "status"], "        ")
        text += "        if (status /= 0) return\n    end if\n"
    for a, want in zip(order.outputs, order.wants, strict=True):
        text += f"    if ({want} /= 0) then\n        call store_triples(du_{a}%d, {a})\n    end if\n"
    return text


def write_shim_module(name: str) -> str:
    """Return the source of all shims of one set."""
    table, shims = load_table(), SHIM_SETS[name]
    text = "! Written by fortran/shims.py from the operator table.\n"
    for op in shims.select_operators(table).values():
        orders = ("bwd", "bwd2") if shims.scaled and op.order == 3 else ()
        lower = [table.OPERATORS[f"{op.definition.name}_{order}"] for order in orders]
        indices: tuple[str | None, ...] = shims.indices if op.graph_kind is not None else (None,)
        text += "".join(write_shim(op, shims, real, index, lower) for real in shims.reals for index in indices)
    return text + REFUSED_BYTES + "\n".join(shims.extra)


def write_address_count_cases() -> str:
    """Return the cases of a C switch over the number of addresses, for ``interface.c``."""
    shims, counts = SHIM_SETS["fast"], set()
    for op in shims.select_operators(load_table()).values():
        order = order_arguments(op, shims)
        arrays = len(order.graph) + len(order.inputs) + len(order.outputs)
        counts.add(len(order.list_actual_arguments()) + 1 + arrays)
    lines = []
    for n in sorted(counts):
        types, addresses = ", ".join(["void *"] * n), ", ".join(f"p[{i}]" for i in range(n))
        lines.append(f"    case {n}: ((void (*)({types}))function)({addresses}); break;\n")
    return "".join(lines)


TEAM_INTERFACE = """    interface
        function trigraph_reserve_team(num_threads) bind(c) result(status)
            import :: c_int
            integer(c_int), value :: num_threads
            integer(c_int) :: status
        end function trigraph_reserve_team
        subroutine trigraph_release_team() bind(c)
        end subroutine trigraph_release_team
    end interface
"""

INQUIRY = """!> {doc}
subroutine {name}(value)
    use iso_c_binding, only: {kind}
    implicit none
    integer({kind}), intent(out) :: value
    interface
        function trigraph_{name}() bind(c) result(found)
            import :: {kind}
            integer({kind}) :: found
        end function trigraph_{name}
    end interface
    value = trigraph_{name}()
end subroutine {name}

"""
REFUSED_BYTES = INQUIRY.format(
    name="refused_bytes",
    kind="c_int64_t",
    doc="Return the size in bytes of the last refused memory request, or 0 if it is unknown.",
)
CPU_LEVEL = INQUIRY.format(
    name="cpu_level",
    kind="c_int",
    doc="Return the level of the processor's instruction set, which determines the builds that it can run.",
)

DOT = """!> Compute the sums of a(i) b(i) and of |a(i) b(i)| in real128, for comparison with finite differences.
subroutine dot(a, b, total, n_a)
    use iso_c_binding, only: c_double, c_int64_t
    use trigraph_kinds, only: qp
    use trigraph_pairs, only: split_number
    implicit none
    !f2py threadsafe
    integer(c_int64_t), intent(in) :: n_a
    real(c_double), intent(in) :: a(n_a, 2), b(n_a, 2)
    real(c_double), intent(inout) :: total(3)
    real(qp) :: product, products, scale
    integer(c_int64_t) :: i
    products = 0
    scale = 0
    do i = 1, n_a
        product = (real(a(i, 1), qp) + real(a(i, 2), qp))*(real(b(i, 1), qp) + real(b(i, 2), qp))
        products = products + product
        scale = scale + abs(product)
    end do
    call split_number(products, total(1), total(2))
    total(3) = real(scale, c_double)
end subroutine dot
"""

LIMIT_BLOCKS = """!> Limit the sums over blocks, for verification; 0 restores the defaults.
subroutine limit_blocks(slots, span)
    use iso_c_binding, only: c_int
    use trigraph_products, only: limit_spans
    implicit none
    integer(c_int), intent(in) :: slots, span
    call limit_spans(slots, span)
end subroutine limit_blocks
"""


def write_silu_shims(order: int) -> str:
    """Return the subroutines for SiLU derivatives of one order. Arrays have the same length; results are last."""
    read = ["ggg_grad", "ggg_x"] * (order == 3) + ["gg", "grad", "x"]
    written = ["out_gg"] * (order == 3) + ["out_grad", "out_x"]
    text = ""
    for real, (own, kind) in REALS.items():
        text += wrap_arguments(
            f"subroutine silu_bwd{order}_{real}", ["num_threads", *read, *written, "status", "n"], ""
        )
        text += "    use iso_c_binding, only: c_int, c_int64_t, c_float, c_double\n"
        text += f"    use trigraph_silu_fast, only: silu_bwd{order}_{own}\n    implicit none\n    !f2py threadsafe\n"
        text += TEAM_INTERFACE
        text += "    integer(c_int), intent(out) :: status\n    integer(c_int), intent(in) :: num_threads\n"
        text += "    integer(c_int64_t), intent(in) :: n\n"
        for names, intent in ((read, "in"), (written, "inout")):
            text += f"    {kind}, intent({intent}) :: {', '.join(f'{a}(n)' for a in names)}\n"
        text += "    status = trigraph_reserve_team(num_threads)\n    if (status /= 0) return\n"
        text += wrap_arguments(f"call silu_bwd{order}_{own}", ["num_threads", "n", *read, *written])
        text += f"    call trigraph_release_team()\nend subroutine silu_bwd{order}_{real}\n\n"
    return text


SHIM_SETS = {
    # The direct formulas.
    "reference": ShimSet(extra=(CPU_LEVEL,)),
    # The fast path.
    "fast": ShimSet(
        procedures="_fast",
        threads=True,
        fast=True,
        extra=(LIMIT_BLOCKS, write_silu_shims(2), write_silu_shims(3)),
    ),
    # The direct formulas in real128; inputs are float64 pairs (hi, lo), outputs triples (hi, lo, scale).
    "judge": ShimSet(reals=("f64",), indices=("i64",), input_parts=(2,), output_parts=(3,), scaled=True, extra=(DOT,)),
}


def main() -> None:
    """Run meson's commands ``shims.py SET OUT.f90``, ``shims.py f2cmap OUT`` and ``shims.py cases OUT``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=(*SHIM_SETS, "f2cmap", "cases"))
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    written = {"f2cmap": lambda: repr(F2CMAP), "cases": write_address_count_cases}.get(
        options.what, lambda: write_shim_module(options.what)
    )
    options.out.write_text(written())


if __name__ == "__main__":
    main()
