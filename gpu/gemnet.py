"""GemNet-OC's efficient bilinear layer in the gpu backends: the same code runs on CuPy arrays and NumPy arrays.

Lists of triplets are not padded. A warp processes each unit of triplets or edges (see gemnet_units.py) and keeps the
small matrices of an edge in registers; only the last matrix product runs over blocks of units. With R = rad_W1::

    B_e[s, n] = sum over t of e of sph[t, s] m[t, n]    P[c, n] = sum over the unit's e and s of R_e[c, s] B_e[s, n]
    m_ca = sum over the output's units of P W^T

First and second derivatives share their code. Names ending in _dot denote derivatives along the cotangents gg_:
B_dot = sum sph_dot m + sph m_dot, P_dot = R_dot B + R B_dot, and for each unit Q = g W, Q_dot = g W_dot::

    grad_m_ca = P_dot W^T + P W_dot^T                       weight = g^T P_dot      rad_W1 = Q_dot B^T + Q B_dot^T
    G_dot = R^T Q_dot + R_dot^T Q, G = R^T Q (g_rows)       sph = G_dot m + G m_dot   m = G_dot sph + G sph_dot

First derivatives use R_dot = R in P_dot and W_dot = W in Q_dot, and omit Q and all other dotted terms. Values that no
triplet reads, even NaN, have no effect: units without triplets are skipped, and only the rows of other units are
selected.

`basis_embedding` is the matrix product R = rad_basis W. With a spherical basis, R is computed block by block, and then
out[t] = R_e sph[t]; the gradient of R is H = sum over the unit's t of g[t] sph[t]^T.
"""

import math
from collections.abc import Sequence
from typing import Any

from trigraph.gpu import sums
from trigraph.gpu.call import OperatorCall
from trigraph.gpu.gemnet_units import (
    WARP,
    Pair,
    RegisterTile,
    WorkUnits,
    add_transposed_products,
    drop_pairs_with_none,
    group_by_segment,
    sum_pair_products,
)
from trigraph.gpu.sums import ROWS, PairwiseSum, ceil_divide
from trigraph.table.constants import INTERM, MOST_IN_ORDER
from trigraph.table.lazy import lazy


def _flatten_trailing_axes(array: Any) -> Any:
    """Flatten all axes but the first; return None for None."""
    return None if array is None else array.reshape(len(array), math.prod(array.shape[1:]))


def _transpose_or_none(matrix: Any) -> Any:
    return None if matrix is None else matrix.T


# ---- basis embedding of edges ----------------------------------------------------------------------------------------


def _embed_radial(call: OperatorCall) -> None:
    """Compute rad_W1 = rad_basis W^T or its derivatives; see `trigraph.basis_embedding_fwd`."""
    _multiply_rad_basis(call, _transpose_or_none(call.inputs.weight), _transpose_or_none(call.dots.weight), False)


def _embed_spherical(call: OperatorCall) -> None:
    """Compute rad_W1 = rad_basis W, with rows (interm, S), or its derivatives; see `trigraph.basis_embedding_fwd`."""
    _multiply_rad_basis(
        call, _flatten_trailing_axes(call.inputs.weight), _flatten_trailing_axes(call.dots.weight), True
    )


basis_embedding_radial_fwd = basis_embedding_radial_bwd = basis_embedding_radial_bwd2 = _embed_radial
basis_embedding_spherical_fwd = basis_embedding_spherical_bwd = basis_embedding_spherical_bwd2 = _embed_spherical


def _multiply_rad_basis(call: OperatorCall, matrix: Any, matrix_dot: Any, in_order: bool) -> None:
    """Write the product of rad_basis and `matrix` (the weight if `in_order`, else its transpose) or its derivatives.

    The product is bilinear; for second derivatives, each factor in turn is replaced by its cotangent.
    """
    kernels, fields, g, rad = call.kernels, call.fields, _flatten_trailing_axes(call.grad), call.inputs.rad_basis
    if call.output is not None:
        pairs = [(call.dots.rad_basis, matrix), (rad, matrix_dot)] if call.second else [(rad, matrix)]
        sum_pair_products(kernels, pairs, _flatten_trailing_axes(call.output))
    if "rad_basis" in fields:
        sum_pair_products(
            kernels, [(g, _transpose_or_none(matrix_dot if call.second else matrix))], fields["rad_basis"]
        )
    if "weight" in fields:
        factors = (call.dots.rad_basis if call.second else rad), g
        fields.fill_zeros("weight")
        with PairwiseSum(kernels, fields["weight"]) as total:
            add_transposed_products(kernels, [factors if in_order else factors[::-1]], total)


# ---- basis embedding of triplets -------------------------------------------------------------------------------------


def _embed_triplets(call: OperatorCall) -> None:
    """Compute rad_W1[t] = R_e sph_basis[t] or its derivatives; see `trigraph.basis_embedding_fwd`.

    Gradients: sph_basis = R_e^T g[t], rad_basis = H W^T, weight = rad_basis^T H; bwd2 by polarisation.
    """
    if call.values["triplets"].num_members == 0:
        call.fields.fill_zeros()
    else:
        _TripletEmbeddingLauncher(call).compute_requested_fields()


basis_embedding_triplets_fwd = basis_embedding_triplets_bwd = basis_embedding_triplets_bwd2 = _embed_triplets


class _TripletEmbeddingLauncher:
    """Arguments of a call, and methods that launch its kernels."""

    def __init__(self, call: OperatorCall) -> None:
        self.kernels, self.inputs, self.dots, self.second = call.kernels, call.inputs, call.dots, call.second
        self.fields, self.output, self.grad = call.fields, call.output, call.grad
        self.spherical, self.interm = call.sizes["num_spherical"], call.sizes["interm"]
        self.units = WorkUnits(call.kernels, call.values["triplets"])

    def compute_requested_fields(self) -> None:
        units, fields, second = self.units, self.fields, self.second
        w, w_dot = _flatten_trailing_axes(self.inputs.weight), _flatten_trailing_axes(self.dots.weight)
        rad, rad_dot = units.copy_rows_to_units(self.inputs.rad_basis), units.copy_rows_to_units(self.dots.rad_basis)
        partial = units.allocate_unit_results(fields["rad_basis"])
        fields.fill_zeros("weight")  # set the field to zero, because sums over blocks are added to it
        with PairwiseSum(self.kernels, fields["weight"]) as total:
            for first, count, rows in units.iterate_unit_blocks((4 * w.shape[1] + w.size // ROWS) * w.itemsize):
                block_rad, block_rad_dot = rad[rows], None if rad_dot is None else rad_dot[rows]
                if self.output is not None or "sph_basis" in fields:
                    r = self._compute_radial_matrices([(block_rad, w)], count)
                    r_dot = (
                        self._compute_radial_matrices([(block_rad_dot, w), (block_rad, w_dot)], count)
                        if second
                        else None
                    )
                    self._write_triplet_fields(first, count, r, r_dot)
                if fields.requests_any("rad_basis", "weight"):
                    h = self._sum_outer_products(first, count, self.inputs.sph_basis)
                    h_dot = self._sum_outer_products(first, count, self.dots.sph_basis)
                if partial is not None:
                    pairs = [(h_dot, w.T), (h, _transpose_or_none(w_dot))] if second else [(h, w.T)]
                    sum_pair_products(self.kernels, pairs, partial[rows])
                if "weight" in fields:
                    pairs = [(block_rad, h_dot), (block_rad_dot, h)] if second else [(block_rad, h)]
                    add_transposed_products(self.kernels, pairs, total)
        if partial is not None:
            units.sum_unit_results(partial, fields["rad_basis"])

    def _compute_radial_matrices(self, pairs: Sequence[Pair], count: int) -> Any:
        """Return the sum of the products of all pairs, one row per unit, or None if every product is zero."""
        if not drop_pairs_with_none(pairs):
            return None
        out = self.kernels.empty(count, self.spherical * self.interm)
        sum_pair_products(self.kernels, pairs, out)
        return out

    def _write_triplet_fields(self, first: int, count: int, r: Any, r_dot: Any) -> None:
        """Write the fields of the triplets of a block of units."""
        sph = self.inputs.sph_basis
        if self.output is not None:
            pairs = [(sph, r_dot), (self.dots.sph_basis, r)] if self.second else [(sph, r)]
            self._launch_embed_kernel(
                first, count, pairs, (self.interm, self.spherical, self.spherical, 1), self.output
            )
        if "sph_basis" in self.fields:
            pairs, shape = [(self.grad, r_dot if self.second else r)], (self.spherical, self.interm, 1, self.spherical)
            self._launch_embed_kernel(first, count, pairs, shape, self.fields["sph_basis"])

    def _launch_embed_kernel(
        self, first: int, count: int, pairs: Sequence[Pair], shape: tuple[int, int, int, int], out: Any
    ) -> None:
        """Launch gemnet_embed_triplets; `shape` is num_y, num_x, y_stride, x_stride."""
        present = drop_pairs_with_none(pairs)
        if not present:
            out.fill(0)
            return
        (left, r), (left_1, r_1) = [*present, (None, None)][:2]
        num_y, num_x, y_stride, x_stride = shape
        self.units.launch(
            "gemnet_embed_triplets",
            RegisterTile.for_matrices(num_x, num_y, out.dtype),
            count,
            left=left,
            r=r,
            left_1=left_1,
            r_1=r_1,
            partition=self.units.pieces.partition,
            first=first,
            num_y=num_y,
            num_x=num_x,
            y_stride=y_stride,
            x_stride=x_stride,
            out=out,
        )

    def _sum_outer_products(self, first: int, count: int, sph_basis: Any) -> Any:
        """Launch gemnet_sum_outer_products; return None without a basis."""
        if sph_basis is None:
            return None
        out = self.kernels.empty(count, self.interm * self.spherical)
        self.units.launch(
            "gemnet_sum_outer_products",
            RegisterTile.for_matrices(self.spherical, self.interm, out.dtype),
            count,
            left=self.grad,
            right=sph_basis,
            partition=self.units.pieces.partition,
            first=first,
            num_y=self.interm,
            num_z=self.spherical,
            out=out,
        )
        return out


# ---- bilinear --------------------------------------------------------------------------------------------------------


def _compute_bilinear_interaction(call: OperatorCall) -> None:
    """Compute m_ca, the sum of P W^T over units, or its derivatives; see `trigraph.interaction_bilinear_fwd`."""
    if call.values["triplets"].num_members == 0:
        call.fields.fill_zeros()
    else:
        _BilinearLauncher(call).compute_requested_fields()


interaction_bilinear_fwd = interaction_bilinear_bwd = interaction_bilinear_bwd2 = _compute_bilinear_interaction


class _BilinearLauncher:
    """Arguments of a call, and methods that launch its kernels."""

    def __init__(self, call: OperatorCall) -> None:
        self.kernels, self.inputs, self.dots, self.second = call.kernels, call.inputs, call.dots, call.second
        self.fields, self.output, self.grad = call.fields, call.output, call.grad
        self.triplets, self.atoms, self.idx_in = (call.values[name] for name in ("triplets", "atoms", "idx_in"))
        self.interm, self.spherical, self.emb_in = (call.sizes[n] for n in ("interm", "num_spherical", "emb_in"))
        self.units = WorkUnits(call.kernels, self.triplets, self.atoms)
        self.tile = RegisterTile.for_matrices(self.spherical, self.emb_in, self.inputs.weight.dtype)
        # If several units share the triplets of an edge, each computes a part of the gradient of the edge's rad_W1.
        self.per_edge = self.atoms is None and self.units.has_cut_pieces

    def compute_requested_fields(self) -> None:
        units, fields, w = self.units, self.fields, self.inputs.weight
        g = units.copy_rows_to_units(self.grad)
        partial, radial, m = (
            units.allocate_unit_results(self.output),
            _flatten_trailing_axes(fields["rad_W1"]),
            fields["m"],
        )
        partial_radial = units.allocate_unit_results(radial) if self.per_edge else radial
        by_triplet = m
        if self.idx_in is not None and m is not None:
            by_triplet = self.kernels.empty(self.triplets.num_members, m.shape[1])
        per_unit = (4 if self.second else 2) * w.shape[1] + w.size // ROWS
        fields.fill_zeros("weight")  # set the field to zero, because sums over blocks are added to it
        with PairwiseSum(self.kernels, fields["weight"]) as total:
            for first, count, rows in units.iterate_unit_blocks(per_unit * w.itemsize):
                if partial is not None or "weight" in fields:
                    p_dot = self._compute_unit_sums(first, count, self.second)
                if partial is not None:
                    p = None if self.dots.weight is None else self._compute_unit_sums(first, count, False)
                    sum_pair_products(
                        self.kernels, [(p_dot, w.T), (p, _transpose_or_none(self.dots.weight))], partial[rows]
                    )
                if "weight" in fields:
                    add_transposed_products(self.kernels, [(g[rows], p_dot)], total)
                if fields.requests_any("rad_W1", "sph", "m"):
                    self._write_input_gradients(first, count, g[rows], partial_radial, by_triplet)
        if partial is not None:
            units.sum_unit_results(partial, self.output)
        if self.per_edge and radial is not None:
            units.sum_unit_results(partial_radial, radial)
        if by_triplet is not m:
            sums.sum_gathered_rows(self.kernels, by_triplet, group_by_segment(self.idx_in), m)

    def _compute_unit_sums(self, first: int, count: int, dot: bool) -> Any:
        """Return P, or its derivative, for a block of units."""
        tiles = ceil_divide(self.interm, INTERM) * ceil_divide(self.emb_in, WARP * self.tile.cols)
        p = self.kernels.empty(count, self.interm * self.emb_in)
        arguments = self._make_common_arguments(first, dot) | self._make_factor_arguments(
            "r", self.inputs.rad_W1, self.dots.rad_W1, dot
        )
        self.units.launch(
            "gemnet_unit_sums", self.tile, count * tiles, shared_mem=self._triplet_tree_bytes, **arguments, p=p
        )
        return p

    def _write_input_gradients(self, first: int, count: int, g: Any, to_radial: Any, to_m: Any) -> None:
        """Write the gradients of rad_W1 and sph, and the terms of each triplet in the gradient of m."""
        weights = self._make_factor_arguments("q", self.inputs.weight, self.dots.weight, self.second)
        q = {name: None if w is None else self.kernels.matmul(g, w) for name, w in weights.items()}
        arguments = self._make_common_arguments(first, True) | q
        if to_radial is not None:
            more = {"by_unit": self.per_edge, "out": to_radial, "shared_mem": self._triplet_tree_bytes}
            self.units.launch("gemnet_radial_gradient", self.tile, count, **arguments, **more)
        if self.fields.requests_any("sph", "m"):
            radial = {"r": self.inputs.rad_W1, "r_dot": self.dots.rad_W1}
            targets = {"grad_sph": self.fields["sph"], "grad_m": to_m}
            self.units.launch("gemnet_triplet_gradients", self.tile, count, **arguments, **radial, **targets)

    @staticmethod
    def _make_factor_arguments(name: str, value: Any, dot: Any, second: bool) -> dict[str, Any]:
        """Return kernel arguments for a factor and its derivative; bwd passes the factor as the derivative."""
        return {name: value, f"{name}_dot": dot} if second else {name: None, f"{name}_dot": value}

    def _make_common_arguments(self, first: int, dot: bool) -> dict[str, Any]:
        """Return kernel arguments: basis and values with their derivatives, indices, and sizes."""
        return {
            "sph": self.inputs.sph,
            "sph_dot": self.dots.sph if dot else None,
            "m": self.inputs.m,
            "m_dot": self.dots.m if dot else None,
            **self.units.edges,
            "inputs": None if self.idx_in is None else self.idx_in.index,
            "first": first,
            "interm": self.interm,
            "spherical": self.spherical,
            "emb_in": self.emb_in,
        }

    @lazy  # safe to cache, because the value depends only on the arguments of this call
    def _triplet_tree_bytes(self) -> int:
        """Bytes of the trees that sum triplets in three levels; 0 if a kernel adds the triplets of an edge in order."""
        long = self.atoms is not None and self.triplets.max_size > MOST_IN_ORDER
        return 3 * WARP * self.tile.rows * self.tile.cols * self.inputs.weight.itemsize if long else 0
