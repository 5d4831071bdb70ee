"""Workloads of GemNet-OC's efficient bilinear interaction, and their peer, which uses padded lists.

The peer is BasisEmbedding and EfficientInteractionBilinear of fairchem-core 1.10.0, in eager mode. Their file is loaded
without the package's dependencies, from the wheel (packed or unpacked) in the folder TRIGRAPH_CLIENTS. This repository
contains no copy of the file.
"""

from functools import cache
from typing import Any

import numpy as np

from trigraph.benchmarks.originals import WheelRelease, load_modules
from trigraph.benchmarks.programs import Call
from trigraph.benchmarks.workloads import Step, Workload, WorkloadInputs, make_torch_peers

SIZES = {
    "num_edges": 3_000,
    "num_triplets": 36_000,
    "num_inputs": 36_000,
    "num_outputs": 3_000,
    "num_radial": 128,
    "num_spherical": 7,
    "interm": 16,
    "emb_in": 64,
    "emb_out": 64,
}
FAIRCHEM = WheelRelease("fairchem-core", "1.10.0", "fairchem/core")
PACKAGES = ("fairchem", "fairchem.core", "fairchem.core.models", "fairchem.core.models.gemnet_oc")
LAYERS = f"{PACKAGES[-1]}.layers"


def scatter_sum(source: Any, index: Any, dim: int, dim_size: int, reduce: str) -> Any:
    """Sum rows. Replaces torch_scatter's scatter, which the blocks use only for sums."""
    assert (dim, reduce) == (0, "sum")
    return source.new_zeros(dim_size, *source.shape[1:]).index_add(0, index, source)


@cache
def load_fairchem_modules() -> tuple[Any, ...]:
    """Return fairchem's modules with the efficient layers, the interaction block and the dense layers."""
    wanted = [f"{LAYERS}.{name}" for name in ("efficient", "interaction_block", "base_layers")]
    packages = [*PACKAGES, LAYERS, "fairchem.core.common"]
    stand_ins = {"fairchem.core.common.utils": {"scatter_det": scatter_sum}}
    return tuple(load_modules(FAIRCHEM.find_root(), packages, wanted, stand_ins))


def compute_indices_within_lists(outer: np.ndarray) -> np.ndarray:
    """Return each member's index within its list, in order of appearance."""
    order = np.argsort(outer, kind="stable")
    lengths = np.bincount(outer) if len(outer) else np.zeros(0, np.int64)
    number = np.empty(len(outer), np.int64)
    number[order] = np.arange(len(outer)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return number


def make_fairchem_call(case: WorkloadInputs, device: str) -> Call:
    """Return a call that computes both modules, and the gradients of bases, embedding and both weights."""
    import torch

    layers, n = load_fairchem_modules()[0], case.sizes
    embed = layers.BasisEmbedding(n["num_radial"], n["interm"], n["num_spherical"])
    interact = layers.EfficientInteractionBilinear(n["emb_in"], n["interm"], n["emb_out"])
    for module, name in ((embed, "basis_embedding_spherical"), (interact, "interaction_bilinear")):
        (parameter,) = module.parameters()
        parameter.data = torch.tensor(case[f"{name}.weight"], device=device)
    triplets = case.graphs["triplets"]
    edge, number = (
        torch.tensor(a, device=device) for a in (triplets.index, compute_indices_within_lists(triplets.index))
    )
    rad, sph, m = (torch.tensor(case[n], device=device, requires_grad=True) for n in ("rad_basis", "sph", "m"))
    g = torch.tensor(case["grad_m_ca"], device=device)
    leaves = {
        "basis_embedding_spherical_bwd.rad_basis": rad,
        "basis_embedding_spherical_bwd.weight": embed.weight,
        "interaction_bilinear_bwd.sph": sph,
        "interaction_bilinear_bwd.m": m,
        "interaction_bilinear_bwd.weight": interact.bilinear.linear.weight,
    }

    def compute_output_and_gradients() -> dict[str, Any]:
        basis = embed(rad, sph, idx_sph_outer=edge, idx_sph_inner=number)
        out = interact(basis, m, edge, number)
        gradients = torch.autograd.grad(out, list(leaves.values()), g)
        return {"interaction_bilinear_fwd.m_ca": out} | dict(zip(leaves, gradients, strict=True))

    return compute_output_and_gradients


RAD_W1 = {"rad_W1": "basis_embedding_spherical_fwd.rad_W1"}
STEPS = (
    Step("basis_embedding_spherical_fwd"),
    Step("interaction_bilinear_fwd", from_steps=RAD_W1),
    Step("interaction_bilinear_bwd", from_steps=RAD_W1),
    Step("basis_embedding_spherical_bwd", from_steps={"grad_rad_W1": "interaction_bilinear_bwd.rad_W1"}),
)
ABOUT = f"fairchem-core {FAIRCHEM.version}'s own modules, eager"


def _make_gemnet_workload(name: str, summary: str, **more: Any) -> Workload:
    return Workload(
        name=name,
        family="gemnet",
        summary=f"spherical basis embedding, bilinear interaction and their gradients, {summary}",
        steps=STEPS,
        peers=make_torch_peers("fairchem", make_fairchem_call, ABOUT),
        absent=("atoms", "idx_in"),
        **more,
    )


WORKLOADS = (
    _make_gemnet_workload("gemnet", "12 triplets per edge", sizes=SIZES),
    _make_gemnet_workload(
        "gemnet-power-law",
        "a mean of 12 triplets per edge (up to 600, by a power law)",
        sizes={**SIZES, "num_triplets": 35_700, "num_inputs": 35_700},
        layout="power law",
    ),
    _make_gemnet_workload(
        "gemnet-quadruplets",
        "30 quadruplets per edge, 49 spherical functions",
        sizes={**SIZES, "num_triplets": 90_000, "num_inputs": 90_000, "num_spherical": 49},
    ),
)
