"""A case with its edges and nodes renumbered: results are the same, in another order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from trigraph.edge_graph import EdgeGraph
from trigraph.graphs import CSC
from trigraph.operators import SYMBOLS
from trigraph.segments import Segments
from trigraph.verification.cases import Case, frozen

__all__ = ["renumbered"]


def _any_orders(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
    names = (n for n in case.definition.symbols if SYMBOLS[n].minimum == 0)
    return {n: rng.permutation(case.sizes[n]) for n in names}


def _renumber_nothing(case: Case, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    return {}, _any_orders(case, rng)


def _renumber_segments(case: Case, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Give edges, triplets and atoms new numbers; edges or triplets stand for atoms or inputs that are absent."""
    orders, values = _any_orders(case, rng), case.values
    owners = {"triplets": ("num_triplets", "num_edges")}
    if "atoms" in values:
        owners |= {"atoms": ("num_edges", "num_outputs"), "idx_in": ("num_triplets", "num_inputs")}
    for name, (members, segments) in owners.items():
        if values[name] is None:
            orders[segments] = orders[members]
    new = {name: np.argsort(order) for name, order in orders.items()}
    graphs: dict[str, Any] = {}
    for name, (members, segments) in owners.items():
        old = values[name]
        if old is not None:
            index = new[segments][old.index[orders[members]]].astype(old.index.dtype)
            graphs[name] = Segments(index, old.num_segments)
    return graphs, orders


def _renumber_edges(case: Case, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Give nodes new numbers; edges follow, sorted by their new source, in any order within it."""
    graph, orders = case.values["graph"], _any_orders(case, rng)
    new = np.argsort(orders["num_nodes"]).astype(graph.src.dtype)
    edges = orders["num_edges"]
    edges = edges[np.argsort(new[graph.src[edges]], kind="stable")]
    vec = case.values["vec"][edges]
    other = EdgeGraph(new[graph.src[edges]], new[graph.dst[edges]], graph.num_nodes, vec=vec)
    return {"graph": other}, {**orders, "num_edges": edges}


def _renumber_csc(case: Case, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Give nodes and rows new numbers, and positions of a destination a new order."""
    graph, orders = case.values["graph"], _any_orders(case, rng)
    new = {name: np.argsort(order).astype(graph.indices.dtype) for name, order in orders.items()}
    positions = rng.permutation(graph.num_positions)
    destinations = graph.prepare().destinations
    other = CSC.from_coo(
        new["num_src_nodes"][graph.indices[positions]],
        new["num_dst_nodes"][destinations[positions]],
        graph.num_src_nodes,
        graph.num_dst_nodes,
        new["num_edges"][graph.edge_ids[positions]],
        graph.num_edges,
    )
    return {"graph": other}, orders


RENUMBER = {
    None: _renumber_nothing,
    "csc": _renumber_csc,
    "edges": _renumber_edges,
    "triplets": _renumber_segments,
    "bilinear": _renumber_segments,
}


def renumbered(case: Case, seed: int) -> tuple[Case, dict[str, np.ndarray]]:
    """Renumber the entities (edges, nodes) of a case.

    Parameters
    ----------
    case : Case
    seed : int

    Returns
    -------
    case : Case
        The same, in another order.
    orders : mapping from size to array
        Row k of an array whose leading size is `name` is row ``orders[name][k]`` of the first case's.
    """
    rng = np.random.default_rng(seed)
    definition = case.definition
    graphs, orders = RENUMBER[definition.graph](case, rng)

    leading = {f"{prefix}{a.name}": a.dims[0] for a in definition.inputs for prefix in ("", "gg_")}
    leading |= {f"grad_{a.name}": a.dims[0] for a in definition.outputs}

    def reorder(name: str, array: np.ndarray) -> np.ndarray:
        return frozen(array[orders[leading[name]]]) if leading[name] in orders else array

    arrays = {a.name: reorder(a.name, case.values[a.name]) for a in case.inputs}
    grads = {name: reorder(name, array) for name, array in case.grads.items()}
    ggs = {name: reorder(name, array) for name, array in case.ggs.items()}
    directions = {name: reorder(name, array) for name, array in case.directions.items()}
    values = {**case.values, **arrays, **graphs}
    return replace(case, values=values, grads=grads, ggs=ggs, directions=directions), orders
