"""Graphs of cases: for each kind of graph, an object that builds and transforms such graphs."""

from trigraph import table
from trigraph.verification.graphs.base import MAX_CROWDED_ROWS, CaseGraphBuilder, NoGraphBuilder
from trigraph.verification.graphs.csc import CSCBuilder
from trigraph.verification.graphs.edges import EdgeGraphBuilder
from trigraph.verification.graphs.segments import SegmentsBuilder

__all__ = ["GRAPHS", "MAX_CROWDED_ROWS", "CaseGraphBuilder"]

OF_TYPE: dict[str, CaseGraphBuilder] = {
    "CSC": CSCBuilder(),
    "EdgeGraph": EdgeGraphBuilder(),
    "Segments": SegmentsBuilder(),
}
# The keys are the names in `trigraph.table.GRAPHS`, and None for definitions without a graph.
GRAPHS: dict[str | None, CaseGraphBuilder] = {
    None: NoGraphBuilder(),
    **{name: OF_TYPE[kind.type_name] for name, kind in table.GRAPHS.items()},
}
