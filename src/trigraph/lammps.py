"""LAMMPS force field for models of `trigraph.torch.nn`."""

from trigraph.calculators.lammps import Attached, attach, run

__all__ = ["Attached", "attach", "run"]
