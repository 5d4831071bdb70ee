"""Energies, forces and stresses of structures, neighbours of atoms, and compiled programs.

The public names are in `trigraph.torch.nn`, like the names of the layers.
"""
