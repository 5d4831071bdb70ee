"""Argument checks, all derived from the operator table."""

from trigraph.checks.arrays import (
    HALF_BACKENDS,
    MOST_PASSED,
    bind_sizes,
    check_call,
    check_elements,
    check_members,
    graph_expected,
    index_dtype,
    layout,
    shape_of,
    warn_of_indices,
)
from trigraph.checks.attributes import (
    HALF,
    bind_arguments,
    checked_attribute,
    checked_wrt,
    choice_number,
    squeeze_columns,
)
from trigraph.checks.unchecked import unchecked
