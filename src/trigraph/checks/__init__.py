"""Argument checks, which are derived from the operator table."""

from trigraph.checks.arrays import (
    HALF_BACKENDS,
    check_and_convert_graphs,
    check_arguments,
    check_dtypes_and_devices,
    check_graph_consistency,
    find_field_shape_and_dtype,
    find_symbol_sizes,
    get_index_dtype,
    squeeze_columns,
)
from trigraph.checks.attributes import (
    HALF,
    bind_arguments,
    check_and_convert_attributes,
    find_choice_index,
    list_requested_fields,
)
from trigraph.checks.skip_checks import make_unchecked_function
from trigraph.table.grammar import evaluate_shape
