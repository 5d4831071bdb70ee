"""Energies, forces and stresses of structures, their neighbours, and compiled programs of them.

They are built on the layers; `trigraph.torch.nn` has the public names of both.
"""
