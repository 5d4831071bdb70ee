"""Golden vectors: results of other programs, with which every backend is compared.

The vectors are read from the directory TRIGRAPH_GOLDEN, by default ``../shared/golden`` next to a checkout. The package
contains a subset, which is always compared; without the directory, all others are reported as skipped. Only the readers
in this file depend on the array layouts of other programs.
"""

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from slopecheck.outcome import CallOutcome
from slopecheck.record import Check
from trigraph.checks import find_symbol_sizes
from trigraph.gno_params import pack_gno_params
from trigraph.graphs import CSC
from trigraph.graphs.edge_graph import EdgeGraph
from trigraph.graphs.segments import Segments
from trigraph.table import FAMILIES, OPERATORS, evaluate_expression
from trigraph.verification import tolerances
from trigraph.verification.accuracy import (
    compute_largest_scaled_error,
    describe_wrong_dtype_or_shape,
    find_largest_error,
)
from trigraph.verification.judged import compute_with_judge
from trigraph.verification.subjects import Subject, call_subject

PACKAGED = Path(__file__).parent / "data" / "golden"


@dataclass(frozen=True)
class GoldenVector:
    """Arguments of an operator, and the fields computed by another program."""

    case: str
    operator: str
    values: Mapping[str, Any]  # arguments without `wrt`
    expected: Mapping[str, np.ndarray]  # results by field
    # Whether the other program used float32. If so, backends are compared in float32 and float64, by the largest error
    # relative to the largest value; otherwise, backends are compared elementwise in float64.
    single: bool = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes in which backends are compared with this vector."""
        return ("float32", "float64") if self.single else ("float64",)

    def convert_arguments(self, dtype: str) -> dict[str, Any]:
        """Return the arguments converted to a dtype, except integers; conversion from float32 to float64 is exact."""
        real = (n for n, v in self.values.items() if isinstance(v, np.ndarray) and v.dtype.kind == "f")
        return {**self.values, **{n: self.values[n].astype(dtype) for n in real}}

    # Cached properties depend only on fields, which never change.

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size by symbol."""
        op = OPERATORS[self.operator]
        return find_symbol_sizes(op, self.values)

    @cached_property
    def judged_triples(self) -> dict[str, np.ndarray]:
        """The judge's triples (hi, lo, scale) for the compared fields; integer fields are plain arrays."""
        return compute_with_judge(OPERATORS[self.operator], self.values, tuple(self.expected))

    def tolerance(self, subject: Subject | None, dtype: str) -> float:
        """Return the tolerance for a subject (None means the judge), in the units of `error`."""
        if self.single:
            return tolerances.golden_tolerance(dtype)
        terms = evaluate_expression(OPERATORS[self.operator].definition.terms, self.sizes)
        own = 0.0 if subject is None else tolerances.accuracy_tolerance(subject.chunked, terms)
        return own + tolerances.accuracy_tolerance(False, terms)

    def compute_error(self, got: np.ndarray, name: str) -> float:
        """Return a field's error relative to its scale, NaN if any element is NaN; or the number of wrong integers."""
        expected = self.expected[name]
        if expected.dtype.kind == "i":
            return float(np.count_nonzero(got != expected))
        if not self.single:
            triple = np.stack([expected, np.zeros_like(expected), self.judged_triples[name][2]])
            return compute_largest_scaled_error(got, triple, "float64")
        size = find_largest_error(abs(expected))
        return (
            find_largest_error(abs(got - np.asarray(expected, np.float64))) / size
            if size
            else find_largest_error(abs(got))
        )


def check_golden_vector(subject: Subject | None, vector: GoldenVector, dtype: str) -> list[Check]:
    """Compare a subject (None means the judge) with every field of a vector."""
    op = OPERATORS[vector.operator]
    if subject is None:
        integers = {f.name for f in op.fields if f.index}
        backend, precision = "judge", "real128"
        call = CallOutcome({n: t if n in integers else t[0] for n, t in vector.judged_triples.items()}, 0.0, "")
    else:
        backend, precision, call = subject.name, dtype, call_subject(subject, op, vector.convert_arguments(dtype))
    checks = []
    for field in (f for f in op.fields if f.name in vector.expected):
        kind = str(vector.values["graph"].offsets.dtype) if field.index else dtype
        note = call.problem or describe_wrong_dtype_or_shape(call.fields.get(field.name), field, vector.sizes, kind)
        error = math.inf if note else vector.compute_error(call.fields[field.name], field.name)
        tolerance = 0.0 if field.index else vector.tolerance(subject, dtype)
        check = Check(op.name, backend, precision, "golden", vector.case, field.name, error, tolerance)
        note = note or ("relative to the largest value" if vector.single else "")
        checks.append(replace(check, seconds=call.seconds, note=note))
    return checks


def find_golden_directory() -> Path | None:
    """Return the directory with all vectors: TRIGRAPH_GOLDEN, or ``../shared/golden`` next to a checkout."""
    named = os.environ.get("TRIGRAPH_GOLDEN")
    if named:
        return Path(named)
    roots = (Path(__file__).resolve().parent.parent, Path.cwd())
    candidates = (r.parent / "shared" / "golden" for r in roots if (r / "pyproject.toml").is_file())
    return next((d for d in candidates if d.is_dir()), None)


def find_golden_files() -> dict[str, Path]:
    """Return the existing files by name; packaged files take precedence over files in the directory."""
    places = [PACKAGED, *filter(None, [find_golden_directory()])]
    names = [name for family in FAMILIES for name in FILES[family]]
    candidates = ((name, place / f"{name}.npz") for name in names for place in reversed(places))
    return {name: path for name, path in candidates if path.is_file()}


def list_missing_vectors(families: Collection[str] | None = None) -> tuple[str, ...]:
    """Return the names of the missing vectors of some families (default: all), which are reported as skipped."""
    present = find_golden_files()
    return tuple(n for f in FAMILIES if families is None or f in families for n in FILES[f] if n not in present)


def list_missing_vector_failures() -> list[Check]:
    """Return failed checks for missing vectors if CI=true.

    Without a directory, only packaged vectors are compared. But if the directory exists or TRIGRAPH_GOLDEN is set, a
    missing vector is a failure instead of a skip if CI=true.
    """
    if os.environ.get("CI", "").lower() != "true" or find_golden_directory() is None:
        return []
    note = f"not in {find_golden_directory()}"
    return [
        Check(name, "", "float64", "golden", name, "", error=math.inf, tolerance=0.0, note=note)
        for name in list_missing_vectors()
    ]


def read_vectors(name: str, path: Path) -> Iterator[GoldenVector]:
    """Read the vectors of one file."""
    adapter = ADAPTERS.get(name.split("_")[0])
    if adapter is None:
        raise KeyError(f"no adapter for the golden vectors {name}")
    with np.load(path) as archive:
        yield from adapter(name, dict(archive))


def _parse_gno_vectors(name: str, z: Mapping[str, np.ndarray]) -> Iterator[GoldenVector]:
    """Read gno_*, where V and kernels have shape (..., f_out, f_in) and parameters form four blocks."""
    _, f_out, f_in = z["out_kappa"].shape

    def transpose_kernels(kernels: np.ndarray) -> np.ndarray:
        return np.reshape(kernels.transpose(0, 2, 1), (len(kernels), f_in * f_out))

    def pack_parameters(prefix: str) -> np.ndarray:
        V = z[f"{prefix}V"].transpose(1, 0, 2).reshape(f_in * f_out, -1)
        return pack_gno_params(z[f"{prefix}U"], z[f"{prefix}b_u"], V, z[f"{prefix}b_v"].T.reshape(-1))

    sizes = {"f_in": f_in, "f_out": f_out}
    edge = {"coords": z["in_dx"], "params": z["in_packed_params"], **sizes}
    graph = CSC(z["in_offsets"], z["in_indices"])
    kernel = transpose_kernels(z["out_kappa"])
    yield GoldenVector(name, "gno_kernel_fwd", edge, {"kernel": kernel})
    grads = {"coords": z["kappa_grad_dx"], "params": pack_parameters("kappa_grad_")}
    yield GoldenVector(name, "gno_kernel_bwd", {"grad_kernel": transpose_kernels(z["ct_kappa"]), **edge}, grads)
    nodes = {"features": z["in_features"], "kernel": kernel, "graph": graph, **sizes}
    yield GoldenVector(name, "gno_aggregate_fwd", nodes, {"message": z["out_message"]})
    back = {"grad_message": z["ct_message"], **nodes}
    yield GoldenVector(name, "gno_aggregate_bwd", back, {"features": z["grad_features"]})
    every = {"features": z["in_features"], "graph": graph, **edge}
    yield GoldenVector(name, "gno_message_fwd", every, {"message": z["out_message"]})
    grads = {"features": z["grad_features"], "coords": z["grad_dx"], "params": pack_parameters("grad_")}
    every = {"grad_message": z["ct_message"], **every}
    yield GoldenVector(name, "gno_message_bwd", every, grads)
    ggs = {"gg_features": z["gg_features"], "gg_coords": z["gg_dx"], "gg_params": pack_parameters("gg_")}
    grads2 = {"features": z["grad2_features"], "coords": z["grad2_dx"], "params": pack_parameters("grad2_")}
    expected = {"grad_message": z["grad2_ct_message"], **grads2}
    yield GoldenVector(name, "gno_message_bwd2", {**ggs, **every}, expected)


def _parse_athena_vectors(name: str, archive: Mapping[str, np.ndarray]) -> Iterator[GoldenVector]:
    """Read athena_gno, which uses Fortran shapes (features first), 1-based adjacency and float32."""
    for case in sorted({key.split("/")[0] for key in archive}):
        z = {key.split("/")[1]: value for key, value in archive.items() if key.startswith(f"{case}/")}
        _, _, f_in, f_out, num_nodes, num_edges, _ = (int(n) for n in z["dims"])
        sources, rows = z["adj_ja"] - 1
        label, sizes = f"athena {case}", {"f_in": f_in, "f_out": f_out}
        edge = {"coords": z["coords"].T, "params": z["params"], **sizes}
        yield GoldenVector(label, "gno_kernel_fwd", edge, {"kernel": z["kernel"].T}, True)
        grads = {"coords": z["grad_coords"].T, "params": z["grad_params"]}
        yield GoldenVector(label, "gno_kernel_bwd", {"grad_kernel": z["up_kernel"].T, **edge}, grads, True)
        graph = CSC(z["adj_ia"] - 1, sources, num_nodes, rows, num_edges)
        message = {"message": z["agg"].T}
        nodes = {"features": z["features"].T, "kernel": z["kernel"].T, "graph": graph, **sizes}
        yield GoldenVector(label, "gno_aggregate_fwd", nodes, message, True)
        up = {"grad_message": z["up_agg"].T}
        grads = {"features": z["grad_features"].T, "kernel": z["grad_edge_kernels"].T}
        yield GoldenVector(label, "gno_aggregate_bwd", {**up, **nodes}, grads, True)
        every = {"features": z["features"].T, "graph": graph, **edge}
        yield GoldenVector(label, "gno_message_fwd", every, message, True)
        chain = {"coords": z["chain_grad_coords"].T, "params": z["chain_grad_params"]}
        yield GoldenVector(label, "gno_message_bwd", {**up, **every}, {"features": grads["features"], **chain}, True)


def _parse_dimenet_vectors(name: str, z: Mapping[str, np.ndarray]) -> Iterator[GoldenVector]:
    """Read dimenet_*: the radial basis, or the aggregation (edge vectors determine the reverse edges)."""
    if name == "dimenet_radial_basis":
        yield from _parse_radial_basis_vectors(name, z)
        return
    n_mid = {"num_spherical": 7, "num_radial": 6}
    graph = EdgeGraph(z["in_src"], z["in_dst"], int(z["in_num_nodes"]), vec=z["in_vec"])
    # In the files, sbf_rad has its name in the original program, rbf.
    names = {"vec": "vec", "sbf_rad": "rbf", "embedding": "embedding", "weights": "weights"}
    values = {n: z[f"in_{of}"] for n, of in names.items()} | {"graph": graph, **n_mid, "exclude": str(z["in_exclude"])}
    yield GoldenVector(name, "agg_edge_to_edge_fwd", values, {"out": z["out_embedding"]})
    back = {"grad_out": z["ct_out"], **values}
    yield GoldenVector(name, "agg_edge_to_edge_bwd", back, {n: z[f"grad_{of}"] for n, of in names.items()})
    expected = {"grad_out": z["grad2_ct_out"], **{n: z[f"grad2_{of}"] for n, of in names.items()}}
    yield GoldenVector(
        name, "agg_edge_to_edge_bwd2", {f"gg_{n}": z[f"gg_{of}"] for n, of in names.items()} | back, expected
    )
    seed = {"gg_sbf_rad": z["gg_rbf"], "gg_embedding": z["gg_embedding"]}
    expected = {"grad_out": z["seed2_grad_grad_out"]}
    yield GoldenVector(name, "agg_edge_to_edge_bwd2_grad", {**seed, **values}, expected)
    expected = {n: z[f"seed2_grad_{of}"] for n, of in names.items() if n != "vec"}
    yield GoldenVector(name, "agg_edge_to_edge_bwd2_main", {**seed, **back}, expected)


def _parse_radial_basis_vectors(name: str, z: Mapping[str, np.ndarray]) -> Iterator[GoldenVector]:
    values = {"dist": z["in_dist"][:, 0], "freq": z["in_freq"], "num_spherical": 7, "envelope_exponent": 5}
    yield GoldenVector(name, "radial_basis_fwd", values, {"rbf": z["out_rbf"], "sbf_rad": z["out_sbf_rad"]})
    back = {"grad_rbf": z["ct_rbf"], "grad_sbf_rad": z["ct_sbf_rad"], **values}
    expected = {"dist": z["grad_dist"][:, 0], "freq": z["grad_freq"]}
    yield GoldenVector(name, "radial_basis_bwd", back, expected)
    expected = {
        "grad_rbf": z["grad2_ct_rbf"],
        "grad_sbf_rad": z["grad2_ct_sbf_rad"],
        "dist": z["grad2_dist"][:, 0],
        "freq": z["grad2_freq"],
    }
    ggs = {"gg_dist": z["gg_dist"][:, 0], "gg_freq": z["gg_freq"]}
    yield GoldenVector(name, "radial_basis_bwd2", {**ggs, **back}, expected)


def _parse_gat_vectors(name: str, z: Mapping[str, np.ndarray]) -> Iterator[GoldenVector]:
    """Read gat_*, with scores (heads, positions) before and after the softmax; some files lack edge features."""
    names = [n for n in ("src_embedding", "dst_embedding", "attention_weights", "edge_embedding") if f"in_{n}" in z]
    absent = {"edge_embedding": None} if len(names) == 3 else {}
    values: dict[str, Any] = {n: z[f"in_{n}"] for n in names} | absent
    values |= {
        "graph": CSC(z["in_offsets"], z["in_indices"], int(z["in_num_src_nodes"])),
        "num_heads": int(z["in_num_heads"]),
        "concat_heads": bool(z["in_concat_heads"]),
        "activation": str(z["in_activation"]),
        "negative_slope": float(z["in_negative_slope"]),
    }
    scores = np.stack([z["out_pre_softmax"], z["out_post_softmax"]])
    out = {"output_embedding": z["out_embedding"], "softmax_scores": scores}
    yield GoldenVector(name, "mha_gat_n2n_fwd", values | {"return_softmax_scores": True}, out)
    back = {"grad_output_embedding": z["ct_out"], **values}
    expected = {n: z[f"grad_{n}"] for n in names}
    yield GoldenVector(name, "mha_gat_n2n_bwd", {**back, "softmax_scores": None}, expected)
    yield GoldenVector(f"{name}, scores given", "mha_gat_n2n_bwd", {**back, "softmax_scores": scores}, expected)
    expected = {"grad_output_embedding": z["grad2_ct_out"], **{n: z[f"grad2_{n}"] for n in names}}
    ggs = {f"gg_{n}": z[f"gg_{n}"] for n in names} | {f"gg_{n}": None for n in absent}
    yield GoldenVector(name, "mha_gat_n2n_bwd2", {**ggs, **back}, expected)


def _parse_weighted_vectors(name: str, z: Mapping[str, np.ndarray]) -> Iterator[GoldenVector]:
    """Read weighted_*: every aggregation (mean by weight), including second derivatives for sum and mean."""
    names = ("embedding", "edge_weight")
    graph = CSC(z["in_offsets"], z["in_indices"], int(z["in_num_src_nodes"]))
    for op in ("sum", "mean", "min", "max"):
        case = f"{name}, {op}"
        values: dict[str, Any] = {n: z[f"in_{n}"] for n in names}
        values |= {"graph": graph, "op": op, "mean_by": "weight"}
        out = {"output_embedding": z[f"out_{op}"]}
        if op == "mean":
            out["node_degree"] = z["out_node_degree"]
        elif op != "sum":
            out["output_extrema_location"] = z[f"out_{op}_edge_location"]
        yield GoldenVector(case, "agg_weighted_n2n_fwd", values, out)
        back = {"grad_output_embedding": z["ct_out"], **values}
        expected = {n: z[f"grad_{op}_{n}"] for n in names}
        absent = dict.fromkeys(("output_embedding", "node_degree", "output_extrema_location"))
        yield GoldenVector(case, "agg_weighted_n2n_bwd", {**back, **absent}, expected)
        yield GoldenVector(f"{case}, outputs given", "agg_weighted_n2n_bwd", {**back, **absent, **out}, expected)
        if op in ("sum", "mean"):
            expected = {"grad_output_embedding": z[f"grad2_{op}_ct_out"]}
            expected |= {n: z[f"grad2_{op}_{n}"] for n in names}
            yield GoldenVector(case, "agg_weighted_n2n_bwd2", {f"gg_{n}": z[f"gg_{n}"] for n in names} | back, expected)


def _parse_gemnet_vectors(name: str, z: Mapping[str, np.ndarray]) -> Iterator[GoldenVector]:
    """Read gemnet_*: BasisEmbedding and the bilinear layer; rad_W1 is padded by atom if edges are summed into atoms.

    Derivatives are those of the composed layers; the judge computes the intermediate values that the files lack.
    """
    num_spherical = z["in_sph_basis"].shape[1]
    rad_W1, atoms = z["out_rad_W1"], None
    if "in_num_atoms" in z:
        atoms = Segments(z["in_idx_agg2_outer"], int(z["in_num_atoms"]))
        padded = rad_W1.reshape(*rad_W1.shape[:2], -1, num_spherical)
        rad_W1 = padded[z["in_idx_agg2_outer"], :, z["in_idx_agg2_inner"]]
    triplets = Segments(z["in_idx_agg_outer"], int(z["in_num_edges"]))
    radial = {"rad_basis": z["in_rad_basis"], "weight": z["in_weight_radial_only"]}
    yield GoldenVector(name, "basis_embedding_radial_fwd", radial, {"rad_W1": z["out_radial_only"]})
    embedding = {"rad_basis": z["in_rad_basis"], "weight": z["in_basis_weight"]}
    yield GoldenVector(name, "basis_embedding_spherical_fwd", embedding, {"rad_W1": rad_W1})
    if "out_sph_W1_per_triplet" in z:
        values = {**embedding, "sph_basis": z["in_sph_basis"], "triplets": triplets}
        yield GoldenVector(name, "basis_embedding_triplets_fwd", values, {"rad_W1": z["out_sph_W1_per_triplet"]})

    # Names of the bilinear layer's factors in the vectors, except rad_W1.
    factors = {"sph": "sph_basis", "m": "m", "weight": "bilinear_weight"}
    graphs = {"triplets": triplets, "atoms": atoms, "idx_in": None}
    bilinear = {"rad_W1": rad_W1, **{n: z[f"in_{f}"] for n, f in factors.items()}, **graphs}
    yield GoldenVector(name, "interaction_bilinear_fwd", bilinear, {"m_ca": z["out_m_ca"]})
    back = {"grad_m_ca": z["ct_m_ca"], **bilinear}
    yield GoldenVector(name, "interaction_bilinear_bwd", back, {n: z[f"grad_{f}"] for n, f in factors.items()})
    first = {"grad_rad_W1": _compute_judge_field("interaction_bilinear_bwd", back, "rad_W1"), **embedding}
    expected = {"rad_basis": z["grad_rad_basis"], "weight": z["grad_basis_weight"]}
    yield GoldenVector(name, "basis_embedding_spherical_bwd", first, expected)

    # At second order, the embedding's bwd2 yields the cotangent of the bilinear layer's gradient for rad_W1.
    second = {"gg_rad_basis": z["gg_rad_basis"], "gg_weight": z["gg_basis_weight"], **first}
    ggs = {"gg_rad_W1": _compute_judge_field("basis_embedding_spherical_bwd2", second, "grad_rad_W1")}
    ggs |= {f"gg_{n}": z[f"gg_{f}"] for n, f in factors.items()}
    expected = {"grad_m_ca": z["grad2_ct_m_ca"], **{n: z[f"grad2_{f}"] for n, f in factors.items()}}
    yield GoldenVector(name, "interaction_bilinear_bwd2", {**ggs, **back}, expected)
    # Subtract the composition's other second-order term: the embedding's bwd of field rad_W1 of the bilinear bwd2.
    rest = {"grad_rad_W1": _compute_judge_field("interaction_bilinear_bwd2", {**ggs, **back}, "rad_W1"), **embedding}
    expected = {
        "rad_basis": z["grad2_rad_basis"] - _compute_judge_field("basis_embedding_spherical_bwd", rest, "rad_basis"),
        "weight": z["grad2_basis_weight"] - _compute_judge_field("basis_embedding_spherical_bwd", rest, "weight"),
    }
    yield GoldenVector(name, "basis_embedding_spherical_bwd2", second, expected)


def _compute_judge_field(operator: str, values: Mapping[str, Any], field: str) -> np.ndarray:
    """Return the judge's value of a field, rounded to float64."""
    return compute_with_judge(OPERATORS[operator], values, (field,))[field][0]


# FILES lists the vectors of each family; ADAPTERS maps the first word of a file name to the function that reads it.
FILES = {
    "gno": ("gno_d1_H8_Fi1_Fo8", "gno_d2_H32_Fi8_Fo3", "gno_d3_H16_Fi4_Fo6", "athena_gno"),
    "dimenet": (
        "dimenet_radial_basis",
        "dimenet_H2O",
        "dimenet_CH3CH2OH",
        "dimenet_C6H6",
        "dimenet_crystal_small_cell_edge",
        "dimenet_slab_pbc_edge",
        "dimenet_slab_pbc_node",
    ),
    "gat": (
        "gat_h1_d8_concat",
        "gat_h4_d16_concat",
        "gat_airfoil_h4_d8_concat",
        "gat_h3_d5_mean",
        "gat_h8_d8_mean",
        "gat_linear_edge",
        "gat_ReLU",
        "gat_ELU_edge",
        "gat_sigmoid_edge",
        "gat_tanh",
    ),
    "weighted": ("weighted_airfoil_bipartite", "weighted_random", "weighted_skewed"),
    "gemnet": ("gemnet_triplet", "gemnet_quadruplet_49", "gemnet_edge_to_atom"),
}
ADAPTERS: dict[str, Callable[[str, Mapping[str, np.ndarray]], Iterator[GoldenVector]]] = {
    "gno": _parse_gno_vectors,
    "athena": _parse_athena_vectors,
    "dimenet": _parse_dimenet_vectors,
    "gat": _parse_gat_vectors,
    "weighted": _parse_weighted_vectors,
    "gemnet": _parse_gemnet_vectors,
}
