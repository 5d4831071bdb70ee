"""GemNet-OC's efficient bilinear, production version: the same code for CuPy arrays and NumPy arrays (gpu-host).

Nothing is padded. Kernels work on units of triplets or edges (see units.py) and keep the small matrices of an edge in
shared memory; only the last matrix product is one of whole blocks of units. With R = rad_W1::

    B_e[s, c] = sum over t of e of sph[t, s] m[t, c]    P[i, c] = sum over the unit's e and s of R_e[i, s] B_e[s, c]
    m_ca = sum over the output's units of P W^T

The derivatives are written once for both orders. Primes are derivatives along the cotangents gg_, with
B' = sum sph' m + sph m', P' = R' B + R B', and with Q = g W, Q' = g W' of each unit::

    grad_m_ca = P' W^T + P W'^T         weight = g^T P'         rad_W1 = Q' B^T + Q B'^T
    D' = R^T Q' + R'^T Q, D = R^T Q     sph = D' m + D m'       m = D' sph + D sph'

The first order is what remains of this with R' = R in P' and W' = W in Q', and without all else that is primed, and Q.
What no triplet reads leaves no trace, NaN or not: units without triplets are skipped, and the products' rows selected.

`basis_embedding` is a matrix product, rad_W1 = rad_basis W; with a spherical basis, one for each block of units, A,
from which out[t] = A_e sph[t] follows, and the gradient in A of a unit is G = sum over its t of g[t] sph[t]^T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trigraph.gpu import sums
from trigraph.gpu.products import Tile
from trigraph.gpu.results import Fields, Like, Out, Wrt
from trigraph.gpu.sums import ROWS, Kernels, Total
from trigraph.gpu.units import SIDE, Pair, Units, add_products, given, members, product
from trigraph.table.lazy import lazy

__all__ = [
    "basis_embedding_radial_bwd",
    "basis_embedding_radial_bwd2",
    "basis_embedding_radial_fwd",
    "basis_embedding_spherical_bwd",
    "basis_embedding_spherical_bwd2",
    "basis_embedding_spherical_fwd",
    "basis_embedding_triplets_bwd",
    "basis_embedding_triplets_bwd2",
    "basis_embedding_triplets_fwd",
    "interaction_bilinear_bwd",
    "interaction_bilinear_bwd2",
    "interaction_bilinear_fwd",
]

RUN = 16 * 256  # triplets that kernels/gemnet.cu adds without a tree


# ---- basis embedding of edges ----------------------------------------------------------------------------------------


def basis_embedding_radial_fwd(rad_basis: Any, weight: Any, *, out: Out = None) -> Any:
    """rad_W1 = rad_basis W^T; see `trigraph.basis_embedding_fwd`."""
    kernels = Kernels("gemnet", weight)
    fields = Fields(
        "basis_embedding_radial_fwd", None, out, {"rad_W1": Like((len(rad_basis), len(weight)), weight.dtype)}, kernels
    )
    product(kernels, [(rad_basis, weight.T)], fields["rad_W1"])
    return fields.result()


def basis_embedding_radial_bwd(
    grad_rad_W1: Any, rad_basis: Any, weight: Any, wrt: Wrt = None, *, out: Out = None
) -> Any:
    """rad_basis = g W, weight = g^T rad_basis; see `trigraph.basis_embedding_bwd`."""
    kernels = Kernels("gemnet", weight)
    fields = Fields("basis_embedding_radial_bwd", wrt, out, {"rad_basis": rad_basis, "weight": weight}, kernels)
    _gradients(kernels, grad_rad_W1, weight, (grad_rad_W1, rad_basis), fields)
    return fields.result()


def basis_embedding_radial_bwd2(
    gg_rad_basis: Any,
    gg_weight: Any,
    grad_rad_W1: Any,
    rad_basis: Any,
    weight: Any,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """Bilinear: each factor in turn replaced by its cotangent; see `trigraph.basis_embedding_bwd2`."""
    kernels = Kernels("gemnet", weight)
    like = {"grad_rad_W1": grad_rad_W1, "rad_basis": rad_basis, "weight": weight}
    fields = Fields("basis_embedding_radial_bwd2", wrt, out, like, kernels)
    if fields.any_of("grad_rad_W1"):
        pairs = [(gg_rad_basis, weight.T), (rad_basis, None if gg_weight is None else gg_weight.T)]
        product(kernels, pairs, fields["grad_rad_W1"])
    _gradients(kernels, grad_rad_W1, gg_weight, (grad_rad_W1, gg_rad_basis), fields)
    return fields.result()


def _gradients(kernels: Kernels, g: Any, weight: Any, factors: tuple[Any, Any], fields: Fields) -> None:
    """Write rad_basis = g weight, and weight = left^T right of these factors, one of which is g; None is zero."""
    if fields.any_of("rad_basis"):
        product(kernels, [(g, weight)], fields["rad_basis"])
    if fields.any_of("weight"):
        fields["weight"].fill(0)
        with Total(kernels, fields["weight"]) as total:
            add_products(kernels, [factors], total)


def basis_embedding_spherical_fwd(rad_basis: Any, weight: Any, *, out: Out = None) -> Any:
    """rad_W1 = rad_basis W, rows reshaped to (interm, S), not transposed; see `trigraph.basis_embedding_fwd`."""
    kernels, (_, spherical, interm) = Kernels("gemnet", weight), weight.shape
    fields = Fields(
        "basis_embedding_spherical_fwd",
        None,
        out,
        {"rad_W1": Like((len(rad_basis), interm, spherical), weight.dtype)},
        kernels,
    )
    product(kernels, [(rad_basis, _matrix(weight))], _rows(fields["rad_W1"]))
    return fields.result()


def basis_embedding_spherical_bwd(
    grad_rad_W1: Any, rad_basis: Any, weight: Any, wrt: Wrt = None, *, out: Out = None
) -> Any:
    """rad_basis = g W^T, weight = rad_basis^T g; see `trigraph.basis_embedding_bwd`."""
    kernels = Kernels("gemnet", weight)
    fields = Fields("basis_embedding_spherical_bwd", wrt, out, {"rad_basis": rad_basis, "weight": weight}, kernels)
    _gradients(kernels, _rows(grad_rad_W1), _transposed(weight), (rad_basis, _rows(grad_rad_W1)), fields)
    return fields.result()


def basis_embedding_spherical_bwd2(
    gg_rad_basis: Any,
    gg_weight: Any,
    grad_rad_W1: Any,
    rad_basis: Any,
    weight: Any,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """Bilinear: each factor in turn replaced by its cotangent; see `trigraph.basis_embedding_bwd2`."""
    kernels = Kernels("gemnet", weight)
    like = {"grad_rad_W1": grad_rad_W1, "rad_basis": rad_basis, "weight": weight}
    fields = Fields("basis_embedding_spherical_bwd2", wrt, out, like, kernels)
    if fields.any_of("grad_rad_W1"):
        pairs = [(gg_rad_basis, _matrix(weight)), (rad_basis, _matrix(gg_weight))]
        product(kernels, pairs, _rows(fields["grad_rad_W1"]))
    _gradients(kernels, _rows(grad_rad_W1), _transposed(gg_weight), (gg_rad_basis, _rows(grad_rad_W1)), fields)
    return fields.result()


def _matrix(weight: Any) -> Any:
    """Return the weight as (num_radial, S*interm); None for None."""
    return None if weight is None else weight.reshape(len(weight), weight.shape[1] * weight.shape[2])


def _transposed(weight: Any) -> Any:
    return None if weight is None else _matrix(weight).T


def _rows(rad_W1: Any) -> Any:
    """(num_edges, interm, S) as (num_edges, interm*S)."""
    return rad_W1.reshape(len(rad_W1), rad_W1.shape[1] * rad_W1.shape[2])


# ---- basis embedding of triplets -------------------------------------------------------------------------------------


class _Basis(NamedTuple):
    """The inputs of basis_embedding_triplets, or their cotangents (any of which may be None)."""

    rad_basis: Any
    weight: Any
    sph_basis: Any


def basis_embedding_triplets_fwd(rad_basis: Any, weight: Any, sph_basis: Any, triplets: Any, *, out: Out = None) -> Any:
    """rad_W1[t] = A_e sph_basis[t]; see `trigraph.basis_embedding_fwd`."""
    call = _Embedding(_Basis(rad_basis, weight, sph_basis), None, triplets)
    fields = Fields(
        "basis_embedding_triplets_fwd",
        None,
        out,
        {"rad_W1": Like((triplets.num_members, call.interm), weight.dtype)},
        call.kernels,
    )
    call.run(None, {"output": fields["rad_W1"]})
    return fields.result()


def basis_embedding_triplets_bwd(
    grad_rad_W1: Any,
    rad_basis: Any,
    weight: Any,
    sph_basis: Any,
    triplets: Any,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """sph_basis = A_e^T g[t], rad_basis = G W^T, weight = rad_basis^T G; see `trigraph.basis_embedding_bwd`."""
    inputs = _Basis(rad_basis, weight, sph_basis)
    call = _Embedding(inputs, None, triplets)
    fields = Fields("basis_embedding_triplets_bwd", wrt, out, inputs._asdict(), call.kernels)
    call.run(grad_rad_W1, fields.arrays)
    return fields.result()


def basis_embedding_triplets_bwd2(
    gg_rad_basis: Any,
    gg_weight: Any,
    gg_sph_basis: Any,
    grad_rad_W1: Any,
    rad_basis: Any,
    weight: Any,
    sph_basis: Any,
    triplets: Any,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """Return the gradient of the first order's derivative along the cotangents; see `trigraph.basis_embedding_bwd2`."""
    inputs = _Basis(rad_basis, weight, sph_basis)
    call = _Embedding(inputs, _Basis(gg_rad_basis, gg_weight, gg_sph_basis), triplets)
    like = {"grad_rad_W1": grad_rad_W1, **inputs._asdict()}
    fields = Fields("basis_embedding_triplets_bwd2", wrt, out, like, call.kernels)
    renamed = {"output" if name == "grad_rad_W1" else name: array for name, array in fields.arrays.items()}
    call.run(grad_rad_W1, renamed)
    return fields.result()


@dataclass
class _Embedding:
    """The arguments of a call and the launches they need."""

    inputs: _Basis
    dots: _Basis | None  # second order
    triplets: Any

    @lazy
    def kernels(self) -> Kernels:
        return Kernels("gemnet", self.inputs.weight)

    @property
    def spherical(self) -> int:
        return int(self.inputs.weight.shape[1])

    @property
    def interm(self) -> int:
        return int(self.inputs.weight.shape[2])

    @lazy
    def units(self) -> Units:
        return Units(self.kernels, self.triplets)

    def run(self, g: Any, targets: dict[str, Any]) -> None:
        """Write the gradients, and as "output" the output or its derivative."""
        for name, array in targets.items():
            if name == "weight" or self.triplets.num_members == 0:
                array.fill(0)
        if self.triplets.num_members == 0 or not targets:
            return
        units, w, dots = self.units, _matrix(self.inputs.weight), self.dots or _Basis(None, None, None)
        w_1, second = _matrix(dots.weight), self.dots is not None
        rad, rad_1 = units.spread(self.inputs.rad_basis), units.spread(dots.rad_basis)
        partial = units.partial(targets.get("rad_basis"))
        with Total(self.kernels, targets.get("weight")) as total:
            for first, count, rows in units.blocks((4 * w.shape[1] + w.size // ROWS) * w.itemsize):
                here, here_1 = rad[rows], None if rad_1 is None else rad_1[rows]
                if "output" in targets or "sph_basis" in targets:
                    a = self._product([(here, w)], count)
                    a_1 = self._product([(here_1, w), (here, w_1)], count) if second else None
                    self._triplets(first, count, (a, a_1), g, targets)
                if "rad_basis" in targets or "weight" in targets:
                    outer = self._outer(first, count, g, self.inputs.sph_basis)
                    outer_1 = self._outer(first, count, g, dots.sph_basis)
                if partial is not None:
                    pairs = [(outer_1, w.T), (outer, _transposed(dots.weight))] if second else [(outer, w.T)]
                    product(self.kernels, pairs, partial[rows])
                if "weight" in targets:
                    pairs = [(here, outer_1), (here_1, outer)] if second else [(here, outer)]
                    add_products(self.kernels, pairs, total)
        if partial is not None:
            units.collect(partial, targets["rad_basis"])

    def _product(self, pairs: Sequence[Pair], count: int) -> Any:
        """Return the sum of products with the weights, one row for each unit; None if there are none."""
        if not given(pairs):
            return None
        out = self.kernels.xp.empty((count, self.spherical * self.interm), self.inputs.weight.dtype)
        product(self.kernels, pairs, out)
        return out

    def _triplets(self, first: int, count: int, matrices: Pair, g: Any, targets: dict[str, Any]) -> None:
        """Write what belongs to the triplets of a block of units."""
        (a, a_1), sph = matrices, self.inputs.sph_basis
        sph_1 = self.dots.sph_basis if self.dots else None
        if "output" in targets:
            pairs = [(sph, a_1), (sph_1, a)] if self.dots else [(sph, a)]
            shape = (self.interm, self.spherical, self.spherical, 1)
            self._embed(first, count, pairs, shape, targets["output"])
        if "sph_basis" in targets:
            pairs = [(g, a_1)] if self.dots else [(g, a)]
            shape = (self.spherical, self.interm, 1, self.spherical)
            self._embed(first, count, pairs, shape, targets["sph_basis"])

    def _embed(self, first: int, count: int, pairs: Sequence[Pair], shape: tuple[int, ...], out: Any) -> None:
        """See kernel gemnet_embed; `shape` is num_y, num_x, y_stride, x_stride."""
        both = [*pairs, (None, None)][:2]
        span = *self.units.pieces.cut, self.units.order, np.int64(first)
        self._launch("gemnet_embed", count, Tile.of(SIDE, shape[0]).threads, (*both[0], *both[1], *span, *shape, out))

    def _outer(self, first: int, count: int, g: Any, sph_basis: Any) -> Any:
        """See kernel gemnet_outer; None without a basis."""
        if sph_basis is None:
            return None
        out = self.kernels.xp.empty((count, self.interm * self.spherical), g.dtype)
        span = *self.units.pieces.cut, self.units.order, np.int64(first)
        args = (g, sph_basis, *span, self.interm, self.spherical, out)
        self._launch("gemnet_outer", count, Tile.of(self.interm, self.spherical).threads, args)
        return out

    def _launch(self, kernel: str, count: int, threads: int, args: tuple[Any, ...]) -> None:
        types = (self.inputs.weight.dtype, self.units.pieces.offsets.dtype)
        self.kernels.launch(kernel, types, (count,), (threads,), args)


# ---- bilinear --------------------------------------------------------------------------------------------------------


class _Factors(NamedTuple):
    """The inputs of interaction_bilinear, or their cotangents (any of which may be None)."""

    rad_W1: Any
    sph: Any
    m: Any
    weight: Any


def interaction_bilinear_fwd(
    rad_W1: Any, sph: Any, m: Any, weight: Any, triplets: Any, atoms: Any = None, idx_in: Any = None, *, out: Out = None
) -> Any:
    """m_ca = sum over the output's units of P W^T; see `trigraph.interaction_bilinear_fwd`."""
    call = _Bilinear(_Factors(rad_W1, sph, m, weight), None, triplets, atoms, idx_in)
    outputs = triplets if atoms is None else atoms
    fields = Fields(
        "interaction_bilinear_fwd",
        None,
        out,
        {"m_ca": Like((outputs.num_segments, len(weight)), weight.dtype)},
        call.kernels,
    )
    call.run(None, {"output": fields["m_ca"]})
    return fields.result()


def interaction_bilinear_bwd(
    grad_m_ca: Any,
    rad_W1: Any,
    sph: Any,
    m: Any,
    weight: Any,
    triplets: Any,
    atoms: Any = None,
    idx_in: Any = None,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """First order of the module's formulas; see `trigraph.interaction_bilinear_bwd`."""
    inputs = _Factors(rad_W1, sph, m, weight)
    call = _Bilinear(inputs, None, triplets, atoms, idx_in)
    fields = Fields("interaction_bilinear_bwd", wrt, out, inputs._asdict(), call.kernels)
    call.run(grad_m_ca, fields.arrays)
    return fields.result()


def interaction_bilinear_bwd2(
    gg_rad_W1: Any,
    gg_sph: Any,
    gg_m: Any,
    gg_weight: Any,
    grad_m_ca: Any,
    rad_W1: Any,
    sph: Any,
    m: Any,
    weight: Any,
    triplets: Any,
    atoms: Any = None,
    idx_in: Any = None,
    wrt: Wrt = None,
    *,
    out: Out = None,
) -> Any:
    """Second order of the module's formulas; see `trigraph.interaction_bilinear_bwd2`."""
    inputs = _Factors(rad_W1, sph, m, weight)
    call = _Bilinear(inputs, _Factors(gg_rad_W1, gg_sph, gg_m, gg_weight), triplets, atoms, idx_in)
    fields = Fields("interaction_bilinear_bwd2", wrt, out, {"grad_m_ca": grad_m_ca, **inputs._asdict()}, call.kernels)
    renamed = {"output" if name == "grad_m_ca" else name: array for name, array in fields.arrays.items()}
    call.run(grad_m_ca, renamed)
    return fields.result()


@dataclass
class _Bilinear:
    """The arguments of a call and the launches they need."""

    inputs: _Factors
    dots: _Factors | None  # second order
    triplets: Any
    atoms: Any
    idx_in: Any

    @lazy
    def kernels(self) -> Kernels:
        return Kernels("gemnet", self.inputs.weight)

    @lazy
    def sizes(self) -> tuple[int, int, int]:
        """interm, num_spherical and emb_in."""
        _, interm, spherical = self.inputs.rad_W1.shape
        return interm, spherical, self.inputs.m.shape[1]

    @lazy
    def units(self) -> Units:
        return Units(self.kernels, self.triplets, self.atoms)

    def empty(self, *shape: int) -> Any:
        """Workspace."""
        return self.kernels.xp.empty(shape, self.inputs.weight.dtype)

    def run(self, g: Any, targets: dict[str, Any]) -> None:
        """Write the gradients, and as "output" the output or its derivative."""
        for name, array in targets.items():
            if name == "weight" or self.triplets.num_members == 0:
                array.fill(0)
        if self.triplets.num_members == 0 or not targets:
            return
        targets = dict(targets)
        m, rad_W1 = targets.get("m"), targets.get("rad_W1")
        if self.idx_in is not None and m is not None:
            targets["m"] = self.empty(self.triplets.num_members, m.shape[1])
        if rad_W1 is not None:
            targets["rad_W1"] = _rows(rad_W1)
        self._run(g, targets)
        if self.idx_in is not None and m is not None:
            sums.gather(self.kernels, targets["m"], members(self.idx_in), m)

    def _run(self, g: Any, targets: dict[str, Any]) -> None:
        """`run` with a gradient in m for each triplet."""
        units, dots, w = self.units, self.dots or _Factors(None, None, None, None), self.inputs.weight
        g = units.spread(g)
        per_edge = self.atoms is None and units.cut
        partial = units.partial(targets.get("output"))
        radial = targets.get("rad_W1")
        partial_radial = units.partial(radial) if per_edge else radial
        inner = {**targets, "rad_W1": partial_radial} if radial is not None else targets
        per_unit = (4 if self.dots else 2) * w.shape[1] + w.size // ROWS
        with Total(self.kernels, targets.get("weight")) as total:
            for first, count, rows in units.blocks(per_unit * w.itemsize):
                if partial is not None or "weight" in targets:
                    p = self._products(first, count, self.dots is not None)
                if partial is not None:
                    p_0 = None if dots.weight is None else self._products(first, count, False)
                    pairs = [(p, w.T), (p_0, None if p_0 is None else dots.weight.T)]
                    product(self.kernels, pairs, partial[rows])
                if "weight" in targets:
                    add_products(self.kernels, [(g[rows], p)], total)
                if {"rad_W1", "sph", "m"} & targets.keys():
                    self._gradients(first, count, g[rows], inner, per_edge)
        if partial is not None:
            units.collect(partial, targets["output"])
        if per_edge and radial is not None:
            units.collect(partial_radial, radial)

    def _products(self, first: int, count: int, dot: bool) -> Any:
        """P of a block of units, or its derivative."""
        interm, _, emb_in = self.sizes
        p, tile = self.empty(count, interm * emb_in), Tile.of(interm, emb_in)
        radial = (self.inputs.rad_W1, self.dots.rad_W1) if dot and self.dots else (None, self.inputs.rad_W1)
        args = (*radial, *self._arrays(dot), np.int64(first), *self.sizes, *tile, p)
        self._launch("gemnet_products", count * tile.tiles(interm, emb_in), tile.threads, args, self._spare)
        return p

    def _gradients(self, first: int, count: int, g: Any, targets: dict[str, Any], by_unit: bool) -> None:
        """Write the gradients in rad_W1, in sph and, of each triplet, in m."""
        interm, spherical, emb_in = self.sizes
        weights = (self.inputs.weight, self.dots.weight) if self.dots else (None, self.inputs.weight)
        q = [None if w is None else self.kernels.matmul(g, w) for w in weights]
        arrays = (*self._arrays(True), np.int64(first), *self.sizes)
        threads = Tile.of(max(interm, spherical), emb_in).threads
        if "rad_W1" in targets:
            self._launch("gemnet_radial", count, threads, (*q, *arrays, by_unit, targets["rad_W1"]), self._spare)
        if "sph" in targets or "m" in targets:
            radial = self.inputs.rad_W1, self.dots.rad_W1 if self.dots else None
            args = (*q, *radial, *arrays, targets.get("sph"), targets.get("m"))
            self._launch("gemnet_triplets", count, threads, args)

    def _arrays(self, dot: bool) -> tuple[Any, ...]:
        """Arguments of kernels: basis and values with their derivatives, and where they are."""
        sph_1, m_1 = (self.dots.sph, self.dots.m) if dot and self.dots else (None, None)
        inputs = None if self.idx_in is None else self.idx_in.index
        return (self.inputs.sph, sph_1, self.inputs.m, m_1, *self.units.outputs, self.units.order, inputs)

    @lazy
    def _spare(self) -> int:
        """Bytes of two tiles, where an edge that is not cut has more triplets than a kernel adds in one run."""
        long = self.atoms is not None and self.triplets.max_size > RUN
        return 2 * SIDE * (SIDE + 4) * self.inputs.weight.itemsize if long else 0

    def _launch(self, kernel: str, count: int, threads: int, args: tuple[Any, ...], shared_mem: int = 0) -> None:
        types = (self.inputs.weight.dtype, self.units.pieces.offsets.dtype)
        self.kernels.launch(kernel, types, (count,), (threads,), args, shared_mem)
