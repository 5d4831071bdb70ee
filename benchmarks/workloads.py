"""Workloads, which consist of operators, sizes and peers; the operator table determines everything else."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from trigraph import pyref
from trigraph.backends import BACKENDS, FUNCTIONS
from trigraph.benchmarks.graphs import GRAPH_MAKERS
from trigraph.benchmarks.programs import Call, Contender
from trigraph.checks import evaluate_shape, find_choice_index
from trigraph.graphs import to_device
from trigraph.table import OPERATORS, SYMBOLS, Array, Definition, Operator, evaluate_expression
from trigraph.verification.cases import draw_arrays

TINY = 16  # number of entities in the tiny run, which only loads libraries


@dataclass(frozen=True)
class Step:
    """One operator call of a workload."""

    operator: str
    wrt: tuple[str, ...] | None = None  # requested fields; None: all fields
    zero: tuple[str, ...] = ()  # cotangents to pass as None
    operations: str | None = None  # number of operations, for bounds on a device; the table's formula counts all fields
    # Arguments that are results of earlier steps, such as ``{"sbf_rad": "radial_basis_fwd.sbf_rad"}``.
    from_steps: Mapping[str, str] = field(default_factory=dict)

    @property
    def op(self) -> Operator:
        """Entry of the step's operator in the operator table."""
        return OPERATORS[self.operator]


@dataclass(frozen=True)
class Workload:
    """A timed sequence of operator calls."""

    name: str
    family: str
    summary: str
    steps: tuple[Step, ...]  # called in sequence in each run
    sizes: Mapping[str, int]  # full size by symbol
    peers: Mapping[str, Contender] = field(default_factory=dict)  # their functions accept `WorkloadInputs`
    backends: tuple[str, ...] = ("fortran",)  # backends to time; backends with direct sums are slow at large sizes
    absent: tuple[str, ...] = ()  # optional inputs and graph objects to omit
    layout: str = "uniform"  # distribution of edges or triplets, "uniform" or "power law"
    # Formula for the count of numbers gathered in random order; "0" if gathering does not limit the speed.
    gathered: str = "0"

    @property
    def definitions(self) -> tuple[Definition, ...]:
        """Operator definitions of the steps."""
        return tuple({s.op.definition.name: s.op.definition for s in self.steps}.values())

    @property
    def contenders(self) -> dict[str, Contender | None]:
        """Peers on the host or the device, after the backends (None); the first backend is the baseline."""
        peers = {name: peer for name, peer in self.peers.items() if peer.device == ("gpu" in self.backends)}
        return {**dict.fromkeys(self.backends), **peers}

    def choose_run_sizes(self, size: str) -> dict[str, int]:
        """Return the sizes of a full, small or tiny run, which differ only in numbers of entities (edges, nodes)."""
        entities = [n for n in self.sizes if size != "full" and SYMBOLS[n].minimum == 0]
        fewer = {
            n: max(1, round(self.sizes[n] / 20)) if size == "small" else min(self.sizes[n], TINY) for n in entities
        }
        return {**self.sizes, **fewer}

    def make_contender_call(self, name: str, sizes: Mapping[str, int], dtype: str) -> Call:
        """Build the inputs, and return a contender's call; raise ModuleNotFoundError if a package is missing."""
        case = draw_workload_inputs(self, sizes, np.dtype(dtype))
        if name in self.peers:
            return self.peers[name].make(case)
        case = convert_indices(case, np.int32) if name == "gpu" else case  # int32, as in the layers of trigraph.torch
        return make_backend_call(self, name, case)

    def with_power_law_graph(self) -> "Workload":
        """Return the same workload on a graph whose degrees follow a power law."""
        summary = "the same on a graph whose degrees follow a power law"
        return replace(self, name=f"{self.name}-power-law", summary=summary, layout="power law")

    def count_operations(self, sizes: Mapping[str, int]) -> int:
        """Return the floating-point operations of one run, as counted by the steps or the table."""
        return sum(evaluate_expression(s.operations or s.op.operation_count_expression, sizes) for s in self.steps)

    def count_bytes_moved(self, sizes: Mapping[str, int], dtype: np.dtype) -> int:
        """Return the bytes of inputs and outputs of one run, each counted once, without index arrays."""
        bindings = self.bind_shape_symbols(sizes)
        outputs = (f for s in self.steps for f in self.list_step_results(s) if not f.index)
        arrays = (*self.list_step_arrays().values(), *outputs)
        return sum(math.prod(evaluate_shape(a, bindings)) for a in arrays) * dtype.itemsize

    def bind_shape_symbols(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return everything on which shapes depend: sizes, has_<optional input>, and numbers for choices."""
        bindings = dict(sizes)
        for spec in self.definitions:
            bindings |= {f"has_{n}": int(not self.is_absent(n)) for n in spec.optional_names}
            choices = (a for a in spec.attributes if a.choices)
            bindings |= {a.name: find_choice_index(a.choices, a.default) for a in choices}
        return bindings

    def is_absent(self, name: str) -> bool:
        """Return whether an input or graph object, or the cotangent of an input, is omitted."""
        return name.removeprefix("gg_") in self.absent

    def list_step_inputs(self, step: Step) -> tuple[Array, ...]:
        """Return the input arrays of a step, except results of fwd, which come from an earlier step or are omitted."""
        inputs = (a for a in step.op.arguments if not a.given_back and a.name not in (*step.zero, *step.from_steps))
        return tuple(a for a in inputs if not self.is_absent(a.name))

    def list_step_results(self, step: Step) -> tuple[Array, ...]:
        """Return the arrays that a step returns with the workload's settings."""
        values = {a.name: None if self.is_absent(a.name) else a for a in step.op.definition.inputs}
        returned = step.op.list_returned_fields(values, self.bind_shape_symbols({}))
        return tuple(f for f in returned if step.wrt is None or f.name in step.wrt)

    def make_array_key(self, definition: Definition, name: str) -> str:
        """Return the name of an argument in `WorkloadInputs.arrays`.

        Names with different shapes in several definitions are qualified, such as ``interaction_bilinear.weight``.
        """
        named = {a.shape for spec in self.definitions for a in spec.inputs if a.name == name.removeprefix("gg_")}
        return f"{definition.name}.{name}" if len(named) > 1 else name

    def list_step_arrays(self) -> dict[str, Array]:
        """Return the input arrays of all steps by key."""
        definitions = [(step.op.definition, a) for step in self.steps for a in self.list_step_inputs(step)]
        return {self.make_array_key(definition, a.name): a for definition, a in definitions}


@dataclass(frozen=True)
class WorkloadInputs:
    """Inputs of a workload: arrays by `make_array_key`, graph objects (None if absent) by argument name, and sizes."""

    workload: Workload
    sizes: Mapping[str, int]
    arrays: dict[str, Any]
    graphs: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    @property
    def graph(self) -> Any:
        """Graph of an operator with a single graph."""
        return self.graphs["graph"]


def _collect_graphs_and_attributes(op: Operator, case: WorkloadInputs) -> dict[str, Any]:
    """Return an operator's graph objects and attributes: the case's sizes, and other attributes' defaults."""
    graphs = {a.name: case.graphs[a.name] for a in op.graph_kind.arguments} if op.graph_kind else {}
    return graphs | {a.name: case.sizes[a.name] if a.is_size else a.default for a in op.attributes}


def _move_from_kinks(case: WorkloadInputs, rng: np.random.Generator) -> None:
    """Shrink numbers until no value is so close to a kink that rounding could move the value across the kink."""
    for spec in case.workload.definitions:
        keys = {a.name: case.workload.make_array_key(spec, a.name) for a in spec.inputs}
        keywords = _collect_graphs_and_attributes(OPERATORS[f"{spec.name}_bwd"], case)
        for kink in spec.kinks:
            target = case.arrays[keys[kink.resample]].copy()
            case.arrays[keys[kink.resample]] = target
            while True:
                inputs = {name: case.arrays.get(key) for name, key in keys.items()}
                values = np.abs(getattr(pyref, kink.function)(**inputs, **keywords))
                close = np.flatnonzero((values < 64 * np.finfo(target.dtype).eps).reshape(len(values), -1).any(1))
                if close.size == 0:
                    break
                rows = np.unique(getattr(case.graph, kink.rows)[close]) if kink.rows else close
                target[rows] *= rng.uniform(0.9, 1, target[rows].shape)


def draw_workload_inputs(workload: Workload, sizes: Mapping[str, int], dtype: np.dtype) -> WorkloadInputs:
    """Draw the inputs of a workload from the distributions in the table, away from the kinks that the table lists.

    Near a kink, rounding can make the results of correct programs differ by a whole term. Distances are at least 0.3
    cutoffs, as is typical of atoms: at much smaller distances, PyTorch Geometric's closed forms of spherical Bessel
    functions lose all float32 digits.
    """
    rng = np.random.default_rng(0)
    bindings = workload.bind_shape_symbols(sizes)
    kinds = {spec.graph for spec in workload.definitions if spec.graph}
    graphs = GRAPH_MAKERS[kinds.pop(), workload.layout](bindings, rng) if kinds else {}
    from_steps = {name for s in workload.steps for name in s.from_steps}
    wanted: dict[str, Array] = {}
    for spec in workload.definitions:
        inputs = (a for a in spec.inputs if a.name not in from_steps and not workload.is_absent(a.name))
        wanted |= {workload.make_array_key(spec, a.name): a for a in inputs}
    wanted |= workload.list_step_arrays()
    arrays = draw_arrays(wanted, bindings, dtype.name, rng)
    near = {n: arrays[n] for n, a in wanted.items() if a.sample == "unit interval"}  # numbers from 0.1 to 1.1
    arrays |= {n: (0.3 + 0.7 * (array - 0.1)).astype(dtype) for n, array in near.items()}
    case = WorkloadInputs(workload, dict(sizes), arrays, graphs)
    _move_from_kinks(case, rng)
    return case


def convert_indices(case: WorkloadInputs, dtype: Any) -> WorkloadInputs:
    """Return the case with graph indices converted to a dtype."""

    def convert_graph(graph: Any) -> Any:
        make, arguments = graph.__reduce__()
        return make(*(a.astype(dtype) if isinstance(a, np.ndarray) else a for a in arguments))

    return replace(case, graphs={n: g if g is None else convert_graph(g) for n, g in case.graphs.items()})


def make_backend_call(workload: Workload, backend: str, case: WorkloadInputs) -> Call:
    """Return a call that runs the steps by public functions, including checks; the case contains NumPy arrays.

    The call does not return arrays that are passed between steps.
    """
    if BACKENDS[backend][1] == "cupy":
        arrays, graphs = ({n: to_device(v) for n, v in named.items()} for named in (case.arrays, case.graphs))
        case = replace(case, arrays=arrays, graphs=graphs)
    between = {source for step in workload.steps for source in step.from_steps.values()}
    calls = []
    for step in workload.steps:
        keys = {a.name: workload.make_array_key(step.op.definition, a.name) for a in step.op.arguments}
        values = {n: None if n in step.zero else case.arrays.get(key) for n, key in keys.items()}
        values |= _collect_graphs_and_attributes(step.op, case)
        values |= {"wrt": step.wrt} if step.op.accepts_wrt else {}
        calls.append((step, FUNCTIONS[step.operator], values))

    def call_public_functions() -> dict[str, Any]:
        results: dict[str, Any] = {}
        for step, function, values in calls:
            result = function(**values | {n: results[source] for n, source in step.from_steps.items()}, backend=backend)
            for f in workload.list_step_results(step):
                results[f"{step.operator}.{f.name}"] = result if step.op.returns_array else getattr(result, f.name)
        return {n: value for n, value in results.items() if n not in between}

    return call_public_functions


def make_torch_peers(name: str, make: Callable[..., Call], about: str) -> dict[str, Contender]:
    """Return peers from ``make(inputs, device=...)``: one for the CPU and one (-cuda) for a CUDA device."""
    return {
        name: Contender(partial(make, device="cpu"), about),
        f"{name}-cuda": Contender(partial(make, device="cuda"), about, device=True),
    }


def make_pyg_peers(forward: Callable[[WorkloadInputs, str], Callable[..., Any]], layer: str) -> dict[str, Contender]:
    """Return peers that compute a forward with PyTorch Geometric, and its derivatives with autograd."""
    about = f"PyTorch Geometric {layer}, autograd"
    return make_torch_peers("pyg", partial(make_autograd_call, forward=forward), about)


def make_edge_index(case: WorkloadInputs, device: str) -> Any:
    """Return the sources and destinations of all edges, shape (2, num_positions)."""
    import torch

    graph = case.graph
    dst = np.repeat(np.arange(graph.num_dst_nodes), np.diff(graph.offsets))
    return torch.as_tensor(np.stack([graph.indices, dst]), device=device)


def make_autograd_call(
    case: WorkloadInputs, device: str, forward: Callable[[WorkloadInputs, str], Callable[..., Any]]
) -> Call:
    """Return a call for a workload of one definition: the forward, or autograd's backward or double backward.

    ``forward(case, device)`` returns a function that maps the definition's inputs to one or several outputs.
    """
    import torch

    workload, steps = case.workload, case.workload.steps
    (definition,) = workload.definitions
    function = forward(case, device)
    fields = [[f.name for f in workload.list_step_results(step) if f not in definition.auxiliary] for step in steps]
    leaves = {name for names in fields[1:] for name in names}
    t = {n: torch.tensor(a, device=device, requires_grad=n in leaves) for n, a in case.arrays.items()}
    inputs = [t[a.name] for a in definition.inputs if a.name in t]

    def compute_all_orders() -> dict[str, Any]:
        with torch.set_grad_enabled(len(steps) > 1):
            out = function(*inputs)
        orders = [dict(zip(fields[0], out if isinstance(out, tuple) else (out,), strict=True))]
        for step, names, prefix in zip(steps[1:], fields[1:], ("grad_", "gg_"), strict=False):
            values = {f"{prefix}{n}": value for n, value in orders[-1].items() if f"{prefix}{n}" not in step.zero}
            cotangents, create_graph = [t[n] for n in values], step is not steps[-1]
            gradients = torch.autograd.grad([*values.values()], [t[n] for n in names], cotangents, None, create_graph)
            orders.append(dict(zip(names, gradients, strict=True)))
        return {f"{s.operator}.{n}": v for s, named in zip(steps, orders, strict=True) for n, v in named.items()}

    return compute_all_orders
