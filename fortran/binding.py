"""Python functions that call the f2py shims, one for each operator of the table.

The table determines the order in which the shims accept sizes, flat arrays and flags (see ``shims.py``). The same code
therefore serves every operator and all three sets of shims: fast path, reference, and the judge in real128.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

import numpy as np

from trigraph import table
from trigraph.checks import make_unchecked_function
from trigraph.fortran.memory import LEAST, empty
from trigraph.fortran.shims import SHIM_SETS, ShimSet
from trigraph.fortran.threads import choose_num_threads
from trigraph.table import ArrayArgument, Operator, evaluate_expression, evaluate_shape, result_type

LARGEST_SIZE = 2**31 - 1
POOLED_SIZE = LEAST // 24  # outputs with fewer elements, of at most 24 bytes each, are too small for the memory pool
INTEGERS: dict[int, np.dtype[Any]] = {
    4: np.dtype(np.int32),
    8: np.dtype(np.int64),
}  # keyed by item size, because NumPy has several dtypes for int64
REALS: dict[int, np.dtype[Any]] = {
    4: np.dtype(np.float32),
    8: np.dtype(np.float64),
}  # keyed by item size, so that any metadata of the caller's dtype is ignored


class _ShimCall:
    """Converts the arguments of an operator and calls its shim. `load` returns the extension module."""

    def __init__(self, op: Operator, shims: ShimSet, load: Callable[[], ModuleType]) -> None:
        self.op, self.shims, self.load = op, shims, load
        self.first = next(a.name for a in op.arguments if not a.nullable)
        self.presence = shims.list_optional_arguments(op)
        self.graph = shims.list_graph_arrays(op)
        self.arguments = shims.select_arguments(op)
        shapes = ["(" + "".join(f"{dim}," for dim in f.dims) + ")" for f in op.fields]
        self.work_and_shapes = ", ".join([op.operation_count_expression, *shapes])
        # Arrays are passed flat; only the judge's arrays keep an axis, for the components hi, lo and scale of a number.
        self.input_shape = (*shims.input_parts, -1)
        self.output_parts = [() if f.index else tuple(shims.output_parts) for f in op.fields]
        of_graph = op.graph_kind is not None and len(shims.indices) > 1  # the shim depends on the dtype of the graph
        self.index: np.dtype[Any] | None = None if of_graph else np.dtype(np.int64)

    def execute(
        self,
        values: Mapping[str, Any],
        sizes: Mapping[str, int],
        wanted: Sequence[str],
        out: Mapping[str, np.ndarray],
    ) -> Any:
        """Execute the operator (see `make_backend_functions`); raise MemoryError if memory or threads are refused."""
        op = self.op
        numbers = [sizes[s] for s in op.definition.symbols]
        if max(numbers) > LARGEST_SIZE:
            name = op.definition.symbols[numbers.index(max(numbers))]
            raise ValueError(f"{op.name}: {name} is {sizes[name]}; the Fortran backend takes at most {LARGEST_SIZE}")
        real = REALS[values[self.first].dtype.itemsize]
        graph: list[Any] = op.graph_kind.find_attributes(self.graph, values) if op.graph_kind is not None else []
        index = self.index or INTEGERS[next(a for a in graph if a is not None).dtype.itemsize]
        work, *shapes = cast(Any, evaluate_expression(self.work_and_shapes, sizes))
        outputs, smallest = [], min(numbers)
        for f, shape, parts in zip(op.fields, shapes, self.output_parts, strict=True):
            written = math.prod(shape)
            if f.name in wanted:
                work, smallest = work + written, min(smallest, written)
            else:  # a field that is not requested needs only a one-element array
                shape, written = (1,), 1
            allocate: Any = np.empty if written < POOLED_SIZE else empty
            outputs.append(out[f.name] if f.name in out else allocate(parts + shape, index if f.index else real))
        if smallest > 0:
            arguments: list[Any] = [choose_num_threads(work)] if self.shims.threads else []
            module = self.load()
            arguments += numbers
            arguments += [values[n] is not None for n in self.presence]
            arguments += [sizes[n] for n in op.choice_attribute_names]
            arguments += [values[n] for n in op.real_attribute_names]
            # Graph arrays are None if an optional graph is absent; so is reverse_edge if reverse edges are ambiguous.
            arguments += [np.full(1, -1, index) if a is None else a.astype(index, copy=False) for a in graph]
            inputs: list[Any] = [(a, values[a.name]) for a in self.arguments]
            inputs = [self.make_placeholder(a, values, sizes, index, real) if v is None else v for a, v in inputs]
            arguments += [a.reshape(self.input_shape).T for a in inputs]
            if op.accepts_wrt:
                arguments += [f.name in wanted for f in op.fields]
            name = f"{op.name}_f{8 * real.itemsize}" + f"_i{8 * index.itemsize}" * (op.graph_kind is not None)
            arguments += [a.reshape(*parts, -1).T for a, parts in zip(outputs, self.output_parts, strict=True)]
            if getattr(module, name)(*arguments) != 0:
                refused = module.refused_bytes()
                description = f"{refused} bytes of workspace" if refused else "workspace, or threads"
                raise MemoryError(f"{op.name}: the system refused {description}")
        else:
            # No shim is called, because f2py rejects empty arrays. Every sum is empty: outputs are 0, and indices -1.
            for f, array in zip(op.fields, outputs, strict=True):
                array[...] = -1 if f.index else 0
        if op.returns_array:
            return outputs[0]
        named = zip(op.fields, outputs, strict=True)
        return result_type(op.name)(*[a if f.name in wanted else None for f, a in named])

    def make_placeholder(
        self, a: ArrayArgument, values: Mapping[str, Any], sizes: Mapping[str, int], *dtypes: Any
    ) -> np.ndarray:
        """Return the array to pass in place of None: zeros for a cotangent, a single element for an absent input."""
        absent = a.given_back or (a.nullable and values.get(a.name.rpartition("gg_")[2]) is None)
        return np.zeros(self.shims.input_parts + ((1,) if absent else evaluate_shape(a, sizes)), dtypes[not a.index])


def make_backend_functions(name: str, load: Callable[[], ModuleType]) -> dict[str, Callable[..., Any]]:
    """Return a dictionary of the functions of a backend, which calls one set of shims (a key of `SHIM_SETS`).

    It contains one function for each operator of the table, and `execute`, which every backend provides. The arguments
    of `execute` have already been checked: the operator, the dictionaries `values` (by argument) and `sizes` (by
    symbol), `wanted` (the requested fields that exist) and `out` (output arrays by field). `load` returns the
    extension module; it is called each time the module is needed.
    """
    shims = SHIM_SETS[name]
    operators = shims.select_operators(table)
    shim_calls = {name: _ShimCall(op, shims, load) for name, op in operators.items()}

    def execute(op: Operator, values: Any, sizes: Any, wanted: Any, out: Any) -> Any:
        return shim_calls[op.name].execute(values, sizes, wanted, out)

    lead = len(shims.input_parts)
    return {"execute": execute, **{op.name: make_unchecked_function(op, execute, lead) for op in operators.values()}}
