"""Models of `trigraph.torch.nn` in the programs that move atoms: ASE, torch-sim and LAMMPS."""
