"""The documentation is complete, its code runs as printed, and its links lead somewhere."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trigraph.table import OPERATORS

ROOT = Path(__file__).parents[2]
TABLES = runpy.run_path(str(ROOT / "docs" / "tables.py"))
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def run(*command, cwd, **keywords):
    """Run a command with this environment's programs first; its output."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # pytest-xdist sets it
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env={**own, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **keywords,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_folder_of_tests_is_described():
    tests = ROOT / "tests"
    named = re.findall(r"^\| `(\w+)/` \|", (tests / "README.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in tests.iterdir() if any(path.glob("*.py")))


def test_every_block_is_used():
    used = re.findall(r"<!-- generated: (\w+) -->", "".join(page.read_text() for page in PAGES))
    assert sorted(used) == sorted(TABLES["BLOCKS"])


def test_tables_name_everything():
    text = TABLES["filled"]((ROOT / "docs" / "operators.md").read_text())
    for op in OPERATORS.values():
        assert f"| `{op.name}` | `{op.signature}` |" in text
        assert f"| `{op.name}` | `{op.formula}` | `{op.operations}` |" in text
        for a in op.definition.inputs + op.definition.outputs:
            assert re.search(rf"\| `{a.name}` \| (input|output) \| `{re.escape('(' + ', '.join(a.dims))}", text)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_python_of_the_pages_runs(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    exec(compile("\n".join(blocks(page, "python")), page.name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        made = target.startswith("_executed/")  # by the build of the site (test_docs_site.py)
        assert made or target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.slow
def test_verifying_an_implementation():
    right, wrong, forward = blocks(ROOT / "docs" / "implementation.md", "sh")
    printed = run("bash", "-e", "-c", right, cwd=ROOT / "examples")
    assert "✓ my_gno:gno_kernel_bwd" in printed
    assert re.search(r"^\d+ checks passed, 0 failed$", printed, re.MULTILINE)
    printed = run("bash", "-e", "-c", wrong, cwd=ROOT / "examples")
    assert "✗ my_gno:forgets_the_mask" in printed
    for kind in ("accuracy", "adjoint", "differences", "golden"):
        assert f"✗ gno_kernel_bwd in my_gno:forgets_the_mask: {kind}" in printed
    assert not re.search("^0 checks passed", printed, re.MULTILINE)
    printed = run("bash", "-e", "-c", forward, cwd=ROOT / "examples")
    assert "✗ agg_weighted_n2n_bwd in torch_forwards:forgets_the_weights: accuracy of edge_weight" in printed


def test_verifying_a_calculator(tmp_path):
    (commands,) = blocks(ROOT / "docs" / "calculators.md", "sh")
    printed = run("bash", "-e", "-c", commands, cwd=tmp_path)
    assert re.search(r"failed: energy jumps by .* at 5\.87", printed, re.DOTALL)
    assert re.search(r"^\d+ checks passed, 2 failed, 1 not offered$", printed, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("gfortran") and shutil.which("fypp", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"))
    and "CI" not in os.environ,
    reason="needs gfortran and fypp",
)
def test_the_fortran_program(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (commands,) = blocks(ROOT / "docs" / "fortran.md", "sh")
    printed = run("bash", "-e", "-c", commands, cwd=tmp_path)
    fast, gradient = (float(line.rsplit(":")[1]) for line in printed.splitlines()[-2:])
    assert fast < 1e-14
    assert gradient < 1e-14


RECORDS = ROOT / "benchmarks" / "records"
ROWS = [line for line in README.splitlines() if line.startswith("| [`")]
# What the README says of an operator's speed: its record, workload and peer.
SPEEDS = {
    ("gno_kernel", "2.1 times NumPy"): ("", "gno-coords-32", "numpy"),
    ("gno_message", "25 times PyG"): ("", "gno-message", "pyg"),
    ("radial_basis", "9.4 times PyG"): ("-dimenet", "dimenet-radial", "pyg"),
    ("agg_edge_to_edge", "82 times PyG"): ("-dimenet", "dimenet-aggregate-backward", "pyg"),
    ("mha_gat_n2n", "9.5 times PyG"): ("-gat", "gat", "pyg"),
    ("agg_weighted_n2n", "1.2 times torch.sparse"): ("-weighted", "weighted-sum", "torch-sparse"),
    ("agg_weighted_n2n", "12 times PyG"): ("-weighted", "weighted-sum-backward", "pyg"),
    ("interaction_bilinear", "1.5 times fairchem"): ("-gemnet", "gemnet", "fairchem"),
    ("interaction_bilinear", "30 times where"): ("-gemnet", "gemnet-power-law", "fairchem"),
}


@pytest.mark.parametrize(("operator", "words"), SPEEDS)
def test_speeds_are_those_of_a_record(operator, words):
    (row,) = [line for line in ROWS if f"(docs/operators.md#{operator})" in line]
    assert words in row
    record, workload, peer = SPEEDS[operator, words]
    results = json.loads((RECORDS / f"2026-11-21-xeon-2core{record}.json").read_text())["results"]
    (found,) = [r["contenders"] for r in results if r["workload"] == workload]
    assert f"{found[peer]['median_s'] / found['fortran']['median_s']:.2g}" == words.split()[0]


def test_every_speed_is_looked_up():
    assert sum(len(re.findall(r"[\d.]+ times", row.split("|")[4])) for row in ROWS) == len(SPEEDS)
