"""Argument checks, all derived from the operator table."""

from trigraph.checks.arguments import (
    HALF,
    bind_arguments,
    checked_attribute,
    checked_wrt,
    choice_number,
    squeeze_columns,
)
from trigraph.checks.call import (
    HALF_BACKENDS,
    MOST_PASSED,
    check_call,
    check_elements,
    check_members,
    graph_expected,
    warn_of_indices,
)
from trigraph.checks.sizes import bind_sizes, index_dtype, layout, shape_of
from trigraph.checks.unchecked import unchecked
