"""The operator table, which is the single definition of every operator, and the classes that describe it.

Only the standard library is used here: the build imports this package before trigraph exists.
"""

from trigraph.table.grammar import (
    SYMBOLS,
    Argument,
    Array,
    Attribute,
    Definition,
    Operator,
    evaluate,
    evaluate_shape,
    names_in,
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
