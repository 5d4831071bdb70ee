"""Third derivatives of DimeNet++'s sum over triplets: see kernels/dimenet_third.cuh.

The kernels sum over pairs of edges. The algorithm of `trigraph.gpu.dimenet`, whose cost is linear in edges, would be
faster for nodes with dozens of edges, but the four components of its state exceed a block's shared memory.
"""

from typing import Any, NamedTuple

from trigraph.gpu.call import OperatorCall
from trigraph.gpu.sums import ROWS, ceil_divide, sum_rows
from trigraph.table.constants import THREADS

LANES = 32
WARPS = THREADS // LANES
PARTS = 4  # components of a hyper-dual number (kernels/hyper_dual.cuh)


class HyperDualWeights(NamedTuple):
    """Weights and their two directions (``HyperDualWeights`` in kernels/dimenet_third.cuh)."""

    value: Any
    along_a: Any
    along_c: Any
    n_emb: int
    n_mid: int
    num_radial: int
    num_spherical: int


class HyperDualRadialBasis(NamedTuple):
    """Radial part of the basis and its two directions (``HyperDualRadialBasis`` in kernels/dimenet_third.cuh)."""

    value: Any
    along_a: Any
    along_c: Any


def agg_edge_to_edge_bwd3(call: OperatorCall) -> None:
    """Compute the vector-Jacobian product of bwd2 with the cotangents ggg_; see `trigraph.agg_edge_to_edge_bwd3`."""
    fields = call.fields
    if not call.sizes["num_edges"]:
        fields.fill_zeros()
        return
    third = _ThirdDerivativeLauncher(call)
    third.compute_out_edge_fields()
    third.compute_in_edge_fields()
    if third.grad_unit is not None:
        third.compute_vec_gradient()


class _ThirdDerivativeLauncher:
    """Data shared by the kernels of a call: arguments, sizes, and values computed once per edge."""

    def __init__(self, call: OperatorCall) -> None:
        self.call, self.kernels, self.fields, self.graph = call, call.kernels, call.fields, call.graph
        names = ("num_edges", "n_emb", "n_mid", "num_spherical", "num_radial")
        self.edges, self.channels, mid, self.spherical, self.radial = (call.sizes[name] for name in names)
        self.rows, self.tiles = self.spherical * self.radial, ceil_divide(self.channels, LANES)
        self.widths = {"n_emb": self.channels, "num_spherical": self.spherical, "num_radial": self.radial}
        value, along_a, along_c = self.collect_input_arguments("weights").values()
        self.weights = HyperDualWeights(value, along_a, along_c, n_mid=mid, **self.widths)
        self.sbf_rad = HyperDualRadialBasis(*self.collect_input_arguments("sbf_rad").values())
        self.products = self.kernels.empty(self.rows, PARTS, self.channels)
        self.launch_elementwise("products", self.rows * self.channels, weights=self.weights, products=self.products)
        self.unit = self.kernels.empty(self.edges, 3, PARTS)
        self.launch_elementwise(
            "directions", self.edges, **self.collect_input_arguments("vec"), unit=self.unit, num_edges=self.edges
        )
        #: Features, which `compute_in_edge_fields` overwrites with the gradients of q.
        self.features = self.kernels.empty(self.edges, self.spherical, PARTS, self.channels)
        #: Gradients of the directions: all tiles of channels for out-edges, followed by all tiles for in-edges.
        shape = (2 * self.tiles, self.edges, 3, PARTS)
        self.grad_unit = self.kernels.empty(*shape) if self.fields.requests_any("gg_vec", "vec") else None

    def collect_input_arguments(self, name: str) -> dict[str, Any]:
        """Return an input and its two directions, keyed by kernel argument."""
        dots, gggs = self.call.dots, self.call.along
        return {
            name: getattr(self.call.inputs, name),
            f"gg_{name}": getattr(dots, name),
            f"ggg_{name}": getattr(gggs, name),
        }

    def launch_elementwise(self, kernel: str, count: int, /, **arguments: Any) -> None:
        self.kernels.launch_elementwise(f"dimenet_third_{kernel}", (self.kernels.dtype,), count, **arguments)

    def collect_output_arguments(self, name: str) -> dict[str, Any]:
        """Return the output fields of an input, keyed by kernel argument."""
        return {f"out_gg_{name}": self.fields[f"gg_{name}"], f"out_{name}": self.fields[name]}

    def sum_over_triplets(self, to_in: bool, **arguments: Any) -> None:
        """Launch the kernel that sums over the in-edges for each out-edge, or the reverse if `to_in`."""
        graph, call = self.graph, self.call
        left = graph.excluded_in_edges(call.values["exclude"])
        self.kernels.launch(
            "dimenet_third_triplet_sums",
            (self.kernels.dtype, graph.src.dtype, to_in),
            (ceil_divide(self.edges, WARPS), self.tiles),
            (THREADS,),
            src_offsets=graph.src_offsets,
            dst_offsets=graph.dst_offsets,
            ends=graph.dst if to_in else graph.src,
            dst_edge_index=graph.dst_edge_index,
            left_start=left.start,
            left_stop=left.stop,
            unit=self.unit,
            grad_out=call.grad,
            ggg_grad_out=call.along.grad_out,
            products=self.products,
            sbf_rad=self.sbf_rad,
            grad_unit=None if self.grad_unit is None else self.grad_unit[self.tiles if to_in else 0 :],
            num_edges=self.edges,
            **self.collect_input_arguments("embedding"),
            **self.widths,
            **arguments,
        )

    def compute_out_edge_fields(self) -> None:
        """Compute the requested fields of out-edges by sums over in-edges."""
        if not self.fields.requests_any("grad_out", "gg_vec", "vec"):
            return
        count = self.edges * self.spherical * self.channels
        more = {
            **self.collect_input_arguments("embedding"),
            **self.widths,
            "num_edges": self.edges,
            "features": self.features,
        }
        self.launch_elementwise("features", count, products=self.products, sbf_rad=self.sbf_rad, **more)
        none = dict.fromkeys(("grad_q", "out_gg_embedding", "out_embedding", "edge_alone"))
        self.sum_over_triplets(False, features=self.features, out_grad_out=self.fields["grad_out"], **none)

    def compute_in_edge_fields(self) -> None:
        """Compute all other requested fields by sums over out-edges."""
        radial, weights = (self.fields.requests_any(f"gg_{name}", name) for name in ("sbf_rad", "weights"))
        if not (radial or weights or self.fields.requests_any("gg_vec", "vec", "gg_embedding", "embedding")):
            return
        alone = self.kernels.xp.empty(self.edges, "int32") if radial or weights else None
        grad_q = None if alone is None else self.features
        more = {"grad_q": grad_q, "edge_alone": alone, "features": None, "out_grad_out": None}
        self.sum_over_triplets(True, **self.collect_output_arguments("embedding"), **more)
        arguments: dict[str, Any] = {"grad_q": grad_q, "alone": alone, "num_edges": self.edges, **self.widths}
        if radial:
            count = self.edges * self.spherical * LANES
            self.launch_elementwise(
                "sbf_rad_gradient",
                count,
                products=self.products,
                **self.collect_output_arguments("sbf_rad"),
                **arguments,
            )
        if weights:
            parts = self.kernels.empty(ceil_divide(self.edges, ROWS), self.products.size + 1)
            grid, types = (len(parts), ceil_divide(self.products.size // PARTS + 1, THREADS)), (self.kernels.dtype,)
            kernel = "dimenet_third_products_gradient"
            self.kernels.launch(kernel, types, grid, (THREADS,), parts=parts, sbf_rad=self.sbf_rad, **arguments)
            total = self.kernels.empty(parts.shape[1])
            sum_rows(self.kernels, parts, total, fresh=True)
            count = (self.rows + self.channels) * self.weights.n_mid
            more = {"weights": self.weights, "grad_products": total}
            self.launch_elementwise("weights_gradient", count, **more, **self.collect_output_arguments("weights"))

    def compute_vec_gradient(self) -> None:
        """Compute the gradients of the edge vectors from the gradients of the directions."""
        sizes = {"num_edges": self.edges, "parts": 2 * self.tiles}
        arguments = {**self.collect_input_arguments("vec"), **self.collect_output_arguments("vec"), **sizes}
        self.launch_elementwise("vec_gradient", self.edges, grad_unit=self.grad_unit, **arguments)
