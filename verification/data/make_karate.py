"""Create karate.npz: Zachary's karate club, as in networkx.

    python make_karate.py      (needs networkx)

W. W. Zachary, An information flow model for conflict and fission in small groups (1977). The club has 34 members and
78 undirected friendships. Weights are the numbers of contexts in which two friends met; ``side`` is 0 for "Mr. Hi".
"""

from pathlib import Path

import networkx
import numpy as np

if __name__ == "__main__":
    club = networkx.karate_club_graph()
    ends = np.array([(a, b) for a, b in club.edges], np.int64)
    weights = np.array([w for _, _, w in club.edges(data="weight")], np.float64)
    side = np.array([club.nodes[n]["club"] != "Mr. Hi" for n in club], np.float64)
    np.savez_compressed(Path(__file__).parent / "karate.npz", ends=ends, weights=weights, side=side)
