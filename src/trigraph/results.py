"""NamedTuple types of results, one for each operator with named fields."""

from trigraph.table import OPERATORS, THIRD, result_type

globals().update(
    {result_type(name).__name__: result_type(name) for name, op in (OPERATORS | THIRD).items() if not op.single}
)
