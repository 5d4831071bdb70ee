"""The template instances of every kernel, which NVRTC and the host build compile.

Names are C++ name expressions such as ``gno_hidden<float>``. This module uses only the standard library, because meson
runs it before NumPy is installed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

FLOATS = ("float", "double")
STORAGE = (*FLOATS, "float16", "bfloat16")  # kernels/gat_storage.cuh defines the half-precision types
INDICES = ("int", "long long")
BOOLS = ("false", "true")

#: C++ types of template arguments and kernel parameters, by NumPy dtype name.
C_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int32": "int",
    "int64": "long long",
}


def format_instance_name(kernel: str, types: tuple[str, ...]) -> str:
    """Return the name expression of a kernel with the given template arguments."""
    return f"{kernel}<{', '.join(types)}>" if types else kernel


def expand_instances(kernel: str, *axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return a kernel template's instances for all combinations of template arguments, such as ``f<float, int>``."""
    return tuple(format_instance_name(kernel, types) for types in product(*axes))


def parse_types_and_degrees(name: str) -> tuple[frozenset[str], str]:
    """Return the types among the template arguments of an instance, and its number of degrees ("" if none)."""
    kernel, _, inside = name.removesuffix(">").partition("<")
    arguments = inside.split(", ") if inside else []
    degrees = arguments[-1] if kernel in SLOW else ""
    return frozenset(arguments) & frozenset(C_TYPES.values()), degrees


#: The environment variable that selects tensor cores for float32 kernels: 1, or 0 (the default).
TENSOR_VARIABLE = "TRIGRAPH_TENSOR_CORES"
#: Suffix of tensor-core kernels. The kernels without this suffix have the same parameters; all other dtypes use them.
TENSOR_SUFFIX = "_tensor"


def uses_tensor_cores() -> bool:
    """Return whether the environment variable selects tensor cores (kernels/tensor.cuh) for float32 kernels.

    No cache depends on this choice, because kernels for tensor cores have separate names.
    """
    value = os.environ.get(TENSOR_VARIABLE) or "0"
    if value not in ("0", "1"):
        raise ValueError(f"{TENSOR_VARIABLE} is {value!r}; expected 0 or 1")
    return value == "1"


@contextmanager
def set_tensor_cores(on: bool) -> Iterator[None]:
    """Return a context that switches tensor cores on or off in the whole process, for verification."""
    before = os.environ.get(TENSOR_VARIABLE)
    os.environ[TENSOR_VARIABLE] = str(int(on))
    try:
        yield
    finally:
        if before is None:
            del os.environ[TENSOR_VARIABLE]
        else:
            os.environ[TENSOR_VARIABLE] = before


def is_enabled(name: str) -> bool:
    """Return whether calls may launch an instance; tensor-core instances are launched only if tensor cores are on."""
    return uses_tensor_cores() or not name.partition("<")[0].endswith(TENSOR_SUFFIX)


#: Kernels that take seconds to compile, the slowest first.
SLOW = ("dimenet_out_edges", "dimenet_in_edges")


def rank_for_compilation(name: str) -> int:
    """Return a sort key that puts instances that compile slowly first."""
    kernel = name.partition("<")[0]
    return SLOW.index(kernel) if kernel in SLOW else len(SLOW)


def list_related_instances(family: str, name: str) -> list[str]:
    """Return the other instances that calls with the same types and degrees launch, slowest to compile first."""
    types, degrees = parse_types_and_degrees(name)
    arguments = {
        other: parse_types_and_degrees(other) for other in INSTANCES[family] if other != name and is_enabled(other)
    }
    return sorted((n for n, (t, d) in arguments.items() if t <= types and d in ("", degrees)), key=rank_for_compilation)


#: Instances of the kernels in kernels/matrices.cuh and kernels/products.cuh.
PRODUCTS = (
    *expand_instances("multiply_chunks", FLOATS),
    *(
        name
        for end in ("", TENSOR_SUFFIX)
        for name in (
            *expand_instances(f"multiply{end}", FLOATS if end == "" else ("float",), ("16", "32", "64")),
            # Rows and columns of a tile (`TILES` in products.py).
            *(
                format_instance_name(f"multiply_chunks_tiled{end}", ("float", *tile))
                for tile in (("32", "128"), ("64", "128"), ("128", "64"))
            ),
        )
    ),
)

#: Instances by family, which is the name of its ``kernels/*.cu`` file.
INSTANCES: dict[str, tuple[str, ...]] = {
    "dimenet": (
        *expand_instances("dimenet_radial", FLOATS),
        *expand_instances("dimenet_radial_edge_gradients", FLOATS, BOOLS),
        *expand_instances("dimenet_radial_freq_gradient", FLOATS, BOOLS),
        *expand_instances("dimenet_radial_third", FLOATS),
        *expand_instances("dimenet_directions", FLOATS),
        *expand_instances("dimenet_project", FLOATS),
        *expand_instances("dimenet_transpose", FLOATS),
        # For up to 8 degrees of spherical harmonics; there are separate float32 instances for 7, the usual number.
        *expand_instances("dimenet_out_edges", FLOATS, INDICES, ("0", "1", "2"), ("8",)),
        *expand_instances("dimenet_out_edges", ("float",), INDICES, ("0", "1", "2"), ("7",)),
        *expand_instances("dimenet_in_edges", FLOATS, INDICES, BOOLS, ("8",)),
        *expand_instances("dimenet_in_edges", ("float",), INDICES, BOOLS, ("7",)),
        *expand_instances("dimenet_vec_gradient", FLOATS),
        *expand_instances("dimenet_sbf_rad_gradient", FLOATS),
        *expand_instances("dimenet_weight_gradient_parts", FLOATS),
        *expand_instances("silu_bwd2", FLOATS),
        *expand_instances("silu_bwd3", FLOATS),
        *expand_instances("neighbor_frames", FLOATS, INDICES),
        *expand_instances("neighbor_bins", FLOATS, INDICES),
        *expand_instances("neighbor_pairs", FLOATS, INDICES, BOOLS),
        *expand_instances("neighbor_sort_edges"),
        *expand_instances("neighbor_link_edges", FLOATS, INDICES),
        *expand_instances("dimenet_third_directions", FLOATS),
        *expand_instances("dimenet_third_products", FLOATS),
        *expand_instances("dimenet_third_features", FLOATS),
        *expand_instances("dimenet_third_triplet_sums", FLOATS, INDICES, BOOLS),
        *expand_instances("dimenet_third_sbf_rad_gradient", FLOATS),
        *expand_instances("dimenet_third_products_gradient", FLOATS),
        *expand_instances("dimenet_third_weights_gradient", FLOATS),
        *expand_instances("dimenet_third_vec_gradient", FLOATS),
        *expand_instances("sum_rows", FLOATS),
    ),
    "gat": (
        *expand_instances("sum_long_row_parts", FLOATS, INDICES),
        *expand_instances("sum_rows", FLOATS),
        *expand_instances("reduce_long_rows", STORAGE, INDICES),
        *expand_instances("gat_project", STORAGE, BOOLS),
        *expand_instances("combine_softmax_stats", FLOATS, INDICES),
        *expand_instances("gat_forward", STORAGE, INDICES, BOOLS, BOOLS),
        *expand_instances("gat_output_tangent", STORAGE, INDICES, BOOLS, BOOLS),
        *expand_instances("gat_backward", STORAGE, INDICES, BOOLS, BOOLS),
        *expand_instances("gat_embedding_gradient", STORAGE, INDICES, BOOLS, BOOLS),
        *expand_instances("gat_weight_gradient_parts", STORAGE, INDICES),
    ),
    "gemnet": (
        *expand_instances("sum_long_row_parts", FLOATS, INDICES),
        *expand_instances("sum_gathered_rows", FLOATS, INDICES),
        *expand_instances("copy_nonempty_rows", FLOATS, INDICES),
        *expand_instances("sum_rows", FLOATS),
        *PRODUCTS,
        *expand_instances("gemnet_mask_units", FLOATS, INDICES),
        # The rows and columns that a lane keeps in registers (RegisterTile in gemnet_units.py).
        *(
            format_instance_name(f"gemnet_{kernel}", (real, index, rows, cols))
            for kernel in ("unit_sums", "radial_gradient", "triplet_gradients", "embed_triplets", "sum_outer_products")
            for real, rows, cols in (("float", "8", "2"), ("float", "16", "1"), ("double", "8", "1"))
            for index in INDICES
        ),
    ),
    "gno": (
        *expand_instances("sum_long_row_parts", FLOATS, INDICES),
        *expand_instances("sum_gathered_rows", FLOATS, INDICES),
        *expand_instances("copy_rows_to_pieces", FLOATS, INDICES),
        *expand_instances("sum_rows", FLOATS),
        *PRODUCTS,
        *expand_instances("gno_hidden", FLOATS),
        *expand_instances("gno_zero_inactive", FLOATS),
        *expand_instances("gno_contract", FLOATS, INDICES),
        *expand_instances("gno_sum_outer_products", FLOATS, INDICES),
        *expand_instances("gno_message", FLOATS, INDICES),
        *expand_instances("gno_grad_v", FLOATS, INDICES),
        *expand_instances("gno_grad_edges", FLOATS, INDICES),
        *expand_instances("gno_message_tensor", ("float",), INDICES),
        *expand_instances("gno_grad_v_tensor", ("float",), INDICES),
        *expand_instances("gno_grad_edges_tensor", ("float",), INDICES),
        *expand_instances("gno_split_rows_tensor"),
        *expand_instances("gno_split_v_tensor"),
    ),
    "weighted": (
        *expand_instances("sum_long_row_parts", FLOATS, INDICES),
        *expand_instances("sum_gathered_rows", FLOATS, INDICES),
        *expand_instances("weighted_degrees", FLOATS, INDICES),
        *expand_instances("weighted_sum", FLOATS, INDICES, BOOLS, BOOLS),
        *expand_instances("weighted_extrema", FLOATS, INDICES, BOOLS),
        *expand_instances("weighted_combine_extrema", FLOATS, INDICES),
        *expand_instances("weighted_values_at_extrema", FLOATS, INDICES),
        *expand_instances("weighted_source_gradient", FLOATS, INDICES, BOOLS),
        *expand_instances("weighted_dots", FLOATS, INDICES, BOOLS, BOOLS),
    ),
}
