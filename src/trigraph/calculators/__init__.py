"""Interfaces to ASE, torch-sim and LAMMPS for models of `trigraph.torch.nn`."""
