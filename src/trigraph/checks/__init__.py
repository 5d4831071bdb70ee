"""Checks of a call, all derived from the operator table."""

from trigraph.checks.arguments import HALF, bind_arguments, checked_attribute, checked_wrt, choice_number
from trigraph.checks.call import HALF_PANELS, check_call, graph_expected
from trigraph.checks.sizes import bind_sizes, index_dtype, shape_of
from trigraph.checks.unchecked import unchecked

__all__ = [
    "HALF",
    "HALF_PANELS",
    "bind_arguments",
    "bind_sizes",
    "check_call",
    "checked_attribute",
    "checked_wrt",
    "choice_number",
    "graph_expected",
    "index_dtype",
    "shape_of",
    "unchecked",
]
