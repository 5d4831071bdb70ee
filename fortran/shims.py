"""Write the C-interoperable shims of the operator table that f2py wraps.

f2py maps kinds it does not know to C float with only a log line, so it never sees the modules: it parses these thin
explicit-shape subroutines, whose arguments are integers, c_float and c_double, and which call the modules' specific
procedures. Three sets exist, with the same argument order:

``reference``
    f32 and f64: the direct formula.
``fast``
    f32 and f64, a leading `num_threads`, and the graph's reverse arrays in derivatives.
``judge``
    the direct formula in real128. A real input is a pair of float64 (hi, lo); an output is a triple (hi, lo, scale),
    the scale coming from the same source instantiated for type(scaled).

Arrays cross flat (rank 1): shape and memory order were settled by the front door, and Fortran's sequence association
gives them their shape again. Every shim returns a status: 0, or not 0 where the system refused memory or threads; no
output has been touched then. A shim sets it to UNSET before a call: a procedure that forgot to would otherwise return
whatever the caller's memory held, mostly 0.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
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


def load_table() -> ModuleType:
    """Return the operator table, loaded by path because the package does not exist yet."""
    folder = Path(__file__).resolve().parent.parent / "src" / "trigraph"
    for name in ("lazy", "graph_kinds", "table", "operators"):  # each is imported by those after it, under its name
        spec = importlib.util.spec_from_file_location(f"trigraph.{name}", folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return module


def wrapped(head: str, names: list[str], indent: str = "    ") -> str:
    """Return ``head(names...)`` over as many continued lines as it needs."""
    lines = [f"{indent}{head}("]
    for i, name in enumerate(names):
        piece = name + (", " if i + 1 < len(names) else ")")
        if len(lines[-1]) + len(piece) > 110:
            lines[-1] += "&"
            lines.append(f"{indent}    & ")
        lines[-1] += piece
    return "\n".join(lines) + "\n"


def graph_arrays(op: Any, layout: str) -> list[str]:
    """Names of the graph's arrays in argument order; only fast derivatives gather by source and by row."""
    if op.graph is None:
        return []
    more = ()
    if layout == "fast":
        more = op.graph.fast + (op.graph.reverse if op.order else ())
    return [name for name, _ in (*op.graph.forward, *more)]


class Order(NamedTuple):
    """Names of a procedure's arguments, in their order; `integers` are arrays among them that hold no real numbers."""

    threads: list[str]
    dims: list[str]
    numbers: list[str]
    graph: list[str]
    inputs: list[str]
    wants: list[str]
    outputs: list[str]
    integers: set[str]

    def passed(self) -> list[str]:
        """Return what the procedure is called with, but for the status: a flag that is not 0 is true."""
        flags = [f"{w} /= 0" for w in self.wants]
        return self.threads + self.dims + self.numbers + self.graph + self.inputs + flags + self.outputs


def order_of(op: Any, layout: str) -> Order:
    """Return the order of the arguments of an operator's procedure."""
    fast = layout == "fast"
    crossing = [a for a in op.arguments if fast or not a.given_back]
    integers = {a.name for a in crossing if a.index} | {f"out_{f.name}" for f in op.fields if f.index}
    return Order(
        threads=["num_threads"] if fast else [],
        dims=[*op.definition.symbols, *(f"has_{n}" for n in op.presence(fast)), *op.choices],
        numbers=list(op.numbers),
        graph=graph_arrays(op, layout),
        inputs=[a.name for a in crossing],
        wants=[f"want_{f.name}" for f in op.fields] if op.selective else [],
        outputs=[f"out_{f.name}" for f in op.fields],
        integers=integers,
    )


def shim(op: Any, layout: str, real: str, index: str | None) -> str:
    """Source of one shim."""
    judge = layout == "judge"
    suffix = ("dp" if judge else REALS[real][0]) + (f"_{index}" if index else "")
    name = op.name + ("" if judge else f"_{real}") + (f"_{index}" if index else "")
    order = order_of(op, layout)
    threads, dims, numbers, graph, inputs, wants, outputs, integers = order
    arrays = graph + inputs + outputs
    scalars = threads + dims + wants
    reals = [a for a in inputs + outputs if a not in integers]
    procedure = op.name + ("_fast" if layout == "fast" else "")
    lengths = [f"n_{a}" for a in arrays]
    arguments = threads + dims + numbers + graph + inputs + wants + outputs
    text = wrapped(f"subroutine {name}", [*arguments, "status", *lengths], "")
    text += "    use, intrinsic :: iso_c_binding, only: c_int, c_int32_t, c_int64_t, c_float, c_double\n"
    if judge:
        text += "    use trigraph_kinds, only: qp\n    use trigraph_scaled, only: scaled\n"
        text += f"    use trigraph_pairs, only: join, scale_input, split\n    use trigraph_{op.family}, only: "
        text += ", ".join(f"{procedure}_{k}" + (f"_{index}" if index else "") for k in ("qp", "sc")) + "\n"
    else:
        module = f"trigraph_{op.family}" + ("_fast" if layout == "fast" else "")
        text += f"    use {module}, only: {procedure}_{suffix}\n"
    text += "    implicit none\n    !f2py threadsafe\n"
    text += TEAM if layout == "fast" else ""
    text += "    integer(c_int), intent(out) :: status\n"
    text += "".join(f"    integer(c_int), intent(in) :: {s}\n" for s in scalars)
    text += "".join(f"    integer(c_int64_t), intent(in) :: n_{a}\n" for a in arrays)
    text += "".join(f"    real(c_double), intent(in) :: {a}\n" for a in numbers)
    whole, kind = INDICES[index or "i64"], "real(c_double)" if judge else REALS[real][1]
    text += "".join(f"    {whole}, intent(in) :: {a}(n_{a})\n" for a in graph)
    for names, intent, rest in ((inputs, "in", ", 2"), (outputs, "inout", ", 3")):
        for a in names:
            declared, pair = (kind, rest if judge else "") if a in reals else (whole, "")
            text += f"    {declared}, intent({intent}) :: {a}(n_{a}{pair})\n"
    if judge:
        head = dims + numbers + graph
        body = judge_body(procedure, index, head, inputs, wants, outputs, integers)
        return text + body + f"end subroutine {name}\n\n"
    if layout == "fast":
        text += "    status = trigraph_reserve_team(num_threads)\n    if (status /= 0) return\n"
    text += f"    {UNSET}\n"
    return text + wrapped(f"call {procedure}_{suffix}", [*order.passed(), "status"]) + f"end subroutine {name}\n\n"


def judge_body(
    procedure: str,
    index: str | None,
    head: list[str],
    inputs: list[str],
    wants: list[str],
    outputs: list[str],
    integers: set[str],
) -> str:
    """Return declarations and calls of a judge shim: value in real128, then scale through type(scaled).

    Integers are those of real128; what the scale's instance decided in float64 is dropped.
    """
    text, calls = "", ""
    text += "".join(f"    {INDICES[index or 'i64']}, allocatable :: sc_{a}(:)\n" for a in outputs if a in integers)
    for kind, declared in (("qp", "real(qp)"), ("sc", "type(scaled)")):
        text += "".join(
            f"    {declared}, allocatable :: {kind}_{a}(:)\n" for a in inputs + outputs if a not in integers
        )
        own = [a for a in outputs if kind == "sc" or a not in integers]
        for a in inputs + own:
            calls += f"    allocate ({kind}_{a}(n_{a}), stat=status)\n    if (status /= 0) return\n"
        calls += "".join(f"    call {'join' if kind == 'qp' else 'scale_input'}({a}, {kind}_{a})\n" for a in inputs)
        flags = [f"{w} /= 0" for w in wants]
        real = [f"{kind}_{a}" for a in inputs]
        suffix = kind + (f"_{index}" if index else "")
        results = [f"{kind}_{a}" if a in own else a for a in outputs]
        calls += f"    {UNSET}\n"
        calls += wrapped(f"call {procedure}_{suffix}", [*head, *real, *flags, *results, "status"])
        calls += "    if (status /= 0) return\n"
    for a, want in zip(outputs, wants or [""] * len(outputs), strict=True):
        if a in integers:
            continue
        split = f"    call split(qp_{a}, sc_{a}, {a})\n"
        calls += f"    if ({want} /= 0) then\n    {split}    end if\n" if want else split
    return text + calls


def source(layout: str) -> str:
    """All shims of one layout."""
    table = load_table()
    text = "! Written by fortran/shims.py from the operator table.\n"
    for op in table.OPERATORS.values():
        reals = ("f64",) if layout == "judge" else tuple(REALS)
        indices: tuple[str | None, ...] = (None,)
        if op.graph is not None:
            indices = ("i64",) if layout == "judge" else tuple(INDICES)
        text += "".join(shim(op, layout, real, index) for real in reals for index in indices)
    return text + REFUSED_BYTES + EXTRA.get(layout, "")


TEAM = """    interface
        function trigraph_reserve_team(num_threads) bind(c) result(status)
            import :: c_int
            integer(c_int), value :: num_threads
            integer(c_int) :: status
        end function trigraph_reserve_team
    end interface
"""

REFUSED_BYTES = """!> Bytes of the request that the system refused last; 0 where they are not known.
subroutine refused_bytes(bytes)
    use, intrinsic :: iso_c_binding, only: c_int64_t
    implicit none
    integer(c_int64_t), intent(out) :: bytes
    interface
        function trigraph_refused_bytes() bind(c) result(found)
            import :: c_int64_t
            integer(c_int64_t) :: found
        end function trigraph_refused_bytes
    end interface
    bytes = trigraph_refused_bytes()
end subroutine refused_bytes

"""

EXTRA = {
    "judge": """!> sum over i of a(i) b(i) and of |a(i) b(i)| in real128: what finite differences are compared with.
subroutine dot(a, b, total, n_a)
    use, intrinsic :: iso_c_binding, only: c_double, c_int64_t
    use trigraph_kinds, only: qp
    use trigraph_pairs, only: put
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
    call put(products, total(1), total(2))
    total(3) = real(scale, c_double)
end subroutine dot
""",
    "fast": """!> Limits of the sums over blocks, for verification: 0 restores what is usual.
subroutine limit_blocks(slots, span)
    use, intrinsic :: iso_c_binding, only: c_int
    use trigraph_products, only: limit_spans
    implicit none
    integer(c_int), intent(in) :: slots, span
    call limit_spans(slots, span)
end subroutine limit_blocks

!> The sum of rows id of x, as integers of 32 bits (gather.c): what `trigraph bench` compares gathering operators with.
subroutine gather(num_threads, id, x, total, status, n_id, width, n_rows)
    use, intrinsic :: iso_c_binding, only: c_int, c_int32_t, c_int64_t
    implicit none
    !f2py threadsafe
    integer(c_int), intent(in) :: num_threads
    integer(c_int64_t), intent(in) :: n_id, width, n_rows
    integer(c_int32_t), intent(in) :: id(n_id), x(width, n_rows)
    integer(c_int32_t), intent(inout) :: total(width)
    integer(c_int), intent(out) :: status
    interface
        function trigraph_gather(num_threads, n, width, id, x, total) bind(c) result(status)
            import :: c_int, c_int32_t, c_int64_t
            integer(c_int), value :: num_threads
            integer(c_int64_t), value :: n, width
            integer(c_int32_t), intent(in) :: id(*), x(*)
            integer(c_int32_t), intent(inout) :: total(*)
            integer(c_int) :: status
        end function trigraph_gather
    end interface
    status = trigraph_gather(num_threads, n_id, width, id, x, total)
end subroutine gather
""",
    "reference": """!> Level of the processor's instruction set: which build of the fast path it can run.
subroutine cpu_level(level)
    use, intrinsic :: iso_c_binding, only: c_int
    implicit none
    integer(c_int), intent(out) :: level
    interface
        function trigraph_cpu_level() bind(c) result(found)
            import :: c_int
            integer(c_int) :: found
        end function trigraph_cpu_level
    end interface
    level = trigraph_cpu_level()
end subroutine cpu_level
""",
}


def main() -> None:
    """Command line used by meson: ``shims.py LAYOUT OUT.f90`` or ``shims.py f2cmap OUT``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("reference", "fast", "judge", "f2cmap"))
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.write_text(repr(F2CMAP) if options.what == "f2cmap" else source(options.what))


if __name__ == "__main__":
    main()
