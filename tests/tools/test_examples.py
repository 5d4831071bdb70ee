"""Tests that the examples, which contain their own assertions, run without warnings; tutorials use small sizes.

The site build (test_docs_site.py) runs the tutorials at full size.
"""

import re
import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
from programs import run_command

pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[2] / "examples"
# Small values for the constants that determine the run time of a tutorial.
SMALL_CONSTANTS = {
    "airfoil": {"STEPS": 40, "HIDDEN": 16, "TESTS": 1},
    "clients": {},
    "first_gradient": {},
    "karate": {"STEPS": 40},
    "own_potential": {"STRUCTURES": 8, "EPOCHS": 2, "STEPS": 3},
    "lammps_copper": {"CELLS": 2, "STEPS": 20},
    "phonon_tuning": {"BATCHES": 1, "EPOCHS": 1, "STEPS": 1, "FACTOR": 0, "COPPER": 2, "ALLOY": 1},
    "train_forces": {"STRUCTURES": 40, "EPOCHS": 2, "STEPS": 10},
    "verify_your_own": {},
}
NEEDED = {"clients": "torch_geometric", "jax_potential": "jax", "karate": "networkx", "lammps_copper": "lammps"}
SLOW = {"clients", "verify_your_own"}  # these examples take seconds at any problem size
PROGRAMS = ("jax_potential", "my_gno", "torch_forwards", "wrong_derivative")


def replace_constants(source, constants):
    """Return a tutorial's source with other values for constants that are assigned at the start of a line."""
    for names, values in re.findall(r"^([A-Z, ]+) = (.*)$", source, re.MULTILINE):
        pairs = zip(names.split(", "), values.split(", "), strict=False)
        new = ", ".join(str(constants.get(name, value)) for name, value in pairs)
        if set(names.split(", ")) & constants.keys():
            source = source.replace(f"{names} = {values}", f"{names} = {new}")
    return source


@pytest.fixture(autouse=True)
def _change_to_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")


def test_every_example_has_a_test():
    # divided_forces is tested in tests/distributed.
    run = {*SMALL_CONSTANTS, *PROGRAMS, "divided_forces", "training_run"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == run


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_programs_run_without_errors(name):
    pytest.importorskip(NEEDED.get(name, "trigraph"))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.fixture
def small_training_program(tmp_path):
    """Return the path of a copy of training_run.py with half as many structures and a smaller cutoff."""
    pytest.importorskip("ase")
    path, source = tmp_path / "training_run.py", (EXAMPLES / "training_run.py").read_text()
    assert "range(16)" in source
    assert "cutoff=5.0" in source
    path.write_text(source.replace("range(16)", "range(8)").replace("cutoff=5.0", "cutoff=3.0"))
    return path


def test_training_continues_from_checkpoint(small_training_program, monkeypatch):
    """A run of two epochs is bitwise identical to a run that is interrupted after one epoch and continued."""
    import torch

    def train_and_load_tensors(*arguments):
        monkeypatch.setattr(sys, "argv", ["training_run.py", *arguments])
        runpy.run_path(str(small_training_program), run_name="__main__")
        return list_tensors(torch.load(arguments[0], weights_only=True))

    def list_tensors(saved):
        parts = saved.values() if isinstance(saved, dict) else saved if isinstance(saved, list) else ()
        return [saved] if isinstance(saved, torch.Tensor) else [t for part in parts for t in list_tensors(part)]

    whole = train_and_load_tensors("whole.pt", "2")
    assert len(whole) > 100
    train_and_load_tensors("parts.pt", "1")
    assert all(map(torch.equal, train_and_load_tensors("parts.pt", "2"), whole))
    mixed = train_and_load_tensors("mixed.pt", "2", "bfloat16")
    assert {t.dtype for t in mixed} == {t.dtype for t in whole} == {torch.float32, torch.int64}
    assert not all(map(torch.equal, mixed, whole))


@pytest.mark.slow  # three processes import torch; test_torch_dimenet.py has a quicker test of two ranks
def test_training_continues_in_two_processes(small_training_program):
    import torch

    run_command(sys.executable, small_training_program, "run.pt", "1")
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", small_training_program]
    assert "epoch 2: averaged weights" in run_command(sys.executable, "-m", *command, "run.pt", "2").stdout
    assert torch.load("run.pt", weights_only=True)["epochs"] == 2


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in SMALL_CONSTANTS])
def test_tutorials_run_and_draw_figures(name, tmp_path):
    pytest.importorskip(NEEDED.get(name, "torch"))
    source = (EXAMPLES / f"{name}.py").read_text()
    changed = replace_constants(source, SMALL_CONSTANTS[name])
    assert all(f"{value}" in changed for value in SMALL_CONSTANTS[name].values())
    (tmp_path / f"{name}.py").write_text(changed)
    runpy.run_path(str(tmp_path / f"{name}.py"), run_name="__main__")
    assert mpl.pyplot.get_fignums()
    mpl.pyplot.close("all")
