"""The documentation's site: built without a warning, complete, with typeset formulas, and readable without a server."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trigraph
from trigraph.table import DEFINITIONS

pytest.importorskip("sphinx")
pytest.importorskip("torch")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-d", folder / "trees"]
    done = subprocess.run(
        [*command, "-b", "html", ROOT / "docs", folder / "html"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_pages_and_names(site):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}
    text = (site / "api.html").read_text()
    names = [f"trigraph.{name}" for name in trigraph.__all__ if callable(getattr(trigraph, name))]
    names += [f"trigraph.torch.{spec.name}" for spec in DEFINITIONS]
    names += [f"trigraph.torch.nn.{name}" for name in trigraph.torch.nn.__all__]
    assert [name for name in names if f'id="{name}"' not in text] == []


def test_formulas(site):
    """Each is MathML, with its letters, and none shows what the converter did not know."""
    text, source = (site / "maths.html").read_text(), (ROOT / "docs" / "maths.md").read_text()
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


def test_nothing_comes_from_elsewhere(site):
    """What pages show is beside them."""
    for page in site.glob("*.html"):
        for image in re.findall('<img[^>]*src="([^"]*)"', page.read_text()):
            assert (page.parent / image).is_file(), (page, image)
        fetched = re.findall(r'<(?:script|img|iframe)[^>]*src="([^"]*)"|<link[^>]*href="([^"]*)"', page.read_text())
        assert not [a or b for a, b in fetched if (a or b).startswith(("http:", "https:", "//"))], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", sheet.read_text()), sheet
