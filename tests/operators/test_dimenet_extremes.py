"""DimeNet++ in extremes: vectors of any length, NaN under constant harmonics, no distance, many edges, v3 and v4."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import trigraph
from trigraph import EdgeGraph
from trigraph.fortran import judge

PANELS = ("pyref", "fortran-reference", "fortran", "gpu-host")
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
@pytest.mark.parametrize("panel", PANELS)
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_judge_knows_only_directions(dtype: type) -> None:
    rng, graph, powers = np.random.default_rng(3), complete_graph(4), lengths(dtype)[:12]
    base = drawn(rng, graph.num_edges, dtype)
    base["vec"] /= 2 * np.abs(base["vec"]).max()
    vec = np.ldexp(base["vec"], powers)
    base["vec"] = np.ldexp(vec, -powers)
    grad_out = rng.standard_normal((graph.num_edges, C)).astype(dtype)

    def judged(vectors: np.ndarray) -> Any:
        pairs = {n: as_pair(a) for n, a in (base | {"vec": vectors, "grad_out": grad_out}).items()}
        return judge.agg_edge_to_edge_bwd(**pairs, graph=graph, n_spherical=S, n_radial=R)

    here, there = judged(base["vec"]), judged(vec)
    for name in ("rbf", "embedding", "weights"):
        assert np.isfinite(getattr(here, name)).all()
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name), err_msg=name)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(there.vec[0], np.ldexp(here.vec[0], -powers))
        np.testing.assert_array_equal(there.vec[2], np.ldexp(here.vec[2], -powers))


@pytest.mark.parametrize("exclude", [None, "node"])
@pytest.mark.parametrize("nodes", [3, 9, 14])
@pytest.mark.parametrize("panel", PANELS)
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


@pytest.mark.parametrize("panel", PANELS)
@pytest.mark.parametrize("wrong", [0.0, -0.25, -np.inf])
def test_no_distance(panel: str, wrong: float) -> None:
    """Refused at the front door, NaN where a panel is called directly; NaN is let through."""
    dist, freq = np.array([0.5, wrong, 0.25, wrong]), np.pi * np.arange(1, 4)
    with pytest.raises(ValueError, match=rf"radial_basis_fwd: dist\[1\] is {wrong}; expected a number > 0"):
        trigraph.radial_basis_fwd(dist, freq, panel=panel)
    with pytest.raises(ValueError, match=r"radial_basis_fwd: dist\[1\]"):
        trigraph.radial_basis_fwd(dist[:, None], freq, panel=panel)
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
@pytest.mark.parametrize("panel", PANELS)
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


@pytest.mark.parametrize("order", ["bwd", "bwd2"])
def test_weights_in_c_order(order: str) -> None:
    """Einsum's results lie in memory as it likes: with one degree, in Fortran order."""
    rng, graph = np.random.default_rng(5), complete_graph(4)
    shapes = {"vec": (12, 3), "rbf": (12, R), "embedding": (12, 1), "weights": (R + 1, 2)}
    inputs = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    cotangents = {f"gg_{name}": array for name, array in inputs.items()} if order == "bwd2" else {}
    function = getattr(trigraph, f"agg_edge_to_edge_{order}")
    grad_out = rng.standard_normal((12, 1))
    call = {**cotangents, "grad_out": grad_out, **inputs, "graph": graph, "n_spherical": 1, "n_radial": R}
    for name, array in function(**call, panel="pyref")._asdict().items():
        assert array.flags.c_contiguous, name


def as_pair(array: np.ndarray) -> np.ndarray:
    return np.stack([array.astype(np.float64), np.zeros(array.shape)])


def star(n_in: int, n_out: int) -> EdgeGraph:
    """Node 0 has n_in in-edges and n_out out-edges; the latter come first."""
    src = np.concatenate([np.zeros(n_out, np.int64), np.arange(1, n_in + 1)])
    dst = np.concatenate([np.arange(n_in + 1, n_in + n_out + 1), np.zeros(n_in, np.int64)])
    return EdgeGraph(src, dst, 1 + n_in + n_out)


def equal_edges(n_in: int, n_out: int, dtype: type, seed: int) -> tuple[dict, dict, np.ndarray]:
    """All in-edges alike and all out-edges alike, every factor but the harmonics positive."""
    rng = np.random.default_rng(seed)

    def edges(width: int) -> np.ndarray:
        one = rng.uniform(0.5, 1.5, (2, width)).astype(dtype)
        return np.repeat(one, [n_out, n_in], axis=0)

    def values(prefix: str) -> dict[str, np.ndarray]:
        arrays = {"vec": edges(3), "rbf": edges(S * R), "embedding": edges(C)}
        arrays["weights"] = rng.uniform(0.5, 1.5, (S * R + C, M)).astype(dtype)
        return {prefix + name: array for name, array in arrays.items()}

    return values(""), values("gg_"), edges(C)


def errors(got: np.ndarray, judged: np.ndarray, times: int) -> Iterator[float]:
    """Errors of numbers that are `times` the judge's, in eps times its scale."""
    for value, high, low, scale in zip(got.ravel(), *judged.reshape(3, -1), strict=True):
        if scale > 0:
            exact = (Fraction(high) + Fraction(low)) * times
            yield float(abs(Fraction(float(value)) - exact) / (Fraction(scale) * times)) / np.finfo(got.dtype).eps


STARS = [(30_000, 1), (30_000, 12), (1, 100_000), (12, 100_000), (1000, 200)]
# In-edges take longer than out-edges; a chain of the sums of 30000 terms' chunks would already show.
STARS += [pytest.param(100_000, n_out, marks=pytest.mark.slow) for n_out in (1, 12)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_in", "n_out"), STARS)
def test_equal_terms_into_one_node(n_in: int, n_out: int, dtype: type) -> None:
    """A sum over edges that are all alike is a multiple of what the judge has for one; 8 eps of its scale."""
    attributes = {"n_spherical": S, "n_radial": R, "exclude": None}
    inputs, cotangents, grad_out = equal_edges(n_in, n_out, dtype, 6)
    found = all_orders("fortran", star(n_in, n_out), inputs, cotangents, grad_out, None)
    one = equal_edges(1, 1, dtype, 6)
    inputs, cotangents = ({name: as_pair(a) for name, a in arrays.items()} for arrays in one[:2])
    call = {**inputs, "graph": star(1, 1), **attributes}
    single = {"out": judge.agg_edge_to_edge_fwd(**call)}
    for order, given in (("bwd", {}), ("bwd2", cotangents)):
        result = getattr(judge, f"agg_edge_to_edge_{order}")(**given, grad_out=as_pair(one[2]), **call)
        single |= {f"{order}.{name}": array for name, array in result._asdict().items()}
    for name, judged in single.items():
        got, field = found[name], name.split(".")[-1]
        if field == "weights":
            parts = [(got, judged, n_in * n_out)]
        else:  # the first edge goes out, the last comes in: each sums over those on the other side
            parts = [(got[0], judged[:, 0], n_in), (got[-1], judged[:, 1], n_out)]
        for part in parts:
            for error in errors(*part):
                assert error <= 8, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_frequencies_of_equal_edges(dtype: type) -> None:
    """Gradients of frequencies over a million equal edges; the roundings of one edge's term are in its own error."""
    edges, freq = 1_000_000, (np.pi * np.arange(1, 5)).astype(dtype)
    one = {"dist": [0.3], "grad_rbf": [[1.1, 0.7, 1.3, 0.9]], "grad_sbf_rad": [[0.1] * 4]}
    pairs = {name: as_pair(np.array(value).astype(dtype)) for name, value in one.items()}
    gg = {"gg_dist": as_pair(np.array([0.7]).astype(dtype)), "gg_freq": as_pair(np.array([1, 2, 3, 4]).astype(dtype))}
    many = {name: np.repeat(pair[0].astype(dtype), edges, axis=0) for name, pair in pairs.items()}
    for order, given in (("bwd", {}), ("bwd2", gg)):
        tall = {
            name: np.repeat(pair[0].astype(dtype), edges if name == "gg_dist" else 1, axis=0)
            for name, pair in given.items()
        }
        found = getattr(trigraph, f"radial_basis_{order}")(**tall, **many, freq=freq, n_spherical=1).freq
        judged = getattr(judge, f"radial_basis_{order}")(**given, **pairs, freq=as_pair(freq), n_spherical=1).freq
        for error in errors(found, judged, edges):
            assert error <= 8, order


@pytest.fixture
def chosen_level() -> Iterator[None]:
    before = trigraph.get_cpu_level()
    yield
    trigraph.set_cpu_level(before)


@pytest.mark.usefixtures("chosen_level")
@pytest.mark.skipif(
    not {"v3", "v4"} <= set(importlib.import_module("trigraph.fortran.levels").available()),
    reason="this processor does not run both builds",
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_builds_v3_and_v4_agree_in_every_bit(dtype: type) -> None:
    rng = np.random.default_rng(7)
    radial, triplets = [], []
    for edges in (1, 64, 333):
        freq = rng.uniform(3, 30, 5).astype(dtype) * dtype(10.0 ** rng.integers(0, 8))
        inputs = {"dist": rng.uniform(1e-3, 1.2, edges).astype(dtype), "freq": freq}
        given = {"gg_dist": (edges,), "gg_freq": (5,), "grad_rbf": (edges, 5), "grad_sbf_rad": (edges, 40)}
        radial.append((inputs, {name: rng.standard_normal(shape).astype(dtype) for name, shape in given.items()}))
    for nodes, edges, exclude in ((3, 4, None), (9, 200, "node"), (40, 900, None), (40, 1500, "node"), (2, 700, None)):
        src, dst = np.sort(rng.integers(0, nodes, edges)), rng.integers(0, nodes, edges)
        inputs, gg = drawn(rng, edges, dtype), drawn(rng, edges, dtype)
        # Rows of very different size bring the sums over pairs in.
        inputs["embedding"] *= 10.0 ** rng.uniform(-8, 0, (edges, 1)).astype(dtype)
        grad_out = rng.standard_normal((edges, C)).astype(dtype)
        cotangents = {f"gg_{n}": a for n, a in gg.items()}
        triplets.append((EdgeGraph(src, dst, nodes), inputs, cotangents, grad_out, exclude))

    def run() -> Iterator[tuple[str, bytes]]:
        for inputs, given in radial:
            first = {name: given[name] for name in ("grad_rbf", "grad_sbf_rad")}
            found = [
                trigraph.radial_basis_fwd(**inputs, n_spherical=8),
                trigraph.radial_basis_bwd(**first, **inputs, n_spherical=8),
                trigraph.radial_basis_bwd2(**given, **inputs, n_spherical=8),
            ]
            for result in found:
                yield from ((f"{type(result).__name__}.{n}", a.tobytes()) for n, a in result._asdict().items())
        for case in triplets:
            yield from ((name, array.tobytes()) for name, array in all_orders("fortran", *case).items())

    bits = []
    for level in ("v3", "v4"):
        trigraph.set_cpu_level(level)
        bits.append(list(run()))
    for (name, v3), (_, v4) in zip(*bits, strict=True):
        assert v3 == v4, name
