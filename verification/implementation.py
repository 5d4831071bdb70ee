"""A user's function as a subject, which is checked like a backend for the one operator that it implements.

The function is called with the operator's arguments as keywords: NumPy arrays, graph and attributes, except attributes
that select fields; no cotangent is None. It returns an array if the operator has one field, a tuple in field order, or
a mapping from field to array; auxiliary outputs may be omitted or None. It may raise NotImplementedError for requests
that it does not support (`NotOffered`). If a check also needs the next or previous order, fortran-reference is used.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from slopecheck.loading import import_function
from slopecheck.outcome import LEFT_OUT, NotOffered, describe_exception
from slopecheck.terminal import escape_unprintable
from trigraph.table import OPERATORS, Operator
from trigraph.verification.subjects import Subject, make_backend_subject


def parse_user_result(
    op: Operator, result: Any, is_array: Callable[[Any], bool] = lambda value: isinstance(value, np.ndarray)
) -> dict[str, Any]:
    """Return the result of a user's function as a mapping from field to array.

    Raises TypeError if the result is in none of the accepted forms or lacks a field.
    """
    extra = [a.name for a in op.definition.auxiliary]
    names = [f.name for f in op.fields]
    needed = [name for name in names if name not in extra]
    expected = f"expected {'an array, ' if len(needed) == 1 else ''}a tuple ({', '.join(names)}) or a mapping"
    if len(needed) < len(names):
        expected += f"; {', '.join(n for n in names if n in extra)} may be left out"
    if isinstance(result, Mapping):
        mapping = dict(result)
        if not set(needed) <= set(mapping) <= set(names):
            raise TypeError(
                f"{op.name}: returned a mapping with {', '.join(map(str, mapping)) or 'no keys'}; {expected}"
            )
    elif isinstance(result, tuple):
        own = getattr(result, "_fields", tuple(names if len(result) == len(names) else needed))
        if len(own) != len(result) or own not in (tuple(names), tuple(needed)):
            described = ", ".join(getattr(result, "_fields", ())) or f"{len(result)} elements"
            raise TypeError(f"{op.name}: returned a tuple with {described}; {expected}")
        mapping = dict(zip(own, result, strict=True))
    elif is_array(result) and len(needed) == 1:
        mapping = {needed[0]: result}
    else:
        raise TypeError(f"{op.name}: returned a {type(result).__name__}; {expected}")
    mapping = {name: value for name, value in mapping.items() if value is not None or name in needed}
    LEFT_OUT.update(name for name in names if name not in mapping)
    return mapping


def check_accepts_keywords(
    name: str, function: Callable[..., Any], op: Operator, passed: Sequence[str], optional: Sequence[str] = ()
) -> None:
    """Raise ValueError if a user's function does not accept an operator's arguments by keyword.

    `passed` lists the names of the arguments; arguments in `optional` are not always passed. A function whose signature
    Python cannot determine is not checked.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**dict.fromkeys(n for n in passed if n not in optional or n in signature.parameters))
    except TypeError as error:
        raise ValueError(
            f"verify: {name!r} is a function of {signature}; {op.name} passes by keyword ({', '.join(passed)}): {error}"
        ) from error


def _call_with_argument_copies(
    function: Callable[..., Any], op: Operator, values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Call the user's function with copies of the arguments; return the copies and the fields."""
    values = {name: value for name, value in values.items() if name not in op.definition.request_names}
    arguments = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in values.items()}
    try:
        returned = function(**arguments)
    except NotImplementedError as error:
        raise NotOffered(describe_exception(error)) from error
    fields = parse_user_result(op, returned)
    for name, array in fields.items():
        if isinstance(array, np.ndarray) and (type(array) is not np.ndarray or array.dtype.kind not in "fi"):
            raise TypeError(
                f"{op.name}: {name} is a {type(array).__name__} of {array.dtype}; expected a numpy.ndarray of numbers"
            )
    for name, value in values.items():
        if isinstance(value, np.ndarray) and not np.array_equal(arguments[name], value, equal_nan=True):
            raise ValueError(f"{op.name}: the function changed its argument {name}")
    return arguments, fields


def _call_function_or_companion(
    function: Callable[..., Any],
    target: str,
    companion: Subject,
    op: Operator,
    values: Mapping[str, Any],
    wrt: Sequence[str] | None,
) -> dict[str, Any]:
    return _call_with_argument_copies(function, op, values)[1] if op.name == target else companion.call(op, values, wrt)


def make_user_subject(name: str, operator: str | None = None, function: Callable[..., Any] | None = None) -> Subject:
    """Return a user's function as a subject called `name`; import the function by that name unless `function` is given.

    The function implements `operator` (default: the operator with the function's name). Raises ValueError if the
    function cannot be loaded, there is no such operator, or the function does not accept the operator's arguments.
    """
    own = import_function(name, "verify: implementation") if function is None else function
    target = operator or getattr(own, "__name__", "")
    if target not in OPERATORS:
        raise ValueError(f"verify: {name!r} implements {target!r}; expected one of {', '.join(OPERATORS)}")
    op = OPERATORS[target]
    check_accepts_keywords(name, own, op, [n for n in op.parameter_names if n not in op.definition.request_names])
    call = partial(_call_function_or_companion, own, target, make_backend_subject("fortran-reference"))
    return Subject(escape_unprintable(name), False, call, target, partial(_call_with_argument_copies, own))
