"""The examples of layers, at small size: they run without a warning, learn something, and draw their plots."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, folder):
    """Run an example; what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py", "--small", "--out", "plot.png"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # small work: threads would wait more than they do
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    return done.stdout


@pytest.mark.parametrize(
    ("name", "option", "least"),
    [("karate", "steps", 1), ("gno_poisson", "steps", 1), ("gno_poisson", "refinements", 0)],
)
def test_least_options(name, option, least, monkeypatch):
    pytest.importorskip("networkx" if name == "karate" else "rich")
    monkeypatch.syspath_prepend(EXAMPLES)
    done = CliRunner().invoke(importlib.import_module(name).main, [f"--{option}", str(least - 1)])
    assert done.exit_code == 2
    assert f"Invalid value for '--{option}': {least - 1} is not in the range x>={least}." in done.output


def test_poisson_on_meshes_not_seen(tmp_path):
    printed = run("gno_poisson", tmp_path)
    errors = [float(e) for e in re.findall(r"^\d+ nodes: relative error (\S+)$", printed, re.MULTILINE)]
    assert len(errors) == 2
    assert all(e < 0.5 for e in errors)  # u = 0 has the error 1


def test_karate_club(tmp_path):
    pytest.importorskip("networkx")
    printed = run("karate", tmp_path)
    right, others = map(int, re.search(r"^(\d+) of (\d+) members predicted right", printed, re.MULTILINE).groups())
    assert others == 32
    assert right >= 24  # half of them by chance
