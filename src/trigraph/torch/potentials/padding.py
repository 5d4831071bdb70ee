"""Structures padded with ghosts to a capacity, so that all calls use tensors of the same sizes in the same memory.

Ghost atoms belong to one ghost structure and form pairs, with up to `MAX_GHOST_DEGREE` ghost edges in each direction.
The atoms of a pair are further apart than the cutoff, so that ghost edges contribute zero to the results of a model.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trigraph.arrays import require_count
from trigraph.graphs import coarsen_attribute
from trigraph.graphs.base import SAFE_VALUES
from trigraph.table import GRAPH_PARTS
from trigraph.table.constants import PART_SIZE
from trigraph.table.former_names import keep_former_names
from trigraph.torch.graphs import assemble_graph_sharing_memory, list_graph_tensors
from trigraph.torch.potentials.structures import Neighbors

MAX_GHOST_DEGREE = (
    PART_SIZE  # maximum number of ghost edges into or out of an atom, which kernels sum without splitting the row
)
ROW_MULTIPLE = 64  # padded sizes are multiples of this, because torch's CPU products round partial blocks differently
GROWTH = 1.25
OWNER = "compile_potential"  # caller's name in error messages
GHOST_DISTANCE = 2.0  # distance between the two atoms of a ghost pair, in units of the cutoff

_EDGES, _CSC = GRAPH_PARTS["EdgeGraph"], GRAPH_PARTS["CSC"]


class CheckedStructures(NamedTuple):
    """Checked arguments of a call, before padding."""

    z: Tensor
    pos: Tensor
    cells: Tensor | None
    neighbors: Neighbors


@keep_former_names(of="from_neighbors", grown="grow", rows="padded_sizes")
class Capacity(NamedTuple):
    """Largest numbers of atoms, edges and structures in a padded call, not counting ghosts.

    Parameters
    ----------
    atoms, edges, structures : int
    degree : int, optional
        Largest number of edges into an atom, and out of it.

    Examples
    --------
    >>> from trigraph.torch import Capacity
    >>> Capacity(atoms=100, edges=5000).holds(Capacity(96, 4800))
    True
    """

    atoms: int
    edges: int
    structures: int = 1
    degree: int = MAX_GHOST_DEGREE

    @classmethod
    def from_neighbors(cls, neighbors: Neighbors) -> "Capacity":
        """Return the capacity that a `Neighbors` requires."""
        graph = neighbors.graph
        degree = coarsen_attribute("max_in_degree", max(graph.max_in_degree, graph.max_out_degree, 1))
        return cls(graph.num_nodes, graph.num_edges, neighbors.num_structures, degree)

    def holds(self, needed: "Capacity") -> bool:
        """Return whether this capacity is sufficient for `needed`."""
        return all(own >= other for own, other in zip(self, needed, strict=True))

    def grow(self) -> "Capacity":
        """Return a capacity a quarter larger, with atoms and edges rounded up to multiples of `ROW_MULTIPLE`."""
        atoms, edges, structures = (int(GROWTH * n) + 1 for n in self[:3])
        return Capacity(
            _round_up_rows(atoms), _round_up_rows(edges), structures if self.structures > 1 else 1, self.degree
        )

    @property
    def padded_sizes(self) -> tuple[int, int, int]:
        """Numbers of atoms, edges and structures, including ghosts. At least one ghost atom has no edges."""
        edges = _round_up_rows(self.edges)
        return _round_up_rows(self.atoms + 2 * -(-edges // (2 * MAX_GHOST_DEGREE)) + 1), edges, self.structures + 2


def _round_up_rows(number: int) -> int:
    return -(-number // ROW_MULTIPLE) * ROW_MULTIPLE


def parse_capacities(owner: str, given: Any) -> list[Capacity]:
    """Return the `capacity` argument as a list; raise TypeError or ValueError if it is invalid."""
    if given is None:
        return []
    several = [given] if isinstance(given, Capacity) else list(given) if isinstance(given, (list, tuple)) else [given]
    for one in several:
        if not isinstance(one, Capacity):
            raise TypeError(f"{owner}: capacity is a {type(one).__name__}; expected Capacity, or a list of them")
        for name, number in one._asdict().items():
            require_count(owner, f"capacity.{name}", number, 1)
    return [Capacity(a, e, s, coarsen_attribute("max_in_degree", d)) for a, e, s, d in several]


def choose_capacity(needed: Capacity, given: Iterable[Capacity], existing: Iterable[Capacity]) -> Capacity:
    """Return the smallest existing capacity that is sufficient for `needed`, or else a new one.

    A capacity in `existing`, unlike one in `given`, is not reused if the call would use less than half of its edges or
    atoms.
    """
    new = needed.grow()
    candidates = [one for one in given if one.holds(needed)]
    for one in existing:
        too_large = 2 * needed.edges < one.edges > new.edges or 2 * needed.atoms < one.atoms > new.atoms
        if one.holds(needed) and not too_large:
            candidates.append(one)
    return min(candidates, key=lambda one: (one.edges, one.atoms, one.structures), default=new)


class PaddedBuffers:
    """Tensors at fixed addresses for structures up to a capacity, and the graphs of their neighbours.

    Attributes
    ----------
    z, pos, cells : Tensor
        As for `Potential.forward`; `cells` is None without cells.
    neighbors : Neighbors
    real_atoms, real_structures : Tensor
        1 for real atoms or structures, 0 for ghosts.
    refused : Tensor
        Whether the last `PaddedNeighborSearch` was refused, for example for too many edges. If so, there are no real
        edges.
    sizes : tuple of int
        Numbers of atoms and structures without ghosts.
    search : PaddedNeighborSearch or None
        Search that overwrites the edges.
    """

    def __init__(self, capacity: Capacity, pos: Tensor, periodic: bool, index_dtype: torch.dtype) -> None:
        self.capacity = capacity
        atoms, edges, structures = self.rows = capacity.padded_sizes
        self._index: dict[str, Any] = {"dtype": index_dtype, "device": pos.device}
        self.pos, self.z = pos.new_zeros(atoms, 3), torch.zeros(atoms, dtype=torch.int64, device=pos.device)
        # Unused structures get unit cells, because the stress of a cell without volume is NaN.
        identity = pos.new_zeros(3, 3).fill_diagonal_(1.0)
        self.cells = identity.repeat(structures, 1, 1) if periodic else None
        self.real_atoms, self.real_structures = pos.new_zeros(atoms), pos.new_zeros(structures)
        self.batch = torch.zeros_like(self.z)
        self.shifts = pos.new_zeros(edges, 3) if periodic else None
        self.refused, self.sizes = torch.zeros((), dtype=torch.bool, device=pos.device), (0, 0)
        self.search: Any = None
        self.like = pos.dtype, pos.device
        self._long: list[_PaddedLongRows] = []
        self.neighbors = self._make_neighbors()
        # `Neighbors` (immutable) and cutoff for which graphs and ghost positions were last written.
        self._filled_for: tuple[Neighbors | None, float] = None, 0.0

    def load_structures(
        self, z: Tensor, pos: Tensor, cells: Tensor | None, neighbors: Neighbors, cutoff: float
    ) -> None:
        """Copy structures with at least one atom into the tensors, without synchronizing the device."""
        self.sizes = atoms, structures = len(z), neighbors.num_structures
        with torch.no_grad():
            self.z[:atoms].copy_(z)
            self.z[atoms:].copy_(z[:1].expand(self.rows[0] - atoms))  # ghosts get an element that the model supports
            self.pos[:atoms].copy_(pos)
            if self.cells is not None and cells is not None:
                self.cells[:structures].copy_(cells)
            if self._filled_for[0] is not neighbors or self._filled_for[1] != cutoff:
                self.invalidate_graphs()
                self._mark_real_and_place_ghosts(atoms, structures, cutoff)
                self._fill_structure_members(neighbors)
                self._fill_edges(neighbors)
                self._filled_for = neighbors, cutoff

    def invalidate_graphs(self) -> None:
        """Make the next `load_structures` write the graphs again, after another object has overwritten them."""
        self._filled_for = None, 0.0

    def make_label_tensor(self, values: Tensor, of_atoms: bool) -> Tensor:
        """Return a zero tensor for labels such as `values`, with rows for all atoms or structures, including ghosts."""
        return values.new_zeros(self.rows[0 if of_atoms else 2], *values.shape[1:])

    def fill_labels(self, targets: Mapping[str, Tensor], labels: Mapping[str, tuple[Tensor, bool]]) -> None:
        """Copy labels into the tensors from `make_label_tensor`, and set the rows of ghosts to zero."""
        for name, (values, _) in labels.items():
            targets[name][: len(values)].copy_(values)
            targets[name][len(values) :].zero_()

    def _make_neighbors(self) -> Neighbors:
        """Return graphs of new tensors: constant, unless `_fill_edges` or `_fill_structure_members` writes them."""
        atoms, edges, structures = self.rows
        degree, largest = self.capacity.degree, coarsen_attribute("max_in_degree", atoms)

        def make_zero_indices(size: int) -> Tensor:
            return torch.zeros(size, **self._index)

        def make_index_range(size: int) -> Tensor:
            return torch.arange(size, **self._index)

        def make_csc(arrays: tuple[Tensor, ...], numbers: tuple[int, ...], name: str = "", longest: int = 0) -> Any:
            long = {}
            if longest > MAX_GHOST_DEGREE:
                offsets = arrays[(*_CSC.arrays, *_CSC.reverse).index(name)]
                self._long.append(_PaddedLongRows(offsets, numbers[1]))
                long[name] = self._long[-1].rows, self._long[-1].parts
            return assemble_graph_sharing_memory("CSC", arrays, numbers, long)

        self.edges = {name: make_zero_indices(atoms + 1 if "offsets" in name else edges) for name in _EDGES.arrays}
        src_offsets, dst_offsets, by_dst, src = (self.edges[name] for name in _EDGES.arrays[:4])
        self._ends = [
            make_zero_indices(2 * edges),
            make_zero_indices(2 * atoms + 1),
            make_zero_indices(2 * edges),
        ]  # indices, src_offsets, src_positions
        self._into = [make_zero_indices(edges), make_zero_indices(edges)]  # destinations, src_positions
        sizes = (structures + 1, *5 * [atoms])
        self.members = [
            make_zero_indices(size) for size in sizes
        ]  # offsets, indices, edge_ids, destinations, 2 position arrays
        each, both = make_index_range(edges + 1), make_index_range(2 * edges + 1)
        rows, halves, atom_offsets = each[:-1], both[:-1], make_index_range(atoms + 1)
        ends = (2 * each, self._ends[0], halves, halves // 2, *self._ends[1:], both, halves)
        into = (dst_offsets, by_dst, rows, self._into[0], each, self._into[1], each, rows)
        members = (*self.members[:4], atom_offsets, self.members[4], atom_offsets, self.members[5])
        return Neighbors(
            assemble_graph_sharing_memory(
                "EdgeGraph", tuple(self.edges.values()), (degree, degree, SAFE_VALUES["max_parallel_edges"])
            ),
            self.shifts,
            self.batch,
            make_csc(ends, (2 * atoms, 2 * edges, MAX_GHOST_DEGREE, 1), "src_offsets", degree),
            make_csc(into, (edges, edges, degree, 1), "offsets", degree),
            make_csc(members, (atoms, atoms, largest, SAFE_VALUES["edges_in_order"]), "offsets", largest),
            make_csc(
                (each.clone(), src, rows, rows, src_offsets, rows, each, rows),
                (atoms, edges, MAX_GHOST_DEGREE, 1),
                "src_offsets",
                degree,
            ),
        )

    def _mark_real_and_place_ghosts(self, atoms: int, structures: int, cutoff: float) -> None:
        self.pos[atoms:].zero_()
        self.pos[atoms + 1 :: 2, 0] = GHOST_DISTANCE * cutoff
        self.real_atoms[:atoms] = 1.0
        self.real_atoms[atoms:] = 0.0
        self.real_structures[:structures] = 1.0
        self.real_structures[structures:] = 0.0
        if self.cells is not None:
            self.cells[structures:].copy_(self.pos.new_zeros(3, 3).fill_diagonal_(1.0))

    def _fill_edges(self, neighbors: Neighbors) -> None:
        """Write the real edges, then the ghost edges: edges stay sorted, because ghosts have the largest indices."""
        graph = neighbors.graph
        if graph.reverse_edge is None:
            raise ValueError("Neighbors: the graph has no reverse_edge; expected a result of Potential.neighbors")
        for target, own in zip(self.edges.values(), list_graph_tensors(graph, False), strict=True):
            target[: len(own)].copy_(own)
        if self.shifts is not None:
            self.shifts[: graph.num_edges].copy_(
                self.shifts.new_zeros(()) if neighbors.shifts is None else neighbors.shifts
            )
        self.refused.zero_()
        self.append_ghost_edges(torch.full((), graph.num_edges, **self._index))

    def append_ghost_edges(self, num_real_edges: Tensor) -> None:
        """Write ghost edges after the `num_real_edges` real edges, and all derived arrays, without synchronization."""
        atoms, edges, structures = self.rows
        first_ghost = self.members[0][structures - 2]  # first ghost atom
        ghosts = _make_ghost_edges(first_ghost, num_real_edges, atoms, edges)
        shift = {"src": first_ghost, "dst": first_ghost}
        for name, target in self.edges.items():
            ghost = ghosts[name] + shift.get(name, num_real_edges)
            if name == "reverse_edge":
                ghost = torch.where(ghosts[name] < 0, -1, ghost)
            is_own = torch.arange(len(target), **self._index) < (first_ghost if "offsets" in name else num_real_edges)
            target.copy_(torch.where(is_own, target, ghost))
        src_offsets, dst_offsets, by_dst, src, dst = (self.edges[name] for name in _EDGES.arrays[:5])
        number = torch.arange(edges, **self._index)
        indices, offsets, positions = self._ends
        torch.stack([src, atoms + dst], dim=1, out=indices.view(edges, 2))
        torch.cat([src_offsets[:-1], edges + dst_offsets], out=offsets)
        torch.cat([2 * number, 2 * by_dst + 1], out=positions)
        torch.index_select(dst, 0, by_dst, out=self._into[0])
        self._into[1].index_copy_(0, by_dst.long(), number)
        if self.shifts is not None:
            self.shifts.masked_fill_((number >= num_real_edges)[:, None], 0.0)
        for long in self._long:
            long.update_long_rows()

    def _fill_structure_members(self, neighbors: Neighbors) -> None:
        """Write the structure of each atom. All ghosts are in the second-to-last structure; the last one is empty."""
        (atoms, _, structures), own = self.rows, neighbors.graph.num_nodes
        offsets, *others = list_graph_tensors(neighbors.members, True)
        indices, edge_ids, destinations, _, src_positions, _, row_positions = others
        self.members[0][: len(offsets)].copy_(offsets)
        self.members[0][len(offsets) : structures - 1] = own
        self.members[0][structures - 1 :] = atoms
        ghosts = torch.arange(own, atoms, **self._index)
        for target, values in zip(
            self.members[1:], (indices, edge_ids, destinations, src_positions, row_positions), strict=True
        ):
            target[:own].copy_(values)
            target[own:].copy_(ghosts)
        self.members[3][own:] = structures - 2
        self.batch[:own] = 0
        if neighbors.batch is not None:
            self.batch[:own].copy_(neighbors.batch)
        self.batch[own:] = structures - 2


class _PaddedLongRows:
    """`LongRows` of changing offsets, with memory for the largest possible number of long rows.

    Unused entries denote empty parts of the last row, which is always empty.
    """

    def __init__(self, offsets: Tensor, positions: int) -> None:
        self.offsets, most = offsets, positions // (MAX_GHOST_DEGREE + 1)
        self.rows, self.parts = offsets.new_zeros(3, most), offsets.new_zeros(2, positions // MAX_GHOST_DEGREE + most)

    def update_long_rows(self) -> None:
        """Find the long rows of the current offsets without synchronizing the device."""
        offsets, empty_row = self.offsets, len(self.offsets) - 2
        sizes = offsets.diff()
        number = torch.where(sizes > MAX_GHOST_DEGREE, (sizes + MAX_GHOST_DEGREE - 1) // MAX_GHOST_DEGREE, 0)
        ends, num_long_rows = number.cumsum(0), (sizes > MAX_GHOST_DEGREE).cumsum(0)
        part, row_number = (torch.arange(t.shape[1], device=offsets.device) for t in (self.parts, self.rows))
        row_of_part = torch.searchsorted(ends, part, right=True).clamp(max=empty_row)
        begin = offsets[row_of_part] + (part - (ends - number)[row_of_part]) * MAX_GHOST_DEGREE
        self.parts[0].copy_(torch.where(part < ends[-1], row_of_part, empty_row))
        self.parts[1].copy_(torch.where(part < ends[-1], begin, offsets[empty_row]))
        row = torch.searchsorted(num_long_rows, row_number, right=True).clamp(max=empty_row)
        for target, values in zip(self.rows, (row, (ends - number)[row], ends[row]), strict=True):
            target.copy_(torch.where(row_number < num_long_rows[-1], values, 0))
        self.rows[0].copy_(torch.where(row_number < num_long_rows[-1], row, empty_row))


def _make_ghost_edges(first_atom: Tensor, first_edge: Tensor, atoms: int, edges: int) -> dict[str, Tensor]:
    """Return the arrays of the `EdgeGraph` of ghosts, numbered from the first ghost; earlier elements are undefined.

    The edges of pair k start at edge 2 * MOST * k; the first half leads from atom 2 * k to atom 2 * k + 1, the second
    half back. The last pair may have fewer edges; if their number is odd, one edge has no reverse edge.
    """
    like: Any = {"dtype": first_edge.dtype, "device": first_edge.device}
    number, atom = torch.arange(edges, **like) - first_edge, torch.arange(atoms + 1, **like) - first_atom
    num_ghost_edges = edges - first_edge

    def count_edges_by_direction(pair: Tensor) -> tuple[Tensor, Tensor]:
        size = (num_ghost_edges - 2 * MAX_GHOST_DEGREE * pair).clamp(0, 2 * MAX_GHOST_DEGREE)
        return (size + 1) // 2, size // 2

    pair = number // (2 * MAX_GHOST_DEGREE)
    begin, (there, back) = 2 * MAX_GHOST_DEGREE * pair, count_edges_by_direction(pair)
    returns = (number - begin >= there).to(number)  # 1 for edges to the first atom of a pair, otherwise 0
    index_in_direction = number - begin - returns * there  # index among the edges of the same pair and direction
    has_reverse = (index_in_direction < torch.where(returns > 0, there, back)).to(number)
    # When edges are sorted by destination, those leading to the first atom of a pair come first.
    start = begin + returns * back
    position = number - begin
    offsets, (outward, inward) = 2 * MAX_GHOST_DEGREE * (atom // 2), count_edges_by_direction(atom // 2)
    return {
        "src_offsets": (offsets + atom % 2 * outward).clamp(max=num_ghost_edges),
        "dst_offsets": (offsets + atom % 2 * inward).clamp(max=num_ghost_edges),
        "dst_edge_index": begin + torch.where(position < back, there + position, position - back),
        "src": 2 * pair + returns,
        "dst": 2 * pair + 1 - returns,
        "reverse_start": start,
        "reverse_stop": start + torch.where(returns > 0, there, back),
        "reverse_edge": torch.where(has_reverse > 0, begin + (1 - returns) * there + index_in_direction, -1),
        "_edge_start": start + has_reverse * index_in_direction,
        "_edge_stop": start + has_reverse * (index_in_direction + 1),
    }
