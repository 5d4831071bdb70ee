"""The graph objects that operators take, the sizes that they fix, and the arrays that they hold.

This module uses only the standard library, because the build runs it before the package exists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trigraph.table.lazy import lazy


@dataclass(frozen=True)
class GraphArgument:
    """Graph argument of an operator."""

    name: str
    doc: str
    optional: bool = False  # whether the object may be None, which means the identity map
    rows: str = ""  # array argument with a row per segment; an index array may then replace the object


@dataclass(frozen=True)
class GraphKind:
    """Graph objects of an operator: their class, the sizes that they fix and the arrays that Fortran receives."""

    type_name: str
    sizes: tuple[str, ...]
    forward: tuple[tuple[str, str], ...]  # arrays passed to every reference operator: name and length
    fast: tuple[tuple[str, str], ...]  # additional arrays passed to operators of the fast path
    reverse: tuple[tuple[str, str], ...]  # additional arrays passed to fast derivatives, built by `prepare`
    arguments: tuple[GraphArgument, ...] = (GraphArgument("graph", "The graph; edge arrays have num_edges rows."),)
    # Paths ``argument.attribute`` of a size or array (default: ``graph.<name>``). The first path whose argument
    # is not None is used.
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    direct: tuple[str, ...] = ()  # arrays of `forward` that the fast path does not need

    @lazy
    def optional_names(self) -> tuple[str, ...]:
        """Names of the graph objects that may be None."""
        return tuple(a.name for a in self.arguments if a.optional)

    @lazy
    def _reverse_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.reverse)

    @lazy
    def _paths_by_name(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """The `paths`, split into argument and attribute."""
        return {name: tuple((p.split(".")[0], p.split(".")[1]) for p in paths) for name, paths in self.paths.items()}

    def find_sizes(self, values: Mapping[str, Any]) -> dict[str, int]:
        """Return the sizes that the graph objects among `values` fix, by name."""
        if self.paths:
            return {name: self.find_attribute(name, values) for name in self.sizes}
        graph = values["graph"]
        return {name: getattr(graph, name) for name in self.sizes}

    def find_attribute(self, name: str, values: Mapping[str, Any]) -> Any:
        """Return a size or an array of the graph objects among `values`, or None if the object is absent."""
        for argument, attribute in self._paths_by_name.get(name) or (("graph", name),):
            graph = values[argument]
            if graph is not None:
                prepared = graph.prepare() if name in self._reverse_names else graph
                return getattr(prepared, attribute)
        return None

    def find_attributes(self, names: Sequence[str], values: Mapping[str, Any]) -> list[Any]:
        """Return the results of `find_attribute` for several names."""
        if self.paths:
            return [self.find_attribute(name, values) for name in names]
        graph, reverse = values["graph"], self._reverse_names
        prepared = graph if reverse.isdisjoint(names) else graph.prepare()
        return [getattr(prepared if name in reverse else graph, name) for name in names]


@dataclass(frozen=True)
class GraphAttributeNames:
    """Names of the attributes that make up a graph object of one class."""

    arrays: tuple[str, ...]  # arrays that every operator call needs
    optional: frozenset[str]  # arrays that may be None
    reverse: tuple[str, ...]  # arrays of the result of `prepare`, which derivatives also need
    numbers: tuple[str, ...]
    lengths: tuple[tuple[str, str, int], ...]  # (name, array, k): the number `name` is the length of `array` minus k
    # For each size, the arrays whose elements index the entities that the size counts; a last offset equals the size.
    numbered: Mapping[str, tuple[str, ...]]
    reverse_lengths: tuple[tuple[str, str, int], ...] = ()  # like `lengths`, for arrays of `reverse`

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of all attributes of a graph object."""
        return (*self.arrays, *self.numbers, *(name for name, _, _ in self.lengths))


CSC_FORWARD = (("offsets", "num_dst_nodes+1"), ("indices", "num_positions"), ("edge_ids", "num_positions"))
CSC_REVERSE = (
    ("destinations", "num_positions"),
    ("src_offsets", "num_src_nodes+1"),
    ("src_positions", "num_positions"),
    ("row_offsets", "num_edges+1"),
    ("row_positions", "num_positions"),
)
EDGES_FORWARD = (
    ("src", "num_edges"),
    ("dst", "num_edges"),
    ("dst_offsets", "num_nodes+1"),
    ("dst_edge_index", "num_edges"),
    ("reverse_edge", "num_edges"),
)
EDGES_FAST = (("src_offsets", "num_nodes+1"), ("reverse_start", "num_edges"), ("reverse_stop", "num_edges"))
TRIPLETS_DOC = "Outer edge of each triplet, as Segments or an index array."
TRIPLETS_FORWARD = (("triplet_edge", "num_triplets"),)
TRIPLETS_FAST = (("triplet_offsets", "num_edges+1"), ("triplet_order", "num_triplets"))
TRIPLETS_PATHS = {
    "num_edges": ("triplets.num_segments",),
    "num_triplets": ("triplets.num_members",),
    "triplet_edge": ("triplets.index",),
    "triplet_offsets": ("triplets.offsets",),
    "triplet_order": ("triplets.order",),
}
GRAPHS: dict[str, GraphKind] = {
    "csc": GraphKind(
        "CSC", ("num_src_nodes", "num_dst_nodes", "num_positions", "num_edges"), CSC_FORWARD, (), CSC_REVERSE
    ),
    "edges": GraphKind("EdgeGraph", ("num_nodes", "num_edges"), EDGES_FORWARD, EDGES_FAST, (), direct=("src", "dst")),
    "triplets": GraphKind(
        "Segments",
        ("num_edges", "num_triplets"),
        TRIPLETS_FORWARD,
        TRIPLETS_FAST,
        (),
        (GraphArgument("triplets", TRIPLETS_DOC, rows="rad_basis"),),
        TRIPLETS_PATHS,
        ("triplet_edge",),
    ),
    "bilinear": GraphKind(
        "Segments",
        ("num_edges", "num_triplets", "num_inputs", "num_outputs"),
        (*TRIPLETS_FORWARD, ("atom_of_edge", "num_edges"), ("input_of_triplet", "num_triplets")),
        (
            *TRIPLETS_FAST,
            ("atom_offsets", "num_outputs+1"),
            ("atom_order", "num_edges"),
            ("input_offsets", "num_inputs+1"),
            ("input_order", "num_triplets"),
        ),
        (),
        (
            GraphArgument("triplets", TRIPLETS_DOC, rows="rad_W1"),
            GraphArgument("atoms", "Atom of each edge; the edges of an atom are summed (None: no sum).", True),
            GraphArgument("idx_in", "Row of m for each triplet (None: its own), as Segments or indices.", True, "m"),
        ),
        {
            **TRIPLETS_PATHS,
            "num_inputs": ("idx_in.num_segments", "triplets.num_members"),
            "num_outputs": ("atoms.num_segments", "triplets.num_segments"),
            "atom_of_edge": ("atoms.index",),
            "atom_offsets": ("atoms.offsets",),
            "atom_order": ("atoms.order",),
            "input_of_triplet": ("idx_in.index",),
            "input_offsets": ("idx_in.offsets",),
            "input_order": ("idx_in.order",),
        },
        ("triplet_edge", "atom_of_edge"),
    ),
}
# Graph kind of functions that choose between operators, some of which take no graph.
GRAPHS["triplets or none"] = replace(
    GRAPHS["triplets"], arguments=(GraphArgument("triplets", TRIPLETS_DOC, True, "rad_basis"),)
)
GRAPH_PARTS: dict[str, GraphAttributeNames] = {
    "CSC": GraphAttributeNames(
        tuple(name for name, _ in CSC_FORWARD),
        frozenset(),
        tuple(name for name, _ in CSC_REVERSE),
        ("num_src_nodes", "num_edges", "max_in_degree", "edges_in_order"),
        (("num_dst_nodes", "offsets", 1), ("num_positions", "indices", 0)),
        {
            "num_src_nodes": ("indices",),
            "num_dst_nodes": ("destinations",),
            "num_edges": ("edge_ids",),
            "num_positions": ("offsets", "src_offsets", "src_positions", "row_offsets", "row_positions"),
        },
        (("num_src_nodes", "src_offsets", 1), ("num_edges", "row_offsets", 1)),
    ),
    "EdgeGraph": GraphAttributeNames(
        (
            # torch.export writes checks of sizes as text and replaces these names in this order. If "src" came before
            # "src_offsets", it would replace the beginning of the longer name.
            *("src_offsets", "dst_offsets", "dst_edge_index", "src", "dst", "reverse_start", "reverse_stop"),
            *("reverse_edge", "_edge_start", "_edge_stop"),
        ),
        frozenset(("reverse_edge", "_edge_start", "_edge_stop")),
        (),
        ("max_in_degree", "max_out_degree", "max_parallel_edges"),
        (("num_nodes", "src_offsets", 1), ("num_edges", "src", 0)),
        {
            "num_nodes": ("src", "dst"),
            "num_edges": (
                *("src_offsets", "dst_offsets", "dst_edge_index", "reverse_start", "reverse_stop"),
                *("reverse_edge", "_edge_start", "_edge_stop"),
            ),
        },
    ),
    "Segments": GraphAttributeNames(
        ("index", "offsets", "order"),
        frozenset(),
        (),
        ("max_size", "is_sorted"),
        (("num_segments", "offsets", 1), ("num_members", "index", 0)),
        {"num_segments": ("index",), "num_members": ("offsets", "order")},
    ),
}
