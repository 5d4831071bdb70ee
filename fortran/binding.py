"""Python functions that call the f2py shims, one for each operator of the table.

The shims take sizes, flat arrays and flags in an order that follows from the table (see ``shims.py``). The same code
therefore calls every operator and all three sets of shims: the fast path, the reference, and the judge in real128.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

import numpy as np

from trigraph import table
from trigraph.checks import skip_checks
from trigraph.fortran.memory import LEAST, empty
from trigraph.fortran.shims import SHIM_SETS, ShimSet
from trigraph.fortran.threads import threads_for
from trigraph.table import Argument, Operator, evaluate, evaluate_shape, result_type

LARGEST = 2**31 - 1
SMALL = LEAST // 24  # outputs with fewer elements (each of at most 24 bytes) do not use the memory pool
INTEGERS: dict[int, np.dtype[Any]] = {
    4: np.dtype(np.int32),
    8: np.dtype(np.int64),
}  # keys are sizes in bytes, because several dtypes are int64
REALS: dict[int, np.dtype[Any]] = {
    4: np.dtype(np.float32),
    8: np.dtype(np.float64),
}  # keys are sizes in bytes, to drop the metadata of a caller's dtype


class _ShimCall:
    """A converter of an operator's arguments to arguments of its shims. `load` returns the extension module."""

    def __init__(self, op: Operator, shims: ShimSet, load: Callable[[], ModuleType]) -> None:
        self.op, self.shims, self.load = op, shims, load
        self.first = next(a.name for a in op.arguments if not a.nullable)
        self.presence = shims.presence(op)
        self.graph = shims.graph_arrays(op)
        self.arguments = shims.arguments(op)
        shapes = ["(" + "".join(f"{dim}," for dim in f.dims) + ")" for f in op.fields]
        self.work_and_shapes = ", ".join([op.operations, *shapes])
        # Arrays are passed flat; hi, lo and scale of the judge's numbers are columns.
        self.input_shape = (*shims.input_parts, -1)
        self.output_parts = [() if f.index else tuple(shims.output_parts) for f in op.fields]
        of_graph = op.graph is not None and len(shims.indices) > 1  # the graph's dtype selects the shim
        self.index: np.dtype[Any] | None = None if of_graph else np.dtype(np.int64)

    def execute(
        self,
        values: Mapping[str, Any],
        sizes: Mapping[str, int],
        wanted: Sequence[str],
        out: Mapping[str, np.ndarray],
    ) -> Any:
        """Execute a checked call (see `functions`); raise MemoryError if the system refuses memory or threads."""
        op = self.op
        numbers = [sizes[s] for s in op.definition.symbols]
        if max(numbers) > LARGEST:
            name = op.definition.symbols[numbers.index(max(numbers))]
            raise ValueError(f"{op.name}: {name} is {sizes[name]}; the Fortran backend takes at most {LARGEST}")
        real = REALS[values[self.first].dtype.itemsize]
        graph: list[Any] = op.graph.find_all(self.graph, values) if op.graph is not None else []
        index = self.index or INTEGERS[next(a for a in graph if a is not None).dtype.itemsize]
        work, *shapes = cast(Any, evaluate(self.work_and_shapes, sizes))
        outputs, least = [], min(numbers)
        for f, shape, parts in zip(op.fields, shapes, self.output_parts, strict=True):
            written = math.prod(shape)
            if f.name in wanted:
                work, least = work + written, min(least, written)
            else:  # an array of one element is passed for a field that is not requested
                shape, written = (1,), 1
            make: Any = np.empty if written < SMALL else empty
            outputs.append(out[f.name] if f.name in out else make(parts + shape, index if f.index else real))
        if least > 0:
            arguments: list[Any] = [threads_for(work)] if self.shims.threads else []
            module = self.load()
            arguments += numbers
            arguments += [values[n] is not None for n in self.presence]
            arguments += [sizes[n] for n in op.choices]
            arguments += [values[n] for n in op.numbers]
            # None is an ambiguous EdgeGraph.reverse_edge, or an array of an optional graph that is absent.
            arguments += [np.full(1, -1, index) if a is None else a.astype(index, copy=False) for a in graph]
            inputs: list[Any] = [(a, values[a.name]) for a in self.arguments]
            inputs = [self.stand_in(a, values, sizes, index, real) if v is None else v for a, v in inputs]
            arguments += [a.reshape(self.input_shape).T for a in inputs]
            if op.selective:
                arguments += [f.name in wanted for f in op.fields]
            name = f"{op.name}_f{8 * real.itemsize}" + f"_i{8 * index.itemsize}" * (op.graph is not None)
            arguments += [a.reshape(*parts, -1).T for a, parts in zip(outputs, self.output_parts, strict=True)]
            if getattr(module, name)(*arguments) != 0:
                refused = module.refused_bytes()
                what = f"{refused} bytes of workspace" if refused else "workspace, or threads"
                raise MemoryError(f"{op.name}: the system refused {what}")
        else:
            # f2py rejects empty arrays. All sums are empty, so all outputs are 0, and all indices are -1.
            for f, array in zip(op.fields, outputs, strict=True):
                array[...] = -1 if f.index else 0
        if op.single:
            return outputs[0]
        named = zip(op.fields, outputs, strict=True)
        return result_type(op.name)(*[a if f.name in wanted else None for f, a in named])

    def stand_in(self, a: Argument, values: Mapping[str, Any], sizes: Mapping[str, int], *dtypes: Any) -> np.ndarray:
        """Return the array that is passed for None: zeros for a cotangent, one element for an absent input."""
        absent = a.given_back or (a.nullable and values.get(a.name.rpartition("gg_")[2]) is None)
        return np.zeros(self.shims.input_parts + ((1,) if absent else evaluate_shape(a, sizes)), dtypes[not a.index])


def functions(name: str, load: Callable[[], ModuleType]) -> dict[str, Callable[..., Any]]:
    """Return the functions of a backend by name, for one set of shims (a key of `SHIM_SETS`).

    In addition to a function for each operator of the table, the result contains `execute`, which every backend has. It
    executes an operator with checked arguments: the operator, `values` by name, `sizes` of all symbols, the names of
    the requested fields that exist (`wanted`), and output arrays by field (`out`). `load` returns the extension module,
    and is called at each use.
    """
    shims = SHIM_SETS[name]
    operators = shims.operators(table)
    shim_calls = {name: _ShimCall(op, shims, load) for name, op in operators.items()}

    def execute(op: Operator, values: Any, sizes: Any, wanted: Any, out: Any) -> Any:
        return shim_calls[op.name].execute(values, sizes, wanted, out)

    lead = len(shims.input_parts)
    return {"execute": execute, **{op.name: skip_checks(op, execute, lead) for op in operators.values()}}
