"""Energies, forces and stresses of atomic structures, neighbour search, and compiled potentials.

The public names, like the layers, are in `trigraph.torch.nn`.
"""
