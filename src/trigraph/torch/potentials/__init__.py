"""Energies, forces and stresses of structures, neighbours of atoms, and compiled programs.

They are built on the layers. `trigraph.torch.nn` has the public names of both.
"""
