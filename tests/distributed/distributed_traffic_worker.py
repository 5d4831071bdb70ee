"""A rank of test_distributed_traffic.py: compares what `traffic` counts with what the ranks of divided graphs have."""

import numpy as np
from mpi4py import MPI

from trigraph import CSC, EdgeGraph
from trigraph.distributed import owners, partition, traffic
from trigraph.distributed.kinds import CSCKind, EdgesKind

COMM = MPI.COMM_WORLD


def graphs():
    """Return graphs with the owners of their nodes and sources: with halos and without."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(40, size=90), rng.integers(30, size=90)
    yield CSC.from_coo(src, dst, 40, 30), rng.integers(COMM.size, size=30), rng.integers(COMM.size, size=40)
    # Rows of edge arrays are shared by positions, and some have none.
    yield CSC.from_coo(src, dst, 40, 30, rng.integers(50, size=90), 55), rng.integers(COMM.size, size=30), None
    ends = rng.integers(30, size=(2, 60))
    yield EdgeGraph.sorted(ends[0], ends[1], 30).graph, rng.integers(COMM.size, size=30), None
    grid = np.stack(np.meshgrid(*[np.arange(7)] * 3, indexing="ij"), -1).reshape(-1, 3).astype(np.float64)
    atoms = EdgeGraph.from_positions(grid, 1.5).graph  # with blocks that read nothing foreign
    yield atoms, owners.bisection(grid, COMM.size), None
    csc = CSC.from_coo(atoms.src, atoms.dst, len(grid), len(grid))
    yield csc, owners.bisection(grid, COMM.size), None
    yield csc, np.full(len(grid), COMM.size - 1), None
    # Node 2 is foreign to rank 0 and reads its edges alone, and so is complete there.
    yield EdgeGraph(np.array([0, 1, 1, 3]), np.array([2, 0, 2, 1]), 4), np.array([0, 0, 1, 0]) % COMM.size, None


def neighbours(halos):
    """Return the number of ranks that rows come from."""
    return len({rank for halo in halos.values() for rank in halo._coming})


def main():
    CSCKind.chunk, EdgesKind.chunk = 4, 4
    seen = 0
    for number, (graph, owner, source_owner) in enumerate(graphs()):
        found = traffic(graph, owner, COMM.size, source_owner)
        part = partition(graph, COMM, owner, source_owner)
        assert {s: n[COMM.rank] for s, n in found.owned.items()} == {s: ids.size for s, ids in part.owned.items()}
        column = "num_positions" if isinstance(graph, CSC) else "num_edges"
        layouts = ((found.forward, part.outputs), (found.backward, part.everything), (found.sums, part.chunks))
        for name, (cost, layout) in zip(("forward", "backward", "sums"), layouts, strict=True):
            received = {s: halo.received for s, halo in layout.halos.items()}
            assert {s: n[COMM.rank] for s, n in cost.received.items()} == received, (number, name, received, cost)
            assert cost.neighbours[COMM.rank] == neighbours(layout.halos), (number, name)
            parts = layout.parts if name == "sums" else (layout.interior, layout.boundary)
            calls = [p for p in parts if name == "sums" or p.completes]
            members = sum(getattr(p.graphs["graph"], column) for p in calls)
            assert cost.members[COMM.rank] == members, (number, name, members, cost)
            seen += sum(received.values())
    everyone = COMM.allgather(seen)
    assert all(everyone) or COMM.size == 1
    if COMM.rank == 0:
        print(f"{number + 1} graphs, {COMM.size} ranks")


if __name__ == "__main__":
    main()
