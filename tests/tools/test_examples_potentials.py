"""The examples that train potentials, at small size: they learn, keep the energy, and draw their plots."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.image import imread

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(folder, name, *options):
    command = [sys.executable, "-W", "error", EXAMPLES / f"{name}.py", *options]
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert imread(folder / f"{name}.png").std() > 0
    return done.stdout


def test_train_forces(tmp_path):
    text = printed(tmp_path, "train_forces", "--number", 20, "--epochs", 2, "--steps", 10)
    assert "16 structures trained, 4 held out" in text
    before, after = map(float, re.search(r"error of forces: (\S+) meV/Å before, (\S+) after", text).groups())
    assert after < before
    total, potential = map(float, re.search(r"energy within (\S+) meV/atom .* within\s(\S+)", text).groups())
    assert total < potential / 100


def test_fit_g2(tmp_path):
    text = printed(tmp_path, "fit_g2", "--steps", 5)
    assert "119 molecules trained on, 29 held out" in text
    before, after = map(float, re.findall(r": (\S+) eV trained on", text))
    assert after < before


@pytest.mark.parametrize(
    ("name", "option", "wrong"),
    [
        ("fit_g2", "steps", -1),
        ("train_forces", "number", 4),
        ("train_forces", "epochs", -1),
        ("train_forces", "steps", -1),
    ],
)
def test_options_out_of_range(name, option, wrong, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    done = CliRunner().invoke(importlib.import_module(name).main, [f"--{option}", str(wrong)])
    assert done.exit_code == 2
    assert f"Invalid value for '--{option}': {wrong} is not in the range" in done.output


@pytest.mark.parametrize(("name", "energy"), [("H2", 4.75), ("CH4", 18.2), ("N2", 9.9)])
def test_labels(name, energy, monkeypatch):
    """Experimental atomization energies: 109.5, 420 and 228 kcal/mol."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import fit_g2

    assert fit_g2.atomization_energy(name) == pytest.approx(energy, abs=0.05)
