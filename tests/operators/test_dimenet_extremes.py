"""DimeNet++ in extremes: vectors of any length, NaN under constant harmonics, no distance, parallel edges."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from table_calls import CPU_PANELS

import trigraph
from trigraph import EdgeGraph

DTYPES = (np.float32, np.float64)
S, R, C, M = 5, 3, 6, 4


def complete_graph(nodes: int = 9) -> EdgeGraph:
    """Every node has nodes - 1 edges either way: more than S, so that fast panels take the linear form."""
    src, dst = np.nonzero(~np.eye(nodes, dtype=bool))
    return EdgeGraph(src, dst, nodes)


def drawn(rng: np.random.Generator, edges: int, dtype: type) -> dict[str, np.ndarray]:
    shapes = {"vec": (edges, 3), "rbf": (edges, S * R), "embedding": (edges, C), "weights": (S * R + C, M)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def all_orders(panel: str, graph: EdgeGraph, inputs: Any, cotangents: Any, grad_out: np.ndarray, exclude: Any) -> dict:
    """Results of the five operators by name."""
    attributes = {"n_spherical": S, "n_radial": R, "exclude": exclude, "panel": panel}
    call = {**inputs, "graph": graph, **attributes}
    two = {name: cotangents[name] for name in ("gg_rbf", "gg_embedding")}
    found = {"out": trigraph.agg_edge_to_edge_fwd(**call)}
    found["bwd2_grad"] = trigraph.agg_edge_to_edge_bwd2_grad(**two, **call)
    for order, given in (("bwd", {}), ("bwd2", cotangents), ("bwd2_main", two)):
        result = getattr(trigraph, f"agg_edge_to_edge_{order}")(grad_out=grad_out, **given, **call)
        found |= {f"{order}.{name}": array for name, array in result._asdict().items()}
    return found


def lengths(dtype: type) -> np.ndarray:
    """Powers of two from the smallest subnormal number to the largest finite one, in no order."""
    info = np.finfo(dtype)
    powers = np.linspace(info.minexp - info.nmant, info.maxexp, 72).astype(int)
    return np.random.default_rng(1).permutation(powers)[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("panel", CPU_PANELS)
def test_only_directions_matter(panel: str, dtype: type) -> None:
    """A vector times a power of two: the same bits everywhere, and gradients in it divided by that power."""
    rng, graph, powers = np.random.default_rng(2), complete_graph(), lengths(dtype)
    base = drawn(rng, graph.num_edges, dtype)
    # Largest component below one, so that the largest power is within the range. Subnormal vectors have few digits.
    base["vec"] = rng.uniform(-1, 1, base["vec"].shape).astype(dtype)
    base["vec"][:, 0] = rng.choice([-1, 1], len(powers)) * np.nextafter(dtype(1), dtype(0))
    along = rng.uniform(-1, 1, base["vec"].shape).astype(dtype)
    vec, gg_vec = np.ldexp(base["vec"], powers), np.ldexp(along, powers)
    base["vec"], along = np.ldexp(vec, -powers), np.ldexp(gg_vec, -powers)
    assert np.isfinite(vec).all()
    assert (np.abs(vec).max(1) < np.finfo(dtype).tiny).any()
    cotangents = {f"gg_{name}": array for name, array in drawn(rng, graph.num_edges, dtype).items()}
    grad_out = rng.standard_normal((graph.num_edges, C)).astype(dtype)
    here = all_orders(panel, graph, base, cotangents | {"gg_vec": along}, grad_out, "node")
    with np.errstate(over="ignore"):  # what is of size 1 / |vec| may overflow
        there = all_orders(panel, graph, base | {"vec": vec}, cotangents | {"gg_vec": gg_vec}, grad_out, "node")
        expected = {n: np.ldexp(array, -powers) if n.endswith(".vec") else array for n, array in here.items()}
    for name, array in here.items():
        assert np.isfinite(array).all(), name
        np.testing.assert_array_equal(there[name], expected[name], err_msg=name)


@pytest.mark.parametrize("exclude", [None, "node"])
@pytest.mark.parametrize("nodes", [3, 14])
@pytest.mark.parametrize("panel", CPU_PANELS)
def test_nan_stays_under_constant_harmonics(panel: str, nodes: int, exclude: str | None) -> None:
    """Y_0 is constant: vec's gradients do not depend on rbf of degree 0, nor those of degree 0 on gg_vec."""
    rng, graph = np.random.default_rng(4), complete_graph(nodes)
    inputs = drawn(rng, graph.num_edges, np.float64)
    cotangents: dict[str, Any] = {f"gg_{n}": a for n, a in drawn(rng, graph.num_edges, np.float64).items()}
    grad_out = rng.standard_normal((graph.num_edges, C))
    with_nan = dict(inputs, rbf=inputs["rbf"].copy())
    with_nan["rbf"][::3, :R] = np.nan
    clean = all_orders(panel, graph, inputs, cotangents, grad_out, exclude)
    found = all_orders(panel, graph, with_nan, cotangents, grad_out, exclude)
    assert np.isnan(found["out"]).any()
    for name in ("bwd.vec", "bwd2.vec"):
        # The fast panels may sum in another order where something is not finite.
        np.testing.assert_allclose(found[name], clean[name], rtol=1e-9, atol=1e-9)
    cotangents["gg_vec"] = cotangents["gg_vec"].copy()
    cotangents["gg_vec"][::3] = np.nan
    found = all_orders(panel, graph, inputs, cotangents, grad_out, exclude)
    assert np.isnan(found["bwd2.rbf"][:, R:]).any()
    np.testing.assert_allclose(found["bwd2.rbf"][:, :R], clean["bwd2.rbf"][:, :R], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("panel", CPU_PANELS)
@pytest.mark.parametrize("wrong", [0.0, -0.25, -np.inf])
def test_no_distance(panel: str, wrong: float) -> None:
    """Refused at the front door, NaN where a panel is called directly; NaN is let through."""
    dist, freq = np.array([0.5, wrong, 0.25, wrong]), np.pi * np.arange(1, 4)
    with pytest.raises(ValueError, match=rf"radial_basis_fwd: dist\[1\] is {wrong}; expected a number > 0"):
        trigraph.radial_basis_fwd(dist, freq, panel=panel)
    assert np.isnan(trigraph.radial_basis_fwd(np.array([0.5, np.nan]), freq, panel=panel).rbf[1]).all()
    grads = {"grad_rbf": np.ones((4, 3)), "grad_sbf_rad": np.ones((4, 6))}
    with pytest.raises(ValueError, match=r"radial_basis_bwd: dist\[1\]"):
        trigraph.radial_basis_bwd(**grads, dist=dist, freq=freq, n_spherical=2, panel=panel)
    module = importlib.import_module(
        {"fortran-reference": "trigraph.fortran.reference", "gpu-host": "trigraph.gpu"}.get(panel, f"trigraph.{panel}")
    )
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        first = module.radial_basis_fwd(dist, freq, n_spherical=2)
        found = {"rbf": first.rbf, "sbf_rad": first.sbf_rad}
        second = module.radial_basis_bwd(**grads, dist=dist, freq=freq, n_spherical=2)
        found["dist"] = second.dist[:, None]
        third = module.radial_basis_bwd2(np.ones(4), np.ones(3), **grads, dist=dist, freq=freq, n_spherical=2)
        found |= {"grad_rbf": third.grad_rbf, "grad_sbf_rad": third.grad_sbf_rad, "second dist": third.dist[:, None]}
    for name, array in found.items():
        assert np.isnan(array[1::2]).all(), name
        assert np.isfinite(array[::2]).all(), name
    assert np.isnan(second.freq).all()
    assert np.isnan(third.freq).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("panel", CPU_PANELS)
def test_parallel_edges_that_are_most_of_a_sum(panel: str, dtype: type) -> None:
    """Each of four is a quarter of it and together they are nearly all: what leaves them out is accurate."""
    rng, nodes = np.random.default_rng(6), 12
    src, dst = np.nonzero(~np.eye(nodes, dtype=bool))
    more = np.array([0, 1]), np.array([1, 0])
    src, dst = np.concatenate([src, *[more[0]] * 3]), np.concatenate([dst, *[more[1]] * 3])
    by_source = np.lexsort((dst, src))
    graph = EdgeGraph(src[by_source], dst[by_source], nodes)
    inputs = drawn(rng, graph.num_edges, dtype)
    pair = (graph.src < 2) & (graph.dst < 2)
    inputs["embedding"][pair], inputs["rbf"][pair] = dtype(2.0**20), inputs["rbf"][0]
    call = {"graph": graph, "n_spherical": S, "n_radial": R}
    right = trigraph.agg_edge_to_edge_fwd(**{n: a.astype(np.float64) for n, a in inputs.items()}, **call, panel="pyref")
    found = trigraph.agg_edge_to_edge_fwd(**inputs, **call, panel=panel)
    sizes = np.abs(right[pair]).max()
    assert np.abs(found[pair] - right[pair]).max() <= 200 * np.finfo(dtype).eps * sizes
