"""Generated parts of the documentation: ``python -m trigraph.docs --write`` or ``--check``, at the repository's root.

A page of ``docs/`` may hold blocks between ``<!-- generated: NAME -->`` and ``<!-- end -->``; each is a function here,
and follows from the operator table or the table of tolerances.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from trigraph.table import DEFINITIONS, OPERATORS, SYMBOLS, Array, Attribute, Definition, Operator, result_type
from trigraph.verification.kinds import CASE_KINDS
from trigraph.verification.record import KINDS
from trigraph.verification.tolerances import TABLE

__all__ = ["BLOCKS", "generate", "main"]

BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


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
    """Return the section of one definition."""
    ops = [op for op in OPERATORS.values() if op.definition is spec]
    text = f"### {spec.name}\n\n{spec.summary} Source: {spec.source}\n\n"
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


def _operators() -> str:
    families = dict.fromkeys(spec.family for spec in DEFINITIONS)
    return "".join(
        f"## Family `{family}`\n\n" + "".join(_definition(spec) for spec in DEFINITIONS if spec.family == family)
        for family in families
    )


def _symbols() -> str:
    rows = ((f"`{n}`", s.doc, str(s.minimum), str(s.maximum or "")) for n, s in SYMBOLS.items())
    return _table(("symbol", "counts", "at least", "at most"), rows)


def _tolerances() -> str:
    rows = ((t.kind, t.unit, t.value, t.reason) for t in TABLE)
    return _table(("kind of check", "unit of the error", "tolerance", "reason"), rows)


def _kinds() -> str:
    return _table(("kind", "compares"), KINDS.items())


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
        (name, kind.remark or "nothing is special", "yes" * kind.differenced, "yes" * kind.called, "yes" * kind.company)
        for name, kind in CASE_KINDS.items()
    )
    return _table(("case", "what is special", "differences, algebra, NaN", "repetition, layout, out", "company"), rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "api": _api,
    "api_torch": _api_torch,
    "cases": _cases,
    "kinds": _kinds,
    "operators": _operators,
    "symbols": _symbols,
    "tolerances": _tolerances,
}


def generate(root: Path) -> dict[Path, str]:
    """Return every page of ``docs/`` with its generated blocks filled in.

    Parameters
    ----------
    root : Path
        Root of the repository.
    """

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{BLOCKS[match[2]]()}{match[3]}"

    return {path: BLOCK.sub(fill, path.read_text()) for path in sorted((root / "docs").glob("*.md"))}


def main() -> int:
    """Write or check the generated parts; return 1 if ``--check`` found a page that is old."""
    parser = argparse.ArgumentParser(prog="python -m trigraph.docs", description="Keep pages in step with the table.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the pages")
    mode.add_argument("--check", action="store_true", help="exit with status 1 if a page is old")
    parser.add_argument("--root", type=Path, default=Path(), help="root of the repository (default: here)")
    options = parser.parse_args()
    status = 0
    for path, text in generate(options.root).items():
        if options.write:
            path.write_text(text)
        elif path.read_text() != text:
            print(f"{path} is old: run `python -m trigraph.docs --write`")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
