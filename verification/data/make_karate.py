"""Make karate.npz: Zachary's karate club, as in networkx.

    python make_karate.py      (needs networkx)

W. W. Zachary, An information flow model for conflict and fission in small groups (1977). 34 members, 78 undirected
friendships with the number of contexts they met in as weights, and the side each took ("Mr. Hi" is 0).
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
