"""Restriction of cases to the settings selected by ``trigraph verify --where NAME=VALUE``.

A setting is a value of an argument of the operator: one of an attribute's choices (``op=sum``,
``concat_heads=False``) or, for an optional input or graph object, ``None`` or ``given`` (``edge_weight=None``).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from trigraph.table import NAMED, Definition
from trigraph.verification.kinds import CASE_KINDS

# Allowed values by argument name; other arguments are not restricted.
Where = Mapping[str, tuple[str, ...]]

ABSENT, GIVEN = "None", "given"


def _list_setting_choices(definition: Definition) -> dict[str, dict[str, Any]]:
    """Return the choices by text, for every argument that a restriction may name; "given" means any value."""
    choices = (a for a in definition.attributes if a.choices and not a.requests)
    attributes = {a.name: {str(value): value for value in a.choices} for a in choices}
    return attributes | {name: {ABSENT: None, GIVEN: ...} for name in definition.optional_names}


def _format_setting_value(value: Any) -> str:
    return ABSENT if value is None else str(value) if isinstance(value, (str, bool)) else GIVEN


def parse_restriction(words: Iterable[str], operators: Iterable[str]) -> Where:
    """Parse a restriction: words ``"name=value"``, where words with the same name are alternatives.

    Raises ValueError, listing the valid settings or values, if a word is malformed or an operator has no such setting.
    """
    where: dict[str, tuple[str, ...]] = {}
    definitions = {NAMED[name].definition.name: NAMED[name].definition for name in operators}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise ValueError(f"verify: restriction is {word!r}; expected NAME=VALUE")
        for definition in definitions.values():
            choices = _list_setting_choices(definition)
            if name not in choices:
                expected = f"its settings are {', '.join(choices)}" if choices else "it has no settings"
                raise ValueError(f"verify: restriction {word!r}: {definition.name} has no setting {name!r}; {expected}")
            if value not in choices[name]:
                raise ValueError(
                    f"verify: restriction {word!r}: {name} of {definition.name} is one of {', '.join(choices[name])}"
                )
        where[name] = (*where.get(name, ()), value)
    return where


def parse_restriction_from_case_name(case: str, definition: Definition) -> Where:
    """Return the restriction that corresponds to a generated case's name, ``"regular, op=sum, edge_weight=None"``.

    A run with this restriction contains a case with the same name and therefore the same numbers. An optional argument
    that the name omits has the setting ``given``. Names of other cases contain no settings.
    """
    kind, *parts = case.split(", ")
    if kind not in CASE_KINDS:
        return {}
    choices, named = (
        _list_setting_choices(definition),
        {name: value for name, _, value in (part.partition("=") for part in parts)},
    )
    named |= {name: GIVEN for name in definition.optional_names if name not in named}
    return {name: (value,) for name, value in named.items() if value in choices.get(name, ())}


def admits(where: Where, values: Mapping[str, Any]) -> bool:
    """Return whether a restriction allows these arguments of an operator."""
    return all(_format_setting_value(values[name]) in allowed for name, allowed in where.items())


def list_allowed_settings(definition: Definition, where: Where) -> Sequence[Mapping[str, Any]]:
    """Return the definition's settings that a restriction allows, with explicit values for restricted arguments.

    If the restriction allows none of the table's settings, return all combinations of the restriction's values.
    """
    if not where:
        return definition.settings
    choices = _list_setting_choices(definition)
    base: dict[str, Any] = dict.fromkeys(definition.optional_names, ...)
    left = [
        s
        for s in definition.settings
        if all(_format_setting_value(v) in where.get(n, (_format_setting_value(v),)) for n, v in {**base, **s}.items())
    ]
    if not left:
        left = [dict(zip(where, values, strict=True)) for values in product(*(
            [choices[name][value] for value in allowed] for name, allowed in where.items()
        ))]  # fmt: skip
    explicit = [
        {**{n: choices[n][allowed[i % len(allowed)]] for n, allowed in where.items()}, **s} for i, s in enumerate(left)
    ]
    return [{n: v for n, v in s.items() if v is not ...} for s in explicit]
