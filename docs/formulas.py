"""What the pages of the reference have beyond the docstrings: typeset formulas, links to layers and to papers."""

import re
import textwrap
from pathlib import Path

from trigraph.table import DEFINITIONS, OPERATORS, ORDERS, Definition

# Passages of docs/maths.md, the one place with typeset formulas: from a comment to the next.
PASSAGE = re.compile(r"<!-- formula: (\w+) -->\n(.*?)(?=<!-- )", re.S)
MATHS = Path(__file__).parent / "maths.md"
PASSAGES: dict[str, str] = dict(PASSAGE.findall(MATHS.read_text()))
MARKUP = re.compile(
    r"\$\$ (?P<display>.*?) \$\$ \(.*?\)|\$(?P<math>[^$]+)\$|\{eq\}`(?P<eq>.*?)`|(?:\*\*)?`(?P<code>[^`]+)`(?:\*\*)?",
    re.S,
)
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")


def _rst(text: str) -> str:
    """Return a passage as reStructuredText."""

    def markup(match: re.Match[str]) -> str:
        kind = str(match.lastgroup)
        found = match[kind]
        if kind == "display":
            return f".. math::\n\n{textwrap.indent(found, '    ')}"
        found = " ".join(found.split())
        return f"``{found}``" if kind == "code" else f":{kind}:`{found}`"

    return MARKUP.sub(markup, text)


def formulas(definition: Definition, order: int) -> list[str]:
    """Return the lines that say what an operator computes: the formulas up to its order, which define its letters."""
    names = [f"{definition.name}_{suffix}" for suffix in ORDERS[: order + 1]]
    passages = [PASSAGES[name] for name in names]
    if "polarisation" in passages[-1]:
        passages.append(PASSAGES["polarisation"])
    letters = ["bars and dots"] * (order > 0) + ["sums over :math:`p`"] * (definition.graph == "csc")
    explained = [f"Explained in :doc:`/maths`: {', '.join(letters)}."] if letters else []
    return ["", *"\n\n".join([*map(_rst, passages), *explained]).splitlines(), ""]


def complete(app, what, name, obj, options, lines):
    """Typeset the formula of an operator or of a layer, and link what a docstring names."""
    name = name.removeprefix("trigraph.")
    called = [d for d in DEFINITIONS if name in (f"torch.{d.name}", *(f"torch.nn.{layer}" for layer in d.layers))]
    added = [line for definition in called for line in formulas(definition, 0)]
    if name in OPERATORS:
        del lines[lines.index("Formula::") : lines.index("Parameters")]
        added = formulas(OPERATORS[name].definition, OPERATORS[name].order)
    if added and "Notes" not in lines:
        lines += ["", "Notes", "-----"]
    if added:
        app.env.note_dependency(str(MATHS))
        at = lines.index("Notes") + 2
        lines[at:at] = added
    if what == "class" and called:
        lines += ["", "See Also", "--------", *(f"trigraph.torch.{definition.name}" for definition in called)]
    lines[:] = [ARXIV.sub(r"`arXiv:\1 <https://arxiv.org/abs/\1>`__", line) for line in lines]
