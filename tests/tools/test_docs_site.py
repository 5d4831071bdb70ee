"""Tests of the documentation site: it builds without warnings, is complete, and loads nothing from other servers."""

import html
import re
import sys
from pathlib import Path

import pytest
from programs import run_command

import trigraph
from trigraph.table import DEFINITIONS, OPERATORS

pytest.importorskip("sphinx_gallery")
pytest.importorskip("torch")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs"))
from page_tables import TUTORIALS  # noqa: E402


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-d", folder / "trees"]
    run_command(*command, "-b", "html", ROOT / "docs", folder / "html")
    return folder / "html"


def test_every_public_name_has_a_page(site_folder):
    """Every public name has a page; operators have a formula, an example and links, and tutorials have pictures."""
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site_folder.glob("*.html")}
    names = [f"trigraph.{name}" for name in trigraph.__all__ if callable(getattr(trigraph, name)) and name != "verify"]
    names += [f"trigraph.torch.{spec.name}" for spec in DEFINITIONS]
    names += [f"trigraph.torch.nn.{name}" for name in trigraph.torch.nn.__all__]
    for name in names:
        assert f'id="{name}"' in (site_folder / "reference" / f"{name}.html").read_text()
    for name in OPERATORS:
        page = (site_folder / "reference" / f"trigraph.{name}.html").read_text()
        assert '<div class="formula"><math' in page
        assert "&gt;&gt;&gt; " in page
        assert f'href="trigraph.torch.{OPERATORS[name].definition.name}.html' in page
    for name in TUTORIALS:
        assert f"images/sphx_glr_{name}_001" in (site_folder / "tutorials" / f"{name}.html").read_text()


def test_formulas_become_mathml_without_tex(site_folder):
    """Formulas are converted to MathML with numbered equations, and contain no leftover TeX."""
    text, source = (
        (site_folder / "maths.html").read_text().replace("<wbr>", ""),
        (ROOT / "docs" / "maths.md").read_text(),
    )
    formulas = re.findall("<math.*?</math>", text, re.DOTALL)
    displayed = re.findall(r"^\$\$", source, re.MULTILINE)
    assert text.count('class="eqno"') == len(displayed) > 20
    assert len(formulas) - len(displayed) == len(re.findall(r"(?<!\$)\$(?!\$)", source)) // 2
    for formula in formulas:
        letters = html.unescape(re.sub("<[^>]*>", "", formula))
        assert letters.strip()
        assert "\\" not in letters
        assert "&" not in letters
    for name in (spec.name for spec in DEFINITIONS):
        assert f'<strong><code class="docutils literal notranslate"><span class="pre">{name}</span>' in text, name


def test_pages_load_nothing_from_other_servers(site_folder):
    """Images exist, and pages load nothing from other servers."""
    for page in site_folder.rglob("*.html"):
        for image in re.findall('<img[^>]*src="([^"]*)"', page.read_text()):
            assert (page.parent / image).is_file(), (page, image)
        fetched = re.findall(r'<(?:script|img|iframe)[^>]*src="([^"]*)"|<link[^>]*href="([^"]*)"', page.read_text())
        assert not [a or b for a, b in fetched if (a or b).startswith(("http:", "https:", "//"))], page
    for sheet in site_folder.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", sheet.read_text()), sheet
