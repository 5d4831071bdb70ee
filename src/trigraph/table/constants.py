"""Numbers that Python and the CUDA kernels share.

The build writes them to ``gpu/kernels/constants.cuh`` (``tools/make_constants.py``).
"""

PART_SIZE = 128  # positions of a row that a kernel processes at a time; longer rows are cut into parts
THREADS = 128  # threads of most blocks
MATRIX_ROWS = 128  # rows of a tile of float32, twice those of float64, in the product of a tall matrix and a small one
# DimeNet++.
DEGREES = 8  # largest number of degrees of spherical harmonics
PAD = 64  # channels in a tile of what the kernels call up
PROJECTED = 64  # edges of a block of the products with the first weights
RADIALS = 6  # radial functions of a tile of the first weights, the usual number
# The search for neighbours.
NEIGHBOR_LANES = 8  # threads for the neighbours of an atom
NEIGHBOR_FRAME = 29  # numbers of float64 in the memory of a structure's cell
# GemNet-OC.
MOST_IN_ORDER = 256  # largest number of triplets of an edge that are added without a tree
INTERM = 32  # rows of P that a warp computes
# Steps of gat_forward and of gat_backward.
STATISTICS_STEP, OUTPUT_STEP = 1, 2
FIRST_STEP, SECOND_STEP, LAST_STEP, ALL_STEPS = 1, 2, 4, 7
