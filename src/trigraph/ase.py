"""Models of `trigraph.torch.nn` as calculators of ASE, for its relaxations and dynamics."""

from trigraph.calculators.ase import Calculator

__all__ = ["Calculator"]
