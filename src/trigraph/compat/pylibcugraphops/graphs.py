"""Graphs by destination, as pylibcugraphops makes them: each is checked once, and holds a `trigraph.CSC`."""

from typing import Any

from trigraph.graphs import CSC


class Graph:
    """A graph by destination with the attributes of the original's opaque types, and its `csc`, a `trigraph.CSC`."""

    def __init__(
        self, caller: str, offsets: Any, indices: Any, num_src_nodes: int | None, map_csc_to_coo: Any = None
    ) -> None:
        try:
            self.csc = CSC(offsets, indices, num_src_nodes, map_csc_to_coo)
        except (TypeError, ValueError) as error:
            message = str(error).replace("CSC: edge_ids", "CSC: map_csc_to_coo", 1)
            raise type(error)(message.replace("CSC:", f"{caller}:", 1)) from None
        self.n_src_nodes, self.n_dst_nodes = self.csc.num_src_nodes, self.csc.num_dst_nodes
        self.n_indices = self.csc.num_positions


def make_csc(offsets: Any, indices: Any, map_csc_to_coo: Any = None) -> Graph:
    """Make a graph whose sources and destinations are the same nodes; arrays or tensors as `trigraph.CSC` takes them.

    `map_csc_to_coo` is the row of the edge arrays for each position.
    """
    return Graph("make_csc", offsets, indices, None, map_csc_to_coo)


def make_bipartite_csc(offsets: Any, indices: Any, n_src_nodes: int, map_csc_to_coo: Any = None) -> Graph:
    """Make a graph from `n_src_nodes` sources to other nodes; arguments as of :func:`make_csc`."""
    return Graph("make_bipartite_csc", offsets, indices, n_src_nodes, map_csc_to_coo)
