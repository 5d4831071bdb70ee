"""Writes the generated parts of the pages, which are committed: ``python docs/tables.py``, or ``make pages``.

What is between ``<!-- generated: NAME WORDS -->`` and ``<!-- end -->`` in a README or a page of docs/ is what the
function of that name in `BLOCKS` returns for the words; in api.md, it is empty until the site is built. With
``--slow``, so are the parts for which programs run (`SLOW`): tables of checks, and ``printed FOLDER``, what the
commands above print in that folder of the repository, or in a new one.
"""

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import records

from slopecheck.kinds import CALCULATOR_CHECKS, FUNCTION_CHECKS
from slopecheck.record import COLUMNS
from slopecheck.report import KEYS
from slopecheck.tolerances import TABLE as TOLERANCES_OF_ANY
from trigraph.table import (
    DEFINITIONS,
    NAMED,
    OPERATORS,
    OVER_FORMS,
    SYMBOLS,
    Array,
    Attribute,
    Definition,
    Operator,
    result_type,
)
from trigraph.table.public import summary
from trigraph.verification.kinds import CASE_KINDS
from trigraph.verification.terms import CHECK_KINDS
from trigraph.verification.tolerances import TABLE

# The order of the tutorials in the gallery: three to start with, then by task.
TUTORIALS = (
    "clients",
    "train_forces",
    "verify_your_own",
    "first_gradient",
    "karate",
    "airfoil",
    "own_potential",
    "phonon_tuning",
)
HERE = Path(__file__).parent
MATHS = (HERE / "maths.md").read_text()
BLOCK = re.compile(r"(?P<begin><!-- generated: (?P<name>\w+) ?(?P<words>[^>]*?) -->\n).*?(?P<end><!-- end -->)", re.S)
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)


def _cell(text: str) -> str:
    """Escape what Markdown would read as a column or as emphasis; code and words in bold are left alone."""
    return re.sub(r"`[^`]*`|\*\*[a-z ]+\*\*|\*", lambda m: m[0] if len(m[0]) > 1 else "\\*", text).replace("|", "\\|")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines) + "\n"


def _shape(array: Array) -> str:
    dims = ", ".join(array.dims).replace(")*", ") * ")  # long products break at their spaces
    return f"`({dims}{',' if len(array.dims) == 1 else ''})`"


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
    section = re.findall(r"^## (.*)$", MATHS[: MATHS.index(f"<!-- formula: {spec.name}_fwd")], re.M)[-1]
    anchor = re.sub(r"[^\w -]", "", section.lower()).replace(" ", "-")
    text = f"{spec.summary} Source: {spec.source} Formulas: [{section}](maths.md#{anchor}).\n\n"
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
    operations = ((op.operations.replace("+", " + "), op.suffix) for op in ops)  # long sums break at their spaces
    text += f"Floating-point operations: {', '.join(f'`{sum_}` ({order})' for sum_, order in operations)}.\n\n"
    for kink in spec.kinks:
        text += f"The operator is not differentiable where a value of `trigraph.pyref.{kink.function}` is 0.\n\n"
    return text


def _symbols() -> str:
    most = {n: f"{most} in `{d.name}`" for d in reversed(DEFINITIONS) for n, most in d.maxima}
    rows = ((f"`{n}`", s.doc, str(s.minimum), most.get(n, "")) for n, s in SYMBOLS.items())
    return _table(("symbol", "counts", "at least", "at most"), rows)


def _tolerances() -> str:
    rows = ((t.kind, t.unit, t.value, t.reason) for t in (*TABLE, *TOLERANCES_OF_ANY))
    return _table(("kind of check", "unit of the error", "tolerance", "reason"), rows)


def _pairs(names: tuple[str, str], texts: Mapping[str, str]) -> str:
    return _table(names, ((f"`{name}`", text) for name, text in texts.items()))


def _summary(name: str) -> str:
    """Return the first sentence of the docstring of an object, from its source if its module cannot be imported."""
    module, _, attribute = name.rpartition(".")
    try:
        text = inspect.getdoc(getattr(import_module(module), attribute)) or ""
    except ImportError:
        own = HERE.parent / "src" / Path(*module.split(".")).with_suffix(".py")
        calculator = own.parent / "calculators" / own.name  # which `own` imports
        tree = ast.parse((calculator if calculator.exists() else own).read_text())
        (node,) = (n for n in tree.body if getattr(n, "name", None) == attribute)
        text = ast.get_docstring(node) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _names(*names: str) -> str:
    """Return a table of functions and classes; each has a page of the site."""
    return _table(("name", "what it is"), ((f"`{name}`", _summary(name)) for name in names))


def _family(family: str) -> str:
    names = [name for name, op in (NAMED | OVER_FORMS).items() if op.family == family]
    return _names(*(f"trigraph.{name}" for name in names))


def _module(module: str) -> str:
    """Return a table of what a module exports, or of its operators, from their table."""
    of_operators = {
        "trigraph.torch": [(spec.name, spec.summary) for spec in DEFINITIONS],
        "trigraph.jax": [(spec.name, spec.summary) for spec in DEFINITIONS],
        "trigraph.distributed": [(name, summary(op)) for name, op in OPERATORS.items()],
    }
    if module in of_operators:
        return _table(("name", "what it is"), ((f"`{module}.{name}`", text) for name, text in of_operators[module]))
    return _names(*(f"{module}.{name}" for name in import_module(module).__all__))


def _benchmarks() -> str:
    """Return the ratios of all records, the largest first, then the records that they come from."""

    def number(value: float | None) -> str:
        return f"{float(f'{value:.2g}'):g}" if value else "–"

    header = ("workload", "peer", "memory kept", "default", "trigraph, ms")
    text = ""
    for group, rows in groupby(records.rows(), lambda row: row.group):
        lines, summaries = [], {}
        for row in rows:
            milliseconds = number(1e3 * (row.seconds[0] or row.seconds[1] or 0))
            name = "" if row.workload in summaries else f"`{row.workload}`"
            lines.append((name, row.peer, *map(number, row.ratios), milliseconds))
            summaries[row.workload] = row.summary
        text += f"## {group}\n\n{_table(header, lines)}"
        text += "".join(f"- `{workload}`: {summary}\n" for workload, summary in summaries.items()) + "\n"
    origin = ("record", "machine", "date", "commit", "workloads")
    return f"{text}## Records\n\n{_table(origin, records.origins())}"


def _cases() -> str:
    rows = (
        (name, kind.remark or "nothing is special", "yes" * kind.differenced, "yes" * kind.called, "yes" * kind.batch)
        for name, kind in CASE_KINDS.items()
    )
    return _table(("case", "what is special", "differences, algebra, NaN", "repetition, layout, out", "batch"), rows)


def _speeds() -> str:
    """Return how much longer the fastest other library takes, from all records."""

    def numbers(values: Sequence[float]) -> str:
        return " to ".join(dict.fromkeys(f"{float(f'{value:.2g}'):g}" for value in (values[0], values[-1])))

    lines = [
        (work, numbers([1e3 * s for s in seconds]), f"{numbers(ratios)} ({', '.join(sorted(peers))})")
        for work, seconds, ratios, peers in records.speeds()
    ]
    return _table(("work", "trigraph, ms", "speed relative to the fastest other library"), lines)


def _mistakes(name: str) -> str:
    """Return what the checks of ours and of torch say of functions with mistakes, by running them."""
    sys.path.append(str(HERE.parent / "slopecheck" / "tests"))
    field = import_module("field")
    header = ("", "what is wrong", "`check_derivatives` fails in", "`gradcheck`", "`gradgradcheck`")
    return _table(header, field.rows(getattr(field, name)))


def _verdicts(*names: str) -> str:
    """Return the verdicts of ours, of torch and of JAX on the functions of modules of `field`, by running them."""
    sys.path.append(str(HERE.parent / "slopecheck" / "tests"))
    import_module("jax").config.update("jax_enable_x64", True)
    header = ("functions", "judged by", "wrong: found", "undecided", "passed", "correct: passed", "undecided", "failed")
    return _table(header, import_module("field.strangers").rows([import_module(f"field.{name}") for name in names]))


BLOCKS: dict[str, Callable[..., str]] = {
    "benchmarks": _benchmarks,
    "calculator_kinds": partial(_pairs, ("kind", "compares"), CALCULATOR_CHECKS),
    "cases": _cases,
    "definition": lambda name: _definition(next(spec for spec in DEFINITIONS if spec.name == name)),
    "family": _family,
    "function_kinds": partial(_pairs, ("check", "what must hold"), FUNCTION_CHECKS),
    "kinds": partial(_pairs, ("kind", "compares"), CHECK_KINDS),
    "module": _module,
    "names": _names,
    "report_columns": partial(_pairs, ("column of `checks`", "what it holds"), COLUMNS),
    "report_keys": partial(_pairs, ("key", "what it holds"), KEYS),
    "speeds": _speeds,
    "symbols": _symbols,
    "tolerances": _tolerances,
}


def _program(name: str) -> str:
    """Run a program of the repository; return what it prints, as Markdown, and keep the pictures that it writes."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, HERE.parent / name]
        done = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, check=True)
        for picture in Path(folder).glob("*.png"):
            shutil.copy(picture, HERE)
    return f"```text\n$ python {name}\n{done.stdout}```\n" if name.startswith("examples") else done.stdout


def _printed(commands: str, folder: str = "") -> str:
    """Run commands; return what they print."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with TemporaryDirectory() as own:
        done = subprocess.run(
            ["bash", "-ec", commands],
            cwd=own if folder in ("", "new") else HERE.parent / folder,
            env={**os.environ, "PATH": path, "COLUMNS": "110"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return f"```text\n{done.stdout.strip()}\n```\n"


SLOW: dict[str, Callable[..., str]] = {
    "mistakes": _mistakes,
    "printed": _printed,
    "program": _program,
    "verdicts": _verdicts,
}


def tutorial_order(name: str) -> int:
    """Return the place of a tutorial's file in the gallery."""
    return TUTORIALS.index(Path(name).stem)


def filled(page: str, slow: bool = False) -> str:
    """Return the text of a page with its generated parts as they should be; those of `SLOW` only if `slow`."""

    def block(match: re.Match[str]) -> str:
        name, words = match["name"], match["words"].split()
        if name in SLOW and not slow:
            return match[0]
        if name == "printed":
            words = [COMMANDS.findall(page[: match.start()])[-1], *words]
        return f"{match['begin']}\n{(BLOCKS | SLOW)[name](*words).strip()}\n\n{match['end']}"

    return BLOCK.sub(block, page)


def main(*arguments: str) -> None:
    """Write the generated parts of all pages."""
    pages = (path for path in sorted(HERE.glob("*.md")) if path.name != "api.md")
    for path in (HERE.parent / "README.md", HERE.parent / "slopecheck" / "README.md", *pages):
        text = path.read_text()
        new = filled(text, "--slow" in arguments)
        if new != text:
            print(f"{path.name} has changed")
            path.write_text(new)


if __name__ == "__main__":
    main(*sys.argv[1:])
