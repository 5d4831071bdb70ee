"""Cases: inputs for every operator of a definition, generated from the operator table.

A case holds the values of all arguments that a definition's fwd, bwd and bwd2 take, and one direction for each
differentiable argument. Cases are a function of definition, variant, dtype and seed alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from trigraph import pyref
from trigraph.checks import position, shape_of
from trigraph.edge_graph import EdgeGraph
from trigraph.graphs import CSC
from trigraph.operators import SYMBOLS, Argument, Array, Attribute, Definition, Operator
from trigraph.segments import Segments

__all__ = [
    "POINT_STEP",
    "VARIANTS",
    "Case",
    "Variant",
    "build",
    "draw",
    "frozen",
    "kink_violations",
    "plain",
    "renumbered",
    "variants",
]

# Margin from kinks: rows are drawn again until |value| >= 2 |change of value| for the largest step of any difference.
# Cases that are only compared at one point keep clear of kinks by more than rounding could carry them.
POINT_STEP = 2.0**-12
MAX_ROUNDS = 2000
LARGEST_FREQUENCY = 20.0


@dataclass(frozen=True)
class Case:
    """Arguments of the operators of one definition.

    Attributes
    ----------
    name : str
        Variant, or the real input's name.
    definition : Definition
    sizes : mapping
        Size of every symbol.
    values : mapping
        Arguments of fwd: inputs, graph, attributes.
    grads : mapping
        ``grad_<output>``: cotangents of the outputs.
    ggs : mapping
        ``gg_<input>``: cotangents of the gradients.
    directions : mapping
        One direction for each input and each ``grad_<output>``.
    largest_step : float
        Steps up to here stay on one side of every kink.
    note : str
        What a reader of the results should know about it.
    kind : str
        Name of the variant, without its setting; "" for real inputs.
    """

    name: str
    definition: Definition
    sizes: Mapping[str, int]
    values: Mapping[str, Any]
    grads: Mapping[str, np.ndarray]
    ggs: Mapping[str, np.ndarray]
    directions: Mapping[str, np.ndarray]
    largest_step: float
    note: str = ""
    kind: str = ""

    @property
    def inputs(self) -> tuple[Array, ...]:
        """Inputs that are there; optional ones may be absent."""
        return tuple(a for a in self.definition.inputs if self.values[a.name] is not None)

    def given(self, op: Operator) -> tuple[Argument, ...]:
        """Array arguments of an operator that are there."""
        return op.given(self.arguments(op))

    def returned(self, op: Operator) -> tuple[Array, ...]:
        """Fields an operator returns for these inputs and choices."""
        return op.returned(self.values, self.sizes)

    def derived(self, op: Operator) -> tuple[Array, ...]:
        """Fields that have a derivative."""
        return tuple(f for f in self.returned(op) if f not in self.definition.auxiliary)

    @cached_property
    def dtype(self) -> str:
        """``"float32"`` or ``"float64"``."""
        return str(self.values[self.definition.inputs[0].name].dtype)

    def arguments(self, op: Operator) -> dict[str, Any]:
        """Keyword arguments of one of the definition's operators, `wrt` excluded; nothing is given back."""
        absent = [f"gg_{a.name}" for a in self.definition.inputs if a.optional]
        absent += [a.name for a in op.arguments if a.given_back]
        known = {**dict.fromkeys(absent), **self.values, **self.grads, **self.ggs}
        return {name: known[name] for name in op.parameters}


@dataclass(frozen=True)
class Variant:
    """How the sizes and the graph of a case are chosen.

    `pick` chooses among the typical sizes; `differenced` cases keep the wide margin from kinks and are used for finite
    differences and the algebraic properties; `setting` fixes choices, and inputs that are absent.
    """

    name: str
    pick: int
    index: type[np.signedinteger[Any]]
    differenced: bool = False
    setting: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its name, and its setting."""
        return ", ".join([self.name, *(f"{name}={value}" for name, value in self.setting.items())])


# By kind of graph (None: no graph).
VARIANTS: dict[str | None, tuple[Variant, ...]] = {
    "edges": (
        Variant("regular", 0, np.int64, True),
        Variant("periodic", 1, np.int32, True),
        Variant("square", 2, np.int32),
        Variant("skewed", 1, np.int64),
        Variant("wide", 0, np.int32),
        Variant("one edge", 0, np.int64),
        Variant("no edges", 0, np.int32),
        Variant("no nodes", 0, np.int64),
    ),
    "csc": (
        Variant("regular", 0, np.int64, True),
        Variant("shared rows", 2, np.int32, True),
        Variant("square", 1, np.int32),
        Variant("skewed", 1, np.int64),
        Variant("wide", 0, np.int32),
        Variant("integers", 0, np.int64),
        Variant("one edge", 0, np.int64),
        Variant("no edges", 0, np.int32),
        Variant("no nodes", 0, np.int64),
    ),
    None: (
        Variant("regular", 0, np.int64, True),
        Variant("second sizes", 1, np.int64, True),
        Variant("long", 2, np.int64),
        Variant("wide", 0, np.int64),
        Variant("integers", 0, np.int64),
        Variant("one edge", 0, np.int64),
        Variant("no edges", 0, np.int64),
    ),
}


SEGMENTS = (
    Variant("regular", 0, np.int64, True),
    Variant("second sizes", 1, np.int32, True),
    Variant("skewed", 1, np.int64),
    Variant("wide", 0, np.int32),
    Variant("integers", 0, np.int64),
    Variant("one edge", 0, np.int32),
    Variant("no edges", 0, np.int64),
    Variant("no nodes", 0, np.int32),
)
VARIANTS |= {"triplets": SEGMENTS, "bilinear": SEGMENTS}


def variants(definition: Definition) -> tuple[Variant, ...]:
    """Variants a definition is tried on: one setting each in turn; every setting on the first and on integers."""
    base, settings = VARIANTS[definition.graph], definition.settings
    if not settings:
        return base
    turns = [replace(v, setting=settings[i % len(settings)]) for i, v in enumerate(base)]
    more = [replace(v, setting=s) for v in base if v.name in ("regular", "integers") for s in settings]
    return (*turns, *(v for v in more if v not in turns))


# What there is none of in "no edges", by kind of graph: rows of edge arrays stay, that nothing uses.
MEMBERS: dict[str | None, str] = {
    "csc": "num_positions",
    "edges": "num_positions",
    "triplets": "num_triplets",
    "bilinear": "num_triplets",
}


def _sizes(definition: Definition, variant: Variant) -> dict[str, int]:
    """Sizes of every symbol but those that a graph settles (`_csc`)."""
    sizes = {}
    for name in definition.symbols:
        symbol = SYMBOLS[name]
        size = symbol.typical[variant.pick % len(symbol.typical)]
        if variant.name == "wide":
            # Widths above tiles of 16, 32 and 64, and odd; few entities, since the judge pays for the widths.
            size = 6 * symbol.typical[0] + 9 if symbol.minimum else 3
        elif variant.name == "long" and not symbol.minimum:
            size = 700  # more than two chunks of 256
        elif variant.name == "skewed" and symbol.minimum:
            size = min(symbol.typical)
        elif variant.name == "one edge" and not symbol.minimum:
            size = 1
        elif variant.name == "no edges" and name == MEMBERS.get(definition.graph, "num_edges"):
            size = 0  # a graph keeps rows of edge arrays that nothing uses
        elif variant.name == "no nodes" and not symbol.minimum:
            size = 0
        sizes[name] = size if symbol.maximum is None else min(size, symbol.maximum)
    return sizes


def _pairs(variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Source and destination of every edge, in any order."""
    n_src, n_dst, count = sizes["num_src_nodes"], sizes["num_dst_nodes"], sizes["num_positions"]
    if variant.name == "skewed":
        # Source 2 and destination 1 each have more than two chunks of 256 edges.
        src = np.concatenate([rng.integers(0, n_src, 620), np.full(620, 2)])
        dst = np.concatenate([np.full(620, 1), rng.integers(0, n_dst, 620)])
        return src, dst
    if min(n_src, n_dst, count) < 4:
        return rng.integers(0, max(n_src, 1), count), rng.integers(0, max(n_dst, 1), count)
    # Isolated: the last and a middle source and destination. Self loops at 0 and 1, the edge 2 -> 1 twice.
    sources = np.setdiff1d(np.arange(n_src), [n_src // 2, n_src - 1])
    targets = np.setdiff1d(np.arange(n_dst), [n_dst // 2, n_dst - 1])
    src = np.concatenate([[0, 1, 2, 2], rng.choice(sources, count - 4)])
    dst = np.concatenate([[0, 1, 1, 1], rng.choice(targets, count - 4)])
    return src, dst


def _csc(variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> CSC:
    """Return the graph of a variant; writes the sizes it has into `sizes`."""
    if variant.name == "square":
        sizes["num_src_nodes"] = sizes["num_dst_nodes"]
    src, dst = _pairs(variant, sizes, rng)
    order = rng.permutation(len(src))
    src, dst = src[order], dst[order]
    count, edge_ids, rows = len(src), None, None
    if variant.name == "no edges":
        rows, edge_ids = sizes["num_edges"], np.empty(0, variant.index)
    elif variant.name == "shared rows":
        rows = count
        # As many as positions. Three unused, the others drawn with replacement: some shared by several positions.
        edge_ids = rng.choice(np.setdiff1d(np.arange(rows), [0, rows // 2, rows - 1]), count).astype(variant.index)
    elif variant.name == "skewed":
        # One row shared by more than two chunks, the rest a permutation as `from_coo` makes.
        rows = count - 599
        edge_ids = rng.permutation(np.concatenate([np.zeros(600, int), np.arange(1, rows)])).astype(variant.index)
    graph = CSC.from_coo(
        src.astype(variant.index),
        dst.astype(variant.index),
        sizes["num_src_nodes"],
        sizes["num_dst_nodes"],
        edge_ids,
        rows,
    )
    if variant.name == "regular":  # positions are rows
        graph = CSC(graph.offsets, graph.indices, graph.num_src_nodes)
    sizes |= {name: int(getattr(graph, name)) for name in ("num_positions", "num_edges")}
    return graph


def _edges(
    variant: Variant, sizes: dict[str, int], rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the graph of a variant and the vectors of its edges; writes the sizes it has into `sizes`.

    Atoms in a skew cell: an edge and its reverse have opposite vectors. Periodic cells have parallel edges (images of
    one neighbour) and edges from an atom to its own image; a third of the edges has no reverse.
    """
    nodes = sizes["num_nodes"]
    pairs = 0 if nodes == 0 or variant.name in ("no edges", "one edge") else 2 * nodes
    near = 1 if variant.name in ("periodic", "wide") else 0
    first, second = (rng.integers(0, max(1, nodes - 1), pairs) for _ in range(2))  # the last node is isolated
    shift = rng.integers(-near, near + 1, (pairs, 3))
    if variant.name == "skewed":
        # Node 1 has more than a chunk of 256 in-edges, node 0 as many out-edges: images of even and of odd nodes, and
        # few edges besides, so that there are few triplets.
        many, few, number = 270, nodes // 2, np.arange(270)
        others = 2 * (number % (nodes // 2 - 1)) + 2
        first = np.concatenate([first[:few], others, np.zeros(many, int)])
        second = np.concatenate([second[:few], np.ones(many, int), others + 1])
        far = np.tile(np.stack([number - 135, number // 16, number % 16], axis=1), (2, 1))
        shift = np.concatenate([shift[:few], far])
    if variant.name == "one edge":
        first, second, shift = np.zeros(1, int), np.ones(1, int) % nodes, np.ones((1, 3), int)
    images = np.unique(np.column_stack([first, second, shift]), axis=0)
    images = images[(images[:, 0] != images[:, 1]) | images[:, 2:].any(axis=1)]
    mirrored = rng.random(len(images)) < (0.02 if variant.name == "skewed" else 2 / 3)
    back = images[mirrored] if len(images) > 1 else images[:0]
    both = np.unique(np.concatenate([images, np.column_stack([back[:, 1], back[:, 0], -back[:, 2:]])]), axis=0)
    src, dst = both[:, 0], both[:, 1]
    positions = rng.uniform(0, 1, (nodes, 3))
    cell = np.eye(3) + rng.uniform(0, 0.2, (3, 3))
    vec = positions[src] - positions[dst] + both[:, 2:] @ cell
    graph = EdgeGraph(src.astype(variant.index), dst.astype(variant.index), nodes, vec=vec)
    sizes["num_edges"] = graph.num_edges
    return {"graph": graph}, {"vec": vec}


def _members(variant: Variant, count: int, bound: int, rng: np.random.Generator) -> Segments:
    """Members of segments in any order; the last and a middle segment have none, in "skewed" one has most."""
    used = np.setdiff1d(np.arange(bound), [bound // 2, bound - 1]) if bound > 3 else np.arange(bound)
    index = rng.choice(used, count) if count else np.empty(0, np.int64)
    if variant.name == "skewed" and count:
        index[rng.random(count) < 0.9] = used[1 % len(used)]
    return Segments(index.astype(variant.index), bound)


def _triplets(variant: Variant, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, Segments | None]:
    """Return the graph objects of a variant; writes the sizes they have into `sizes`."""
    if variant.name == "skewed":
        sizes |= {"num_triplets": 700, "num_edges": 290}
    elif variant.name == "wide":
        sizes |= {"num_triplets": 5, "num_edges": 3}
    absent = {name for name, value in variant.setting.items() if value is None}
    graphs: dict[str, Segments | None] = {
        "triplets": _members(variant, sizes["num_triplets"], sizes["num_edges"], rng),
        "atoms": None,
        "idx_in": None,
    }
    if "num_outputs" not in sizes:
        return {"triplets": graphs["triplets"]}
    if "atoms" in absent or (sizes["num_edges"] and not sizes["num_outputs"]):
        sizes["num_outputs"] = sizes["num_edges"]
    else:
        graphs["atoms"] = _members(variant, sizes["num_edges"], sizes["num_outputs"], rng)
    if "idx_in" in absent or (sizes["num_triplets"] and not sizes["num_inputs"]):
        sizes["num_inputs"] = sizes["num_triplets"]
    else:
        graphs["idx_in"] = _members(variant, sizes["num_triplets"], sizes["num_inputs"], rng)
    return graphs


# By kind of graph: the graph objects of a variant, and inputs that belong to them.
GRAPHS: dict[str, Callable[[Variant, dict[str, int], np.random.Generator], tuple[dict[str, Any], dict[str, Any]]]] = {
    "csc": lambda variant, sizes, rng: ({"graph": _csc(variant, sizes, rng)}, {}),
    "edges": _edges,
    "triplets": lambda variant, sizes, rng: (_triplets(variant, sizes, rng), {}),
    "bilinear": lambda variant, sizes, rng: (_triplets(variant, sizes, rng), {}),
}


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


def frozen(array: np.ndarray) -> np.ndarray:
    """Return the array, made read-only."""
    array.setflags(write=False)
    return array


def draw(
    arrays: Mapping[str, Array], sizes: Mapping[str, int], dtype: str, rng: np.random.Generator, integers: bool = False
) -> dict[str, np.ndarray]:
    """Draw numbers rounded to dtype, so that everyone gets them exactly, the judge too.

    Standard normal numbers, or integers from -2 to 2: sums of products of those are exact in every order, so that the
    values of a kink are often exactly zero, where an operator's convention (relu'(0) = 0) must hold.
    """

    def numbers(shape: tuple[int, ...], sample: str) -> np.ndarray:
        if sample == "unit interval":  # and a little beyond its end, where a cutoff lies
            return rng.uniform(0.1, 1.1, shape)
        if sample == "frequency":  # of waves in the unit interval: pi to 6 pi in DimeNet++
            return rng.uniform(1, LARGEST_FREQUENCY, shape)
        if sample == "change of frequency":
            return LARGEST_FREQUENCY / 2 * rng.standard_normal(shape)
        if sample == "positive":  # weights, whose sum divides
            return rng.integers(1, 3, shape) if integers else rng.uniform(0.5, 1.5, shape)
        return rng.integers(-2, 3, shape) if integers else rng.standard_normal(shape)

    return {name: frozen(numbers(shape_of(a, sizes), a.sample).astype(dtype)) for name, a in arrays.items()}


def kink_violations(
    definition: Definition, values: Mapping[str, Any], directions: Mapping[str, np.ndarray], step: float
) -> dict[str, np.ndarray]:
    """Rows of each resampled input that come too near a kink.

    Parameters
    ----------
    definition : Definition
    values : mapping
        Arguments of fwd.
    directions : mapping
        Directions of the inputs.
    step : float
        Largest step of any difference.

    Returns
    -------
    mapping from input to boolean array
        True where some |value| < 2 |change| for a step of +-`step` along some input's direction.
    """
    found: dict[str, np.ndarray] = {}
    present = [a for a in definition.inputs if values[a.name] is not None]
    wide = {a.name: np.asarray(values[a.name], np.float64) for a in present}
    fixed = {name: v for name, v in values.items() if name not in wide}
    for kink in definition.kinks:
        function = getattr(pyref, kink.function)
        here = function(**wide, **fixed)
        change = np.zeros_like(here)
        for array in present:
            for sign in (step, -step):
                moved = {**wide, array.name: wide[array.name] + sign * directions[array.name]}
                change = np.fmax(change, abs(function(**moved, **fixed) - here))
        clear = abs(here) >= 2 * change
        rows = ~clear.reshape(len(here), -1).all(axis=1) if here.size else np.zeros(len(here), bool)
        if kink.rows:
            named = getattr(values["graph"], kink.rows)[rows]
            rows = np.zeros(len(wide[kink.resample]), bool)
            rows[named] = True
        found[kink.resample] = found.get(kink.resample, False) | rows
    return found


def _resample(case: Case, rng: np.random.Generator) -> Case:
    """Draw rows again until every kink is clear.

    Raises
    ------
    RuntimeError
        If that does not come to an end.
    """
    for _ in range(MAX_ROUNDS):
        bad = kink_violations(case.definition, case.values, case.directions, case.largest_step)
        if not any(rows.any() for rows in bad.values()):
            return case
        values = dict(case.values)
        for name, rows in bad.items():
            array = values[name].copy()
            spec = next(a for a in case.definition.inputs if a.name == name)
            again = draw({name: spec}, case.sizes, str(array.dtype), rng)[name]
            array[rows] = again[rows]
            values[name] = frozen(array)
        case = replace(case, values=values)
    raise RuntimeError(f"{case.definition.name}, {case.name}: no inputs clear of kinks after {MAX_ROUNDS} rounds")


def plain(array: Array) -> Array:
    """Return the array with standard normal numbers: cotangents have no domain."""
    return replace(array, sample="normal")


def direction(array: Array) -> Array:
    """Return the array with numbers of the size of a change: frequencies are not of order one."""
    return replace(array, sample="change of frequency" if array.sample == "frequency" else "normal")


def _attribute(a: Attribute, variant: Variant, sizes: Mapping[str, int]) -> Any:
    if a.name in variant.setting:
        return variant.setting[a.name]
    if a.real:
        return a.default
    return a.choices[(1 + variant.pick) % len(a.choices)] if a.choices else sizes[a.name]


def build(definition: Definition, variant: Variant, dtype: str, seed: int) -> Case:
    """Build one case.

    Parameters
    ----------
    definition : Definition
    variant : Variant
        One of `variants(definition)`.
    dtype : {"float32", "float64"}
    seed : int

    Returns
    -------
    Case
        Arrays are read-only: a panel that writes to its inputs fails.
    """
    rng = np.random.default_rng([seed, zlib.crc32(f"{definition.name}/{variant.label}".encode())])
    sizes = _sizes(definition, variant)
    graphs: dict[str, Any] = {}
    belonging: dict[str, Any] = {}
    if definition.graph is not None:
        graphs, belonging = GRAPHS[definition.graph](variant, sizes, rng)
    attributes = {a.name: _attribute(a, variant, sizes) for a in definition.attributes}
    inputs = {a.name: a for a in definition.inputs if variant.setting.get(a.name, a) is not None}
    absent = dict.fromkeys(a.name for a in definition.inputs if a.name not in inputs)
    sizes |= {f"has_{n}": int({**absent, **inputs, **graphs}[n] is not None) for n in definition.optional}
    sizes |= {a.name: position(a.choices, attributes[a.name]) for a in definition.attributes if a.choices}
    grads = {f"grad_{a.name}": a for a in definition.outputs}
    directions = {n: direction(a) for n, a in {**inputs, **grads}.items()}
    integers = variant.name == "integers"
    drawn = [
        draw(arrays, sizes, dtype, rng, integers)
        for arrays in (inputs, grads, {f"gg_{n}": plain(a) for n, a in inputs.items()}, directions)
    ]
    drawn[0] |= {n: frozen(array.astype(dtype)) for n, array in belonging.items() if n in inputs}
    step = definition.largest_step if variant.differenced else POINT_STEP
    values = {**absent, **drawn[0], **graphs, **attributes}
    case = Case(variant.label, definition, sizes, values, drawn[1], drawn[2], drawn[3], step, kind=variant.name)
    return case if integers else _resample(case, rng)
