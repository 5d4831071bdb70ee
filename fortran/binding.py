"""Python functions over the f2py shims, one for each operator of the table.

The shims take sizes, flat arrays and flags in an order that follows from the table (see ``shims.py``), so one function
serves every operator and all three layouts: the fast path, the direct reference, and the judge in real128.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from trigraph.checks import bind_sizes, shape_of
from trigraph.fortran.shims import graph_arrays
from trigraph.fortran.threads import get_num_threads
from trigraph.operators import OPERATORS, Operator, result_type

__all__ = ["bind", "functions"]

LARGEST = 2**31 - 1


def fast_module() -> ModuleType:
    """Return the build of the fast path that suits this processor."""
    level = importlib.import_module("trigraph.fortran._reference").cpu_level()
    return importlib.import_module(f"trigraph.fortran._fast_v{level}" if level else "trigraph.fortran._fast_base")


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
        Returns the extension module; called at the first use.
    """
    lead = 1 if layout == "judge" else 0

    def call(*args: Any, out: Mapping[str, np.ndarray] | None = None, **kwargs: Any) -> Any:
        bound = op.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        wanted = _wanted(op, values.get("wrt"))
        shapes = {a.name: values[a.name].shape[lead:] for a in op.arguments if values[a.name] is not None}
        sizes = bind_sizes(op, values, shapes)
        _check_sizes(op, sizes)
        first = next(values[a.name] for a in op.arguments if not a.nullable)
        outputs = _outputs(op, sizes, wanted, first.dtype, layout, out or {})
        if all(outputs[f].size for f in wanted) and all(sizes[s] for s in op.definition.symbols):
            _invoke(op, layout, load(), values, sizes, wanted, outputs)
        else:
            # f2py rejects zero-size arrays; with nothing to sum over, every output is zero.
            for f in wanted:
                outputs[f][...] = 0
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
    layout: str,
    out: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """One array for each field; a field that is not wanted gets a dummy of one element."""
    lead = (3,) if layout == "judge" else ()
    arrays = {}
    for field in op.fields:
        if field.name not in wanted:
            arrays[field.name] = np.zeros((*lead, 1), dtype)
        elif field.name in out:
            arrays[field.name] = out[field.name]
        else:
            arrays[field.name] = np.empty(lead + shape_of(field, sizes), dtype)
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
    arguments += [a.choices.index(values[a.name]) for a in op.attributes if a.choices]
    if op.graph is not None:
        graph = values["graph"]
        reverse = {a for a, _ in op.graph.reverse}
        arrays = [getattr(graph.prepare() if a in reverse else graph, a) for a in graph_arrays(op, layout)]
        # An order the graph could not decide (EdgeGraph.reverse_edge) is one no call of this kind reads.
        index = np.dtype(np.int64) if judge else arrays[0].dtype
        arrays = [np.full(1, -1, index) if a is None else a.astype(index, copy=False) for a in arrays]
        name += f"_i{8 * arrays[0].dtype.itemsize}"
        arguments += arrays
    for a in op.arguments:
        value = values[a.name]
        if value is None:  # a cotangent that is zero
            lead = (2,) if judge else ()
            value = np.zeros(lead + shape_of(a, sizes), first.dtype)
        arguments.append(value.reshape(2, -1).T if judge else value.reshape(-1))
    if op.selective:
        arguments += [int(f.name in wanted) for f in op.fields]
    for f in op.fields:
        arguments.append(outputs[f.name].reshape(3, -1).T if judge else outputs[f.name].reshape(-1))
    getattr(module, name)(*arguments)


def functions(layout: str, load: Callable[[], ModuleType]) -> dict[str, Callable[..., Any]]:
    """All operators of the table in one layout."""
    return {name: bind(op, layout, load) for name, op in OPERATORS.items()}
