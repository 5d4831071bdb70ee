"""Python functions over the f2py shims, one for each operator of the table.

The shims take sizes, flat arrays and flags in an order that follows from the table (see ``shims.py``), so one function
serves every operator and all three sets of shims: of the fast path, the direct reference, and the judge in real128.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from trigraph import table
from trigraph.checks import index_dtype, shape_of, unchecked
from trigraph.fortran.memory import empty
from trigraph.fortran.shims import SHIM_SETS, ShimSet
from trigraph.fortran.threads import threads_for
from trigraph.table import Argument, Operator, evaluate, result_type

LARGEST = 2**31 - 1


class _CallLayout(NamedTuple):
    """What is the same in all calls of an operator whose arguments have the same shapes, dtypes and attributes.

    `function` is that of the extension module, empty where there is nothing to compute; `work` counts floating
    operations and numbers written, where threads divide them. `integers` are sizes, flags of presence and choices, in
    the order of the function's arguments; `flags` tell which fields are wanted (none without `wrt`). `outputs` have
    shape, dtype and whether the field is not wanted: it crosses as one number then. In `integer` the graph's arrays
    cross.
    """

    function: str
    work: int
    integers: list[int]
    flags: list[int]
    outputs: list[tuple[tuple[int, ...], np.dtype, bool]]
    integer: np.dtype


class _ShimCall:
    """How the arguments of an operator cross into its shims; the layout of a call is cached.

    `load` returns the extension module; it is called at each use.
    """

    def __init__(self, op: Operator, shims: ShimSet, load: Callable[[], ModuleType]) -> None:
        self.op, self.shims, self.load = op, shims, load
        self.first = next(a.name for a in op.arguments if not a.nullable)
        self.presence = shims.presence(op)
        self.graph = shims.graph_arrays(op)
        self.arguments = shims.arguments(op)
        # Arrays cross flat: one column of numbers, or as many as each number has parts.
        self.input_shape = (*shims.input_parts, -1)
        self.output_shapes = [(-1,) if f.index else (*shims.output_parts, -1) for f in op.fields]
        self.index = None if op.graph and len(shims.indices) > 1 else np.dtype(np.int64)

    def execute(
        self,
        values: Mapping[str, Any],
        sizes: Mapping[str, int],
        wanted: Sequence[str],
        out: Mapping[str, np.ndarray],
        backend_cache: dict[Any, Any],
    ) -> Any:
        """Run a call whose arguments are bound; see `functions`."""
        op = self.op
        # The layout depends on sizes, wanted fields, choices, dtypes and which arguments are there. `backend_cache`
        # belongs to calls that have these in common (`trigraph.checks.arrays._key`); the key tells operator and shims.
        layout = backend_cache.get(self)
        if layout is None:
            layout = backend_cache[self] = self.layout(values, sizes, wanted)
        outputs = [
            np.zeros(shape, dtype) if dummy else out[f.name] if f.name in out else empty(shape, dtype)
            for f, (shape, dtype, dummy) in zip(op.fields, layout.outputs, strict=True)
        ]
        if layout.function:
            self.invoke(self.load(), layout, values, sizes, outputs)
        else:
            # f2py rejects zero-size arrays; with nothing to sum over, every output is zero, every index -1.
            for field, array in zip(op.fields, outputs, strict=True):
                array[...] = -1 if field.index else 0
        if op.single:
            return outputs[0]
        fields = [None if dummy else a for a, (_, _, dummy) in zip(outputs, layout.outputs, strict=True)]
        return result_type(op.name)(*fields)

    def layout(self, values: Mapping[str, Any], sizes: Mapping[str, int], wanted: Sequence[str]) -> _CallLayout:
        """Return the layout of a call; ValueError where a size is too large."""
        op = self.op
        numbers = [sizes[s] for s in op.definition.symbols]
        if max(numbers) > LARGEST:
            name = op.definition.symbols[numbers.index(max(numbers))]
            raise ValueError(f"{op.name}: {name} is {sizes[name]}; the Fortran backend takes at most {LARGEST}")
        # Made anew, since this layout serves later calls: the dtype of this call's arrays may have metadata, or be a
        # type of integers that is equal to int64 but has another name.
        dtype = np.dtype(f"f{values[self.first].dtype.itemsize}")
        index = np.dtype(f"i{self.index_dtype(values).itemsize}")
        outputs = []
        for field in op.fields:
            lead = () if field.index else self.shims.output_parts
            shape = (*lead, 1) if field.name not in wanted else lead + shape_of(field, sizes)
            outputs.append((shape, index if field.index else dtype, field.name not in wanted))
        written = [math.prod(shape) for shape, _, dummy in outputs if not dummy]
        name = f"{op.name}_f{8 * dtype.itemsize}" + (f"_i{8 * index.itemsize}" if op.graph else "")
        integers = numbers + [int(values[n] is not None) for n in self.presence] + [sizes[n] for n in op.choices]
        return _CallLayout(
            function=name if all(numbers) and all(written) else "",
            work=evaluate(op.operations, sizes) + sum(written) if self.shims.threads else 0,
            integers=integers,
            flags=[int(f.name in wanted) for f in op.fields] if op.selective else [],
            outputs=outputs,
            integer=index,
        )

    def index_dtype(self, values: Mapping[str, Any]) -> np.dtype:
        """Dtype of the integers: that of the graph, or int64 where there is no graph or the shims take no other."""
        return self.index or index_dtype(self.op, values)

    def invoke(
        self,
        module: ModuleType,
        layout: _CallLayout,
        values: Mapping[str, Any],
        sizes: Mapping[str, int],
        outputs: Sequence[np.ndarray],
    ) -> None:
        """Call the shim; MemoryError where it was refused memory or threads."""
        op, index = self.op, layout.integer
        arguments: list[Any] = [threads_for(layout.work)] if self.shims.threads else []
        arguments += layout.integers
        arguments += [values[n] for n in op.numbers]
        if op.graph is not None:
            # Absent: an order the graph could not decide (EdgeGraph.reverse_edge), or an object that was not given.
            for array in op.graph.find_all(self.graph, values):
                if array is None:
                    arguments.append(np.full(1, -1, index))
                else:
                    arguments.append(array if array.dtype is index else array.astype(index, copy=False))
        arguments += [self.argument(a, values, sizes) for a in self.arguments]
        arguments += layout.flags
        arguments += [a.reshape(s).T for a, s in zip(outputs, self.output_shapes, strict=True)]
        if getattr(module, layout.function)(*arguments) != 0:
            refused = module.refused_bytes()
            what = f"{refused} bytes of work space" if refused else "work space, or threads"
            raise MemoryError(f"{op.name}: the system refused {what}")

    def argument(self, a: Argument, values: Mapping[str, Any], sizes: Mapping[str, int]) -> np.ndarray:
        """Return an array argument as it crosses; a cotangent that is None is zeros, what is absent one element."""
        value = values[a.name]
        if value is None:
            absent = a.given_back or (a.nullable and values.get(a.name.rpartition("gg_")[2]) is None)
            dtype = self.index_dtype(values) if a.index else values[self.first].dtype
            value = np.zeros(self.shims.input_parts + ((1,) if absent else shape_of(a, sizes)), dtype)
        array: np.ndarray = value.reshape(self.input_shape).T
        return array


def functions(name: str, load: Callable[[], ModuleType]) -> dict[str, Callable[..., Any]]:
    """Return the functions of a backend over one set of shims (a key of `SHIM_SETS`), by name.

    Beside one function for each operator of the table there is `execute`, which every backend has: it runs a call that
    has passed the checks. It takes the operator, `values` by name, `sizes` of every symbol, names of the `wanted`
    fields among those that exist, arrays to write to by field (`out`), and a dictionary in which the backend keeps what
    holds for all calls of one layout (`backend_cache`, see `trigraph.checks.Checked`). `load`, which is called at each
    use, returns the extension module.
    """
    shims = SHIM_SETS[name]
    operators = shims.operators(table)
    shim_calls = {name: _ShimCall(op, shims, load) for name, op in operators.items()}

    def execute(op: Operator, values: Any, sizes: Any, wanted: Any, out: Any, backend_cache: Any) -> Any:
        return shim_calls[op.name].execute(values, sizes, wanted, out, backend_cache)

    lead = len(shims.input_parts)
    return {"execute": execute, **{op.name: unchecked(op, execute, lead) for op in operators.values()}}
