"""Python functions over the f2py shims, one for each operator of the table.

The shims take sizes, flat arrays and flags in an order that follows from the table (see ``shims.py``), so one function
serves every operator and all three layouts: the fast path, the direct reference, and the judge in real128.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from trigraph.checks import bind_sizes, index_dtype, position, shape_of
from trigraph.fortran.memory import empty
from trigraph.fortran.shims import graph_arrays
from trigraph.fortran.threads import get_num_threads
from trigraph.operators import OPERATORS, Argument, Operator, result_type

__all__ = ["bind", "functions"]

LARGEST = 2**31 - 1


def _wanted(op: Operator, wrt: str | Sequence[str] | None) -> tuple[str, ...]:
    if wrt is None or not op.selective:
        return tuple(f.name for f in op.fields)
    return (wrt,) if isinstance(wrt, str) else tuple(wrt)


def _check_sizes(op: Operator, sizes: Mapping[str, int]) -> None:
    for name in op.definition.symbols:
        if sizes[name] > LARGEST:
            raise ValueError(f"{op.name}: {name} is {sizes[name]}; the Fortran panel takes at most {LARGEST}")


def bind(op: Operator, layout: str, load: Callable[[], ModuleType]) -> Callable[..., Any]:
    """Return the operator as a Python function of the given layout.

    Parameters
    ----------
    op : Operator
    layout : {"fast", "reference", "judge"}
    load : callable
        Returns the extension module; called at each use.
    """
    lead = 1 if layout == "judge" else 0

    def call(*args: Any, out: Mapping[str, np.ndarray] | None = None, **kwargs: Any) -> Any:
        bound = op.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        wanted = _wanted(op, values.get("wrt"))
        shapes = {a.name: values[a.name].shape[0 if a.given_back else lead :] for a in op.given(values)}
        sizes = bind_sizes(op, values, shapes)
        _check_sizes(op, sizes)
        first = next(values[a.name] for a in op.arguments if not a.nullable)
        returned = {f.name for f in op.returned(values, sizes)}
        wanted = tuple(f for f in wanted if f in returned)
        index = index_dtype(op, values) if op.graph and layout != "judge" else np.dtype(np.int64)
        outputs = _outputs(op, sizes, wanted, first.dtype, index, layout, out or {})
        if all(outputs[f].size for f in wanted) and all(sizes[s] for s in op.definition.symbols):
            _invoke(op, layout, load(), values, sizes, wanted, outputs)
        else:
            # f2py rejects zero-size arrays; with nothing to sum over, every output is zero, every index -1.
            for field in op.fields:
                if field.name in wanted:
                    outputs[field.name][...] = -1 if field.index else 0
        if op.single:
            return outputs[op.fields[0].name]
        return result_type(op.name)(*(outputs[f.name] if f.name in wanted else None for f in op.fields))

    call.__name__ = call.__qualname__ = op.name
    call.__doc__ = f"{op.definition.summary} See `trigraph.{op.name}`."
    out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
    call.__signature__ = op.signature.replace(  # type: ignore[attr-defined]
        parameters=[*op.signature.parameters.values(), out]
    )
    return call


def _outputs(
    op: Operator,
    sizes: Mapping[str, int],
    wanted: Sequence[str],
    dtype: np.dtype,
    index: np.dtype,
    layout: str,
    out: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """One array for each field; a field that is not wanted gets a dummy of one element."""
    arrays = {}
    for field in op.fields:
        lead = (3,) if layout == "judge" and not field.index else ()
        kind = index if field.index else dtype
        if field.name not in wanted:
            arrays[field.name] = np.zeros((*lead, 1), kind)
        elif field.name in out:
            arrays[field.name] = out[field.name]
        else:
            arrays[field.name] = empty(lead + shape_of(field, sizes), kind)
    return arrays


def _invoke(
    op: Operator,
    layout: str,
    module: ModuleType,
    values: Mapping[str, Any],
    sizes: Mapping[str, int],
    wanted: Sequence[str],
    outputs: Mapping[str, np.ndarray],
) -> None:
    judge = layout == "judge"
    first = next(values[a.name] for a in op.arguments if not a.nullable)
    name = op.name if judge else f"{op.name}_f{8 * first.dtype.itemsize}"
    arguments: list[Any] = [get_num_threads()] if layout == "fast" else []
    arguments += [sizes[s] for s in op.definition.symbols]
    arguments += [int(values[n] is not None) for n in op.presence(layout == "fast")]
    arguments += [position(a.choices, values[a.name]) for a in op.attributes if a.choices]
    arguments += [values[n] for n in op.numbers]
    if op.graph is not None:
        index = np.dtype(np.int64) if judge else index_dtype(op, values)
        name += f"_i{8 * index.itemsize}"
        # Absent: an order the graph could not decide (EdgeGraph.reverse_edge), or an object that was not given.
        found = (op.graph.find(a, values) for a in graph_arrays(op, layout))
        arguments += [np.full(1, -1, index) if a is None else a.astype(index, copy=False) for a in found]
    for a in op.arguments:
        if layout == "fast" or not a.given_back:
            arguments.append(_argument(op, a, values, sizes, first.dtype, judge))
    if op.selective:
        arguments += [int(f.name in wanted) for f in op.fields]
    for f in op.fields:
        pairs = judge and not f.index
        arguments.append(outputs[f.name].reshape(3, -1).T if pairs else outputs[f.name].reshape(-1))
    if getattr(module, name)(*arguments) != 0:
        refused = module.refused_bytes()
        what = f"{refused} bytes of work space" if refused else "work space, or threads"
        raise MemoryError(f"{op.name}: the system refused {what}")


def _argument(
    op: Operator, a: Argument, values: Mapping[str, Any], sizes: Mapping[str, int], dtype: np.dtype, judge: bool
) -> np.ndarray:
    """Return an array argument as it crosses; a cotangent that is None is zeros, what is absent one element."""
    value, lead = values[a.name], (2,) if judge else ()
    if value is None:
        absent = a.given_back or (a.nullable and values.get(a.name.removeprefix("gg_")) is None)
        kind = index_dtype(op, values) if a.index else dtype
        value = np.zeros(lead + ((1,) if absent else shape_of(a, sizes)), kind)
    array: np.ndarray = value.reshape(2, -1).T if judge else value.reshape(-1)
    return array


def functions(layout: str, load: Callable[[], ModuleType]) -> dict[str, Callable[..., Any]]:
    """All operators of the table in one layout."""
    return {name: bind(op, layout, load) for name, op in OPERATORS.items()}
