"""Installing: the self-contained wheel, and the editable install from anywhere (slow: both build the package)."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILD_TOOLS = ["meson-python>=0.16", "meson>=1.3", "ninja", "numpy>=2.0", "fypp>=3.2"]
SMOKE = """
import numpy as np, trigraph
x, p = np.ones((3, 2)), np.ones(1 * (2 + 1 + 2) + 2)
for panel in ("fortran", "fortran-reference", "pyref", "gpu-host"):
    kernel = trigraph.gno_kernel_fwd(x, p, 1, 2, panel=panel)
    assert (kernel == 4.0).all(), (panel, kernel)
print(trigraph.__file__)
"""


def run(*command, cwd=None, path=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the tracked and untracked, not ignored files."""
    target = tmp_path_factory.mktemp("checkout") / "trigraph"
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def environment(path):
    venv.create(path, with_pip=True)
    return path / "bin" / "python"


@pytest.mark.slow
def test_wheel_is_self_contained(checkout, tmp_path):
    run("make", "wheel", f"PYTHON={sys.executable}", cwd=checkout)
    (wheel,) = (checkout / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert any("libgfortran" in n for n in names)
    assert any("/_host_gno" in n for n in names)
    python = environment(tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", wheel)
    assert str(tmp_path / "venv") in run(python, "-c", SMOKE, cwd=tmp_path)


@pytest.mark.slow
def test_editable_install_works_from_anywhere(checkout, tmp_path):
    python = environment(tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", *BUILD_TOOLS)
    install = (python, "-m", "pip", "install", "--quiet", "--no-build-isolation", "-e", ".")
    run(*install, cwd=checkout, path=python.parent)
    for where in (checkout, checkout / "src", tmp_path):
        assert str(checkout) in run(python, "-c", SMOKE, cwd=where, path=python.parent)
