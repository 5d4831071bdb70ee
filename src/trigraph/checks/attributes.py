"""Binding of arguments to names, and checks of attributes and field names."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from trigraph.arrays import LARGEST_INT, format_value, require_count, require_nonnegative_number, unwrap_scalar
from trigraph.table.grammar import Operator

HALF = ("float16", "bfloat16")


def find_choice_index(choices: tuple[Any, ...], value: Any) -> int:
    """Return the index of a value among the choices of an attribute, or -1; True does not match 1."""
    if isinstance(value, str):
        return choices.index(value) if value in choices else -1
    for choice_index, choice in enumerate(choices):
        if value is choice:
            return choice_index
    scalar = unwrap_scalar(value)
    python_value = bool(scalar) if isinstance(scalar, np.bool_) else scalar
    return -1 if python_value is value else find_choice_index(choices, python_value)


def bind_arguments(
    op: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], signature: inspect.Signature
) -> dict[str, Any]:
    """Return all arguments by name; an omitted argument is None, or the default of its attribute.

    Raise TypeError, with `signature` in the message, if an argument is missing, given twice or unknown.
    """
    names = op.signature_names
    values = {**op.defaults, **dict(zip(names, args, strict=False)), **kwargs}
    has_duplicate = any(n in kwargs for n in names[: len(args)]) if kwargs else False
    if len(args) <= len(names) and not has_duplicate and values.keys() == set(names):
        return values
    try:
        for name in (n for n in kwargs if n not in names):
            import difflib

            close_names = difflib.get_close_matches(name, [*names, "out", "backend"], 1)
            suggestion = f" (did you mean {close_names[0]!r}?)" if close_names else ""
            raise TypeError(f"got an unexpected keyword argument {name!r}{suggestion}")
        absent = [n for n in op.defaults if n not in kwargs and n not in names[: len(args)]]
        op.signature.bind(*args, **kwargs, **{n: op.defaults[n] for n in absent})
    except TypeError as error:
        raise TypeError(f"{op.name}: {error}; expected {op.name}{signature}") from None
    raise AssertionError(f"{op.name}: arguments were refused that fit {signature}")


def is_half(dtype: np.dtype) -> bool:
    """Return whether a dtype is float16 or the bfloat16 of ml_dtypes."""
    return dtype.name in HALF and dtype.isnative


def check_and_convert_attributes(op: Operator, values: dict[str, Any]) -> None:
    """Convert each attribute to one of its choices, a float or an int.

    Raise TypeError or ValueError if a value cannot be converted or is out of range.
    """
    for attribute in op.attributes:
        name, value = attribute.name, values[attribute.name]
        if attribute.choices:
            choice_index = find_choice_index(attribute.choices, value)
            if choice_index < 0:
                expected = ", ".join(map(repr, attribute.choices))
                error = ValueError if isinstance(value, str) else TypeError
                raise error(f"{op.name}: {name} is {format_value(value)}; expected one of {expected}")
            values[name] = attribute.choices[choice_index]
        elif attribute.real:
            values[name] = require_nonnegative_number(op.name, name, value)
        else:
            symbol = op.definition.get_limited_symbol(name)
            maximum = LARGEST_INT if symbol.maximum is None else symbol.maximum
            values[name] = require_count(op.name, name, value, symbol.minimum, maximum)


def list_requested_fields(op: Operator, wrt: Any) -> tuple[str, ...]:
    """Return the fields named by `wrt`, in the operator's order; raise TypeError or ValueError for other names."""
    return list_requested_names(op.name, tuple(f.name for f in op.fields), wrt)


def list_requested_names(caller: str, names: tuple[str, ...], wrt: Any) -> tuple[str, ...]:
    """Return the `names` that `wrt` contains, in the order of `names`; raise if `wrt` contains other names."""
    wrt = unwrap_scalar(wrt)
    try:
        requested = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    except TypeError:
        expected = "expected a string or an iterable of strings"
        raise TypeError(f"{caller}: wrt is a {type(wrt).__name__}; {expected}") from None
    for name in requested:
        if not isinstance(name, str):
            raise TypeError(f"{caller}: wrt names a {type(name).__name__}; expected strings among {', '.join(names)}")
        if name not in names:
            raise ValueError(f"{caller}: wrt names {name!r}; expected one of {', '.join(names)}")
    return tuple(n for n in names if n in requested)
