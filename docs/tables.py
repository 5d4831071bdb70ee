"""What the build of the site writes into its pages, from the operator table and the tables of verification.

A line ``<!-- generated: NAME -->`` of a page is replaced by what the function of that name in `BLOCKS` returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module

from trigraph.compat.pylibcugraphops.covered import NOT_COVERED
from trigraph.table import DEFINITIONS, OPERATORS, SYMBOLS, Array, Attribute, Definition, Operator, result_type
from trigraph.testing.calculators import KINDS as CALCULATOR_KINDS
from trigraph.verification.kinds import CASE_KINDS
from trigraph.verification.record import KINDS
from trigraph.verification.tolerances import TABLE

DROP_IN = "trigraph.compat.pylibcugraphops"
DROP_IN_MODULES = ("", ".pytorch", ".pytorch.operators", ".operators", ".dimenet")
BLOCK = re.compile(r"<!-- generated: (\w+) -->")


def _cell(text: str) -> str:
    """Escape what Markdown would read as a column or as emphasis, code left alone but for columns."""
    return re.sub(r"`[^`]*`|\*", lambda m: m[0] if len(m[0]) > 1 else "\\*", text).replace("|", "\\|")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines) + "\n"


def _shape(array: Array) -> str:
    return f"`({', '.join(array.dims)}{',' if len(array.dims) == 1 else ''})`"


def _returns(op: Operator) -> str:
    if op.single:
        return f"the array `{op.fields[0].name}`"
    return f"`{result_type(op.name).__name__}({', '.join(f.name for f in op.fields)})`"


def _degree(array: Array) -> str:
    return "" if array.degree is None else str(array.degree)


def _values(attribute: Attribute) -> str:
    if attribute.choices:
        return ", ".join(f"`{c!r}`" for c in attribute.choices)
    return "`float`" if attribute.real else "`int`"


def _definition(spec: Definition) -> str:
    """Return what a section says of one definition."""
    ops = [op for op in OPERATORS.values() if op.definition is spec]
    text = f"{spec.summary} Source: {spec.source}\n\n"
    text += _table(
        ("operator", "arguments", "returns"), ((f"`{op.name}`", f"`{op.signature}`", _returns(op)) for op in ops)
    )
    rows = [(f"`{a.name}`", "input", _shape(a), _degree(a), a.doc) for a in spec.inputs]
    if ops[0].graph:
        kind = ops[0].graph.type_name
        rows += [(f"`{a.name}`", "graph", f"`{kind}`", "", a.doc) for a in ops[0].graph.arguments]
    rows += [(f"`{a.name}`", "attribute", _values(a), "", a.doc) for a in spec.attributes]
    rows += [(f"`{a.name}`", "output", _shape(a), "", a.doc) for a in spec.outputs + spec.auxiliary]
    text += _table(("name", "", "shape", "degree", "meaning"), rows)
    formulas = [(f"`{op.name}`", f"`{op.formula}`", f"`{op.operations}`") for op in ops]
    text += _table(("operator", "formula", "floating operations"), formulas)
    for kink in spec.kinks:
        text += f"Not differentiable where a value of `trigraph.pyref.{kink.function}` is 0.\n\n"
    return text


def _symbols() -> str:
    rows = ((f"`{n}`", s.doc, str(s.minimum), str(s.maximum or "")) for n, s in SYMBOLS.items())
    return _table(("symbol", "counts", "at least", "at most"), rows)


def _tolerances() -> str:
    rows = ((t.kind, t.unit, t.value, t.reason) for t in TABLE)
    return _table(("kind of check", "unit of the error", "tolerance", "reason"), rows)


def _kinds() -> str:
    return _table(("kind", "compares"), KINDS.items())


def _calculator_kinds() -> str:
    rows = ((f"`{kind}`", text) for kind, text in CALCULATOR_KINDS.items())
    return _table(("kind", "compares"), rows)


def _functions(module: str, names: Iterable[str]) -> str:
    """Return the directives by which Sphinx writes the pages of functions, from their docstrings."""
    lines = "".join(f".. autofunction:: {module}.{name}\n" for name in names)
    return f"```{{eval-rst}}\n{lines}```\n\n"


def _api() -> str:
    families: dict[str, list[str]] = {}
    for name, op in OPERATORS.items():
        families.setdefault(op.family, []).append(name)
    text = ""
    for family, names in families.items():
        if family == "gemnet":
            names += [f"basis_embedding_{order}" for order in ("fwd", "bwd", "bwd2")]
        text += f"### Family `{family}`\n\n" + _functions("trigraph", names)
    return text


def _api_torch() -> str:
    return _functions("trigraph.torch", [spec.name for spec in DEFINITIONS])


def _cases() -> str:
    rows = (
        (name, kind.remark or "nothing is special", "yes" * kind.differenced, "yes" * kind.called, "yes" * kind.batch)
        for name, kind in CASE_KINDS.items()
    )
    return _table(("case", "what is special", "differences, algebra, NaN", "repetition, layout, out", "batch"), rows)


def _pylibcugraphops() -> str:
    """Return what the drop-in for pylibcugraphops covers, and what it refuses, from its own modules."""
    modules = {f"pylibcugraphops{name}": import_module(f"{DROP_IN}{name}") for name in DROP_IN_MODULES}
    covered = [(f"`{name}`", ", ".join(f"`{n}`" for n in module.__all__)) for name, module in modules.items()]
    refused = [(f"`{pattern}`", instead) for pattern, instead in NOT_COVERED.items()]
    return _table(("module", "covered"), covered) + _table(("not covered", "use instead"), refused)


def _mistakes(name: str) -> str:
    """Return what the checks of ours and of torch say of functions with mistakes, by running them."""
    field = import_module("trigraph.verification.field")
    header = ("", "what is wrong", "`check_derivatives` fails in", "`gradcheck`", "`gradgradcheck`")
    return _table(header, field.rows(getattr(field, name)))


BLOCKS: dict[str, Callable[[], str]] = {
    "api": _api,
    "api_torch": _api_torch,
    "calculator_kinds": _calculator_kinds,
    "cases": _cases,
    "field": partial(_mistakes, "FIELD"),
    "kinds": _kinds,
    "pylibcugraphops": _pylibcugraphops,
    "symbols": _symbols,
    "textbook": partial(_mistakes, "TEXTBOOK"),
    "tolerances": _tolerances,
    **{spec.name: partial(_definition, spec) for spec in DEFINITIONS},
}


def filled(page: str) -> str:
    """Return the text of a page with its generated parts."""
    return BLOCK.sub(lambda match: BLOCKS[match[1]](), page)
