"""Which rank owns which node: blocks of equal numbers, halves of space, or METIS."""

from __future__ import annotations

from typing import Any

import numpy as np

from trigraph.graphs import CSC
from trigraph.graphs.edge_graph import EdgeGraph

__all__ = ["bisection", "blocks", "metis"]


def blocks(number: int, parts: int) -> np.ndarray:
    """Divide numbers 0, 1, ... into consecutive blocks whose sizes differ by one at most.

    Parameters
    ----------
    number : int
        Nodes.
    parts : int

    Returns
    -------
    int64 array, shape (number,)
        Part of each node.
    """
    return np.arange(number) * parts // max(number, 1)


def bisection(positions: Any, parts: int) -> np.ndarray:
    """Cut space in two, across its longest extent and by the number of nodes, again and again.

    Parameters
    ----------
    positions : array, shape (number, dimensions)
        Of the nodes, in any unit of length.
    parts : int
        Any number; the two sides of a cut share the nodes as they share the parts.

    Returns
    -------
    int64 array, shape (number,)
        Part of each node.
    """
    positions = np.asarray(positions, np.float64)
    found = np.zeros(len(positions), np.int64)
    waiting = [(np.arange(len(positions)), 0, parts)]
    while waiting:
        nodes, first, number = waiting.pop()
        if number == 1 or nodes.size == 0:
            found[nodes] = first
            continue
        axis = int(np.ptp(positions[nodes], axis=0).argmax())
        order = nodes[np.argsort(positions[nodes, axis], kind="stable")]
        left = number // 2
        at = nodes.size * left // number
        waiting += [(np.sort(order[:at]), first, left), (np.sort(order[at:]), first + left, number - left)]
    return found


def metis(graph: CSC | EdgeGraph, parts: int) -> np.ndarray:
    """Cut few edges, by METIS.

    Parameters
    ----------
    graph : CSC or EdgeGraph
        With as many sources as destinations.
    parts : int

    Returns
    -------
    int64 array, shape (number of nodes,)
        Part of each node.

    Raises
    ------
    ImportError
        If pymetis is not installed.
    ValueError
        If sources and destinations are not the same nodes.
    """
    import pymetis  # type: ignore[import-not-found]
    from scipy import sparse

    if isinstance(graph, EdgeGraph):
        src, dst, number = graph.src, graph.dst, graph.num_nodes
    else:
        if graph.num_src_nodes != graph.num_dst_nodes:
            raise ValueError(
                f"metis: the graph has {graph.num_src_nodes} sources and {graph.num_dst_nodes} destinations; "
                "expected the same nodes"
            )
        src, dst, number = graph.indices, graph.prepare().destinations, graph.num_dst_nodes
    if parts == 1 or number == 0:
        return np.zeros(number, np.int64)
    other = src != dst
    ends = np.concatenate([src[other], dst[other]]), np.concatenate([dst[other], src[other]])
    both = sparse.coo_matrix((np.ones(ends[0].size, np.int8), ends), shape=(number, number)).tocsr()
    _, membership = pymetis.part_graph(parts, xadj=both.indptr, adjncy=both.indices)
    return np.asarray(membership, np.int64)
