"""Models of `trigraph.torch.nn` as force fields of LAMMPS, through its ``fix external``."""

from trigraph.calculators.lammps import Attached, attach, run

__all__ = ["Attached", "attach", "run"]
