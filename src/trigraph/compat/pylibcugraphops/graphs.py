"""Graphs by destination, as pylibcugraphops makes them: each is checked once, and holds a `trigraph.CSC`."""

from typing import Any

from trigraph.graphs import CSC, count

__all__ = ["Graph", "make_bipartite_csc", "make_csc"]


class Graph:
    """A graph by destination, as the original's opaque graph types.

    Attributes
    ----------
    csc : trigraph.CSC
    n_src_nodes, n_dst_nodes, n_indices : int
    """

    def __init__(
        self,
        caller: str,
        offsets: Any,
        indices: Any,
        num_src_nodes: int | None,
        map_csc_to_coo: Any = None,
        dst_max_in_degree: int | None = None,
    ) -> None:
        try:
            self.csc = CSC(offsets, indices, num_src_nodes, map_csc_to_coo)
        except (TypeError, ValueError) as error:
            message = str(error).replace("CSC: edge_ids", "CSC: map_csc_to_coo", 1)
            raise type(error)(message.replace("CSC:", f"{caller}:", 1)) from None
        if dst_max_in_degree is not None and dst_max_in_degree != -1:  # as the original says that it is not known
            degree = count(caller, "dst_max_in_degree", dst_max_in_degree)
            if degree < self.csc.max_in_degree:
                raise ValueError(
                    f"{caller}: dst_max_in_degree is {degree}; expected at least {self.csc.max_in_degree}, "
                    "the in-degree of a destination"
                )

    @property
    def n_src_nodes(self) -> int:
        """Number of source nodes."""
        return self.csc.num_src_nodes

    @property
    def n_dst_nodes(self) -> int:
        """Number of destination nodes."""
        return self.csc.num_dst_nodes

    @property
    def n_indices(self) -> int:
        """Number of CSC positions."""
        return self.csc.num_positions

    def add_reverse_graph(self) -> None:
        """Build what backward passes need, now rather than in the first of them."""
        self.csc.prepare()


def make_csc(offsets: Any, indices: Any, map_csc_to_coo: Any = None) -> Graph:
    """Make a graph whose sources and destinations are the same nodes.

    Parameters
    ----------
    offsets : array or tensor of int32 or int64, shape (n_dst_nodes + 1,)
        Starts at 0, never decreases, ends at the number of indices.
    indices : array or tensor, same dtype, shape (n_indices,)
        Source of each position.
    map_csc_to_coo : array or tensor, same dtype, shape (n_indices,), optional
        Row of the edge arrays for each position.

    Raises
    ------
    TypeError, ValueError
        If an array has the wrong kind, dtype or shape, or a value is out of range.
    """
    return Graph("make_csc", offsets, indices, None, map_csc_to_coo)


def make_bipartite_csc(offsets: Any, indices: Any, n_src_nodes: int, map_csc_to_coo: Any = None) -> Graph:
    """Make a graph from `n_src_nodes` sources to other nodes; arguments as of :func:`make_csc`."""
    return Graph("make_bipartite_csc", offsets, indices, n_src_nodes, map_csc_to_coo)
