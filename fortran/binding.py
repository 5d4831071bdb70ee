"""Python functions over the f2py shims, one for each operator of the table.

The shims take sizes, flat arrays and flags in an order that follows from the table (see ``shims.py``), so one function
serves every operator and all three sets of shims: of the fast path, the direct reference, and the judge in real128.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from trigraph.checks import bind_sizes, index_dtype, shape_of
from trigraph.fortran.memory import empty
from trigraph.fortran.shims import SHIM_SETS, ShimSet
from trigraph.fortran.threads import threads_for
from trigraph.operators import OPERATORS, Argument, Operator, evaluate, result_type

__all__ = ["bind", "functions"]

LARGEST = 2**31 - 1


def bind(op: Operator, shims: ShimSet, load: Callable[[], ModuleType]) -> Callable[..., Any]:
    """Return the operator as a Python function over a set of shims.

    Its attribute `execute` is the same function for arguments that are bound already: `values` by name, `sizes` of
    every symbol, names of the `wanted` fields among those that exist, and arrays to write to by field (`out`).

    Parameters
    ----------
    op : Operator
    shims : ShimSet
    load : callable
        Returns the extension module; called at each use.
    """
    lead = len(shims.input_parts)
    crossing = _Crossing(op, shims)

    def execute(
        values: Mapping[str, Any], sizes: Mapping[str, int], wanted: Sequence[str], out: Mapping[str, np.ndarray]
    ) -> Any:
        numbers = [sizes[s] for s in op.definition.symbols]
        if max(numbers) > LARGEST:
            name = op.definition.symbols[numbers.index(max(numbers))]
            raise ValueError(f"{op.name}: {name} is {sizes[name]}; the Fortran panel takes at most {LARGEST}")
        outputs = crossing.outputs(values, sizes, wanted, out)
        if all(numbers) and all(outputs[f].size for f in wanted):
            crossing.invoke(load(), values, sizes, wanted, outputs)
        else:
            # f2py rejects zero-size arrays; with nothing to sum over, every output is zero, every index -1.
            for field in op.fields:
                if field.name in wanted:
                    outputs[field.name][...] = -1 if field.index else 0
        if op.single:
            return outputs[op.fields[0].name]
        return result_type(op.name)(*(outputs[f.name] if f.name in wanted else None for f in op.fields))

    def call(*args: Any, out: Mapping[str, np.ndarray] | None = None, **kwargs: Any) -> Any:
        bound = op.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        shapes = {a.name: values[a.name].shape[0 if a.given_back else lead :] for a in op.given(values)}
        sizes = bind_sizes(op, values, shapes)
        asked = values.get("wrt")
        names = (asked,) if isinstance(asked, str) else asked
        returned = tuple(f.name for f in op.returned(values, sizes) if names is None or f.name in names)
        return execute(values, sizes, returned, out or {})

    call.__name__ = call.__qualname__ = op.name
    call.__doc__ = f"{op.definition.summary} See `trigraph.{op.name}`."
    out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
    call.__signature__ = op.signature.replace(  # type: ignore[attr-defined]
        parameters=[*op.signature.parameters.values(), out]
    )
    call.execute = execute  # type: ignore[attr-defined]
    return call


class _Crossing:
    """How the arguments of an operator cross into its shims; what is the same in every call is kept."""

    def __init__(self, op: Operator, shims: ShimSet) -> None:
        self.op, self.shims = op, shims
        self.first = next(a.name for a in op.arguments if not a.nullable)
        self.presence = shims.presence(op)
        self.graph = shims.graph_arrays(op)
        self.arguments = shims.arguments(op)
        self.index = None if op.graph and len(shims.indices) > 1 else np.dtype(np.int64)

    def index_dtype(self, values: Mapping[str, Any]) -> np.dtype:
        """Dtype of the integers: that of the graph, or int64 where there is no graph or the shims take no other."""
        return self.index or index_dtype(self.op, values)

    def outputs(
        self, values: Mapping[str, Any], sizes: Mapping[str, int], wanted: Sequence[str], out: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """One array for each field; a field that is not wanted gets a dummy of one element."""
        arrays, dtype = {}, values[self.first].dtype
        for field in self.op.fields:
            lead = () if field.index else self.shims.output_parts
            kind = self.index_dtype(values) if field.index else dtype
            if field.name not in wanted:
                arrays[field.name] = np.zeros((*lead, 1), kind)
            elif field.name in out:
                arrays[field.name] = out[field.name]
            else:
                arrays[field.name] = empty(lead + shape_of(field, sizes), kind)
        return arrays

    def invoke(
        self,
        module: ModuleType,
        values: Mapping[str, Any],
        sizes: Mapping[str, int],
        wanted: Sequence[str],
        outputs: Mapping[str, np.ndarray],
    ) -> None:
        """Call the shim; MemoryError where it was refused memory or threads."""
        op, dtype = self.op, values[self.first].dtype
        name = f"{op.name}_f{8 * dtype.itemsize}"
        work = evaluate(op.operations, sizes) + sum([outputs[name].size for name in wanted])
        arguments: list[Any] = [threads_for(work)] if self.shims.threads else []
        arguments += [sizes[s] for s in op.definition.symbols]
        arguments += [int(values[n] is not None) for n in self.presence]
        arguments += [sizes[n] for n in op.choices]
        arguments += [values[n] for n in op.numbers]
        if op.graph is not None:
            index = self.index_dtype(values)
            name += f"_i{8 * index.itemsize}"
            # Absent: an order the graph could not decide (EdgeGraph.reverse_edge), or an object that was not given.
            found = [op.graph.find(a, values) for a in self.graph]
            arguments += [np.full(1, -1, index) if a is None else a.astype(index, copy=False) for a in found]
        arguments += [self.argument(a, values, sizes, dtype) for a in self.arguments]
        if op.selective:
            arguments += [int(f.name in wanted) for f in op.fields]
        for f in op.fields:
            parts = () if f.index else self.shims.output_parts
            arguments.append(outputs[f.name].reshape(*parts, -1).T)
        if getattr(module, name)(*arguments) != 0:
            refused = module.refused_bytes()
            what = f"{refused} bytes of work space" if refused else "work space, or threads"
            raise MemoryError(f"{op.name}: the system refused {what}")

    def argument(self, a: Argument, values: Mapping[str, Any], sizes: Mapping[str, int], dtype: np.dtype) -> np.ndarray:
        """Return an array argument as it crosses; a cotangent that is None is zeros, what is absent one element."""
        value = values[a.name]
        if value is None:
            absent = a.given_back or (a.nullable and values.get(a.name.removeprefix("gg_")) is None)
            kind = self.index_dtype(values) if a.index else dtype
            value = np.zeros(self.shims.input_parts + ((1,) if absent else shape_of(a, sizes)), kind)
        array: np.ndarray = value.reshape(*self.shims.input_parts, -1).T
        return array


def functions(name: str, load: Callable[[], ModuleType]) -> dict[str, Callable[..., Any]]:
    """All operators of the table over one set of shims."""
    return {op.name: bind(op, SHIM_SETS[name], load) for op in OPERATORS.values()}
