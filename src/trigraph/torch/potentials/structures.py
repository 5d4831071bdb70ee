"""Atomic structures: neighbours, vectors between neighbours, and sums over neighbours."""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from trigraph.arrays import check_memory, format_value
from trigraph.graphs import CSC
from trigraph.graphs.counting import sort_positions_by_key
from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.graphs.neighbors import find_neighbor_pairs, find_neighbors_of_molecules
from trigraph.table import GRAPH_PARTS
from trigraph.table.former_names import keep_former_names
from trigraph.torch.arrays import call_in_new_thread, unwrap_func_tensor, view_tensor_as_array
from trigraph.torch.functions import FUNCTIONS
from trigraph.torch.graphs import assemble_graph, exclude_from_compilation, list_graph_tensors
from trigraph.torch.layers.arguments import require_cpu_or_cuda
from trigraph.torch.layers.edges import check_matrix_shape, narrow_indices
from trigraph.torch.potentials.neighbors import compute_lengths, mask_nearest_edges, search_neighbors
from trigraph.torch.signatures import allow_nesting, skip_default_argument_search

SRC, DST, SRC_OFFSETS = map(GRAPH_PARTS["EdgeGraph"].arrays.index, ("src", "dst", "src_offsets"))
_sum = FUNCTIONS["agg_weighted_n2n"]


class EnergyForcesStress(NamedTuple):
    """Energies and their derivatives, in the units of the model.

    Attributes
    ----------
    energy : Tensor, shape (num_structures,)
    forces : Tensor, shape (num_atoms, 3)
        Negative derivative of the energy with respect to the positions.
    stress : Tensor, shape (num_structures, 3, 3), or None
        Derivative of the energy with respect to a symmetric strain of positions and cell, divided by the cell volume.
        NaN for a cell without volume; None without cells.
    energies : Tensor, shape (num_atoms,), or None
        Contribution of each atom to the energy; None if the model does not define such contributions.
    """

    energy: Tensor
    forces: Tensor
    stress: Tensor | None
    energies: Tensor | None = None


def check_potential(owner: str, model: Any) -> None:
    """Raise TypeError unless a model computes energies, forces and stresses."""
    if not (isinstance(model, torch.nn.Module) and hasattr(model, "energy_forces_stress")):
        raise TypeError(
            f"{owner}: model is a {type(model).__name__}; expected a torch.nn.Module with energy_forces_stress"
        )


def make_empty_model_tensor(model: torch.nn.Module) -> Tensor:
    """Return an empty tensor with the dtype and device of a model's parameters or, without parameters, of its buffers.

    Raise RuntimeError if gradients are enabled but the model was created in inference mode, because torch then computes
    no derivatives.
    """
    tensors_of_model = itertools.chain(model.parameters(), model.buffers())
    first = next((t for t in tensors_of_model if t.is_floating_point()), torch.empty(0))
    if not torch.compiler.is_compiling() and first.is_inference() and torch.is_grad_enabled():
        raise RuntimeError(
            f"{type(model).__name__}: its parameters were made in torch.inference_mode(), for which torch computes no "
            "derivatives; expected a model that was made, or loaded, outside of it"
        )
    return first.new_empty(0)


@keep_former_names(of_ends="add_ends")
class Neighbors(NamedTuple):
    """Neighbours of atoms, valid for all positions and cells with the same neighbours.

    Attributes
    ----------
    graph : EdgeGraph
        Graph with two edges, one per direction, for each pair of neighbours; periodic images yield parallel edges.
    shifts : Tensor or None
        Number of cells that each edge crosses, shape (num_edges, 3); None if no edge crosses a cell.
    batch : Tensor or None
        Structure of each atom, shape (num_atoms,); None for one structure without a batch.
    ends : CSC
        Graph from the 2 * num_atoms rows ``cat([at_source, at_destination])`` to the edges; adds the ends of each edge.
    into : CSC
        Graph from the edges to their destination atoms.
    members : CSC
        Graph from the atoms to their structures.
    sources : CSC or None
        Graph from the atoms to their out-edges; None if `of_sources` builds it in each call.

    See Also
    --------
    trigraph.torch.nn.Potential

    Examples
    --------
    >>> import torch
    >>> from trigraph.torch.nn import DimeNetPlusPlus
    >>> pos = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    >>> neighbors = DimeNetPlusPlus(16, 1, 1, 8, 4, 16, 3, 4).neighbors(pos)
    >>> neighbors.src, neighbors.dst
    (tensor([0, 1]), tensor([1, 0]))
    """

    graph: EdgeGraph
    shifts: Tensor | None
    batch: Tensor | None
    ends: CSC
    into: CSC
    members: CSC
    sources: CSC | None = None

    @property
    def num_structures(self) -> int:
        """Number of structures, including empty ones."""
        return int(self.members.num_dst_nodes)

    @property
    def src(self) -> Tensor:
        """Source atom of each edge, shape (num_edges,)."""
        return list_graph_tensors(self.graph, False)[SRC]

    @property
    def dst(self) -> Tensor:
        """Destination atom of each edge, shape (num_edges,)."""
        return list_graph_tensors(self.graph, False)[DST]

    def repeat_structures(self, number: int) -> "Neighbors":
        """Return the neighbours in `number` consecutive copies of all structures."""
        steps = torch.arange(number, device=self.src.device)[:, None]

        def repeat_shifted_index(index: Tensor, size: int) -> Tensor:
            return (index + size * steps).flatten()

        num_atoms, num_edges, structures = self.graph.num_nodes, self.graph.num_edges, self.num_structures
        batch = self.src.new_zeros(num_atoms) if self.batch is None else self.batch
        shifts = self.src.new_zeros(num_edges, 3) if self.shifts is None else self.shifts
        src, dst = repeat_shifted_index(self.src, num_atoms), repeat_shifted_index(self.dst, num_atoms)
        of_atom = repeat_shifted_index(batch, structures)
        return build_neighbors(src, dst, shifts.repeat(number, 1), None, of_atom, number * structures, True)

    def of_sources(self, values: Tensor) -> Tensor:
        """Return ``values[src]``, the row of each edge's source atom, shape (num_edges, width).

        Derivatives add the edges of each atom in a fixed order, on the CPU and on CUDA devices.
        """
        if self.sources is not None:
            return _sum_rows("of_sources", values, self.sources, "num_atoms")
        src, src_offsets = self.src, list_graph_tensors(self.graph, False)[SRC_OFFSETS]
        offsets = torch.arange(src.shape[0] + 1, dtype=src.dtype, device=src.device)
        each = offsets[:-1]
        # Edges are sorted by source, so the reverse arrays need no computation.
        arrays = (offsets, src, each, each, src_offsets, each, offsets, each)
        graph = assemble_graph("CSC", arrays, (src_offsets.shape[0] - 1, src.shape[0], 1, True))
        return _sum_rows("of_sources", values, graph, "num_atoms")

    def add_ends(self, at_source: Tensor, at_destination: Tensor) -> Tensor:
        """Return ``at_source[src] + at_destination[dst]`` for each edge."""
        return _sum(torch.cat([at_source, at_destination]), None, self.ends).output_embedding

    def into_atoms(self, values: Tensor) -> Tensor:
        """Sum rows of edges, shape (num_edges, width), over the in-edges of each atom, shape (num_atoms, width)."""
        return _sum_rows("into_atoms", values, self.into, "num_edges", self.dst)

    def into_structures(self, values: Tensor) -> Tensor:
        """Sum rows of atoms, shape (num_atoms, width), over the atoms of each structure."""
        return _sum_rows("into_structures", values, self.members, "num_atoms", self.batch)

    def vectors(self, pos: Tensor, cell: Tensor | None) -> Tensor:
        """Return the vector of each edge, from its destination to its source, shape (num_edges, 3).

        `pos` has shape (num_atoms, 3), `cell` has shape (num_structures, 3, 3). Raise ValueError if edges cross cells
        but `cell` is None.
        """
        vec = self.add_ends(pos, -pos)
        if self.shifts is None:
            return vec
        if cell is None:
            raise ValueError("Neighbors: cell is None; expected cells, because some edges cross their boundaries")
        shifts = self.shifts.to(pos.dtype)
        if self.batch is None or cell.shape[0] == 1:  # `shape[0]` stays symbolic in a traced program, unlike len()
            return vec + shifts @ cell[0]
        of_edge = cell.index_select(0, self.batch.index_select(0, self.src))
        return vec + (shifts.unsqueeze(1) @ of_edge).squeeze(1)


def _sum_rows(method: str, values: Tensor, graph: CSC, symbol: str, index: Tensor | None = None) -> Tensor:
    """Return sums of rows. If each row contributes to exactly one sum, `index` states which."""
    check_matrix_shape(f"Neighbors.{method}", "values", values, None, f"{symbol}, width", graph.num_src_nodes)
    # Traced programs must call the operator itself, because `potentials.traced.rewrite_sums` looks for it.
    if index is None or torch.compiler.is_compiling() or get_proxy_mode() is not None:
        return _sum(values, None, graph).output_embedding
    sums: Tensor = _RowSums.apply(values, index, graph)  # type: ignore[no-untyped-call]
    return sums


class _RowSums(torch.autograd.Function):
    """Sum rows, each of which contributes to one sum, so that the derivative is a selection of rows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, index: Tensor, graph: CSC) -> Tensor:
        return _sum(values, None, graph).output_embedding

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, index, ctx.graph = inputs
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _RowSelection.apply(grad, *ctx.saved_tensors, ctx.graph), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    @allow_nesting
    def jvp(ctx: Any, saved: Any, tangent: Tensor, *_: None) -> Any:
        return _RowSums.apply(tangent, *saved, ctx.graph)  # type: ignore[no-untyped-call]


class _RowSelection(torch.autograd.Function):
    """Select rows of `values` by `index`. The derivative is the transpose, `_RowSums`, which adds in a fixed order."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, index: Tensor, graph: CSC) -> Tensor:
        return values.index_select(0, index)

    setup_context = _RowSums.setup_context

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _RowSums.apply(grad, *ctx.saved_tensors, ctx.graph), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    @allow_nesting
    def jvp(ctx: Any, saved: Any, tangent: Tensor, *_: None) -> Any:
        return _RowSelection.apply(tangent, *saved, ctx.graph)  # type: ignore[no-untyped-call]


for _function in (_RowSums, _RowSelection):
    skip_default_argument_search(_function)


def _check_tensor_dtype(owner: str, name: str, value: Any, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{owner}: {name} is a {type(value).__name__}; expected a torch.Tensor")
    require_cpu_or_cuda(owner, name, value)
    if value.dtype not in dtypes:
        raise TypeError(f"{owner}: {name} has dtype {value.dtype}; expected {dtypes[0]} or {dtypes[1]}")


def _check_positions(owner: str, pos: Any) -> None:
    _check_tensor_dtype(owner, "pos", pos, (torch.float32, torch.float64))
    if pos.dim() != 2 or pos.shape[1] != 3:
        raise ValueError(f"{owner}: pos has shape {tuple(pos.shape)}; expected (num_atoms, 3)")


def check_atoms(owner: str, z: Any, pos: Any, like: Tensor) -> None:
    """Raise unless `z` and `pos` describe the same atoms, on the device and in the dtype of the model (`like`)."""
    for name, value in (("z", z), ("pos", pos)):
        if isinstance(value, Tensor) and value.device != like.device:
            raise ValueError(f"{owner}: {name} is on {value.device}; expected {like.device}, where the parameters are")
    _check_tensor_dtype(owner, "z", z, (torch.int64, torch.int32))
    if z.dim() != 1:
        raise ValueError(f"{owner}: z has shape {tuple(z.shape)}; expected (num_atoms,)")
    _check_positions(owner, pos)
    if pos.dtype != like.dtype:
        raise TypeError(f"{owner}: pos has dtype {pos.dtype}; expected {like.dtype}, as for the parameters")
    if len(pos) != len(z):
        raise ValueError(f"{owner}: pos has shape {tuple(pos.shape)}; expected (num_atoms, 3) = ({len(z)}, 3)")


def _check_not_complex(owner: str, name: str, value: Tensor | None) -> None:
    """Raise for a complex tensor, because conversion to the dtype of `pos` would drop the imaginary part."""
    if value is not None and value.is_complex():
        raise TypeError(f"{owner}: {name} has dtype {value.dtype}; expected real numbers")


def stack_cells(owner: str, cell: Any, pos: Tensor, num_structures: int) -> Tensor | None:
    """Return the cells as a tensor (num_structures, 3, 3), with zeros for structures without a cell."""
    if cell is None:
        return None
    if not isinstance(cell, (Tensor, Sequence)):
        raise TypeError(f"{owner}: cell is a {type(cell).__name__}; expected a torch.Tensor or a list of them")
    if not isinstance(cell, Tensor):
        for i, one in enumerate(cell):
            if one is not None and not isinstance(one, Tensor):
                raise TypeError(f"{owner}: cell[{i}] is a {type(one).__name__}; expected a torch.Tensor or None")
            if one is not None and tuple(one.shape) != (3, 3):
                raise ValueError(f"{owner}: cell[{i}] has shape {tuple(one.shape)}; expected (3, 3)")
            _check_not_complex(owner, f"cell[{i}]", one)
        cells = [pos.new_zeros(3, 3) if one is None else one.to(pos) for one in cell]
        cell = torch.stack(cells) if cells else pos.new_zeros(0, 3, 3)
    _check_not_complex(owner, "cell", cell)
    if cell.dim() == 2:
        cell = cell.unsqueeze(0)
    if tuple(cell.shape) != (num_structures, 3, 3):
        raise ValueError(
            f"{owner}: cell has shape {tuple(cell.shape)}; expected (num_structures, 3, 3) = ({num_structures}, 3, 3)"
        )
    return cell.to(pos)


def _count_structures(owner: str, batch: Tensor | None, cell: Any, num_atoms: int) -> int:
    """Return the number of structures: the number of cells if cells are given, otherwise ``max(batch) + 1``."""
    several = (isinstance(cell, Tensor) and cell.dim() == 3) or isinstance(cell, Sequence)
    if batch is None:
        if several and len(cell) != 1:
            raise ValueError(f"{owner}: batch is None and cell has {len(cell)} structures; expected one")
        return 1
    if not isinstance(batch, Tensor) or batch.dtype not in (torch.int64, torch.int32):
        came = batch.dtype if isinstance(batch, Tensor) else type(batch).__name__
        raise TypeError(f"{owner}: batch is {came}; expected a torch.Tensor of torch.int64 or torch.int32")
    if tuple(batch.shape) != (num_atoms,):
        raise ValueError(f"{owner}: batch has shape {tuple(batch.shape)}; expected (num_atoms,) = ({num_atoms},)")
    number = len(cell) if several else int(batch.max()) + 1 if num_atoms else 0
    check_memory(owner, "max(batch) + 1", number, 16)  # bytes per structure in its two arrays of offsets
    if num_atoms and not 0 <= int(batch.min()) <= int(batch.max()) < number:
        raise ValueError(
            f"{owner}: batch goes from {int(batch.min())} to {int(batch.max())}; expected from 0 to num_structures - 1 "
            f"= {number - 1}"
        )
    return number


def find_periodic_directions(owner: str, pbc: Any, cell: Any, num_structures: int) -> np.ndarray:
    """Return a mask of the periodic directions of each structure, shape (num_structures, 3)."""
    if pbc is None:
        present = [one is not None for one in cell] if isinstance(cell, Sequence) else cell is not None
        return np.broadcast_to(np.array(present, bool).reshape(-1, 1), (num_structures, 3))
    flags = np.asarray(pbc.cpu() if isinstance(pbc, Tensor) else pbc)
    if flags.dtype != np.bool_:
        raise TypeError(f"{owner}: pbc is {format_value(pbc)}; expected bools")
    if flags.shape not in ((), (3,), (num_structures, 3)):
        raise ValueError(
            f"{owner}: pbc has shape {flags.shape}; expected (), (3,) or (num_structures, 3) = ({num_structures}, 3)"
        )
    return np.broadcast_to(flags, (num_structures, 3))


def _unwrap_func_tensors(owner: str, name: str, value: Any) -> Any:
    """Remove torch.func wrappers from a tensor or a list of tensors."""
    if isinstance(value, (list, tuple)):
        return [_unwrap_func_tensors(owner, f"{name}[{i}]", one) for i, one in enumerate(value)]
    try:
        return unwrap_func_tensor(value) if isinstance(value, Tensor) else value
    except ValueError as error:
        raise ValueError(f"{owner}: {name}: {error}") from None


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return view_tensor_as_array(tensor) if tensor.is_cpu else tensor.detach().resolve_neg().cpu().numpy()


@exclude_from_compilation
def find_neighbors(
    owner: str,
    pos: Tensor,
    cutoff: float,
    batch: Tensor | None = None,
    cell: Any = None,
    pbc: Any = None,
    max_num_neighbors: int | None = None,
) -> Neighbors:
    """Return the neighbours of each atom within its structure. See `Potential.neighbors` for the arguments."""
    _check_positions(owner, pos)
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        raise NotImplementedError(
            f"{owner}: torch.jit.trace would keep these neighbours in the traced program as constants; expected "
            "torch.compile, or torch.export with the argument neighbors"
        )
    pos, batch, cell, pbc = (
        _unwrap_func_tensors(owner, name, value)
        for name, value in (("pos", pos), ("batch", batch), ("cell", cell), ("pbc", pbc))
    )
    return call_in_new_thread(_find_neighbors_of_unwrapped, owner, pos, cutoff, batch, cell, pbc, max_num_neighbors)


def _find_neighbors_of_unwrapped(
    owner: str, pos: Tensor, cutoff: float, batch: Tensor | None, cell: Any, pbc: Any, max_num_neighbors: int | None
) -> Neighbors:
    """Implement `find_neighbors` for tensors without torch.func wrappers."""
    num_structures = _count_structures(owner, batch, cell, len(pos))
    cells = stack_cells(owner, cell, pos, num_structures)
    flags = find_periodic_directions(owner, pbc, cell, num_structures)
    # Copy `batch`: later writes to the caller's tensor must not change `Neighbors.batch` or the graphs.
    of_atom = pos.new_zeros(len(pos), dtype=torch.int64) if batch is None else batch.to(torch.int64, copy=True)
    boxes = np.zeros((num_structures, 3, 3)) if cells is None else _to_numpy(cells).astype(np.float64)
    result = search_neighbors(pos, cutoff, boxes, flags, of_atom) if pos.is_cuda else None
    if result is None:
        edges = _search_neighbors_on_host(
            owner, _to_numpy(pos), cutoff, _to_numpy(of_atom), cells, flags, batch is None
        )
        result = tuple(t.to(pos.device) for t in edges)
    src, dst, shifts, offset = result
    vec = pos.detach()[src] - pos.detach()[dst] + offset.to(pos.dtype)
    if max_num_neighbors is not None:
        keep = mask_nearest_edges(dst, compute_lengths(vec), max_num_neighbors)
        src, dst, shifts, vec = src[keep], dst[keep], shifts[keep], vec[keep]
    return build_neighbors(src, dst, shifts, vec, of_atom, num_structures, batch is not None)


def _search_neighbors_on_host(
    owner: str,
    positions: np.ndarray,
    cutoff: float,
    of_atom: np.ndarray,
    cells: Any,
    flags: np.ndarray,
    is_single: bool,
) -> list[Tensor]:
    """Search on the host; return source, destination, shifts and offset of each pair, sorted by the first three."""
    boxes = None if cells is None else _to_numpy(cells)
    if boxes is None and not flags.any() and not is_single:
        with contextlib.suppress(ValueError):  # raised again below, with the number of the structure
            return [torch.from_numpy(array) for array in find_neighbors_of_molecules(positions, cutoff, of_atom)]
    # The atoms of a structure need not be contiguous, so all edges are sorted by source at the end.
    by_structure = np.argsort(of_atom, kind="stable")
    structures, starts = np.unique(of_atom[by_structure], return_index=True)
    columns = [(of_atom[:0], of_atom[:0], np.zeros((0, 3), np.int64), positions[:0])]
    # strict=False because `np.split` returns one empty array if there are no atoms
    for structure, atoms in zip(structures, np.split(by_structure, starts[1:]), strict=False):
        box = None if boxes is None else boxes[structure]
        try:
            src, dst, *rest = find_neighbor_pairs(positions[atoms], cutoff, box, flags[structure])
        except ValueError as error:
            if is_single:
                raise
            raise ValueError(f"{owner}: structure {structure} of the batch: {error}") from None
        columns.append((atoms[src], atoms[dst], *rest))
    arrays = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    by_src = sort_positions_by_key(owner, "pos", arrays[0], "num_atoms", len(of_atom)).positions
    return [torch.from_numpy(array[by_src]) for array in arrays]


def build_neighbors(
    src: Tensor,
    dst: Tensor,
    shifts: Tensor,
    vec: Tensor | None,
    of_atom: Tensor,
    num_structures: int,
    batched: bool,
) -> Neighbors:
    """Build a `Neighbors` from edges: the graph of the edges, and the graphs for sums over edges and atoms."""
    num_atoms, num_edges, device = len(of_atom), len(src), src.device
    ends = torch.stack([src, num_atoms + dst], dim=1).flatten()
    offsets, atoms, members = (
        2 * torch.arange(num_edges + 1, device=device),
        torch.arange(num_atoms, device=device),
        of_atom,
    )
    if src.is_cuda:
        src, dst, ends, offsets, atoms, members = narrow_indices(src, dst, ends, offsets, atoms, members)
    graph = EdgeGraph(src, dst, num_atoms, shifts, vec)
    graphs = (
        CSC(offsets, ends, 2 * num_atoms),
        CSC(graph.dst_offsets, graph.dst_edge_index, num_edges),
        CSC.from_coo(atoms, members, num_atoms, num_structures),
    )
    for csc in graphs:
        csc.prepare()  # otherwise, compiled programs would build the reverse arrays in each call
    return Neighbors(graph, shifts if bool(shifts.any()) else None, of_atom if batched else None, *graphs)
