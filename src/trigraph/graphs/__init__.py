"""Graph objects and their arrays."""

from trigraph.graphs.base import GRAPH_HOOKS, LongRows, coarsen_attribute, enter_device, to_device
from trigraph.graphs.csc import CSC, ReverseCSC
from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.graphs.segments import Segments

GRAPH_TYPES: dict[str, type[CSC | EdgeGraph | Segments]] = {cls.__name__: cls for cls in (CSC, EdgeGraph, Segments)}
