"""Graphs of cases: for each kind of graph, an object that builds and transforms such graphs."""

from trigraph import table
from trigraph.verification.graphs.base import MAX_CROWDED_ROWS, CaseGraphs, NoGraphCases
from trigraph.verification.graphs.csc import CSCCases
from trigraph.verification.graphs.edges import EdgeCases
from trigraph.verification.graphs.segments import SegmentCases

__all__ = ["GRAPHS", "MAX_CROWDED_ROWS", "CaseGraphs"]

OF_TYPE: dict[str, CaseGraphs] = {"CSC": CSCCases(), "EdgeGraph": EdgeCases(), "Segments": SegmentCases()}
# The keys are the names in `trigraph.table.GRAPHS`, and None for definitions without a graph.
GRAPHS: dict[str | None, CaseGraphs] = {
    None: NoGraphCases(),
    **{name: OF_TYPE[kind.type_name] for name, kind in table.GRAPHS.items()},
}
