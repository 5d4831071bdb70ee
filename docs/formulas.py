"""What the pages of the reference have beyond the docstrings: typeset formulas, links to layers and to papers."""

import re
import textwrap
from pathlib import Path

from numpydoc.docscrape_sphinx import SphinxDocString

from trigraph.table import DEFINITIONS, GRAPHS, NAMED, OPERATORS, ORDERS, OVER_FORMS, Definition
from trigraph.table.public import jax_docstring

# Passages of docs/maths.md, the one place with typeset formulas: from a comment to the next.
PASSAGE = re.compile(r"<!-- formula: (\w+) -->\n(.*?)(?=<!-- )", re.S)
MATHS = Path(__file__).parent / "maths.md"
PASSAGES: dict[str, str] = dict(PASSAGE.findall(MATHS.read_text()))
MARKUP = re.compile(
    r"\$\$ (?P<display>.*?) \$\$ \(.*?\)|\$(?P<math>[^$]+)\$|\{eq\}`(?P<eq>.*?)`|(?:\*\*)?`(?P<code>[^`]+)`(?:\*\*)?",
    re.S,
)
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")


def _convert_markdown_to_rst(text: str) -> str:
    """Return a passage as reStructuredText."""

    def convert_markup(match: re.Match[str]) -> str:
        kind = str(match.lastgroup)
        found = match[kind]
        if kind == "display":
            return f".. math::\n\n{textwrap.indent(found, '    ')}"
        found = " ".join(found.split())
        return f"``{found}``" if kind == "code" else f":{kind}:`{found}`"

    return MARKUP.sub(convert_markup, text)


def list_formula_lines(order: int, *definitions: Definition) -> list[str]:
    """Return the lines that say what operators compute: the formulas up to an order, which define its letters."""
    names = [f"{definition.name}_{suffix}" for definition in definitions for suffix in ORDERS[: order + 1]]
    passages = [PASSAGES[name] for name in (*names, *["third"] * (order == 3))]
    if any("polarisation" in passage for passage in passages):
        passages.append(PASSAGES["polarisation"])
    sums = any(definition.graph == "csc" for definition in definitions)
    letters = ["bars and dots"] * (order > 0) + ["sums over :math:`p`"] * sums
    explained = [f"Explained in :doc:`/maths`: {', '.join(letters)}."] if letters else []
    return ["", *"\n\n".join([*map(_convert_markdown_to_rst, passages), *explained]).splitlines(), ""]


def find_order_and_definitions(name: str) -> tuple[int, list[Definition]]:
    """Return the order and the definitions that a function or a layer of `trigraph` computes."""
    name = name.removeprefix("distributed.")
    if name in NAMED:
        return NAMED[name].order, [NAMED[name].definition]
    forms = re.fullmatch(r"(?:torch\.)?basis_embedding(?:_(fwd|bwd2?))?", name)
    if forms:  # one function for the three forms of the embedding
        return ORDERS.index(forms[1] or "fwd"), [d for d in DEFINITIONS if d.name.startswith("basis_embedding_")]
    module, _, own = name.rpartition(".")
    return 0, [
        d for d in DEFINITIONS if own in {"torch": [d.name], "jax": [d.name], "torch.nn": d.layers}.get(module, [])
    ]


def add_formulas_to_docstring(app, what, name, obj, options, lines):
    """Typeset the formula of an operator or of a layer, and link what a docstring names."""
    if add_formulas_and_links(what, name, lines):
        app.env.note_dependency(str(MATHS))


def add_formulas_and_links(what: str, name: str, lines: list[str]) -> bool:
    """Do so for the lines of the docstring of a name; return whether it has a formula."""
    name = name.removeprefix("trigraph.")
    order, definitions = find_order_and_definitions(name)
    if name in NAMED | OVER_FORMS:
        del lines[lines.index("Formula::") : lines.index("Parameters")]
    if definitions:
        if "Notes" not in lines:
            lines += ["", "Notes", "-----"]
        at = lines.index("Notes") + 2
        lines[at:at] = list_formula_lines(order, *definitions)
    related = [f"torch.{definition.name}" for definition in definitions] if what == "class" else []
    related += [f"{d.name}_fwd" for d in DEFINITIONS if d.graph and GRAPHS[d.graph].type_name == name]
    if related:
        lines += ["", "See Also", "--------", *(f"trigraph.{other}" for other in related)]
    lines[:] = [ARXIV.sub(r"`arXiv:\1 <https://arxiv.org/abs/\1>`__", line) for line in lines]
    return bool(definitions)


def format_jax_function_page(name: str) -> str:
    """Return the page of a function of `trigraph.jax`, as autodoc would write it if JAX were there."""
    module, _, own = name.rpartition(".")
    op = OPERATORS[f"{own}_fwd"]
    lines = jax_docstring(op).splitlines()
    add_formulas_and_links("function", name, lines)
    text = textwrap.indent(str(SphinxDocString("\n".join(lines))), "   ")
    title = f"{name}\n{'=' * len(name)}"
    return f"{title}\n\n.. py:currentmodule:: {module}\n\n.. py:function:: {own}{op.signature}\n\n{text}"
