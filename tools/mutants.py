"""Random single-token mutations, each built and verified: what `trigraph verify` would not notice (`make mutants`).

Mutations are drawn from the sources of each family and backend, and of what several families share. One changes an
operator (``+`` to ``-``, ``<`` to ``<=``, ``and`` to ``or``, ...), a whole number, a truth value, min or max, or leaves
out a negation or a simple statement. Comments, texts, declared types, interfaces and directives are left alone.

A mutation that does not compile is drawn again. One is killed when a check of its family and backend fails, or
verification crashes or hangs; one of a shared source survives if all families do that use it. Survivors are printed as
differences, to be read: those that no call can show (a block size, a larger work space) are no holes.
"""

import ast
import difflib
import keyword
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import date
from itertools import permutations
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import click
from mutation_sandbox import BACKENDS, FAMILIES, ROOT, Outcome, Sandbox, family_files, users
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

SHARED = "shared"

TOKEN = re.compile(
    r"(?P<real>\d+\.(?!\w*\.)\d*(?:[eEdD][-+]?\d+)?|\.\d+(?:[eEdD][-+]?\d+)?|\d+[eEdD][-+]?\d+|0[xX]\w+)"
    r"|(?P<int>\d+)|(?P<name>[A-Za-z_]\w*)|(?P<dotted>\.[A-Za-z]+\.)"
    r"|(?P<op>\*\*|//|->|=>|\+\+|--|<<|>>|&&|\|\||::|[-+*/<>=!:]=|[-+*/<>=!])|(?P<other>\S)"
)
# Words that become each other, and those that become another one or nothing.
PAIRS = ("+ -", "< <=", "> >=", "== !=", "+= -=", "&& ||", ".and. .or.", ".true. .false.", "true false", "True False")
PAIRS += ("and or", "min max", "minimum maximum")
SWAPS = {old: (new,) for pair in PAIRS for old, new in permutations(pair.split())}
SWAPS |= {"*": ("+", "/"), ".not.": ("",), "!": ("",), "not": ("",)}
BETWEEN = ("+", "-", "*", "<", "<=", ">", ">=")  # of two operands, else it is a sign, a pointer or a template's bracket
IN_C = (".cu", ".cuh", ".c.fypp")
FORTRAN_ONLY = {"==": ("/=",), "/=": ("==",)}


class Mutation(NamedTuple):
    """A change of a source: its characters from start to stop become `new`."""

    file: str
    start: int
    stop: int
    new: str


# ---- what is code ----------------------------------------------------------------------------------------------------


def _blank(text: str, start: int, stop: int) -> str:
    """Replace characters by spaces; lines stay."""
    return text[:start] + re.sub(r"[^\n]", " ", text[start:stop]) + text[stop:]


def _blank_all(text: str, pattern: str, flags: int = re.MULTILINE) -> str:
    for match in re.finditer(pattern, text, flags):
        text = _blank(text, *match.span(match.lastindex or 0))
    return text


def _span(text: str, node: Any) -> tuple[int, int]:
    """Return the first character of a node of a syntax tree, and the one behind its last."""
    lines = [0, *(m.end() for m in re.finditer("\n", text))]
    return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset


def _python_code(text: str) -> str:
    code = text
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            code = _blank(code, *_span(text, node))
    return _blank_all(code, r"#[^\n]*|^[ \t]*(?:@|import\b|from\b|def\b)[^\n]*")


def _fortran_code(text: str) -> str:
    # A directive of fypp goes on where its line ends with &.
    code = _blank_all(text, r"^[ \t]*[#$@][:!](?:[^\n]*&[ \t]*\n)*[^\n]*")
    code = re.sub(r"\$\{.*?\}\$", lambda m: "X" * len(m[0]), code)
    code = _blank_all(code, r"#\{.*?\}#")
    code = _blank_all(code, r"'[^'\n]*'|\"[^\"\n]*\"|![^\n]*")
    code = _blank_all(code, r"^[ \t]*(?:use|implicit|private|public|include|end|import)\b[^\n]*")
    code = _blank_all(code, r"^[^\n]*\bintent *\([^\n]*")
    code = _blank_all(code, r"^[^\n]*\b(?:subroutine|function)\b(?:[^\n]*&[ \t]*\n)*[^\n]*")
    return _blank_all(code, r"^([^\n]*?)::")


def _c_code(text: str) -> str:
    code = _blank_all(text, r"/\*.*?\*/|//[^\n]*|\"[^\"\n]*\"|'[^'\n]*'", re.DOTALL)
    code = re.sub(r"\$\{.*?\}\$", lambda m: "X" * len(m[0]), code)  # of fypp
    code = _blank_all(code, r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*")
    code = _blank_all(code, r"^[ \t]*(?:template|using|static_assert)\b[^\n]*")
    # A launch bound changes how a device shares out its registers, of which the emulated device has none.
    code = _blank_all(code, r"__launch_bounds__\([^\n)]*\)")
    # Prefetching changes no result.
    code = _blank_all(code, r"\b(?:__builtin_prefetch|prefetch_\w+)\([^\n]*\);")
    # Barriers are for the race detector of the tests: one after another, threads may not need them.
    return _blank_all(code, r"__sync\w+\([^\n]*\);")


# ---- where it can change ---------------------------------------------------------------------------------------------


def _tokens(file: str, code: str) -> Iterator[Mutation]:
    swaps = {**SWAPS, **FORTRAN_ONLY} if file.startswith("fortran/") and not file.endswith(IN_C) else SWAPS
    previous = None
    for token in TOKEN.finditer(code):
        word, kind = token[0], token.lastgroup
        is_operand = previous is not None and (
            previous.lastgroup in ("real", "int")
            or previous[0] in (")", "]")
            or (previous.lastgroup == "name" and not keyword.iskeyword(previous[0]))
        )
        # In C and CUDA an operator between two operands stands between spaces.
        spaced = not file.endswith(IN_C) or (code[token.start() - 1] + code[token.end()]).isspace()
        if kind == "int":
            yield Mutation(file, *token.span(), str(int(word) + 1))
        elif word in swaps and (word not in BETWEEN or (is_operand and spaced)):
            for new in swaps[word]:
                yield Mutation(file, *token.span(), new)
        previous = token


def _python_statements(file: str, text: str) -> Iterator[Mutation]:
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for node in dict.fromkeys(inner for function in functions for inner in ast.walk(function)):  # some are nested
        called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if isinstance(node, ast.stmt) and (called or isinstance(node, ast.Assign | ast.AugAssign)):
            yield Mutation(file, *_span(text, node), "pass")


def _fortran_statements(file: str, code: str) -> Iterator[Mutation]:
    for line in re.finditer(r"^[^\n]*\S[^\n]*(?:(?<=&)\n[^\n]*)*", code, re.MULTILINE):
        statement = line[0].strip()
        plain = re.sub(r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "()", statement)  # without what is in brackets
        if re.match(r"(?:if \(\) )?(?:call \w+|[\w%]+(?:\(\)[\w%]*)* = )", plain) and not plain.startswith("do "):
            start = line.start() + len(line[0]) - len(line[0].lstrip())
            yield Mutation(file, start, line.start() + len(line[0].rstrip()), "")


def _c_statements(file: str, code: str) -> Iterator[Mutation]:
    place = r"\*?\w+(?:\.\w+|->\w+|::\w+|\[[^;{}]*?\]|\([^;{}]*?\))*"
    pattern = rf"(?<=[;{{}}])\s*((?!return\b|using\b)(?:{place}\s*(?:[-+*/|&]?=)[^;{{}}]*|{place}\([^;{{}}]*\));)"
    for statement in re.finditer(pattern, code):
        if not re.match(r"(?:if|for|while|switch)\b", statement[1]):
            yield Mutation(file, *statement.span(1), ";")


def candidates(file: str) -> list[Mutation]:
    """Return all mutations of a source that can be drawn."""
    text = (ROOT / file).read_text()
    if file.endswith(".py"):
        return [*_tokens(file, _python_code(text)), *_python_statements(file, text)]
    if file.endswith(IN_C):
        code = _c_code(text)
        return [*_tokens(file, code), *_c_statements(file, code)]
    code = _fortran_code(text)
    return [*_tokens(file, code), *_fortran_statements(file, code)]


def mutated(mutation: Mutation) -> str:
    """Return the text of a source with a mutation; lines keep their numbers."""
    text = (ROOT / mutation.file).read_text()
    lines = text[mutation.start : mutation.stop].count("\n")
    new = mutation.new + ("" if mutation.file.endswith(".py") else "\n" * lines)
    return text[: mutation.start] + new + text[mutation.stop :]


def difference(mutation: Mutation) -> str:
    """Return a mutation as a unified difference."""
    old = (ROOT / mutation.file).read_text().splitlines()
    new = mutated(mutation).splitlines()
    return "\n".join(difflib.unified_diff(old, new, mutation.file, mutation.file, n=1, lineterm=""))


# ---- a run -----------------------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Sources that mutations are drawn from together: those of a family in a backend, or those that several share."""

    backend: str
    family: str

    def files(self) -> list[str]:
        """Return the sources."""
        some = dict.fromkeys(file for family in FAMILIES for file in family_files(self.backend, family))
        if self.family == SHARED:
            return [file for file in some if len(users(self.backend, file)) > 1]
        return [file for file in some if users(self.backend, file) == (self.family,)]

    def drawn(self, seed: int) -> list[Mutation]:
        """Return every mutation in an order that the seed decides: long sources come more often."""
        mutations = [m for file in self.files() for m in candidates(file)]
        random.Random(f"{seed} {self.backend} {self.family}").shuffle(mutations)
        return mutations


class Run:
    """Mutations of groups, in as many sandboxes as there are jobs."""

    def __init__(self, work: Path, jobs: int, console: Console) -> None:
        self._console = console
        self._boxes: SimpleQueue[Sandbox] = SimpleQueue()
        with console.status("copying the checkout"):
            for number in range(jobs):
                (work / str(number)).mkdir(parents=True, exist_ok=True)
                self._boxes.put(Sandbox(work / str(number)))

    def _outcome(self, box: Sandbox, group: Group, mutation: Mutation) -> Outcome:
        text = mutated(mutation)
        if mutation.file.endswith(".py"):
            try:
                compile(text, mutation.file, "exec")
            except SyntaxError as error:
                return Outcome("not built", str(error), 0.0)
        return box.outcome(group.backend, mutation.file, text, users(group.backend, mutation.file))

    def group(self, group: Group, seeds: Sequence[int], number: int) -> list[dict[str, Any]]:
        """Return the results of a group's first mutations that can be built, and of those before that cannot."""
        box, results = self._boxes.get(), []
        try:
            for seed in seeds:
                built = 0
                for mutation in group.drawn(seed):
                    results.append(self._result(box, group, mutation))
                    built += results[-1]["status"] != "not viable"
                    if built == number:
                        break
        finally:
            self._boxes.put(box)
        return results

    def _result(self, box: Sandbox, group: Group, mutation: Mutation) -> dict[str, Any]:
        outcome = self._outcome(box, group, mutation)
        result = {
            **group._asdict(),
            "file": mutation.file,
            "line": (ROOT / mutation.file).read_text().count("\n", 0, mutation.start) + 1,
            "status": {"passed": "survived", "failed": "killed", "not built": "not viable"}[outcome.status],
            "why": outcome.why[-2000:],
            "seconds": round(outcome.seconds, 1),
            "diff": difference(mutation),
        }
        why = f" by {result['why']}" if result["status"] == "killed" else ""
        place = f"{result['backend']} {result['family']}: {result['file']}:{result['line']}"
        seconds = f"({result['seconds']:.0f} s)"
        self._console.print(place, result["status"] + why, seconds, markup=False, highlight=False, soft_wrap=True)
        return result


def report(console: Console, results: Sequence[dict[str, Any]]) -> None:
    """Print the survivors as differences, and the share that was killed by backend."""
    for result in results:
        if result["status"] == "survived":
            console.print(f"\n[bold]survived: {result['backend']}, {result['file']}:{result['line']}[/bold]")
            console.print(Syntax(result["diff"], "diff", word_wrap=True))
    table = Table("backend", "killed", "survived", "share killed", "not viable")
    for backend in BACKENDS:
        number = Counter(r["status"] for r in results if r["backend"] == backend)
        total = number["killed"] + number["survived"]
        if total:
            share = f"{number['killed'] / total:.1%}"
            table.add_row(backend, *map(str, (number["killed"], number["survived"], share, number["not viable"])))
    console.print(table)


@click.command(context_settings={"show_default": True})
@click.option(
    "--seed", "seeds", type=int, multiple=True, help="Of the draw; may be repeated [default: today, YYYYMMDD]."
)
@click.option(
    "--number", type=click.IntRange(1), default=2, help="Mutations of each family and backend, and of what is shared."
)
@click.option("--family", "families", type=click.Choice((*FAMILIES, SHARED)), multiple=True, help="[default: all]")
@click.option("--backend", "backends", type=click.Choice(tuple(BACKENDS)), multiple=True, help="[default: all]")
@click.option("--jobs", type=click.IntRange(1), default=1, help="Builds and verifications at a time.")
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), default=ROOT / "build" / "mutants")
def main(
    seeds: Sequence[int],
    number: int,
    families: Sequence[str],
    backends: Sequence[str],
    jobs: int,
    work: Path,
) -> None:
    """Verify random single-token mutations and list those that survive."""
    console = Console()
    seeds = seeds or (int(f"{date.today():%Y%m%d}"),)
    console.print(f"seeds {', '.join(map(str, seeds))}")
    groups = [Group(p, f) for f in families or (*FAMILIES, SHARED) for p in backends or BACKENDS]
    run = Run(work.resolve(), jobs, console)
    results: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(jobs) as pool:
        pending = [pool.submit(run.group, group, seeds, number) for group in groups if group.files()]
        try:
            for done in as_completed(pending):
                results |= {r["backend"] + r["diff"]: r for r in done.result()}
        except RuntimeError as error:
            raise click.ClickException(str(error)) from error
        finally:
            pool.shutdown(cancel_futures=True)
    report(console, list(results.values()))


if __name__ == "__main__":
    main()
