"""What the tests of graph objects share: arguments of a small CSC, random graphs, the names of their arrays."""

import numpy as np

from trigraph import CSC

INDEX = [np.int32, np.int64]
ARRAYS = ("offsets", "indices", "edge_ids")
REVERSE = ("destinations", "src_offsets", "src_positions", "row_offsets", "row_positions")


def ints(*values, dtype=np.int64):
    return np.array(values, dtype)


def arguments():
    return {
        "offsets": ints(0, 2, 2, 3),
        "indices": ints(1, 0, 3),
        "num_src_nodes": 4,
        "edge_ids": ints(0, 1, 1),
        "num_edges": 3,
    }


def random_graph(seed, n_src=7, n_dst=5, n=40, n_rows=25, index=np.int64):
    rng = np.random.default_rng(seed)
    src, dst, rows = (rng.integers(0, size, n).astype(index) for size in (n_src, n_dst, n_rows))
    return src, dst, rows, CSC.from_coo(src, dst, n_src, n_dst, rows, n_rows)
