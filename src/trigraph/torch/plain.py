"""Plain forms of all operators (`trigraph.plain`), computed by torch operations and trigraph's multilinear operators.

Plain forms yield third and higher derivatives; the operators of `trigraph.torch` yield the first two.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from trigraph import plain
from trigraph.table import DEFINITIONS, GRAPH_PARTS, GRAPHS, Definition
from trigraph.torch.graphs import assemble_graph, list_graph_tensors
from trigraph.torch.jets import (
    PARTS,
    Jet,
    JetFunctions,
    add_to_part,
    apply_multilinear,
    extend_elementwise,
    extend_linear,
    to_jet,
)
from trigraph.torch.library import OPERATORS_OF_TORCH
from trigraph.torch.signatures import SequentialVmapFunction, allow_nesting

Values = Mapping[str, Any]
# Maps each `Segments` argument to the name of its index array in `trigraph.plain`.
SEGMENT_INDEX_NAMES = {"triplets": "triplet_edge", "atoms": "atom_of_edge", "idx_in": "input_of_triplet"}


def _scatter_add(rows: Tensor, index: Tensor, num: int) -> Tensor:
    zeros = rows.new_zeros(num, *rows.shape[1:])
    if rows.is_cuda:  # unlike index_add, index_put is deterministic on CUDA: it sorts the indices
        return zeros.index_put((index,), rows, accumulate=True)
    return zeros.index_add(0, index, rows)


def _find_group_extrema(rows: Tensor, index: Tensor, num: int, reduction: str) -> Tensor:
    zeros, each = rows.new_zeros(num, *rows.shape[1:]), index[:, None].expand_as(rows)
    return zeros.scatter_reduce(0, each, rows, f"a{reduction}", include_self=False)


def _make_aggregate_graph_arrays(index: Tensor, num: int) -> tuple[Any, ...]:
    """Return the number of groups and the graph arrays for `_call_gno_aggregate`.

    The graph has an edge from source p to destination p for each row p, with kernel index[p].
    """
    # Tracing would make `len(index)` a constant, whereas `shape` stays symbolic.
    rows = torch.arange(index.shape[0] + 1, device=index.device)
    sizes = torch.zeros(num, dtype=index.dtype, device=index.device).index_add(0, index, torch.ones_like(index))
    offsets = torch.cat([rows[:1], sizes.cumsum(0)])
    return num, rows, index, offsets, torch.argsort(index, stable=True)


def _call_gno_aggregate(
    order: str, arrays: Sequence[Tensor], groups: Sequence[Any], widths: Sequence[int], **wanted: str
) -> Any:
    num, rows, index, offsets, positions = groups
    own = rows[:-1]
    graph = assemble_graph("CSC", (rows, own, index, own, rows, own, offsets, positions), (index.shape[0], num, 1, 0))
    keywords = {"graph": graph, "f_in": widths[0], "f_out": widths[1], "backend": "", **wanted}
    return OPERATORS_OF_TORCH[f"gno_aggregate_{order}"](arrays, keywords)


class _TrilinearDerivative(SequentialVmapFunction):
    """Derivative of the sum over rows p of a_p M_k(p) b_p with respect to a, b or M, where k(p) is the group of row p.

    `gno_aggregate` computes each derivative without storing a matrix per row. With shapes a (rows, A), b (rows, B) and
    M (groups, A, B), `reduction` is the index in (a, b, M) of the differentiated array; x and y are the other two.
    """

    @staticmethod
    def forward(which: int, x: Tensor, y: Tensor, *groups: Any) -> Tensor:
        if which == 2:
            kernel = x.new_zeros(groups[0], x.shape[1] * y.shape[1])
            widths = x.shape[1], y.shape[1]
            return _call_gno_aggregate("bwd", [y, x, kernel], groups, widths, wanted="kernel")[1].unflatten(1, widths)
        widths, kernel = (y.shape[1], y.shape[2]), y.flatten(1)
        if which == 1:
            return _call_gno_aggregate("fwd", [x, kernel], groups, widths)  # type: ignore[no-any-return]
        features = x.new_zeros(x.shape[0], widths[0])
        return _call_gno_aggregate("bwd", [x, features, kernel], groups, widths, wanted="features")[0]  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.which, ctx.number = inputs[0], inputs[3]
        saved = (*inputs[1:3], *inputs[4:])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        given = [k for k in range(3) if k != ctx.which]
        x, y, *arrays = ctx.saved_tensors
        values = {**dict(zip(given, (x, y), strict=True)), ctx.which: grad}
        grads: list[Tensor | None] = []
        for k, need in zip(given, ctx.needs_input_grad[1:3], strict=True):
            first, second = (values[n] for n in range(3) if n != k)
            grads.append(_differentiate_trilinear(k, first, second, (ctx.number, *arrays)) if need else None)
        return None, *grads, *(None for _ in range(5))

    @staticmethod
    @allow_nesting
    def jvp(ctx: Any, saved: Any, _: None, x_dot: Tensor | None, y_dot: Tensor | None, *__: None) -> Any:
        x, y, *arrays = saved
        groups = (ctx.number, *arrays)
        by_x = 0 if x_dot is None else _differentiate_trilinear(ctx.which, x_dot, y, groups)
        return by_x if y_dot is None else by_x + _differentiate_trilinear(ctx.which, x, y_dot, groups)


def _differentiate_trilinear(which: int, x: Tensor, y: Tensor, groups: Any) -> Tensor:
    return _TrilinearDerivative.apply(which, x, y, *groups)  # type: ignore[no-any-return]


_sum_outer_products, _multiply_by_group = partial(_differentiate_trilinear, 2), partial(_differentiate_trilinear, 1)


def _sum_jet_outer_products(a: Any, b: Any, groups: Any) -> Jet:
    """Extend `_sum_outer_products` to jets; one call multiplies a part of `a` by all parts of `b` that count."""
    a, b = to_jet(a), to_jet(b)
    sums: list[Tensor | None] = [None, None, None, None]
    for k in PARTS:
        others = [n for n in PARTS if not k & n and b.parts[n] is not None]
        if a.parts[k] is None or not others:
            continue
        columns = _sum_outer_products(a.parts[k], torch.cat([b.parts[n] for n in others], 1), groups).chunk(
            len(others), 2
        )
        for n, term in zip(others, columns, strict=True):
            add_to_part(sums, k | n, term)
    return Jet(sums)


class _SphericalBesselPair(SequentialVmapFunction):
    """Spherical Bessel functions j_l and j_(l+1), whose derivatives are computed from both values (DLMF 10.51.2)."""

    @staticmethod
    def forward(l: int, x: Tensor) -> tuple[Tensor, Tensor]:  # noqa: E741
        return plain.spherical_bessel(LIBRARY, l, x), plain.spherical_bessel(LIBRARY, l + 1, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[int, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.l = inputs[0]
        ctx.save_for_backward(inputs[1], *output)
        ctx.save_for_forward(inputs[1], *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_above: Tensor) -> tuple[None, Tensor]:
        x, j, above = ctx.saved_tensors
        return None, grad * (ctx.l / x * j - above) + grad_above * (j - (ctx.l + 2) / x * above)

    @staticmethod
    @allow_nesting
    def jvp(ctx: Any, saved: Any, _: None, x_dot: Tensor) -> tuple[Tensor, Tensor]:
        x, j, above = saved
        return x_dot * (ctx.l / x * j - above), x_dot * (j - (ctx.l + 2) / x * above)


def _compute_spherical_bessel(l: int, x: Any) -> Any:  # noqa: E741
    if not isinstance(x, Jet):
        return _SphericalBesselPair.apply(l, x)[0]
    values = x.parts[0]
    j, above = _SphericalBesselPair.apply(l, values)
    return extend_elementwise(
        lambda x: j,
        lambda j, x: l / x * j - above,
        lambda j, x: (l * (l - 1) / x**2 - 1) * j + 2 / x * above,
    )(x)


class _Harmonics(SequentialVmapFunction):
    """`trigraph.plain.harmonics`, with derivatives computed as products with constant matrices."""

    @staticmethod
    def forward(unit: Tensor, gradient: Tensor) -> Tensor:
        return plain.spherical_harmonics(LIBRARY, unit, math.isqrt(gradient.shape[0]))  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], output)
        ctx.save_for_forward(inputs[1], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        gradient, S = ctx.saved_tensors
        return torch.einsum("es,eks->ek", grad, _differentiate_harmonics(S, gradient)), None

    @staticmethod
    @allow_nesting
    def jvp(ctx: Any, saved: Any, unit_dot: Tensor, _: None) -> Tensor:
        gradient, S = saved
        return torch.einsum("ek,eks->es", unit_dot, _differentiate_harmonics(S, gradient))


def _differentiate_harmonics(S: Tensor, gradient: Tensor) -> Tensor:
    """Return the derivatives (rows, 3, s) of the harmonics S (rows, s) with respect to the three coordinates."""
    return (S @ gradient).unflatten(1, (3, -1))


def _compute_harmonics(unit: Any, degree: int) -> Any:
    values, *rest = to_jet(unit).parts
    assert values is not None
    constants = plain.build_harmonics_gradient_matrices(degree).transpose(1, 0, 2).reshape(degree**2, -1)
    gradient = torch.from_numpy(constants.copy()).to(values.device, values.dtype)
    S = _Harmonics.apply(values, gradient)
    if not isinstance(unit, Jet):
        return S
    by_unit = _differentiate_harmonics(S, gradient)
    first, second, mixed = (None if t is None else torch.einsum("ek,eks->es", t, by_unit) for t in rest)
    if first is not None and rest[1] is not None:
        curved = torch.einsum("ek,eks->es", rest[1], _differentiate_harmonics(first, gradient))
        mixed = curved if mixed is None else mixed + curved
    return Jet([S, first, second, mixed])


class _SoftmaxByDestination(SequentialVmapFunction):
    """Softmax whose derivatives use deviations from means, because the quotient rule suffers from cancellation."""

    @staticmethod
    def forward(logit: Tensor, index: Tensor, num: int) -> Tensor:
        return plain.softmax_by_destination(LIBRARY, logit, index, num)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.num = inputs[2]
        ctx.save_for_backward(inputs[1], output)
        ctx.save_for_forward(inputs[1], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        index, alpha = ctx.saved_tensors
        return alpha * _subtract_weighted_mean(alpha, grad, index, ctx.num), None, None

    @staticmethod
    @allow_nesting
    def jvp(ctx: Any, saved: Any, logit_dot: Tensor, _: None, __: None) -> Tensor:
        index, alpha = saved
        return alpha * _subtract_weighted_mean(alpha, logit_dot, index, ctx.num)


def _subtract_weighted_mean(alpha: Tensor, t: Tensor, index: Tensor, num: int) -> Tensor:
    """Return t minus its alpha-weighted mean over the rows with the same index."""
    return t - _scatter_add(alpha * t, index, num)[index]


def _compute_softmax_by_destination(logit: Any, index: Tensor, num: int) -> Any:
    values, *rest = to_jet(logit).parts
    alpha = _SoftmaxByDestination.apply(values, index, num)
    if not isinstance(logit, Jet):
        return alpha
    first, second, mixed = (None if t is None else _subtract_weighted_mean(alpha, t, index, num) for t in rest)
    if first is not None and second is not None:
        curved = _subtract_weighted_mean(alpha, first * second, index, num)
        mixed = curved if mixed is None else mixed + curved
    return Jet([alpha, *(None if t is None else alpha * t for t in (first, second, mixed))])


LIBRARY = plain.FrameworkFunctions(
    xp=JetFunctions(),
    scatter=extend_linear(_scatter_add),
    groups=_make_aggregate_graph_arrays,
    outer=lambda a, b, groups: (_sum_jet_outer_products if isinstance(b, Jet) else _sum_outer_products)(a, b, groups),
    times=lambda a, b, groups: apply_multilinear(lambda a, b: _multiply_by_group(a, b, groups), a, b),
    extremum=_find_group_extrema,
    constant=lambda x: x.detach(),  # for a jet, the value without derivatives
    polynomial=lambda terms, x: reduce(lambda y, term: y * x + term, terms.tolist(), torch.zeros_like(x)),
    harmonics=_compute_harmonics,
    softmax=_compute_softmax_by_destination,
    bessel=_compute_spherical_bessel,
    wide=extend_linear(torch.Tensor.double),
    array=extend_linear(
        lambda a, like: (a if isinstance(a, Tensor) else torch.from_numpy(a)).to(like.device, like.dtype)
    ),
)


def _list_graph_arrays_and_sizes(spec: Definition, keywords: Values) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the index arrays of the graphs, and `keywords` extended by the sizes of the graphs."""
    arrays: dict[str, Tensor] = {}
    kind = GRAPHS[spec.graph] if spec.graph else None
    for argument in kind.arguments if kind else ():
        graph = keywords[argument.name]
        if graph is None:
            continue
        named = dict(zip(GRAPH_PARTS[type(graph).__name__].arrays, list_graph_tensors(graph, False), strict=False))
        if argument.name in SEGMENT_INDEX_NAMES:
            named = {SEGMENT_INDEX_NAMES[argument.name]: named["index"]}
        arrays |= {n: t.long() for n, t in named.items() if t is not None}
    if "indices" in arrays:
        rows = torch.arange(arrays["offsets"].shape[0] - 1, device=arrays["offsets"].device)
        degrees = arrays["offsets"].diff()
        arrays["destinations"] = torch.repeat_interleave(rows, degrees, output_size=arrays["indices"].shape[0])
    # Add `max_parallel_edges`, the largest number of edges that a sum in `agg_edge_to_edge` excludes.
    flags = {n: getattr(keywords["graph"], n) for n in ("max_parallel_edges",) if spec.graph == "edges"}
    return arrays, {**keywords, **flags, **(kind.find_sizes(keywords) if kind else {})}


_convert_dtype = extend_linear(torch.Tensor.to)


def _make_plain_form(spec: Definition) -> Callable[[Values, Values], tuple[Tensor, ...]]:
    first = spec.inputs[0].name

    def compute_plain_outputs(values: Values, keywords: Values) -> tuple[Tensor, ...]:
        """Return the outputs for `values` (arrays) and `keywords` (graphs, attributes); 16-bit floats use float32."""
        arrays, sizes = _list_graph_arrays_and_sizes(spec, keywords)
        for name in (a.name for a in spec.inputs):
            if (t := values[name]) is not None:
                arrays[name] = _convert_dtype(t, torch.float32) if t.dtype.itemsize == 2 else t
        outputs = plain.PLAIN[spec.name](LIBRARY, arrays, sizes)
        return tuple(_convert_dtype(outputs[a.name], values[first].dtype) for a in spec.outputs)

    return compute_plain_outputs


def make_bwd2_contraction(
    spec: Definition, values: Values, keywords: Values, seeds: Values, mixed: Values
) -> tuple[dict[str, Tensor], Callable[[Values], Tensor]]:
    """Return the arrays that bwd2 depends on, by name, and a function that maps some of them to a number.

    For the operator F with Jacobian J, the number is <c_g, J a> + <g, D^2 F [a, c_x] + J b>, where a denotes the arrays
    gg_*, g the arrays grad_*, c_g the `seeds` of bwd2's fields grad_*, c_x the `seeds` of its other fields, and b the
    arrays `mixed`, one per input. Without b, it is the inner product of the seeds and bwd2's results.
    """
    names = [a.name for a in spec.inputs if values[a.name] is not None]
    grads = [f"grad_{a.name}" for a in spec.outputs]
    arrays = {n: values[n] for n in (*(f"gg_{n}" for n in names), *grads, *names) if values[n] is not None}

    def compute_bwd2_contraction(some: Values) -> Tensor:
        all_arrays = {**arrays, **some}
        parts = {n: (all_arrays[n], all_arrays.get(f"gg_{n}"), seeds.get(n), mixed.get(n)) for n in names}
        jets = {n: Jet(None if t is None else t.to(p[0].dtype) for t in p) for n, p in parts.items()}
        results: Any = PLAIN[spec.name]({**values, **jets}, keywords)
        number = arrays[names[0]].new_zeros(())
        for n, y in zip(grads, results, strict=True):
            for factor, part in ((seeds.get(n), y.parts[1]), (all_arrays[n], y.parts[3])):
                if factor is not None and part is not None:
                    number = number + (factor * part).sum()
        return number

    return arrays, compute_bwd2_contraction


PLAIN = {spec.name: _make_plain_form(spec) for spec in DEFINITIONS}
