"""Writes the generated parts of the pages, which are committed: ``python docs/page_tables.py``, or ``make pages``.

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


def _escape_cell(text: str) -> str:
    """Escape what Markdown would read as a column or as emphasis; code and words in bold are left alone."""
    return re.sub(r"`[^`]*`|\*\*[a-z ]+\*\*|\*", lambda m: m[0] if len(m[0]) > 1 else "\\*", text).replace("|", "\\|")


def _format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(_escape_cell, line)) + " |\n" for line in lines) + "\n"


def _format_shape(array: Array) -> str:
    dims = ", ".join(array.dims).replace(")*", ") * ")  # long products break at their spaces
    return f"`({dims}{',' if len(array.dims) == 1 else ''})`"


def _format_return_type(op: Operator) -> str:
    if op.returns_array:
        return f"the array `{op.fields[0].name}`"
    return f"`{result_type(op.name).__name__}({', '.join(f.name for f in op.fields)})`"


def _format_degree(array: Array) -> str:
    return "" if array.degree is None else str(array.degree)


def _format_allowed_values(attribute: Attribute) -> str:
    if attribute.choices:
        return ", ".join(f"`{c!r}`" for c in attribute.choices)
    return "`float`" if attribute.real else "`int`"


def _format_definition_section(spec: Definition) -> str:
    """Return what a section says of one definition."""
    ops = [op for op in OPERATORS.values() if op.definition is spec]
    section = re.findall(r"^## (.*)$", MATHS[: MATHS.index(f"<!-- formula: {spec.name}_fwd")], re.M)[-1]
    anchor = re.sub(r"[^\w -]", "", section.lower()).replace(" ", "-")
    text = f"{spec.summary} Source: {spec.source} Formulas: [{section}](maths.md#{anchor}).\n\n"
    text += _format_table(
        ("operator", "arguments", "returns"),
        ((f"`{op.name}`", f"`{op.signature}`", _format_return_type(op)) for op in ops),
    )
    rows = [(f"`{a.name}`", "input", _format_shape(a), _format_degree(a), a.doc) for a in spec.inputs]
    if ops[0].graph_kind:
        kind = ops[0].graph_kind.type_name
        rows += [(f"`{a.name}`", "graph", f"`{kind}`", "", a.doc) for a in ops[0].graph_kind.arguments]
    rows += [(f"`{a.name}`", "attribute", _format_allowed_values(a), "", a.doc) for a in spec.attributes]
    rows += [(f"`{a.name}`", "output", _format_shape(a), "", a.doc) for a in spec.outputs + spec.auxiliary]
    text += _format_table(("name", "", "shape", "degree", "meaning"), rows)
    operations = (
        (op.operation_count_expression.replace("+", " + "), op.suffix) for op in ops
    )  # long sums break at their spaces
    text += f"Floating-point operations: {', '.join(f'`{sum_}` ({order})' for sum_, order in operations)}.\n\n"
    for kink in spec.kinks:
        text += f"The operator is not differentiable where a value of `trigraph.pyref.{kink.function}` is 0.\n\n"
    return text


def _tabulate_symbols() -> str:
    most = {n: f"{most} in `{d.name}`" for d in reversed(DEFINITIONS) for n, most in d.maxima}
    rows = ((f"`{n}`", s.doc, str(s.minimum), most.get(n, "")) for n, s in SYMBOLS.items())
    return _format_table(("symbol", "counts", "at least", "at most"), rows)


def _tabulate_tolerances() -> str:
    rows = ((t.kind, t.unit, t.value, t.reason) for t in (*TABLE, *TOLERANCES_OF_ANY))
    return _format_table(("kind of check", "unit of the error", "tolerance", "reason"), rows)


def _tabulate_mapping(names: tuple[str, str], texts: Mapping[str, str]) -> str:
    return _format_table(names, ((f"`{name}`", text) for name, text in texts.items()))


def _read_docstring_summary(name: str) -> str:
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


def _tabulate_docstring_summaries(*names: str) -> str:
    """Return a table of functions and classes; each has a page of the site."""
    return _format_table(("name", "what it is"), ((f"`{name}`", _read_docstring_summary(name)) for name in names))


def _tabulate_family_operators(family: str) -> str:
    names = [name for name, op in (NAMED | OVER_FORMS).items() if op.family == family]
    return _tabulate_docstring_summaries(*(f"trigraph.{name}" for name in names))


def _tabulate_module_exports(module: str) -> str:
    """Return a table of what a module exports, or of its operators, from their table."""
    of_operators = {
        "trigraph.torch": [(spec.name, spec.summary) for spec in DEFINITIONS],
        "trigraph.jax": [(spec.name, spec.summary) for spec in DEFINITIONS],
        "trigraph.distributed": [(name, summary(op)) for name, op in OPERATORS.items()],
    }
    if module in of_operators:
        return _format_table(
            ("name", "what it is"), ((f"`{module}.{name}`", text) for name, text in of_operators[module])
        )
    return _tabulate_docstring_summaries(*(f"{module}.{name}" for name in import_module(module).__all__))


def _tabulate_benchmarks() -> str:
    """Return the ratios of all records, the largest first, then the records that they come from."""

    def format_number(value: float | None) -> str:
        return f"{float(f'{value:.2g}'):g}" if value else "–"

    header = ("workload", "peer", "memory kept", "default", "trigraph, ms")
    text = ""
    for group, rows in groupby(records.list_peer_comparisons(), lambda row: row.group):
        lines, summaries = [], {}
        for row in rows:
            milliseconds = format_number(1e3 * (row.seconds[0] or row.seconds[1] or 0))
            name = "" if row.workload in summaries else f"`{row.workload}`"
            lines.append((name, row.peer, *map(format_number, row.ratios), milliseconds))
            summaries[row.workload] = row.summary
        text += f"## {group}\n\n{_format_table(header, lines)}"
        text += "".join(f"- `{workload}`: {summary}\n" for workload, summary in summaries.items()) + "\n"
    origin = ("record", "machine", "date", "commit", "workloads")
    return f"{text}## Records\n\n{_format_table(origin, records.describe_shown_records())}"


def _tabulate_case_kinds() -> str:
    rows = (
        (name, kind.remark or "nothing is special", "yes" * kind.differenced, "yes" * kind.called, "yes" * kind.batch)
        for name, kind in CASE_KINDS.items()
    )
    return _format_table(
        ("case", "what is special", "differences, algebra, NaN", "repetition, layout, out", "batch"), rows
    )


def _tabulate_speed_ratios() -> str:
    """Return how much longer the fastest other library takes, from all records."""

    def format_range(values: Sequence[float]) -> str:
        return " to ".join(dict.fromkeys(f"{float(f'{value:.2g}'):g}" for value in (values[0], values[-1])))

    lines = [
        (work, format_range([1e3 * s for s in seconds]), f"{format_range(ratios)} ({', '.join(sorted(peers))})")
        for work, seconds, ratios, peers in records.summarise_speeds_by_work()
    ]
    return _format_table(("work", "trigraph, ms", "speed relative to the fastest other library"), lines)


def _tabulate_detected_mistakes(name: str) -> str:
    """Return what the checks of ours and of torch say of functions with mistakes, by running them."""
    sys.path.append(str(HERE.parent / "slopecheck" / "tests"))
    field = import_module("field")
    header = ("", "what is wrong", "`check_derivatives` fails in", "`gradcheck`", "`gradgradcheck`")
    return _format_table(header, field.rows(getattr(field, name)))


def _tabulate_verdicts(*names: str) -> str:
    """Return the verdicts of ours, of torch and of JAX on the functions of modules of `field`, by running them."""
    sys.path.append(str(HERE.parent / "slopecheck" / "tests"))
    import_module("jax").config.update("jax_enable_x64", True)
    header = ("functions", "judged by", "wrong: found", "undecided", "passed", "correct: passed", "undecided", "failed")
    return _format_table(
        header, import_module("field.strangers").rows([import_module(f"field.{name}") for name in names])
    )


BLOCKS: dict[str, Callable[..., str]] = {
    "benchmarks": _tabulate_benchmarks,
    "calculator_kinds": partial(_tabulate_mapping, ("kind", "compares"), CALCULATOR_CHECKS),
    "cases": _tabulate_case_kinds,
    "definition": lambda name: _format_definition_section(next(spec for spec in DEFINITIONS if spec.name == name)),
    "family": _tabulate_family_operators,
    "function_kinds": partial(_tabulate_mapping, ("check", "what must hold"), FUNCTION_CHECKS),
    "kinds": partial(_tabulate_mapping, ("kind", "compares"), CHECK_KINDS),
    "module": _tabulate_module_exports,
    "names": _tabulate_docstring_summaries,
    "report_columns": partial(_tabulate_mapping, ("column of `checks`", "what it holds"), COLUMNS),
    "report_keys": partial(_tabulate_mapping, ("key", "what it holds"), KEYS),
    "speeds": _tabulate_speed_ratios,
    "symbols": _tabulate_symbols,
    "tolerances": _tabulate_tolerances,
}


def _capture_program_output(name: str) -> str:
    """Run a program of the repository; return what it prints, as Markdown, and keep the pictures that it writes."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, HERE.parent / name]
        done = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, check=True)
        for picture in Path(folder).glob("*.png"):
            shutil.copy(picture, HERE)
    return f"```text\n$ python {name}\n{done.stdout}```\n" if name.startswith("examples") else done.stdout


def _capture_command_output(commands: str, folder: str = "") -> str:
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
    "mistakes": _tabulate_detected_mistakes,
    "printed": _capture_command_output,
    "program": _capture_program_output,
    "verdicts": _tabulate_verdicts,
}


def find_tutorial_index(name: str) -> int:
    """Return the place of a tutorial's file in the gallery."""
    return TUTORIALS.index(Path(name).stem)


def fill_generated_parts(page: str, slow: bool = False) -> str:
    """Return the text of a page with its generated parts as they should be; those of `SLOW` only if `slow`."""

    def replace_block(match: re.Match[str]) -> str:
        name, words = match["name"], match["words"].split()
        if name in SLOW and not slow:
            return match[0]
        if name == "printed":
            words = [COMMANDS.findall(page[: match.start()])[-1], *words]
        return f"{match['begin']}\n{(BLOCKS | SLOW)[name](*words).strip()}\n\n{match['end']}"

    return BLOCK.sub(replace_block, page)


def main(*arguments: str) -> None:
    """Write the generated parts of all pages."""
    pages = (path for path in sorted(HERE.glob("*.md")) if path.name != "api.md")
    for path in (HERE.parent / "README.md", HERE.parent / "slopecheck" / "README.md", *pages):
        text = path.read_text()
        new = fill_generated_parts(text, "--slow" in arguments)
        if new != text:
            print(f"{path.name} has changed")
            path.write_text(new)


if __name__ == "__main__":
    main(*sys.argv[1:])
