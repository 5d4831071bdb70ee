"""The examples run without a warning, those with options at small size; they learn, keep the energy, draw plots."""

import re
import runpy
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.image import imread

pytest.importorskip("torch")
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
# Examples with options take minutes without them. Paths are strings: torch asks for the source of modules, as runpy
# was given them.
COMMANDS = {path.stem: str(path) for path in EXAMPLES if "@click.command" in path.read_text()}
PROGRAMS = [path for path in EXAMPLES if path.stem not in COMMANDS]


def printed(name, *options):
    """Run an example's command in the working directory of the test; return what it prints."""
    command = runpy.run_path(COMMANDS[name])["main"]
    done = CliRunner().invoke(command, list(map(str, options)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_example_is_run():
    names = ("dimenet_forces", "my_gno", "torch_forwards", "train_on_derivatives", "wrong_derivative")
    assert sorted(path.stem for path in PROGRAMS) == list(names)
    # tests/distributed runs divided_forces on two ranks.
    assert COMMANDS.keys() == {"divided_forces", "gno_poisson", "karate", "train_forces"}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_programs(path):
    runpy.run_path(str(path), run_name="__main__")


def test_poisson_on_meshes_not_seen():
    text = printed("gno_poisson", "--small", "--out", "plot.png")
    errors = [float(e) for e in re.findall(r"^\d+ nodes: relative error (\S+)$", text, re.MULTILINE)]
    assert len(errors) == 2
    assert all(e < 0.5 for e in errors)  # u = 0 has the error 1
    assert imread("plot.png").std() > 0


def test_karate_club():
    pytest.importorskip("networkx")
    text = printed("karate", "--small", "--out", "plot.png")
    right, others = map(int, re.search(r"^(\d+) of (\d+) members predicted right", text, re.MULTILINE).groups())
    assert others == 32
    assert right >= 24  # half of them by chance
    assert imread("plot.png").std() > 0


def test_train_forces():
    text = printed("train_forces", "--number", 10, "--epochs", 2, "--steps", 10)
    assert "8 structures trained, 2 held out" in text
    before, after = map(float, re.search(r"error of forces: (\S+) meV/Å before, (\S+) after", text).groups())
    assert after < before
    total, potential = map(float, re.search(r"energy within (\S+) meV/atom .* within\s(\S+)", text).groups())
    assert total < potential / 100
    assert imread("train_forces.png").std() > 0
