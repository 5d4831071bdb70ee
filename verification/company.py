"""A case among strangers: nodes and edges before and after its own that no edge connects with them, as in a batch.

What belongs to a node, an edge or a structure then has the bits it has alone: they depend on neither what else is in
the call, nor on where in its arrays something lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from trigraph.table import SYMBOLS, Array, Operator
from trigraph.verification.cases import Case, frozen
from trigraph.verification.graphs import GRAPHS
from trigraph.verification.graphs.csc import rows_are_positions

__all__ = ["InCompany", "in_company", "own_fields"]

# Strangers before own few rows (graphs.CROWDED); those after have few members, which changes every mean degree. No
# number here divides by a size that a panel cuts its work into.
BEFORE = {"nodes": 3, "edges": 437, "positions": 411, "triplets": 901}
AFTER = {"nodes": 389, "edges": 31, "positions": 23, "triplets": 11}
ENTITIES = {
    "num_edges": "edges",
    "num_positions": "positions",
    "num_src_nodes": "nodes",
    "num_dst_nodes": "nodes",
    "num_nodes": "nodes",
    "num_triplets": "triplets",
    "num_inputs": "nodes",
    "num_outputs": "nodes",
}


@dataclass(frozen=True)
class InCompany:
    """A case among strangers, and where it is: entity k of its own is number ``first[size] + k`` of the whole."""

    case: Case
    first: Mapping[str, int]

    def own(self, field: Array, array: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
        """Return the part of a field that belongs to the case alone, whose sizes are given."""
        axis, entity = _entity(field)
        part = np.take(array, np.arange(self.first[entity], self.first[entity] + sizes[entity]), axis)
        return np.where(part >= 0, part - self.first["num_positions"], part) if field.index else part


def _entity(array: Array) -> tuple[int, str]:
    """Return the first axis of an array that nodes, edges or the like lie along, and the size's name; -1 for none."""
    return next(((k, dim) for k, dim in enumerate(array.dims) if dim in ENTITIES), (-1, ""))


def own_fields(case: Case, op: Operator) -> list[Array]:
    """Return the fields that belong to nodes, edges and the like, and are no sum over all of them."""
    return [field for field in case.returned(op) if _entity(field)[0] >= 0]


def in_company(case: Case, seed: int) -> InCompany:
    """Put a case among strangers.

    Parameters
    ----------
    case : Case
    seed : int
        Of the strangers' edges and of the rows of the case's arrays that they have.
    """
    rng = np.random.default_rng(seed)
    definition = case.definition
    names = [n for n in definition.symbols if SYMBOLS[n].minimum == 0]
    same = {"num_outputs": "num_edges"} if case.values.get("atoms", ...) is None else {}
    same |= {"num_inputs": "num_triplets"} if case.values.get("idx_in", ...) is None else {}
    before, after = (
        {n: number[ENTITIES[same.get(n, n)]] for n in names if n in ENTITIES} for number in (BEFORE, AFTER)
    )
    if rows_are_positions(case):  # and stay so: position p of the whole has row p of its edge arrays
        before["num_edges"] = before["num_positions"]
    sizes = {**case.sizes, **{n: before[n] + case.sizes[n] + after[n] for n in before}}

    def surrounded(array: np.ndarray, dims: tuple[str, ...]) -> np.ndarray:
        axis, entity = next(((k, dim) for k, dim in enumerate(dims) if dim in ENTITIES), (-1, ""))
        if axis < 0:
            return array
        number = array.shape[axis]
        rows = [rng.integers(0, number, count[entity]) for count in (before, after)] if number else []
        if not number:  # any positive number would do
            shape = (*array.shape[:axis], sizes[entity], *array.shape[axis + 1 :])
            return frozen(np.ones(shape, array.dtype))
        return frozen(np.take(array, np.concatenate([rows[0], np.arange(number), rows[1]]), axis))

    dims = {f"{prefix}{a.name}": a.dims for a in definition.inputs for prefix in ("", "gg_")}
    dims |= {f"grad_{a.name}": a.dims for a in definition.outputs}
    values = {n: surrounded(v, dims[n]) if n in dims and v is not None else v for n, v in case.values.items()}
    values |= GRAPHS[definition.graph].among_strangers(case, before, after, rng)
    grads = {n: surrounded(v, dims[n]) for n, v in case.grads.items()}
    ggs = {n: surrounded(v, dims[n]) for n, v in case.ggs.items()}
    return InCompany(replace(case, sizes=sizes, values=values, grads=grads, ggs=ggs), before)
