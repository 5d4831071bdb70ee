"""Real inputs: small data files shipped with the package, and the user's structures.

Real coordinates close to a kink cannot be redrawn. Their edges are excluded, and the note states the number of edges.
"""

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trigraph.backends import get_backend_function
from trigraph.checks import find_symbol_sizes
from trigraph.graphs import CSC
from trigraph.table import Definition
from trigraph.verification import networks
from trigraph.verification.case import Case, make_read_only
from trigraph.verification.cases import POINT_STEP, draw_arrays, mark_rows_near_kinks, use_normal_distribution
from trigraph.verification.judged import list_fwd_bwd_bwd2
from trigraph.verification.structures import AtomicStructure, load_shipped_structures
from trigraph.verification.triplets import list_triplet_inputs

SLAB = "copper slab with CO"
WIDTH = 8  # numbers of input and output features in athena's weights
# Finite-difference steps for whole inputs; directions are relative (v_i = x_i times a normal number). GNO is piecewise
# polynomial with degree at most 2, and GemNet-OC is multilinear; other operators need enough steps to show the order.
POLYNOMIAL_STEPS = tuple(2.0**-k for k in range(10, 36, 8))
STRUCTURE_STEPS = tuple(2.0**-k for k in (*range(6, 20, 2), *range(22, 36, 4)))
NETWORK_STEPS = tuple(2.0**-k for k in (*range(3, 20, 2), *range(22, 36, 4)))


def _make_gno_airfoil_arguments(definition: Definition, patch: bool, keep: np.ndarray | None) -> dict[str, Any]:
    """Return GNO's arguments for the airfoil mesh: differences of positions, smooth features, and athena's weights."""
    positions, src, dst = networks.load_airfoil_mesh(patch)
    if keep is not None:
        src, dst = src[keep], dst[keep]
    phases = positions @ np.array([[0.3, 0.7, 0.2, 0.5], [0.6, -0.1, 0.4, -0.8]])
    sizes = {"f_in": WIDTH, "f_out": WIDTH}
    coords, params = positions[src] - positions[dst], networks.load_airfoil_arrays()["params"].astype(np.float64)
    return {
        "coords": coords,
        "params": params,
        "features": np.concatenate([np.sin(phases), np.cos(phases)], axis=1),
        "kernel": get_backend_function("pyref", "gno_kernel_fwd")(coords, params, **sizes),
        "graph": CSC.from_coo(src, dst, len(positions), len(positions)),
        **sizes,
    }


@dataclass(frozen=True)
class RealInput:
    """Real input of a family of definitions.

    `values(definition, patch, keep)` returns the arguments of fwd (and possibly others) in float64, for the whole input
    or for a patch that is small enough for the judge. Of the input with kinks, only the rows in the mask `keep` are
    included (None means all). `steps` are the finite-difference steps for the whole input; `remark(patch)` describes
    what is excluded. If `backends` is not empty, only these backends use the whole input, because it is large.
    """

    name: str
    values: Callable[[Definition, bool, np.ndarray | None], dict[str, Any]]
    steps: tuple[float, ...]
    remark: Callable[[bool], str] = lambda patch: ""
    backends: tuple[str, ...] = ()


def list_real_inputs(family: str, structures: Iterable[AtomicStructure] = ()) -> tuple[RealInput, ...]:
    """Return the real inputs of a family, shipped or generated, and for DimeNet++ the user's structures as well."""
    if family in ("gat", "weighted"):
        return (
            RealInput("airfoil", networks.make_airfoil_arguments, NETWORK_STEPS),
            RealInput("karate club", networks.make_karate_club_arguments, NETWORK_STEPS),
            RealInput("power law", networks.make_power_law_arguments, (), backends=("fortran",)),
        )
    if family == "gno":
        return (RealInput("airfoil", _make_gno_airfoil_arguments, POLYNOMIAL_STEPS),)
    if family == "dimenet":
        return tuple(
            RealInput(s.name, s.make_arguments, STRUCTURE_STEPS, s.describe_exclusions)
            for s in (*load_shipped_structures(), *structures)
        )
    if family == "gemnet":
        (slab,) = (s for s in load_shipped_structures() if s.name == SLAB)
        return tuple(
            RealInput(n, s.make_arguments, POLYNOMIAL_STEPS, s.describe_exclusions)
            for n, s in list_triplet_inputs(slab).items()
        )
    return ()


def build_real_case(real: RealInput, definition: Definition, dtype: str, seed: int, patch: bool) -> Case:
    """Build the case for one of ``list_real_inputs(definition.family)``; its note states how many edges are excluded.

    With `patch`, the case is a patch for comparison with the judge; otherwise, it is the whole input, for differences
    and adjoints. `seed` determines cotangents and directions.
    """

    def make_read_only_arguments(keep: np.ndarray | None) -> dict[str, Any]:
        arguments = real.values(definition, patch, keep)
        if missing := [name for name in fwd.parameter_names if name not in arguments]:
            raise LookupError(f"{fwd.name}: the real input {real.name!r} has no {', '.join(missing)}")
        own = {name: arguments[name] for name in fwd.parameter_names}
        return {n: make_read_only(v.astype(dtype)) if isinstance(v, np.ndarray) else v for n, v in own.items()}

    fwd = list_fwd_bwd_bwd2(definition)[0]
    rng = np.random.default_rng([seed, zlib.crc32(f"{definition.name}/{real.name}".encode())])
    step, values, notes = (
        POINT_STEP if patch or not real.steps else real.steps[0],
        make_read_only_arguments(None),
        [real.remark(patch)],
    )
    inputs = {a.name: a for a in definition.inputs if values[a.name] is not None}
    grads = {f"grad_{a.name}": a for a in definition.outputs}
    directions = {n: make_read_only((values[n] * rng.standard_normal(values[n].shape)).astype(dtype)) for n in inputs}
    for name, bad in mark_rows_near_kinks(definition, values, directions, step).items():
        notes.append(f"{np.count_nonzero(bad)} of {bad.size} edges left out: within 2 steps of {step:.1e} of a kink")
        values = make_read_only_arguments(~bad)
        directions[name] = make_read_only(directions[name][~bad])
    sizes = find_symbol_sizes(fwd, {n: values[n] for n in fwd.parameter_names})
    cotangents = [
        draw_arrays(s, sizes, dtype, rng)
        for s in (grads, {f"gg_{n}": use_normal_distribution(a) for n, a in inputs.items()}, grads)
    ]
    label = f"{real.name} patch" if patch else real.name
    directions |= cotangents[2]
    return Case(
        label, definition, sizes, values, cotangents[0], cotangents[1], directions, step, "; ".join(filter(None, notes))
    )
