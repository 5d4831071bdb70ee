"""Units of work for the kernels of GemNet-OC, and matrix products used with these kernels.

A unit is an edge with its triplets, or a piece of an edge with at most PART_SIZE triplets (see sums.py). If edges are
summed into atoms, a unit is an atom with its edges, or a piece of an atom, which contains all triplets of its edges.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from trigraph.gpu import sums
from trigraph.gpu.products import multiply_chunks
from trigraph.gpu.sums import ROWS, CsrRows, KernelLauncher, PairwiseSum, ceil_divide
from trigraph.table.constants import PART_SIZE, THREADS

WARP = 32  # number of threads in a warp

Pair = tuple[Any, Any]


class RegisterTile(NamedTuple):
    """Rows and columns of a matrix that a lane keeps in registers (see kernels/gemnet.cu)."""

    rows: int
    cols: int

    @classmethod
    def for_matrices(cls, depth: int, width: int, dtype: Any) -> "RegisterTile":
        """Return the tile for matrices of `depth` rows and `width` columns."""
        if dtype.itemsize == 8:
            return cls(8, 1)
        return cls(16, 1) if width <= 32 and depth > 8 else cls(8, 2)


def drop_pairs_with_none(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs in which neither factor is None (zero)."""
    return [pair for pair in pairs if pair[0] is not None and pair[1] is not None]


def sum_pair_products(kernels: KernelLauncher, pairs: Sequence[Pair], out: Any) -> None:
    """Write the sum of left @ right over the pairs."""
    present = drop_pairs_with_none(pairs)
    if not present or out.size == 0:
        out.fill(0)
        return
    for number, (left, right) in enumerate(present):
        kernels.matmul(left, right, out=out, add=number > 0)


def add_transposed_products(kernels: KernelLauncher, pairs: Sequence[Pair], total: PairwiseSum) -> None:
    """Add the sum of left^T right over the pairs to `total`."""
    for left, right in drop_pairs_with_none(pairs):
        per_row = (left.shape[1] + right.shape[1] + left.shape[1] * right.shape[1] // ROWS) * left.itemsize
        for first, count in sums.iterate_row_blocks(len(left), per_row):
            rows = slice(first, first + count)
            total.add(multiply_chunks(kernels, left[rows], right[rows]))


def group_by_segment(segments: Any) -> CsrRows:
    """Return the members of `Segments` grouped by segment; segments with more than PART_SIZE members are cut."""
    long = segments.long_rows("offsets") if segments.max_size > PART_SIZE else None
    return CsrRows(segments.offsets, segments.order, segments.num_segments, segments.num_members, long)


class WorkUnits:
    """Units of one call: pieces of the triplets of each edge, or of the edges of each atom."""

    def __init__(self, kernels: KernelLauncher, triplets: Any, atoms: Any = None) -> None:
        self.kernels = kernels
        self.pieces = group_by_segment(triplets if atoms is None else atoms)
        self.count, self.has_cut_pieces = self.pieces.num_pieces, self.pieces.long is not None
        #: Kernel arguments for the edges of a unit and the triplets of an edge.
        self.edges = {
            "partition": self.pieces.partition,
            "triplet_offsets": None if atoms is None else triplets.offsets,
            "atom_order": _find_member_order(atoms),
        }
        self.order = _find_member_order(triplets)

    def iterate_unit_blocks(self, bytes_per_unit: int) -> Iterator[tuple[int, int, slice]]:
        """Yield the first unit, the number of units and their slice for each block; blocks bound the workspace."""
        for first, count in sums.iterate_row_blocks(self.count, bytes_per_unit):
            yield first, count, slice(first, first + count)

    def copy_rows_to_units(self, values: Any) -> Any:
        """Return the row of `values` for each unit, or zeros for units without triplets; None remains None."""
        if values is None:
            return None
        out = self.kernels.empty(self.count, values.shape[1])
        self._zero_empty_units(values, True, out)
        return out

    def allocate_unit_results(self, out: Any) -> Any:
        """Return an array with one row per unit, which `sum_unit_results` sums into `out`; None remains None."""
        return self.kernels.empty(self.count, out.shape[1]) if self.has_cut_pieces and out is not None else out

    def sum_unit_results(self, partial: Any, out: Any) -> None:
        """Sum the results of units into `out`, skipping units without triplets."""
        self._zero_empty_units(partial, False, partial)
        if self.has_cut_pieces:
            sums.sum_pieces(self.kernels, self.pieces, partial, out)

    def _zero_empty_units(self, values: Any, by_row: bool, out: Any) -> None:
        types = (self.kernels.dtype, self.pieces.offsets.dtype)
        arguments = {"values": values, **self.edges, "by_row": by_row, "width": out.shape[1], "out": out}
        self.kernels.launch("gemnet_mask_units", types, (ceil_divide(self.count, 4),), (THREADS,), **arguments)

    def launch(self, kernel: str, tile: RegisterTile, blocks: int, /, *, shared_mem: int = 0, **arguments: Any) -> None:
        """Launch a kernel with one warp per block, instantiated for the dtypes of values and indices."""
        types = (self.kernels.dtype, self.pieces.offsets.dtype, *tile)
        arguments["triplet_order"] = self.order
        self.kernels.launch(kernel, types, (blocks,), (WARP,), shared_mem=shared_mem, **arguments)


def _find_member_order(segments: Any) -> Any:
    """Return the permutation that sorts members by segment, or None if they are already sorted."""
    return None if segments is None or segments.is_sorted else segments.order
