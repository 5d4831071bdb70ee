"""ASE calculator for models of `trigraph.torch.nn`."""

from trigraph.calculators.ase import Calculator

__all__ = ["Calculator"]
