"""The wheel in every Python that is found, with the newest and with the oldest dependencies: `make test-pythons`."""

import os
import re
from pathlib import Path

import nox

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
FAMILIES = ["gno", "weighted"]
# Tests of the front door, which need neither a compiler nor what else the extra `test` brings.
FRONT_DOOR = ["checks_arrays", "checks_calls", "checks_out", "gemnet", "gno_params", "panels"]
FRONT_DOOR = ["graphs", *(f"operators/test_{name}.py" for name in FRONT_DOOR)]
NEEDED = ["pytest", "hypothesis", "networkx", "ase", "matscipy"]

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False
nox.options.stop_on_first_error = False

# pyenv's shims answer only for the Pythons that are switched on.
ROOT = Path(__file__).parent
found = sorted(map(str, Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin")))
os.environ["PATH"] = os.pathsep.join([*found, os.environ["PATH"]])


def requirements() -> list[str]:
    """Return what the package needs to run, and what its front door's tests need."""
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    tests = project["optional-dependencies"]["test"]
    return [*project["dependencies"], *(r for r in tests if re.match(r"[\w-]+", r)[0] in NEEDED)]


def check(session: nox.Session, needs: list[str]) -> None:
    """Make the wheel, install it beside the given requirements, verify two families, test the front door."""
    tag = f"cp{session.python.replace('.', '')}"
    session.run("make", "wheel", f"PYTHON=python{session.python}", f"VENV=.nox/wheel-{session.python}", external=True)
    (wheel,) = ROOT.glob(f"dist/trigraph-*-{tag}-*manylinux_2_28*.whl")
    session.install(wheel, *needs)
    session.run("python", "-m", "pip", "check")
    session.run("python", "-m", "pip", "list")
    session.chdir(session.create_tmp())
    families = [word for name in FAMILIES for word in ("--operator", name)]
    session.run("trigraph", "verify", *families, "--dtype", "float64", "--report", "report")
    tests = [str(ROOT / "tests" / name) for name in FRONT_DOOR]
    session.run("python", "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *tests, *session.posargs)


@nox.session(python=PYTHONS)
def newest(session: nox.Session) -> None:
    """Try the newest dependencies that this Python can have."""
    check(session, requirements())


@nox.session(python=PYTHONS[0])
def oldest(session: nox.Session) -> None:
    """Try every dependency at the version that pyproject.toml names as its oldest."""
    check(session, [re.sub(r">=([\w.]+).*", r"==\1", r) for r in requirements()])
