"""Constants shared by Python and the CUDA kernels.

The build writes these constants to ``gpu/kernels/constants.cuh`` (``tools/make_constants.py``).
"""

PART_SIZE = 128  # CSR positions of a row that a kernel processes at a time; longer rows are split into parts
THREADS = 128  # threads per block of most kernels
MATRIX_ROWS = 128  # tile rows in float32, half as many in float64, for the product of a tall and a small matrix
# DimeNet++.
DEGREES = 8  # maximum number of spherical-harmonic degrees
PAD = 64  # channels per tile of the transposed second weights, named `up` in the kernels
PROJECTED = 64  # edges per thread block in products with the first weights
RADIALS = 6  # radial functions per tile of the first weights; DimeNet++ has 6 by default
# Neighbour search.
NEIGHBOR_LANES = 8  # threads that search for the neighbours of one atom
NEIGHBOR_FRAME = 29  # size in float64 numbers of the kernels' `CellFrame`, which describes the cell of a structure
# GemNet-OC.
MOST_IN_ORDER = 256  # maximum number of triplets of an edge that are summed sequentially; longer sums use a tree
INTERM = 32  # rows of the matrix P that one warp computes
# Bit flags for the steps of the kernels gat_forward and gat_backward.
STATISTICS_STEP, OUTPUT_STEP = 1, 2
FIRST_STEP, SECOND_STEP, LAST_STEP, ALL_STEPS = 1, 2, 4, 7
