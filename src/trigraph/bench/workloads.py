"""Workloads: which operators are called, at which sizes, against which peers; the operator table supplies the rest."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trigraph import pyref
from trigraph.checks import shape_of
from trigraph.edge_graph import EdgeGraph
from trigraph.graphs import CSC
from trigraph.operators import OPERATORS, SYMBOLS, Array, Definition, Operator, evaluate
from trigraph.panels import FUNCTIONS, PANELS

__all__ = [
    "Call",
    "Case",
    "Peer",
    "Step",
    "Target",
    "Unavailable",
    "Workload",
    "clock_of",
    "make_call",
    "make_case",
    "scaled",
]

Call = Callable[[], dict[str, Any]]
"""A contender ready to run: returns its results by name, ``gno_message_bwd.coords``, each an array or, where its form
has to be changed for the comparison, a function that returns one."""


class Unavailable(RuntimeError):
    """What a contender needs is not on this machine."""


@dataclass(frozen=True)
class Step:
    """One operator call of a workload.

    Attributes
    ----------
    operator : str
    wrt : tuple of str or None
        Fields asked for.
    zero : tuple of str
        Cotangents passed as None.
    operations : str or None
        Floating operations where they are fewer than the table counts: it counts every field.
    given : dict of str to str
        Arguments that are results of earlier steps: ``{"rbf": "radial_basis_fwd.sbf_rad"}``.
    """

    operator: str
    wrt: tuple[str, ...] | None = None
    zero: tuple[str, ...] = ()
    operations: str | None = None
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def op(self) -> Operator:
        """Its entry in the table."""
        return OPERATORS[self.operator]

    @property
    def arguments(self) -> tuple[Array, ...]:
        """Arrays it is given from outside."""
        return tuple(a for a in self.op.arguments if a.name not in (*self.zero, *self.given))

    @property
    def fields(self) -> tuple[Array, ...]:
        """Arrays it returns."""
        return tuple(f for f in self.op.fields if self.wrt is None or f.name in self.wrt)


@dataclass(frozen=True)
class Peer:
    """Something users would otherwise run.

    Attributes
    ----------
    make : callable
        Takes a `Case`, returns a `Call`.
    about : str
        What it is, for the record.
    requires : tuple of str
        Modules it imports.
    clock : {"host", "torch", "cupy"}
        Whose clock times it: the host's, or the device's events.
    """

    make: Callable[[Case], Call]
    about: str
    requires: tuple[str, ...] = ()
    clock: str = "host"


@dataclass(frozen=True)
class Target:
    """What the fast panel must reach, against a peer or by itself, at full size in float32 on the host.

    Attributes
    ----------
    peer : str
        ``"fortran"`` for the targets of the fast panel itself, `gemm` and `flat`.
    time, memory : float or None
        Least ratio peer / fast path of the medians and of the peak memory.
    gemm : float or None
        Least share of the rate of BLAS's matrix product.
    flat : float or None
        Least ratio of the smallest cost per edge to the largest over the sweep.
    """

    peer: str
    time: float | None = None
    memory: float | None = None
    gemm: float | None = None
    flat: float | None = None


@dataclass(frozen=True)
class Workload:
    """What is timed.

    Attributes
    ----------
    name, family, summary : str
    steps : tuple of Step
        Called one after the other; together they are one run.
    sizes : dict
        Value of every symbol at full size.
    peers : dict of str to Peer
    panels : tuple of str
        Panels timed at these sizes; the direct ones take long at large sizes.
    targets : tuple of Target
    sweep : tuple of int
        Numbers of edges (values of `sweep_symbol`) for the plot; the other counts of entities grow alike. With
        ``"in_degree"`` they are mean in-degrees: the number of edges stays, that of nodes follows.
    """

    name: str
    family: str
    summary: str
    steps: tuple[Step, ...]
    sizes: Mapping[str, int]
    peers: Mapping[str, Peer] = field(default_factory=dict)
    panels: tuple[str, ...] = ("fortran", "gpu")
    targets: tuple[Target, ...] = ()
    sweep: tuple[int, ...] = ()
    sweep_symbol: str = "num_edges"

    @property
    def definitions(self) -> tuple[Definition, ...]:
        """The definitions its steps belong to."""
        return tuple(dict.fromkeys(s.op.definition for s in self.steps))

    def at(self, point: int, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of one point of the sweep."""
        if self.sweep_symbol == "in_degree":
            return {**sizes, "num_nodes": max(1, round(sizes["num_edges"] / point))}
        return scaled(sizes, point / sizes[self.sweep_symbol])

    def position(self, sizes: Mapping[str, int]) -> float:
        """Where sizes lie in the sweep."""
        if self.sweep_symbol == "in_degree":
            return sizes["num_edges"] / sizes["num_nodes"]
        return sizes[self.sweep_symbol]

    def operations(self, sizes: Mapping[str, int]) -> int:
        """Floating operations of one run, as the table counts them."""
        return sum(evaluate(s.operations or s.op.operations, sizes) for s in self.steps)

    def bytes_moved(self, sizes: Mapping[str, int], dtype: np.dtype) -> int:
        """Bytes of inputs and outputs of one run, each counted once, index arrays left out."""
        inputs = {a.name: a for s in self.steps for a in s.arguments}
        arrays = [*inputs.values(), *(f for s in self.steps for f in s.fields)]
        return sum(int(np.prod(shape_of(a, sizes))) for a in arrays) * dtype.itemsize


def scaled(sizes: Mapping[str, int], factor: float) -> dict[str, int]:
    """Sizes with every count of entities (edges, nodes, positions) scaled; widths stay."""
    return {n: max(1, round(v * factor)) if SYMBOLS[n].minimum == 0 else v for n, v in sizes.items()}


@dataclass(frozen=True)
class Case:
    """Arrays of one run by argument name, the graph (None where there is none) and the sizes."""

    sizes: Mapping[str, int]
    arrays: Mapping[str, Any]
    graph: Any

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]


def _random_csc(sizes: Mapping[str, int], rng: np.random.Generator) -> CSC:
    """Edges with random ends; each has its own row of the edge arrays where there are as many rows as positions."""
    n_dst, n_src = sizes["num_dst_nodes"], sizes["num_src_nodes"]
    positions, rows = sizes["num_positions"], sizes["num_edges"]
    degrees = np.bincount(rng.integers(n_dst, size=positions), minlength=n_dst)
    offsets = np.concatenate([[0], np.cumsum(degrees)])
    edge_ids = None if rows == positions else rng.integers(rows, size=positions)
    return CSC(offsets, rng.integers(n_src, size=positions), n_src, edge_ids, rows)


def _random_edges(sizes: Mapping[str, int], rng: np.random.Generator) -> EdgeGraph:
    """Draw pairs of nodes, different as far as there are enough; each is an edge in both directions, as of atoms."""
    nodes, rows = sizes["num_nodes"], sizes["num_edges"]
    pairs, half = max(nodes * (nodes - 1) // 2, 1), (rows + 1) // 2
    number = rng.choice(pairs, half, replace=half > pairs)
    # Pair number i (i - 1) / 2 + j, j < i; a single node has a self loop instead.
    i = np.floor((1 + np.sqrt(8.0 * number + 1)) / 2).astype(np.int64)
    j = number - i * (i - 1) // 2
    i %= nodes
    src, dst = np.concatenate([i, j])[:rows], np.concatenate([j, i])[:rows]
    return EdgeGraph.sorted(src, dst, nodes).graph


GRAPH_MAKERS: dict[str, Callable[[Mapping[str, int], np.random.Generator], Any]] = {
    "csc": _random_csc,
    "edges": _random_edges,
}


def _draw(sample: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Numbers of a distribution the table names.

    Distances over the cutoff begin where those of atoms do: much nearer, PyTorch Geometric's closed forms of the
    spherical Bessel functions lose all digits in float32.
    """
    if sample == "unit interval":
        return rng.uniform(0.3, 1, shape)
    if sample == "frequency":
        return rng.uniform(np.pi, 6 * np.pi, shape)
    return rng.standard_normal(shape)


def _attributes(op: Operator, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes the caller gives; choices keep their defaults."""
    return {a.name: sizes[a.name] for a in op.attributes if not a.choices}


def make_case(workload: Workload, sizes: Mapping[str, int], dtype: np.dtype, seed: int = 0) -> Case:
    """Draw the inputs of a workload as the table says, clear of the kinks it names.

    At a kink two correct programs may differ by a whole term, since they round z differently; without that, the
    comparison of their results can be tight.
    """
    rng = np.random.default_rng(seed)
    kinds = {spec.graph for spec in workload.definitions if spec.graph}
    graph = GRAPH_MAKERS[kinds.pop()](sizes, rng) if kinds else None
    given = {name for s in workload.steps for name in s.given}
    wanted = {a.name: a for spec in workload.definitions for a in spec.inputs if a.name not in given}
    wanted |= {a.name: a for s in workload.steps for a in s.arguments}
    arrays = {n: _draw(a.sample, shape_of(a, sizes), rng).astype(dtype) for n, a in wanted.items()}
    margin = 64 * np.finfo(dtype).eps
    for spec in workload.definitions:
        forward = OPERATORS[f"{spec.name}_fwd"]
        inputs = _attributes(forward, sizes) | ({"graph": graph} if spec.graph else {})
        for kink in spec.kinks:
            target, values_of = arrays[kink.resample], getattr(pyref, kink.function)
            while True:
                values = values_of(**{a.name: arrays[a.name] for a in spec.inputs}, **inputs)
                close = np.flatnonzero((np.abs(values) < margin).reshape(len(target), -1).any(1))
                if close.size == 0:
                    break
                target[close] = _draw(wanted[kink.resample].sample, (close.size, *target.shape[1:]), rng)
    return Case(dict(sizes), arrays, graph)


def _panel_call(workload: Workload, panel: str, case: Case) -> Call:
    """Return the steps through the front door, checks included, as a user calls them.

    What steps hand to each other is no result.
    """
    between = {source for step in workload.steps for source in step.given.values()}
    calls = []
    for step in workload.steps:
        values = {a.name: None if a.name in step.zero else case.arrays.get(a.name) for a in step.op.arguments}
        values |= _attributes(step.op, case.sizes)
        values |= {"graph": case.graph} if step.op.graph else {}
        values |= {"wrt": step.wrt} if step.op.selective else {}
        calls.append((step, FUNCTIONS[step.operator], values))

    def call() -> dict[str, Any]:
        results: dict[str, Any] = {}
        for step, function, values in calls:
            result = function(**values | {n: results[source] for n, source in step.given.items()}, panel=panel)
            for f in step.fields:
                results[f"{step.operator}.{f.name}"] = result if step.op.single else getattr(result, f.name)
        return {n: value for n, value in results.items() if n not in between}

    return call


def _on_device(case: Case) -> Case:
    import cupy

    graph = case.graph
    if isinstance(graph, CSC):
        offsets, indices, rows = (cupy.asarray(a) for a in (graph.offsets, graph.indices, graph.edge_ids))
        graph = CSC(offsets, indices, graph.num_src_nodes, rows, graph.num_edges)
    elif isinstance(graph, EdgeGraph):
        graph = EdgeGraph(cupy.asarray(graph.src), cupy.asarray(graph.dst), graph.num_nodes)
    return Case(case.sizes, {n: cupy.asarray(a) for n, a in case.arrays.items()}, graph)


def clock_of(workload: Workload, contender: str) -> str:
    """Whose clock times a contender."""
    if contender in PANELS:
        return "cupy" if PANELS[contender][1] == "cupy" else "host"
    return workload.peers[contender].clock


def make_call(workload: Workload, contender: str, sizes: Mapping[str, int], dtype: str) -> Call:
    """Build the inputs and return a contender ready to run.

    Raises
    ------
    Unavailable
        If a module or the device it needs is not there.
    """
    peer = workload.peers.get(contender)
    clock = clock_of(workload, contender)
    for module in (*(peer.requires if peer else ()), *(("cupy",) if clock == "cupy" else ())):
        if importlib.util.find_spec(module) is None:
            raise Unavailable(f"{module} is not installed")
    if clock != "host":
        from trigraph.bench.device import require_device

        require_device(clock)
    case = make_case(workload, sizes, np.dtype(dtype))
    if peer is not None:
        return peer.make(case)
    return _panel_call(workload, contender, _on_device(case) if clock == "cupy" else case)
