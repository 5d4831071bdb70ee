"""The documentation's site: built without a warning, complete, with typeset formulas, and readable without a server."""

import html
import re
import shutil
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
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")

# Written into a page: reports what a reader would see as its title.
LOOK = """<script>
addEventListener("load", () => setTimeout(() => {
  const boxes = [...document.querySelectorAll("math")].map(m => m.getBoundingClientRect());
  const flat = boxes.filter(b => b.height < 5 || b.width < 3).length;
  const images = [...document.images].filter(i => i.naturalWidth).length;
  const found = document.querySelectorAll("ul.search li").length;
  document.title = [document.documentElement.scrollWidth, boxes.length, flat, images, found].join(" ");
}, 1500));
</script>"""


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
    for page in site.glob("*.html"):
        fetched = re.findall(r'<(?:script|img|iframe)[^>]*src="([^"]*)"|<link[^>]*href="([^"]*)"', page.read_text())
        assert not [a or b for a, b in fetched if (a or b).startswith(("http:", "https:", "//"))], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", sheet.read_text()), sheet


def seen(site, page, query="", width=1200):
    """Open a page as a file in a browser; its width, formulas, those that are empty, images that are seen, and hits."""
    copy = site / f"look-{page}"
    copy.write_text((site / page).read_text().replace("</body>", f"{LOOK}</body>"))
    command = [CHROMIUM, *QUIET, f"--user-data-dir={site.parent / 'browser'}", f"--window-size={width},900"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=8000", "--dump-dom", f"file://{copy}{query}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    title = re.search(r"<title>([\d ]+)</title>", done.stdout)
    assert title, done.stderr
    return tuple(map(int, title[1].split()))


@pytest.mark.skipif(not CHROMIUM, reason="needs chromium")
def test_in_a_browser(site):
    for width in (1200, 500):  # a window is not made narrower than 500 pixels
        found, formulas, flat, _, _ = seen(site, "maths.html", width=width)
        assert found <= width
        assert formulas > 100
        assert flat == 0
    for page in ("examples.html", "index.html"):
        images = (site / page).read_text().count("<img ")
        assert images
        assert seen(site, page)[3] == images
    assert seen(site, "search.html", "?q=attention")[4] >= 3
    assert seen(site, "search.html", "?q=nowordlikethis")[4] == 0
