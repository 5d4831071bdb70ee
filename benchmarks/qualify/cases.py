"""Small cases that run every kernel and are compared with the judge, for sanitizers on a device and in gpu-host."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from trigraph import CSC, EdgeGraph, Segments, gpu
from trigraph.benchmarks.qualify.place import Device
from trigraph.gpu import sums
from trigraph.gpu.instances import INSTANCES, TENSOR_SUFFIX, set_tensor_cores
from trigraph.table import DEFINITIONS, Operator
from trigraph.verification import tolerances
from trigraph.verification.cases import draw_case_on_graphs, find_half_dtype, list_half_dtypes
from trigraph.verification.judged import compute_with_judge, find_bwd3, list_all_operators
from trigraph.verification.subjects import backend_takes_dtype, convert_result_to_mapping

INDEX = {"float32": np.int32, "float64": np.int64}
WITH_INT, WITH_LONG = {"float", "float16", "bfloat16", "int"}, {"double", "long long"}
HUB, BROAD, MANY = [3, 0, 0, 0, 300, 128, 0, 1], [3, 0, 130], [1, 0, 2] * 90


@dataclass(frozen=True)
class SmallCase:
    """Small case of a family."""

    dtype: str  # float32 (with int32 graphs) or float64 (with int64 graphs)
    graph: Sequence[Any]  # in-degrees of nodes, pairs of nodes joined both ways, or numbers of triplets by edge
    sizes: Mapping[str, int]
    setting: Mapping[str, Any] = field(default_factory=dict)  # the same as for `verification.cases.draw_case_on_graphs`
    half: str | None = None  # half-precision dtype for arrays that support it
    has_nan_vector: bool = False  # whether an edge vector is NaN, which makes blocks sum over pairs of edges


def _make_gno_case(dtype: str, degrees: Sequence[int], d: int, hidden: int, f_in: int, f_out: int) -> SmallCase:
    return SmallCase(dtype, degrees, {"d": d, "hidden": hidden, "f_in": f_in, "f_out": f_out})


def _make_dimenet_case(
    dtype: str, joined: Sequence[Any], nodes: int, widths: tuple[int, ...], exclude: str | None
) -> SmallCase:
    sizes = dict(zip(("n_emb", "n_mid", "num_spherical", "num_radial"), widths, strict=True))
    return SmallCase(dtype, joined, {**sizes, "num_nodes": nodes, "envelope_exponent": 5}, {"exclude": exclude})


def _make_gat_case(
    dtype: str,
    degrees: Sequence[int],
    heads: tuple[int, int],
    concat: bool,
    activation: str,
    edges: bool,
    half: str | None = None,
) -> SmallCase:
    setting = {"concat_heads": concat, "activation": activation, "negative_slope": 0.3}
    sizes = dict(zip(("num_heads", "dim_head"), heads, strict=True))
    return SmallCase(dtype, degrees, sizes, setting if edges else {**setting, "edge_embedding": None}, half)


def _make_gemnet_case(dtype: str, triplets: Sequence[int], atoms: int, *widths: int) -> SmallCase:
    sizes = dict(zip(("interm", "num_spherical", "emb_in", "emb_out"), widths, strict=True))
    return SmallCase(dtype, triplets, {**sizes, "num_radial": 3, "num_outputs": atoms})


def _list_node_pairs(nodes: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(nodes) for j in range(i)]


# The cases include rows of two and three pieces ("hub"), several blocks of rows ("many"), isolated nodes, widths of 1
# and widths larger than a tile or a warp, and row sizes that are or are not multiples of 16 bytes.
CASES: dict[str, dict[str, SmallCase]] = {
    "gno": {
        "hub": _make_gno_case("float32", [3, 0, 0, 0, 300, 128, 0, 1], 3, 20, 3, 2),
        # These cases use the three tile shapes of matrix products.
        **{f"{hidden} units": _make_gno_case("float32", [2], 1, hidden, 6, 6) for hidden in (17, 64)},
        "many": _make_gno_case("float64", MANY, 1, 9, 2, 1),
        "wide": _make_gno_case("float32", [3, 0, 20], 2, 34, 35, 2),
        "slabs": _make_gno_case("float32", [1, 0, 20, *[1] * 14], 5, 24, 36, 64),  # whole slabs, and parts of a slab
        "tall": _make_gno_case("float64", [3, 0, 2], 1, 2, 9, 131),
        "narrow": _make_gno_case("float64", [1], 1, 1, 1, 1),
    },
    "dimenet": {
        # Parallel edges, self-loops, more edges per node than num_spherical; channels need two tiles, edges two blocks.
        "crystal": _make_dimenet_case("float32", _list_node_pairs(5) * 3 + [(1, 1), (2, 2)], 6, (33, 3, 3, 2), "node"),
        "molecule": _make_dimenet_case("float64", _list_node_pairs(5), 7, (5, 2, 8, 3), "node"),
        "dense": _make_dimenet_case("float64", _list_node_pairs(7) * 2, 7, (3, 2, 7, 1), "edge"),
        # Channels and the rows of the second weights need two tiles each; num_spherical is 7, as usual.
        "cluster": _make_dimenet_case(
            "float32", _list_node_pairs(12) + [(0, i) for i in range(5)], 12, (65, 9, 7, 1), "node"
        ),
        # Both weights need several tiles.
        **{
            f"wide, {dtype}": _make_dimenet_case(dtype, _list_node_pairs(4), 4, (70, 20, 5, 13), "edge")
            for dtype in INDEX
        },
        # Every node has more in-edges and more out-edges than num_spherical, so that all sums take linear time.
        "complete": _make_dimenet_case("float32", _list_node_pairs(10), 10, (3, 2, 7, 2), "node"),
        "spoilt": replace(
            _make_dimenet_case("float32", _list_node_pairs(10), 10, (3, 2, 7, 2), "node"), has_nan_vector=True
        ),
        # One node has so many edges that its sums are split, and one block has more nodes than its chunks have edges.
        "hub": _make_dimenet_case("float64", [(0, i) for i in range(1, 301)], 301, (2, 1, 2, 1), None),
        "pair": _make_dimenet_case("float32", [(0, 1)], 2, (1, 1, 1, 1), None),
        "alone": _make_dimenet_case("float32", [], 3, (2, 2, 2, 2), "edge"),
    },
    "gat": {
        "hub": _make_gat_case("float32", HUB, (2, 3), True, "LeakyReLU", True),
        "hub, wide": _make_gat_case("float32", HUB, (3, 4), False, "ELU", True),
        "broad": _make_gat_case("float64", BROAD, (2, 67), False, "sigmoid", False),
        "broad, wide": _make_gat_case("float64", BROAD, (2, 66), True, "tanh", True),
        "many": _make_gat_case("float64", MANY, (1, 1), True, "ReLU", False),
        "many heads": _make_gat_case("float64", [2, 140], (35, 1), True, "LeakyReLU", True),
        "broad float": _make_gat_case("float32", [2, 3], (1, 132), True, "ELU", False),
        "half": _make_gat_case("float32", HUB, (2, 3), True, "LeakyReLU", True, "float16"),
        "half, wide": _make_gat_case("float32", HUB, (2, 8), False, "ELU", True, "float16"),
        "brain": _make_gat_case("float32", BROAD, (2, 3), False, "tanh", False, "bfloat16"),
        "brain, wide": _make_gat_case("float32", BROAD, (3, 16), True, "sigmoid", True, "bfloat16"),
        **{  # all dtypes, concatenated and averaged heads, row sizes that are or are not multiples of 16 bytes
            f"{half or dtype}, {width}, {concat}": _make_gat_case(
                dtype, [3, 0, 2], (2, width), concat, "tanh", False, half
            )
            for dtype, half in (("float32", None), ("float64", None), ("float32", "float16"), ("float32", "bfloat16"))
            for width in (3, 8)
            for concat in (False, True)
        },
    },
    "weighted": {
        "hub": SmallCase("float32", HUB, {"dim": 5}),
        "hub, wide": SmallCase("float32", HUB, {"dim": 4}),
        "broad": SmallCase("float64", BROAD, {"dim": 67}),
        "broad, wide": SmallCase("float64", BROAD, {"dim": 66}),
        "many": SmallCase("float64", MANY, {"dim": 1}),
        "broad float": SmallCase("float32", [4, 3, 5], {"dim": 132}),
    },
    "gemnet": {
        "hub": _make_gemnet_case("float32", [3, 0, 0, 300, 128, 0, 1], 3, 7, 2, 5, 20),
        "many": _make_gemnet_case("float64", MANY, 4, 2, 1, 2, 1),
        "wide": _make_gemnet_case("float32", [3, 0, 20, 35], 2, 34, 49, 35, 2),
        "deep": _make_gemnet_case("float32", [5, 20], 1, 3, 18, 17, 5),
        "usual": _make_gemnet_case("float64", [5, 3, 18], 2, 16, 7, 33, 20),
        "narrow": _make_gemnet_case("float64", [1], 1, 1, 1, 1, 1),
        # Together with "hub", these two cases use the three tile shapes of matrix products.
        **{f"{width} outputs": _make_gemnet_case("float32", [2], 1, 7, 1, 5, width) for width in (40, 66)},
    },
}


def list_covered_instances(family: str) -> tuple[str, ...]:
    """Return the kernel instances that the cases run: float64 with int64, and other dtypes with int32 (half of all).

    Instances for SiLU and the neighbour search, which are not operators, have separate tests.
    """

    def is_covered(instance: str) -> bool:
        arguments = set(instance.partition("<")[2].removesuffix(">").split(", ")) - {""}
        types = {name for name in arguments if not name.isdigit()} - {"false", "true"}
        return types <= WITH_INT or types <= WITH_LONG

    return tuple(
        instance
        for instance in INSTANCES[family]
        if is_covered(instance) and not instance.startswith(("silu", "neighbor"))
    )


def _make_graphs_and_sizes(
    family: str, case: SmallCase, rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return graph objects, and sizes for operators without graphs."""
    index, count = INDEX[case.dtype], len(case.graph)
    if family == "dimenet":
        joined = np.array(case.graph, index).reshape(-1, 2)
        half = rng.standard_normal((count, 3))
        ends, vec = np.concatenate([joined, joined[:, ::-1]]), np.concatenate([half, -half]).astype(case.dtype)
        graph, order = EdgeGraph.from_unsorted(ends[:, 0].copy(), ends[:, 1].copy(), case.sizes["num_nodes"], vec=vec)
        return {"graph": graph, "vec": vec[order]}, {"num_edges": graph.num_edges}
    if family == "gemnet":  # most edges belong to the first atom, and some input rows are unused
        triplets = rng.permutation(np.repeat(np.arange(count, dtype=index), case.graph))
        atoms = case.sizes["num_outputs"]
        atom = rng.permutation(np.maximum(np.arange(count) - count + atoms, 0)).astype(index)
        inputs = len(triplets) // 2
        idx_in = Segments(rng.integers(0, inputs + 1, len(triplets)).astype(index), inputs + 2)
        graphs = {"triplets": Segments(triplets, count), "atoms": Segments(atom, atoms + 1), "idx_in": idx_in}
        return graphs, {"num_edges": count}
    # Many positions share the first edge row; some edge rows and sources are unused.
    offsets = np.cumsum([0, *case.graph]).astype(index)
    positions, sources = int(offsets[-1]), count + 2
    rows = rng.permutation(np.maximum(0, np.arange(positions) - positions // 2)).astype(index)
    indices = rng.integers(0, sources - 1, positions).astype(index)
    return {"graph": CSC(offsets, indices, sources, rows, positions)}, {"num_edges": positions}


def draw_case_arguments(family: str, name: str, seed: int = 3) -> dict[str, dict[str, Any]]:
    """Return the arguments of all operators, by definition and setting."""
    case, rng = CASES[family][name], np.random.default_rng(seed)
    graphs, sizes = _make_graphs_and_sizes(family, case, rng)
    made = {}
    for definition in (d for d in DEFINITIONS if d.family == family):
        halves = {a.name for op in list_all_operators(definition) for a in op.arguments if a.half and case.half}
        for setting in (case.setting,) if case.setting else definition.settings or ({},):
            drawn = draw_case_on_graphs(
                definition, graphs, {**case.sizes, **sizes}, setting, case.dtype, rng, half=case.half
            )
            values = {**drawn.values, **drawn.grads, **drawn.ggs, **drawn.gggs}
            if "vec" in values:
                values["vec"] = graphs["vec"].copy()
                values["vec"][:1] = np.nan if case.has_nan_vector else values["vec"][:1]
            if "attention_weights" in values:  # scale the weights so that several scores contribute to each softmax
                values["attention_weights"] = values["attention_weights"] / np.sqrt(
                    case.sizes["dim_head"], dtype=case.dtype
                )
            for half in halves.intersection(n for n, v in values.items() if v is not None):
                values[half] = values[half].astype(find_half_dtype(str(case.half)))
            made[", ".join([definition.name, *(f"{n}={v}" for n, v in setting.items())])] = values
    return made


def _iterate_argument_variants(
    op: Operator, values: Mapping[str, Any], forward: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (label, arguments) for calls with all arguments, with each cotangent alone, and with results of fwd."""
    arguments = {n: values.get(n) for n in op.parameter_names if n != "wrt"}
    yield "", arguments
    ggs = [n for n in arguments if n.startswith("gg_") and arguments[n] is not None]
    for name in ggs if len(ggs) > 1 and not op.definition.restrictions else ():
        yield f" of {name}", {n: None if n in ggs and n != name else v for n, v in arguments.items()}
    back = {a.name: forward.get(a.name) for a in op.arguments if a.given_back}
    if any(array is not None for array in back.values()):
        yield " with what was given back", {**arguments, **back}


def _compute_with_kernels(op: Operator, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an operator, computed by the kernels."""
    return convert_result_to_mapping(op, getattr(gpu, op.name)(**values))


def _compute_with_judge(op: Operator, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operator's fields from the judge, (3, ...): hi and lo of the value, and the sum of absolute terms."""
    arrays = {a.name for a in op.arguments}
    wide = {n: v.astype(np.float64) if n in arrays and v is not None else v for n, v in values.items()}
    return compute_with_judge(
        op, {n: v for n, v in wide.items() if not any(a.name == n and a.given_back for a in op.arguments)}
    )


def compute_fields_by_call(
    compute: Callable[[Operator, Mapping[str, Any]], dict[str, Any]], made: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the fields of every call of every operator."""
    collected: dict[str, dict[str, Any]] = {}
    for key, values in made.items():
        forward: dict[str, Any] = {}
        definition = next(d for d in DEFINITIONS if d.name == key.partition(",")[0])
        third = [op for op in (find_bwd3(definition),) if hasattr(gpu, op.name)]
        for op in (*list_all_operators(definition), *third):
            for label, arguments in _iterate_argument_variants(op, values, forward):
                fields = compute(op, arguments)
                forward = forward or fields
                collected[f"{key}: {op.name}{label}"] = fields
    return collected


def _assert_close_to_judge(what: str, got: Any, right: Any, third: bool) -> None:
    """Assert that integers are equal, or that the same numbers are finite and within the chunked sums' tolerance.

    In third derivatives, NaN may reach fewer numbers than in the judge.
    """
    if got.dtype.kind == "i":
        assert np.array_equal(got, right), what
        return
    value, _, scale = right
    half, finite = got.dtype.itemsize == 2, np.isfinite(value)
    assert (np.isfinite(got) >= finite if third else np.isfinite(got) == finite).all(), what
    # For a constant function of a NaN, the judge's scale is NaN; use the largest finite value as the scale.
    scale = np.where(np.isfinite(scale), scale, abs(value).max(initial=0, where=finite))
    bound = tolerances.eps("float32" if half else got.dtype.name) * tolerances.accuracy_tolerance(True, 0) * scale
    if half:  # sums are computed in float32 and rounded once
        unit = tolerances.eps(got.dtype.name) / 2
        bound += unit * np.maximum(abs(value), tolerances.tiny(got.dtype.name))
    with np.errstate(invalid="ignore"):
        good = abs(got.astype(np.float64) - value) <= bound + tolerances.tiny(got.dtype.name)
    assert good[finite].all(), f"{what}: differs from the judge by more than the tolerance"


@cache
def compute_judge_results(family: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the judge's results for a case, computed once per process."""
    return compute_fields_by_call(_compute_with_judge, draw_case_arguments(family, name))


def compare_kernels_with_judge(family: str, target: Device) -> dict[str, np.ndarray]:
    """Compare all cases of a family with the judge; return every array that the kernels computed.

    If the family has kernels for tensor cores, float32 cases are computed with and without these kernels.
    """
    collected: dict[str, np.ndarray] = {}
    tensor_kernels = any(TENSOR_SUFFIX in name for name in INSTANCES[family])
    with sums.small_blocks():  # splits small cases into several blocks
        for name, case in CASES[family].items():
            if case.half and not (
                case.half in list_half_dtypes() and backend_takes_dtype(target.backend, find_half_dtype(case.half))
            ):
                continue
            right = compute_judge_results(family, name)
            for tensor in (False, True) if case.dtype == "float32" and tensor_kernels else (False,):
                with set_tensor_cores(tensor):
                    computed = target.copy_to_host(
                        compute_fields_by_call(
                            _compute_with_kernels, target.move_to_device(draw_case_arguments(family, name))
                        )
                    )
                for what, fields in computed.items():
                    for field, got in fields.items():
                        key = f"{name}{', tensor cores' * tensor}: {what}, {field}"
                        if got is not None:
                            _assert_close_to_judge(key, got, right[what][field], "_bwd3" in what)
                            collected[key] = got
    return collected
