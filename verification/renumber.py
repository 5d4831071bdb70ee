"""A case with its edges and nodes renumbered: results are the same, in another order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trigraph.verification.cases import Case, frozen
from trigraph.verification.graphs import GRAPHS

__all__ = ["renumbered"]


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
    graphs, orders = GRAPHS[definition.graph].renumbered(case, rng)

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
