"""Workloads of GemNet-OC's efficient bilinear interaction, and what users run without trigraph: padded lists.

``fairchem`` is fairchem-core 1.10.0's own BasisEmbedding and EfficientInteractionBilinear, run eagerly. Their file is
loaded from its wheel, unpacked or not, without the package around it and all that this needs: from the folder that
TRIGRAPH_FAIRCHEM names, or from an installed fairchem-core. Nothing of theirs is kept here.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from sysconfig import get_path
from types import ModuleType
from typing import Any

import numpy as np

from trigraph.benchmarks.calls import Call, Unavailable
from trigraph.benchmarks.workloads import Case, Peer, Step, Target, Workload

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
SWEEP = (300, 1_000, 3_000, 10_000)
VARIABLE = "TRIGRAPH_FAIRCHEM"
VERSION = "1.10.0"
PACKAGES = ("fairchem", "fairchem.core", "fairchem.core.models", "fairchem.core.models.gemnet_oc")
LAYERS = f"{PACKAGES[-1]}.layers"


def _root() -> str:
    """Return the folder, or the wheel, in which fairchem's package lies.

    Raises
    ------
    Unavailable
        If there is none of the version wanted.
    """
    folder = os.environ.get(VARIABLE)
    if folder:
        found = [Path(folder), *Path(folder).glob(f"fairchem_core-{VERSION}-*.whl")]
        for root in (str(p) for p in found if p.suffix == ".whl" or (p / "fairchem" / "core").is_dir()):
            return root
    try:
        if version("fairchem-core") == VERSION:
            return get_path("purelib")
    except PackageNotFoundError:
        pass
    raise Unavailable(
        f"fairchem-core {VERSION} is not there: pip download fairchem-core=={VERSION} --no-deps, "
        f"and name the folder of its wheel in {VARIABLE}"
    )


@cache
def _layers() -> Any:
    """Load fairchem's file of the efficient layers; the packages above it are empty and go again."""
    root, known = _root(), dict(sys.modules)
    try:
        for name in (*PACKAGES, LAYERS):
            package = ModuleType(name)
            package.__path__ = [os.path.join(root, *name.split("."))]
            sys.modules[name] = package
        return importlib.import_module(f"{LAYERS}.efficient")
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == PACKAGES[0]]:
            del sys.modules[name]
        sys.modules.update({n: m for n, m in known.items() if n.split(".")[0] == PACKAGES[0]})


def _modules(case: Case, device: str) -> tuple[Any, Any]:
    """Both modules with the weights of the case."""
    import torch

    layers, n = _layers(), case.sizes
    embed = layers.BasisEmbedding(n["num_radial"], n["interm"], n["num_spherical"])
    interact = layers.EfficientInteractionBilinear(n["emb_in"], n["interm"], n["emb_out"])
    weights = (case["basis_embedding_spherical.weight"], case["interaction_bilinear.weight"])
    for module, weight in zip((embed, interact), weights, strict=True):
        (parameter,) = module.parameters()
        parameter.data = torch.tensor(weight, device=device)
    return embed, interact


def fairchem(case: Case, device: str) -> Call:
    """Forward through both modules, then autograd's backward to bases, embedding and both weights."""
    import torch

    embed, interact = _modules(case, device)
    triplets = case.graphs["triplets"]
    first = np.repeat(triplets.offsets[:-1], np.diff(triplets.offsets))
    inner = np.empty_like(triplets.index)
    inner[triplets.order] = np.arange(triplets.num_members) - first
    edge, number = (torch.tensor(a, device=device) for a in (triplets.index, inner))
    rad, sph, m = (torch.tensor(case[n], device=device, requires_grad=True) for n in ("rad_basis", "sph", "m"))
    g = torch.tensor(case["grad_m_ca"], device=device)
    leaves = {
        "basis_embedding_spherical_bwd.rad_basis": rad,
        "basis_embedding_spherical_bwd.weight": embed.weight,
        "interaction_bilinear_bwd.sph": sph,
        "interaction_bilinear_bwd.m": m,
        "interaction_bilinear_bwd.weight": interact.bilinear.linear.weight,
    }

    def call() -> dict[str, Any]:
        basis = embed(rad, sph, idx_sph_outer=edge, idx_sph_inner=number)
        out = interact(basis, m, edge, number)
        gradients = torch.autograd.grad(out, list(leaves.values()), g)
        return {"interaction_bilinear_fwd.m_ca": out} | dict(zip(leaves, gradients, strict=True))

    return call


RAD_W1 = {"rad_W1": "basis_embedding_spherical_fwd.rad_W1"}
STEPS = (
    Step("basis_embedding_spherical_fwd"),
    Step("interaction_bilinear_fwd", given=RAD_W1),
    Step("interaction_bilinear_bwd", given=RAD_W1),
    Step("basis_embedding_spherical_bwd", given={"grad_rad_W1": "interaction_bilinear_bwd.rad_W1"}),
)
PEERS = {
    "fairchem": Peer(partial(fairchem, device="cpu"), f"fairchem-core {VERSION}'s own modules, eager", ("torch",)),
    "fairchem-cuda": Peer(
        partial(fairchem, device="cuda"), f"fairchem-core {VERSION}'s own modules, eager", ("torch",), device=True
    ),
}


def _workload(name: str, summary: str, target: Target, **more: Any) -> Workload:
    return Workload(
        name=name,
        family="gemnet",
        summary=f"spherical basis embedding and bilinear interaction, forward and backward: {summary}",
        steps=STEPS,
        peers=PEERS,
        targets=(target,),
        settings={"atoms": None, "idx_in": None},
        **more,
    )


WORKLOADS = (
    _workload("gemnet", "12 triplets for every edge", Target("fairchem", time=2.5), sizes=SIZES, sweep=SWEEP),
    _workload(
        "gemnet-power-law",
        "12 triplets for an edge in the mean, by a power law, 600 for one",
        Target("fairchem", time=20, memory=10),
        sizes={**SIZES, "num_triplets": 35_700, "num_inputs": 35_700},
        layout="power law",
    ),
    _workload(
        "gemnet-quadruplets",
        "30 quadruplets for every edge, 49 spherical functions",
        Target("fairchem", time=4),
        sizes={**SIZES, "num_triplets": 90_000, "num_inputs": 90_000, "num_spherical": 49},
    ),
)
