"""Create airfoil.npz: pyamg's airfoil mesh as a graph, and weights of a graph neural operator for the graph.

    python make_airfoil.py athena_gno.npz      (needs pyamg)

Nodes are the vertices of the mesh; every edge of a triangle yields two directed edges, i -> j and j -> i. The weights
are from case03 of the golden vectors of athena's GNO layer (d = 2, H = 32, f_in = f_out = 8), in packed form.
"""

import sys
from pathlib import Path

import numpy as np
from pyamg.gallery import load_example


def main(golden: str) -> None:
    """Write airfoil.npz next to this script."""
    mesh = load_example("airfoil")
    positions = np.ascontiguousarray(mesh["vertices"], np.float64)
    triangles = mesh["elements"].astype(np.int64)
    sides = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]])
    sides = np.unique(np.sort(sides, axis=1), axis=0)
    src = np.concatenate([sides[:, 0], sides[:, 1]])
    dst = np.concatenate([sides[:, 1], sides[:, 0]])
    order = np.lexsort((src, dst))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=len(positions)))])
    np.savez_compressed(
        Path(__file__).with_name("airfoil.npz"),
        positions=positions,
        offsets=offsets.astype(np.int32),
        indices=src[order].astype(np.int32),
        params=np.load(golden)["case03/params"],
    )


if __name__ == "__main__":
    main(sys.argv[1])
