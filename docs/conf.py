"""How Sphinx builds the documentation: ``make docs`` writes docs/_build/html, which is read without a server."""

import os
import re
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert

import trigraph

HERE = Path(__file__).parent
sys.path.append(str(HERE))
from tables import filled  # noqa: E402

project = "trigraph"
author = copyright = "The trigraph developers"
version = release = trigraph.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_executed"]
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch_sim"]  # the page needs none of it
autodoc_typehints = "none"  # docstrings say types in words
html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["formulas.css"]
html_copy_source = html_show_sourcelink = False

# What the page of examples runs, at sizes that take seconds.
EXAMPLES = {
    "dimenet_forces": (),
    "train_on_derivatives": (),
    "wrong_derivative": (),
    "karate": ("--small", "--out", "karate.png"),
    "gno_poisson": ("--small", "--out", "gno_poisson.png"),
    "train_forces": ("--number", "20", "--epochs", "2", "--steps", "10"),
}


def run_examples(app):
    """Run each example whose output is missing, old or of another command; pages include what it printed, and plots."""
    folder = HERE / "_executed"
    folder.mkdir(exist_ok=True)
    for name, options in EXAMPLES.items():
        source, printed = HERE.parent / "examples" / f"{name}.py", folder / f"{name}.txt"
        title = " ".join(["$ python", f"examples/{name}.py", *options])
        fresh = printed.exists() and printed.stat().st_mtime > source.stat().st_mtime
        if not fresh or printed.read_text().splitlines()[0] != title:
            command = [sys.executable, source, *options]
            done = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, check=True)
            printed.write_text(f"{title}\n{done.stdout}")


def check_calculators(app):
    """Check the calculators of their page, where what was found is missing or old."""
    source, found = HERE / "calculators.py", HERE / "_executed" / "calculators-found.md"
    if not found.exists() or found.stat().st_mtime < source.stat().st_mtime:
        subprocess.run([sys.executable, source], cwd=found.parent, check=True)


# Pages of the site whose text is read from a file outside docs/: the page's name, and the file.
ELSEWHERE = {
    "index": "README.md",
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "tests": "tests/README.md",
    "benchmarks": "benchmarks/README.md",
}


def read_elsewhere(app, docname, source):
    """Put the text of a page of `ELSEWHERE` before what is there; links to such files become links to the pages."""
    pages = {(HERE.parent / file).resolve(): f"{name}.md" for name, file in ELSEWHERE.items()}
    file = HERE / f"{docname}.md"
    if docname in ELSEWHERE:
        file = HERE.parent / ELSEWHERE[docname]
        source[0] = f"{file.read_text()}\n{source[0]}"

    def link(match):
        target = (file.parent / match[1]).resolve()
        return f"]({pages.get(target, os.path.relpath(target, HERE))}"

    source[0] = re.sub(r"\]\((?!\w+:)([^)#]+)", link, source[0])


def fill(app, docname, source):
    """Put the generated parts of a page into their places."""
    source[0] = filled(source[0])


def mathml(node, display):
    """Return a formula as MathML; `aligned`, which GitHub knows, is `align*` to the converter."""
    return convert(node.astext().replace("{aligned}", "{align*}"), display=display)


def inline_formula(self, node):
    """Write a formula within a line as MathML."""
    self.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def displayed_formula(self, node):
    """Write a formula of its own as MathML, with its number."""
    number = f'<span class="eqno">({node["number"]})</span>' if node["number"] else ""
    formula = f'<div class="formula">{mathml(node, "block")}</div>'
    self.body.append(f"{self.starttag(node, 'div', CLASS='math')}{formula}{number}</div>")
    raise nodes.SkipNode


def setup(app):
    """Formulas are MathML, which browsers typeset without a script."""
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
    app.connect("builder-inited", run_examples)
    app.connect("builder-inited", check_calculators)
    app.connect("source-read", fill)
    app.connect("source-read", read_elsewhere)
