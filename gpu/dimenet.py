"""DimeNet++ on the device: radial basis, and the triplet sum at a cost linear in the number of edges.

Let s be real spherical harmonics of the edge directions: P_l(u_e.u_f) is the sum over the rows r of degree l of
weight_r s_r(u_e) s_r(u_f). Hence the sum over pairs of an in-edge f and an out-edge e of one node j,

    out_e[c] = sum_f sum_l Y_l(u_e.u_f) feature_f[l,c],
    feature_f[l,c] = x_f[c] q_f[l,c],    q_f[l,c] = sum_m W2[c,m] sum_n sbf_rad_f[l,n] W1[l,n,m],

splits into two sums over edges: the first computes the node's state Z[r,c] = weight_r sum_f s_r(u_f) feature_f[l(r),c],
which a block keeps in shared memory, and the second computes out_e from Z. The gradients of the features of in-edges
follow likewise from A[r,c] = weight_r sum_e s_r(u_e) grad_out_e[c]. The excluded pairs are subtracted. The block sums
over pairs instead (kernels/dimenet_triplets.cuh) if the subtraction would cancel, if values are not finite, or if the
node has few edges.

Second derivatives are the gradient of the derivative of bwd along the cotangents gg_. Names ending in _dot denote
derivatives along these cotangents; every kernel of bwd has a version that also computes them.
"""

from typing import Any

import numpy as np

from trigraph.gpu import sums
from trigraph.gpu.call import OperatorCall
from trigraph.gpu.dimenet_third import agg_edge_to_edge_bwd3 as agg_edge_to_edge_bwd3
from trigraph.gpu.sums import ROWS, ceil_divide, sum_rows
from trigraph.table.constants import DEGREES, PAD, PROJECTED, RADIALS, THREADS

USUAL_DEGREES = 7  # number of spherical degrees for which separate float32 instances exist
BLOCKS = 2048  # maximum number of blocks that sum gradients of weights; each block has its own copy of the gradient


# ---- radial basis ----------------------------------------------------------------------------------------------------


def radial_basis_fwd(call: OperatorCall) -> None:
    """Compute rbf = env sin(freq x) and sbf_rad = env N j_l(z x); see `trigraph.radial_basis_fwd`."""
    edges, radial, spherical, exponent = _list_radial_sizes(call)
    call.kernels.launch_elementwise(
        "dimenet_radial",
        (call.kernels.dtype,),
        edges * radial * (spherical + 1),
        dist=call.inputs.dist,
        freq=call.inputs.freq,
        rbf=call.fields["rbf"],
        sbf_rad=call.fields["sbf_rad"],
        num_edges=edges,
        num_radial=radial,
        num_spherical=spherical,
        envelope_exponent=exponent,
    )


def radial_basis_bwd(call: OperatorCall) -> None:
    """Compute gradients of dist and freq, or derivatives along the cotangents; see `trigraph.radial_basis_bwd`."""
    kernels, fields, inputs, dots = call.kernels, call.fields, call.inputs, call.dots
    edges, radial, spherical, exponent = _list_radial_sizes(call)
    types = (kernels.dtype, call.second)
    arguments = {
        "gg_dist": dots.dist,
        "gg_freq": dots.freq,
        "grad_rbf": call.grad,
        "dist": inputs.dist,
        "freq": inputs.freq,
        "num_edges": edges,
        "num_radial": radial,
        "envelope_exponent": exponent,
    }
    if fields.requests_any("grad_rbf", "grad_sbf_rad", "dist"):
        kernels.launch(
            "dimenet_radial_edge_gradients",
            types,
            (ceil_divide(edges, THREADS // radial),),
            (THREADS,),
            **arguments,
            grad_sbf_rad=call.values["grad_sbf_rad"],
            out_rbf=fields["grad_rbf"],
            out_sbf_rad=fields["grad_sbf_rad"],
            out_dist=fields["dist"],
            num_spherical=spherical,
        )
    fields.fill_zeros("freq")  # set the field to zero, because partial sums are added to it
    if "freq" in fields and edges:
        parts = kernels.empty(ceil_divide(edges, ROWS), radial)
        kernels.launch("dimenet_radial_freq_gradient", types, (len(parts),), (ROWS,), **arguments, parts=parts)
        sum_rows(kernels, parts, fields["freq"])


radial_basis_bwd2 = radial_basis_bwd


def radial_basis_bwd3(call: OperatorCall) -> None:
    """Compute the vector-Jacobian product of bwd2 with the cotangents ggg_; see `trigraph.radial_basis_bwd3`."""
    kernels, fields, inputs, dots, gggs = call.kernels, call.fields, call.inputs, call.dots, call.along
    edges, radial, spherical, exponent = _list_radial_sizes(call)
    blocks = ceil_divide(edges, THREADS // radial)
    parts = {n: kernels.empty(blocks, radial) if n in fields else None for n in ("gg_freq", "freq")}
    kernels.launch(
        "dimenet_radial_third",
        (kernels.dtype,),
        (blocks,),
        (THREADS,),
        dist=inputs.dist,
        gg_dist=dots.dist,
        ggg_dist=gggs.dist,
        freq=inputs.freq,
        gg_freq=dots.freq,
        ggg_freq=gggs.freq,
        grad_rbf=call.grad,
        ggg_grad_rbf=gggs.grad_rbf,
        grad_sbf_rad=call.values["grad_sbf_rad"],
        ggg_grad_sbf_rad=gggs.grad_sbf_rad,
        out_gg_dist=fields["gg_dist"],
        out_dist=fields["dist"],
        out_grad_rbf=fields["grad_rbf"],
        out_grad_sbf_rad=fields["grad_sbf_rad"],
        gg_freq_parts=parts["gg_freq"],
        freq_parts=parts["freq"],
        num_edges=edges,
        num_radial=radial,
        num_spherical=spherical,
        envelope_exponent=exponent,
    )
    if not edges:
        fields.fill_zeros("gg_freq", "freq")
        return
    for name, part in parts.items():
        if part is not None:
            sum_rows(kernels, part, fields[name], fresh=True)


def _list_radial_sizes(call: OperatorCall) -> tuple[int, ...]:
    """Return the numbers of edges, radial functions and spherical functions, and the exponent of the envelope."""
    names = ("num_edges", "num_radial", "num_spherical", "envelope_exponent")
    return tuple(call.sizes[name] for name in names)


# ---- triplets --------------------------------------------------------------------------------------------------------


def _compute_triplet_sums(call: OperatorCall) -> None:
    """Sum embedding[f] w over the in-edges f of each edge's source, subject to `exclude`, or compute the derivative."""
    _TripletLauncher(call).sum_features_to_out_edges(None, call.output)


def _compute_triplet_gradients(call: OperatorCall) -> None:
    """Compute the gradients of sum(grad_out out) or of its derivative; see `trigraph.agg_edge_to_edge_bwd`."""
    call.fields.fill_zeros("weights")  # set the field to zero, because partial sums are added to it
    if call.sizes["num_edges"]:
        _TripletLauncher(call).compute_gradients()


agg_edge_to_edge_fwd = agg_edge_to_edge_bwd2_grad = _compute_triplet_sums
agg_edge_to_edge_bwd = agg_edge_to_edge_bwd2 = agg_edge_to_edge_bwd2_main = _compute_triplet_gradients


class _TripletLauncher:
    """Data shared by the kernels of a call: arguments, sizes, and values computed once per edge."""

    def __init__(self, call: OperatorCall) -> None:
        self.kernels, self.graph, self.fields, self.grad = call.kernels, call.graph, call.fields, call.grad
        self.inputs, self.dots, self.second, self.dtype = call.inputs, call.dots, call.second, call.kernels.dtype
        names = ("num_edges", "n_emb", "n_mid", "num_spherical", "num_radial")
        self.edges, self.channels, self.mid, self.spherical, self.radial = (call.sizes[name] for name in names)
        self.tiles = ceil_divide(self.channels, 64 if self.dtype == np.float32 and not self.second else 32)
        graph, left = call.graph, call.graph.excluded_in_edges(call.values["exclude"])
        unit, unit_dot = self._compute_directions()
        projected, projected_dot = self._project_radial_basis()
        #: Arguments that all kernels over nodes take: the graph, edge values, second weights and sizes.
        self.arguments = {
            "src_offsets": graph.src_offsets,
            "dst_offsets": graph.dst_offsets,
            "dst_edge_index": graph.dst_edge_index,
            "left_start": left.start,
            "left_stop": left.stop,
            "unit": unit,
            "unit_dot": unit_dot,
            "projected": projected,
            "projected_dot": projected_dot,
            "embedding": self.inputs.embedding,
            "embedding_dot": self.dots.embedding,
            "up": self._transpose_and_pad(self._slice_second_weights(self.inputs.weights)),
            "up_dot": self._transpose_and_pad(self._slice_second_weights(self.dots.weights)),
            "num_edges": self.edges,
            "n_emb": self.channels,
            "n_mid": self.mid,
            "num_spherical": self.spherical,
        }

    def _allocate_if_wanted(self, *shape: int, wanted: bool = True) -> Any:
        return self.kernels.empty(*shape) if wanted else None

    def _compute_directions(self) -> tuple[Any, Any]:
        """Return unit vectors and, if there are cotangents, their derivatives."""
        unit, unit_dot = (
            self._allocate_if_wanted(self.edges, 3),
            self._allocate_if_wanted(self.edges, 3, wanted=self.dots.vec is not None),
        )
        vec = {"vec": self.inputs.vec, "vec_dot": self.dots.vec}
        self.kernels.launch_elementwise(
            "dimenet_directions", (self.dtype,), self.edges, **vec, unit=unit, unit_dot=unit_dot, num_edges=self.edges
        )
        return unit, unit_dot

    def _project_radial_basis(self) -> tuple[Any, Any]:
        """Return W1^T sbf_rad of each edge and degree, and its derivative."""
        shape = (self.edges, self.mid, DEGREES)
        projected, projected_dot = (
            self._allocate_if_wanted(*shape),
            self._allocate_if_wanted(*shape, wanted=self.second),
        )
        arguments = self._collect_input_arguments("sbf_rad", "weights") | {
            "projected": projected,
            "projected_dot": projected_dot,
        }
        grid = (ceil_divide(self.edges, PROJECTED), ceil_divide(self.mid, self._first_weight_tile_columns))
        self.kernels.launch("dimenet_project", (self.dtype,), grid, (THREADS,), **arguments)
        return projected, projected_dot

    def _choose_template_arguments(self, order: int) -> tuple[Any, ...]:
        usual = self.dtype == np.float32 and self.spherical == USUAL_DEGREES
        degrees = USUAL_DEGREES if usual else DEGREES
        return self.dtype, self.graph.src.dtype, order, degrees

    def _collect_input_arguments(self, *names: str) -> dict[str, Any]:
        """Return kernel arguments: the named inputs, their derivatives, and sizes."""
        inputs = {name: getattr(self.inputs, name) for name in names}
        dots = {f"{name}_dot": getattr(self.dots, name) for name in names}
        sizes = {"num_edges": self.edges, "n_mid": self.mid, "num_spherical": self.spherical, "num_radial": self.radial}
        return inputs | dots | sizes

    def _slice_second_weights(self, weights: Any) -> Any:
        """Return W2, whose rows belong to channels."""
        return None if weights is None else weights[self.spherical * self.radial :]

    def _transpose_and_pad(self, down: Any) -> Any:
        """Return the transposed weights, padded with zeros to full tiles."""
        if down is None:
            return None
        up = self._allocate_if_wanted(ceil_divide(len(down), PAD), self._second_weight_tile_rows, PAD)
        sizes = {"size": up.size, "rows": self._second_weight_tile_rows, "num_columns": len(down), "n_mid": self.mid}
        self.kernels.launch_elementwise("dimenet_transpose", (self.dtype,), up.size, down=down, up=up, **sizes)
        return up

    @property
    def _second_weight_tile_rows(self) -> int:
        """Number of rows in a tile of transposed second weights."""
        return ceil_divide(self.mid, DEGREES) * DEGREES

    @property
    def _first_weight_tile_columns(self) -> int:
        """Number of columns in a tile of W1."""
        return 32 // int(self.dtype.itemsize)

    def sum_features_to_out_edges(
        self, grad_out: Any, out: Any, grad_unit: Any = None, grad_unit_dot: Any = None
    ) -> None:
        """Sum the features of in-edges into `out` for each out-edge."""
        grid = (self.graph.num_nodes, self.tiles)
        order = 2 if self.second else 0 if grad_unit is None else 1
        more = {"grad_out": grad_out, "out": out, "grad_unit": grad_unit, "grad_unit_dot": grad_unit_dot}
        self.kernels.launch(
            "dimenet_out_edges", self._choose_template_arguments(order), grid, (THREADS,), **self.arguments, **more
        )

    def compute_in_edge_gradients(self, grad_unit: Any, grad_unit_dot: Any) -> None:
        """Sum the gradients of out-edges into the requested gradients of in-edges and weights."""
        fields, nodes, weights = self.fields, self.graph.num_nodes, self.fields["weights"]
        wanted = fields.requests_any("sbf_rad", "weights")
        shape = (
            self.edges,
            self.spherical,
            ceil_divide(self.mid, self._first_weight_tile_columns) * self._first_weight_tile_columns,
        )
        grad = self._allocate_if_wanted(*shape, wanted=wanted)
        grad_dot = self._allocate_if_wanted(*shape, wanted=wanted and self.second)
        per_block = 1 if weights is None else self._choose_nodes_per_block()
        blocks, width = ceil_divide(nodes, per_block), self.channels * self.mid
        parts, totals = (self._allocate_if_wanted(blocks, width, wanted=weights is not None) for _ in range(2))
        alone = self.kernels.xp.empty(self.edges, np.int32) if wanted else None
        self.kernels.launch(
            "dimenet_in_edges",
            self._choose_template_arguments(self.second),
            (blocks,),
            (THREADS,),
            **self.arguments,
            grad_out=self.grad,
            grad_embedding=fields["embedding"],
            grad_projected=grad,
            grad_projected_dot=grad_dot,
            grad_unit=grad_unit,
            grad_unit_dot=grad_unit_dot,
            parts=parts,
            totals=totals,
            edge_alone=alone,
            num_nodes=nodes,
            nodes_per_block=per_block,
        )
        grads = {"grad_projected": grad, "grad_projected_dot": grad_dot, "alone": alone}
        if fields.requests_any("sbf_rad"):
            arguments = self._collect_input_arguments("weights") | grads | {"out": fields["sbf_rad"]}
            grid = (ceil_divide(self.edges, PROJECTED), ceil_divide(self.radial, RADIALS))
            self.kernels.launch("dimenet_sbf_rad_gradient", (self.dtype,), grid, (THREADS,), **arguments)
        if weights is not None:
            self._sum_first_weight_gradient(grads, weights[: self.spherical * self.radial])
            sum_rows(self.kernels, totals, self._slice_second_weights(weights), self.mid)

    def _choose_nodes_per_block(self) -> int:
        """Return the number of nodes that share a block's copy of the gradient of the second weights, at most ROWS."""
        # A copy has 2 * channels * mid elements of at most 8 bytes; all copies use at most an eighth of WORKSPACE.
        blocks = max(1, min(BLOCKS, sums.WORKSPACE // (8 * 16 * self.channels * self.mid)))
        return min(ceil_divide(self.graph.num_nodes, blocks), ROWS)

    def _sum_first_weight_gradient(self, grads: dict[str, Any], out: Any) -> None:
        parts = self._allocate_if_wanted(ceil_divide(self.edges, ROWS), out.size)
        arguments = self._collect_input_arguments("sbf_rad") | grads | {"parts": parts}
        grid = (len(parts), ceil_divide(self.radial, RADIALS) * ceil_divide(self.mid, self._first_weight_tile_columns))
        self.kernels.launch("dimenet_weight_gradient_parts", (self.dtype,), grid, (THREADS,), **arguments)
        sum_rows(self.kernels, parts, out)

    def compute_gradients(self) -> None:
        # Gradients of the directions: all tiles of channels for out-edges, followed by all tiles for in-edges.
        fields, shape, vec = self.fields, (2 * self.tiles, self.edges, 3), self.fields["vec"]
        unit = self._allocate_if_wanted(*shape, wanted=vec is not None)
        unit_dot = self._allocate_if_wanted(*shape, wanted=vec is not None and self.second)
        if fields.requests_any("grad_out", "vec"):
            self.sum_features_to_out_edges(self.grad, fields["grad_out"], unit, unit_dot)
        if fields.requests_any("vec", "sbf_rad", "embedding", "weights"):
            self.compute_in_edge_gradients(*(None if a is None else a[self.tiles :] for a in (unit, unit_dot)))
        if vec is not None:
            grads = {"grad_unit": unit, "grad_unit_dot": unit_dot, "num_edges": self.edges, "parts": 2 * self.tiles}
            inputs = {"vec": self.inputs.vec, "vec_dot": self.dots.vec}
            arguments = inputs | grads | {"out": vec}
            self.kernels.launch_elementwise("dimenet_vec_gradient", (self.dtype,), self.edges, **arguments)
