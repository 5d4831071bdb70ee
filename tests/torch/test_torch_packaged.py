"""trigraph.torch.package_potential: a program in a file, for structures of any size, without its model's source."""

import json
import sys

import pytest
import torch
from compiled_programs import compiled_whole
from programs import run
from test_torch_compiled import BATCHES, assert_same_results, close, potential, structures

import trigraph.torch as tt
from trigraph.torch.nn import Potential

# Torch's own deprecation.
pytestmark = [compiled_whole, pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")]
FORCES = """
import sys
from ase import Atoms
from trigraph.ase import Calculator
from trigraph.torch import load_potential
calculator = Calculator(load_potential(sys.argv[1]))
atoms = Atoms("CHO", [[0.0, 0.0, 0.0], [1.2, 0.0, 0.0], [0.0, 1.3, 0.4]], calculator=calculator)
print(atoms.get_forces().tolist())
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tt.package_potential(potential(), tmp_path_factory.mktemp("packages") / "potential.pt2")


@pytest.mark.parametrize("periodic", [False, True])
def test_a_package_takes_structures_of_any_size(path, periodic):
    model, packaged = potential(), tt.load_potential(path)
    assert packaged.cutoff == model.cutoff
    assert_same_results(packaged, model, [*BATCHES, (2,), (0, 2), (27, 27)], periodic)


def test_another_process_uses_a_package(path):
    pos = torch.tensor([[0.0, 0.0, 0.0], [1.2, 0.0, 0.0], [0.0, 1.3, 0.4]], dtype=torch.float64)
    printed = run(sys.executable, "-c", FORCES, path).stdout
    expected = potential().energy_forces_stress(torch.tensor([6, 1, 8]), pos).forces
    close(torch.tensor(json.loads(printed), dtype=torch.float64), expected)


def test_what_a_package_refuses(path, tmp_path):
    packaged, (z, pos, _) = tt.load_potential(path), structures((4,))
    with pytest.raises(ValueError, match="create_graph is True; expected False"):
        packaged.energy_forces_stress(z, pos, create_graph=True)
    with pytest.raises(ValueError, match="z has 95; expected 0 to 94"):
        packaged.energy_forces_stress(torch.full_like(z, 95), pos)
    with pytest.raises(TypeError, match=r"pos has dtype torch.float32; expected torch.float64"):
        packaged.energy_forces_stress(z, pos.float())
    with pytest.raises(TypeError, match=r"model is a Linear; expected a trigraph.torch.nn.Potential"):
        tt.package_potential(torch.nn.Linear(1, 1), tmp_path / "other.pt2")


def test_a_model_that_asks_for_sizes_is_refused_at_others(tmp_path):
    """As `compile_potential` does, which then computes with the model."""

    class Switched(Potential):
        cutoff = 3.0

        def atoms_of_vectors(self, z, vec, neighbors):
            atoms = neighbors.into_atoms(vec.square().sum(1, keepdim=True))
            return atoms if z.shape[0] > 20 else 2.0 * atoms

    packaged = tt.load_potential(tt.package_potential(Switched(), tmp_path / "switched.pt2"))
    z, pos, batch = structures((12, 13))
    pos = pos.float()
    close(packaged(z, pos, batch), Switched()(z, pos, batch), 2**29)
    with pytest.raises(RuntimeError, match="Switched does something else for 4 atoms with"):
        packaged(z[:4], pos[:4])
