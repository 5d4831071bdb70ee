"""The instances of kernels that may spill registers."""

from typing import NamedTuple

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
MAX_SPILL_BYTES = 150  # bytes that an instance in SPILLS may spill

_FEW_REGISTERS = "a few numbers: the registers that the blocks of a multiprocessor leave to a thread just do not fit"
_ONE_THREAD = "on sm_100 alone, where one thread of a block inverts the cell of a structure"
_OLD_COMPILER = "by NVRTC 13.0 alone: 13.5 needs none"
# Instances that may spill, with reasons.
SPILLS = {
    "dimenet_out_edges<float, int, 0, 7>": _FEW_REGISTERS,
    "dimenet_out_edges<float, int, 1, 7>": _FEW_REGISTERS,
    "dimenet_out_edges<float, long long, 0, 7>": _FEW_REGISTERS,
    "dimenet_out_edges<float, long long, 1, 7>": _FEW_REGISTERS,
    "dimenet_in_edges<float, long long, false, 7>": _FEW_REGISTERS,
    "dimenet_in_edges<float, int, false, 8>": "in the instance for any number of degrees, on the oldest architectures",
    "dimenet_in_edges<float, long long, false, 8>": "as with int indices",
    "dimenet_in_edges<float, int, false, 7>": _OLD_COMPILER,
    "dimenet_in_edges<double, long long, true, 8>": _OLD_COMPILER,
    "dimenet_radial_edge_gradients<float, true>": _OLD_COMPILER,
    "gemnet_triplet_gradients<float, int, 8, 2>": _OLD_COMPILER,
    "gemnet_triplet_gradients<float, long long, 8, 2>": _OLD_COMPILER,
    "gemnet_triplet_gradients<float, int, 16, 1>": _OLD_COMPILER,
    "gemnet_triplet_gradients<float, long long, 16, 1>": _OLD_COMPILER,
    "gemnet_unit_sums<double, long long, 8, 1>": _OLD_COMPILER,
    "gno_grad_edges<float, int>": _FEW_REGISTERS,
    "gno_grad_edges<float, long long>": _FEW_REGISTERS,
    "gno_grad_edges_tensor<float, long long>": "on 7.5 it runs gno_grad_edges",
    "gno_grad_v_tensor<float, int>": _OLD_COMPILER,
    "gno_grad_v<float, int>": _OLD_COMPILER,
    "gno_grad_v<double, long long>": _FEW_REGISTERS,
    **dict.fromkeys(("neighbor_frames<float, int>", "neighbor_frames<double, int>"), _ONE_THREAD),
}

# Kernels that use a stack: sine and cosine reduce large angles with an array in local memory.
STACK_KERNELS = tuple(f"dimenet_radial{suffix}" for suffix in ("", "_edge_gradients", "_freq_gradient", "_third"))


class LocalMemoryUsage(NamedTuple):
    """Local memory used by a kernel, in bytes."""

    stack: int
    spills: int  # bytes stored plus bytes loaded


def describe_unexpected_local_memory(usages: dict[str, LocalMemoryUsage]) -> list[str]:
    """Return a message for each instance that unexpectedly spills registers or uses a stack."""
    return [
        f"{name} has {usage}"
        for name, usage in usages.items()
        if usage.spills > (MAX_SPILL_BYTES if name in SPILLS else 0)
        or (usage.stack and name not in SPILLS and name.partition("<")[0] not in STACK_KERNELS)
    ]
