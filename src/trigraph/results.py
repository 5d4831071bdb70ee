"""NamedTuple types of results, one for each operator with named fields."""

from trigraph.table import NAMED, result_type

globals().update({result_type(name).__name__: result_type(name) for name, op in NAMED.items() if not op.single})
