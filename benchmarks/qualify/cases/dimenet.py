"""Cases that reach every kernel of DimeNet++, small enough for a sanitizer, compared with the readable panel."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import trigraph.gpu as gpu
import trigraph.gpu.dimenet as panel
import trigraph.pyref as pyref
from trigraph import EdgeGraph
from trigraph.benchmarks.qualify.cases.comparison import close_fields
from trigraph.benchmarks.qualify.place import Device

__all__ = ["run"]


class Case(NamedTuple):
    """Types, the pairs of nodes that are joined (in both directions), nodes, and sizes C, M, S, R, exclude."""

    real: type
    index: type
    joined: list[tuple[int, int]]
    num_nodes: int
    sizes: tuple[int, int, int, int]
    exclude: str | None


def every_pair(num_nodes: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(num_nodes) for j in range(i)]


CASES = {
    # More edges than degrees, parallel ones and self edges; two tiles of channels, two blocks of staged edges.
    "crystal": Case(np.float32, np.int32, every_pair(5) * 3 + [(1, 1), (2, 2)], 6, (33, 3, 3, 2), "node"),
    "molecule": Case(np.float64, np.int64, every_pair(5), 7, (5, 2, 8, 3), "node"),
    "dense": Case(np.float64, np.int64, every_pair(7) * 2, 7, (3, 2, 7, 1), "edge"),
    # Two tiles of channels and two of rows of the second weights, with as many degrees as models have.
    "cluster": Case(np.float32, np.int32, every_pair(12) + [(0, i) for i in range(5)], 12, (65, 9, 7, 1), "node"),
    # More in-edges and out-edges at every node than degrees, so that all sums are linear.
    "complete": Case(np.float32, np.int32, every_pair(10), 10, (3, 2, 7, 2), "node"),
    # One node with many edges, so that sums are cut; its block has more nodes than its chunks are long.
    "hub": Case(np.float64, np.int64, [(0, i) for i in range(1, 301)], 301, (2, 1, 2, 1), None),
    "pair": Case(np.float32, np.int32, [(0, 1)], 2, (1, 1, 1, 1), None),
    "alone": Case(np.float32, np.int32, [], 3, (2, 2, 2, 2), "edge"),
}


def make(name: str, spoil: bool = False) -> tuple[Any, ...]:
    """Graph, arrays and attributes by name; spoilt cases have a NaN in one edge, and a huge one at another node."""
    joined: Any
    vec: Any
    case, rng = CASES[name], np.random.default_rng(7)
    joined = np.array(case.joined, case.index).reshape(-1, 2)
    half = rng.standard_normal((len(joined), 3))
    ends, vec = np.concatenate([joined, joined[:, ::-1]]), np.concatenate([half, -half]).astype(case.real)
    graph, order = EdgeGraph.sorted(ends[:, 0].copy(), ends[:, 1].copy(), case.num_nodes, vec=vec)
    channels, mid, spherical, radial = case.sizes
    shapes = {
        "vec": (graph.num_edges, 3),
        "rbf": (graph.num_edges, spherical * radial),
        "embedding": (graph.num_edges, channels),
        "weights": (spherical * radial + channels, mid),
        "dist": (graph.num_edges,),
        "freq": (radial,),
    }
    values = {key: rng.standard_normal(shape) for key, shape in shapes.items()}
    values |= {f"gg_{key}": rng.standard_normal(shape) for key, shape in shapes.items()}
    values["grad_out"], values["grad_rbf"] = values["embedding"][::-1], rng.standard_normal((graph.num_edges, radial))
    values["dist"] = rng.uniform(0.1, 1.1, graph.num_edges)
    values = {key: value.astype(case.real) for key, value in values.items()} | {"vec": vec[order]}
    if spoil:
        values["embedding"][0, -1] = values["grad_out"][1, 0] = np.nan
        values["rbf"][-1] *= 1e6
    return graph, values, (spherical, radial, case.exclude)


def results(where: Any, graph: Any, v: dict[str, Any], attributes: tuple[Any, ...]) -> dict[str, Any]:
    """Every field of every operator."""
    inputs = [v[key] for key in ("vec", "rbf", "embedding", "weights")]
    cotangents = [v[f"gg_{key}"] for key in ("vec", "rbf", "embedding", "weights")]
    g, rest = v["grad_out"], (*inputs, graph, *attributes)
    x, f, p, q = v["dist"], v["freq"], v["grad_rbf"], v["gg_rbf"]
    spherical = attributes[0]
    return {
        "radial fwd": where.radial_basis_fwd(x, f, spherical),
        "radial bwd": where.radial_basis_bwd(p, q, x, f, spherical),
        "radial bwd2": where.radial_basis_bwd2(v["gg_dist"], v["gg_freq"], p, q, x, f, spherical),
        "fwd": (where.agg_edge_to_edge_fwd(*rest),),
        "bwd": where.agg_edge_to_edge_bwd(g, *rest),
        "bwd2": where.agg_edge_to_edge_bwd2(*cotangents, g, *rest),
        "bwd2_grad": (where.agg_edge_to_edge_bwd2_grad(*cotangents[1:3], *rest),),
        "bwd2_main": where.agg_edge_to_edge_bwd2_main(*cotangents[1:3], g, *rest),
    }


def run(place: Device) -> dict[str, np.ndarray]:
    """Compare all cases with the readable panel and return what the kernels gave."""
    collected: dict[str, np.ndarray] = {}
    with mock.patch.object(panel, "BLOCKS", 1), np.errstate(invalid="ignore"):
        for name, spoil in [*((name, False) for name in CASES), ("dense", True)]:
            case = make(name, spoil)
            label = f"{name}, spoilt" if spoil else name
            collected |= close_fields(label, place.hosted(results(gpu, *place.moved(case))), results(pyref, *case))
    return collected
