"""Operators on a divided graph: each rank passes the rows that it owns and gets the result rows that it owns."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trigraph.arrays import get_array_module, name_library
from trigraph.backends import FUNCTIONS as WHOLE
from trigraph.checks import bind_arguments, check_and_convert_attributes, list_requested_fields
from trigraph.distributed.block_tables import CSCTableFormat, EdgeTableFormat, GraphlessFormat, SegmentTableFormat
from trigraph.distributed.exchange import Halo, compute_digest, require_agreement
from trigraph.distributed.partition import Partition, Subgraph, SubgraphLayout
from trigraph.distributed.sums import add_local_subtrees, sum_all_chunks
from trigraph.graphs import enter_device
from trigraph.table import GRAPHS, OPERATORS, Array, Operator, result_type
from trigraph.table.public import distributed_docstring, distributed_signature, set_function_metadata

PARTITION_CLASSES = {"CSC": CSCTableFormat, "EdgeGraph": EdgeTableFormat, "Segments": SegmentTableFormat}
ENTITIES = frozenset(size for kind in GRAPHS.values() for size in kind.sizes)


def find_divided_symbol_and_axis(array: Array) -> tuple[str, int] | None:
    """Return symbol and axis of an array divided among ranks; None if all ranks have the array, as for parameters."""
    return next(((dim, axis) for axis, dim in enumerate(array.dims) if dim in ENTITIES), None)


class _DividedCall:
    """One call of an operator on one rank."""

    def __init__(self, op: Operator, values: dict[str, Any], divided: Partition, backend: str | None) -> None:
        self.op, self.values, self.partition, self.backend = op, values, divided, backend
        wrt = values.pop("wrt", None)
        self.wanted = [f.name for f in op.fields] if wrt is None else list(list_requested_fields(op, wrt))
        self.divided = {a.name: find_divided_symbol_and_axis(a) for a in op.arguments}
        self.divided_fields: dict[str, Any] = {f.name: find_divided_symbol_and_axis(f) for f in op.fields}

    def check_arguments(self) -> None:
        """Raise unless each array has the rows that this rank owns. Calls for subgraphs check everything else."""
        rank = self.partition.comm.rank
        for argument in self.op.arguments:
            value, divided = self.values[argument.name], self.divided[argument.name]
            if value is None and argument.nullable:
                continue
            if name_library(value) is None:
                raise TypeError(f"{self.op.name}: {argument.name} is a {type(value).__name__}; expected an array")
            if divided is None:
                continue
            symbol, axis = divided
            own = self.partition.owned[symbol].size
            if value.ndim <= axis or value.shape[axis] != own:
                raise ValueError(
                    f"{self.op.name}: {argument.name} has shape {value.shape} on rank {rank}; expected {own} "
                    f"along axis {axis}, the rows of {symbol} that the rank owns"
                )
        check_and_convert_attributes(self.op, self.values)
        kind = self.partition.kind
        if isinstance(kind, EdgeTableFormat) and kind.ambiguous and self.values.get("exclude") == "edge":
            raise ValueError(
                f"{self.op.name}: exclude is 'edge' and the graph has parallel edges; expected an EdgeGraph built with "
                "shifts or vec, which identify the reverse of an edge"
            )

    def list_agreement_facts(self) -> list[tuple[str, str]]:
        """Return the facts that must be the same on all ranks."""
        facts = [self.partition.name, ("wrt", ", ".join(self.wanted)), ("backend", str(self.backend))]
        for a in self.op.arguments:
            value, divided = self.values[a.name], self.divided[a.name]
            if value is None:
                facts.append((a.name, "None"))
            elif divided is None:
                facts.append((a.name, f"{value.dtype} {value.shape}"))
                contents = value if isinstance(value, np.ndarray) else value.get()
                facts.append((f"the digest of the numbers in {a.name}, a parameter,", compute_digest(contents)))
            else:
                shape = tuple(n for axis, n in enumerate(value.shape) if axis != divided[1])
                facts.append((a.name, f"of {value.dtype} with rows of shape {shape}"))
        return facts + [(a.name, repr(self.values[a.name])) for a in self.op.attributes]

    def compute_fields(self) -> dict[str, Any]:
        """Return the wanted fields by name; fields that do not exist are None."""
        rows = {n: divided[0] for n in self.wanted if (divided := self.divided_fields[n])}
        sums = [n for n in self.wanted if n not in rows]
        fields: dict[str, Any] = {}
        if rows:
            shared = self.op.order and any(symbol in self.partition.kind.shared_symbols for symbol in rows.values())
            fields |= self._compute_divided_fields(
                self.partition.full_layout if shared else self.partition.output_layout, list(rows)
            )
        if sums:
            fields |= self._compute_summed_fields(sums)
        return fields

    def _exchange_argument_rows(self, halos: Mapping[str, Halo]) -> dict[str, Any]:
        """Return the arguments with the rows of other ranks added; all arrays are exchanged at the same time."""
        divided = {n: at for n, at in self.divided.items() if at and self.values[n] is not None}
        coming = {n: halos[symbol].start(self.values[n], axis) for n, (symbol, axis) in divided.items()}
        return self.values | {n: exchange.wait() for n, exchange in coming.items()}

    def _compute_divided_fields(self, layout: SubgraphLayout, names: list[str]) -> dict[str, Any]:
        """Compute the fields that are divided by rows and return this rank's rows of each."""
        exchanged_values = self._exchange_argument_rows(layout.halos)
        with require_agreement(self.partition.comm):
            fields = self._compute_subgraph_fields(layout.subgraph, exchanged_values, names)
            for name, array in fields.items():
                symbol, axis = self.divided_fields[name]
                places = layout.own[symbol]
                if array is not None and places is not None:
                    xp = get_array_module(array)
                    fields[name] = xp.take(array, xp.asarray(places), axis)
        return fields

    def _compute_summed_fields(self, names: list[str]) -> dict[str, Any]:
        """Return fields that are sums over all blocks, chunk by chunk."""
        chunks = self.partition.chunks
        exchanged_values = self._exchange_argument_rows(chunks.halos) if chunks.number else self.values

        def compute_chunk_fields(subgraph: Subgraph) -> tuple[Any, ...]:
            fields = self._compute_subgraph_fields(subgraph, exchanged_values, names)
            return tuple(fields[n] for n in names)

        with require_agreement(self.partition.comm):
            sums = add_local_subtrees(
                map(compute_chunk_fields, chunks.subgraphs if chunks.number else [self.partition.empty_subgraph]),
                chunks.first,
            )
        total = sum_all_chunks(self.partition.comm, sums, chunks.number) if chunks.number else sums[0][2]
        xp = get_array_module(self.values[self.op.definition.inputs[0].name])
        return {n: xp.asarray(value) for n, value in zip(names, total, strict=True)}

    def _compute_subgraph_fields(
        self, subgraph: Subgraph, values: Mapping[str, Any], names: list[str]
    ) -> dict[str, Any]:
        arguments = {n: v for n, v in values.items() if n not in subgraph.graphs}
        for a in self.op.arguments:
            divided, value = self.divided[a.name], values[a.name]
            if divided is None or value is None:
                continue
            symbol, axis = divided
            places = subgraph.places[symbol]
            if places is not None:
                value = get_array_module(value).take(value, get_array_module(value).asarray(places), axis)
            if subgraph.inside is not None and a.name.startswith("grad_"):
                xp = get_array_module(value)
                value = xp.where(xp.asarray(subgraph.inside)[:, None], value, xp.zeros((), value.dtype))
            arguments[a.name] = self._to_local_positions(subgraph, value) if a.index else value
        graphs = {}
        if self.op.graph_kind:
            graphs_on_device = subgraph.get_graphs_on_device(values[self.op.definition.inputs[0].name])
            graphs = {g.name: graphs_on_device[g.name] for g in self.op.graph_kind.arguments}
        keywords = {"wrt": names} if self.op.accepts_wrt else {}
        result = WHOLE[self.op.name](**arguments, **graphs, **keywords, backend=self.backend)
        fields = {self.op.fields[0].name: result} if self.op.returns_array else result._asdict()
        indices = {f.name for f in self.op.fields if f.index}
        return {n: self._to_global_positions(subgraph, fields[n]) if n in indices else fields[n] for n in names}

    def _to_local_positions(self, subgraph: Subgraph, numbers: Any) -> Any:
        """Convert positions in the whole graph to positions in a subgraph; keep negative numbers."""
        xp = get_array_module(numbers)
        places = xp.searchsorted(xp.asarray(subgraph.ids["num_positions"]), numbers).astype(numbers.dtype)
        return xp.where(numbers >= 0, places, numbers)

    def _to_global_positions(self, subgraph: Subgraph, numbers: Any) -> Any:
        """Convert positions in a subgraph to positions in the whole graph; keep negative numbers."""
        if numbers is None or numbers.size == 0:
            return numbers
        xp = get_array_module(numbers)
        ids = xp.asarray(subgraph.ids["num_positions"]).astype(numbers.dtype)
        return xp.where(numbers >= 0, ids[numbers] if ids.size else numbers, numbers)


def _pop_partition(op: Operator, values: dict[str, Any], rows: Partition | None) -> Partition:
    """Return the partition from the arguments, and remove the graph arguments that the partition replaces."""
    graphs = [g.name for g in op.graph_kind.arguments] if op.graph_kind else []
    partition = values.pop(graphs[0]) if graphs else rows
    if graphs and rows is not None:
        raise TypeError(f"{op.name}: partition is for operators without a graph; pass it as {graphs[0]}")
    for name in graphs[1:]:
        if values.pop(name) is not None:
            raise TypeError(f"{op.name}: {name} is given; expected it in trigraph.distributed.partition(..., {name}=)")
    if not isinstance(partition, Partition):
        name = graphs[0] if graphs else "partition"
        raise TypeError(f"{op.name}: {name} is a {type(partition).__name__}; expected a trigraph.distributed.Partition")
    if not graphs and not isinstance(partition.kind, GraphlessFormat):
        partition = partition.get_row_partition()
    if not isinstance(partition.kind, PARTITION_CLASSES[op.graph_kind.type_name] if op.graph_kind else GraphlessFormat):
        raise TypeError(f"{op.name}: the partition is for another kind of graph ({type(partition.kind).__name__})")
    return partition


def _make_distributed_function(op: Operator) -> Callable[..., Any]:
    signature = distributed_signature(op)

    def compute_on_ranks(
        *args: Any, partition: Partition | None = None, backend: str | None = None, **kwargs: Any
    ) -> Any:
        values = dict(bind_arguments(op, args, kwargs, signature))
        divided = _pop_partition(op, values, partition)
        with require_agreement(divided.comm, ("the operator", op.name)) as facts:
            work = _DividedCall(op, values, divided, backend)
            work.check_arguments()
            facts += work.list_agreement_facts()
        with enter_device(*values.values()):
            fields = work.compute_fields()
        if op.returns_array:
            return fields[op.fields[0].name]
        return result_type(op.name)(**{f.name: fields.get(f.name) for f in op.fields})

    set_function_metadata(compute_on_ranks, "trigraph.distributed", op.name, signature, distributed_docstring(op))
    return compute_on_ranks


FUNCTIONS = {name: _make_distributed_function(op) for name, op in OPERATORS.items()}
