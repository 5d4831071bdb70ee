"""The operator table, which is the single definition of every operator, and the classes that describe it.

This package uses only the standard library, because the build imports it before trigraph is built.
"""

from trigraph.table.grammar import (
    SYMBOLS,
    Array,
    ArrayArgument,
    Attribute,
    Definition,
    Operator,
    evaluate_expression,
    evaluate_shape,
    find_symbol_names,
)
from trigraph.table.graph_kinds import GRAPH_PARTS, GRAPHS
from trigraph.table.operators import (
    ACTIVATIONS,
    DEFINITIONS,
    FAMILIES,
    NAMED,
    OPERATORS,
    ORDERS,
    OVER_FORMS,
    THIRD,
    result_type,
)
