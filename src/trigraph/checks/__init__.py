"""Argument checks, which are derived from the operator table."""

from trigraph.checks.arrays import (
    HALF_BACKENDS,
    bind_sizes,
    check_arguments,
    check_arrays,
    check_graphs,
    check_members,
    index_dtype,
    layout,
    squeeze_columns,
)
from trigraph.checks.attributes import (
    HALF,
    bind_arguments,
    check_attributes,
    check_wrt,
    find_choice,
)
from trigraph.checks.skip_checks import skip_checks
from trigraph.table.grammar import evaluate_shape
