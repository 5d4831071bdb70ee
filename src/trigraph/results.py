"""NamedTuple types of results, one for each operator whose result has named fields."""

from trigraph.table import NAMED, OVER_FORMS, result_type

TYPES = [result_type(name) for name, op in (NAMED | OVER_FORMS).items() if not op.returns_array]
globals().update({kind.__name__: kind for kind in TYPES})
