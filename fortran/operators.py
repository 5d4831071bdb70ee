"""The operator table in the form required by the fypp templates; fypp imports this module with ``-m operators``.

`describe_operator` returns a dictionary for the macros that write the procedures of an operator
(``reference/types.fypp``, ``fast/procedures.inc``). `write_choice_parameters` numbers the choices of an attribute.
Expressions are in Fortran syntax.
"""

import ast
import runpy
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


@cache  # safe to cache, because the result depends only on the source files of the table
def _load_operator_table() -> ModuleType:
    return runpy.run_path(str(Path(__file__).with_name("shims.py")))["load_table"]()


def write_fortran_expression(node: ast.expr) -> str:
    """Convert an expression to Fortran; ``x**flag`` selects x or 1, because any nonzero flag is true."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return f"merge(1, {write_fortran_expression(node.left)}, {write_fortran_expression(node.right)} == 0)"
    return ast.unparse(node).replace(" * ", "*")


def _write_product(factors: list[str]) -> str:
    """Return the product of factors, with parentheses around sums."""
    return "*".join(f"({f})" if " + " in f and len(factors) > 1 else f for f in factors)


def _split_factors(axis: str) -> list[str]:
    """Return the factors of an axis, slowest first."""

    def split_product(node: ast.expr) -> list[str]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return split_product(node.left) + split_product(node.right)
        return [write_fortran_expression(node)]

    return split_product(ast.parse(axis, mode="eval").body)


def _write_dimensions(array: Any, split: Collection[str]) -> list[str]:
    """Return the dimensions of an array, fastest first.

    An array named in `split` has one dimension for each factor of its shape. Any other array is a matrix: the last
    dimension is the slowest factor (the number of entities), and the first is the product of all other factors.
    """
    slowest, *axes = [factor for axis in array.dims for factor in _split_factors(axis)]
    faster = axes[::-1] if array.name in split else [_write_product(axes[::-1])] if axes else []
    return [*faster, _write_product([slowest, f"has_{array.name}"] if array.optional else [slowest])]


def _write_graph_array_length(kind: Any, name: str, length: str) -> str:
    """Return the length of a graph array as an expression that is 0 if its optional graph is absent."""
    argument = kind.paths.get(name, ("graph",))[0].partition(".")[0]
    return _write_product([*_split_factors(length), *([f"has_{argument}"] if argument in kind.optional_names else [])])


def describe_operator(
    name: str, split: Collection[str] = (), shapes: Mapping[str, Any] | None = None, **own: Any
) -> dict[str, Any]:
    """Return a definition of the table as a dictionary for the macros, with names in lower case.

    Parameters
    ----------
    name : str
        Name of the definition.
    split : collection of str
        Names of the arrays that have one dimension for each factor of their shape.
    shapes : mapping
        Dimensions of arrays, and lengths of graph arrays, that differ from the table.
    own
        Additional entries that are not in the table.

    Returns
    -------
    dict
        ``name``; ``scalars``, sizes and presence flags, and ``choices``, the integer arguments after them; ``numbers``,
        real arguments of kind dp; ``graph``, index arrays with their lengths, of which ``direct`` are not arguments of
        the fast path; index arrays that only the fast path (``fast``) and its derivatives (``reverse``) take;
        ``inputs`` and ``outputs``, real arrays with their dimensions; ``auxiliary``, additional outputs of fwd, of
        which ``integers`` contain indices, ``returns`` are requested by an argument ``return_...``, ``chosen`` exist
        only for some choices, and ``back`` can be passed to first derivatives of the fast path; and the entries of
        `own`.
    """
    op, shapes = _load_operator_table().OPERATORS[f"{name}_bwd"], shapes or {}
    spec = op.definition
    returns = [a.name for a in spec.auxiliary if a.when in spec.request_names]

    def arrays(group: tuple[Any, ...]) -> dict[str, list[str]]:
        return {a.name.lower(): shapes.get(a.name, _write_dimensions(a, split)) for a in group}

    def lengths(group: str) -> dict[str, str]:
        return {
            n: shapes.get(n, _write_graph_array_length(op.graph_kind, n, length))
            for n, length in getattr(op.graph_kind, group, ())
        }

    return {
        "name": name,
        "scalars": ", ".join([*spec.symbols, *(f"has_{n}" for n in spec.optional_names)]),
        "choices": list(op.choice_attribute_names),
        "numbers": list(op.real_attribute_names),
        "graph": lengths("forward"),
        "direct": list(op.graph_kind.direct) if op.graph_kind else [],
        "fast": lengths("fast"),
        "reverse": lengths("reverse"),
        "inputs": arrays(spec.inputs),
        "outputs": arrays(spec.outputs),
        "auxiliary": arrays(spec.auxiliary),
        "integers": [a.name for a in spec.auxiliary if a.index],
        "returns": returns,
        "chosen": [a.name for a in spec.auxiliary if a.when and a.name not in returns],
        "back": [a.name for a in spec.auxiliary if a.name in spec.given_back],
        **own,
    }


def find_choice_index(definition: str, attribute: str, choice: str) -> int:
    """Return the index of a choice of an attribute, ignoring case and underscores."""
    (entry,) = (a for a in _load_operator_table().OPERATORS[f"{definition}_fwd"].attributes if a.name == attribute)
    return [str(c).lower() for c in entry.choices].index(choice.replace("_", ""))


def write_choice_parameters(definition: str, **names: str) -> str:
    """Return definitions of Fortran parameters for choices of an attribute.

    The choice follows the first underscore in a name: ``write_choice_parameters("mha_gat_n2n", activation="act_relu
    act_elu")`` returns ``act_relu = 1, act_elu = 3``.
    """
    numbers = (
        (n, find_choice_index(definition, attribute, n.partition("_")[2]))
        for attribute in names
        for n in names[attribute].split()
    )
    return ", ".join(f"{name} = {value}" for name, value in numbers)
