"""Test the wheel in every Python on this machine, with the newest and the oldest dependencies (`make test-pythons`).

Sessions for torch's oldest and newest release run only if they are named, because each installs 5 GB of CUDA libraries.
"""

import os
import re
from pathlib import Path

import nox

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14", "3.15"]
PYTHON_OF_TORCH = "3.12"  # both torch releases have wheels for this Python
FAMILIES = ["gno", "weighted"]
# Tests of the public functions that need neither a compiler nor the other packages of the extra `test`.
FRONT_DOOR = [
    "graphs",
    "operators/test_checks.py",
    "operators/test_gno_params.py",
    "operators/test_memory.py",
    "operators/test_backends.py",
]
NEEDED = ["pytest", "hypothesis", "networkx", "ase", "matscipy"]

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False
nox.options.stop_on_first_error = False

# Search pyenv's versions directly, because its shims run only the active ones.
ROOT = Path(__file__).parent
found = sorted(map(str, Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin")))
os.environ["PATH"] = os.pathsep.join([*found, os.environ["PATH"]])


def list_requirements(needed: list[str]) -> list[str]:
    """Return the package's requirements, and its tests' requirements whose names are in `needed`."""
    project, checks = (nox.project.load_toml(ROOT / p / "pyproject.toml")["project"] for p in (".", "slopecheck"))
    tests = (r for extra in ("testing", "test") for r in project["optional-dependencies"][extra])
    return [
        *project["dependencies"],
        *checks["dependencies"],
        *(r for r in tests if re.match(r"[\w-]+", r)[0] in needed),
    ]


def pin_oldest(requirement: str) -> str:
    """Return a requirement pinned to its oldest allowed version."""
    return re.sub(r">=([\w.]+).*", r"==\1", requirement)


def build_and_install_wheel(session: nox.Session, needs: list[str]) -> None:
    """Build the wheel and install it with the given requirements."""
    tag = f"cp{session.python.replace('.', '')}"
    session.run("make", "wheel", f"PYTHON=python{session.python}", f"VENV=.nox/wheel-{session.python}", external=True)
    (wheel,) = ROOT.glob(f"dist/trigraph-*-{tag}-*manylinux_2_28*.whl")
    session.install(wheel, str(ROOT / "slopecheck"), *needs)
    session.run("python", "-m", "pip", "check")
    session.run("python", "-m", "pip", "list")
    session.chdir(session.create_tmp())


def run_tests(session: nox.Session, names: list[str]) -> None:
    """Run the tests in these files and folders."""
    tests = [str(ROOT / "tests" / name) for name in names]
    session.run("python", "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *tests, *session.posargs)


def install_and_check_wheel(session: nox.Session, needs: list[str]) -> None:
    """Verify two families, and test the public functions."""
    build_and_install_wheel(session, needs)
    families = [word for name in FAMILIES for word in ("--operator", name)]
    session.run("trigraph", "verify", *families, "--dtype", "float64", "--report", "report")
    run_tests(session, FRONT_DOOR)


def run_torch_tests(session: nox.Session, torch: str) -> None:
    """Run all tests of `trigraph.torch` with one release of torch."""
    build_and_install_wheel(session, [*list_requirements([*NEEDED, "ml_dtypes", "torch_geometric"]), torch])
    run_tests(session, ["torch"])


@nox.session(python=PYTHONS)
def newest(session: nox.Session) -> None:
    """Test with the newest dependencies that this Python supports."""
    install_and_check_wheel(session, list_requirements(NEEDED))


@nox.session(python=PYTHONS[0])
def oldest(session: nox.Session) -> None:
    """Test with the oldest version of every dependency that pyproject.toml allows."""
    install_and_check_wheel(session, [pin_oldest(r) for r in list_requirements(NEEDED)])


@nox.session(name="torch-newest", python=PYTHON_OF_TORCH, default=False)
def test_newest_torch(session: nox.Session) -> None:
    """Test with the newest release of torch."""
    run_torch_tests(session, "torch")


@nox.session(name="torch-oldest", python=PYTHON_OF_TORCH, default=False)
def test_oldest_torch(session: nox.Session) -> None:
    """Test with the oldest release of torch that pyproject.toml allows."""
    extra = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]["torch"]
    (torch,) = (pin_oldest(r) for r in extra if r.startswith("torch>="))
    run_torch_tests(session, f"{torch}.*")
