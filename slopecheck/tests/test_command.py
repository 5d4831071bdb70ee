"""The commands of slopecheck, and the imports of the package, which is independent of trigraph."""

import pkgutil
import re
import subprocess
import sys

import pytest
from ase.build import bulk
from click.testing import CliRunner

import slopecheck
from slopecheck.cli import main
from slopecheck.kinds import CALCULATOR_CHECKS
from slopecheck.report import read

MODULE = """
import numpy as np

def at():
    return (np.linspace(1.0, 2.0, 4),)

def nowhere():
    raise OSError("no inputs")
"""
FUNCTION = ("function", "cubes:cube", "functions_to_check:at")


@pytest.fixture
def invoke_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "functions_to_check.py").write_text(MODULE)
    return lambda *words: CliRunner().invoke(main, words)


def test_function_command_finds_a_wrong_gradient(invoke_command, tmp_path):
    """A correct function passes in all orders, a wrong gradient fails, and the comparison of the reports shows this."""
    names = ("--vjp", "cubes:gradient", "--vjp2", "cubes:second_derivatives", "--vjp3", "cubes:third_derivatives")
    right = (*names, "--all", "--report", "right")  # the default order is the number of derivatives
    done = invoke_command(*FUNCTION, *right, "--skip", "nan=an example", "--timeout", "60")
    assert done.exit_code == 0, done.output
    assert "third derivatives" in done.output
    assert "cubes:cube" in done.output
    assert "skipped: an example" in done.output
    assert {p.name for p in (tmp_path / "right").iterdir()} == {"report.html", "report.json"}
    wrong = ("--vjp", "cubes:gradient_with_wrong_element", "--order", "1")
    done = invoke_command(*FUNCTION, *wrong, "--against", "right/report.json")
    assert done.exit_code == 1, done.output
    assert "failed: element [" in done.output
    assert "Changes since" in done.output
    assert "gone checks of numpy, float64: cube" in done.output
    assert re.search("^  0 failed checks pass now, [1-9][0-9]* passed checks fail now$", done.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((*FUNCTION, "--vjp", "cubes:gradient", "--order", "2"), "(on the command line --vjp2, or --order 1)"),
        (FUNCTION, "vjp is a NoneType; expected a function for 'numpy' (on the command line --vjp, and"),
        ((*FUNCTION, "--order", "4"), "is not in the range 1<=x<=3"),
        ((*FUNCTION, "--vjp", "cubes:gradient", "--order", "3"), "order is 3 and vjp is not three functions"),
        ((*FUNCTION, "--skip", "nan"), "expected KIND=WHY"),
        ((*FUNCTION, "--timeout", "nan"), "nan is not a finite number"),
        ((*FUNCTION[:2], "functions_to_check:nowhere"), "cannot be made: OSError: no inputs"),
        (("function", "cubes:none", FUNCTION[2]), "function 'cubes:none' cannot be loaded"),
        ((*FUNCTION, "--against", "functions_to_check.py"), "functions_to_check.py: Expecting value"),
    ],
)
def test_function_command_rejects_wrong_options(invoke_command, words, text):
    done = invoke_command(*words)
    assert done.exit_code == 2, done.output
    assert text in " ".join(done.output.replace("│", " ").split())


def test_package_imports_without_trigraph_and_frameworks(tmp_path):
    """Importing the package loads neither trigraph nor a framework; the command line loads no plotting."""
    modules = [m.name for m in pkgutil.iter_modules(slopecheck.__path__)]
    code = f"""import sys
for name in ("trigraph", "torch", "jax", "ase", "scipy"):
    sys.modules[name] = None
import slopecheck.cli
assert not {{"numpy", "rich", "matplotlib", "jinja2"}} & set(sys.modules), sys.modules.keys()
for name in {modules}:
    __import__(f"slopecheck.{{name}}")
assert all(hasattr(slopecheck, name) for name in slopecheck.__all__)"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def list_skip_options(*kinds):
    """Return the options of ``slopecheck calculator`` that skip all other kinds of check."""
    return [word for kind in CALCULATOR_CHECKS if kind not in kinds for word in ("--skip", f"{kind}=another test")]


def test_calculator_command_writes_report_and_exit_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bulk("Cu", cubic=True).write("cu.xyz", format="extxyz")
    (tmp_path / "mine_to_check.py").write_text(
        "from ase.calculators.emt import EMT\n\n\ndef wrong():\n    raise OSError('no model')\n"
    )
    skips = list_skip_options("forces")
    command = ["calculator", "--structure", "cu.xyz", *skips]
    done = CliRunner().invoke(main, [*command, "mine_to_check:EMT", "--report", "page", "--all"])
    assert done.exit_code == 0, done.output
    assert "3 checks passed, 0 failed" in done.output
    assert "cu.xyz" in done.output
    assert (tmp_path / "page" / "report.html").exists()
    assert read(tmp_path / "page" / "report.json")["counts"]["passed"] == 3
    done = CliRunner().invoke(main, [*command, "mine_to_check:wrong"])
    assert done.exit_code == 1
    assert "OSError: no model" in done.output
    done = CliRunner().invoke(main, ["calculator", "mine_to_check:EMT"])
    assert done.exit_code == 2, done.output
    assert "Missing option '--structure'" in done.output


@pytest.mark.usefixtures("default_signal_handlers")
def test_interrupted_command_shows_completed_checks(tmp_path, monkeypatch):
    """An interrupt during the third of three kinds of check leaves the results of the first two."""
    monkeypatch.chdir(tmp_path)
    bulk("Cu", cubic=True).write("cu.xyz", format="extxyz")
    (tmp_path / "interrupting.py").write_text(
        "import os, signal, time\nfrom ase.calculators.emt import EMT\n\n\nclass Interrupts(EMT):\n"
        "    def calculate(self, atoms, *more):\n        super().calculate(atoms, *more)\n"
        "        if len(atoms) == 1:\n"
        "            time.sleep(2)  # the command has then received what the kinds before have found\n"
        "            os.kill(os.getppid(), signal.SIGINT)\n            time.sleep(60)\n"
    )
    skips = list_skip_options("forces", "net force", "lone atom")
    words = ["calculator", "--structure", "cu.xyz", *skips, "interrupting:Interrupts", "--report", "page"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 130
    lines = done.stdout.splitlines()
    assert sum(line.lstrip(" │").startswith(("forces ", "net force ")) for line in lines) == 4, done.stdout
    assert lines[-1] == "4 checks passed, 0 failed, then interrupted"
    assert done.stderr.strip() == "Ended by SIGINT"
    assert not list((tmp_path / "page").iterdir())
